"""Operations on the arrays of simulated ranks: blocks, random numbers, pointwise, reductions."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, reduce
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from collhub_coconet.program.operations import (
    Binding,
    ElementType,
    Kind,
    Operation,
    Placement,
    Reduction,
    TensorType,
)
from hub_core.model import InputError

Array = npt.NDArray[Any]
OnRanks = list[Array]
"""One array per rank."""

_NARROW_FLOATS = (ElementType.BFLOAT16, ElementType.FLOAT8_E4M3, ElementType.FLOAT8_E5M2)


@cache
def dtype_of(element: ElementType | str) -> np.dtype[Any]:
    """Return the numpy type of an element type; narrow floats are those of `ml_dtypes`.

    Narrow floats are bfloat16 and the two 8-bit floats. A text may be any name that numpy
    knows, also one that is no `ElementType`. Cached. Raise `InputError` (`element`) for a
    narrow float if `ml_dtypes` is not installed, and `TypeError` for an unknown name.
    """
    if element not in _NARROW_FLOATS:
        return np.dtype(str(element))
    # Imported here, since most programs have no narrow floats.
    try:
        import ml_dtypes
    except ImportError:
        message = f"element type {element} needs ml_dtypes, which is not installed"
        raise InputError(message, cure="pip install ml_dtypes", code="element") from None
    result: np.dtype[Any] = np.dtype(getattr(ml_dtypes, str(element)))
    return result


def is_float_array(values: Array) -> bool:
    """Whether the elements of an array are floats, narrow ones included."""
    # The narrow floats of `ml_dtypes` have the kind of raw bytes.
    return values.dtype.kind in "fV"


def get_epsilon(dtype: np.dtype[Any]) -> float:
    """Return the distance between 1 and the next larger number of a float type.

    `dtype`: a float type of numpy, or a narrow one of ml_dtypes, which is imported only for
    the narrow ones. Raise `ValueError` for a type that is no float.
    """
    if np.issubdtype(dtype, np.floating):
        return float(np.finfo(dtype).eps)
    return float(_narrow_limits(dtype).eps)


def get_lowest(dtype: np.dtype[Any], *, is_highest: bool = False) -> Any:
    """Return the lowest number of an element type, or the highest with `is_highest`.

    The result is a numpy scalar of the type. For float types with infinities it is -inf or inf.
    float8_e4m3fn has no infinities: -448 or 448. Integer types give their limits, bool False or
    True.
    """
    if dtype.kind == "b":
        return dtype.type(is_highest)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return dtype.type(limits.max if is_highest else limits.min)
    sign = 1.0 if is_highest else -1.0
    infinity = dtype.type(sign * np.inf)
    if np.isinf(infinity):
        return infinity
    return dtype.type(sign * float(_narrow_limits(dtype).max))


def _narrow_limits(dtype: np.dtype[Any]) -> Any:
    """Return the limits (`max`, `min`, `eps`, ...) of a narrow float type, as `numpy.finfo` does.

    Imports ml_dtypes.
    """
    # Imported here, since most programs have no narrow floats.
    import ml_dtypes

    limits: Any = ml_dtypes.finfo
    return limits(dtype)


def distribute(tensor: Array, kind: TensorType, ranks: int | Binding) -> OnRanks:
    """Return the arrays of all ranks for a tensor, one per rank, in rank order.

    The first dimensions of `tensor` are the mesh axes with a local or partial layout, in the
    order of the mesh. The array of a rank is the element at its coordinates on these axes.
    Then:

    - A sliced tensor is cut to the rank's block. Blocks of a dimension of n elements on p ranks
      have ceil(n / p) elements; the last ones are shorter or empty. Several axes that slice one
      dimension nest in the order of the axes.
    - Otherwise the rank gets the complete values. For a value at a root, all ranks get them,
      although only the root reads them.

    Sizes are taken from `tensor`, not from `kind.shape`. The arrays may share memory with
    `tensor`. `ranks`: number of ranks of a group with one axis, or the binding of a mesh.
    Raises `InputError` (`ranks`) for a number below 2, and `IndexError` if the first dimensions
    of `tensor` have fewer elements than the axes have ranks.
    """
    binding = Binding(ranks, {}) if isinstance(ranks, int) else ranks
    local_axes = find_local_axes(kind)
    shape = tensor.shape[len(local_axes) :]
    numbered = replace(kind, shape=shape)
    parts: OnRanks = []
    for rank in range(binding.num_ranks):
        coordinates = binding.coordinates(rank)
        part = tensor[tuple(coordinates[axis] for axis in local_axes)]
        if kind.layout.is_sliced or kind.layout.axes:
            part = take_bounds(part, binding.bounds(numbered, rank))
        parts.append(part)
    return parts


def collect(parts: Sequence[Array], kind: TensorType, binding: Binding | None = None) -> Array:
    """Combine the arrays of all ranks, in rank order, to one tensor; the inverse of `distribute`.

    With one layout for all ranks, the placement decides. `binding` is then ignored.

    - root: the array of the root itself
    - local or partial: the arrays stacked along a new first dimension
    - sliced: the arrays concatenated along the sliced dimension
    - replicated: the array of rank 0 itself; the others are not compared

    With a layout per mesh axis, the result is a new array with the dtype of `parts[0]` and the
    shape of `kind`, symbols as in `binding`. Each local or partial axis adds a leading dimension of
    its size, in mesh order. Each rank writes its block; of several ranks with the same block, the
    lowest rank counts. Along an axis with a root, only the root writes. Raises `InputError`
    (`symbol`) for a symbol without number, and `ValueError` without `binding` or for arrays that do
    not fit.
    """
    if not kind.layout.axes:
        if kind.layout.placement is Placement.ROOT:
            return parts[kind.layout.root]
        if kind.layout.is_local:
            return np.stack(parts)
        if not kind.layout.is_sliced:
            return parts[0]
        return np.concatenate(parts, axis=kind.layout.dimension)
    if binding is None:
        raise ValueError("a layout per mesh axis needs a binding with the ranks of every axis")
    local_axes = find_local_axes(kind)
    numbered = replace(kind, shape=binding.shape(kind.shape))
    sizes = tuple(binding.axis_sizes[axis] for axis in local_axes)
    result = np.zeros((*sizes, *binding.shape(kind.shape)), parts[0].dtype)
    # In reverse, so that the first of several equal values is stored.
    for rank in reversed(range(binding.num_ranks)):
        coordinates = binding.coordinates(rank)
        at_roots = all(
            layout.placement is not Placement.ROOT or layout.root == coordinate
            for layout, coordinate in zip(kind.layout.axes, coordinates, strict=True)
        )
        if at_roots:
            block = (slice(*bounds) for bounds in binding.bounds(numbered, rank))
            index: tuple[Any, ...] = (*(coordinates[axis] for axis in local_axes), *block)
            # Scalars are arrays of one element after pointwise operations.
            result[index] = parts[rank].reshape(np.shape(result[index]))
    return result


def find_local_axes(kind: TensorType) -> list[int]:
    """Return the positions of mesh axes on which ranks have different values, ascending.

    These are the axes with a local or partial layout; sliced ones do not count.
    """
    placements = (Placement.LOCAL, Placement.PARTIAL)
    return [
        axis for axis, layout in enumerate(kind.layout.by_axis) if layout.placement in placements
    ]


def take_bounds(tensor: Array, bounds: Sequence[tuple[int, int]]) -> Array:
    """Copy the elements within bounds, first and end by dimension, as a contiguous array."""
    # Contiguous, since some loops of numpy round differently for strided arrays.
    return np.ascontiguousarray(tensor[tuple(slice(*bound) for bound in bounds)])


def is_same(first: Array, second: Array) -> bool:
    """Return whether two arrays have the same type, shape and bits.

    All NaNs count as equal, also if their bits differ; 0 and -0 differ.
    """
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return _get_bits(first) == _get_bits(second)


def _get_bits(values: Array) -> bytes:
    if not is_float_array(values):
        return values.tobytes()
    return np.where(np.isnan(values), values.dtype.type(np.nan), values).tobytes()


_ODD_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def compute_global_indices(
    shape: tuple[int, ...], bounds: Sequence[tuple[int, int]] | None = None
) -> npt.NDArray[np.uint64]:
    """Return the row-major index in the complete tensor of every element: uint64.

    `bounds`: (first, stop) in each dimension of a block, whose shape the result has; None for the
    complete tensor of `shape`.
    """
    indices = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64).reshape(shape)
    return indices if bounds is None else indices[tuple(slice(*bound) for bound in bounds)]


def draw_dropout_mask(
    indices: npt.NDArray[np.uint64], rate: float, seed: int
) -> npt.NDArray[np.bool_]:
    """Return which elements Dropout keeps: a bool array with the shape of `indices`.

    Whether an element is kept depends only on its index and on `seed` modulo 2^64. Both are
    mixed by a bijection of 64 bits (MurmurHash3's finalizer, with Stafford's constants). The
    upper 53 bits give a number in [0, 1); the element is kept if it is at least `rate`. A rate
    of 0 keeps all elements, a rate of 1 or more none.
    """
    mixed = (indices + np.uint64(1)) * _ODD_FACTOR ^ np.uint64(seed % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed = mixed ^ (mixed >> np.uint64(31))
    uniform = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    keep: npt.NDArray[np.bool_] = uniform >= rate
    return keep


def apply_dropout(
    values: npt.NDArray[Any], keep: npt.NDArray[np.bool_], rate: float
) -> npt.NDArray[Any]:
    """Return a new array with the kept elements divided by 1 - `rate` and zeros elsewhere.

    `keep`: bool, of the shape of `values`. The divisor is rounded to the element type of
    `values` first, and the division is done in this type. `rate` must be below 1.
    """
    divisor = values.dtype.type(1 - rate)
    result: npt.NDArray[Any] = np.where(keep, values / divisor, values.dtype.type(0))
    return result


def _compute_error_function(values: Array) -> Array:
    """Compute the error function in float64, rounded to the element type; numpy has none."""
    wide = values.astype(np.float64)
    result = np.fromiter(map(math.erf, wide.flat), np.float64, wide.size)
    return result.reshape(values.shape).astype(values.dtype)


_UFUNCS: dict[Kind, Callable[..., Any]] = {
    Kind.ADD: np.add,
    Kind.SUBTRACT: np.subtract,
    Kind.MULTIPLY: np.multiply,
    Kind.DIVIDE: np.divide,
    Kind.POWER: np.power,
    Kind.LESS: np.less,
    Kind.GREATER: np.greater,
    Kind.EQUAL: np.equal,
    Kind.SQRT: np.sqrt,
    Kind.TANH: np.tanh,
    Kind.EXP: np.exp,
    Kind.LOG: np.log,
    Kind.ERF: _compute_error_function,
    Kind.SELECT: np.where,
}


def apply_pointwise(kind: Kind, operands: list[Array]) -> Array:
    """Compute a pointwise operation on arrays that broadcast to one shape.

    `operands` have one element type, except that the first one of SELECT is bool;
    comparisons return bool. Operands are copied to the complete shape first, so that the
    bits of the result do not depend on their strides. The result has at least one
    dimension: for scalars it has one element. Raise `KeyError` for a kind that is not in
    `_UFUNCS`.
    """
    # Stretched first, since loops of numpy may round differently if a stride is 0. Always copied,
    # since numpy treats an array of one element as contiguous for any stride.
    full = [np.array(operand, order="C", ndmin=1) for operand in np.broadcast_arrays(*operands)]
    result: Array = np.asarray(_UFUNCS[kind](*full))
    return result


def multiply_matrices(x: Array, w: Array) -> Array:
    """Compute x[..., K] w[K, N] in the element type of `x`, with terms added in the order of K.

    A block of rows gives the same bits as these rows of the complete product. The result is a new
    array [..., N]; without terms (K = 0) it is 0.
    """
    result = np.zeros((*x.shape[:-1], w.shape[1]), x.dtype)
    for k in range(w.shape[0]):
        result += x[..., k : k + 1] * w[k]
    return result


def multiply_batches(x: Array, w: Array) -> Array:
    """Compute the matrix products x[..., M, K] w[..., K, N], of shape [..., M, N].

    Terms are added one by one in the order of K, in the element type of `x`. The leading dimensions
    of `w` must broadcast to those of `x`.
    """
    result = np.zeros((*x.shape[:-1], w.shape[-1]), x.dtype)
    for k in range(w.shape[-2]):
        result += x[..., k : k + 1] * w[..., k : k + 1, :]
    return result


def convolve(x: Array, w: Array) -> Array:
    """Return the convolution of x[B, C, positions] with w[O, C, window], padded with zeros.

    Positions and windows have the same number of dimensions, any number. The result is a new
    array [B, O, positions] with the element type and the positions of x. In one dimension:

        result[b, o, p] = sum over c, k of x[b, c, p + k - size // 2] * w[o, c, k]

    Here `size` is the size of the window, and x is 0 outside of its positions; the window is
    not mirrored. Terms are added in the element type of x, ordered by c, then by k in row-major
    order.

    Windows must have odd sizes, and x and w equally many channels; the typing rules of a program
    check this, this function does not. Raises `IndexError` if w has more channels than x. Raises
    `ValueError` if x and w have different numbers of dimensions.
    """
    window = w.shape[2:]
    sides = [(size // 2, size // 2) for size in window]
    padded = np.pad(x, [(0, 0), (0, 0), *sides])
    result = np.zeros((x.shape[0], w.shape[0], *x.shape[2:]), x.dtype)
    for channel, *window_position in product(range(w.shape[1]), *map(range, window)):
        values = padded[:, channel]
        weights = w[:, channel]
        for axis, (start, size) in enumerate(zip(window_position, x.shape[2:], strict=True), 1):
            values = values.take(range(start, start + size), axis=axis)
            weights = weights.take([start], axis=axis)
        result += values[:, None] * weights
    return result


OPERATORS: dict[Reduction, Callable[[Any, Any], Any]] = {
    Reduction.SUM: np.add,
    Reduction.PROD: np.multiply,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
    Reduction.REPLACE: lambda _, later: later,
}


def reduce_over_ranks(arrays: OnRanks, reduction: Reduction) -> Array:
    """Reduce the arrays of all ranks element by element, in rank order, in their element type.

    REPLACE gives the array of the last rank. A block of the arrays gives the same bits as
    this block of the result. If there is only one array, the array itself is returned, not
    a copy. Raise `TypeError` if there is none.
    """
    result: Array = np.asarray(reduce(OPERATORS[reduction], arrays))
    return result


def reduce_to_scalar(kind: Kind, parts: OnRanks) -> Array:
    """Compute the 2-norm, sum or maximum of a tensor from its blocks.

    `kind`: NORM, MAX, or any other for a sum. `parts`: the blocks in rank order, at least one;
    some may be empty. The result has their element type and no dimensions.

    - Sum and norm: each block is summed separately (for a norm its squares), then the sums are
      added in rank order. Floats are computed in float64 and rounded once. Integer sums overflow
      in their type, and the norm of integers is rounded toward 0. Empty blocks count 0.
    - Maximum: NaN if there is one. Raise `ValueError` if all blocks are empty.
    """
    dtype = parts[0].dtype
    if kind is Kind.MAX:
        return np.asarray(np.max([part.max() for part in parts if part.size]), dtype)
    is_norm = kind is Kind.NORM
    is_float = is_float_array(parts[0])
    wide = [part.astype(np.float64) if is_float else part for part in parts]
    partial_sums = [np.sum(part * part if is_norm else part, dtype=part.dtype) for part in wide]
    result = reduce(np.add, partial_sums)
    return np.asarray(np.sqrt(result) if is_norm else result).astype(dtype)


def find_largest_term(kind: Kind, parts: OnRanks) -> float:
    """Return the largest magnitude of one rank's contribution to `reduce_to_scalar`.

    It is used for error bounds. `parts`: the block of each rank. For `Kind.NORM` it is the
    largest 2-norm of a block, for every other kind the largest sum of the magnitudes of a
    block. Computed in float64; an empty block counts 0. Raises `ValueError` without blocks.
    """
    wide = [np.abs(part.astype(np.float64)) for part in parts]
    if kind is Kind.NORM:
        return float(max(np.sqrt(np.sum(part * part)) for part in wide))
    return float(max(np.sum(part) for part in wide))


def mix_operands(
    operation: Operation, seed: int, operands: OnRanks, shape: tuple[int, ...], kind: TensorType
) -> Array:
    """Return a deterministic stand-in for the result of an operator that cannot be executed.

    `operands`: the array of each operand on one rank, not arrays by rank. `shape`: of the result on
    this rank. `kind` gives the element type. Floats are from -1 to 1, other elements 0 or 1.

    Equal arguments give equal results. Every element depends on its position, `operation.call`,
    `seed` and the order of the operands. It also depends on their elements:

    - If no axis of `kind` is sliced: on all elements of all operands.
    - Otherwise the first `operation.count` dimensions (1 if it is None or 0) of the result are
      rows, and only the position in the row counts. Row i depends on row i of each operand whose
      first sizes are equal, and on all elements of any other operand. This makes the block of a
      rank equal to the block of the complete tensor.

    Raises `InputError` (`element`) for a narrow float type if `ml_dtypes` is not installed.
    """
    has_rows = any(layout.is_sliced for layout in kind.layout.by_axis)
    sizes = shape[: operation.count or 1] if has_rows else ()
    rows = math.prod(sizes)
    start = zlib.crc32((operation.call or "").encode()) % 1009 / 1009 + seed
    totals = np.full(rows, start)
    for position, operand in enumerate(operands, 1):
        wide = np.asarray(operand, np.float64)
        is_by_row = has_rows and wide.shape[: len(sizes)] == sizes
        parts = wide.reshape(rows, -1) if is_by_row and rows else wide.reshape(1, -1)
        weights = np.cos(np.arange(parts.shape[1]) + position)
        totals = totals + (parts * weights).sum(axis=1)
    width = int(np.prod(shape, dtype=np.int64)) // max(rows, 1)
    values = np.sin(totals[:, None] + np.arange(width)[None, :])
    if not kind.element.is_float:
        values = np.floor(np.abs(values) * 2)
    result: Array = values.reshape(shape).astype(dtype_of(kind.element))
    return result
