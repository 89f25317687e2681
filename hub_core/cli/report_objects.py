"""Findings and losses as the reports of commands carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The help of commands needs no numpy.
    from hub_core.model import Diagnostic, JsonValue, Loss


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


def loss_object(loss: Loss) -> dict[str, JsonValue]:
    """A loss as the reports carry it."""
    return {"feature": loss.feature, "where": loss.where, "consequence": loss.consequence}
