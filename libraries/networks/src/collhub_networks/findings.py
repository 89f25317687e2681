"""Collect what a reader of networks accepts but the user should know: one finding a kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hub_core.model import Diagnostic, Location, Severity


class NetworkFindings:
    """Warnings and notes by code, in the order in which they first came.

    A network repeats its devices, so a file that lacks something lacks it everywhere: the user gets
    the first place and the number of places.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[Diagnostic, int]] = {}

    def warn(
        self,
        code: str,
        place: Location,
        message: str,
        cure: str = "",
    ) -> None:
        """Note one place; the first of a code gives the message."""
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
        """As `warn`, for what was supplied and is no slip."""
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
        """Report every kind once."""
        for first, count in self._found.values():
            # Hundreds of alike lines would hide the others.
            more = f" (and {count - 1} more such places)" if count > 1 else ""
            report(replace(first, message=first.message + more))

    def _add(self, new: Diagnostic) -> None:
        # A dictionary keeps the order of its keys.
        first, count = self._found.get(new.code, (new, 0))
        self._found[new.code] = (first, count + 1)
