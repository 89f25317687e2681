"""Options of the synthesizer `auto`; light, since listing the plugin imports them."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option


@dataclass(frozen=True, slots=True)
class AutoOptions:
    """Which synthesizers are tried, and how much work they may do."""

    candidates: str = option(
        OptionType.TEXT, "all", "synthesizers to try, as ring,tacos, or all that are installed"
    )
    work: int = option(
        OptionType.INT,
        20_000_000,
        "limit of the counted work, in steps as simulated: the synthesizer at work ends with its "
        "best, and no further one is begun",
        minimum=0,
    )
