"""Options of the offers; they are listed with them, so nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of the reader of MSCCL-IR XML."""

    # Its range is that of the file's ranks, so the reader checks it.
    root: int | None = option(
        OptionType.INT,
        None,
        "root of a broadcast, reduce, gather or scatter, which the file does not name",
    )
    reading: str = option(
        OptionType.TEXT,
        "runtime",
        "local operand of reducing receives: srcbuf and srcoff (runtime) or dstbuf and dstoff,"
        " as MSCCLang means them (dsl)",
        choices=("runtime", "dsl"),
    )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of the writer of MSCCL-IR XML."""

    runtime: str | None = option(
        OptionType.TEXT,
        None,
        "who will load the file: microsoft/msccl (msccl), Azure/msccl-executor-nccl (executor)"
        " or ROCm/rccl (rccl); msccl for custom collectives, which no other has, else executor",
        choices=("msccl", "executor", "rccl"),
    )
    name: str | None = option(OptionType.TEXT, None, "name of the algorithm in the file")
    proto: str | None = option(
        OptionType.TEXT,
        None,
        "protocol; as imported, else Simple",
        choices=("Simple", "LL", "LL128"),
    )
    mode: str | None = option(
        OptionType.TEXT,
        None,
        "calls that the file serves, where the algorithm is right for both;"
        " msccl takes one mode a file",
        choices=("in-place", "out-of-place"),
    )
    collective: str | None = option(
        OptionType.TEXT, None, "name of the collective in the file, for custom ones"
    )
    min_bytes: int | None = option(
        OptionType.SIZE, None, "smallest size of calls that use the file"
    )
    max_bytes: int | None = option(OptionType.SIZE, None, "largest size of calls that use the file")
    channels: int | None = option(
        OptionType.INT,
        None,
        "channels to spread steps over that have no thread blocks, whatever their own;"
        " for programs that state none as many as shorten it, else their own",
        minimum=1,
    )
    max_steps: int | None = option(
        OptionType.INT,
        None,
        "steps that a thread block may have, where the runtime was built for others",
        minimum=1,
    )
    max_channels: int | None = option(
        OptionType.INT,
        None,
        "channels that the file may use, if not all that the runtime has",
        minimum=1,
    )


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Options of the reader of MSCCLang programs."""

    arguments: str | None = option(
        OptionType.TEXT,
        None,
        "command line arguments of the program, quoted as in a shell; or after --",
    )
    program: str | None = option(
        OptionType.TEXT,
        None,
        "number (from 1) or name of the program that is meant, where the file defines several",
    )
    mode: str | None = option(
        OptionType.TEXT,
        None,
        "calls that the program serves, whatever its collective states",
        choices=("in-place", "out-of-place"),
    )
    time_limit: int = option(
        OptionType.INT,
        60,
        "CPU seconds that the program may take; by the clock twice as many and 5",
        minimum=1,
    )
    memory_limit: int = option(OptionType.SIZE, 4 << 30, "address space that the program may take")


@dataclass(frozen=True, slots=True)
class SelectionOptions:
    """Options of folders of programs among which a runtime chooses by size."""

    runtime: str = option(
        OptionType.TEXT,
        "executor",
        "who will load the folder: microsoft/msccl (msccl), Azure/msccl-executor-nccl (executor)"
        " or ROCm/rccl (rccl)",
        choices=("msccl", "executor", "rccl"),
    )
    proto: str | None = option(
        OptionType.TEXT,
        None,
        "protocol of all files; else Simple",
        choices=("Simple", "LL", "LL128"),
    )
