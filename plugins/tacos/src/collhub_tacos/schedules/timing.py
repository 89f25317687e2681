"""Times of transfers computed by the event loop, with a fixed or a chosen order on every link."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from collhub_tacos.link_network import LinkNetwork, LinkTimes, get_links_of_arcs
from collhub_tacos.schedules.link_schedule import (
    LinkSchedule,
    compute_link_windows,
    max_released_at_once,
)
from hub_core.columns import BoolArray, Int64Array, csr, group_pointer, inverse, stable_order
from hub_core.model import InputError


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


# Events between two checks for Ctrl-C: about half a second.
_EVENTS_PER_CALL = 2_000_000
# Size of the hash table of instants; a collision costs time but does not change the result.
_MAX_TABLE_SIZE = 1 << 14


def retime_by_events(schedule: LinkSchedule, times: LinkTimes) -> LinkSchedule:
    """Start the same transfers as early as possible; return a copy with new starts and finishes.

    The times come from an event simulation, in which messages queue at switches. Rows keep their
    order. The first link of a transfer is the link on which it leaves its source. A transfer starts
    when all of this has happened:
    - All transfers that brought its chunk to its source, and in the given schedule finished at or
      before its start, have arrived.
    - All earlier transfers of its first link (by start, finish, row) are sent; the link is free.
    - The message w positions earlier on this link has arrived; w: `compute_link_windows`. With
      k = `max_released_at_once` > 0, message n (from 0) also awaits message (n - 1) // k.
    Raises `InputError` (`schedule-acausal`) if transfers wait for one another in a cycle.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.schedules.retiming import find_waits_within_chunks, sort_by_group

    num_chunks = int(schedule.chunk.max(initial=0)) + 1
    waits = find_waits_within_chunks(
        sort_by_group(stable_order(schedule.start), schedule.chunk, num_chunks),
        schedule.chunk,
        schedule.source,
        schedule.destination,
        schedule.start,
        schedule.finish,
        schedule.network.num_nodes,
    )
    by_finish = stable_order(schedule.finish)
    rank = inverse(by_finish[stable_order(schedule.start[by_finish])])
    start, finish = compute_times(
        schedule.network, times, schedule.link, waits, rank, is_fixed=True
    )
    return replace(schedule, start=start, finish=finish)


def compute_times(
    network: LinkNetwork,
    times: LinkTimes,
    link: Int64Array,
    waits: tuple[Int64Array, Int64Array],
    rank: Int64Array,
    *,
    is_fixed: bool,
) -> tuple[Int64Array, Int64Array]:
    """Compute start and finish of every transfer in ps by an event simulation: int64 each.

    `link`: first link of the path of each transfer. `waits`: columns (transfer, dependent
    transfer); the dependent one can start only after the finish of all transfers on which it
    depends. `rank`: position of each transfer in an order without ties. An idle link sends the
    transfer with the smallest rank of those that can start. With `is_fixed`, each link sends its
    transfers strictly by ascending rank, and waits for a transfer that cannot start yet.

    A message occupies each link of its path for `times.busy` and is forwarded after
    `times.arrival`. It queues at switches. The start is that on the first link, the finish the
    arrival at the end of the path. Raises `InputError` (`schedule-acausal`) if transfers wait for
    one another; with `is_fixed`, also through their order on a link. Without transfers both arrays
    are empty.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.schedules.event_loop import InstantQueue, run

    # The state of all transfers before the first event.
    count = len(link)
    paths, _ = get_links_of_arcs(network, times)
    child_indptr, child = csr(waits[0], waits[1], count)
    unmet = np.bincount(waits[1], minlength=count).astype(np.int64)
    queues, ready = _build_queues(network, times, link, unmet, rank, is_fixed)
    jobs = Jobs(
        arc=link,
        unmet=unmet,
        child_indptr=child_indptr,
        child=child,
        rank=rank,
        start=_fill(count, -1),
        finish=_fill(count, -1),
        hop=_fill(count, 0),
        following=_fill(count, -1),
        path_indptr=paths.indptr,
        path=paths.links,
    )
    # At most one arrival per transfer and one release per link are planned at a time.
    links = len(queues.busy)
    size = count + links + 1
    heap = (_fill(size, 0), _fill(size, 0), _fill(size, 0))
    table = _fill(min(_MAX_TABLE_SIZE, 1 << size.bit_length()), 0)
    lines = (_fill(size, -1), _fill(size, 0), _fill(size, 0))
    following = _fill(2 * max(count, links), -1)
    counter = np.asarray([0, 0, 0, ready, 0, size], np.int64)
    events = InstantQueue(*heap, table, *lines, following, np.arange(size), counter)
    while run(jobs, queues, events, is_fixed, _EVENTS_PER_CALL) < count:
        # There is no event and no link that may send, but not all transfers are done.
        is_stuck = not (events.counter[0] or events.counter[3])
        if is_stuck:
            raise InputError(
                "transfers that wait for one another cannot be timed", code="schedule-acausal"
            )
    return jobs.start, jobs.finish


def _build_queues(
    network: LinkNetwork,
    times: LinkTimes,
    link: Int64Array,
    unmet: Int64Array,
    rank: Int64Array,
    is_fixed: bool,
) -> tuple[SenderQueues, int]:
    """Return the state of all links before the first event, and the number of links that may send.

    An arc is a connection over one or more links. A transfer waits at the first link of its arc.
    `link`: arc of each transfer. `unmet`: number of transfers for which each transfer must wait.
    `rank`: position of each transfer in one order of all transfers, without ties.

    - With `is_fixed`, the transfers of a first link are sorted by ascending `rank`. All of them
      count as available, also with unmet dependencies.
    - Otherwise the transfers of an arc are sorted by ascending `rank`. Only those with 0 in
      `unmet` are available.

    All links are idle. A link may send if it has an available transfer. The column `touched`
    begins with these links, ascending.
    """
    from collhub_tacos.schedules.retiming import sort_by_group

    paths, single = get_links_of_arcs(network, times)
    links = len(single.busy)
    first = paths.links[paths.indptr[link]]
    # Transfers are grouped by link if the order is fixed, else by arc.
    waiting = sort_by_group(
        inverse(rank), *((first, links) if is_fixed else (link, network.num_links))
    )
    available = first if is_fixed else first[unmet == 0]
    number = np.bincount(available, minlength=links).astype(np.int64)
    arc_begin = group_pointer(link, network.num_links)
    used = np.flatnonzero(np.diff(arc_begin))
    arcs_indptr, arcs = csr(paths.links[paths.indptr[used]], used, links)
    # The window of an arc applies to its first link. Other links forward messages in the order of
    # arrival, so their window of 1 has no effect.
    window = np.ones(links, np.int64)
    window[paths.links[paths.indptr[:-1]]] = compute_link_windows(network, times)
    ready = np.flatnonzero(number)
    touched = _fill(links, 0)
    # All of them choose a message at time 0.
    touched[: len(ready)] = ready
    queues = SenderQueues(
        busy=single.busy,
        arrival=single.arrival,
        is_busy=np.zeros(links, np.bool_),
        first=_fill(links, -1),
        last=_fill(links, -1),
        expected=_fill(links, 0),
        begin=group_pointer(first, links),
        number=number,
        waiting=waiting,
        gone=_fill(len(link), -1),
        sent=_fill(links, 0),
        arrived=_fill(links, 0),
        window=window,
        at_once=_fill(links, max_released_at_once(network, times.rule)),
        is_touched=number > 0,
        touched=touched,
        arc_begin=arc_begin,
        head=arc_begin[:-1].copy(),
        place=inverse(waiting),
        arcs_indptr=arcs_indptr,
        arcs=arcs,
    )
    return queues, len(ready)


def _fill(count: int, value: int) -> Int64Array:
    """Return an int64 array of `count` entries of the value `value`."""
    return np.full(count, value, np.int64)
