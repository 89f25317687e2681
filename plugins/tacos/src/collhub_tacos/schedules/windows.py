"""How many messages of one link may be on their way at once, so that simulators keep the order."""

from __future__ import annotations

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.path_network import PathNetwork
from collhub_tacos.networks.window_rules import WindowRule
from hub_core.columns import Int64Array, sorted_ordinals, stable_order_by


def windows_of_links(network: LinkNetwork, times: LinkTimes) -> Int64Array:
    """Messages that keep the first link of every arc busy until the first of them has arrived.

    int64 per arc, at most as many as `times.rule` allows.
    """
    idle = times.arrival - times.busy
    # So many can start behind a message before it arrives.
    ahead = -(-idle // np.maximum(times.busy, 1))
    # Arcs that begin with one link share its window, the largest of theirs.
    _, which = np.unique(network.row, return_inverse=True)
    groups = int(which.max(initial=-1)) + 1
    most = np.zeros(groups, np.int64)
    np.maximum.at(most, which, ahead)
    window: Int64Array = 1 + most[which]
    return np.minimum(window, times.rule.most) if times.rule.most else window


def released_at_once(network: LinkNetwork, rule: WindowRule) -> int:
    """How many messages of a link may wait for the same one, 0 for any number.

    Simulators start what becomes free in one instant in an order of their own, that of a hash set
    in ASTRA-sim. In a set of two it is the stated order, and in a set of few steps that stand
    close together, as where an NPU has one link alone: there the paths are long, and the start
    would take too much time by two.
    """
    if not rule.begins_slowly:
        return 0
    if not isinstance(network, PathNetwork):
        return 2
    rows = int(network.row.max(initial=0)) + 1
    sender = np.unique(network.source * rows + network.row)
    has_one_link_each = len(sender) <= network.num_npus
    return 4 if has_one_link_each else 2


def windows(
    row: Int64Array, start: Int64Array, finish: Int64Array, window: Int64Array, at_once: int
) -> Int64Array:
    """Window of every message: how many turns of its link before its own it waits for; int64.

    `row`: link of every message, `window`: that of its link. Turn i of a link waits for turns
    0 ... i - `window`, that is for the last of these to arrive. With `at_once`, also for turn
    (i - 1) // `at_once`: a link then begins with one message, then has `at_once` on their way, and
    so on up to its window. Who waits for none has a window of more than its turn.
    """
    if not len(row):
        return window
    order = stable_order_by(row, start)
    link = row[order]
    place = np.arange(len(row))
    turn = sorted_ordinals(link)
    first = place - turn
    # What was sent earlier may arrive later, over a longer path.
    latest = _latest_so_far(link, finish[order])
    earlier = turn - window[order]
    if at_once:
        earlier = np.maximum(earlier, (turn - 1) // at_once)
    awaited = latest[first + np.maximum(earlier, 0)]
    result = np.empty(len(row), np.int64)
    waits = (turn > 0) & (earlier >= 0)
    result[order] = np.where(waits, place - awaited, turn + 1)
    return result


def _latest_so_far(link: Int64Array, finish: Int64Array) -> Int64Array:
    """Which of the messages of its link up to each one arrives last; rows stand by link."""
    place = np.arange(len(link))
    # Of those that arrive at once the later one stands last.
    by_finish = stable_order_by(link, finish)
    standing = np.empty(len(link), np.int64)
    standing[by_finish] = place
    latest: Int64Array = by_finish[np.maximum.accumulate(standing)]
    return latest
