"""List scheduling of pipelined trees on links, event by event in integer picoseconds, compiled.

Algorithm: greedy list scheduling (Graham 1966) as a discrete-event simulation. Every operation, a
message over one route, is repeated for every chunk of its stream. An event is a link that becomes
free or a message that arrives. All events of one instant are processed before any link takes its
next message, and a free link takes the first message of its line: forwarded messages of a switch in
the order of arrival, then by turn (of the chunk: its round or its deadline) minus urgency, then by
number. Arrived data is sent on after the slack.

Invariant: a message waits in the line of exactly one link, or is in flight over one, or has
finished, or has unmet needs; a free link has an empty line between two instants. So the schedule is
deterministic, and waiting messages make progress as long as the needs have no cycle.

Cost: two heap operations per message and link for the line, four for the two events: O(log n) each.

All functions are in one file, because numba's cache notices changes only in the file of the
function that it compiles. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collhub_packing.compiling import lean_kernel, lean_part
from hub_core.columns import BoolArray, Int64Array, first_positions, group_of_entry

# Indices of `PipelineState.counter`.
_EVENTS, _SEQUENCE = 0, 1
# Forwarded messages precede all messages that wait for their first link, in the order of arrival:
# below every other key.
_FORWARDED = np.int64(-(1 << 62))


class PipelinePlan(NamedTuple):
    """Input of the scheduler; int64 arrays that are only read.

    Stream s has the operations `stream_operation[s]:stream_operation[s + 1]`, and the messages from
    `stream_message[s]` on: chunk by chunk, each with all operations. `turn`: round or deadline per
    chunk of all streams, from `stream_chunk[s]` on. Per operation: `urgency`: priority, subtracted
    from `turn`; `needs`: number of operations of the same chunk that must finish before;
    `next_operation[next_indptr[o]:next_indptr[o + 1]]`: operations that wait for it;
    `route_link[route_indptr[o]:route_indptr[o + 1]]`: its links. `busy`, `arrival`: picoseconds by
    size class and link, int64[classes, links]; `size_class`: by stream. `slack`: int64[1],
    picoseconds from the end of a message until dependent messages may start.
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
    """Progress of the schedule.

    Per message: `stream`, number of `unmet` needs, `hop`, `start` and `finish` (-1: not yet). The
    messages that wait for link l are a heap at `line_first[l]` of length `line_size[l]`; events are
    a heap by time. An event's item is the number of a link, or the number of links plus that of a
    message. `touched`: links whose line or availability changed at this instant. `counter`: number
    of events in the heap, sequence number of the next forwarded message.
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


def build_state(plan: PipelinePlan) -> PipelineState:
    """Build the state of the simulation before the first message, with room for all entries.

    A message is one chunk of an operation (a hop of a tree). Starts and ends of messages are
    unset (-1), all links free and unused. No message is enqueued yet, and `unmet` (number of
    messages that each waits for) is 0 for all; `start_messages` sets it. The queue of a link
    has room for every message that passes it, the event queue for one event per message and
    link.
    """
    operations = np.diff(plan.stream_operation)
    chunks = np.diff(plan.stream_chunk)
    num_messages = int(plan.stream_message[-1])
    num_links = plan.busy.shape[1]
    hops = np.diff(plan.route_indptr)
    passes = np.repeat(np.repeat(chunks, operations), hops)
    line_length = np.bincount(plan.route_link, passes, num_links).astype(np.int64)
    line_room = int(line_length.sum())
    # At most one event per busy link, and one per message in flight.
    event_room = num_messages + num_links
    return PipelineState(
        stream=group_of_entry(plan.stream_message),
        unmet=np.zeros(num_messages, np.int64),
        hop=np.zeros(num_messages, np.int64),
        start=_create_unset_times(num_messages),
        finish=_create_unset_times(num_messages),
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


def _create_unset_times(num_messages: int) -> Int64Array:
    """Return an int64 array of -1, which marks messages that have not been sent."""
    return np.full(num_messages, -1, np.int64)


@lean_kernel
def start_messages(plan: PipelinePlan, state: PipelineState) -> None:
    """Enqueue the messages that wait for no other, and start the first message on every link.

    The time is 0. Also stores in `unmet` for how many others every message waits. Call it once for
    a new state.
    """
    touched = 0
    for message in range(len(state.stream)):
        operation = _find_operation(message, state.stream[message], plan)
        state.unmet[message] = plan.needs[operation]
        if state.unmet[message] == 0:
            touched = _enqueue(message, touched, plan, state)
    _dispatch(0, touched, plan, state)


@lean_kernel
def advance(budget: int, plan: PipelinePlan, state: PipelineState) -> bool:
    """Process about `budget` events; return whether events remain.

    All events of one instant are processed, even beyond the budget, before a link takes its next
    message. Otherwise their order would decide between messages that became ready together.
    Modifies `state`, on which `start_messages` must have been called.
    """
    while state.counter[_EVENTS] > 0 and budget > 0:
        now = state.event_time[0]
        touched = 0
        while state.counter[_EVENTS] > 0 and state.event_time[0] == now:
            item = _pop(state.event_time, state.event_item, 0, state.counter[_EVENTS])
            state.counter[_EVENTS] -= 1
            budget -= 1
            touched = _process_event(item, now, touched, plan, state)
        _dispatch(now, touched, plan, state)
    return bool(state.counter[_EVENTS] > 0)


@lean_part
def _find_operation(message: int, stream: int, plan: PipelinePlan) -> int:
    """Return the operation (hop of a tree, counted over all streams) of which a message is one
    chunk.

    `stream`: stream of the message, a part of the data with its operations. The messages of a
    stream are all its operations for chunk 0, then for chunk 1, and so on.
    """
    first = plan.stream_operation[stream]
    width = plan.stream_operation[stream + 1] - first
    offset = message - plan.stream_message[stream]
    return int(first + offset % width)


@lean_part
def _process_event(
    item: int, now: int, touched: int, plan: PipelinePlan, state: PipelineState
) -> int:
    """Process one event: a link becomes free, or a message arrives at the end of a link.

    `item`: the link, or the number of links plus the message. A message with further links on its
    route is enqueued at the next one. Otherwise its finish (`now` minus the slack) is stored, and
    the messages of the same chunk that waited only for it are enqueued. Links that may take a
    message now are recorded in `state.touched`; `touched` is their number, and the new number is
    returned.
    """
    num_links = len(state.is_free)
    if item < num_links:
        state.is_free[item] = True
        return _mark_touched(item, touched, state)
    message = item - num_links
    operation = _find_operation(message, state.stream[message], plan)
    next_hop = plan.route_indptr[operation] + state.hop[message] + 1
    if next_hop < plan.route_indptr[operation + 1]:
        state.hop[message] += 1
        return _enqueue(message, touched, plan, state)
    state.finish[message] = now - plan.slack[0]
    for position in range(plan.next_indptr[operation], plan.next_indptr[operation + 1]):
        # Messages of a chunk are adjacent, in the order of the operations.
        follower = message - operation + plan.next_operation[position]
        state.unmet[follower] -= 1
        if state.unmet[follower] == 0:
            touched = _enqueue(follower, touched, plan, state)
    return touched


@lean_part
def _enqueue(message: int, touched: int, plan: PipelinePlan, state: PipelineState) -> int:
    """Enqueue a message at its next link; return the new number of touched links.

    Messages forwarded by a switch precede those that start their route on the link, in the order of
    arrival. Those that start there are ordered by the turn of their chunk (`plan.turn`) minus the
    urgency of the operation, the lowest first. Ties go to the lower message number.
    """
    stream = state.stream[message]
    operation = _find_operation(message, stream, plan)
    hop = state.hop[message]
    if hop > 0:
        # Switches forward in the order of arrival.
        key = _FORWARDED + state.counter[_SEQUENCE]
        state.counter[_SEQUENCE] += 1
    else:
        width = plan.stream_operation[stream + 1] - plan.stream_operation[stream]
        offset = message - plan.stream_message[stream]
        chunk = plan.stream_chunk[stream] + offset // width
        key = plan.turn[chunk] - plan.urgency[operation]
    link = plan.route_link[plan.route_indptr[operation] + hop]
    first, size = state.line_first[link], state.line_size[link]
    _push(state.line_key, state.line_message, first, size, key, message)
    state.line_size[link] += 1
    return _mark_touched(link, touched, state)


@lean_part
def _mark_touched(link: int, touched: int, state: PipelineState) -> int:
    """Record that a link may be able to take a message now: its queue or availability has changed.

    The link is appended to `state.touched`, unless it is there already. `touched` is the number of
    recorded links; the new number is returned.
    """
    if state.is_touched[link]:
        return touched
    state.is_touched[link] = True
    state.touched[touched] = link
    return touched + 1


@lean_part
def _dispatch(now: int, touched: int, plan: PipelinePlan, state: PipelineState) -> None:
    """Let every free link of `state.touched` start the first message of its queue at `now`, in ps.

    `touched`: number of these links; their marks are cleared. The link stays occupied for the busy
    time of the message. Its very first message, if it waits for no other, occupies it until the
    arrival, as in a trace. Two events are added, one when the link becomes free and one for the
    arrival; on the last link of a route the arrival is later by the slack. On the first link of its
    route the start of the message is stored.
    """
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
        operation = _find_operation(message, stream, plan)
        arrival = now + plan.arrival[size_class, link]
        # In a trace, messages without needs are separated only by the end of the first message.
        needs = plan.needs[operation]
        is_first_ready = state.is_unused[link] and needs == 0
        free = arrival if is_first_ready else now + plan.busy[size_class, link]
        state.is_free[link] = False
        state.is_unused[link] = False
        next_hop = plan.route_indptr[operation] + state.hop[message] + 1
        if next_hop == plan.route_indptr[operation + 1]:
            arrival += plan.slack[0]
        # Two events: the link becomes free, and the message arrives.
        events = state.counter[_EVENTS]
        _push(state.event_time, state.event_item, 0, events, free, link)
        arriving = num_links + message
        _push(state.event_time, state.event_item, 0, events + 1, arrival, arriving)
        state.counter[_EVENTS] = events + 2


# --- binary heaps by (key, item), in a section of two arrays that begins at `first` ---
#
# The lines of all links share two arrays; each has a section as long as the number of messages that
# can ever wait in it.


@lean_part
def _is_before(key: int, item: int, other_key: int, other_item: int) -> bool:
    """Whether an entry precedes another: by key, then by item. Items are distinct."""
    return key < other_key or (key == other_key and item < other_item)


@lean_part
def _push(keys: Int64Array, items: Int64Array, first: int, size: int, key: int, item: int) -> None:
    """Add an entry (key, item) to a heap; the lowest key comes first, then the lowest item.

    The heap has `size` entries of `keys` and `items`, from index `first` on. The caller increases
    `size`.
    """
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if _is_before(keys[first + parent], items[first + parent], key, item):
            break
        keys[first + hole] = keys[first + parent]
        items[first + hole] = items[first + parent]
        hole = parent
    keys[first + hole] = key
    items[first + hole] = item


@lean_part
def _pop(keys: Int64Array, items: Int64Array, first: int, size: int) -> int:
    """Remove the first entry of a heap, and return its item.

    The heap has `size` entries of `keys` and `items`, from index `first` on. The first entry has
    the lowest key, and among equal keys the lowest item. `size` must be at least 1; the caller
    reduces it. Other entries are moved.
    """
    top = items[first]
    end = first + size - 1
    key, item = keys[end], items[end]
    hole, child = first, first + 1
    while child < end:
        sibling = child + 1
        if sibling < end and _is_before(keys[sibling], items[sibling], keys[child], items[child]):
            child = sibling
        if _is_before(key, item, keys[child], items[child]):
            break
        keys[hole] = keys[child]
        items[hole] = items[child]
        hole = child
        # Heap positions count from `first`.
        child = first + 2 * (child - first) + 1
    keys[hole] = key
    items[hole] = item
    return int(top)
