"""How many messages of one link may be on their way at once, such that simulators keep to the order of the plan."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.path_network import PathNetwork

Int64Array = npt.NDArray[np.int64]

_MOST_ON_THE_WAY = 12


def windows_of_links(network: LinkNetwork, times: LinkTimes) -> Int64Array:
    """Messages that keep the first link of every arc busy until the first of them has arrived, at most 12: int64 per arc."""
    ahead = -(-(times.arrival - times.busy) // np.maximum(times.busy, 1))
    _, which = np.unique(network.row, return_inverse=True)
    most = np.zeros(int(which.max(initial=-1)) + 1, np.int64)
    np.maximum.at(most, which, ahead)
    window: Int64Array = np.minimum(1 + most[which], _MOST_ON_THE_WAY)
    return window


def released_at_once(network: LinkNetwork) -> int:
    """How many messages of a link may wait for the same one.

    Simulators start what becomes free in one instant in an order of their own, that of a hash set in ASTRA-sim. In a set of
    two it is the stated order, and in a set of few steps that stand close together, as where an NPU has one link alone:
    there the paths are long, and the start would take too much time by two.
    """
    if not isinstance(network, PathNetwork):
        return 2
    sender = np.unique(network.source * (int(network.row.max(initial=0)) + 1) + network.row)
    return 4 if len(sender) <= network.num_npus else 2


def windows(
    row: Int64Array, start: Int64Array, finish: Int64Array, window: Int64Array, at_once: int
) -> Int64Array:
    """The window of every message: turn i of a link waits for turns 0 ... max(i - `window`, (i - 1) // `at_once`).

    So it waits for the last of these to arrive: paths of one first link differ in length.

    `row`: link of every message, `window`: that of its link. A link thus begins with one message, then has `at_once`
    on their way, and so on up to its window.
    """
    if not len(row):
        return window
    order = np.lexsort((start, row))
    link = row[order]
    place = np.arange(len(row))
    first = np.searchsorted(link, link)
    by_finish = np.lexsort((place, finish[order], link))
    standing = np.empty(len(row), np.int64)
    standing[by_finish] = place
    latest = by_finish[np.maximum.accumulate(standing)]
    turn = place - first
    awaited = latest[first + np.maximum(np.maximum(turn - window[order], (turn - 1) // at_once), 0)]
    result = np.empty(len(row), np.int64)
    result[order] = np.where(turn > 0, place - awaited, 1)
    return result
