"""How findings stand in the JSON reports of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from hub_core.model.algorithm import JsonValue


def diagnostic_object(diagnostic: Diagnostic) -> dict[str, JsonValue]:
    """A finding as the reports carry it; parts of the location that are not known are null."""
    place = diagnostic.location
    return {
        "code": diagnostic.code,
        "severity": str(diagnostic.severity),
        "message": diagnostic.message,
        "cure": diagnostic.cure,
        "file": place.file,
        "line": place.line,
        "byte": place.byte,
        "rank": place.rank,
        "step": place.step,
    }
