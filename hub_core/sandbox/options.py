"""Options that readers of programs have in common; nothing heavy is imported here."""

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
        "number (from 1) or name of the program that is meant, where the file defines several"
    )
    time_limit: int = option(
        OptionType.INT,
        60,
        "CPU seconds that the program may take; by the clock twice as many and 5",
        minimum=1,
    )
    memory_limit: int = option(
        OptionType.SIZE, 4 << 30, "memory of the program and of all processes that it starts"
    )
    sandbox: bool = option(
        OptionType.BOOL,
        True,
        "let the program write no files, open no connections and signal no other processes, as far "
        "as the kernel supports it; 'collhub doctor' tells how far",
    )
