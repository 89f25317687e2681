"""Contractions behind a communication: cut as an operand arrives, and what each chunk needs of it.

Chunks of the product are made block by block of the operand, in the order in which it arrives. Rows
of a left operand, and members of a batch of a right one, are needed as a whole; they stand in the
same order in the operand and in the product, so that a range of the one is a range of the other.
"""

from __future__ import annotations

from math import prod

import numpy as np

from collhub_coconet.lowering.grids import Grid
from collhub_coconet.program.operations import Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from collhub_coconet.typing.contraction import axes_of
from hub_core.columns import Int64Array, counted_positions


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
