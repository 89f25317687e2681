"""Schedules as columns of transfers on links, their windows, and their reversal in time.

A window limits how many messages of a link are in flight, so that simulators keep the planned
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes, WindowRule
from collhub_tacos.networks.switches import PathNetwork
from collhub_tacos.networks.symmetry import find_opposite_links
from hub_core.columns import BoolArray, ColumnTable, Int64Array, sorted_ordinals, stable_order_by
from hub_core.schedules import Transfers


def compute_link_windows(network: LinkNetwork, times: LinkTimes) -> Int64Array:
    """Return the number of messages that keep the first link of an arc busy until one arrives.

    int64 per arc, at most `times.rule.max_in_flight`.
    """
    idle = times.arrival - times.busy
    # Messages that can start after a message and before its arrival.
    num_ahead = -(-idle // np.maximum(times.busy, 1))
    # Arcs with the same first link share the largest of their windows.
    _, group_of_arc = np.unique(network.row, return_inverse=True)
    groups = int(group_of_arc.max(initial=-1)) + 1
    max_ahead = np.zeros(groups, np.int64)
    np.maximum.at(max_ahead, group_of_arc, num_ahead)
    window: Int64Array = 1 + max_ahead[group_of_arc]
    return np.minimum(window, times.rule.max_in_flight) if times.rule.max_in_flight else window


def max_released_at_once(network: LinkNetwork, rule: WindowRule) -> int:
    """Return how many messages of a link may wait for the same message, 0 for any number.

    Simulators start messages that become free at the same instant in an internal order, in
    ASTRA-sim that of a hash set. In a set of two it is the planned order. So it is in a set of four
    if an NPU has only one link, because its steps have adjacent numbers; such networks have long
    paths, and increasing the messages in flight by twos would take too long.
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
    """Return the window of every message: the distance to the message it awaits.

    int64 per message, in messages of the link. `row`: link of every message. `window`: window of
    its link. Message i of a link waits for messages 0 ... i - `window`, that is, for the last of
    these to arrive. With `at_once`, it also waits for message (i - 1) // `at_once`, so a link
    starts with one message, then has `at_once` in flight, and so on up to its window. Messages
    that wait for none have a window larger than their number i.
    """
    if not len(row):
        return window
    order = stable_order_by(row, start)
    link = row[order]
    position = np.arange(len(row))
    ordinal = sorted_ordinals(link)
    first = position - ordinal
    # An earlier message may arrive later if its path is longer.
    last_arrival = _find_last_arrivals(link, finish[order])
    awaited_ordinal = ordinal - window[order]
    if at_once:
        awaited_ordinal = np.maximum(awaited_ordinal, (ordinal - 1) // at_once)
    awaited_message = last_arrival[first + np.maximum(awaited_ordinal, 0)]
    result = np.empty(len(row), np.int64)
    waits = (ordinal > 0) & (awaited_ordinal >= 0)
    result[order] = np.where(waits, position - awaited_message, ordinal + 1)
    return result


def _find_last_arrivals(link: Int64Array, finish: Int64Array) -> Int64Array:
    """Return, for each message, the last arrival of its link up to it; rows are sorted by link."""
    position = np.arange(len(link))
    # Among simultaneous arrivals the later message counts as the last.
    by_finish = stable_order_by(link, finish)
    arrival_rank = np.empty(len(link), np.int64)
    arrival_rank[by_finish] = position
    last_arrival: Int64Array = by_finish[np.maximum.accumulate(arrival_rank)]
    return last_arrival


@dataclass(frozen=True, slots=True, eq=False)
class LinkSchedule(ColumnTable):
    """Transfers: chunk `chunk[i]` is sent on link `link[i]` at `start[i]`, arriving at `finish[i]`.

    int64 columns of equal length, times in picoseconds, links of `network`, chunk ids as in
    `hub_core.schedules.Chunks`. `reduces`: bool per transfer, whether the destination adds the
    chunk to its own data.
    """

    network: LinkNetwork
    chunk: Int64Array
    link: Int64Array
    start: Int64Array
    finish: Int64Array
    reduces: BoolArray

    @classmethod
    def without_reduction(
        cls,
        network: LinkNetwork,
        chunk: Int64Array,
        link: Int64Array,
        start: Int64Array,
        finish: Int64Array,
    ) -> LinkSchedule:
        """Build a schedule in which no transfer reduces."""
        return cls(network, chunk, link, start, finish, np.zeros(len(chunk), np.bool_))

    @property
    def time_ps(self) -> int:
        """Arrival time of the last chunk in picoseconds."""
        return int(self.finish.max(initial=0))

    @property
    def source(self) -> Int64Array:
        """Source node of every transfer."""
        source: Int64Array = self.network.source[self.link]
        return source

    @property
    def destination(self) -> Int64Array:
        """Destination node of every transfer."""
        return self.network.destination[self.link]

    def select_rows(self, chosen: Int64Array | BoolArray) -> LinkSchedule:
        """Select transfers by their rows or by a bool per row."""
        return LinkSchedule(
            self.network,
            self.chunk[chosen],
            self.link[chosen],
            self.start[chosen],
            self.finish[chosen],
            self.reduces[chosen],
        )

    def select_touching(self, nodes: Sequence[int]) -> LinkSchedule:
        """Select the transfers from or to `nodes`."""
        is_from = np.isin(self.source, nodes)
        is_to = np.isin(self.destination, nodes)
        return self.select_rows(is_from | is_to)

    def append_to(self, earlier: LinkSchedule, end_ps: int | None = None) -> LinkSchedule:
        """Append this schedule to `earlier`.

        `end_ps`: time of the entire schedule of which `earlier` is a part; default the time of
        `earlier`.
        """
        end = earlier.time_ps if end_ps is None else end_ps
        return replace(
            self,
            chunk=np.concatenate([earlier.chunk, self.chunk]),
            link=np.concatenate([earlier.link, self.link]),
            start=np.concatenate([earlier.start, end + self.start]),
            finish=np.concatenate([earlier.finish, end + self.finish]),
            reduces=np.concatenate([earlier.reduces, self.reduces]),
        )

    def transfers(self, times: LinkTimes) -> Transfers:
        """Convert to the columns from which the core builds an algorithm."""
        network = self.network
        # The core orders messages by topology link.
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
        """Return the window of every message, 0 if it waits for no earlier message of its link."""
        network = self.network
        if times.rule.sums_in_turn:
            return np.where(self.reduces, compute_link_windows(network, times)[self.link], 0)
        if not times.rule.keeps_order:
            return np.zeros(len(self), np.int64)
        window = compute_link_windows(network, times)[self.link]
        at_once = max_released_at_once(network, times.rule)
        return compute_windows(network.row[self.link], self.start, self.finish, window, at_once)


def reverse_schedule(
    schedule: LinkSchedule, network: LinkNetwork, end_ps: int | None = None
) -> LinkSchedule:
    """Reverse a spreading schedule in time: the result reduces, on `network`.

    `schedule` is for the transposed network, or for the network itself if that is duplex. A
    transfer u -> v of a chunk in [t, t + w] becomes v -> u in [T - t - w, T - t] and carries the
    partial sum of v, as TACOS derives a reduce-scatter from an all-gather (Won et al., MICRO 2024).
    This is correct if every node received every chunk exactly once. `end_ps`: T of the entire
    schedule of which `schedule` is a part; default its own time.
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
