"""Findings and losses as the reports of commands carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The help of commands needs no numpy.
    from collections.abc import Sequence

    from hub_core.model import Diagnostic, JsonValue, Loss
    from hub_core.plugin_api import SearchCut


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


def cut_objects(cuts: Sequence[SearchCut]) -> list[JsonValue]:
    """Parts of a search that a limit has ended, as in a report."""
    return [
        {"name": one.name, "work": one.work, "reason": one.reason, "not_tried": one.not_tried}
        for one in cuts
    ]


def cut_fields(cuts: Sequence[SearchCut]) -> dict[str, str]:
    """The line on parts of a search that a limit has ended, or nothing."""
    if not cuts:
        return {}
    return {"cut": f"so the answer is partial: {'; '.join(map(str, cuts))}"}


def loss_object(loss: Loss) -> dict[str, JsonValue]:
    """A loss as the reports carry it."""
    return {"feature": loss.feature, "where": loss.where, "consequence": loss.consequence}
