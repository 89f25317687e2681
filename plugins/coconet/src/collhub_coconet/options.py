"""Options of the readers and passes, without heavy imports so that the hub can list them."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option, optional
from hub_core.sandbox import SourceProgramOptions


@dataclass(frozen=True, slots=True)
class PythonOptions(SourceProgramOptions):
    """Options of the reader `tensor-program-python`: of the process, and of the program."""

    num_ranks: int | None = optional("ranks of each group (default: 4)", OptionType.INT, minimum=2)
    sizes: str = option(OptionType.TEXT, "", "sizes of the symbols, as B=8,S=1024")


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Options of the reader `tensor-program`."""

    num_ranks: int | None = optional(
        "ranks of each group (default: as the document states, else 4)", OptionType.INT, minimum=2
    )
    sizes: str = option(OptionType.TEXT, "", "sizes of the symbols, as B=8,S=1024")


_MEMBERS = "names of operations or stages, joined by +, such as a+b+c"


@dataclass(frozen=True, slots=True)
class StatedOptions:
    """Options of every pass: inference of programs from workloads that do not contain one."""

    element: str | None = choice(
        (None, "float16", "float32", "float64"),
        "element type of inferred tensors, which the names in a trace do not determine",
    )
    infer: bool = option(
        OptionType.BOOL,
        False,
        "infer missing operations from the table of operator names, and report them",
    )


@dataclass(frozen=True, slots=True)
class ScatterOptions(StatedOptions):
    """Options of `split`: the AllReduce, and the dimension along which it is split."""

    target: str | None = optional("name of the AllReduce (default: the only one)")
    dimension: int = option(
        OptionType.INT, 0, "dimension to scatter along, counted from 0", minimum=0
    )


@dataclass(frozen=True, slots=True)
class RootOptions(StatedOptions):
    """Options of `split-at-root`: the AllReduce, and the root as a rank of its group."""

    target: str | None = optional("name of the AllReduce (default: the only one)")
    root: int = option(OptionType.INT, 0, "rank of the group, counted from 0", minimum=0)


@dataclass(frozen=True, slots=True)
class ReorderOptions(StatedOptions):
    """Options of `reorder`: the AllGather, and the operations that move before it."""

    target: str | None = optional("name of the AllGather (default: the only one)")
    members: str | None = optional(f"{_MEMBERS} (default: all that can move)")


@dataclass(frozen=True, slots=True)
class StateOptions(StatedOptions):
    """Options of `as-slice`: the states to store as slices."""

    states: str | None = optional("names of states, joined by +, such as m+v")


@dataclass(frozen=True, slots=True)
class FuseOptions(StatedOptions):
    """Options of `fuse`: the operations of the kernel, and its name."""

    members: str | None = optional(_MEMBERS)
    name: str = option(OptionType.TEXT, "fused", "name of the stage")


@dataclass(frozen=True, slots=True)
class OverlapOptions(StatedOptions):
    """Options of `overlap`: the members of the chain."""

    members: str | None = optional(f"{_MEMBERS}, from producer to consumer")


@dataclass(frozen=True, slots=True)
class SearchOptions(StatedOptions):
    """Sizes, network, rates of a rank, and limits of the search."""

    sizes: str = option(
        OptionType.TEXT,
        "",
        "sizes of symbols, as B=8,S=1024 or N=1024..1048576 (default: of the program)",
    )
    points: int = option(OptionType.INT, 7, "number of sizes per range", minimum=2, maximum=64)
    topology: str | None = optional("network, as ring:8 or a file; rank r runs on NPU r")
    states: int = option(
        OptionType.INT, 5000, "maximum number of programs", minimum=1, maximum=100000
    )
    simulate: int = option(
        OptionType.INT,
        3,
        "number of programs per size, and per front, to simulate; 0: only times by formula",
        minimum=0,
        maximum=100,
    )
    compute_tflops: float = option(
        OptionType.FLOAT, 90.0, "rate of matrix products, in 1e12 operations/s", minimum=1e-6
    )
    memory_bandwidth: float = option(OptionType.BANDWIDTH, 765e9, "rate of the memory of a rank")
    launch_time: float = option(OptionType.TIME, 5e-6, "time to launch a kernel")
