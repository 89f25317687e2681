"""Tables of measured times: interpolation between knots, and its error between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hub_core.plugin_api import Library

FloatArray = NDArray[np.float64]

FEW_REPEATS = 3
_MIN_KNOTS_FOR_ERROR = 4


@dataclass(frozen=True, slots=True)
class Table:
    """Medians of measured times, in microseconds, by size of the full vector in bytes.

    Sizes increase strictly. `dtype` is "int8" for sums of 8-bit integers and "" for all else.
    `repeats` is the least number of measurements of a knot.
    """

    collective: str
    ranks: int
    nodes: int
    library: Library
    dtype: str
    sizes: FloatArray
    times_us: FloatArray
    repeats: int = 1

    @property
    def key(self) -> tuple[str, int, int, Library, str]:
        """Configuration whose times the table holds."""
        return self.collective, self.ranks, self.nodes, self.library, self.dtype

    def time_us(self, size_bytes: FloatArray) -> FloatArray:
        """Interpolate times for sizes in bytes; both arrays have the same shape.

        Linear in the size between knots of the lower monotone envelope. Smaller sizes take the
        time of the first knot; larger sizes follow the slope of the last two knots.
        """
        return interpolate(self.sizes, envelope(self.times_us), size_bytes)

    def errors_between_knots(self) -> FloatArray:
        """Return |predicted / measured - 1| at every second inner knot, each left out."""
        if len(self.sizes) < _MIN_KNOTS_FOR_ERROR:
            return np.zeros(0)
        left_out = np.zeros(len(self.sizes), dtype=bool)
        left_out[1:-1:2] = True
        remaining = ~left_out
        predicted = interpolate(
            self.sizes[remaining], envelope(self.times_us[remaining]), self.sizes[left_out]
        )
        return np.abs(predicted / self.times_us[left_out] - 1)


def envelope(times_us: FloatArray) -> FloatArray:
    """Return the lower monotone envelope: the minimum over this and all larger sizes.

    It removes slow outliers and preserves jumps.
    """
    reversed_minimum: FloatArray = np.minimum.accumulate(times_us[::-1])
    return reversed_minimum[::-1]


def interpolate(sizes: FloatArray, times_us: FloatArray, size_bytes: FloatArray) -> FloatArray:
    """Interpolate linearly in the size; extend the last slope, which is never negative here."""
    inside = np.interp(size_bytes, sizes, times_us)
    if len(sizes) < 2:
        return inside
    slope = (times_us[-1] - times_us[-2]) / (sizes[-1] - sizes[-2])
    return np.asarray(inside + np.maximum(size_bytes - sizes[-1], 0) * max(float(slope), 0.0))
