"""Options of the synthesizer `auto`; light, since listing the plugin imports them."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option


@dataclass(frozen=True, slots=True)
class AutoOptions:
    """Which synthesizers are tried, and for how long."""

    candidates: str = option(
        OptionType.TEXT, "all", "synthesizers to try, as ring,tacos, or all that are installed"
    )
    budget: float = option(
        OptionType.TIME,
        60.0,
        "time after which no further synthesizer is begun, as 60s; the first one always is",
        minimum=0,
    )
