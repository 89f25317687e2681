"""Regions of a program that work chunk by chunk, and the cut of every value in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from collhub_coconet.lowering.contracted import product_grid
from collhub_coconet.lowering.grids import Grid
from collhub_coconet.program.operations import (
    CONTRACTIONS,
    REDUCTIONS_TO_SCALARS,
    Kind,
    Operation,
)
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding


@dataclass(frozen=True, slots=True)
class Cut:
    """Chunks of a value, and the collective that says in which order they are made.

    `is_needed`: the collective reads them, in the order of its first use; else it gives them.
    Of a product, and of what reads it: `source`, the operand whose chunks it follows, and
    `behind`, their cut.
    """

    grid: Grid
    lead: str
    is_needed: bool
    source: str = ""
    behind: Cut | None = None


GridOf = Callable[[Operation, Grid | None], Grid]
"""The grid of a communication; of a Send, by that of its operand."""


def regions_of(program: Program) -> dict[str, int]:
    """A number for every operation: those of one chain share it, and those of one stage.

    Across regions values are waited for as a whole: a kernel is over before another one reads.
    """
    stage_of = {stage.name: stage.members for stage in program.stages}
    together = [list(stage.members) for stage in program.stages]
    for chain in program.chains:
        inside = [name for member in chain.members for name in stage_of.get(member, (member,))]
        together.append(inside)
    found = {operation.name: place for place, operation in enumerate(program.operations)}
    # Chains come last, and take whole stages.
    for number, names in enumerate(together, len(found)):
        found.update(dict.fromkeys(names, number))
    return found


def cuts_of(
    program: Program, binding: Binding, regions: dict[str, int], grid_of: GridOf
) -> dict[str, Cut]:
    """The cut of every operation that works chunk by chunk.

    A computation is cut as the communication that reads it, through other computations too; else as
    the one whose result it reads. A product is cut as an operand that arrives by rows. What else
    has another shape than the communicated tensor is whole.
    """
    cuts: dict[str, Cut] = {}
    _cut_communications(program, regions, grid_of, cuts)
    for operation in reversed(program.operations):
        for reader in program.readers.get(operation.name, ()):
            _follow(program, binding, regions, cuts, operation, reader, is_needed=True)
    for operation in program.operations:
        for name in operation.reads:
            if name in program.by_name:
                source = program.by_name[name]
                if operation.kind in CONTRACTIONS:
                    _contract(program, binding, regions, cuts, operation, source)
                    continue
                _follow(program, binding, regions, cuts, operation, source, is_needed=False)
    # A Send takes the cut of what it sends, if there is one.
    for operation in program.operations:
        cut = cuts.get(operation.reads[0]) if operation.kind is Kind.SEND else None
        if cut is not None and regions[operation.reads[0]] == regions[operation.name]:
            cuts[operation.name] = Cut(cut.grid, cut.lead, is_needed=False)
    return cuts


def _cut_communications(
    program: Program, regions: dict[str, int], grid_of: GridOf, cuts: dict[str, Cut]
) -> None:
    for operation in program.operations:
        if operation.is_communication:
            name = operation.reads[0]
            is_near = regions.get(name) == regions[operation.name]
            before = cuts[name].grid if is_near and name in cuts else None
            cuts[operation.name] = Cut(grid_of(operation, before), operation.name, is_needed=False)


def _follow(
    program: Program,
    binding: Binding,
    regions: dict[str, int],
    cuts: dict[str, Cut],
    operation: Operation,
    neighbour: Operation,
    *,
    is_needed: bool,
) -> None:
    """Cut an operation as its neighbour of the same region, where it can be."""
    is_local = not operation.is_communication and operation.kind not in REDUCTIONS_TO_SCALARS
    cut = cuts.get(neighbour.name)
    if not is_local or operation.name in cuts or cut is None:
        return
    # What gathers is read as slices: the others see its operand, in the same blocks.
    if regions[operation.name] != regions[neighbour.name]:
        return
    if _fits(program, binding, operation, cut.grid):
        lead_is_needed = is_needed and (neighbour.is_communication or cut.is_needed)
        cuts[operation.name] = replace(cut, is_needed=lead_is_needed)


def _contract(
    program: Program,
    binding: Binding,
    regions: dict[str, int],
    cuts: dict[str, Cut],
    operation: Operation,
    source: Operation,
) -> None:
    """Cut a product as the operand that arrives chunk by chunk, where rows of it are enough."""
    cut = cuts.get(source.name)
    is_near = regions[operation.name] == regions[source.name]
    if operation.name in cuts or cut is None or not is_near:
        return
    # The operand decides: its chunks come in the order of the communication.
    grid = product_grid(program, binding, operation, source.name, cut.grid)
    if grid is not None:
        cuts[operation.name] = Cut(grid, cut.lead, cut.is_needed, source.name, cut)


def _fits(program: Program, binding: Binding, operation: Operation, grid: Grid) -> bool:
    """Whether the result has the shape of the grid, and slices are its blocks."""
    kind = program.types[operation.name]
    if binding.shape(kind.shape) != grid.shape:
        return False
    if not kind.layout.is_sliced:
        return True
    return grid.blocks > 1 and kind.layout.dimension in (grid.dimension, grid.across)
