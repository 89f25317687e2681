"""Kernels of list scheduling: they run as plain Python, or as machine code on large graphs.

The functions are written once, for lists as well as for arrays. Plain Python gets the columns of a
graph as lists, and imports no compiler. Machine code is compiled by numba at the first use and
cached on disk. Results are equal.

The state of a run consists of arrays in a named tuple, which are created before, because lists in
named tuples are not reliable in machine code. Lists are arguments of their own.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from hub_core.columns import Int64Array

NONE = -1
# Nodes from which a graph is scheduled by machine code. To import numba and to load the code takes
# a second, as long as ten schedules of this number of nodes in plain Python.
_MIN_COMPILED = 1 << 11
# Maximum number of nodes tried on channels in total: about a second of plain Python.
_MAX_TRIED_NODES = 1 << 18
# A change of the state of a placement: its table, index and former value.
_FREE, _PEER, _OWNER, _CHANNEL_OF, _CROWD, _NEW_BLOCK = range(6)
_RECV, _SEND = 0, 1
_COMPILES_AT_ONCE: ContextVar[bool] = ContextVar("compiles_at_once", default=False)


class Nodes(NamedTuple):
    """Columns of a graph, one entry per node, except where stated.

    `units`: that it moves; `transit`: from its beginning to that of `target`; `duration`: from its
    beginning to its end; `receive_time`: time that it receives before it sends; `source`, `target`:
    nodes at the other side of its messages, or NONE. `child_start` (one entry more), `children`:
    the nodes that wait for node n are `children[child_start[n]:child_start[n + 1]]`;
    `parent_start`, `parents` likewise the nodes for which it waits.
    """

    rank: Any
    source: Any
    target: Any
    units: Any
    transit: Any
    duration: Any
    receive_time: Any
    child_start: Any
    children: Any
    parent_start: Any
    parents: Any


class Resources(NamedTuple):
    """What nodes wait for, and their priority.

    By node: `block`; `incoming`, `outgoing`: numbers of its connections, NONE without a message;
    `priority`, a number of its own, the lowest first; `node_of_priority` is the inverse.
    `out_of_node`: by node the number among the links out of ranks, NONE if it does not send. Such a
    link has an entry for each receive time: `out_rank`, `out_receive_time`. `blocks`, `ranks`,
    `connections`: numbers of these. Resources are numbered: blocks, links into ranks, links out of
    ranks.
    """

    block: Any
    incoming: Any
    outgoing: Any
    priority: Any
    node_of_priority: Any
    out_of_node: Any
    out_rank: Any
    out_receive_time: Any
    blocks: int
    ranks: int
    connections: int


class State(NamedTuple):
    """State of list scheduling, with zeros and NONE at first (`create_state`).

    By node: `begin`; `order`: nodes as they begin; `ready`, when its predecessors and its message
    are available; `missing`, how many of them are not. By block: `free`; by rank: `to_rank`,
    `from_rank`: when it or the link is free. By connection: the messages under way in the order of
    sending, as a linked list of receivers (`first_receiver`, `last_receiver`, by node
    `next_receiver`) with their number `under_way`, and likewise the nodes that wait for the
    connection (`first_waiting`, `last_waiting`, `next_waiting`). By resource a heap of the nodes
    that wait for it, as a tree: `parked`, its root, and by node `left` and `right`, NONE without
    one.
    """

    begin: Any
    order: Any
    ready: Any
    missing: Any
    free: Any
    to_rank: Any
    from_rank: Any
    first_receiver: Any
    last_receiver: Any
    next_receiver: Any
    under_way: Any
    first_waiting: Any
    last_waiting: Any
    next_waiting: Any
    parked: Any
    left: Any
    right: Any


def create_state(size: int, resources: Resources) -> State:
    """Create the state before any node of a graph with `size` nodes has begun."""

    def zeros(length: int) -> Int64Array:
        return np.zeros(length, np.int64)

    def nones(length: int) -> Int64Array:
        return np.full(length, NONE)

    connections = resources.connections
    return State(
        zeros(size),
        zeros(size),
        zeros(size),
        zeros(size),
        zeros(resources.blocks),
        zeros(resources.ranks),
        zeros(resources.ranks),
        nones(connections),
        nones(connections),
        nones(size),
        zeros(connections),
        nones(connections),
        nones(connections),
        nones(size),
        nones(resources.blocks + resources.ranks + len(resources.out_rank)),
        nones(size),
        nones(size),
    )


@contextmanager
def compile_at_once() -> Iterator[None]:
    """Run every kernel that is called in the block as machine code (context manager)."""
    token = _COMPILES_AT_ONCE.set(True)
    try:
        yield
    finally:
        _COMPILES_AT_ONCE.reset(token)


def run(function: Callable[..., Any], size: int, *arguments: Any) -> Any:
    """Return the result of a kernel for a graph of `size` nodes, from plain Python or machine code.

    `arguments`: numbers, int64 arrays, and named tuples of these; no argument is changed.
    """
    if size >= _MIN_COMPILED or _COMPILES_AT_ONCE.get():
        return _compile(function)(*arguments)
    return function(*(_convert_to_lists(argument) for argument in arguments))


def _convert_to_lists(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return type(argument)(*(_convert_to_lists(item) for item in argument))
    return argument.tolist() if isinstance(argument, np.ndarray) else argument


@functools.cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel as machine code, which is compiled or loaded at its first call."""
    # Imported here: it loads numba, which takes a second.
    from collhub_packing.compiling import kernel

    _register_parts()
    return kernel(function)


@functools.cache
def _register_parts() -> None:
    """Let kernels call the other functions of this module in machine code."""
    from numba.extending import register_jitable

    for part in (
        _compute_earliest,
        _get_free_time,
        _queue_node,
        _is_blocked,
        _begin_node,
        _record_arrival,
        _merge,
        _try_chain,
        _claim_block,
        _add_block,
        _is_one_block,
        _set,
        _undo,
        _list_channels,
        _place_local,
        _place_chain,
        _find_ready_time,
        _list_block,
    ):
        register_jitable(part)


# --- times without limits ---


def compute_spans(nodes: Nodes) -> tuple[Any, Any]:
    """Return (earliest begin, longest remaining time): two lists with one entry per node.

    Blocks and links are assumed to be free at any time. Times are in the unit of `nodes`.
    Nodes must be in a possible order of execution (not checked).

    - Begin: the maximum of 0, begin + duration of each parent, and begin + transit of the
      node from which it receives a message.
    - Remaining time, from the begin of the node: the maximum of its duration, its duration +
      remaining time of each child, and its transit + remaining time of the node to which it
      sends a message.
    """
    size = len(nodes.rank)
    start = [0] * size
    for node in range(size):
        begin = 0
        for place in range(nodes.parent_start[node], nodes.parent_start[node + 1]):
            parent = nodes.parents[place]
            begin = max(begin, start[parent] + nodes.duration[parent])
        source = nodes.source[node]
        if source >= 0:
            begin = max(begin, start[source] + nodes.transit[source])
        start[node] = begin
    tail = [0] * size
    for node in range(size - 1, -1, -1):
        longest = nodes.duration[node]
        for place in range(nodes.child_start[node], nodes.child_start[node + 1]):
            longest = max(longest, nodes.duration[node] + tail[nodes.children[place]])
        if nodes.target[node] >= 0:
            longest = max(longest, nodes.transit[node] + tail[nodes.target[node]])
        tail[node] = longest
    return start, tail


# --- the order of execution ---


def order_nodes(
    nodes: Nodes, resources: Resources, state: State, capacity: int
) -> tuple[int, Any, Any]:
    """Order all nodes by list scheduling; return (how many, nodes as they begin, begin of each).

    Of the nodes whose predecessors have finished, the one that can begin first is taken; at equal
    times the one with the lowest priority. A node whose connection holds `capacity` messages, or
    whose message is not the oldest of its connection, waits until a message is received on it. The
    order has fewer nodes if such connections block all remaining ones.

    Nodes that wait for one resource are stored there by priority, and only the first of them is in
    the queue. Otherwise every use of a link would queue all waiting nodes again, which is quadratic
    in the steps of a rank.
    """
    # Heap of (time, priority, resource or NONE).
    queue = [(0, 0, 0) for _ in range(0)]
    for node in range(len(nodes.rank)):
        missing = nodes.parent_start[node + 1] - nodes.parent_start[node]
        if nodes.source[node] >= 0:
            missing += 1
        state.missing[node] = missing
        if missing == 0:
            _queue_node(node, nodes, resources, state, queue)
    number = 0
    while len(queue) > 0:
        now, place, resource = heapq.heappop(queue)
        node = resources.node_of_priority[place]
        if resource != NONE:
            # Another node took this place, which has an entry of its own.
            if state.parked[resource] != node:
                continue
            free = _get_free_time(resource, resources, state)
            if now < free:
                heapq.heappush(queue, (free, place, resource))
                continue
            state.parked[resource] = _merge(state.left[node], state.right[node], resources, state)
        earliest, needed = _compute_earliest(node, nodes, resources, state)
        if now < earliest:
            state.left[node] = NONE
            state.right[node] = NONE
            state.parked[needed] = _merge(node, state.parked[needed], resources, state)
            if state.parked[needed] == node:
                heapq.heappush(queue, (earliest, place, needed))
        elif not _is_blocked(node, resources, state, capacity):
            state.order[number] = node
            number += 1
            state.begin[node] = now
            _begin_node(node, now, nodes, resources, state, queue)
        if resource != NONE and state.parked[resource] != NONE:
            free = _get_free_time(resource, resources, state)
            following = resources.priority[state.parked[resource]]
            heapq.heappush(queue, (free, following, resource))
    return number, state.order, state.begin


def _merge(first: int, second: int, resources: Resources, state: State) -> int:
    """Merge two heaps of waiting nodes, given by their roots or NONE; return the new root.

    They are skew heaps: the nodes of the two right-hand paths are joined in the order of priority,
    and the children of each of them are exchanged.
    """
    root, last = NONE, NONE
    while first != NONE and second != NONE:
        if resources.priority[second] < resources.priority[first]:
            first, second = second, first
        # The rest of the right-hand path is merged, and becomes the left child.
        rest = state.right[first]
        state.right[first] = state.left[first]
        state.left[first] = NONE
        if root == NONE:
            root = first
        else:
            state.left[last] = first
        last = first
        first = rest
    remaining = second if first == NONE else first
    if root == NONE:
        return remaining
    state.left[last] = remaining
    return root


def _queue_node(node: int, nodes: Nodes, resources: Resources, state: State, queue: Any) -> None:
    """Queue a node whose predecessors have finished, at the earliest time at which it can begin."""
    earliest, _ = _compute_earliest(node, nodes, resources, state)
    heapq.heappush(queue, (earliest, resources.priority[node], NONE))


def _is_blocked(node: int, resources: Resources, state: State, capacity: int) -> bool:
    """Return whether earlier messages on its connections prevent a node from beginning.

    A node may receive only the oldest message of its connection, and may send only if the
    connection holds fewer messages than `capacity`. A blocked node is added to the waiting nodes of
    that connection, and queued again when a message is received there.
    """
    incoming, outgoing = resources.incoming[node], resources.outgoing[node]
    blocking = NONE
    if incoming != NONE and state.first_receiver[incoming] != node:
        blocking = incoming
    elif outgoing != NONE and state.under_way[outgoing] >= capacity:
        blocking = outgoing
    if blocking == NONE:
        return False
    state.next_waiting[node] = NONE
    if state.first_waiting[blocking] == NONE:
        state.first_waiting[blocking] = node
    else:
        state.next_waiting[state.last_waiting[blocking]] = node
    state.last_waiting[blocking] = node
    return True


def _begin_node(
    node: int, now: int, nodes: Nodes, resources: Resources, state: State, queue: Any
) -> None:
    """Begin a node at time `now` and update blocks, links and connections.

    - Its block is occupied until the end of the node.
    - The link into its rank is occupied by its units from `now` on if it receives; the link out of
      its rank until its units are sent if it sends.
    - A received message is removed from its connection, and the nodes that wait there are queued
      again, ready no earlier than `now`.
    - A sent message is added to its connection; its receiver may begin when it has arrived.
    - Nodes that depend on this node are ready no earlier than its end.
    """
    rank = nodes.rank[node]
    end = now + nodes.duration[node]
    state.free[resources.block[node]] = end
    incoming, outgoing = resources.incoming[node], resources.outgoing[node]
    if incoming != NONE:
        state.to_rank[rank] = now + nodes.units[node]
        state.first_receiver[incoming] = state.next_receiver[node]
        state.under_way[incoming] -= 1
        waiting = state.first_waiting[incoming]
        state.first_waiting[incoming] = NONE
        while waiting != NONE:
            state.ready[waiting] = max(state.ready[waiting], now)
            _queue_node(waiting, nodes, resources, state, queue)
            waiting = state.next_waiting[waiting]
    if outgoing != NONE:
        state.from_rank[rank] = now + nodes.receive_time[node] + nodes.units[node]
        receiver = nodes.target[node]
        state.next_receiver[receiver] = NONE
        if state.under_way[outgoing]:
            state.next_receiver[state.last_receiver[outgoing]] = receiver
        else:
            state.first_receiver[outgoing] = receiver
        state.last_receiver[outgoing] = receiver
        state.under_way[outgoing] += 1
        _record_arrival(receiver, now + nodes.transit[node], nodes, resources, state, queue)
    for place in range(nodes.child_start[node], nodes.child_start[node + 1]):
        _record_arrival(nodes.children[place], end, nodes, resources, state, queue)


def _record_arrival(
    node: int, time: int, nodes: Nodes, resources: Resources, state: State, queue: Any
) -> None:
    """Record that one predecessor or message of a node is available at `time`.

    When all are recorded, the node is queued; it is ready at the latest of these times.
    """
    state.ready[node] = max(state.ready[node], time)
    state.missing[node] -= 1
    if state.missing[node] == 0:
        _queue_node(node, nodes, resources, state, queue)


def _compute_earliest(
    node: int, nodes: Nodes, resources: Resources, state: State
) -> tuple[int, int]:
    """Return the earliest time at which a node could begin now, and the resource it waits for.

    The time is the maximum of these; at equal times the earlier entry gives the resource:

    - the time at which its predecessors and its message are ready (no resource, NONE)
    - the end of the last node of its block
    - if it sends: the time at which the link out of its rank is free, less the time that the node
      takes to receive if it also receives
    - if it receives: the time at which the link into its rank is free

    Full connections are not considered. Nothing is changed.
    """
    begin, needed = state.ready[node], NONE
    block, rank = resources.block[node], nodes.rank[node]
    if state.free[block] > begin:
        begin, needed = state.free[block], block
    if nodes.target[node] >= 0:
        # A fused step uses the outgoing link only after it has received.
        free = state.from_rank[rank] - nodes.receive_time[node]
        if free > begin:
            begin = free
            needed = resources.blocks + resources.ranks + resources.out_of_node[node]
    if nodes.source[node] >= 0 and state.to_rank[rank] > begin:
        begin, needed = state.to_rank[rank], resources.blocks + rank
    return begin, needed


def _get_free_time(resource: int, resources: Resources, state: State) -> int:
    """Return the time from which a resource permits a waiting node to begin.

    A node needs the link out of its rank only after its receive time, so it may begin that much
    earlier than the link is free.
    """
    link = resource - resources.blocks
    time: int
    if link < 0:
        time = state.free[resource]
    elif link < resources.ranks:
        time = state.to_rank[link]
    else:
        link -= resources.ranks
        time = state.from_rank[resources.out_rank[link]] - resources.out_receive_time[link]
    return time


# --- the placement on thread blocks and channels ---


class Sides(NamedTuple):
    """Columns of a graph for a placement, one entry per node.

    `receive`, `send`: numbers of (rank, peer, direction), NONE without a message; `channel`: number
    of the channel of the draft; `start`, `tail`: see `compute_spans`.
    """

    receive: Any
    send: Any
    channel: Any
    start: Any
    tail: Any


class Limits(NamedTuple):
    """Limits of a placement: see `placement.PlacementLimits`.

    `crowd`: blocks of a rank that may receive, or send, on one channel; `sides`, `ranks`: numbers
    of these; `deadline`: the makespan without limits.
    """

    blocks: int
    channels: int
    crowd: int
    is_free: bool
    is_sparing: bool
    is_tight: bool
    sides: int
    ranks: int
    deadline: int


class Tables(NamedTuple):
    """State of a placement, at first that without any block (`create_tables`).

    By block: `free`, when it becomes free; `channel_of`; `peer`: at 2 b + direction the side that
    it serves; `following`: the next block of its rank; `is_listed`: whether it is no block of a
    trial. By rank: `count` of blocks; `first_block`, `last_block` of those that are listed. By
    channel: `load`, total time; by channel and side: `owner`, the block; by channel, rank and
    direction: `crowd`, number of owners. By node: `ready`, `end`, `receiver`, `sender`, `channel`,
    and of the last trial `trial_receiver`, `trial_sender`, `trial_end`. `numbers`: of blocks, and
    of channels in use.
    """

    free: Any
    channel_of: Any
    peer: Any
    following: Any
    is_listed: Any
    count: Any
    first_block: Any
    last_block: Any
    load: Any
    owner: Any
    crowd: Any
    ready: Any
    end: Any
    receiver: Any
    sender: Any
    channel: Any
    trial_receiver: Any
    trial_sender: Any
    trial_end: Any
    numbers: Any


def create_tables(nodes: Nodes, sides: Sides, limits: Limits) -> Tables:
    """Create the tables of a placement without any block."""
    size, ranks, channels = len(nodes.rank), limits.ranks, limits.channels
    # A node gets at most two new blocks.
    blocks = 2 * size

    def zeros(length: int) -> Int64Array:
        return np.zeros(length, np.int64)

    def nones(length: int) -> Int64Array:
        return np.full(length, NONE)

    return Tables(
        zeros(blocks),
        nones(blocks),
        nones(2 * blocks),
        nones(blocks),
        zeros(blocks),
        zeros(ranks),
        nones(ranks),
        nones(ranks),
        zeros(channels),
        nones(channels * limits.sides),
        zeros(channels * ranks * 2),
        zeros(size),
        sides.start + nodes.duration,
        nones(size),
        nones(size),
        zeros(size),
        nones(size),
        nones(size),
        zeros(size),
        zeros(2),
    )


def place_nodes(
    nodes: Nodes, sides: Sides, limits: Limits, tables: Tables, chains: Any
) -> tuple[bool, Any, Any, Any]:
    """Place chains in order; return whether all found a place, and the place of each node.

    A place is the block that receives, the block that sends, and the channel.

    `chains`: first nodes; a chain continues with the receivers of its messages, and gets one
    channel. A node without messages is a chain of its own, needs no channel, and always finds a
    block. The best channel of a chain has the lowest cost, of equal ones the first: its finish
    time, then steps separated into two, then delays by busy blocks, new blocks (before delays if
    `is_sparing`), and the number of the channel. The search ends early at a channel without
    separated steps and delays; if `is_sparing`, at one without separated steps and new blocks that
    finishes at the deadline. The result is False if no block or channel is left for a chain.
    """
    # Changes of a trial, to undo: table, place, former value.
    changes = [(0, 0, 0) for _ in range(0)]
    for first in chains:
        if nodes.target[first] == NONE:
            _place_local(first, nodes, sides, tables, limits, changes)
        elif not _place_chain(first, nodes, sides, tables, limits, changes):
            return False, tables.receiver, tables.sender, tables.channel
    return True, tables.receiver, tables.sender, tables.channel


def _find_ready_time(node: int, nodes: Nodes, sides: Sides, tables: Tables) -> int:
    """Return the time at which all placed predecessors of a node on its rank are finished."""
    time: int = sides.start[node]
    for place in range(nodes.parent_start[node], nodes.parent_start[node + 1]):
        time = max(time, tables.end[nodes.parents[place]])
    return time


def _place_chain(
    first: int, nodes: Nodes, sides: Sides, tables: Tables, limits: Limits, changes: Any
) -> bool:
    """Place a chain on the best channel; return False if no block or channel is left for it."""
    node = first
    while node != NONE:
        tables.ready[node] = _find_ready_time(node, nodes, sides, tables)
        node = nodes.target[node]
    channels = [sides.channel[first]]
    if limits.is_free:
        channels = _list_channels(len(nodes.rank), tables, limits)
    # Cost of the best trial: finish, separated steps, two wishes, channel.
    best = (NONE, 0, 0, 0, 0)
    for channel in channels:
        is_over, finish, parted, waits, new_blocks = _try_chain(
            first, channel, best[0], nodes, sides, tables, limits, changes
        )
        _undo(tables, changes)
        if not is_over:
            second, third = waits, new_blocks
            if limits.is_sparing:
                second, third = new_blocks, waits
            cost = (finish, parted, second, third, channel)
            if best[0] == NONE or cost < best:
                best = cost
        # No other channel can be better.
        is_in_time = not limits.is_sparing or best[0] == limits.deadline
        if best[0] != NONE and best[1] == 0 and best[2] == 0 and is_in_time:
            break
    if best[0] == NONE:
        return False
    channel = best[4]
    _try_chain(first, channel, NONE, nodes, sides, tables, limits, changes)
    changes.clear()
    tables.numbers[1] = max(tables.numbers[1], channel + 1)
    node = first
    while node != NONE:
        rank = nodes.rank[node]
        receiver, sender = tables.trial_receiver[node], tables.trial_sender[node]
        _list_block(rank, min(receiver, sender), tables)
        _list_block(rank, max(receiver, sender), tables)
        tables.load[channel] += nodes.duration[node]
        tables.receiver[node] = receiver
        tables.sender[node] = sender
        tables.channel[node] = channel
        tables.end[node] = tables.trial_end[node]
        node = nodes.target[node]
    return True


def _list_block(rank: int, block: int, tables: Tables) -> None:
    """Append a block to those of its rank, unless it is one of them."""
    if tables.is_listed[block] != 0:
        return
    tables.is_listed[block] = 1
    if tables.first_block[rank] == NONE:
        tables.first_block[rank] = block
    else:
        tables.following[tables.last_block[rank]] = block
    tables.last_block[rank] = block


def _list_channels(size: int, tables: Tables, limits: Limits) -> Any:
    """Return the channels to try for a chain if channels are free to choose.

    They are the channels in use and the next unused one below the limit, which represents all
    unused ones, ascending. If they are more than `_MAX_TRIED_NODES` / nodes (rounded down, at least
    2), only this number of channels with the least work so far is kept, sorted by work, then by
    channel.
    """
    known = min(tables.numbers[1] + 1, limits.channels)
    max_channels = max(_MAX_TRIED_NODES // size, 2)
    if known <= max_channels:
        return list(range(known))
    by_load = [(0, 0) for _ in range(0)]
    for channel in range(known):
        heapq.heappush(by_load, (tables.load[channel], channel))
    return [heapq.heappop(by_load)[1] for _ in range(max_channels)]


def _place_local(
    node: int, nodes: Nodes, sides: Sides, tables: Tables, limits: Limits, changes: Any
) -> None:
    """Place a node without messages on a block of its rank.

    It gets the block on which it can begin first; on a tie a block of one of its predecessors, then
    the first one. It gets a new block if the rank has none, or if it would have to wait and the
    limit permits another block.
    """
    rank, ready = nodes.rank[node], _find_ready_time(node, nodes, sides, tables)
    best = NONE
    lowest = (0, 0)
    block = tables.first_block[rank]
    while block != NONE:
        # After its predecessor in the same block it needs no wait.
        is_foreign = 1
        for place in range(nodes.parent_start[node], nodes.parent_start[node + 1]):
            if tables.sender[nodes.parents[place]] == block:
                is_foreign = 0
        cost = (max(tables.free[block], ready), is_foreign)
        if best == NONE or cost < lowest:
            best, lowest = block, cost
        block = tables.following[block]
    if best == NONE or (tables.free[best] > ready and tables.count[rank] < limits.blocks):
        best = _add_block(rank, tables, changes)
        changes.clear()
        _list_block(rank, best, tables)
    end = max(tables.free[best], ready) + nodes.duration[node]
    tables.free[best] = end
    tables.end[node] = end
    tables.receiver[node] = best
    tables.sender[node] = best


def _try_chain(
    first: int,
    channel: int,
    best_finish: int,
    nodes: Nodes,
    sides: Sides,
    tables: Tables,
    limits: Limits,
    changes: Any,
) -> tuple[bool, int, int, int, int]:
    """Try to place a chain on a channel.

    Returns (is not possible, finish time, steps separated into two, delays by busy blocks, new
    blocks). With `is_sparing`, the finish time is that of all work which depends on the chain, but
    at least the deadline. The `ready` times of its nodes must be set. Not possible if a limit is
    exceeded, or if the chain would finish later than `best_finish` (NONE: any time). In all cases
    the changes of the tables remain recorded; the caller undoes or keeps them.

    One block is used for a node if `_is_one_block` permits it. Otherwise one block receives and
    stores the data, and another one then sends it; each takes the full duration of the node.
    """
    finish = limits.deadline if limits.is_sparing else 0
    parted, waits, new_blocks = 0, 0, 0
    begin, node = 0, first
    while node != NONE:
        begin = max(begin, tables.ready[node])
        rank, duration = nodes.rank[node], nodes.duration[node]
        receive, send = sides.receive[node], sides.send[node]
        # Blocks that own the sides of the node's connections, NONE if there is none yet.
        incoming, outgoing = NONE, NONE
        if receive != NONE:
            incoming = tables.owner[channel * limits.sides + receive]
        if send != NONE:
            outgoing = tables.owner[channel * limits.sides + send]
        if _is_one_block(receive, send, incoming, outgoing, tables):
            receiver, is_new, is_over = _claim_block(
                rank, channel, max(incoming, outgoing), receive, send, tables, limits, changes
            )
            new_blocks += 1 if is_new else 0
            sender = receiver
            start = max(begin, tables.free[receiver])
            waits += start - begin
            _set(_FREE, receiver, start + duration, tables, changes)
        else:
            # Separated: the received data is stored, then another block sends it.
            receiver, is_new, is_over = _claim_block(
                rank, channel, incoming, receive, NONE, tables, limits, changes
            )
            new_blocks += 1 if is_new else 0
            stored = max(begin, tables.free[receiver]) + duration
            _set(_FREE, receiver, stored, tables, changes)
            sender, is_new, is_too_many = _claim_block(
                rank, channel, outgoing, NONE, send, tables, limits, changes
            )
            new_blocks += 1 if is_new else 0
            is_over = is_over or is_too_many
            start = max(stored, tables.free[sender])
            _set(_FREE, sender, start + duration, tables, changes)
            waits += start - begin - duration
            parted += 1
        tables.trial_receiver[node] = receiver
        tables.trial_sender[node] = sender
        tables.trial_end[node] = start + duration
        finish = max(finish, start + (sides.tail[node] if limits.is_sparing else duration))
        if is_over or (best_finish != NONE and finish > best_finish):
            return True, finish, parted, waits, new_blocks
        begin = start + nodes.transit[node]
        node = nodes.target[node]
    return False, finish, parted, waits, new_blocks


def _is_one_block(receive: int, send: int, incoming: int, outgoing: int, tables: Tables) -> bool:
    """Return whether one thread block can execute both sides of a node.

    `receive`, `send`: the sides. `incoming`, `outgoing`: blocks that already own them, or NONE.
    True for a node that only receives or only sends. If both sides have an owner, it must be the
    same block. If one has an owner, that block must have no peer in the other direction yet.
    """
    if receive == NONE or send == NONE:
        return True
    if incoming != NONE and outgoing != NONE:
        return incoming == outgoing
    # The owner of one side can take the second side, if it has none yet.
    if incoming != NONE:
        return bool(tables.peer[2 * incoming + _SEND] == NONE)
    return outgoing == NONE or bool(tables.peer[2 * outgoing + _RECV] == NONE)


def _claim_block(
    rank: int,
    channel: int,
    block: int,
    receive: int,
    send: int,
    tables: Tables,
    limits: Limits,
    changes: Any,
) -> tuple[int, bool, bool]:
    """Return a block that takes over sides of connections, whether it is new, and is not allowed.

    `receive`, `send`: the sides, NONE for none; those of a direction in which the block already has
    a peer are skipped. `block`: the block to use, NONE to choose one. If the limits are tight, that
    is the block that becomes free first among those of the rank that use this channel or none and
    have no peer in these directions; otherwise, or without such a block, a new one. It is not
    allowed if the rank then has too many blocks, or too many in one direction of the channel.
    Changes of tables are recorded.
    """
    if block == NONE and limits.is_tight:
        # The block without peers on these sides that becomes free first.
        each = tables.first_block[rank]
        while each != NONE:
            is_fitting = tables.channel_of[each] in (NONE, channel)
            if receive != NONE and tables.peer[2 * each + _RECV] != NONE:
                is_fitting = False
            if send != NONE and tables.peer[2 * each + _SEND] != NONE:
                is_fitting = False
            if is_fitting and (block == NONE or tables.free[each] < tables.free[block]):
                block = each
            each = tables.following[each]
    is_new, is_over = False, False
    if block == NONE:
        block = _add_block(rank, tables, changes)
        is_new = True
        is_over = tables.count[rank] > limits.blocks
    for direction in (_RECV, _SEND):
        side = send if direction == _SEND else receive
        if side == NONE or tables.peer[2 * block + direction] != NONE:
            continue
        _set(_PEER, 2 * block + direction, side, tables, changes)
        _set(_OWNER, channel * limits.sides + side, block, tables, changes)
        _set(_CHANNEL_OF, block, channel, tables, changes)
        place = (channel * limits.ranks + rank) * 2 + direction
        number = tables.crowd[place] + 1
        _set(_CROWD, place, number, tables, changes)
        is_over = is_over or number > limits.crowd
    return block, is_new, is_over


def _add_block(rank: int, tables: Tables, changes: Any) -> int:
    """Add a new block of a rank, free from time 0, and return its number.

    Blocks of all ranks are numbered in the order of creation. Limits are not checked. The change is
    recorded.
    """
    block: int = tables.numbers[0]
    tables.numbers[0] += 1
    tables.count[rank] += 1
    tables.free[block] = 0
    changes.append((_NEW_BLOCK, rank, 0))
    return block


def _set(table: int, place: int, value: int, tables: Tables, changes: Any) -> None:
    """Set an entry of a table, and record its former value."""
    if table == _FREE:
        column = tables.free
    elif table == _PEER:
        column = tables.peer
    elif table == _OWNER:
        column = tables.owner
    elif table == _CHANNEL_OF:
        column = tables.channel_of
    else:
        column = tables.crowd
    changes.append((table, place, column[place]))
    column[place] = value


def _undo(tables: Tables, changes: Any) -> None:
    """Restore all recorded changes, the last one first, and forget them."""
    while len(changes) > 0:
        table, place, value = changes.pop()
        if table == _NEW_BLOCK:
            tables.numbers[0] -= 1
            tables.count[place] -= 1
        elif table == _FREE:
            tables.free[place] = value
        elif table == _PEER:
            tables.peer[place] = value
        elif table == _OWNER:
            tables.owner[place] = value
        elif table == _CHANNEL_OF:
            tables.channel_of[place] = value
        else:
            tables.crowd[place] = value


def as_array(values: Any) -> Int64Array:
    """Return a result of a kernel as an array."""
    return np.asarray(values, np.int64)
