"""Losses as the reports carry them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hub_core.model import Loss

if TYPE_CHECKING:
    from hub_core.model import JsonValue


def loss_objects(losses: Sequence[Loss]) -> list[JsonValue]:
    """One object a loss."""
    return [
        {"feature": loss.feature, "where": loss.where, "consequence": loss.consequence}
        for loss in losses
    ]
