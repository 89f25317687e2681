"""Collect findings of a reader about accepted input, and report one per kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hub_core.model import Diagnostic, Location, Severity


class NetworkFindings:
    """Warnings and notes by code, in order of their first occurrence.

    A network repeats its devices, so missing data is missing in many places: the user gets the
    first place and the number of places.
    """

    def __init__(self) -> None:
        self._by_code: dict[str, tuple[Diagnostic, int]] = {}

    def warn(
        self,
        code: str,
        place: Location,
        message: str,
        cure: str = "",
    ) -> None:
        """Record a warning at a place; the first one of a code gives the message."""
        self._add(
            Diagnostic(
                code,
                message,
                Severity.WARNING,
                place,
                cure,
            )
        )

    def note(
        self,
        code: str,
        place: Location,
        message: str,
        cure: str = "",
    ) -> None:
        """Record a note, for example about supplied values; otherwise as `warn`."""
        self._add(
            Diagnostic(
                code,
                message,
                Severity.NOTE,
                place,
                cure,
            )
        )

    def tell(self, report: Callable[[Diagnostic], None]) -> None:
        """Report the finding of every code once, with the number of further places."""
        for first, count in self._by_code.values():
            # Hundreds of equal lines would hide the remaining ones.
            more = f" (and {count - 1} more such places)" if count > 1 else ""
            report(replace(first, message=first.message + more))

    def _add(self, new: Diagnostic) -> None:
        """Count a finding; keep the first one of its code."""
        first, count = self._by_code.get(new.code, (new, 0))
        self._by_code[new.code] = (first, count + 1)
