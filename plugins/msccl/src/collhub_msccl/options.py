"""Option classes of the readers and writers.

They are imported to list the options: keep imports light.
"""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option, optional
from hub_core.sandbox import SourceProgramOptions


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of the reader of MSCCL-IR XML."""

    # The valid range depends on the file's number of ranks, so the reader checks it.
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
        " as MSCCLang defines them (dsl)",
    )
    copies: str = choice(
        ("ignore", "run"),
        "<copy> elements, which TACCL writes and no runtime reads: ignore them, or run them"
        " before all steps, as TACCL intends",
    )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of the writer of MSCCL-IR XML."""

    runtime: str | None = choice(
        (None, "msccl", "executor", "rccl"),
        "runtime that will load the file: microsoft/msccl (msccl), Azure/msccl-executor-nccl"
        " (executor) or ROCm/rccl (rccl); default: msccl for custom collectives, which only"
        " msccl supports, else executor",
    )
    name: str | None = optional("name of the algorithm in the file")
    proto: str | None = choice(
        (None, "Simple", "LL", "LL128"), "protocol; default: as imported, else Simple"
    )
    mode: str | None = choice(
        (None, "in-place", "out-of-place"),
        "calls that the file serves, if the algorithm is correct for both modes;"
        " msccl accepts one mode per file",
    )
    collective: str | None = optional("name of the collective in the file, for custom ones")
    min_bytes: int | None = optional("smallest size of calls that use the file", OptionType.SIZE)
    max_bytes: int | None = optional("largest size of calls that use the file", OptionType.SIZE)
    channels: int | None = optional(
        "number of channels over which steps without thread blocks are distributed; default:"
        " the algorithm's channels, or as many as shorten a program that declares none",
        OptionType.INT,
        minimum=1,
    )
    max_steps: int | None = optional(
        "maximum steps per thread block, if the runtime was built with a different limit",
        OptionType.INT,
        minimum=1,
    )
    max_channels: int | None = optional(
        "maximum channels of the file; default: the limit of the runtime", OptionType.INT, minimum=1
    )


@dataclass(frozen=True, slots=True)
class ProgramOptions(SourceProgramOptions):
    """Options of the reader of MSCCLang programs."""

    mode: str | None = choice(
        (None, "in-place", "out-of-place"),
        "calls that the program serves; overrides the mode of its collective",
    )


@dataclass(frozen=True, slots=True)
class SelectionOptions:
    """Options of folders of programs from which a runtime selects by size."""

    runtime: str = option(
        OptionType.TEXT,
        "executor",
        "runtime that will load the folder: microsoft/msccl (msccl),"
        " Azure/msccl-executor-nccl (executor) or ROCm/rccl (rccl)",
        choices=("msccl", "executor", "rccl"),
    )
    proto: str | None = choice(
        (None, "Simple", "LL", "LL128"),
        "protocol of all files; default: as timed on a machine, else Simple",
    )
