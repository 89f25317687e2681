"""Documents of programs with the numbers of their workload, and what transformations made them."""

from __future__ import annotations

from collections.abc import Mapping

from collhub_coconet.documents.json_document import program_of_fields, program_to_json
from collhub_coconet.documents.node_statements import BoundProgram
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from hub_core import parse_json_object
from hub_core.model import InputError, Location

DEFAULT_RANKS = 4


def bound_to_json(bound: BoundProgram) -> str:
    """The document `collhub/tensor-program-1` with all that the workload says."""
    # Equal workloads give equal texts: symbols in the order of the program.
    more: dict[str, object] = {"bound": dict(bound.binding.sizes)}
    # What was done to it goes along.
    more["num_ranks"] = bound.binding.num_ranks
    more["transformations"] = list(bound.history)
    return program_to_json(bound.program, more)


def bound_from_json(
    content: bytes, file: str, num_ranks: int | None = None, sizes: Mapping[str, int] | None = None
) -> BoundProgram:
    """The program of a document; what is given goes before what the document states.

    A symbol of one size only needs no number. Raises `InputError` for a program that is ill typed,
    and for a size out of its bounds.
    """
    # Options go before the document, the document before what a program allows.
    document = parse_json_object(content, file)
    program = program_of_fields(document, file)
    stated = {name: low for name, (low, high) in program.sizes.items() if low == high}
    stated |= document.get("bound", {})
    ranks = num_ranks or document.get("num_ranks", DEFAULT_RANKS)
    history = tuple(document.get("transformations", ()))
    return BoundProgram(program, bound_to(program, ranks, stated | dict(sizes or {})), history)


def bound_to(program: Program, num_ranks: int, sizes: Mapping[str, int]) -> Binding:
    """Numbers for a program. Raises `InputError` for a size that is missing or not allowed."""
    place = Location(program.name)
    # A foreign symbol is a slip that would make another one look forgotten.
    foreign = sorted(sizes.keys() - program.sizes.keys())
    if foreign:
        message = f"the program has no symbol {foreign[0]}"
        cure = f"its symbols: {', '.join(program.sizes) or 'none'}"
        raise InputError(message, location=place, cure=cure, code="symbol")
    for symbol in sorted(program.sizes.keys() - sizes.keys()):
        message = f"symbol {symbol} is not bound"
        cure = f"give it a number: --size {symbol}=8, or -O sizes={symbol}=8"
        raise InputError(message, location=place, cure=cure, code="symbol")
    for symbol, size in sizes.items():
        low, high = program.sizes[symbol]
        if not low <= size <= high:
            message = f"size {symbol} is {size}, the program has {low}..{high}"
            cure = "state a size within its bounds"
            raise InputError(message, location=place, cure=cure, code="size")
    return Binding(num_ranks, sizes)
