"""What `XML()` and `Check()` do.

They print, where a program is used as a library; the reader's process replaces this by its own way
(`child`).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collhub_msccl.language.program import MSCCLProgram


class Host:
    """The library's way: to standard output."""

    def entered(self, program: MSCCLProgram) -> None:
        """A program begins."""

    def found_empty(self, what: str) -> None:
        """A program asked for a slot that holds nothing, and got None."""

    def show_xml(self, program: MSCCLProgram) -> None:
        """`XML()`."""
        print(program.generate_xml(), end="")

    def show_check(self, program: MSCCLProgram) -> bool:
        """`Check()`."""
        return program.check()


# A Host has no state, so one default may be shared.
CURRENT_HOST: ContextVar[Host] = ContextVar("msccl_host", default=Host())  # noqa: B039
