"""Grids: chunks of tensors, their elements and overlaps, and the grid of every value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from collhub_coconet.program.operations import CONTRACTIONS, REDUCTIONS_TO_SCALARS, Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding, block_bounds
from collhub_coconet.typing.computations import axes_of
from hub_core.columns import Int64Array, counted_positions


@dataclass(frozen=True, slots=True)
class Grid:
    """A tensor of `shape` cut in `blocks` blocks along `dimension`, each in `parts` chunks.

    Chunk `b * parts + s` is part s of block b. Blocks are those of sliced layouts, so that block b
    belongs to rank b of the group; one block: the whole tensor. Part s of a block of n elements, in
    their order, has elements s * n // parts to (s + 1) * n // parts, so that nothing is dropped
    where the sizes do not divide.

    `across`: of an AllToAll from slices of `dimension` to slices of another one, that other one.
    Block i * blocks + j is then what goes from rank i to rank j: block i along `dimension`, j along
    `across`.
    """

    shape: tuple[int, ...]
    dimension: int
    blocks: int
    parts: int
    across: int | None = None

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        # Of an exchange there is a block for every pair of ranks.
        pairs = 1 if self.across is None else self.blocks
        return self.blocks * pairs * self.parts

    def owners(self, chunks: Int64Array, dimension: int) -> Int64Array:
        """The rank that has each chunk of a tensor that is sliced along `dimension`."""
        block: Int64Array = chunks // self.parts
        # Of an exchange, those who send have one dimension, those who receive the other.
        if self.across is None:
            return block
        source, target = np.divmod(block, self.blocks)
        return target if dimension == self.across else source

    def is_comparable(self, other: Grid) -> bool:
        """Whether both cut one tensor in the same blocks, so that chunks overlap in order."""
        mine = self.shape, self.dimension, self.blocks, self.across
        return mine == (other.shape, other.dimension, other.blocks, other.across)

    def overlaps(self, chunks: Int64Array, other: Grid) -> tuple[Int64Array, Int64Array]:
        """(index into `chunks`, chunk of `other`) of all that share an element.

        Both are bounds of fractions of one block: element e of n lies in part s where
        s * n // parts <= e, hence s / parts < (e + 1) / n <= (s + 1) / parts.
        """
        block, part = np.divmod(chunks, self.parts)
        first = part * other.parts // self.parts
        behind = -(-(part + 1) * other.parts // self.parts)
        counts = behind - first
        index = np.repeat(np.arange(len(chunks)), counts)
        found = (block * other.parts + first)[index] + counted_positions(counts)
        return index, found

    def elements(self, chunk: int) -> Int64Array:
        """Indices of the elements of a chunk in the whole tensor, in the order of its block."""
        block, part = divmod(chunk, self.parts)
        inside = self._block(block)
        count = len(inside)
        return inside[part * count // self.parts : (part + 1) * count // self.parts]

    def _block(self, block: int) -> Int64Array:
        """Indices of the elements of a block, row by row."""
        whole = np.arange(int(np.prod(self.shape, dtype=np.int64))).reshape(self.shape)
        if self.blocks == 1:
            return whole.reshape(-1)
        place = [slice(None)] * len(self.shape)
        source, target = (block, 0) if self.across is None else divmod(block, self.blocks)
        place[self.dimension] = self._bounds(self.dimension, source)
        if self.across is not None:
            place[self.across] = self._bounds(self.across, target)
        return whole[tuple(place)].reshape(-1)

    def _bounds(self, dimension: int, block: int) -> slice:
        """A block of one dimension."""
        # As layouts cut it, the last block may be shorter.
        first, behind = block_bounds(self.shape[dimension], self.blocks, block)
        return slice(first, behind)


def product_grid(
    program: Program, binding: Binding, operation: Operation, name: str, operand: Grid
) -> Grid | None:
    """The chunks of a product, as many as its operand `name` has; None where it needs all of it.

    An operand that is cut along the contracted dimension is: terms of a sum are needed together.
    """
    if operation.kind not in (Kind.MATMUL, Kind.BATCH_MATMUL) or operand.across is not None:
        return None
    axes = axes_of(operation.kind, len(program.types[operation.reads[0]].shape))
    is_left = name == operation.reads[0]
    is_row = operand.dimension in axes.rows if is_left else operand.dimension == axes.w_free
    # A product of a value with itself needs all of it.
    if not is_row or operation.reads.count(name) > 1:
        return None
    kind = program.types[operation.name]
    dimension = operand.dimension if is_left else axes.result_free
    across = None
    if kind.layout.is_sliced and kind.layout.dimension != dimension:
        across = kind.layout.dimension
    is_whole = operand.blocks == 1 and kind.layout.is_sliced
    shape = binding.shape(kind.shape)
    return None if is_whole else Grid(shape, dimension, operand.blocks, operand.parts, across)


def own_chunks(product: Grid, chunks: Int64Array, position: int) -> Int64Array:
    """The chunks of a product on a rank, in the order of those of the operand."""
    if product.across is None:
        return chunks
    # Of each block of the operand, what the rank makes of it.
    block, part = np.divmod(chunks, product.parts)
    return (block * product.blocks + position) * product.parts + part


def needed_chunks(
    product: Grid, operand: Grid, leading: int, chunks: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """(index into `chunks` of the product, chunk of the operand) of all that each one needs.

    `leading`: dimensions in front that both have, one unit of which is needed as a whole: all but
    the last one of a left operand, all but the last two of a right one.
    """
    block, part = np.divmod(chunks, product.parts)
    source, target = block, np.zeros_like(block)
    if product.across is not None:
        source, target = np.divmod(block, product.blocks)
    # By chunk: elements of its block of the operand and of the product, and units in both.
    length = _lengths(operand, operand.dimension, source)
    size = length * _others(operand.shape, (operand.dimension,))
    is_in_front = operand.dimension < leading
    units = length if is_in_front else np.ones_like(length)
    units = units * _others(operand.shape[:leading], (operand.dimension,))
    made = _lengths(product, product.dimension, source)
    cut = [product.dimension]
    if product.across is not None:
        made = made * _lengths(product, product.across, target)
        cut.append(product.across)
    made = made * _others(product.shape, tuple(cut))
    first = part * made // product.parts
    behind = (part + 1) * made // product.parts
    # Blocks behind the last element are empty.
    is_there = np.flatnonzero(behind > first)
    size, units, made = size[is_there], units[is_there], made[is_there]
    low = first[is_there] * units // made
    high = -(-behind[is_there] * units // made)
    begin = _part_of(low * (size // units), size, operand.parts)
    end = _part_of(high * (size // units) - 1, size, operand.parts)
    counts = end - begin + 1
    base = np.repeat(source[is_there] * operand.parts + begin, counts)
    return np.repeat(is_there, counts), base + counted_positions(counts)


def _part_of(element: Int64Array, size: Int64Array, parts: int) -> Int64Array:
    """The part of a block with an element: the last s with s * size // parts <= element.

    This holds where s * size < (element + 1) * parts.
    """
    found: Int64Array = ((element + 1) * parts - 1) // size
    return found


def _lengths(grid: Grid, dimension: int, block: Int64Array) -> Int64Array:
    """Lengths of blocks along a dimension.

    The last ones are shorter, or empty.
    """
    size = grid.shape[dimension]
    longest = -(-size // grid.blocks)
    found: Int64Array = np.clip(size - block * longest, 0, longest)
    return found


def _others(shape: tuple[int, ...], cut: tuple[int, ...]) -> int:
    """Elements of a shape along all dimensions but some."""
    return prod(size for place, size in enumerate(shape) if place not in cut)


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
