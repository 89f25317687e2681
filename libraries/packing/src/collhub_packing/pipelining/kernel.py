"""List scheduling of pipelined trees on links, event by event in whole picoseconds, compiled by numba.

Every operation - a message over one route - is repeated for every chunk of its stream. All in one file, because numba's
cache notices changes only in the file of the function that it compiles. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_Function = TypeVar("_Function", bound=Callable[..., object])

_WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_EVENTS, _SEQUENCE = 0, 1
# A message that a switch passes on goes before all that wait for their first link, in the order of arrival.
_FORWARDED = np.int64(-(1 << 62))


def _compiled(function: _Function) -> _Function:
    """Compile when the first caller is compiled; the typed form of numba's decorator."""
    return cast(_Function, numba.njit(nogil=True, **_WITHOUT_WRAPPERS)(function))


def _entry(function: _Function) -> _Function:
    """Compile on the first call and keep the machine code on disk."""
    try:
        return cast(_Function, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # No folder for the cache can be written to.
        return cast(_Function, numba.njit(nogil=True)(function))


class PipelinePlan(NamedTuple):
    """What is to be sent; int64 arrays that are only read.

    Stream s has the operations `stream_operation[s]:stream_operation[s + 1]`, and the messages from `stream_message[s]` on:
    chunk by chunk, each with all operations. `turn`: per chunk of all streams, from `stream_chunk[s]` on. Of every
    operation: `remaining` hops, `needs`, the number of operations of the same chunk that must have ended before,
    `next_operation[next_indptr[o]:next_indptr[o + 1]]`, who waits for it, and its links
    `route_link[route_indptr[o]:route_indptr[o + 1]]`. `busy`, `arrival`: picoseconds by size class and link,
    `size_class`: by stream.
    """

    stream_operation: Int64Array
    stream_message: Int64Array
    stream_chunk: Int64Array
    turn: Int64Array
    remaining: Int64Array
    needs: Int64Array
    next_indptr: Int64Array
    next_operation: Int64Array
    route_indptr: Int64Array
    route_link: Int64Array
    size_class: Int64Array
    busy: Int64Array
    arrival: Int64Array


class PipelineState(NamedTuple):
    """How far the schedule is. Per message: `stream`, `unmet` needs, `hop`, `start` and `finish` (-1: not yet).

    The messages that wait for link l are a heap at `line_first[l]`, `line_size[l]` long; events are a heap by time.
    `counter`: number of events in the heap, sequence number of the next one.
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


def state_of(program: PipelinePlan) -> PipelineState:
    """The state before the first message."""
    operations, chunks = np.diff(program.stream_operation), np.diff(program.stream_chunk)
    num_messages, num_links = int(program.stream_message[-1]), program.busy.shape[1]
    repeats = np.repeat(chunks, operations)
    hops = np.diff(program.route_indptr)
    length = np.bincount(program.route_link, np.repeat(repeats, hops), num_links).astype(np.int64)
    room = int(length.sum())
    return PipelineState(
        np.repeat(np.arange(len(operations)), operations * chunks),
        np.zeros(num_messages, np.int64),
        np.zeros(num_messages, np.int64),
        np.full(num_messages, -1, np.int64),
        np.full(num_messages, -1, np.int64),
        np.cumsum(length) - length,
        np.zeros(num_links, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(num_messages + num_links, np.int64),
        np.empty(num_messages + num_links, np.int64),
        np.ones(num_links, np.bool_),
        np.ones(num_links, np.bool_),
        np.zeros(num_links, np.bool_),
        np.empty(num_links, np.int64),
        np.zeros(2, np.int64),
    )


@_entry
def begin(program: PipelinePlan, state: PipelineState) -> None:
    """Line up what needs nothing, and start the first message on every link."""
    touched = 0
    for message in range(len(state.stream)):
        stream = state.stream[message]
        operation = _operation(message, stream, program)
        state.unmet[message] = program.needs[operation]
        if state.unmet[message] == 0:
            touched = _line_up(message, touched, program, state)
    _dispatch(0, touched, program, state)


@_entry
def advance(budget: int, program: PipelinePlan, state: PipelineState) -> bool:
    """Let about `budget` events happen, all of one instant before any link takes its next message; False at the end."""
    while state.counter[_EVENTS] > 0 and budget > 0:
        now = state.event_time[0]
        touched = 0
        while state.counter[_EVENTS] > 0 and state.event_time[0] == now:
            item = _pop(state.event_time, state.event_item, 0, state.counter[_EVENTS])
            state.counter[_EVENTS] -= 1
            budget -= 1
            touched = _happen(item, now, touched, program, state)
        _dispatch(now, touched, program, state)
    return bool(state.counter[_EVENTS] > 0)


@_compiled
def _operation(message: int, stream: int, program: PipelinePlan) -> int:
    first = program.stream_operation[stream]
    width = program.stream_operation[stream + 1] - first
    return int(first + (message - program.stream_message[stream]) % width)


@_compiled
def _happen(item: int, now: int, touched: int, program: PipelinePlan, state: PipelineState) -> int:
    """A link becomes free (its number), or a message arrives at the end of a link (its number behind those of links)."""
    num_links = len(state.is_free)
    if item < num_links:
        state.is_free[item] = True
        return _touch(item, touched, state)
    message = item - num_links
    stream = state.stream[message]
    operation = _operation(message, stream, program)
    if (
        program.route_indptr[operation] + state.hop[message] + 1
        < program.route_indptr[operation + 1]
    ):
        state.hop[message] += 1
        return _line_up(message, touched, program, state)
    state.finish[message] = now
    for position in range(program.next_indptr[operation], program.next_indptr[operation + 1]):
        follower = message - operation + program.next_operation[position]
        state.unmet[follower] -= 1
        if state.unmet[follower] == 0:
            touched = _line_up(follower, touched, program, state)
    return touched


@_compiled
def _line_up(message: int, touched: int, program: PipelinePlan, state: PipelineState) -> int:
    """Put a message in the line of its next link; by turn and then by what lies before it."""
    stream = state.stream[message]
    operation = _operation(message, stream, program)
    hop = state.hop[message]
    if hop > 0:
        key = _FORWARDED + state.counter[_SEQUENCE]
        state.counter[_SEQUENCE] += 1
    else:
        width = program.stream_operation[stream + 1] - program.stream_operation[stream]
        chunk = program.stream_chunk[stream] + (message - program.stream_message[stream]) // width
        key = program.turn[chunk] - program.remaining[operation]
    link = program.route_link[program.route_indptr[operation] + hop]
    _push(
        state.line_key,
        state.line_message,
        state.line_first[link],
        state.line_size[link],
        key,
        message,
    )
    state.line_size[link] += 1
    return _touch(link, touched, state)


@_compiled
def _touch(link: int, touched: int, state: PipelineState) -> int:
    if state.is_touched[link]:
        return touched
    state.is_touched[link] = True
    state.touched[touched] = link
    return touched + 1


@_compiled
def _dispatch(now: int, touched: int, program: PipelinePlan, state: PipelineState) -> None:
    """Every touched link that is free takes the first message of its line."""
    num_links = len(state.is_free)
    for position in range(touched):
        link = state.touched[position]
        state.is_touched[link] = False
        if not state.is_free[link] or state.line_size[link] == 0:
            continue
        message = _pop(
            state.line_key, state.line_message, state.line_first[link], state.line_size[link]
        )
        state.line_size[link] -= 1
        if state.hop[message] == 0:
            state.start[message] = now
        size = program.size_class[state.stream[message]]
        arrival = now + program.arrival[size, link]
        # Messages that wait for nothing are told apart in a trace only by the end of the first one.
        is_alone = (
            state.is_unused[link]
            and program.needs[_operation(message, state.stream[message], program)] == 0
        )
        free = arrival if is_alone else now + program.busy[size, link]
        state.is_free[link] = False
        state.is_unused[link] = False
        _push(state.event_time, state.event_item, 0, state.counter[_EVENTS], free, link)
        _push(
            state.event_time,
            state.event_item,
            0,
            state.counter[_EVENTS] + 1,
            arrival,
            num_links + message,
        )
        state.counter[_EVENTS] += 2


# --- binary heaps by (key, item), in a part of two arrays that begins at `first` ---


@_compiled
def _push(keys: Int64Array, items: Int64Array, first: int, size: int, key: int, item: int) -> None:
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if keys[first + parent] < key or (
            keys[first + parent] == key and items[first + parent] < item
        ):
            break
        keys[first + hole] = keys[first + parent]
        items[first + hole] = items[first + parent]
        hole = parent
    keys[first + hole] = key
    items[first + hole] = item


@_compiled
def _pop(keys: Int64Array, items: Int64Array, first: int, size: int) -> int:
    top = items[first]
    last = first + size - 1
    key, item = keys[last], items[last]
    end = first + size - 1
    hole, child = first, first + 1
    while child < end:
        if child + 1 < end and (
            keys[child + 1] < keys[child]
            or (keys[child + 1] == keys[child] and items[child + 1] < items[child])
        ):
            child += 1
        if key < keys[child] or (key == keys[child] and item < items[child]):
            break
        keys[hole] = keys[child]
        items[hole] = items[child]
        hole = child
        child = first + 2 * (child - first) + 1
    keys[hole] = key
    items[hole] = item
    return int(top)
