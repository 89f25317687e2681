"""ASTRA-sim's event loop and the set orders that it follows, compiled by numba.

The model is that of the analytical backends of ASTRA-sim (public release of March 2026) with gcc's standard
library. It decides in which order things happen inside one nanosecond, so the order of scheduling and the
iteration order of `std::unordered_set` are part of it. All in one file, because numba's cache notices changes
only in the file of the function that it compiles. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from hub_core.chakra.nodes import NodeType

__all__ = ["MAX_NODES_PER_RANK", "Network", "Nodes", "Outcome", "run"]

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

_Function = TypeVar("_Function", bound=Callable[..., object])


def _compiled(function: _Function) -> _Function:
    """Compile on the first call and keep the machine code on disk; the typed form of numba's decorator."""
    return cast(_Function, numba.njit(cache=True, nogil=True)(function))


class Nodes(NamedTuple):
    """The nodes of all ranks in file order, ready for the kernel. One entry a node unless stated.

    `key`: int32, equal for messages that match each other, -1 for local nodes; `size_class`: int32, row of the
    time tables of `Network`; `path`: int32, route of a SEND, else -1. `slot_base` int64[keys + 1]: where the
    messages of a key have their meeting places. `rank_indptr` and the dependencies as in `NodeTable`.
    """

    rank_indptr: Int64Array
    rank: Int32Array
    identity: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint8]
    duration_ns: Int64Array
    size: Int64Array
    size_class: Int32Array
    key: Int32Array
    path: Int32Array
    slot_base: Int64Array
    data_indptr: Int64Array
    data_indices: Int64Array
    control_indptr: Int64Array
    control_indices: Int64Array


class Network(NamedTuple):
    """Links, routes and times. `is_shared`: messages wait for one another on a link.

    Route p takes the links `path_links[path_indptr[p]:path_indptr[p + 1]]`; a message of size class s occupies
    link l for `busy_ns[s, link_class[l]]` and arrives at its end after `arrival_ns[s, link_class[l]]`.
    """

    path_indptr: Int64Array
    path_links: Int64Array
    link_class: Int32Array
    busy_ns: Int64Array
    arrival_ns: Int64Array
    is_shared: bool


class Outcome(NamedTuple):
    """Times in ns, -1 for never: `start` and `end` of nodes, `finish` of ranks; traffic of links.

    `slot`: int64 per node, the meeting place of an issued message, -1 otherwise.
    `has_event_at_zero`: the start schedules an event at time 0, where ASTRA-sim aborts.
    """

    start: Int64Array
    end: Int64Array
    slot: Int64Array
    finish: Int64Array
    link_bytes: Int64Array
    link_busy_ns: Int64Array
    has_event_at_zero: bool


class _Scratch(NamedTuple):
    """Room for the work on one rank's sets.

    The set in work is a linked list: `after` by position, `before` by bucket (the position before its first
    element, -1 between uses), `order` to copy it out. `parents`: distinct parents of one node, where `mark`
    (by node) tells which node they were last collected for.
    """

    after: Int64Array
    before: Int64Array
    order: Int64Array
    parents: Int64Array
    mark: Int64Array


class _State(NamedTuple):
    """Everything that changes during a run.

    `unmet` counts the parents that a node waits for; `hop` the links that a message has passed; `bucket_count`
    is the size of a rank's set of free nodes. `receiver` is what a meeting place holds: the posted RECV,
    _NOBODY or _ARRIVED. `link_first`, `link_last`, `next_message`: messages waiting for a busy link.
    Queue 0 holds the events; queue 1 + r the running COMPs of rank r. `counter`: events scheduled so far.
    """

    child_indptr: Int64Array
    children: Int64Array
    unmet: Int64Array
    hop: Int32Array
    ongoing: Int64Array
    bucket_count: Int64Array
    send_count: Int64Array
    receive_count: Int64Array
    receiver: Int64Array
    is_busy: npt.NDArray[np.bool_]
    link_first: Int64Array
    link_last: Int64Array
    next_message: Int64Array
    queue_base: Int64Array
    queue_size: Int64Array
    queue_time: Int64Array
    queue_sequence: Int64Array
    queue_item: Int64Array
    counter: Int64Array
    freed: Int64Array


# Bucket counts of libstdc++'s hash sets as they double from empty.
_BUCKET_COUNTS = (
    13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061, 712697, 1447153, 2938679,
    5967347, 12117689,
)  # fmt: skip
MAX_NODES_PER_RANK = _BUCKET_COUNTS[-1]
_EMPTY_SET = 1
_NOBODY, _ARRIVED = -1, -2
_DELIVERY, _LINK_FREE, _COMPUTED, _RECEIVED = 0, 1, 2, 3
_SEND, _RECV, _COMP = int(NodeType.COMM_SEND), int(NodeType.COMM_RECV), int(NodeType.COMP)


@_compiled
def run(nodes: Nodes, network: Network) -> Outcome:
    """Simulate until nothing is left to happen."""
    outcome, state, scratch = _prepare(nodes, network)
    for rank in range(len(nodes.rank_indptr) - 1):
        _start(rank, nodes, network, state, outcome, scratch)
    has_event_at_zero = state.queue_size[0] > 0 and state.queue_time[0] == 0
    while state.queue_size[0] > 0:
        now, event = _pop(state, 0)
        kind, item = event & 3, event >> 2
        if kind == _DELIVERY:
            _arrive(item, now, nodes, network, state, outcome, scratch)
        elif kind == _LINK_FREE:
            _free_link(item, now, nodes, network, state, outcome)
        elif kind == _RECEIVED:
            _finish(item, now, nodes, network, state, outcome, scratch)
        else:
            _run_batch(item, now, nodes, network, state, outcome, scratch)
    return Outcome(
        outcome.start,
        outcome.end,
        outcome.slot,
        outcome.finish,
        outcome.link_bytes,
        outcome.link_busy_ns,
        has_event_at_zero,
    )


@_compiled
def _prepare(nodes: Nodes, network: Network) -> tuple[Outcome, _State, _Scratch]:
    count, ranks, links = len(nodes.rank), len(nodes.rank_indptr) - 1, len(network.link_class)
    keys = len(nodes.slot_base) - 1
    largest = max(1, np.diff(nodes.rank_indptr).max())
    scratch = _Scratch(
        np.empty(largest + 1, np.int64),
        np.full(_bucket_count_for(largest), -1, np.int64),
        np.empty(largest, np.int64),
        np.empty(largest, np.int64),
        np.full(count, -1, np.int64),
    )
    child_indptr, children, unmet = _children(nodes, scratch)
    # At most one event is pending per node and per link, at most one running COMP per node.
    base = np.empty(ranks + 1, np.int64)
    base[0] = 0
    base[1:] = count + links + nodes.rank_indptr[:-1]
    capacity = 2 * count + links + 1
    state = _State(
        child_indptr,
        children,
        unmet,
        np.zeros(count, np.int32),
        np.zeros(ranks, np.int64),
        np.full(ranks, _EMPTY_SET, np.int64),
        np.zeros(keys, np.int64),
        np.zeros(keys, np.int64),
        np.full(nodes.slot_base[-1], _NOBODY, np.int64),
        np.zeros(links, np.bool_),
        np.full(links, -1, np.int64),
        np.full(links, -1, np.int64),
        np.full(count, -1, np.int64),
        base,
        np.zeros(ranks + 1, np.int64),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
        np.zeros(1, np.int64),
        np.empty(largest, np.int64),
    )
    outcome = Outcome(
        np.full(count, -1, np.int64),
        np.full(count, -1, np.int64),
        np.full(count, -1, np.int64),
        np.full(ranks, -1, np.int64),
        np.zeros(links, np.int64),
        np.zeros(links, np.int64),
        False,
    )
    return outcome, state, scratch


# --- the nodes of one rank ---


@_compiled
def _start(rank: int, nodes: Nodes, network: Network, state: _State, outcome: Outcome, scratch: _Scratch) -> None:
    """Issue the nodes without parents in the order of the set that ASTRA-sim's graph resolver fills with them."""
    count = _touch_order(rank, nodes, state.freed, scratch)
    _set_order(state.freed, 0, count, _EMPTY_SET, nodes.identity, scratch)
    roots = 0
    for position in range(count):
        row = state.freed[position]
        if state.unmet[row] == 0:
            state.freed[roots] = row
            roots += 1
    state.bucket_count[rank] = _set_order(state.freed, 0, roots, _EMPTY_SET, nodes.identity, scratch)
    for position in range(roots):
        _issue(state.freed[position], 0, nodes, network, state, outcome)


@_compiled
def _issue(row: int, now: int, nodes: Nodes, network: Network, state: _State, outcome: Outcome) -> None:
    rank = nodes.rank[row]
    outcome.start[row] = now
    state.ongoing[rank] += 1
    kind = nodes.kind[row]
    if kind == _SEND:
        key = nodes.key[row]
        outcome.slot[row] = nodes.slot_base[key] + state.send_count[key]
        state.send_count[key] += 1
        _put(row, now, nodes, network, state, outcome)
    elif kind == _RECV:
        _post(row, now, nodes, state, outcome)
    elif kind == _COMP:
        end = now + nodes.duration_ns[row]
        _push(state, 1 + rank, end, row)
        _push(state, 0, end, (np.int64(rank) << 2) | _COMPUTED)
    # A node of any other type stays unfinished for ever, as in ASTRA-sim.


@_compiled
def _post(row: int, now: int, nodes: Nodes, state: _State, outcome: Outcome) -> None:
    """Post a RECV. If its message is there, it finishes in the same instant, but through the event queue."""
    key = nodes.key[row]
    slot = nodes.slot_base[key] + state.receive_count[key]
    state.receive_count[key] += 1
    outcome.slot[row] = slot
    if state.receiver[slot] == _ARRIVED:
        _push(state, 0, now, (row << 2) | _RECEIVED)
    else:
        state.receiver[slot] = row


@_compiled
def _run_batch(
    rank: int, now: int, nodes: Nodes, network: Network, state: _State, outcome: Outcome, scratch: _Scratch
) -> None:
    """Finish all COMPs of a rank that end now, in the order in which they began; the first one's event calls it.

    The events of the others then find nothing left to do. A COMP takes time, so none can join meanwhile.
    """
    queue = 1 + rank
    while state.queue_size[queue] > 0 and state.queue_time[state.queue_base[queue]] == now:
        _, row = _pop(state, queue)
        _finish(row, now, nodes, network, state, outcome, scratch)


@_compiled
def _finish(row: int, now: int, nodes: Nodes, network: Network, state: _State, outcome: Outcome, scratch: _Scratch) -> None:
    rank = nodes.rank[row]
    outcome.end[row] = now
    state.ongoing[rank] -= 1
    count = 0
    for edge in range(state.child_indptr[row], state.child_indptr[row + 1]):
        child = state.children[edge]
        state.unmet[child] -= 1
        if state.unmet[child] == 0:
            state.freed[count] = child
            count += 1
    # The set of free nodes is empty before and after, but keeps its number of buckets.
    state.bucket_count[rank] = _set_order(state.freed, 0, count, state.bucket_count[rank], nodes.identity, scratch)
    for position in range(count):
        _issue(state.freed[position], now, nodes, network, state, outcome)
    if state.ongoing[rank] == 0:
        outcome.finish[rank] = now


# --- the network ---


@_compiled
def _put(row: int, now: int, nodes: Nodes, network: Network, state: _State, outcome: Outcome) -> None:
    """Put a message on the next link of its route, or in the line of those that wait for it."""
    link = network.path_links[network.path_indptr[nodes.path[row]] + state.hop[row]]
    if not state.is_busy[link]:
        _transmit(link, row, now, nodes, network, state, outcome)
    elif state.link_first[link] < 0:
        state.link_first[link] = state.link_last[link] = row
    else:
        state.next_message[state.link_last[link]] = row
        state.link_last[link] = row


@_compiled
def _transmit(link: int, row: int, now: int, nodes: Nodes, network: Network, state: _State, outcome: Outcome) -> None:
    size_class, link_class = nodes.size_class[row], network.link_class[link]
    _push(state, 0, now + network.arrival_ns[size_class, link_class], (row << 2) | _DELIVERY)
    if network.is_shared:
        busy = network.busy_ns[size_class, link_class]
        state.is_busy[link] = True
        outcome.link_bytes[link] += nodes.size[row]
        outcome.link_busy_ns[link] += busy
        _push(state, 0, now + busy, (link << 2) | _LINK_FREE)


@_compiled
def _free_link(link: int, now: int, nodes: Nodes, network: Network, state: _State, outcome: Outcome) -> None:
    state.is_busy[link] = False
    row = state.link_first[link]
    if row >= 0:
        state.link_first[link] = state.next_message[row]
        state.next_message[row] = -1
        _transmit(link, row, now, nodes, network, state, outcome)


@_compiled
def _arrive(row: int, now: int, nodes: Nodes, network: Network, state: _State, outcome: Outcome, scratch: _Scratch) -> None:
    """Pass a whole message on, or deliver it: the SEND finishes first, then the RECV if it is posted."""
    state.hop[row] += 1
    path = nodes.path[row]
    if network.path_indptr[path] + state.hop[row] < network.path_indptr[path + 1]:
        _put(row, now, nodes, network, state, outcome)
        return
    slot = outcome.slot[row]
    receiver = state.receiver[slot]
    _finish(row, now, nodes, network, state, outcome, scratch)
    if receiver >= 0:
        _finish(receiver, now, nodes, network, state, outcome, scratch)
    else:
        state.receiver[slot] = _ARRIVED


# --- binary heaps by (time, order of scheduling) ---


@_compiled
def _push(state: _State, queue: int, time: int, item: int) -> None:
    base = state.queue_base[queue]
    hole = state.queue_size[queue]
    state.queue_size[queue] = hole + 1
    sequence = state.counter[0]
    state.counter[0] = sequence + 1
    # A new entry has the largest sequence number, so among equal times it stays below.
    while hole > 0:
        parent = (hole - 1) >> 1
        if state.queue_time[base + parent] <= time:
            break
        _move(state, base + parent, base + hole)
        hole = parent
    state.queue_time[base + hole] = time
    state.queue_sequence[base + hole] = sequence
    state.queue_item[base + hole] = item


@_compiled
def _pop(state: _State, queue: int) -> tuple[int, int]:
    base = state.queue_base[queue]
    first_time, first_item = state.queue_time[base], state.queue_item[base]
    size = state.queue_size[queue] - 1
    state.queue_size[queue] = size
    time, sequence = state.queue_time[base + size], state.queue_sequence[base + size]
    hole, child = 0, 1
    while child < size:
        if child + 1 < size and _is_before(state, base + child + 1, base + child):
            child += 1
        child_time = state.queue_time[base + child]
        if time < child_time or (time == child_time and sequence < state.queue_sequence[base + child]):
            break
        _move(state, base + child, base + hole)
        hole, child = child, 2 * child + 1
    _move(state, base + size, base + hole)
    return first_time, first_item


@_compiled
def _is_before(state: _State, one: int, other: int) -> bool:
    if state.queue_time[one] != state.queue_time[other]:
        return bool(state.queue_time[one] < state.queue_time[other])
    return bool(state.queue_sequence[one] < state.queue_sequence[other])


@_compiled
def _move(state: _State, origin: int, destination: int) -> None:
    state.queue_time[destination] = state.queue_time[origin]
    state.queue_sequence[destination] = state.queue_sequence[origin]
    state.queue_item[destination] = state.queue_item[origin]


# --- the graph of one rank, and the iteration order of its hash sets ---


@_compiled
def _children(nodes: Nodes, scratch: _Scratch) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Who waits for a node, in the iteration order of the set that holds them; and how many parents a node has."""
    count = len(nodes.rank)
    unmet = np.zeros(count, np.int64)
    # Shifted by one: the second pass moves every start to the end of its list.
    indptr = np.zeros(count + 2, np.int64)
    for row in range(count):
        unmet[row] = _distinct_parents(row, nodes, scratch)
        for position in range(unmet[row]):
            indptr[scratch.parents[position] + 2] += 1
    indptr[:] = np.cumsum(indptr)
    children = np.empty(indptr[-1], np.int64)
    scratch.mark[:] = -1
    for row in range(count):
        for position in range(_distinct_parents(row, nodes, scratch)):
            parent = scratch.parents[position]
            children[indptr[parent + 1]] = row
            indptr[parent + 1] += 1
    for parent in range(count):
        _set_order(children, indptr[parent], indptr[parent + 1] - indptr[parent], _EMPTY_SET, nodes.identity, scratch)
    scratch.mark[:] = -1
    return indptr[:-1], children, unmet


@_compiled
def _distinct_parents(row: int, nodes: Nodes, scratch: _Scratch) -> int:
    """Write the parents of a node to `scratch.parents`, data before control, each once; return their number."""
    count = 0
    for edge in range(nodes.data_indptr[row], nodes.data_indptr[row + 1]):
        count = _add_parent(nodes.data_indices[edge], row, count, scratch)
    for edge in range(nodes.control_indptr[row], nodes.control_indptr[row + 1]):
        count = _add_parent(nodes.control_indices[edge], row, count, scratch)
    return count


@_compiled
def _add_parent(parent: int, row: int, count: int, scratch: _Scratch) -> int:
    if scratch.mark[parent] == row:
        return count
    scratch.mark[parent] = row
    scratch.parents[count] = parent
    return count + 1


@_compiled
def _touch_order(rank: int, nodes: Nodes, touched: Int64Array, scratch: _Scratch) -> int:
    """List the nodes of a rank in the order in which its file first names them, as a node or as a dependency."""
    first, end = nodes.rank_indptr[rank], nodes.rank_indptr[rank + 1]
    is_touched = np.zeros(end - first, np.bool_)
    count = 0
    for row in range(first, end):
        count = _touch(row, first, is_touched, touched, count)
        parents = _distinct_parents(row, nodes, scratch)
        _set_order(scratch.parents, 0, parents, _EMPTY_SET, nodes.identity, scratch)
        for position in range(parents):
            count = _touch(scratch.parents[position], first, is_touched, touched, count)
    return count


@_compiled
def _touch(row: int, first: int, is_touched: npt.NDArray[np.bool_], touched: Int64Array, count: int) -> int:
    if is_touched[row - first]:
        return count
    is_touched[row - first] = True
    touched[count] = row
    return count + 1


@_compiled
def _set_order(
    rows: Int64Array, first: int, count: int, buckets: int, identity: npt.NDArray[np.uint64], scratch: _Scratch
) -> int:
    """Put `rows[first:first + count]`, given as inserted, in the iteration order of libstdc++'s unordered_set.

    Keys are the ids of the nodes, hashed to themselves. The set is empty before and has `buckets` buckets; the
    number that it has afterwards is returned. Cost: linear.
    """
    if count < 3:
        if count == 2:
            rows[first], rows[first + 1] = rows[first + 1], rows[first]
        return buckets if count == 0 else max(buckets, _BUCKET_COUNTS[0])
    head = count
    scratch.after[head] = -1
    for position in range(count):
        if buckets == _EMPTY_SET or position == buckets:
            buckets = _grow(rows, first, head, buckets, identity, scratch)
        _place(position, rows, first, head, buckets, identity, scratch)
    position = scratch.after[head]
    for index in range(count):
        scratch.order[index] = rows[first + position]
        scratch.before[_bucket(position, rows, first, buckets, identity)] = -1
        position = scratch.after[position]
    rows[first : first + count] = scratch.order[:count]
    return buckets


@_compiled
def _place(
    position: int, rows: Int64Array, first: int, head: int, buckets: int, identity: npt.NDArray[np.uint64], scratch: _Scratch
) -> None:
    """Link an element in before the first one of its bucket, or at the front when the bucket is empty."""
    bucket = _bucket(position, rows, first, buckets, identity)
    previous = scratch.before[bucket]
    if previous < 0:
        previous = head
        front = scratch.after[head]
        if front >= 0:
            scratch.before[_bucket(front, rows, first, buckets, identity)] = position
        scratch.before[bucket] = head
    scratch.after[position] = scratch.after[previous]
    scratch.after[previous] = position


@_compiled
def _grow(rows: Int64Array, first: int, head: int, buckets: int, identity: npt.NDArray[np.uint64], scratch: _Scratch) -> int:
    """Take the next number of buckets and place all elements anew, in the order in which they stand."""
    position = scratch.after[head]
    while position >= 0:
        scratch.before[_bucket(position, rows, first, buckets, identity)] = -1
        position = scratch.after[position]
    buckets = _bucket_count_for(buckets + 1)
    position = scratch.after[head]
    scratch.after[head] = -1
    while position >= 0:
        following = scratch.after[position]
        _place(position, rows, first, head, buckets, identity, scratch)
        position = following
    return buckets


@_compiled
def _bucket(position: int, rows: Int64Array, first: int, buckets: int, identity: npt.NDArray[np.uint64]) -> int:
    return np.int64(identity[rows[first + position]] % np.uint64(buckets))


@_compiled
def _bucket_count_for(elements: int) -> int:
    for buckets in _BUCKET_COUNTS:
        if buckets >= elements:
            return buckets
    return 0
