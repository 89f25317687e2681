"""Collect what a reader of machines accepts but the user should know: one warning a kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hub_core.model import Diagnostic, Location, Severity


class MachineFindings:
    """Warnings by code, in the order in which they first came.

    A machine repeats its devices, so a file that lacks something lacks it everywhere: the user gets
    the first place and the number of places.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[Diagnostic, int]] = {}

    def warn(self, code: str, place: Location, message: str, cure: str = "") -> None:
        """Note one place; the first of a code gives the message."""
        new = Diagnostic(code, message, Severity.WARNING, place, cure)
        # A dictionary keeps the order of its keys.
        first, count = self._found.get(code, (new, 0))
        self._found[code] = (first, count + 1)

    def tell(self, report: Callable[[Diagnostic], None]) -> None:
        """Report every kind once."""
        for first, count in self._found.values():
            more = f" (and {count - 1} more such places)" if count > 1 else ""
            report(replace(first, message=first.message + more))
