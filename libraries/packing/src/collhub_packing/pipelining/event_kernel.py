"""List scheduling of pipelined trees on links, event by event in whole picoseconds, compiled.

Algorithm: greedy list scheduling (Graham 1966) as a discrete-event simulation. Every operation, a
message over one route, is repeated for every chunk of its stream. An event is a link that becomes
free or a message that arrives. All events of one instant happen before any link takes its next
message, and a free link takes the first of the messages that wait for it: those that a switch
passes on in the order of arrival, then by turn (the part of the tree's data that lies before the
chunk) less its urgency, then by number. Data that have arrived are sent on after the slack.
Invariant: a message waits in the line of exactly one link, or is on its way over one, or has
ended, or has unmet needs; a link that is free has an empty line between two instants. So the
schedule is deterministic, and whatever waits makes progress as long as the needs have no cycle.
Cost: two heap operations a message and link for the line, four for the two events: O(log n) each.

All stand in one file, because numba's cache notices changes only in the file of the function that
it compiles. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_columns import BoolArray, Int64Array, first_positions, group_of_entry

from collhub_packing.compiling import lean_kernel, lean_part

# Places in `PipelineState.counter`.
_EVENTS, _SEQUENCE = 0, 1
# A message that a switch passes on goes before all that wait for their first link, in the order
# of arrival: below every other key.
_FORWARDED = np.int64(-(1 << 62))


class PipelinePlan(NamedTuple):
    """What is to be sent; int64 arrays that are only read.

    Stream s has the operations `stream_operation[s]:stream_operation[s + 1]`, and the messages
    from `stream_message[s]` on: chunk by chunk, each with all operations. `turn`: per chunk of
    all streams, from `stream_chunk[s]` on. Of every operation: `urgency`, by how much it goes
    before its turn, `needs`, the number of operations of the same chunk that must have ended
    before, `next_operation[next_indptr[o]:next_indptr[o + 1]]`, who waits for it, and its links
    `route_link[route_indptr[o]:route_indptr[o + 1]]`. `busy`, `arrival`: picoseconds by size
    class and link, int64[classes, links]; `size_class`: by stream. `slack`: int64[1], picoseconds
    from the end of a message until others may follow it.
    """

    stream_operation: Int64Array
    stream_message: Int64Array
    stream_chunk: Int64Array
    turn: Int64Array
    urgency: Int64Array
    needs: Int64Array
    next_indptr: Int64Array
    next_operation: Int64Array
    route_indptr: Int64Array
    route_link: Int64Array
    size_class: Int64Array
    busy: Int64Array
    arrival: Int64Array
    slack: Int64Array


class PipelineState(NamedTuple):
    """How far the schedule is.

    Per message: `stream`, `unmet` needs, `hop`, `start` and `finish` (-1: not yet). The messages
    that wait for link l are a heap at `line_first[l]`, `line_size[l]` long; events are a heap by
    time. An event's item is the number of a link, or that of a message behind those of all links.
    `touched`: links whose line or freedom changed at this instant. `counter`: number of events in
    the heap, sequence number of the next message that a switch passes on.
    """

    stream: Int64Array
    unmet: Int64Array
    hop: Int64Array
    start: Int64Array
    finish: Int64Array
    line_first: Int64Array
    line_size: Int64Array
    line_key: Int64Array
    line_message: Int64Array
    event_time: Int64Array
    event_item: Int64Array
    is_free: BoolArray
    is_unused: BoolArray
    is_touched: BoolArray
    touched: Int64Array
    counter: Int64Array


def state_of(plan: PipelinePlan) -> PipelineState:
    """The state before the first message; every heap has room for all that can ever wait in it."""
    operations = np.diff(plan.stream_operation)
    chunks = np.diff(plan.stream_chunk)
    num_messages = int(plan.stream_message[-1])
    num_links = plan.busy.shape[1]
    line_length = _line_lengths(plan, np.repeat(chunks, operations), num_links)
    line_room = int(line_length.sum())
    # At most one event per link that is busy, and one per message on its way.
    event_room = num_messages + num_links
    return PipelineState(
        stream=group_of_entry(plan.stream_message),
        unmet=np.zeros(num_messages, np.int64),
        hop=np.zeros(num_messages, np.int64),
        start=_not_yet(num_messages),
        finish=_not_yet(num_messages),
        line_first=first_positions(line_length),
        line_size=np.zeros(num_links, np.int64),
        line_key=np.empty(line_room, np.int64),
        line_message=np.empty(line_room, np.int64),
        event_time=np.empty(event_room, np.int64),
        event_item=np.empty(event_room, np.int64),
        is_free=np.ones(num_links, np.bool_),
        is_unused=np.ones(num_links, np.bool_),
        is_touched=np.zeros(num_links, np.bool_),
        touched=np.empty(num_links, np.int64),
        counter=np.zeros(2, np.int64),
    )


def _not_yet(num_messages: int) -> Int64Array:
    """Times of messages before they have any."""
    return np.full(num_messages, -1, np.int64)


def _line_lengths(plan: PipelinePlan, repeats: Int64Array, num_links: int) -> Int64Array:
    """Messages that pass every link in all, where operation o is repeated `repeats[o]` times."""
    hops = np.diff(plan.route_indptr)
    passes = np.repeat(repeats, hops)
    return np.bincount(plan.route_link, passes, num_links).astype(np.int64)


@lean_kernel
def begin(plan: PipelinePlan, state: PipelineState) -> None:
    """Line up what needs nothing, and start the first message on every link."""
    touched = 0
    for message in range(len(state.stream)):
        operation = _operation(message, state.stream[message], plan)
        state.unmet[message] = plan.needs[operation]
        if state.unmet[message] == 0:
            touched = _line_up(message, touched, plan, state)
    _dispatch(0, touched, plan, state)


@lean_kernel
def advance(budget: int, plan: PipelinePlan, state: PipelineState) -> bool:
    """Let about `budget` events happen; False at the end.

    All of one instant happen before any link takes its next message: which of them comes first
    would otherwise decide between messages that became ready together.
    """
    while state.counter[_EVENTS] > 0 and budget > 0:
        now = state.event_time[0]
        touched = 0
        while state.counter[_EVENTS] > 0 and state.event_time[0] == now:
            item = _pop(state.event_time, state.event_item, 0, state.counter[_EVENTS])
            state.counter[_EVENTS] -= 1
            budget -= 1
            touched = _happen(item, now, touched, plan, state)
        _dispatch(now, touched, plan, state)
    return bool(state.counter[_EVENTS] > 0)


@lean_part
def _operation(message: int, stream: int, plan: PipelinePlan) -> int:
    """The operation that a message of a stream repeats."""
    first = plan.stream_operation[stream]
    width = plan.stream_operation[stream + 1] - first
    place = message - plan.stream_message[stream]
    return int(first + place % width)


@lean_part
def _happen(item: int, now: int, touched: int, plan: PipelinePlan, state: PipelineState) -> int:
    """A link becomes free, or a message arrives at the end of a link; count touched links."""
    num_links = len(state.is_free)
    if item < num_links:
        state.is_free[item] = True
        return _touch(item, touched, state)
    message = item - num_links
    operation = _operation(message, state.stream[message], plan)
    next_hop = plan.route_indptr[operation] + state.hop[message] + 1
    if next_hop < plan.route_indptr[operation + 1]:
        state.hop[message] += 1
        return _line_up(message, touched, plan, state)
    state.finish[message] = now - plan.slack[0]
    for position in range(plan.next_indptr[operation], plan.next_indptr[operation + 1]):
        # Messages of a chunk stand side by side, in the order of the operations.
        follower = message - operation + plan.next_operation[position]
        state.unmet[follower] -= 1
        if state.unmet[follower] == 0:
            touched = _line_up(follower, touched, plan, state)
    return touched


@lean_part
def _line_up(message: int, touched: int, plan: PipelinePlan, state: PipelineState) -> int:
    """Put a message in the line of its next link; count touched links.

    Early chunks first; of one turn, the message that most others follow.
    """
    stream = state.stream[message]
    operation = _operation(message, stream, plan)
    hop = state.hop[message]
    if hop > 0:
        # A switch has no say in the order: first come, first served.
        key = _FORWARDED + state.counter[_SEQUENCE]
        state.counter[_SEQUENCE] += 1
    else:
        width = plan.stream_operation[stream + 1] - plan.stream_operation[stream]
        place = message - plan.stream_message[stream]
        chunk = plan.stream_chunk[stream] + place // width
        key = plan.turn[chunk] - plan.urgency[operation]
    link = plan.route_link[plan.route_indptr[operation] + hop]
    first, size = state.line_first[link], state.line_size[link]
    _push(state.line_key, state.line_message, first, size, key, message)
    state.line_size[link] += 1
    return _touch(link, touched, state)


@lean_part
def _touch(link: int, touched: int, state: PipelineState) -> int:
    """Note a link at which something has changed, once; count touched links."""
    if state.is_touched[link]:
        return touched
    state.is_touched[link] = True
    state.touched[touched] = link
    return touched + 1


@lean_part
def _dispatch(now: int, touched: int, plan: PipelinePlan, state: PipelineState) -> None:
    """Every touched link that is free takes the first message of its line."""
    num_links = len(state.is_free)
    for position in range(touched):
        link = state.touched[position]
        state.is_touched[link] = False
        if not state.is_free[link] or state.line_size[link] == 0:
            continue
        first, size = state.line_first[link], state.line_size[link]
        message = _pop(state.line_key, state.line_message, first, size)
        state.line_size[link] -= 1
        if state.hop[message] == 0:
            state.start[message] = now
        stream = state.stream[message]
        size_class = plan.size_class[stream]
        operation = _operation(message, stream, plan)
        arrival = now + plan.arrival[size_class, link]
        # Messages that wait for nothing are told apart in a trace only by the end of the first.
        needs = plan.needs[operation]
        is_alone = state.is_unused[link] and needs == 0
        free = arrival if is_alone else now + plan.busy[size_class, link]
        state.is_free[link] = False
        state.is_unused[link] = False
        next_hop = plan.route_indptr[operation] + state.hop[message] + 1
        if next_hop == plan.route_indptr[operation + 1]:
            arrival += plan.slack[0]
        # Two events: the link is busy until one, and the message arrives at the other.
        events = state.counter[_EVENTS]
        _push(state.event_time, state.event_item, 0, events, free, link)
        arriving = num_links + message
        _push(state.event_time, state.event_item, 0, events + 1, arrival, arriving)
        state.counter[_EVENTS] = events + 2


# --- binary heaps by (key, item), in a part of two arrays that begins at `first` ---
#
# The lines of all links share two arrays; each has its part, as long as what can ever wait there.


@lean_part
def _precedes(key: int, item: int, other_key: int, other_item: int) -> bool:
    """By key; items are distinct, so that no two entries are equal and every order is one."""
    return key < other_key or (key == other_key and item < other_item)


@lean_part
def _push(keys: Int64Array, items: Int64Array, first: int, size: int, key: int, item: int) -> None:
    """Add an entry to a heap of `size`: parents move down until one goes before it."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if _precedes(keys[first + parent], items[first + parent], key, item):
            break
        keys[first + hole] = keys[first + parent]
        items[first + hole] = items[first + parent]
        hole = parent
    keys[first + hole] = key
    items[first + hole] = item


@lean_part
def _pop(keys: Int64Array, items: Int64Array, first: int, size: int) -> int:
    """Take the first entry off a heap of `size`: children move up until the last entry fits."""
    top = items[first]
    end = first + size - 1
    key, item = keys[end], items[end]
    hole, child = first, first + 1
    while child < end:
        sibling = child + 1
        if sibling < end and _precedes(keys[sibling], items[sibling], keys[child], items[child]):
            child = sibling
        if _precedes(key, item, keys[child], items[child]):
            break
        keys[hole] = keys[child]
        items[hole] = items[child]
        hole = child
        # Places count from the heap's own beginning.
        child = first + 2 * (child - first) + 1
    keys[hole] = key
    items[hole] = item
    return int(top)
