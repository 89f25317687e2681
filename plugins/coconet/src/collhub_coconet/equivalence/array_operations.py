"""Operations on the arrays of simulated ranks: blocks, random numbers, pointwise, reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from collhub_coconet.program.operations import Kind, Reduction
from collhub_coconet.program.tensors import LOCAL, TensorType, block_bounds

Array = npt.NDArray[Any]
OnRanks = list[Array]
"""One array a rank."""


def block(whole: Array, dimension: int, num_ranks: int, rank: int) -> Array:
    """Block of one rank along a dimension, as an array of its own."""
    first, stop = block_bounds(whole.shape[dimension], num_ranks, rank)
    # Contiguous: some loops of numpy round strided arrays otherwise.
    return np.ascontiguousarray(whole[(slice(None),) * dimension + (slice(first, stop),)])


def spread(whole: Array, kind: TensorType, num_ranks: int) -> OnRanks:
    """A tensor on its ranks; a local one has the ranks as its first dimension."""
    if kind.layout == LOCAL:
        return list(whole)
    if not kind.layout.is_sliced:
        return [whole] * num_ranks
    return [block(whole, kind.layout.dimension, num_ranks, rank) for rank in range(num_ranks)]


def collected(parts: Sequence[Array], kind: TensorType) -> Array:
    """The opposite of `spread`; of a replicated tensor, the copy of rank 0."""
    if kind.layout == LOCAL:
        return np.stack(parts)
    if not kind.layout.is_sliced:
        return parts[0]
    return np.concatenate(parts, axis=kind.layout.dimension)


def is_same(one: Array, other: Array) -> bool:
    """Whether two arrays hold the same bits; NaNs count as one value, their sign says nothing."""
    # Equal bits of another type are another value.
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return _bits(one) == _bits(other)


def _bits(values: Array) -> bytes:
    if values.dtype.kind != "f":
        return values.tobytes()
    return np.where(np.isnan(values), values.dtype.type(np.nan), values).tobytes()


_ODD = np.uint64(0x9E3779B97F4A7C15)


def global_indices(
    shape: tuple[int, ...], dimension: int = 0, bounds: tuple[int, int] | None = None
) -> npt.NDArray[np.uint64]:
    """Index of every element in the whole tensor, row by row; of a block along a dimension."""
    whole = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64).reshape(shape)
    if bounds is None:
        return whole
    return whole.take(np.arange(*bounds), axis=dimension)


def kept(indices: npt.NDArray[np.uint64], rate: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which elements Dropout keeps.

    A bijective mix of 64 bits of seed and index (MurmurHash3's finalizer, with Stafford's
    constants); its upper 53 bits are uniform in [0, 1).
    """
    mixed = (indices + np.uint64(1)) * _ODD ^ np.uint64(seed % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed = mixed ^ (mixed >> np.uint64(31))
    uniform = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    keep: npt.NDArray[np.bool_] = uniform >= rate
    return keep


def scaled(values: npt.NDArray[Any], keep: npt.NDArray[np.bool_], rate: float) -> npt.NDArray[Any]:
    """Kept elements divided by 1 - rate, in their own type, and zeros."""
    divisor = values.dtype.type(1 - rate)
    result: npt.NDArray[Any] = np.where(keep, values / divisor, values.dtype.type(0))
    return result


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
    Kind.SELECT: np.where,
}


def pointwise(kind: Kind, operands: list[Array]) -> Array:
    """The result of arrays of one element type that broadcast to one shape."""
    # Stretched first: loops of numpy may round otherwise where a stride is 0. Copied always, since
    # an array of one element passes for contiguous whatever its stride is.
    full = [np.array(one, order="C", ndmin=1) for one in np.broadcast_arrays(*operands)]
    # Scalars of numpy become arrays again.
    result: Array = np.asarray(_UFUNCS[kind](*full))
    return result


def matrix_product(x: Array, w: Array) -> Array:
    """x[..., K] w[K, N], terms added in the order of K: a block of rows has the whole's bits."""
    result = np.zeros((*x.shape[:-1], w.shape[1]), x.dtype)
    for k in range(w.shape[0]):
        result += x[..., k : k + 1] * w[k]
    return result


def batch_product(x: Array, w: Array) -> Array:
    """x[..., M, K] w[..., K, N] of one batch, terms added in the order of K."""
    result = np.zeros((*x.shape[:-1], w.shape[-1]), x.dtype)
    for k in range(w.shape[-2]):
        result += x[..., k : k + 1] * w[..., k : k + 1, :]
    return result


def convolution(x: Array, w: Array) -> Array:
    """x[B, C, positions] with w[O, C, window], zeros around; terms added in the order of w."""
    window = w.shape[2:]
    sides = [(size // 2, size // 2) for size in window]
    padded = np.pad(x, [(0, 0), (0, 0), *sides])
    result = np.zeros((x.shape[0], w.shape[0], *x.shape[2:]), x.dtype)
    for channel, *place in product(range(w.shape[1]), *map(range, window)):
        values = padded[:, channel]
        weights = w[:, channel]
        for axis, (start, size) in enumerate(zip(place, x.shape[2:], strict=True), 1):
            values = values.take(range(start, start + size), axis=axis)
            weights = weights.take([start], axis=axis)
        result += values[:, None] * weights
    return result


_OVER_RANKS: dict[Reduction, Callable[[Any, Any], Any]] = {
    Reduction.SUM: np.add,
    Reduction.PROD: np.multiply,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
    Reduction.REPLACE: lambda _, later: later,
}


def over_ranks(arrays: OnRanks, reduction: Reduction) -> Array:
    """Values of all ranks reduced from rank 0 on, so that a block has the bits of the whole."""
    result: Array = np.asarray(reduce(_OVER_RANKS[reduction], arrays))
    return result


def to_scalar(kind: Kind, parts: OnRanks) -> Array:
    """Norm, sum or largest element of the tensor whose blocks these are.

    Sums of floats are of float64, rounded once; each block is summed on its own, the partial sums
    in the order of the ranks.
    """
    dtype = parts[0].dtype
    if kind is Kind.MAX:
        return np.asarray(np.max([part.max() for part in parts if part.size]), dtype)
    is_norm = kind is Kind.NORM
    wide = [part.astype(np.float64) if dtype.kind == "f" else part for part in parts]
    partial = [np.sum(part * part if is_norm else part, dtype=part.dtype) for part in wide]
    result = reduce(np.add, partial)
    return np.asarray(np.sqrt(result) if is_norm else result).astype(dtype)


def largest_term(kind: Kind, parts: OnRanks) -> float:
    """The largest contribution of a rank to `to_scalar`: max|terms| of the bound."""
    wide = [np.abs(part.astype(np.float64)) for part in parts]
    if kind is Kind.NORM:
        return float(max(np.sqrt(np.sum(part * part)) for part in wide))
    return float(max(np.sum(part) for part in wide))
