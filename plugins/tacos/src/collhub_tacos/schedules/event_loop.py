"""Compiled order of transfers in time: links send what is most urgent, switches forward.

Algorithm: a discrete-event loop by (time, sequence number), that of the hub's simulator in
picoseconds, over a binary heap of instants, since many messages arrive in one: a link that is free
sends, a message that arrives goes on over its path or releases what waits for it, messages wait in
line at a switch in order of arrival. What a sender sends next is either fixed, or chosen: the chunk
that has farthest to go (Andrews et al., JACM 48, 2001), at switches first the one that waits least
on its way. All of one arc wait alike, so that the first of every arc of the sender is looked at.

Invariant: at every instant all arrivals of that instant are processed before a sender chooses, so
that the choice does not depend on their order. Cost: O(log n) per event, one event per link of a
path and one per release, and a look at all arcs of the sender per choice.

All in one file, because numba's cache looks at no other. Import it late: numba takes a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_packing.compiling import inlined, lean_kernel, lean_part

from collhub_tacos.schedules.event_records import Jobs, SenderQueues
from hub_core.columns import Int64Array

Integer = int | np.int64


class EventQueue(NamedTuple):
    """Events to come, int64: those of one instant in a line, the lines in a binary heap.

    The heap goes by (`time`, `sequence`), `line`: that of an entry. `line_at`: a table by hash of
    the instant, the line that was begun last of those that fall on a place. `line_time`: instant of
    a line, -1 for none; `first`, `last`: its ends; `following`: the next event behind each.
    `free`: lines without events. An event is 2 * transfer for an arrival, 2 * link + 1 for a link
    that gets free; each is at most once in the queue. `counter`: size of the heap, next sequence
    number, the present time, number of touched links, transfers done, number of free lines.
    """

    time: Int64Array
    sequence: Int64Array
    line: Int64Array
    line_at: Int64Array
    line_time: Int64Array
    first: Int64Array
    last: Int64Array
    following: Int64Array
    free: Int64Array
    counter: Int64Array


# Places in `EventQueue.counter`.
_SIZE, _NEXT, _NOW, _TOUCHED, _DONE, _FREE = 0, 1, 2, 3, 4, 5
# Multiplicative hashing (Knuth, volume 3, section 6.4): an odd number near 2**32 / golden ratio.
_SPREAD, _SHIFT = 0x9E3779B1, 20


@lean_part
def _plan(events: EventQueue, time: Integer, item: Integer) -> None:
    """Put an event behind all others of its instant.

    A line that the table has lost to another instant is older than the one that is begun in its
    place, and has the smaller sequence number: order of arrival is kept all the same.
    """
    place = ((time * _SPREAD) >> _SHIFT) & (len(events.line_at) - 1)
    line = events.line_at[place]
    if events.line_time[line] == time:
        events.following[events.last[line]] = item
    else:
        events.counter[_FREE] -= 1
        line = events.free[events.counter[_FREE]]
        events.line_at[place] = line
        events.line_time[line] = time
        events.first[line] = item
        _push(events, time, line)
    events.last[line] = item
    events.following[item] = -1


@lean_part
def _next_event(events: EventQueue) -> Integer:
    """Take the earliest event out."""
    line = events.line[0]
    item: Integer = events.first[line]
    events.first[line] = events.following[item]
    if events.first[line] < 0:
        _pop(events)
        events.line_time[line] = -1
        events.free[events.counter[_FREE]] = line
        events.counter[_FREE] += 1
    return item


@inlined
def _push(events: EventQueue, time: Integer, line: Integer) -> None:
    """Put a line on the heap."""
    times, sequences, lines, counter = events.time, events.sequence, events.line, events.counter
    hole = counter[_SIZE]
    sequence = counter[_NEXT]  # of one instant, what was planned first happens first
    counter[_SIZE] += 1
    counter[_NEXT] += 1
    # The newest of equal times stays below: it has the largest sequence number.
    while hole > 0 and times[(hole - 1) >> 1] > time:
        parent = (hole - 1) >> 1
        times[hole] = times[parent]
        sequences[hole] = sequences[parent]
        lines[hole] = lines[parent]
        hole = parent
    times[hole] = time
    sequences[hole] = sequence
    lines[hole] = line


@inlined
def _pop(events: EventQueue) -> None:
    """Take the line of the earliest instant off the heap."""
    times, sequences, lines, counter = events.time, events.sequence, events.line, events.counter
    counter[_SIZE] -= 1
    size = counter[_SIZE]
    # The last line looks for a new place, from the top down.
    time, sequence, line = times[size], sequences[size], lines[size]
    hole, child = 0, 1
    while child < size:
        other = child + 1
        if other < size and _is_before(times, sequences, other, child):
            child = other
        is_equal = time == times[child]
        if time < times[child] or (is_equal and sequence < sequences[child]):
            break
        times[hole] = times[child]
        sequences[hole] = sequences[child]
        lines[hole] = lines[child]
        hole, child = child, 2 * child + 1
    times[hole] = time
    sequences[hole] = sequence
    lines[hole] = line


@inlined
def _is_before(times: Int64Array, sequences: Int64Array, one: Integer, other: Integer) -> bool:
    """Whether the line at one place of the heap comes before that at another."""
    if times[one] != times[other]:
        return bool(times[one] < times[other])
    return bool(sequences[one] < sequences[other])


@lean_part
def _transmit(link: Integer, transfer: Integer, queues: SenderQueues, events: EventQueue) -> None:
    """Put a message on a free link."""
    now = events.counter[_NOW]
    queues.is_busy[link] = True
    _plan(events, now + queues.arrival[link], 2 * transfer)
    _plan(events, now + queues.busy[link], 2 * link + 1)


@inlined
def _arrive(
    transfer: Integer, jobs: Jobs, queues: SenderQueues, events: EventQueue, is_fixed: bool
) -> None:
    """Pass a message on to the next link of its path, or release what waits for it."""
    arc = jobs.arc[transfer]
    jobs.hop[transfer] += 1
    position = jobs.path_indptr[arc] + jobs.hop[transfer]
    if position < jobs.path_indptr[arc + 1]:
        _forward(jobs.path[position], transfer, jobs, queues, events)
        return
    jobs.finish[transfer] = events.counter[_NOW]
    events.counter[_DONE] += 1
    link = jobs.path[jobs.path_indptr[arc]]
    _count_arrived(link, jobs, queues)
    # The window of the first link may be open again.
    _attend(link, jobs, queues, events, is_fixed)
    for edge in range(jobs.child_indptr[transfer], jobs.child_indptr[transfer + 1]):
        child = jobs.child[edge]
        jobs.unmet[child] -= 1
        if jobs.unmet[child] == 0:
            sender = _make_ready(child, jobs, queues, is_fixed)
            _attend(sender, jobs, queues, events, is_fixed)


@inlined
def _count_arrived(link: Integer, jobs: Jobs, queues: SenderQueues) -> None:
    """Count the messages of a link of which all before have arrived, too.

    Paths of one first link differ in length, so that messages may overtake one another.
    """
    first = queues.begin[link]
    # Up to the first that is still on its way.
    arrived = queues.arrived[link]
    while arrived < queues.sent[link] and jobs.finish[queues.gone[first + arrived]] >= 0:
        arrived += 1
    queues.arrived[link] = arrived


@inlined
def _make_ready(transfer: Integer, jobs: Jobs, queues: SenderQueues, is_fixed: bool) -> Integer:
    """Show its sender a transfer that waits for nothing more; return the link of the sender."""
    arc = jobs.arc[transfer]
    link: Integer = jobs.path[jobs.path_indptr[arc]]
    # In a fixed order it stands in line already.
    if not is_fixed:
        queues.head[arc] = min(queues.head[arc], queues.place[transfer])
        queues.number[link] += 1
    return link


@inlined
def _forward(
    link: Integer, transfer: Integer, jobs: Jobs, queues: SenderQueues, events: EventQueue
) -> None:
    """Let a switch send a message on, or put it in line."""
    if not queues.is_busy[link]:
        _transmit(link, transfer, queues, events)
    elif queues.first[link] < 0:
        queues.first[link] = queues.last[link] = transfer
    else:
        # A linked list: no line is longer than all transfers together.
        jobs.following[queues.last[link]] = transfer
        queues.last[link] = transfer


@inlined
def _release(
    link: Integer, jobs: Jobs, queues: SenderQueues, events: EventQueue, is_fixed: bool
) -> None:
    """Let the next message in line, or else the sender, use a link that got free."""
    queues.is_busy[link] = False
    transfer = queues.first[link]
    if transfer >= 0:
        # What passes the switch goes before what its neighbour still has to send.
        queues.first[link] = jobs.following[transfer]
        jobs.following[transfer] = -1
        _transmit(link, transfer, queues, events)
    else:
        _attend(link, jobs, queues, events, is_fixed)


@inlined
def _attend(
    link: Integer, jobs: Jobs, queues: SenderQueues, events: EventQueue, is_fixed: bool
) -> None:
    """Let a sender send: at once in a fixed order, as simulators do, else at the end of now."""
    if is_fixed or queues.window[link] > 1:
        _send(link, jobs, queues, events, is_fixed)
    # With a window of one there is time for all that arrives now.
    elif not queues.is_touched[link]:
        queues.is_touched[link] = True
        queues.touched[events.counter[_TOUCHED]] = link
        events.counter[_TOUCHED] += 1


@inlined
def _send(
    link: Integer, jobs: Jobs, queues: SenderQueues, events: EventQueue, is_fixed: bool
) -> None:
    """Start the next message of a link, if the link is free, its window open and there is one."""
    if queues.is_busy[link] or not _is_open(link, queues):
        return
    now = events.counter[_NOW]
    transfer = _next_in_order(link, jobs, queues) if is_fixed else _choice(link, jobs, queues, now)
    if transfer < 0:
        return
    turn = queues.sent[link]
    jobs.start[transfer] = now
    queues.gone[queues.begin[link] + turn] = transfer
    queues.sent[link] = turn + 1
    _book(transfer, jobs, queues, now)
    _transmit(link, transfer, queues, events)


@inlined
def _is_open(link: Integer, queues: SenderQueues) -> bool:
    """Whether what the next message of a link waits for, by `windows.windows`, has arrived."""
    turn = queues.sent[link]
    earlier = turn - queues.window[link]
    at_once = queues.at_once[link]
    if at_once > 0:
        earlier = max(earlier, (turn - 1) // at_once)
    return bool(queues.arrived[link] >= min(turn, earlier + 1))


@lean_part
def _delay(arc: Integer, jobs: Jobs, queues: SenderQueues, now: Integer) -> Integer:
    """How long a message that is sent now is expected to wait at switches."""
    first = jobs.path_indptr[arc]
    time: Integer = now
    delay: Integer = 0
    for position in range(first + 1, jobs.path_indptr[arc + 1]):
        time += queues.arrival[jobs.path[position - 1]]
        # A link that is free by then delays nothing.
        waiting = queues.expected[jobs.path[position]] - time
        if waiting > 0:
            delay += waiting
            time += waiting
    return delay


@inlined
def _book(transfer: Integer, jobs: Jobs, queues: SenderQueues, now: Integer) -> None:
    """Note on all links behind the first one until when a message is expected to use them."""
    arc = jobs.arc[transfer]
    time: Integer = now
    for position in range(jobs.path_indptr[arc] + 1, jobs.path_indptr[arc + 1]):
        link = jobs.path[position]
        reached = time + queues.arrival[jobs.path[position - 1]]
        # It stands in line behind all that was sent before.
        time = max(reached, queues.expected[link])
        queues.expected[link] = time + queues.busy[link]


@lean_part
def _choice(link: Integer, jobs: Jobs, queues: SenderQueues, now: Integer) -> Integer:
    """Take out what waits least on its way, of these the smallest rank; -1 for nothing."""
    best: Integer = -1
    if queues.number[link] == 0:
        return best
    least_rank: Integer = 0
    least_delay: Integer = 0
    for place in range(queues.arcs_indptr[link], queues.arcs_indptr[link + 1]):
        arc = queues.arcs[place]
        transfer = _first_at_hand(arc, jobs, queues)
        if transfer < 0:
            continue
        rank = jobs.rank[transfer]
        # Nothing waits less than not at all, so that only the rank could win.
        if best >= 0 and least_delay == 0 and rank > least_rank:
            continue
        delay = _delay(arc, jobs, queues, now)
        is_first = delay == least_delay and rank < least_rank
        if best < 0 or delay < least_delay or is_first:
            best, least_rank, least_delay = transfer, rank, delay
    queues.number[link] -= 1
    return best


@inlined
def _first_at_hand(arc: Integer, jobs: Jobs, queues: SenderQueues) -> Integer:
    """The transfer of an arc of the smallest rank that could be sent, -1 for none."""
    end = queues.arc_begin[arc + 1]
    while queues.head[arc] < end:
        transfer: Integer = queues.waiting[queues.head[arc]]
        # Neither does it wait for others, nor is it sent.
        if jobs.unmet[transfer] == 0 and jobs.start[transfer] < 0:
            return transfer
        queues.head[arc] += 1
    return np.int64(-1)


@inlined
def _next_in_order(link: Integer, jobs: Jobs, queues: SenderQueues) -> Integer:
    """The next transfer of a link in a fixed order, -1 where it still waits for others."""
    place = queues.sent[link]
    if place == queues.number[link]:
        return -1  # all of the link are sent
    transfer: Integer = queues.waiting[queues.begin[link] + place]
    return transfer if jobs.unmet[transfer] == 0 else -1


@lean_kernel
def run(
    jobs: Jobs, queues: SenderQueues, events: EventQueue, is_fixed: bool, budget: Integer
) -> Integer:
    """Send until nothing is left or `budget` events have happened; return the transfers done.

    `is_fixed`: every link sends in the order of `queues.waiting`, each transfer as soon as it can.
    The first `events.counter[3]` links of `queues.touched` are ready to send.
    """
    counter = events.counter
    while budget > 0:
        for place in range(counter[_TOUCHED]):
            queues.is_touched[queues.touched[place]] = False
            _send(queues.touched[place], jobs, queues, events, is_fixed)
        counter[_TOUCHED] = 0
        if counter[_SIZE] == 0:
            break
        counter[_NOW] = events.time[0]
        # All that happens in one instant, before anybody chooses what to send.
        while counter[_SIZE] > 0 and events.time[0] == counter[_NOW]:
            item = _next_event(events)
            budget -= 1
            if item & 1:
                _release(item >> 1, jobs, queues, events, is_fixed)
            else:
                _arrive(item >> 1, jobs, queues, events, is_fixed)
    done: Integer = counter[_DONE]
    return done
