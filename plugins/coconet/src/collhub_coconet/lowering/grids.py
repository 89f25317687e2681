"""Grids: chunks of tensors, their elements and overlaps, and the grid of every value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from collhub_coconet.program.operations import (
    CONTRACTIONS,
    REDUCTIONS_TO_SCALARS,
    UNEVEN_COLLECTIVES,
    Binding,
    Kind,
    Operation,
    block_bounds,
)
from collhub_coconet.program.program import Program
from collhub_coconet.program.shape_rules import find_axes
from collhub_coconet.program.uneven_rows import RowBlocks, list_row_blocks
from hub_core.columns import Int64Array, counted_positions


@dataclass(frozen=True, slots=True)
class Grid:
    """Tensor of `shape` cut into `blocks` blocks along `dimension`, each into `parts` chunks.

    Chunk `b * parts + s` is part s of block b. Blocks are those of sliced layouts, so that block b
    belongs to rank b of the group; one block is the complete tensor. Part s of a block of n
    elements has, in row-major order, the elements from s * n // parts to (s + 1) * n // parts
    (exclusive).

    `across`: for an AllToAll from slices along `dimension`, the dimension of the resulting slices.
    Block i * blocks + j is then sent from rank i to rank j: block i along `dimension`, j along
    `across`.

    `row_blocks`: for the operand or the result of an uneven collective, its blocks of rows on every
    rank. The tensor is then one block with `parts` chunks, which have other elements on each rank:
    chunk s has, of every block of c rows, those from s * c // parts to (s + 1) * c // parts
    (exclusive). The last chunk also has the rows after all blocks.
    """

    shape: tuple[int, ...]
    dimension: int
    blocks: int
    parts: int
    across: int | None = None
    row_blocks: RowBlocks | None = None

    @property
    def chunks(self) -> int:
        """Number of chunks of the tensor: `parts` chunks in each of the `blocks`.

        With `across` (an exchange between all ranks) there are `blocks` x `blocks` blocks, one
        per pair of ranks. A grid of rows has one block.
        """
        # An exchange has a block for every pair of ranks.
        pairs = 1 if self.across is None else self.blocks
        return self.blocks * pairs * self.parts

    def owners(self, chunks: Int64Array, dimension: int) -> Int64Array:
        """Return the group position of the rank that owns each chunk of a sliced tensor: int64.

        It is the number of the chunk's block. With `across`, where block i * `blocks` + j is
        sent from rank i to rank j, it is j if `dimension` (along which the tensor is sliced) is
        `across`, otherwise i. Without `across`, `dimension` is ignored.
        """
        block: Int64Array = chunks // self.parts
        # In an exchange, senders are sliced along one dimension, receivers along the other.
        if self.across is None:
            return block
        source, target = np.divmod(block, self.blocks)
        return target if dimension == self.across else source

    def is_comparable(self, other: Grid) -> bool:
        """Return whether both grids divide tensors of one shape into the same blocks.

        Shape, dimension, number of blocks and `across` must be equal; the numbers of chunks per
        block (`parts`) may differ. Of two grids of rows, only the blocks of rows and the
        numbers of rows must be equal. A grid of rows and another grid are not comparable.
        `overlaps` requires comparable grids, without a check.
        """
        if self.row_blocks is not None or other.row_blocks is not None:
            return self.row_blocks == other.row_blocks and self.shape[0] == other.shape[0]
        blocks = self.shape, self.dimension, self.blocks, self.across
        return blocks == (other.shape, other.dimension, other.blocks, other.across)

    def overlaps(self, chunks: Int64Array, other: Grid) -> tuple[Int64Array, Int64Array]:
        """Return all pairs (index into `chunks`, chunk of `other`) that may share an element.

        They are two int64 arrays, sorted by the index, then the chunk. Both grids must be
        comparable (`is_comparable`), which is not checked. Chunks overlap only within a block:
        chunk s of n covers the fraction from s / n to (s + 1) / n of it. Because elements are
        not counted, a pair may share none in a small tensor.
        """
        block, part = np.divmod(chunks, self.parts)
        first = part * other.parts // self.parts
        end = -(-(part + 1) * other.parts // self.parts)
        counts = end - first
        index = np.repeat(np.arange(len(chunks)), counts)
        overlapping = (block * other.parts + first)[index] + counted_positions(counts)
        return index, overlapping

    def elements(self, chunk: int, position: int = 0) -> Int64Array:
        """Return the flat row-major indices, in the complete tensor, of a chunk's elements: int64.

        Without `row_blocks`, chunk c is part c % `parts` of block c // `parts`. With one block, the
        block is the complete tensor. Otherwise block b has the indices b * L to (b + 1) * L
        (exclusive) of `dimension`. L is its size / `blocks`, rounded up. Blocks at the end are
        shorter or empty. With `across`, block b is block b // `blocks` of `dimension` and block b %
        `blocks` of `across`. The n elements of a block are in row-major order. Part p has positions
        p * n // parts to (p + 1) * n // parts (exclusive) of them, possibly none.

        With `row_blocks` (an uneven collective), rows are indices of dimension 0, and the blocks
        are those of the rank `position`. Of every block of n rows, chunk c has the rows c * n //
        parts to (c + 1) * n // parts (exclusive). The last chunk also has all rows after the
        blocks, at its end. Each row is complete. `position` is used only here.
        """
        if self.row_blocks is not None:
            blocks = self.row_blocks[position]
            rows = [
                np.arange(
                    first + chunk * count // self.parts, first + (chunk + 1) * count // self.parts
                )
                for first, count in blocks
            ]
            if chunk == self.parts - 1:
                rows.append(np.arange(sum(count for _, count in blocks), self.shape[0]))
            width = prod(self.shape[1:])
            return (np.concatenate(rows)[:, None] * width + np.arange(width)).reshape(-1)
        block, part = divmod(chunk, self.parts)
        # The indices in the complete tensor of the elements of a block, in row-major order.
        indices = np.arange(int(np.prod(self.shape, dtype=np.int64))).reshape(self.shape)
        if self.blocks == 1:
            inside = indices.reshape(-1)
        else:
            index = [slice(None)] * len(self.shape)
            source, target = (block, 0) if self.across is None else divmod(block, self.blocks)
            index[self.dimension] = self._bounds(self.dimension, source)
            if self.across is not None:
                index[self.across] = self._bounds(self.across, target)
            inside = indices[tuple(index)].reshape(-1)
        count = len(inside)
        return inside[part * count // self.parts : (part + 1) * count // self.parts]

    def _bounds(self, dimension: int, block: int) -> slice:
        """Return the range of a block along one dimension; empty beyond the last element."""
        return slice(*block_bounds(self.shape[dimension], self.blocks, block))


def build_row_grids(
    program: Program, binding: Binding, operation: Operation, parts: int
) -> tuple[Grid, Grid]:
    """Build the grids of the operand and of the result of an uneven collective, in this order.

    A grid divides a tensor into chunks. Each of these two has one block with `parts` chunks, which
    have other rows on each rank. `list_row_blocks` gives the ranges of rows of every rank. Of a
    range of n rows, chunk s has the rows from s * n // parts to (s + 1) * n // parts (exclusive).
    The last chunk also has all rows after the ranges. On all ranks together, the collective turns
    chunk s of the operand into chunk s of the result. `binding` gives the shapes.

    Raises `InputError` (`invalid-counts`) for missing or invalid counts, and `AssertionError` for
    a collective that is not uneven.
    """
    names = operation.reads[0], operation.name
    grids = [
        Grid(binding.shape(program.types[name].shape), 0, 1, parts, row_blocks=blocks)
        for name, blocks in zip(names, list_row_blocks(operation), strict=True)
    ]
    return grids[0], grids[1]


def derive_product_grid(
    program: Program, binding: Binding, operation: Operation, name: str, operand: Grid
) -> Grid | None:
    """Derive the grid (division into chunks) of a matrix product from the grid of one operand.

    `name`, `operand`: the operand and its grid. The product has the same numbers of blocks and of
    chunks per block. It is divided along the dimension that comes from the divided dimension of the
    operand. If it is sliced along another dimension, this is `across` of its grid.

    Returns None in these cases:

    - The operation is no plain or batch matrix product, or reads this value twice.
    - The grid has `across`, or is divided along the contracted or a batch dimension.
    - The grid has one block without `row_blocks`, and the product is sliced.
    - The grid has `row_blocks` (rows of an uneven collective), and the operand is the right one or
      the product is sliced along dimension 0. Otherwise the product keeps this grid with its shape.
    """
    if operation.kind not in (Kind.MATMUL, Kind.BATCH_MATMUL) or operand.across is not None:
        return None
    axes = find_axes(operation.kind, len(program.types[operation.reads[0]].shape))
    is_left = name == operation.reads[0]
    is_row = operand.dimension in axes.rows if is_left else operand.dimension == axes.w_free
    # The product of a value with itself needs the complete value.
    if not is_row or operation.reads.count(name) > 1:
        return None
    kind = program.types[operation.name]
    if operand.row_blocks is not None:
        has_rows = is_left and not (kind.layout.is_sliced and kind.layout.dimension == 0)
        return replace(operand, shape=binding.shape(kind.shape)) if has_rows else None
    dimension = operand.dimension if is_left else axes.result_free
    across = None
    if kind.layout.is_sliced and kind.layout.dimension != dimension:
        across = kind.layout.dimension
    is_whole = operand.blocks == 1 and kind.layout.is_sliced
    shape = binding.shape(kind.shape)
    return None if is_whole else Grid(shape, dimension, operand.blocks, operand.parts, across)


def select_rank_chunks(product: Grid, chunks: Int64Array, position: int) -> Int64Array:
    """Return the chunks of a product that a rank computes from chunks of its operand.

    Chunk b * `parts` + s is part s of block b. `chunks`: numbers of chunks of the operand; the
    result has their order. `position`: of the rank in its group. Without `across`, `chunks` itself
    is returned, because the numbers are equal. With `across` (the product is also divided by the
    rank that receives it), part s of block b gives part s of block b * `blocks` + `position`.
    """
    if product.across is None:
        return chunks
    # From each block of the operand, the rank computes one block of the product.
    block, part = np.divmod(chunks, product.parts)
    return (block * product.blocks + position) * product.parts + part


def find_needed_chunks(
    product: Grid, operand: Grid, leading: int, chunks: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Find all pairs (index into `chunks`, number of an operand's chunk that this chunk needs).

    A grid divides a tensor into blocks, and each block into chunks. `chunks` are chunk numbers of
    the grid `product`. `leading`: number of leading dimensions that product and operand share. Each
    position in these dimensions is a unit.

    A chunk of the product needs all elements of the operand in the units that it touches, also
    partly. They are searched only in the operand's block with the number of the product's block. If
    the product has `across`, block i * blocks + j counts as block i. All chunks from the first to
    the last needed element are returned, also empty ones between.

    The result is two int64 arrays, sorted by the first, then the second. An empty chunk of the
    product has no pair.
    """
    block, part = np.divmod(chunks, product.parts)
    source, target = block, np.zeros_like(block)
    if product.across is not None:
        source, target = np.divmod(block, product.blocks)
    # By chunk: elements of its block of the operand (`size`) and of the product
    # (`product_size`), and units in both.
    length = _compute_block_lengths(operand, operand.dimension, source)
    size = length * _count_remaining_elements(operand.shape, (operand.dimension,))
    is_in_front = operand.dimension < leading
    units = length if is_in_front else np.ones_like(length)
    units = units * _count_remaining_elements(operand.shape[:leading], (operand.dimension,))
    product_size = _compute_block_lengths(product, product.dimension, source)
    cut = [product.dimension]
    if product.across is not None:
        product_size = product_size * _compute_block_lengths(product, product.across, target)
        cut.append(product.across)
    product_size = product_size * _count_remaining_elements(product.shape, tuple(cut))
    first = part * product_size // product.parts
    end = (part + 1) * product_size // product.parts
    # Blocks after the last element are empty.
    non_empty = np.flatnonzero(end > first)
    size, units, product_size = size[non_empty], units[non_empty], product_size[non_empty]
    low = first[non_empty] * units // product_size
    high = -(-end[non_empty] * units // product_size)
    begin = _find_part(low * (size // units), size, operand.parts)
    end = _find_part(high * (size // units) - 1, size, operand.parts)
    counts = end - begin + 1
    base = np.repeat(source[non_empty] * operand.parts + begin, counts)
    return np.repeat(non_empty, counts), base + counted_positions(counts)


def _find_part(element: Int64Array, size: Int64Array, parts: int) -> Int64Array:
    """Return the part of a block that contains an element, for each entry: int64.

    It is the last s with s * size // parts <= element, so that parts without elements are
    skipped. `element`: position in the block, from 0 to `size` - 1. `size`: elements of the
    block, at least 1. `parts`: number of parts of a block.
    """
    part: Int64Array = ((element + 1) * parts - 1) // size
    return part


def _compute_block_lengths(grid: Grid, dimension: int, block: Int64Array) -> Int64Array:
    """Return the lengths of blocks along a dimension, in the order of `block`: int64.

    `block`: numbers of the blocks, from 0. A block has ceil(size / blocks) elements; the
    last blocks have fewer, or 0.
    """
    size = grid.shape[dimension]
    longest = -(-size // grid.blocks)
    lengths: Int64Array = np.clip(size - block * longest, 0, longest)
    return lengths


def _count_remaining_elements(shape: tuple[int, ...], cut: tuple[int, ...]) -> int:
    """Count the elements of a shape along all dimensions that are not cut."""
    return prod(size for dimension, size in enumerate(shape) if dimension not in cut)


@dataclass(frozen=True, slots=True)
class ValueChunks:
    """Chunks of a value, and the collective `lead` that determines their order.

    `is_needed`: the collective reads the chunks, in the order of its first use; else it produces
    them. For a product and its readers: `source`, the operand whose chunks it follows, and
    `source_cut`, their cut. `operand_grid`: for an uneven collective, the chunks of its operand.
    """

    grid: Grid
    lead: str
    is_needed: bool
    source: str = ""
    source_cut: ValueChunks | None = None
    operand_grid: Grid | None = None


GridFunction = Callable[[Operation, Grid | None], Grid]
"""Function that returns the grid of a communication; of a Send, given that of its operand."""


def number_regions(program: Program) -> dict[str, int]:
    """Return the number of the region of every operation, by its name.

    Chunks are exchanged within a region; between regions only complete values are. All
    operations of a chain, including those of its stages, have one number. All operations of
    a stage outside of a chain have one number. Any other operation is a region of its own.
    """
    stage_of = {stage.name: stage.members for stage in program.stages}
    groups = [list(stage.members) for stage in program.stages]
    for chain in program.chains:
        inside = [name for member in chain.members for name in stage_of.get(member, (member,))]
        groups.append(inside)
    regions = {operation.name: index for index, operation in enumerate(program.operations)}
    # Chains come last, since they contain complete stages.
    for number, names in enumerate(groups, len(regions)):
        regions.update(dict.fromkeys(names, number))
    return regions


def find_cuts(
    program: Program, binding: Binding, regions: dict[str, int], grid_of: GridFunction
) -> dict[str, ValueChunks]:
    """Return the cut (division into chunks) of operations that work chunk by chunk, by name.

    `regions`: a number by operation; a cut passes only between operations with equal numbers. The
    first rule that gives an operation a cut counts; without one it is missing in the result:

    1. Communications, in program order: the grid `grid_of(operation, grid)`. `grid` is that of the
       first operand if this is an earlier communication of the region, otherwise None.
    2. Computations, last to first: the cut of the first reader whose cut fits. If this reader is an
       uneven collective, the grid of its operand is used.
    3. Computations, first to last: a matrix product derives a cut (`derive_product_grid`) from its
       first suitable operand, a convolution gets none. Others get the cut of the first operand
       whose cut fits.

    Last, each Send gets the cut of its operand instead, if this has one in the region. A cut fits
    if `_fits_grid` accepts the result; a reduction to a scalar never fits. Errors of `grid_of` are
    passed on. Raises `InputError` (`invalid-counts`) for invalid counts of an uneven collective.
    """
    cuts: dict[str, ValueChunks] = {}
    for operation in program.operations:
        if not operation.is_communication:
            continue
        name = operation.reads[0]
        is_near = regions.get(name) == regions[operation.name]
        grid = grid_of(operation, cuts[name].grid if is_near and name in cuts else None)
        operand_grid = None
        if operation.kind in UNEVEN_COLLECTIVES:
            operand_grid, _ = build_row_grids(program, binding, operation, grid.parts)
        cuts[operation.name] = ValueChunks(
            grid, operation.name, is_needed=False, operand_grid=operand_grid
        )
    for operation in reversed(program.operations):
        for reader in program.readers.get(operation.name, ()):
            _cut_like_neighbour(program, binding, regions, cuts, operation, reader, is_needed=True)
    for operation in program.operations:
        for name in operation.reads:
            if name in program.by_name:
                source = program.by_name[name]
                if operation.kind in CONTRACTIONS:
                    _cut_product(program, binding, regions, cuts, operation, source)
                    continue
                _cut_like_neighbour(
                    program, binding, regions, cuts, operation, source, is_needed=False
                )
    # A Send adopts the cut of its operand, if there is one.
    for operation in program.operations:
        cut = cuts.get(operation.reads[0]) if operation.kind is Kind.SEND else None
        if cut is not None and regions[operation.reads[0]] == regions[operation.name]:
            cuts[operation.name] = ValueChunks(cut.grid, cut.lead, is_needed=False)
    return cuts


def _cut_like_neighbour(
    program: Program,
    binding: Binding,
    regions: dict[str, int],
    cuts: dict[str, ValueChunks],
    operation: Operation,
    neighbour: Operation,
    *,
    is_needed: bool,
) -> None:
    """Give an operation the cut (division into chunks) of a neighbour, if it fits.

    The new cut is added to `cuts` only if all these conditions hold:

    - The operation is no communication and no reduction to a scalar, and has no cut.
    - The neighbour has a cut and is in the same region.
    - The result of the operation fits the grid (`_fits_grid`).

    `is_needed`: the neighbour reads the result of the operation; otherwise the neighbour computes
    an operand of it. If it is True and the neighbour is an uneven collective, the grid is that of
    the collective's operand. In all other cases it is the grid of the cut.

    The new cut has `is_needed` set only if the argument is True and the neighbour is a
    communication or has a cut with `is_needed` set.
    """
    is_local = not operation.is_communication and operation.kind not in REDUCTIONS_TO_SCALARS
    cut = cuts.get(neighbour.name)
    if not is_local or operation.name in cuts or cut is None:
        return
    if regions[operation.name] != regions[neighbour.name]:
        return
    # The rows that an uneven collective reads are others than those of its result.
    grid = cut.operand_grid if is_needed and cut.operand_grid is not None else cut.grid
    if _fits_grid(program, binding, operation, grid):
        lead_is_needed = is_needed and (neighbour.is_communication or cut.is_needed)
        cuts[operation.name] = replace(cut, grid=grid, is_needed=lead_is_needed, operand_grid=None)


def _cut_product(
    program: Program,
    binding: Binding,
    regions: dict[str, int],
    cuts: dict[str, ValueChunks],
    operation: Operation,
    source: Operation,
) -> None:
    """Add the cut (division into chunks) of a product to `cuts`, derived from that of an operand.

    `source`: the operation that computes the operand. The grid is that of `derive_product_grid`;
    `lead` and `is_needed` are those of the operand's cut. The new cut refers to the operand and its
    cut (`source`, `source_cut`). No cut is added if the product already has one, if both are in
    different regions (chains or stages), if the operand has no cut, or if there is no grid.
    """
    cut = cuts.get(source.name)
    is_near = regions[operation.name] == regions[source.name]
    if operation.name in cuts or cut is None or not is_near:
        return
    grid = derive_product_grid(program, binding, operation, source.name, cut.grid)
    if grid is not None:
        cuts[operation.name] = ValueChunks(grid, cut.lead, cut.is_needed, source.name, cut)


def _fits_grid(program: Program, binding: Binding, operation: Operation, grid: Grid) -> bool:
    """Check whether the result of an operation can use the chunks of a grid (a cut of a tensor).

    1. False if the shape of the result is not that of the grid.
    2. True if the result is not sliced, so that each rank has the complete tensor.
    3. Sliced, with a grid of rows (`row_blocks`): True unless dimension 0 is sliced.
    4. Sliced, with any other grid: True if the grid has more than one block, and the sliced
       dimension is `dimension` or `across` of the grid.
    """
    kind = program.types[operation.name]
    if binding.shape(kind.shape) != grid.shape:
        return False
    if not kind.layout.is_sliced:
        return True
    if grid.row_blocks is not None:
        return kind.layout.dimension != 0
    return grid.blocks > 1 and kind.layout.dimension in (grid.dimension, grid.across)
