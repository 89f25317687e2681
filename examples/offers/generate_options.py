"""Options of the generator `example`."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option


@dataclass(frozen=True, slots=True)
class StepsOptions:
    """How large a job is made."""

    ranks: int = option(OptionType.INT, 4, "ranks of the job", minimum=2, maximum=1024)
    steps: int = option(OptionType.INT, 2, "steps of every rank", minimum=1, maximum=1000)
