"""Read the document of a program as a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collhub_coconet.documents.bound_document import bound_from_json
from collhub_coconet.documents.node_statements import BoundProgram
from collhub_coconet.lowering.options import ProgramOptions
from collhub_coconet.lowering.workload import lower
from collhub_coconet.program.size_ranges import parsed_ranges, smallest
from hub_core import installed_version
from hub_core.model import Diagnostic, InputError, Location, Provenance, Workload
from hub_core.plugin_api import Source


def read(source: Source, options: ProgramOptions) -> Workload:
    """The workload of a program; a symbol of one size only needs none in the options.

    Raises `InputError` for a program that is ill typed, or a size out of its bounds.
    """
    sizes = smallest(parsed_ranges(options.sizes))
    try:
        bound = bound_from_json(source.content(), source.name, options.num_ranks, sizes)
        return lowered(bound, source)
    except InputError as error:
        raise InputError([_in_file(one, source.name) for one in error.diagnostics]) from None


def _in_file(diagnostic: Diagnostic, file: str) -> Diagnostic:
    """A finding located in the file: checks of a program know its name and number of operation."""
    location = diagnostic.location
    if location.file == file:
        return diagnostic
    number = "" if location.line is None else f"operation {location.line}: "
    message = number + diagnostic.message
    return replace(diagnostic, message=message, location=Location(file))


def lowered(bound: BoundProgram, source: Source) -> Workload:
    """The workload of a program that a source describes."""
    # Who made it is told of every workload.
    workload = lower(bound.program, bound.binding, bound.history)
    version = installed_version("collhub-coconet") or ""
    provenance = Provenance("coconet", version, source.name, source.sha256())
    return replace(workload, provenance=provenance)


def samples() -> Sequence[Source]:
    """A scattered gradient step of 16 elements."""
    return [Source.of_bytes("step.program.json", _SAMPLE)]


_SAMPLE = b"""{
  "schema": "collhub/tensor-program-1",
  "name": "step",
  "sizes": {"N": [16, 16]},
  "arguments": [
    {"name": "g", "element": "float32", "shape": ["N"], "layout": "local"},
    {"name": "w", "element": "float32", "shape": ["N"], "layout": "replicated", "state": true}
  ],
  "operations": [
    {"name": "s", "kind": "ReduceScatter", "operands": ["g"], "reduction": "sum", "dimension": 0},
    {"name": "d", "kind": "Multiply", "operands": ["s", 0.5]},
    {"name": "a", "kind": "AllGather", "operands": ["d"]},
    {"name": "w1", "kind": "Update", "operands": ["w", "a"]}
  ],
  "outputs": ["w1"]
}
"""
