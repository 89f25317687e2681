"""Compiled discrete-event loop that determines when transfers start and arrive.

Algorithm: events are processed by (time, sequence number), as in the hub's simulator, but in
picoseconds. The binary heap contains instants rather than events because many messages arrive at
the same instant. A free link sends its next message. A message that arrives continues on its path
or releases the transfers that depend on it. Messages at a switch queue in order of arrival. The
order in which a sender sends is either fixed or chosen: the message with the shortest expected
delay at switches, and among these the chunk with the longest remaining path (Andrews et al.,
JACM 48, 2001). All messages of an arc have the same expected delay, so only the first message of
every arc of the sender is examined.

Invariant: at every instant all arrivals are processed before a sender chooses, so the choice does
not depend on their order. Cost: O(log n) per event, with one event per link of a path and one per
release, and one examination of all arcs of the sender per choice.

The kernels are in one file because numba's disk cache does not detect changes in other files.
Import this module inside functions: numba takes a second to import.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_packing.compiling import inlined, lean_kernel, lean_part

from collhub_tacos.schedules.timing import Jobs, SenderQueues
from hub_core.columns import Int64Array

Integer = int | np.int64


class InstantQueue(NamedTuple):
    """Future events, int64: a list (line) of events per instant, and a binary heap of the lines.

    The heap entries are sorted by (`time`, `sequence`); `line` is the line of an entry. `line_at`:
    hash table from an instant to the line that was started last with this hash. `line_time`:
    instant of a line, -1 for an unused line; `first`, `last`: its first and last event;
    `following`: the next event in the line. `free`: unused lines. An event is 2 * transfer for an
    arrival and 2 * link + 1 for a link that becomes free; each is at most once in the queue.
    `counter`: size of the heap, next sequence number, current time, number of touched links,
    number of finished transfers, number of unused lines.
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


# Indices of `InstantQueue.counter`.
_SIZE, _NEXT, _NOW, _TOUCHED, _DONE, _FREE = 0, 1, 2, 3, 4, 5
# Multiplicative hashing (Knuth, volume 3, section 6.4): an odd number near 2**32 / golden ratio.
_SPREAD, _SHIFT = 0x9E3779B1, 20


@lean_part
def _add_event(events: InstantQueue, time: Integer, item: Integer) -> None:
    """Append an event to the queue, to occur at `time` (ps), after earlier ones of that instant.

    `item`: 2 * transfer for an arrival, 2 * link + 1 for a link that becomes free. The events of
    one instant form a list (line), which a hash table finds. If another instant has replaced the
    line in the table, a second line is started for the same instant. It has a larger sequence
    number, so events are still processed in the order of insertion.
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
def _take_next_event(events: InstantQueue) -> Integer:
    """Remove and return the earliest event; events of one instant leave in order of insertion.

    There must be an event. The result is 2 * transfer for an arrival, 2 * link + 1 for a link that
    becomes free. It is the front of the first list (line, the events of one instant) in the heap. A
    line that becomes empty is removed from the heap and can be reused.
    """
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
def _push(events: InstantQueue, time: Integer, line: Integer) -> None:
    """Insert a line, which is a queue of the events of one instant, into the heap.

    `time`: the instant in ps. The line gets the next sequence number, so that of several lines with
    one time the first inserted one leaves the heap first.
    """
    times, sequences, lines, counter = events.time, events.sequence, events.line, events.counter
    hole = counter[_SIZE]
    sequence = counter[_NEXT]  # Lines of one instant occur in the order in which they were started.
    counter[_SIZE] += 1
    counter[_NEXT] += 1
    # Among equal times the new entry stays below because its sequence number is the largest.
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
def _pop(events: InstantQueue) -> None:
    """Remove the line of the earliest instant from the heap, which must not be empty.

    Of several lines with this time, the one that was inserted first is removed. Nothing is
    returned: the caller reads the line before.
    """
    times, sequences, lines, counter = events.time, events.sequence, events.line, events.counter
    counter[_SIZE] -= 1
    size = counter[_SIZE]
    # The last entry moves to the top and sinks to its new position.
    time, sequence, line = times[size], sequences[size], lines[size]
    hole, child = 0, 1
    while child < size:
        other = child + 1
        if other < size and _is_before(times, sequences, other, child):
            child = other
        is_equal_time = time == times[child]
        if time < times[child] or (is_equal_time and sequence < sequences[child]):
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
    """Return whether heap entry `one` precedes entry `other`: by time, then by sequence number."""
    if times[one] != times[other]:
        return bool(times[one] < times[other])
    return bool(sequences[one] < sequences[other])


@lean_part
def _transmit(link: Integer, transfer: Integer, queues: SenderQueues, events: InstantQueue) -> None:
    """Start to send message `transfer` over the idle link, which becomes busy now.

    Adds two events: the arrival after the link's `arrival` ps, and the release after `busy` ps.
    """
    now = events.counter[_NOW]
    queues.is_busy[link] = True
    _add_event(events, now + queues.arrival[link], 2 * transfer)
    _add_event(events, now + queues.busy[link], 2 * link + 1)


@inlined
def _arrive(
    transfer: Integer, jobs: Jobs, queues: SenderQueues, events: InstantQueue, is_fixed: bool
) -> None:
    """Forward a message to the next link of its path or, at the end of the path, complete it.

    `jobs.hop` of the transfer increases by 1. On completion:

    1. The transfer gets the current time (`events.counter`) as finish time, and the number of
       finished messages increases by 1.
    2. The number of messages in flight of the first link decreases. The link may then send again if
       its window (limit of messages in flight) was full.
    3. Every transfer that waited only for this one becomes available to its first link, in the
       order of the children, and that link may send.

    `is_fixed`: each link sends its transfers in a fixed order, so available ones are already in its
    queue. Changes `jobs`, `queues` and `events`.
    """
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
    # The arrival may open the window of the first link.
    _let_send(link, jobs, queues, events, is_fixed)
    for edge in range(jobs.child_indptr[transfer], jobs.child_indptr[transfer + 1]):
        child = jobs.child[edge]
        jobs.unmet[child] -= 1
        if jobs.unmet[child] == 0:
            sender = _make_ready(child, jobs, queues, is_fixed)
            _let_send(sender, jobs, queues, events, is_fixed)


@inlined
def _count_arrived(link: Integer, jobs: Jobs, queues: SenderQueues) -> None:
    """Update `queues.arrived[link]`, the number of the link's messages before the first in flight.

    Messages with the same first link may overtake each other, because their paths have different
    lengths.
    """
    first = queues.begin[link]
    arrived = queues.arrived[link]
    while arrived < queues.sent[link] and jobs.finish[queues.gone[first + arrived]] >= 0:
        arrived += 1
    queues.arrived[link] = arrived


@inlined
def _make_ready(transfer: Integer, jobs: Jobs, queues: SenderQueues, is_fixed: bool) -> Integer:
    """Make a transfer whose dependencies are met available to its sender; return its first link.

    With `is_fixed` the state is unchanged, because the transfer is already in the queue of the
    link. Otherwise the number of available transfers of the link increases by 1, and the search
    position (`head`) of its arc moves back to the transfer if it is after it.
    """
    arc = jobs.arc[transfer]
    link: Integer = jobs.path[jobs.path_indptr[arc]]
    # If the order is fixed, the transfer is already in the queue.
    if not is_fixed:
        queues.head[arc] = min(queues.head[arc], queues.place[transfer])
        queues.number[link] += 1
    return link


@inlined
def _forward(
    link: Integer, transfer: Integer, jobs: Jobs, queues: SenderQueues, events: InstantQueue
) -> None:
    """Send a message from a switch over `link`, or queue it if the link is busy.

    Queued messages of a link are sent in the order in which they arrived. Changes `queues`, and
    `jobs` (the queue is a linked list through all transfers) or `events`.
    """
    if not queues.is_busy[link]:
        _transmit(link, transfer, queues, events)
    elif queues.first[link] < 0:
        queues.first[link] = queues.last[link] = transfer
    else:
        # A linked list through all transfers needs no capacity per queue.
        jobs.following[queues.last[link]] = transfer
        queues.last[link] = transfer


@inlined
def _release(
    link: Integer, jobs: Jobs, queues: SenderQueues, events: InstantQueue, is_fixed: bool
) -> None:
    """Mark a link as free, and start the next message on it.

    Messages that wait at a switch for this link come first, in the order of their arrival. If there
    are none, the sender may send a new message.
    """
    queues.is_busy[link] = False
    transfer = queues.first[link]
    if transfer >= 0:
        # Messages that pass the switch have priority over new messages of the sender.
        queues.first[link] = jobs.following[transfer]
        jobs.following[transfer] = -1
        _transmit(link, transfer, queues, events)
    else:
        _let_send(link, jobs, queues, events, is_fixed)


@inlined
def _let_send(
    link: Integer, jobs: Jobs, queues: SenderQueues, events: InstantQueue, is_fixed: bool
) -> None:
    """Let a sender send: at once, as simulators do, or at the end of the current instant.

    The sender waits for the end of the instant if its order is not fixed and its window is 1.
    """
    if is_fixed or queues.window[link] > 1:
        _send(link, jobs, queues, events, is_fixed)
    # With a window of 1 the sender can wait for all arrivals of this instant before it chooses.
    elif not queues.is_touched[link]:
        queues.is_touched[link] = True
        queues.touched[events.counter[_TOUCHED]] = link
        events.counter[_TOUCHED] += 1


@inlined
def _send(
    link: Integer, jobs: Jobs, queues: SenderQueues, events: InstantQueue, is_fixed: bool
) -> None:
    """Start the next message of a link at the current time, if that is possible.

    Nothing happens if the link is busy, its window is closed (`_is_open`), or no message can be
    sent. With `is_fixed`, the message is the next one in the link's order; it is not sent while it
    waits for others. Otherwise it is the available one with the shortest expected delay
    (`_take_best`).

    The start of the message is set, it is recorded as sent, and the links of its path are reserved.
    The link becomes busy, and the events of arrival and release are added (`_transmit`).
    """
    if queues.is_busy[link] or not _is_open(link, queues):
        return
    now = events.counter[_NOW]
    transfer = (
        _next_in_order(link, jobs, queues) if is_fixed else _take_best(link, jobs, queues, now)
    )
    if transfer < 0:
        return
    turn = queues.sent[link]
    jobs.start[transfer] = now
    queues.gone[queues.begin[link] + turn] = transfer
    queues.sent[link] = turn + 1
    _reserve_links(transfer, jobs, queues, now)
    _transmit(link, transfer, queues, events)


@inlined
def _is_open(link: Integer, queues: SenderQueues) -> bool:
    """Return whether the window of a link is open, so that it may send its next message.

    The message `window` positions earlier must have arrived. With `at_once` > 0, message n also
    waits for message (n - 1) // `at_once`. The rule is that of `link_schedule.compute_windows`.
    """
    turn = queues.sent[link]
    earlier = turn - queues.window[link]
    at_once = queues.at_once[link]
    if at_once > 0:
        earlier = max(earlier, (turn - 1) // at_once)
    return bool(queues.arrived[link] >= min(turn, earlier + 1))


@lean_part
def _expected_delay(arc: Integer, jobs: Jobs, queues: SenderQueues, now: Integer) -> Integer:
    """Return the expected waiting time at switches, in ps, of a message that is sent now.

    It is the sum over all links of the path except the first. The message reaches such a link after
    the arrival times of the links before it and its waits there, and waits until the link is
    expected to be free (`queues.expected`). 0 for an arc of one link.
    """
    first = jobs.path_indptr[arc]
    time: Integer = now
    delay: Integer = 0
    for position in range(first + 1, jobs.path_indptr[arc + 1]):
        time += queues.arrival[jobs.path[position - 1]]
        # A link that is free by then causes no delay.
        waiting = queues.expected[jobs.path[position]] - time
        if waiting > 0:
            delay += waiting
            time += waiting
    return delay


@inlined
def _reserve_links(transfer: Integer, jobs: Jobs, queues: SenderQueues, now: Integer) -> None:
    """Record until when a message is expected to use each link of its path but the first.

    The message uses a link for its busy time, from its expected arrival there or, if that is later,
    from the time at which earlier messages are expected to have left the link. `queues.expected` is
    changed; times are in ps.
    """
    arc = jobs.arc[transfer]
    time: Integer = now
    for position in range(jobs.path_indptr[arc] + 1, jobs.path_indptr[arc + 1]):
        link = jobs.path[position]
        reached = time + queues.arrival[jobs.path[position - 1]]
        # The message queues after all messages that were sent earlier.
        time = max(reached, queues.expected[link])
        queues.expected[link] = time + queues.busy[link]


@lean_part
def _take_best(link: Integer, jobs: Jobs, queues: SenderQueues, now: Integer) -> Integer:
    """Choose the message that `link` sends next, by shortest expected delay; return its transfer.

    A transfer is available if its dependencies are met and it has not been sent. The candidates are
    the available transfers of smallest rank (`jobs.rank`, the priority) of each arc that begins
    with `link`. The delay is the waiting time at later links of the arc, for a message sent at
    `now` (both in ps). Of equal delays, the candidate with the smallest rank is chosen; of equal
    ranks, that of the first arc.

    - `queues.number[link]`, the number of available messages, is 0: returns -1, changes nothing.
    - Otherwise: the number is decreased by 1, and heads of arcs advance past unavailable transfers.
      The chosen transfer itself stays in its queue. Returns -1 if no arc has a candidate.
    """
    best: Integer = -1
    if queues.number[link] == 0:
        return best
    least_rank: Integer = 0
    least_delay: Integer = 0
    for place in range(queues.arcs_indptr[link], queues.arcs_indptr[link + 1]):
        arc = queues.arcs[place]
        transfer = _first_available(arc, jobs, queues)
        if transfer < 0:
            continue
        rank = jobs.rank[transfer]
        # No delay is shorter than 0, so only a smaller rank could be better.
        if best >= 0 and least_delay == 0 and rank > least_rank:
            continue
        delay = _expected_delay(arc, jobs, queues, now)
        is_first = delay == least_delay and rank < least_rank
        if best < 0 or delay < least_delay or is_first:
            best, least_rank, least_delay = transfer, rank, delay
    queues.number[link] -= 1
    return best


@inlined
def _first_available(arc: Integer, jobs: Jobs, queues: SenderQueues) -> Integer:
    """Return the available transfer of an arc with the smallest rank, -1 if there is none.

    The rank of a transfer is its priority (`jobs.rank`). A transfer is available if it has no
    unmet dependencies and has not been sent. The transfers of the arc are examined by ascending
    rank from `queues.head[arc]` on. This entry is increased past those that are not available, so
    the caller must reset it when one of them becomes available.
    """
    end = queues.arc_begin[arc + 1]
    while queues.head[arc] < end:
        transfer: Integer = queues.waiting[queues.head[arc]]
        # It has no unmet dependencies and has not been sent.
        if jobs.unmet[transfer] == 0 and jobs.start[transfer] < 0:
            return transfer
        queues.head[arc] += 1
    return np.int64(-1)


@inlined
def _next_in_order(link: Integer, jobs: Jobs, queues: SenderQueues) -> Integer:
    """Return the next transfer of a link in its fixed order, without removing it.

    -1 if all transfers are sent, or if the next one waits for others, because later ones must not
    overtake it.
    """
    turn = queues.sent[link]
    if turn == queues.number[link]:
        return -1
    transfer: Integer = queues.waiting[queues.begin[link] + turn]
    return transfer if jobs.unmet[transfer] == 0 else -1


@lean_kernel
def run(
    jobs: Jobs, queues: SenderQueues, events: InstantQueue, is_fixed: bool, budget: Integer
) -> Integer:
    """Process events until none remains or `budget` is used up; return the finished transfers.

    The result is the number of finished transfers since the start of the simulation. `budget`:
    number of events, which may be exceeded because all events of one instant are processed
    together. `is_fixed`: every link sends in the order of `queues.waiting`. The links in
    `queues.touched` may send at the start.
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
        # All events of this instant are processed before any sender chooses a message.
        while counter[_SIZE] > 0 and events.time[0] == counter[_NOW]:
            item = _take_next_event(events)
            budget -= 1
            if item & 1:
                _release(item >> 1, jobs, queues, events, is_fixed)
            else:
                _arrive(item >> 1, jobs, queues, events, is_fixed)
    done: Integer = counter[_DONE]
    return done
