"""Options of the offers; they are listed with them, so nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from collhub_source_programs import SourceProgramOptions

from hub_core.plugin_api import OptionType, choice, option, optional


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of the reader of MSCCL-IR XML."""

    # Its range is that of the file's ranks, so the reader checks it.
    root: int | None = optional(
        "root of a broadcast, reduce, gather or scatter, which the file does not name",
        OptionType.INT,
    )
    collective: str | None = optional(
        "collective of a file in the short form of ncclize, which does not name it: allgather, ..."
    )
    reading: str = choice(
        ("runtime", "dsl"),
        "local operand of reducing receives: srcbuf and srcoff (runtime) or dstbuf and dstoff,"
        " as MSCCLang means them (dsl)",
    )
    copies: str = choice(
        ("ignore", "run"),
        "<copy> elements, which TACCL writes and no runtime reads: ignore them too, or run them"
        " before all else, as TACCL means them",
    )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of the writer of MSCCL-IR XML."""

    runtime: str | None = choice(
        (None, "msccl", "executor", "rccl"),
        "who will load the file: microsoft/msccl (msccl), Azure/msccl-executor-nccl (executor)"
        " or ROCm/rccl (rccl); msccl for custom collectives, which no other has, else executor",
    )
    name: str | None = optional("name of the algorithm in the file")
    proto: str | None = choice(
        (None, "Simple", "LL", "LL128"), "protocol; as imported, else Simple"
    )
    mode: str | None = choice(
        (None, "in-place", "out-of-place"),
        "calls that the file serves, where the algorithm is right for both;"
        " msccl takes one mode a file",
    )
    collective: str | None = optional("name of the collective in the file, for custom ones")
    min_bytes: int | None = optional("smallest size of calls that use the file", OptionType.SIZE)
    max_bytes: int | None = optional("largest size of calls that use the file", OptionType.SIZE)
    channels: int | None = optional(
        "channels to spread steps over that have no thread blocks, whatever their own;"
        " for programs that state none as many as shorten it, else their own",
        OptionType.INT,
        minimum=1,
    )
    max_steps: int | None = optional(
        "steps that a thread block may have, where the runtime was built for others",
        OptionType.INT,
        minimum=1,
    )
    max_channels: int | None = optional(
        "channels that the file may use, if not all that the runtime has", OptionType.INT, minimum=1
    )


@dataclass(frozen=True, slots=True)
class ProgramOptions(SourceProgramOptions):
    """Options of the reader of MSCCLang programs."""

    mode: str | None = choice(
        (None, "in-place", "out-of-place"),
        "calls that the program serves, whatever its collective states",
    )


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
    proto: str | None = choice(
        (None, "Simple", "LL", "LL128"), "protocol of all files; else Simple"
    )
