"""Options of the reader."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option, optional


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Options of the reader `tensor-program`."""

    num_ranks: int | None = optional(
        "ranks of each group (default: as the document states, else 4)", OptionType.INT, minimum=2
    )
    sizes: str = option(OptionType.TEXT, "", "sizes of the symbols, as B=8,S=1024")
