"""Offers of this distribution to the hub: programs as workloads, and passes that transform them."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_coconet.options import (
    FuseOptions,
    OverlapOptions,
    ProgramOptions,
    PythonOptions,
    ReorderOptions,
    RootOptions,
    ScatterOptions,
    SearchOptions,
    StatedOptions,
    StateOptions,
)
from hub_core.plugin_api import (
    AlgorithmPass,
    Format,
    Subject,
    WorkloadReader,
    WorkloadWriter,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

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
# Description and options by name of a pass; `passes.transformations` has a function per pass.
_TRANSFORMATIONS = {
    "split": ("an AllReduce becomes ReduceScatter and AllGather", ScatterOptions),
    "split-at-root": ("an AllReduce becomes Reduce and Broadcast", RootOptions),
    "reorder": ("computations move before an AllGather, onto slices", ReorderOptions),
    "as-slice": ("states are stored as slices", StateOptions),
    "dead": ("operations with unused results are removed", StatedOptions),
    "fuse": ("pointwise operations and at most one communication become one kernel", FuseOptions),
    "overlap": ("a chain of producers and consumers is overlapped chunk by chunk", OverlapOptions),
}
_LINES = "collhub_coconet.documents.text:lines"
_LISTED = "collhub_coconet.passes.transformations:list_moves"


@hookimpl
def collhub_producers() -> Sequence[WorkloadReader]:
    """Return the readers of programs: JSON documents, and Python files."""
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
    ]


@hookimpl
def collhub_consumers() -> Sequence[WorkloadWriter]:
    """Return the writers of programs: JSON documents, and text."""
    return [
        WorkloadWriter(_PROGRAM, "collhub_coconet.documents.text:write"),
        WorkloadWriter(_TEXT, "collhub_coconet.documents.text:write_text"),
    ]


@hookimpl
def collhub_passes() -> Sequence[AlgorithmPass]:
    """Return one pass per transformation, and the search over sequences of transformations."""
    search = AlgorithmPass(
        "search",
        "the best transformations of a program on a network",
        "collhub_coconet.passes.search:run",
        SearchOptions,
        Subject.WORKLOAD,
        searches=True,
    )
    transformations = [
        AlgorithmPass(
            name,
            description,
            f"collhub_coconet.passes.transformations:run_{name.replace('-', '_')}",
            options,
            Subject.WORKLOAD,
            moves=_LISTED,
        )
        for name, (description, options) in _TRANSFORMATIONS.items()
    ]
    return [*transformations, search]
