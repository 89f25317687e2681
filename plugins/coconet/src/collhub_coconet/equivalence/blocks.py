"""Arrays on ranks: blocks of a whole, and the whole of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
