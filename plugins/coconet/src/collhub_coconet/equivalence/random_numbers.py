"""Random numbers of Dropout, keyed by seed and global element index: slices equal the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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
