"""Times of messages in whole picoseconds: sums are exact, ties are ties, and none overflows."""

from __future__ import annotations

import numpy as np
from collhub_columns import Float64Array, Int64Array

from hub_core.model import InputError

PICOSECONDS = 1e12
"""Of a second: a byte takes one even at 1 TB/s."""

# Of a single message: schedules of hundreds of them, one after the other, still fit 64 bits.
_MOST = 5e16


def whole_picoseconds(exact: Float64Array) -> Int64Array:
    """Every number of picoseconds rounded to the nearest integer, halves to the even one.

    Raises `InputError` for times of which a schedule of some messages would overflow.
    """
    most = float(exact.max(initial=0.0))
    if most > _MOST:
        taken_s, most_s = most / PICOSECONDS, _MOST / PICOSECONDS
        raise InputError(
            f"a message takes {taken_s:.3g} s on a link; times are counted up to {most_s:.0f} s",
            cure="choose a smaller size, or faster links",
            code="too-long",
        )
    return np.rint(exact).astype(np.int64)
