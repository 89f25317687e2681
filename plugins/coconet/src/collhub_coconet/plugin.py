"""Offers of this distribution to the hub: programs as workloads, passes over them, and the options.

This module imports no reader and no pass, so that offers are listed quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import (
    AlgorithmPass,
    Format,
    OptionType,
    RuleSet,
    Subject,
    WorkloadReader,
    WorkloadWriter,
    choice,
    hookimpl,
    option,
    optional,
)
from hub_core.sandbox import SourceProgramOptions

COLLHUB_PLUGIN_API = (1, 0)


@dataclass(frozen=True, slots=True)
class PythonOptions(SourceProgramOptions):
    """Options of the reader `tensor-program-python`: of the process, and of the program."""

    num_ranks: int | None = optional(
        "ranks of each group (default: those of counts, or 4)", OptionType.INT, minimum=2
    )
    sizes: str = option(OptionType.TEXT, "", "sizes of the symbols, as B=8,S=1024")
    mesh: str = option(OptionType.TEXT, "", "ranks along the axes of a mesh, as dp=2,tp=4")


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Options of the reader `tensor-program`."""

    num_ranks: int | None = optional(
        "ranks of each group (default: of the document or its counts, else 4)",
        OptionType.INT,
        minimum=2,
    )
    sizes: str = option(OptionType.TEXT, "", "sizes of the symbols, as B=8,S=1024")
    mesh: str = option(OptionType.TEXT, "", "ranks along the axes of a mesh, as dp=2,tp=4")


@dataclass(frozen=True, slots=True)
class CapturedOptions:
    """Options of the readers `torch-export` and `captured-graph`: facts that a graph may lack."""

    num_ranks: int | None = optional(
        "ranks of the group (default: as the graph states, else 4)", OptionType.INT, minimum=2
    )
    parameters: str = option(
        OptionType.TEXT,
        "local",
        "parameters, buffers and states whose placement the graph does not state: replicated"
        " (data parallel), or local (ranks may have different values)",
        choices=("local", "replicated"),
    )
    placements: str = option(
        OptionType.TEXT,
        "",
        "placements of inputs by name or target, as w=R,x=S(0),y=L: replicated, blocks along"
        " a dimension, or different values on the ranks; on a mesh z=(S(0),R), one per axis",
    )
    mesh: str = option(
        OptionType.TEXT,
        "",
        "ranks along the axes of a mesh, the slowest first, as dp=2,tp=4 (default: as the graph"
        " states, or its process groups have)",
    )
    groups: str = option(
        OptionType.TEXT,
        "",
        "axes of the process groups whose ranks the graph does not state, as 0=tp,1=dp",
    )
    unknown: str = option(
        OptionType.TEXT,
        "refuse",
        "operators outside of the table that read a block of a sliced tensor: refuse, or local"
        " (the block is the rank's value)",
        choices=("refuse", "local"),
    )


@dataclass(frozen=True, slots=True)
class CapturedHloOptions(CapturedOptions):
    """Options of the reader `hlo-program`."""

    trip_count: int | None = optional(
        "iterations of loops whose count the module does not contain", OptionType.INT, minimum=0
    )


@dataclass(frozen=True, slots=True)
class TorchModuleOptions:
    """Options of the writer `torch-module`."""

    bucket_size: int | None = optional(
        "all-reduces smaller than this share buckets of at least this size (default: no buckets)",
        OptionType.SIZE,
        minimum=1,
    )


_MEMBERS = "names of operations or stages, joined by +, such as a+b+c"


@dataclass(frozen=True, slots=True)
class StatedOptions:
    """Options of every pass: inference of programs from workloads that do not contain one."""

    element: str | None = choice(
        (None, "float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
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
class CoalesceOptions(StatedOptions):
    """Options of `coalesce`: the collectives of one bucket, or the size of all buckets."""

    members: str | None = optional("names of collectives or buckets, joined by +, such as a+b+c")
    name: str = option(OptionType.TEXT, "bucket", "name of the bucket of `members`")
    bucket_size: int | None = optional(
        "bytes of a bucket; without members, all collectives outside of stages are put into"
        " buckets of at least this size",
        OptionType.SIZE,
        minimum=1,
    )


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
    algorithms: str | None = optional(
        "algorithms in addition to those of the hub: files and names, joined by +"
    )
    work: int = option(
        OptionType.INT,
        2_000_000,
        "maximum work of a synthesizer for one collective, in simulated steps",
        minimum=1,
    )
    compute_tflops: float = option(
        OptionType.FLOAT, 90.0, "rate of matrix products, in 1e12 operations/s", minimum=1e-6
    )
    memory_bandwidth: float = option(OptionType.BANDWIDTH, 765e9, "rate of the memory of a rank")
    launch_time: float = option(OptionType.TIME, 5e-6, "time to launch a kernel")


_PROGRAM = Format(
    "tensor-program",
    "programs of computations and collectives, typed and transformed",
    (".program.json",),
    signature=rb"collhub/tensor-program-1",
    members=("schema", "name", "sizes", "arguments", "operations", "outputs"),
)
_PYTHON = Format(
    "tensor-program-python",
    "programs of tensors in Python; reading one EXECUTES it, in a separate process",
    (".py",),
    signature=rb"(?m)^\s*(?:from|import)\s+collhub_coconet\b",
)
_TEXT = Format(
    "tensor-program-text",
    "programs of computations and collectives as readable text, one statement per line",
    (".program.txt",),
)
_EXPORT = Format(
    "torch-export",
    "programs of torch.export (.pt2): the graph only; nothing is unpickled",
    (".pt2",),
)
_CAPTURED = Format(
    "captured-graph",
    "programs of PyTorch as collhub_pytorch.capture writes them",
    (".graph.json",),
    signature=rb"collhub/captured-graph-1",
    members=("schema", "name", "producer", "groups", "inputs", "nodes", "outputs"),
)
# Selected by name: a module is usually read as a workload, by the format `hlo`.
_HLO = Format(
    "hlo-program",
    "HLO text of compiled programs of JAX and others as typed programs, with --from hlo-program",
    (),
)
_MODULE = Format(
    "torch-module",
    "programs as Python modules for torch.distributed, with functional collectives",
    (".py",),
)
# Description and options by name of a pass; `passes.transformations` has a function per pass.
_TRANSFORMATIONS = {
    "split": ("an AllReduce becomes ReduceScatter and AllGather", ScatterOptions),
    "split-at-root": ("an AllReduce becomes Reduce and Broadcast", RootOptions),
    "reorder": ("computations move before an AllGather, onto slices", ReorderOptions),
    "as-slice": ("states are stored as slices", StateOptions),
    "dead": ("operations with unused results are removed", StatedOptions),
    "fuse": ("pointwise operations and at most one communication become one kernel", FuseOptions),
    "coalesce": ("collectives of one kind and group become one: a bucket", CoalesceOptions),
    "overlap": ("a chain of producers and consumers is overlapped chunk by chunk", OverlapOptions),
}
_LINES = "collhub_coconet.documents.text:lines"
_LISTED = "collhub_coconet.transformations.passes:list_moves"


@hookimpl
def collhub_producers() -> Sequence[WorkloadReader]:
    """Return five readers: programs as JSON, Python files, and three kinds of captured graphs.

    The captured graphs are archives of `torch.export`, JSON documents and HLO modules. Only the
    reader of Python files executes the file.
    """
    return [
        WorkloadReader(
            _PROGRAM,
            "collhub_coconet.lowering.workload:read",
            ProgramOptions,
            samples="collhub_coconet.lowering.workload:samples",
            lines=_LINES,
        ),
        WorkloadReader(
            _PYTHON,
            "collhub_coconet.documents.python_reader:read",
            PythonOptions,
            samples="collhub_coconet.documents.python_reader:samples",
            executes_source=True,
            lines=_LINES,
        ),
        WorkloadReader(
            _EXPORT,
            "collhub_coconet.torch_programs.reading:read_archive",
            CapturedOptions,
            samples="collhub_coconet.torch_programs.reading:list_archives",
            lines=_LINES,
        ),
        WorkloadReader(
            _CAPTURED,
            "collhub_coconet.torch_programs.reading:read_document",
            CapturedOptions,
            samples="collhub_coconet.torch_programs.reading:list_documents",
            lines=_LINES,
        ),
        WorkloadReader(
            _HLO,
            "collhub_coconet.torch_programs.reading:read_hlo",
            CapturedHloOptions,
            samples="collhub_coconet.torch_programs.reading:list_modules",
            lines=_LINES,
        ),
    ]


@hookimpl
def collhub_consumers() -> Sequence[WorkloadWriter]:
    """Return three writers: programs as JSON, as text, and as Python modules for PyTorch.

    Only the writer of modules can also run its output.
    """
    return [
        WorkloadWriter(_PROGRAM, "collhub_coconet.documents.text:write"),
        WorkloadWriter(_TEXT, "collhub_coconet.documents.text:write_text"),
        WorkloadWriter(
            _MODULE,
            "collhub_coconet.torch_programs.writing:write",
            TorchModuleOptions,
            run="collhub_coconet.torch_programs.measuring:measure",
        ),
    ]


@hookimpl
def collhub_passes() -> Sequence[AlgorithmPass]:
    """Return the passes of this plugin: one per transformation, then `search`.

    Transformations are in the order of `_TRANSFORMATIONS`. All passes work on workloads. Their
    functions are named by text and loaded on first use: `run_split_at_root` of
    `transformations.passes` for `split-at-root`. Transformations also name the function that lists
    their possible moves. Only `search` is marked as a search.
    """
    search = AlgorithmPass(
        "search",
        "the best transformations of a program on a network",
        "collhub_coconet.search.search_pass:run",
        SearchOptions,
        Subject.WORKLOAD,
        searches=True,
    )
    transformations = [
        AlgorithmPass(
            name,
            description,
            f"collhub_coconet.transformations.passes:run_{name.replace('-', '_')}",
            options,
            Subject.WORKLOAD,
            moves=_LISTED,
        )
        for name, (description, options) in _TRANSFORMATIONS.items()
    ]
    return [*transformations, search]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Rules of programs and captured graphs."""
    return [
        RuleSet(
            "coconet", "findings in tensor programs and graphs", "collhub_coconet.rules:list_rules"
        )
    ]
