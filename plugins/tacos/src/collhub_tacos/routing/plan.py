"""From routes to a schedule: which transfer waits for which, and when each can go on its links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.path_network import PathNetwork, PathTimes
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.windows import released_at_once, windows_of_links
from hub_core.diagnostics import InputError
from hub_core.topology import Routes

if TYPE_CHECKING:
    from collhub_tacos.schedules.event_loop import LinkQueues


Int64Array = npt.NDArray[np.int64]

# EventHeap between two looks at Ctrl-C: about half a second.
_SLICE = 2_000_000


def hops(network: LinkNetwork, times: LinkTimes) -> tuple[Routes, LinkTimes]:
    """The links that every arc takes, and their times; where there are no switches, an arc is a link."""
    if isinstance(network, PathNetwork):
        assert isinstance(times, PathTimes)
        return network.paths, times.hops
    count = np.arange(network.num_links + 1, dtype=np.int64)
    return Routes(count, count[:-1]), times


@dataclass(frozen=True, slots=True, eq=False)
class RoutePlan:
    """Transfers without times, as int64 columns: chunk `chunk[i]` goes over `link[i]` of `network` when `parent[i]` is done.

    `parent`: the transfer that brings the chunk to the source, which stands before it, or -1 at the origin.
    """

    network: LinkNetwork
    chunk: Int64Array
    link: Int64Array
    parent: Int64Array

    def __len__(self) -> int:
        return len(self.chunk)

    def farthest_first(self, times: LinkTimes) -> LinkSchedule:
        """The schedule in which every free link sends what has farthest to go of what is there.

        Farthest in time, with all that depends on it. Of equals all go round alike: what leads to the next node in the
        order of numbers goes first. At switches what waits least on its way goes first of all. No link idles while its
        source has something for it, but for the windows.
        """
        # Imported here: numba takes a second.
        from collhub_tacos.schedules.event_loop import remaining_times

        network = self.network
        remaining = remaining_times(self.parent, times.arrival[self.link])
        way_round = (network.destination[self.link] - network.source[self.link]) % max(
            network.num_nodes, 1
        )
        rank = np.empty(len(self), np.int64)
        rank[np.lexsort((way_round, -remaining))] = np.arange(len(self))
        children = np.flatnonzero(self.parent >= 0)
        unmet = (self.parent >= 0).astype(np.int64)
        start, finish = _in_time(
            network, times, self.link, (self.parent[children], children), unmet, rank, False
        )
        schedule = LinkSchedule(
            network, self.chunk, self.link, start, finish, np.zeros(len(self), np.bool_)
        )
        return settled(schedule, times) if isinstance(network, PathNetwork) else schedule


def settled(schedule: LinkSchedule, times: LinkTimes) -> LinkSchedule:
    """The same transfers, on every first link in the same order, each as soon as it can: as a simulator times them.

    A transfer waits for all earlier arrivals of its chunk at its source, for its turn on the link, and for the message
    `routing_windows.windows` turns before it to arrive. Messages that meet at a switch wait in line.
    """
    rank = np.empty(len(schedule), np.int64)
    rank[np.lexsort((schedule.finish, schedule.start))] = np.arange(len(schedule))
    before, after = _waits(schedule)
    unmet = np.bincount(after, minlength=len(schedule)).astype(np.int64)
    start, finish = _in_time(
        schedule.network, times, schedule.link, (before, after), unmet, rank, True
    )
    return replace(schedule, start=start, finish=finish)


def _waits(schedule: LinkSchedule) -> tuple[Int64Array, Int64Array]:
    """Pairs of transfers of one chunk of which the first ends, and the second then starts, at one NPU."""
    network, count = schedule.network, len(schedule)
    node = np.concatenate([network.destination[schedule.link], network.source[schedule.link]])
    cell = node * (int(schedule.chunk.max(initial=0)) + 1) + np.tile(schedule.chunk, 2)
    is_start = np.arange(2 * count) >= count
    order = np.lexsort((is_start, np.concatenate([schedule.finish, schedule.start]), cell))
    arrivals = order[~is_start[order]]
    arrived = np.cumsum(~is_start[order])
    first: Int64Array = (arrived - ~is_start[order])[np.searchsorted(cell[order], cell[order])]
    at_start = np.flatnonzero(is_start[order])
    number: Int64Array = (arrived - first)[at_start]
    within = np.arange(int(number.sum())) - np.repeat(np.cumsum(number) - number, number)
    return arrivals[np.repeat(first[at_start], number) + within], np.repeat(
        order[at_start] - count, number
    )


def _in_time(
    network: LinkNetwork,
    times: LinkTimes,
    link: Int64Array,
    waits: tuple[Int64Array, Int64Array],
    unmet: Int64Array,
    rank: Int64Array,
    is_fixed: bool,
) -> tuple[Int64Array, Int64Array]:
    """Start and finish of every transfer. `waits`: (transfer, one that waits for it); `unmet`: for how many each one does."""
    # Imported here: numba takes a second.
    from collhub_tacos.schedules.event_loop import EventHeap, Jobs, run

    paths, _ = hops(network, times)
    count = len(link)
    room = (_filled(count, -1), _filled(count, -1), _filled(count, 0), _filled(count, -1))
    jobs = Jobs(
        link, unmet.copy(), *_grouped(*waits, count), rank, *room, paths.indptr, paths.links
    )
    lines, ready = _lines(network, times, link, unmet, rank, is_fixed)
    size = count + len(lines.busy) + 1
    events = EventHeap(
        _filled(size, 0),
        _filled(size, 0),
        _filled(size, 0),
        np.asarray([0, 0, 0, ready, 0], np.int64),
    )
    while run(jobs, lines, events, is_fixed, _SLICE) < count:
        if not (events.counter[0] or events.counter[3]):
            raise InputError(
                "transfers that wait for one another cannot be timed", code="schedule-acausal"
            )
    return jobs.start, jobs.finish


def _lines(
    network: LinkNetwork,
    times: LinkTimes,
    link: Int64Array,
    unmet: Int64Array,
    rank: Int64Array,
    is_fixed: bool,
) -> tuple[LinkQueues, int]:
    """The links before the first event, and how many of them may begin to send."""
    from collhub_tacos.schedules.event_loop import LinkQueues

    paths, single = hops(network, times)
    links = len(single.busy)
    first = paths.links[paths.indptr[link]]
    window = np.ones(links, np.int64)
    window[paths.links[paths.indptr[:-1]]] = windows_of_links(network, times)
    in_order = np.lexsort((rank, first))
    begin = np.concatenate([[0], np.cumsum(np.bincount(first, minlength=links))]).astype(np.int64)
    at_hand = in_order if is_fixed else in_order[unmet[in_order] == 0]
    number = np.bincount(first[at_hand], minlength=links).astype(np.int64)
    waiting = in_order.copy()
    waiting[
        begin[first[at_hand]]
        + np.arange(len(at_hand))
        - (np.cumsum(number) - number)[first[at_hand]]
    ] = at_hand
    ready = np.flatnonzero(number)
    touched = np.zeros(links, np.int64)
    touched[: len(ready)] = ready
    lines = LinkQueues(
        busy=single.busy,
        arrival=single.arrival,
        is_busy=np.zeros(links, np.bool_),
        first=_filled(links, -1),
        last=_filled(links, -1),
        expected=_filled(links, 0),
        begin=begin,
        number=number,
        waiting=waiting,
        gone=_filled(len(link), -1),
        sent=_filled(links, 0),
        arrived=_filled(links, 0),
        window=window,
        at_once=_filled(links, released_at_once(network)),
        is_touched=number > 0,
        touched=touched,
    )
    return lines, len(ready)


def _grouped(key: Int64Array, value: Int64Array, count: int) -> tuple[Int64Array, Int64Array]:
    """Values by key as (indptr, values)."""
    indptr = np.concatenate([[0], np.cumsum(np.bincount(key, minlength=count))]).astype(np.int64)
    return indptr, value[np.argsort(key, kind="stable")]


def _filled(count: int, value: int) -> Int64Array:
    return np.full(count, value, np.int64)
