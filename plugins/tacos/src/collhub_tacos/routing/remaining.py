"""Compiled sums over trees of transfers: how far each has to go.

One pass from the last transfer to the first, linear; every transfer stands behind its parent, so
that what is behind it is known when it is reached. Import it late: numba takes a second.
"""

from __future__ import annotations

from collhub_packing.compiling import kernel

from hub_core.columns import Int64Array


@kernel
def remaining_times(parent: Int64Array, arrival: Int64Array) -> Int64Array:
    """Time from the start of every transfer to the arrival of the last one behind it: int64.

    `parent`: -1 for none, else a transfer before it; `arrival`: the time of each one.
    """
    remaining = arrival.copy()
    for transfer in range(len(parent) - 1, -1, -1):
        before = parent[transfer]
        if before >= 0:
            # Of several branches the longest counts.
            behind = arrival[before] + remaining[transfer]
            remaining[before] = max(remaining[before], behind)
    return remaining
