"""Options of the reader of programs in Python."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option, optional
from hub_core.sandbox import SourceProgramOptions


@dataclass(frozen=True, slots=True)
class PythonOptions(SourceProgramOptions):
    """Options of the reader `tensor-program-python`: of the process, and of the program."""

    num_ranks: int | None = optional("ranks of each group (default: 4)", OptionType.INT, minimum=2)
    sizes: str = option(OptionType.TEXT, "", "sizes of the symbols, as B=8,S=1024")
