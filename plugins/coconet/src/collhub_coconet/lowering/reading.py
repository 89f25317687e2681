"""Read the document of a program as a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from collhub_coconet.documents.json_document import program_from_json
from collhub_coconet.lowering.options import ProgramOptions
from collhub_coconet.lowering.workload import lower
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from hub_core import installed_version
from hub_core.model import InputError, Provenance, UsageError, Workload
from hub_core.plugin_api import Source


def read(source: Source, options: ProgramOptions) -> Workload:
    """The workload of a program; a symbol of one size only needs none in the options.

    Raises `InputError` for a program that is ill typed, or a size out of its bounds.
    """
    program = program_from_json(source.content(), source.name)
    sizes = {name: low for name, (low, high) in program.sizes.items() if low == high}
    sizes |= _sizes(options.sizes)
    _check_bounds(program, sizes)
    workload = lower(program, Binding(options.num_ranks, sizes))
    version = installed_version("collhub-coconet") or ""
    provenance = Provenance("coconet", version, source.name, source.sha256())
    return replace(workload, provenance=provenance)


def _sizes(text: str) -> dict[str, int]:
    """Sizes by symbol, as the option states them."""
    found = {}
    for part in filter(None, text.split(",")):
        # A symbol that is stated twice has its last size.
        symbol, _, number = part.partition("=")
        if not number.strip().isdecimal():
            message = f"size {part!r} is not understood"
            raise UsageError(message, cure="write sizes as B=8,S=1024")
        found[symbol.strip()] = int(number)
    return found


def _check_bounds(program: Program, sizes: Mapping[str, int]) -> None:
    """Refuse a size that the program does not allow."""
    for symbol, (low, high) in program.sizes.items():
        size = sizes.get(symbol)
        if size is not None and not low <= size <= high:
            message = f"size {symbol} is {size}, the program has {low}..{high}"
            raise InputError(message, cure="state a size within its bounds", code="size")


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
