"""Common options of readers of programs; this module imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option, optional


@dataclass(frozen=True, slots=True)
class SourceProgramOptions:
    """Arguments and limits of a program."""

    arguments: str | None = optional(
        "command line arguments of the program, quoted as in a shell; or after --"
    )
    program: str | None = optional(
        "number (from 1) or name of the program to read, if the file defines several"
    )
    time_limit: int = option(
        OptionType.INT,
        60,
        "limit of CPU time in seconds; the limit of elapsed time is twice this and 5 s",
        minimum=1,
    )
    memory_limit: int = option(
        OptionType.SIZE, 4 << 30, "limit of memory of the program and all processes it starts"
    )
    sandbox: bool = option(
        OptionType.BOOL,
        True,
        "let the program write no files, open no connections and signal no other processes, as far "
        "as the kernel supports it; see 'collhub doctor'",
    )
