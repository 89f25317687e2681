"""Compiled order of transfers in time: every link sends the most urgent chunk at hand; switches store and forward.

The event loop is that of the hub's simulator, in picoseconds: messages wait in line at a switch, in order of arrival. All in
one file, because numba's cache looks at no other. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collhub_tacos.compiling import kernel, part

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Integer = int | np.int64


class Jobs(NamedTuple):
    """What is to be sent, int64 per transfer unless said otherwise.

    `arc`: its arc. `unmet`: transfers that must have arrived before. `child_indptr`, `child`: who waits for it, as CSR.
    `rank`: smaller goes first. `start`, `finish`: results in picoseconds, -1 before. `hop`: where on its path it is.
    `following`: the next one in a line at a switch, -1 for none. `path_indptr`, `path`: the links of every arc.
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


class LinkQueues(NamedTuple):
    """Links and what waits for them, int64 per link unless said otherwise.

    `busy`, `arrival`: times of one message. `is_busy`: bool. `first`, `last`: the line at a switch. `expected`: when the
    messages that were sent so far will have left it. `waiting[begin[l]:begin[l] + number[l]]`: what its sender could
    send; where the order is fixed, all that it will send, in order. `gone[begin[l]:begin[l] + sent[l]]`: what it has
    sent, of which the first `arrived[l]` have arrived. `window`: how many may be on their way, `at_once`: how
    many may wait for the same one. `is_touched`: bool, `touched`: links that may begin to send.
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


class EventHeap(NamedTuple):
    """A binary heap by (time, sequence). `item`: 2 * transfer for an arrival, 2 * link + 1 for a link that gets free.

    `counter`: size of the heap, next sequence number, the present time, number of touched links, transfers done.
    """

    time: Int64Array
    sequence: Int64Array
    item: Int64Array
    counter: Int64Array


_SIZE, _NEXT, _NOW, _TOUCHED, _DONE = 0, 1, 2, 3, 4


@kernel
def remaining_times(parent: Int64Array, arrival: Int64Array) -> Int64Array:
    """Time from the start of every transfer to the arrival of the last one behind it; parents stand before children."""
    remaining = arrival.copy()
    for transfer in range(len(parent) - 1, -1, -1):
        before = parent[transfer]
        if before >= 0:
            remaining[before] = max(remaining[before], arrival[before] + remaining[transfer])
    return remaining


@part
def _push(events: EventHeap, time: Integer, item: Integer) -> None:
    times, sequences, items, counter = events
    hole = counter[_SIZE]
    sequence = counter[_NEXT]
    counter[_SIZE] += 1
    counter[_NEXT] += 1
    # The newest of equal times stays below: it has the largest sequence number.
    while hole > 0 and times[(hole - 1) >> 1] > time:
        parent = (hole - 1) >> 1
        times[hole], sequences[hole], items[hole] = times[parent], sequences[parent], items[parent]
        hole = parent
    times[hole], sequences[hole], items[hole] = time, sequence, item


@part
def _pop(events: EventHeap) -> Integer:
    times, sequences, items, counter = events
    top: Integer = items[0]
    counter[_SIZE] -= 1
    size = counter[_SIZE]
    time, sequence, item = times[size], sequences[size], items[size]
    hole, child = 0, 1
    while child < size:
        other = child + 1
        if other < size and (
            times[other] < times[child]
            or (times[other] == times[child] and sequences[other] < sequences[child])
        ):
            child = other
        if time < times[child] or (time == times[child] and sequence < sequences[child]):
            break
        times[hole], sequences[hole], items[hole] = times[child], sequences[child], items[child]
        hole, child = child, 2 * child + 1
    times[hole], sequences[hole], items[hole] = time, sequence, item
    return top


@part
def _transmit(link: Integer, transfer: Integer, lines: LinkQueues, events: EventHeap) -> None:
    now = events.counter[_NOW]
    lines.is_busy[link] = True
    _push(events, now + lines.arrival[link], 2 * transfer)
    _push(events, now + lines.busy[link], 2 * link + 1)


@part
def _arrive(
    transfer: Integer, jobs: Jobs, lines: LinkQueues, events: EventHeap, is_fixed: bool
) -> None:
    """Pass a message on to the next link of its path, or release what waits for it."""
    arc = jobs.arc[transfer]
    jobs.hop[transfer] += 1
    position = jobs.path_indptr[arc] + jobs.hop[transfer]
    if position < jobs.path_indptr[arc + 1]:
        _forward(jobs.path[position], transfer, jobs, lines, events)
        return
    jobs.finish[transfer] = events.counter[_NOW]
    events.counter[_DONE] += 1
    link = jobs.path[jobs.path_indptr[arc]]
    first = lines.begin[link]
    while (
        lines.arrived[link] < lines.sent[link]
        and jobs.finish[lines.gone[first + lines.arrived[link]]] >= 0
    ):
        lines.arrived[link] += 1
    _attend(link, jobs, lines, events, is_fixed)
    for edge in range(jobs.child_indptr[transfer], jobs.child_indptr[transfer + 1]):
        child = jobs.child[edge]
        jobs.unmet[child] -= 1
        if jobs.unmet[child] == 0:
            link = jobs.path[jobs.path_indptr[jobs.arc[child]]]
            if not is_fixed:
                lines.waiting[lines.begin[link] + lines.number[link]] = child
                lines.number[link] += 1
            _attend(link, jobs, lines, events, is_fixed)


@part
def _forward(
    link: Integer, transfer: Integer, jobs: Jobs, lines: LinkQueues, events: EventHeap
) -> None:
    if not lines.is_busy[link]:
        _transmit(link, transfer, lines, events)
    elif lines.first[link] < 0:
        lines.first[link] = lines.last[link] = transfer
    else:
        jobs.following[lines.last[link]] = transfer
        lines.last[link] = transfer


@part
def _release(
    link: Integer, jobs: Jobs, lines: LinkQueues, events: EventHeap, is_fixed: bool
) -> None:
    """Let the next message in line, or else the sender, use a link that got free."""
    lines.is_busy[link] = False
    transfer = lines.first[link]
    if transfer >= 0:
        lines.first[link] = jobs.following[transfer]
        jobs.following[transfer] = -1
        _transmit(link, transfer, lines, events)
    else:
        _attend(link, jobs, lines, events, is_fixed)


@part
def _attend(
    link: Integer, jobs: Jobs, lines: LinkQueues, events: EventHeap, is_fixed: bool
) -> None:
    """Let a sender send: at once where the order is fixed, as simulators do, else when all that is new now is known."""
    if is_fixed or lines.window[link] > 1:
        _send(link, jobs, lines, events, is_fixed)
    elif not lines.is_touched[link]:
        lines.is_touched[link] = True
        lines.touched[events.counter[_TOUCHED]] = link
        events.counter[_TOUCHED] += 1


@part
def _send(link: Integer, jobs: Jobs, lines: LinkQueues, events: EventHeap, is_fixed: bool) -> None:
    turn, begin = lines.sent[link], lines.begin[link]
    if lines.is_busy[link]:
        return
    if lines.arrived[link] < min(
        turn, max(turn - lines.window[link], (turn - 1) // lines.at_once[link]) + 1
    ):
        return
    now = events.counter[_NOW]
    transfer = _next_in_order(link, jobs, lines) if is_fixed else _choice(link, jobs, lines, now)
    if transfer < 0:
        return
    jobs.start[transfer] = now
    lines.gone[begin + turn] = transfer
    lines.sent[link] = turn + 1
    _book(transfer, jobs, lines, now)
    _transmit(link, transfer, lines, events)


@part
def _delay(transfer: Integer, jobs: Jobs, lines: LinkQueues, now: Integer) -> Integer:
    """How long a message that is sent now is expected to wait at switches."""
    arc = jobs.arc[transfer]
    first = jobs.path_indptr[arc]
    time: Integer = now
    delay: Integer = 0
    for position in range(first + 1, jobs.path_indptr[arc + 1]):
        time += lines.arrival[jobs.path[position - 1]]
        waiting = lines.expected[jobs.path[position]] - time
        if waiting > 0:
            delay += waiting
            time += waiting
    return delay


@part
def _book(transfer: Integer, jobs: Jobs, lines: LinkQueues, now: Integer) -> None:
    arc = jobs.arc[transfer]
    time: Integer = now
    for position in range(jobs.path_indptr[arc] + 1, jobs.path_indptr[arc + 1]):
        link = jobs.path[position]
        time = max(time + lines.arrival[jobs.path[position - 1]], lines.expected[link])
        lines.expected[link] = time + lines.busy[link]


@part
def _choice(link: Integer, jobs: Jobs, lines: LinkQueues, now: Integer) -> Integer:
    """Take out what a free link sends next: what waits least on its way, of these the smallest rank; -1 for nothing."""
    begin, count = lines.begin[link], lines.number[link]
    if count == 0:
        return -1
    best: Integer = -1
    least: Integer = 0
    for place in range(begin, begin + count):
        transfer = lines.waiting[place]
        if best >= 0 and least == 0 and jobs.rank[transfer] > jobs.rank[lines.waiting[best]]:
            continue
        delay = _delay(transfer, jobs, lines, now)
        if (
            best < 0
            or delay < least
            or (delay == least and jobs.rank[transfer] < jobs.rank[lines.waiting[best]])
        ):
            best, least = place, delay
    chosen: Integer = lines.waiting[best]
    lines.number[link] = count - 1
    lines.waiting[best] = lines.waiting[begin + count - 1]
    return chosen


@part
def _next_in_order(link: Integer, jobs: Jobs, lines: LinkQueues) -> Integer:
    place = lines.sent[link]
    if place == lines.number[link] or jobs.unmet[lines.waiting[lines.begin[link] + place]] > 0:
        return -1
    transfer: Integer = lines.waiting[lines.begin[link] + place]
    return transfer


@kernel
def run(
    jobs: Jobs, lines: LinkQueues, events: EventHeap, is_fixed: bool, budget: Integer
) -> Integer:
    """Send until nothing is left or `budget` events have happened; return the number of transfers that have arrived.

    `is_fixed`: every link sends in the order of `lines.waiting`, each transfer as soon as it can. The first
    `events.counter[3]` links of `lines.touched` are ready to send.
    """
    counter = events.counter
    while budget > 0:
        for place in range(counter[_TOUCHED]):
            lines.is_touched[lines.touched[place]] = False
            _send(lines.touched[place], jobs, lines, events, is_fixed)
        counter[_TOUCHED] = 0
        if counter[_SIZE] == 0:
            break
        counter[_NOW] = events.time[0]
        while counter[_SIZE] > 0 and events.time[0] == counter[_NOW]:
            item = _pop(events)
            budget -= 1
            if item & 1:
                _release(item >> 1, jobs, lines, events, is_fixed)
            else:
                _arrive(item >> 1, jobs, lines, events, is_fixed)
    done: Integer = counter[_DONE]
    return done
