"""Declare the rules of the example's findings."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule


def rules() -> Sequence[Rule]:
    """Return one rule per code of the findings of the check."""
    return [
        Rule(
            "channels",
            "algorithms",
            "The algorithm has more than 32 channels.",
            "Every connection got a channel.",
            "Let connections share channels.",
            "an all-to-all of 64 ranks with one channel per pair",
        )
    ]
