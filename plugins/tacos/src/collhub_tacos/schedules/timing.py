"""Times of transfers by the event loop: when each can go on its links, in a fixed order or not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.switches import get_links_of_arcs
from collhub_tacos.schedules.link_schedule import LinkSchedule, released_at_once, windows_of_links
from hub_core.columns import BoolArray, Int64Array, csr, group_pointer, inverse, stable_order
from hub_core.model import InputError

if TYPE_CHECKING:
    from collhub_tacos.schedules.event_loop import EventQueue


class Jobs(NamedTuple):
    """Transfers to send; int64 per transfer unless a column is described otherwise.

    `arc`: its arc. `unmet`: number of dependencies that have not arrived. `child_indptr`, `child`:
    transfers that depend on it, as CSR. `rank`: priority, small ranks first. `start`, `finish`:
    results in picoseconds, -1 until they are known. `hop`: current position on its path.
    `following`: next transfer in the queue of a switch, -1 for none. `path_indptr`, `path`: links
    of every arc.
    """

    arc: Int64Array
    unmet: Int64Array
    child_indptr: Int64Array
    child: Int64Array
    rank: Int64Array
    start: Int64Array
    finish: Int64Array
    hop: Int64Array
    following: Int64Array
    path_indptr: Int64Array
    path: Int64Array


class SenderQueues(NamedTuple):
    """Links and the transfers that wait for them; int64 per link unless described otherwise.

    `busy`, `arrival`: times of one message in picoseconds. `is_busy`: bool. `first`, `last`: ends
    of the queue at a switch. `expected`: time at which all messages sent so far will have left the
    link. `number`: number of available transfers; if the order is fixed, the number of all its
    transfers, which are `waiting[begin[l]:]` in order. `gone[begin[l]:begin[l] + sent[l]]`: sent
    transfers, of which the first `arrived[l]` have arrived. `window`: maximum number of messages in
    flight. `at_once`: maximum number of messages that wait for the same one, 0 for no limit.
    `is_touched`: bool, `touched`: links that may start to send.

    If the order is not fixed, the transfers of arc a are `waiting[arc_begin[a]:arc_begin[a + 1]]`
    sorted by rank, of which none before `head[a]` is available; `place`: index of every transfer in
    `waiting`. Arcs that begin with link l: `arcs[arcs_indptr[l]:arcs_indptr[l + 1]]`.
    """

    busy: Int64Array
    arrival: Int64Array
    is_busy: BoolArray
    first: Int64Array
    last: Int64Array
    expected: Int64Array
    begin: Int64Array
    number: Int64Array
    waiting: Int64Array
    gone: Int64Array
    sent: Int64Array
    arrived: Int64Array
    window: Int64Array
    at_once: Int64Array
    is_touched: BoolArray
    touched: Int64Array
    arc_begin: Int64Array
    head: Int64Array
    place: Int64Array
    arcs_indptr: Int64Array
    arcs: Int64Array


# Events between two looks at Ctrl-C: about half a second.
_SLICE = 2_000_000
# Instants that are found at once; others get a line of their own, which is slower and as right.
_MOST_PLACES = 1 << 14


def settled(schedule: LinkSchedule, times: LinkTimes) -> LinkSchedule:
    """Same transfers, on every first link in the same order, each as soon as it can.

    That is how a simulator times them. A transfer waits for all earlier arrivals of its chunk at
    its source, for its turn on the link, and for the message `compute_windows` turns before it to
    arrive. Messages that meet at a switch wait in line.
    """
    by_finish = stable_order(schedule.finish)
    by_start = by_finish[stable_order(schedule.start[by_finish])]
    waits = _waits(schedule)
    rank = inverse(by_start)
    start, finish = in_time(schedule.network, times, schedule.link, waits, rank, is_fixed=True)
    return replace(schedule, start=start, finish=finish)


def _waits(schedule: LinkSchedule) -> tuple[Int64Array, Int64Array]:
    """Pairs of transfers of one chunk of which the first ends, and the second starts, at one NPU.

    Every start waits for the ends before it, and in its instant: what arrives can go on at once.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.schedules.retiming import grouped, waits_within_chunks

    num_chunks = int(schedule.chunk.max(initial=0)) + 1
    by_start = stable_order(schedule.start)
    return waits_within_chunks(
        grouped(by_start, schedule.chunk, num_chunks),
        schedule.chunk,
        schedule.source,
        schedule.destination,
        schedule.start,
        schedule.finish,
        schedule.network.num_nodes,
    )


def in_time(
    network: LinkNetwork,
    times: LinkTimes,
    link: Int64Array,
    waits: tuple[Int64Array, Int64Array],
    rank: Int64Array,
    *,
    is_fixed: bool,
) -> tuple[Int64Array, Int64Array]:
    """Start and finish of every transfer in picoseconds, int64 each.

    `waits`: columns (transfer, one that waits for it). `rank`: smaller goes first, or, where
    `is_fixed`, the order on every link. Raises `InputError` for transfers that wait for one another
    in a circle.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.schedules.event_loop import run

    count = len(link)
    unmet = np.bincount(waits[1], minlength=count).astype(np.int64)
    queues, ready = _queues(network, times, link, unmet, rank, is_fixed)
    jobs = _jobs(network, times, link, waits, unmet, rank)
    events = _no_events(count, len(queues.busy), ready)
    while run(jobs, queues, events, is_fixed, _SLICE) < count:
        # Neither an event nor a link that may send, and yet not all done.
        is_stuck = not (events.counter[0] or events.counter[3])
        if is_stuck:
            raise InputError(
                "transfers that wait for one another cannot be timed", code="schedule-acausal"
            )
    return jobs.start, jobs.finish


def _jobs(
    network: LinkNetwork,
    times: LinkTimes,
    link: Int64Array,
    waits: tuple[Int64Array, Int64Array],
    unmet: Int64Array,
    rank: Int64Array,
) -> Jobs:
    """Transfers before the first event."""
    count = len(link)
    paths, _ = get_links_of_arcs(network, times)
    child_indptr, child = csr(waits[0], waits[1], count)
    return Jobs(
        arc=link,
        unmet=unmet.copy(),
        child_indptr=child_indptr,
        child=child,
        rank=rank,
        start=_filled(count, -1),
        finish=_filled(count, -1),
        hop=_filled(count, 0),
        following=_filled(count, -1),
        path_indptr=paths.indptr,
        path=paths.links,
    )


def _queues(
    network: LinkNetwork,
    times: LinkTimes,
    link: Int64Array,
    unmet: Int64Array,
    rank: Int64Array,
    is_fixed: bool,
) -> tuple[SenderQueues, int]:
    """Links before the first event, and how many of them may begin to send."""
    from collhub_tacos.schedules.retiming import grouped

    paths, single = get_links_of_arcs(network, times)
    links = len(single.busy)
    first = paths.links[paths.indptr[link]]
    # In a fixed order the transfers of a link stand together, else those of an arc.
    waiting = grouped(inverse(rank), *((first, links) if is_fixed else (link, network.num_links)))
    at_hand = first if is_fixed else first[unmet == 0]
    number = np.bincount(at_hand, minlength=links).astype(np.int64)
    arc_begin = group_pointer(link, network.num_links)
    used = np.flatnonzero(np.diff(arc_begin))
    arcs_indptr, arcs = csr(paths.links[paths.indptr[used]], used, links)
    ready = np.flatnonzero(number)
    touched = _filled(links, 0)
    # At time 0 all of them choose, as after an event.
    touched[: len(ready)] = ready
    queues = SenderQueues(
        busy=single.busy,
        arrival=single.arrival,
        is_busy=np.zeros(links, np.bool_),
        first=_filled(links, -1),
        last=_filled(links, -1),
        expected=_filled(links, 0),
        begin=group_pointer(first, links),
        number=number,
        waiting=waiting,
        gone=_filled(len(link), -1),
        sent=_filled(links, 0),
        arrived=_filled(links, 0),
        window=_windows_of_first_links(network, times, links),
        at_once=_filled(links, released_at_once(network, times.rule)),
        is_touched=number > 0,
        touched=touched,
        arc_begin=arc_begin,
        head=arc_begin[:-1].copy(),
        place=inverse(waiting),
        arcs_indptr=arcs_indptr,
        arcs=arcs,
    )
    return queues, len(ready)


def _windows_of_first_links(network: LinkNetwork, times: LinkTimes, links: int) -> Int64Array:
    """Window of every link that begins an arc, 1 for others: int64[links]."""
    paths, _ = get_links_of_arcs(network, times)
    window = np.ones(links, np.int64)
    # Inside a path messages go on in order of arrival: no window is kept there.
    window[paths.links[paths.indptr[:-1]]] = windows_of_links(network, times)
    return window


def _no_events(transfers: int, links: int, ready: int) -> EventQueue:
    """Queue at time 0 without events, and `ready` links that may begin to send."""
    from collhub_tacos.schedules.event_loop import EventQueue

    # An arrival per transfer and a release per link may be planned at once.
    size = transfers + links + 1
    heap = (_filled(size, 0), _filled(size, 0), _filled(size, 0))
    table = _filled(min(_MOST_PLACES, 1 << size.bit_length()), 0)
    lines = (_filled(size, -1), _filled(size, 0), _filled(size, 0))
    following = _filled(2 * max(transfers, links), -1)
    counter = np.asarray([0, 0, 0, ready, 0, size], np.int64)
    return EventQueue(*heap, table, *lines, following, np.arange(size), counter)


def _filled(count: int, value: int) -> Int64Array:
    """An int64 array of `count` entries, each of them `value`."""
    return np.full(count, value, np.int64)
