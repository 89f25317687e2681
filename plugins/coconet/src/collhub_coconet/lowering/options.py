"""Options of the reader."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Options of the reader `tensor-program`."""

    num_ranks: int = option(OptionType.INT, 4, "ranks of each group", minimum=2)
    sizes: str = option(OptionType.TEXT, "", "sizes of the symbols, as B=8,S=1024")
