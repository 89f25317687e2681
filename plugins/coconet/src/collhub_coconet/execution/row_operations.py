"""Computations of one rank along dimensions: row reductions, top-k, rows by index, and shapes."""

from __future__ import annotations

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


KINDS_OF_ONE_RANK = frozenset(
    {
        *(Kind.ROW_REDUCE, Kind.ARG_MAX, Kind.INDEX, Kind.GATHER, Kind.SCATTER),
        *(Kind.TOP_VALUES, Kind.TOP_INDICES),
        *(Kind.RESHAPE, Kind.CONCAT, Kind.PERMUTE, Kind.PART),
    }
)
"""Kinds that `compute_on_rank` computes; a rank needs only its own parts of the operands."""


def compute_on_rank(
    program: Program, binding: Binding, operation: Operation, operands: OnRanks, rank: int
) -> Array:
    """Compute an operation of `KINDS_OF_ONE_RANK` on a rank; return its part of the result.

    `operands`: the parts of the rank; `rank`: in its group. Missing attributes: dimension 0, sum,
    start 0, and a count of 1 (of a Part 0). Raises `ValueError` for another kind.

    - RowReduce: see `reduce_rows`. Scatter: see `scatter_rows`, with the shape of the rank's block.
    - ArgMax and TopIndices: positions of `find_top`; TopValues: the elements there.
    - Index: positions along the dimension in the complete tensor (int64); the values of the operand
      are not used.
    - Gather: an index counts in the complete table; other ranks' rows are zeros.
    - Reshape: to the shape of the rank's block. Concat: all operands along the dimension. Permute:
      the dimensions in `order`. Part: `count` positions from `start` on along the dimension.
    """
    x, dimension = operands[0], operation.dimension or 0
    bounds = binding.bounds(program.types[operation.name], rank)
    shape = tuple(stop - first for first, stop in bounds)
    match operation.kind:
        case Kind.ROW_REDUCE:
            return reduce_rows(x, dimension, operation.reduction or Reduction.SUM)
        case Kind.ARG_MAX:
            return find_top(x, dimension, 1)
        case Kind.INDEX:
            along = [-1 if axis == dimension else 1 for axis in range(len(bounds))]
            positions = np.arange(*bounds[dimension], dtype=np.int64).reshape(along)
            return np.array(np.broadcast_to(positions, shape))
        case Kind.GATHER:
            first_row = binding.bounds(program.types[operation.reads[0]], rank)[0][0]
            return gather_rows(x, operands[1], first_row)
        case Kind.SCATTER:
            return scatter_rows(x, operands[1], shape)
        case Kind.TOP_INDICES:
            return find_top(x, dimension, operation.count or 1)
        case Kind.TOP_VALUES:
            top = find_top(x, dimension, operation.count or 1)
            return np.ascontiguousarray(np.take_along_axis(x, top, dimension))
        case Kind.RESHAPE:
            return x.reshape(shape)
        case Kind.CONCAT:
            return np.concatenate(operands, axis=dimension)
        case Kind.PERMUTE:
            return np.ascontiguousarray(np.transpose(x, operation.order))
        case Kind.PART:
            start, count = operation.start or 0, operation.count or 0
            index = [slice(None)] * dimension + [slice(start, start + count)]
            return np.ascontiguousarray(x[tuple(index)])
    raise ValueError(f"{operation.kind} is not computed by one rank")
