"""Options of the synthesizer `auto`; light, since listing the plugin imports them."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option, optional


@dataclass(frozen=True, slots=True)
class AutoOptions:
    """Which synthesizers are tried, and how much work may be done before the last one begins."""

    candidates: str = option(
        OptionType.TEXT, "all", "synthesizers to try, as ring,tacos, or all that are installed"
    )
    work: int = option(
        OptionType.INT,
        20_000_000,
        "simulated steps after which no further synthesizer is begun; the first one always is",
        minimum=0,
    )
    timeout: float | None = optional(
        "time after which no further synthesizer is begun, as 60s; the answer then depends on the "
        "speed of the machine (not given: no limit)",
        OptionType.TIME,
        minimum=0,
    )
