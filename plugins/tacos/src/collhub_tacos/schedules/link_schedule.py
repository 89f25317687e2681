"""How many messages of one link may be on their way at once, so that simulators keep the order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes, WindowRule
from collhub_tacos.networks.switches import PathNetwork
from collhub_tacos.networks.symmetry import find_opposite_links
from hub_core.columns import BoolArray, ColumnTable, Int64Array, sorted_ordinals, stable_order_by
from hub_core.schedules import Transfers


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


def compute_windows(
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


@dataclass(frozen=True, slots=True, eq=False)
class LinkSchedule(ColumnTable):
    """Chunk `chunk[i]` is put on link `link[i]` at `start[i]` and arrives at `finish[i]`.

    int64 columns of equal length, times in picoseconds, links of `network`, chunk ids as in
    `hub_core.schedules.Chunks`. `reduces`: bool per transfer, the chunk is added to what the
    destination has.
    """

    network: LinkNetwork
    chunk: Int64Array
    link: Int64Array
    start: Int64Array
    finish: Int64Array
    reduces: BoolArray

    @classmethod
    def spreading(
        cls,
        network: LinkNetwork,
        chunk: Int64Array,
        link: Int64Array,
        start: Int64Array,
        finish: Int64Array,
    ) -> LinkSchedule:
        """Schedule in which no transfer reduces."""
        return cls(network, chunk, link, start, finish, np.zeros(len(chunk), np.bool_))

    @property
    def time_ps(self) -> int:
        """When the last chunk arrives."""
        return int(self.finish.max(initial=0))

    @property
    def source(self) -> Int64Array:
        """Node that every transfer leaves."""
        source: Int64Array = self.network.source[self.link]
        return source

    @property
    def destination(self) -> Int64Array:
        """Node that every transfer comes to."""
        return self.network.destination[self.link]

    def rows(self, chosen: Int64Array | BoolArray) -> LinkSchedule:
        """Some of the transfers, by their rows or by a bool per row."""
        return LinkSchedule(
            self.network,
            self.chunk[chosen],
            self.link[chosen],
            self.start[chosen],
            self.finish[chosen],
            self.reduces[chosen],
        )

    def touching(self, nodes: Sequence[int]) -> LinkSchedule:
        """Transfers from or to `nodes` alone."""
        is_from = np.isin(self.source, nodes)
        is_to = np.isin(self.destination, nodes)
        return self.rows(is_from | is_to)

    def after(self, other: LinkSchedule, end_ps: int | None = None) -> LinkSchedule:
        """`other`, then this one.

        `end_ps`: when the whole of which `other` is a part ends, default its own time.
        """
        # A part does not tell when the whole ends.
        end = other.time_ps if end_ps is None else end_ps
        return replace(
            self,
            chunk=np.concatenate([other.chunk, self.chunk]),
            link=np.concatenate([other.link, self.link]),
            start=np.concatenate([other.start, end + self.start]),
            finish=np.concatenate([other.finish, end + self.finish]),
            reduces=np.concatenate([other.reduces, self.reduces]),
        )

    def transfers(self, times: LinkTimes) -> Transfers:
        """Columns that the core makes an algorithm of."""
        network = self.network
        # The core orders messages by link of the topology.
        row = network.row[self.link]
        return Transfers(
            self.chunk,
            self.source,
            self.destination,
            row,
            self.start,
            self.finish,
            self.reduces,
            self._windows(times),
        )

    def _windows(self, times: LinkTimes) -> Int64Array:
        """How many turns of its link before its own a message waits for: 0 for none and no turn."""
        network = self.network
        if times.rule.sums_in_turn:
            return np.where(self.reduces, windows_of_links(network, times)[self.link], 0)
        if not times.rule.keeps_order:
            return np.zeros(len(self), np.int64)
        window = windows_of_links(network, times)[self.link]
        at_once = released_at_once(network, times.rule)
        return compute_windows(network.row[self.link], self.start, self.finish, window, at_once)


def reversed_schedule(
    schedule: LinkSchedule, network: LinkNetwork, end_ps: int | None = None
) -> LinkSchedule:
    """Reducing schedule on `network` of one that spreads on its transpose.

    On itself, where it is duplex. `end_ps`: time of the whole where `schedule` is a part of it;
    default its own.
    """
    end = schedule.time_ps if end_ps is None else end_ps
    opposite = find_opposite_links(schedule.network, network)
    return replace(
        schedule,
        network=network,
        link=opposite[schedule.link],
        start=end - schedule.finish,
        finish=end - schedule.start,
        reduces=np.ones(len(schedule), np.bool_),
    )
