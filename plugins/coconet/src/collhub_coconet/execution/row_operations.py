"""Computations of one rank along dimensions: row reductions, top-k, rows by index, and shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import numpy.typing as npt

from collhub_coconet.execution.array_operations import (
    OPERATORS,
    Array,
    OnRanks,
    get_lowest,
    is_float_array,
)
from collhub_coconet.program.operations import Binding, Kind, Operation, Reduction
from collhub_coconet.program.program import Program


def reduce_rows(values: Array, dimension: int, reduction: Reduction) -> Array:
    """Reduce an array along one dimension, whose size becomes 1, in the order of positions.

    The result is a new contiguous array with the element type of `values`; every step is
    computed in this type. REPLACE keeps the last position. An empty dimension gives 0 for a sum,
    1 for a product, the highest number of the type (`get_lowest`) for a minimum, and the lowest
    one for a maximum and for REPLACE.
    """
    rows = np.moveaxis(values, dimension, 0)
    if len(rows):
        result: Array = np.array(reduce(OPERATORS[reduction], list(rows)), values.dtype)
    else:
        neutral = {
            Reduction.SUM: 0,
            Reduction.PROD: 1,
            Reduction.MIN: get_lowest(values.dtype, is_highest=True),
        }.get(reduction, get_lowest(values.dtype))
        result = np.full(rows.shape[1:], neutral).astype(values.dtype)
    return np.ascontiguousarray(np.expand_dims(result, dimension))


def find_top(values: Array, dimension: int, count: int) -> npt.NDArray[np.int64]:
    """Return the positions of the `count` largest elements along a dimension: int64.

    The largest element is first; equal elements are in ascending order of positions. NaN
    counts as the largest number. The result has the shape of `values`, with `count` entries
    along the dimension. Raise `IndexError` if the dimension has fewer elements.
    """
    # Every float type is a subset of float64; integers keep their type.
    wide = values.astype(np.float64) if is_float_array(values) else values
    # Sorted in reverse with a stable order: the last of equal elements of the mirrored array.
    mirrored = np.flip(wide, dimension)
    order = np.flip(np.argsort(mirrored, axis=dimension, kind="stable"), dimension)
    positions = values.shape[dimension] - 1 - order
    return np.ascontiguousarray(positions.take(range(count), axis=dimension), np.int64)


def gather_rows(rows: Array, indices: Array, first: int = 0) -> Array:
    """Select rows at indices; rows outside of `rows` are zeros.

    `first`: number of the first row in `rows`, so that index i is row i - `first`. Negative indices
    do not count from the end. The result is a new array of the type of `rows`, with the dimensions
    of the indices followed by those of a row.
    """
    places = indices.astype(np.int64) - first
    is_inside = (places >= 0) & (places < len(rows))
    result = np.zeros((*indices.shape, *rows.shape[1:]), rows.dtype)
    result[is_inside] = rows[places[is_inside]]
    return result


def scatter_rows(indices: Array, values: Array, shape: tuple[int, ...]) -> Array:
    """Add values to rows of a tensor of zeros, in the order of the indices.

    `values`: one row per index, with the dimensions of the indices in front. `shape`: of the
    result, whose first dimension is the rows. A repeated index adds up; negative indices and those
    after the last row are ignored. The result is a new array of the type of `values`.
    """
    result = np.zeros(shape, values.dtype)
    flat = values.reshape(indices.size, *shape[1:])
    for row, index in enumerate(indices.reshape(-1).tolist()):
        if 0 <= index < shape[0]:
            result[index] = result[index] + flat[row]
    return result


def _compute_row_reduction(
    program: Program, binding: Binding, operation: Operation, operands: OnRanks, rank: int
) -> Array:
    reduction = operation.reduction or Reduction.SUM
    return reduce_rows(operands[0], operation.dimension or 0, reduction)


def _compute_arg_max(
    program: Program, binding: Binding, operation: Operation, operands: OnRanks, rank: int
) -> Array:
    return find_top(operands[0], operation.dimension or 0, 1)


def _compute_index(
    program: Program, binding: Binding, operation: Operation, operands: OnRanks, rank: int
) -> Array:
    """Return the position of every element of a rank's block along `operation.dimension`: int64.

    Positions count from 0 in the complete tensor; the default dimension is 0. The operands are not
    read.
    """
    bounds = binding.bounds(program.types[operation.name], rank)
    dimension = operation.dimension or 0
    shape = [1] * len(bounds)
    shape[dimension] = -1
    positions = np.arange(*bounds[dimension], dtype=np.int64).reshape(shape)
    return np.array(np.broadcast_to(positions, [stop - first for first, stop in bounds]))


def _compute_gather(
    program: Program, binding: Binding, operation: Operation, operands: OnRanks, rank: int
) -> Array:
    first = binding.bounds(program.types[operation.reads[0]], rank)[0][0]
    return gather_rows(operands[0], operands[1], first)


def _compute_scatter(
    program: Program, binding: Binding, operation: Operation, operands: OnRanks, rank: int
) -> Array:
    bounds = binding.bounds(program.types[operation.name], rank)
    return scatter_rows(operands[0], operands[1], tuple(stop - first for first, stop in bounds))


def _compute_top(
    program: Program, binding: Binding, operation: Operation, operands: OnRanks, rank: int
) -> Array:
    """Return the `operation.count` largest elements along a dimension, in descending order.

    For the kind TOP_INDICES it returns their positions (int64, from 0) instead. A missing count is
    1, a missing dimension 0. NaN counts as the largest number. Of equal elements the one at the
    lower position is first. `operands`: the operand on this rank.
    """
    dimension = operation.dimension or 0
    positions = find_top(operands[0], dimension, operation.count or 1)
    if operation.kind is Kind.TOP_INDICES:
        return positions
    return np.ascontiguousarray(np.take_along_axis(operands[0], positions, dimension))


def _compute_reshape(
    program: Program, binding: Binding, operation: Operation, operands: OnRanks, rank: int
) -> Array:
    bounds = binding.bounds(program.types[operation.name], rank)
    return operands[0].reshape([stop - first for first, stop in bounds])


def _compute_concat(
    program: Program, binding: Binding, operation: Operation, operands: OnRanks, rank: int
) -> Array:
    return np.concatenate(operands, axis=operation.dimension or 0)


def _compute_permutation(
    program: Program, binding: Binding, operation: Operation, operands: OnRanks, rank: int
) -> Array:
    return np.ascontiguousarray(np.transpose(operands[0], operation.order))


def _compute_part(
    program: Program, binding: Binding, operation: Operation, operands: OnRanks, rank: int
) -> Array:
    start, count = operation.start or 0, operation.count or 0
    positions = [slice(None)] * (operation.dimension or 0) + [slice(start, start + count)]
    return np.ascontiguousarray(operands[0][tuple(positions)])


FunctionOfOneRank = Callable[[Program, Binding, Operation, OnRanks, int], Array]
"""Computation (program, binding, operation, operands of a rank, rank in its group) -> its value."""

FUNCTIONS_OF_ONE_RANK: dict[Kind, FunctionOfOneRank] = {
    Kind.ROW_REDUCE: _compute_row_reduction,
    Kind.ARG_MAX: _compute_arg_max,
    Kind.INDEX: _compute_index,
    Kind.GATHER: _compute_gather,
    Kind.SCATTER: _compute_scatter,
    Kind.TOP_VALUES: _compute_top,
    Kind.TOP_INDICES: _compute_top,
    Kind.RESHAPE: _compute_reshape,
    Kind.CONCAT: _compute_concat,
    Kind.PERMUTE: _compute_permutation,
    Kind.PART: _compute_part,
}
