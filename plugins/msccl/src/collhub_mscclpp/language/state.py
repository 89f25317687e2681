"""The program whose `with` block is being executed."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collhub_mscclpp.language.program import CollectiveProgram

_CURRENT: ContextVar[CollectiveProgram | None] = ContextVar("mscclpp_program", default=None)


def current_program() -> CollectiveProgram:
    """The program. Raises `RuntimeError` outside of one."""
    program = _CURRENT.get()
    if program is None:
        raise RuntimeError("is used outside of `with CollectiveProgram(...)`")
    return program


def enter_program(program: CollectiveProgram | None) -> None:
    """Make a program the current one; None: there is none any more."""
    _CURRENT.set(program)
