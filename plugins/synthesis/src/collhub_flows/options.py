"""Options of the synthesizer `flows`; without heavy imports, because `plugin` imports them."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option


@dataclass(frozen=True, slots=True)
class FlowOptions:
    """Options of the synthesizer `flows`."""

    pieces: int = option(
        OptionType.INT,
        0,
        "pieces of a path's share (0: the fastest of 1, 2, 4 and 8)",
        minimum=0,
        maximum=240,
    )
    method: str = choice(
        ("auto", "exact", "approximate"),
        "flow by a linear program, or by multiplicative weights; auto: exact where that is small",
    )
    phases: int = option(
        OptionType.INT,
        0,
        "phases of the approximate flow (0: by size, 60 to 400)",
        minimum=0,
        maximum=100_000,
    )
