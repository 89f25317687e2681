"""How many messages of one link may be on their way at once, such that simulators keep to the order of the plan."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collhub_tacos.network import LinkTimes, Network

__all__ = ["windows", "windows_of_links"]

Int64Array = npt.NDArray[np.int64]

_MOST_ON_THE_WAY = 12


def windows_of_links(network: Network, times: LinkTimes) -> Int64Array:
    """Messages that keep the first link of every arc busy until the first of them has arrived, at most 12: int64 per arc."""
    ahead = -(-(times.arrival - times.busy) // np.maximum(times.busy, 1))
    _, which = np.unique(network.row, return_inverse=True)
    most = np.zeros(int(which.max(initial=-1)) + 1, np.int64)
    np.maximum.at(most, which, ahead)
    return np.minimum(1 + most[which], _MOST_ON_THE_WAY)


def windows(row: Int64Array, start: Int64Array, window: Int64Array) -> Int64Array:
    """The window of every message: turn i of a link waits for turn max(i - `window`, (i - 1) // 2).

    `row`: link of every message, `window`: that of its link. Simulators start what becomes free in one instant in an
    order of their own, that of a hash set in ASTRA-sim. So no more than two messages of a link wait for the same one: in
    sets of two that order is the stated one. A link thus begins with one message, and doubles.
    """
    order = np.lexsort((start, row))
    turn = np.empty(len(row), np.int64)
    turn[order] = np.arange(len(row)) - np.searchsorted(row[order], row[order])
    return turn - np.maximum(turn - window, (turn - 1) // 2)
