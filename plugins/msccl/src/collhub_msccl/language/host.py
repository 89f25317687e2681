"""Behaviour of `XML()` and `Check()`.

They print if a program is used as a library; in the reader's process `child` replaces this.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collhub_msccl.language.program import MSCCLProgram


class Host:
    """Behaviour of the library: print to standard output."""

    def record_program(self, program: MSCCLProgram) -> None:
        """Called when a program begins."""

    def record_empty_slot(self, what: str) -> None:
        """Called when a program requests an empty slot, named `what`, and gets None."""

    def show_xml(self, program: MSCCLProgram) -> None:
        """Print the program as MSCCL-IR XML."""
        print(program.generate_xml(), end="")

    def show_check(self, program: MSCCLProgram) -> bool:
        """Verify the program, print its errors, and return whether there are none."""
        return program.check()


# A Host has no state, so the default can be shared.
CURRENT_HOST: ContextVar[Host] = ContextVar("msccl_host", default=Host())  # noqa: B039
