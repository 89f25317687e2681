"""ASTRA-sim's event loop and the set orders that it follows, compiled by numba.

The model is that of the analytical backends of ASTRA-sim (public release of March 2026) with gcc's standard
library. It decides in which order things happen inside one nanosecond, so the order of scheduling and the
iteration order of `std::unordered_set` are part of it. All in one file, because numba's cache notices changes
only in the file of the function that it compiles. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from hub_core import NodeType

Int64Array = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]
Integer = int | np.int64

_Function = TypeVar("_Function", bound=Callable[..., object])


# What only compiled code calls needs no way in from Python; half of the time to compile would go there.
_WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def _compiled(function: _Function) -> _Function:
    """Compile when the first caller is compiled; the typed form of numba's decorator."""
    return cast(_Function, numba.njit(nogil=True, **_WITHOUT_WRAPPERS)(function))


def _entry(function: _Function) -> _Function:
    """Compile on the first call and keep the machine code on disk."""
    try:
        return cast(_Function, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # No folder for the cache can be written to.
        return cast(_Function, numba.njit(nogil=True)(function))


# Records keep together what one event touches, and are small, because memory sets the pace. Times in ns, -1: never.
NODE = np.dtype(
    [
        ("identity", np.uint64),
        ("duration_ns", np.int64),
        ("start", np.int64),
        ("end", np.int64),
        ("slot", np.int32),  # where a begun message meets its other side
        ("hop", np.int32),  # a SEND's next link: an index of `path_link`
        ("last_hop", np.int32),
        ("next_message", np.int32),  # the next one in the line for a link, -1 for none
        ("first_child", np.int32),
        ("children", np.int32),
        ("unmet", np.int32),  # parents that have not ended
        ("rank", np.int32),
        ("key", np.int32),  # equal for messages that match, -1 for local nodes
        ("size_class", np.int32),
        ("latest_child", np.int32),  # used while the graph is built
        ("kind", np.uint8),
    ],
    align=True,
)
RANK = np.dtype(
    [("first", np.int64), ("finish", np.int64), ("ongoing", np.int64), ("buckets", np.int64)],
    align=True,
)
KEY = np.dtype([("first_slot", np.int64), ("sends", np.int64), ("receives", np.int64)], align=True)
LINK = np.dtype(
    [
        ("bytes", np.int64),
        ("busy_ns", np.int64),
        ("first", np.int64),  # messages that wait in line
        ("last", np.int64),
        ("link_class", np.int32),
        ("is_busy", np.bool_),
    ],
    align=True,
)
TIME = np.dtype([("size", np.int64), ("busy_ns", np.int64), ("arrival_ns", np.int64)], align=True)
QUEUE = np.dtype([("first", np.int64), ("size", np.int64)], align=True)
EVENT = np.dtype([("time", np.int64), ("sequence", np.int64), ("item", np.int64)], align=True)
# One element of the hash set in work.
ELEMENT = np.dtype(
    [("row", np.int64), ("identity", np.uint64), ("bucket", np.int64), ("after", np.int64)],
    align=True,
)


class World(NamedTuple):
    """The state of a simulation.

    `rank` has one record more than ranks, for the end of the last one's nodes. `time`: by size class and link
    class. `slot`: what a meeting place holds: the posted RECV, `NOBODY` or _ARRIVED. `is_shared`: messages wait
    for one another on links. Queue 0 holds the events, queue 1 + r the running COMPs of rank r; `counter`: the
    number of events so far. `ended`, `freed`, `parents` (as long as the largest rank, at least 2), `element` (one
    longer) and `before` (a bucket count that holds the largest rank, all -1) are room to work in.
    """

    node: Records
    rank: Records
    key: Records
    link: Records
    time: Records
    slot: Int64Array
    path_link: Int64Array
    child: Int64Array
    queue: Records
    event: Records
    counter: Int64Array
    ended: Int64Array
    freed: Int64Array
    parents: Int64Array
    element: Records
    before: Int64Array
    is_shared: bool


class Parents(NamedTuple):
    """The dependencies of a `NodeTable`."""

    data_indptr: Int64Array
    data_indices: Int64Array
    control_indptr: Int64Array
    control_indices: Int64Array


# Bucket counts of libstdc++'s hash sets as they grow one by one from empty.
BUCKET_COUNTS = (
    13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061, 712697, 1447153, 2938679,
    5967347, 12117689,
)  # fmt: skip
NOBODY, _ARRIVED = -1, -2
# Typed, since numba compiles a function once more for a literal argument.
_EMPTY_SET, _EVENTS, _START_NS = np.int64(1), np.int64(0), np.int64(0)
_DELIVERY, _LINK_FREE, _COMPUTED, _RECEIVED = 0, 1, 2, 3
_SEND, _RECV, _COMP = int(NodeType.COMM_SEND), int(NodeType.COMM_RECV), int(NodeType.COMP)


@_entry
def run(world: World, parents: Parents) -> bool:
    """Simulate until nothing is left to happen; return whether the start schedules an event at time 0."""
    _link_children(world, parents)
    for rank in range(len(world.rank) - 1):
        _start(rank, world, parents)
    has_event_at_zero = bool(world.queue[0]["size"] > 0 and world.event[0]["time"] == 0)
    while world.queue[0]["size"] > 0:
        now, event = _pop(world.event, world.queue, _EVENTS)
        for position in range(_happen(event & 3, event >> 2, now, world)):
            _finish(world.ended[position], now, world)
    return has_event_at_zero


@_compiled
def _happen(kind: Integer, item: Integer, now: Integer, world: World) -> Integer:
    """Let an event happen; write the nodes that end by it to `world.ended`, in order, and return their number."""
    if kind == _DELIVERY:
        return _arrive(item, now, world)
    if kind == _LINK_FREE:
        _free_link(item, now, world)
        return 0
    if kind == _RECEIVED:
        world.ended[0] = item
        return 1
    return _end_batch(item, now, world)


# --- the nodes of one rank ---


@_compiled
def _start(rank: Integer, world: World, parents: Parents) -> None:
    """Issue the nodes without parents in the order of the set that ASTRA-sim's graph resolver fills with them."""
    count = _touch_order(rank, world, parents)
    _set_order(world.freed, count, _EMPTY_SET, world)
    roots = 0
    for position in range(count):
        row = world.freed[position]
        if world.node[row]["unmet"] == 0:
            world.freed[roots] = row
            roots += 1
    world.rank[rank]["buckets"] = _set_order(world.freed, roots, _EMPTY_SET, world)
    for position in range(roots):
        _issue(world.freed[position], _START_NS, world)


@_compiled
def _issue(row: Integer, now: Integer, world: World) -> None:
    node = world.node[row]
    node["start"] = now
    world.rank[node["rank"]]["ongoing"] += 1
    kind = node["kind"]
    if kind == _SEND:
        key = world.key[node["key"]]
        node["slot"] = key["first_slot"] + key["sends"]
        key["sends"] += 1
        _put(row, now, world)
    elif kind == _RECV:
        _post(row, now, world)
    elif kind == _COMP:
        end = now + node["duration_ns"]
        rank = np.int64(node["rank"])
        _push(world, 1 + rank, end, row)
        _push(world, _EVENTS, end, (rank << 2) | _COMPUTED)
    # A node of any other type stays unfinished for ever, as in ASTRA-sim.


@_compiled
def _post(row: Integer, now: Integer, world: World) -> None:
    """Post a RECV. If its message is there, it finishes in the same instant, but through the event queue."""
    key = world.key[world.node[row]["key"]]
    slot = key["first_slot"] + key["receives"]
    key["receives"] += 1
    world.node[row]["slot"] = slot
    if world.slot[slot] == _ARRIVED:
        _push(world, _EVENTS, now, (row << 2) | _RECEIVED)
    else:
        world.slot[slot] = row


@_compiled
def _end_batch(rank: Integer, now: Integer, world: World) -> Integer:
    """All COMPs of a rank that end now do so one after the other, when the first one's event happens.

    They end in the order in which they began. The events of the others then find nothing left to do.
    """
    queue = world.queue[1 + rank]
    count = 0
    while queue["size"] > 0 and world.event[queue["first"]]["time"] == now:
        _, world.ended[count] = _pop(world.event, world.queue, 1 + rank)
        count += 1
    return count


@_compiled
def _finish(row: Integer, now: Integer, world: World) -> None:
    node = world.node[row]
    rank = world.rank[node["rank"]]
    node["end"] = now
    rank["ongoing"] -= 1
    count = 0
    for edge in range(node["first_child"], node["first_child"] + node["children"]):
        child = world.child[edge]
        world.node[child]["unmet"] -= 1
        if world.node[child]["unmet"] == 0:
            world.freed[count] = child
            count += 1
    # The set of free nodes is empty before and after, but keeps its number of buckets.
    rank["buckets"] = _set_order(world.freed, count, rank["buckets"], world)
    for position in range(count):
        _issue(world.freed[position], now, world)
    if rank["ongoing"] == 0:
        rank["finish"] = now


# --- the network ---


@_compiled
def _put(row: Integer, now: Integer, world: World) -> None:
    """Put a message on the next link of its route, or in the line of those that wait for it."""
    index = world.path_link[world.node[row]["hop"]]
    link = world.link[index]
    if not link["is_busy"]:
        _transmit(index, row, now, world)
    elif link["first"] < 0:
        link["first"] = row
        link["last"] = row
    else:
        world.node[link["last"]]["next_message"] = row
        link["last"] = row


@_compiled
def _transmit(index: Integer, row: Integer, now: Integer, world: World) -> None:
    node, link = world.node[row], world.link[index]
    time = world.time[node["size_class"], link["link_class"]]
    _push(world, _EVENTS, now + time["arrival_ns"], (row << 2) | _DELIVERY)
    if world.is_shared:
        link["is_busy"] = True
        link["bytes"] += time["size"]
        link["busy_ns"] += time["busy_ns"]
        _push(world, _EVENTS, now + time["busy_ns"], (index << 2) | _LINK_FREE)


@_compiled
def _free_link(index: Integer, now: Integer, world: World) -> None:
    link = world.link[index]
    link["is_busy"] = False
    row = link["first"]
    if row >= 0:
        link["first"] = world.node[row]["next_message"]
        world.node[row]["next_message"] = -1
        _transmit(index, row, now, world)


@_compiled
def _arrive(row: Integer, now: Integer, world: World) -> Integer:
    """Pass a whole message on, or deliver it: the SEND ends, after it the RECV if it is posted."""
    node = world.node[row]
    if node["hop"] < node["last_hop"]:
        node["hop"] += 1
        _put(row, now, world)
        return 0
    world.ended[0] = row
    receiver = world.slot[node["slot"]]
    if receiver < 0:
        world.slot[node["slot"]] = _ARRIVED
        return 1
    world.ended[1] = receiver
    return 2


# --- binary heaps by (time, order of scheduling) ---


@_compiled
def _push(world: World, queue: Integer, time: Integer, item: Integer) -> None:
    sequence = world.counter[0]
    world.counter[0] = sequence + 1
    _insert(world.event, world.queue, queue, time, sequence, item)


@_compiled
def _insert(
    event: Records, queues: Records, queue: Integer, time: Integer, sequence: Integer, item: Integer
) -> None:
    first, hole = queues[queue]["first"], queues[queue]["size"]
    queues[queue]["size"] = hole + 1
    # A new entry has the largest sequence number, so among equal times it stays below.
    while hole > 0:
        parent = (hole - 1) >> 1
        if event[first + parent]["time"] <= time:
            break
        _copy(event, first + parent, first + hole)
        hole = parent
    event[first + hole]["time"] = time
    event[first + hole]["sequence"] = sequence
    event[first + hole]["item"] = item


@_compiled
def _pop(event: Records, queues: Records, queue: Integer) -> tuple[Integer, Integer]:
    first = queues[queue]["first"]
    top_time, top_item = event[first]["time"], event[first]["item"]
    size = queues[queue]["size"] - 1
    queues[queue]["size"] = size
    hole, child = 0, 1
    while child < size:
        if child + 1 < size and _is_before(event, first + child + 1, first + child):
            child += 1
        if _is_before(event, first + size, first + child):
            break
        _copy(event, first + child, first + hole)
        hole, child = child, 2 * child + 1
    _copy(event, first + size, first + hole)
    return top_time, top_item


@_compiled
def _is_before(event: Records, one: Integer, other: Integer) -> bool:
    if event[one]["time"] != event[other]["time"]:
        return bool(event[one]["time"] < event[other]["time"])
    return bool(event[one]["sequence"] < event[other]["sequence"])


@_compiled
def _copy(event: Records, origin: Integer, destination: Integer) -> None:
    event[destination]["time"] = event[origin]["time"]
    event[destination]["sequence"] = event[origin]["sequence"]
    event[destination]["item"] = event[origin]["item"]


# --- the graph of one rank, and the iteration order of its hash sets ---


@_compiled
def _link_children(world: World, parents: Parents) -> None:
    """List who waits for a node, in the iteration order of the set that holds them, and count a node's parents."""
    for row in range(len(world.node)):
        unmet = _distinct_parents(row, world, parents)
        world.node[row]["unmet"] = unmet
        for position in range(unmet):
            world.node[world.parents[position]]["children"] += 1
    total = 0
    for row in range(len(world.node)):
        node = world.node[row]
        node["first_child"] = total
        node["latest_child"] = -1
        total += node["children"]
        node["children"] = 0
    for row in range(len(world.node)):
        for position in range(_distinct_parents(row, world, parents)):
            parent = world.node[world.parents[position]]
            world.child[parent["first_child"] + parent["children"]] = row
            parent["children"] += 1
    for row in range(len(world.node)):
        node = world.node[row]
        node["latest_child"] = -1
        first, count = np.int64(node["first_child"]), np.int64(node["children"])
        _set_order(world.child[first : first + count], count, _EMPTY_SET, world)


@_compiled
def _distinct_parents(row: Integer, world: World, parents: Parents) -> Integer:
    """Write the parents of a node to `world.parents`, data before control, each once; return their number."""
    count: Integer = 0
    for edge in range(parents.data_indptr[row], parents.data_indptr[row + 1]):
        count = _add_parent(parents.data_indices[edge], row, count, world)
    for edge in range(parents.control_indptr[row], parents.control_indptr[row + 1]):
        count = _add_parent(parents.control_indices[edge], row, count, world)
    return count


@_compiled
def _add_parent(parent: Integer, row: Integer, count: Integer, world: World) -> Integer:
    if world.node[parent]["latest_child"] == row:
        return count
    world.node[parent]["latest_child"] = row
    world.parents[count] = parent
    return count + 1


@_compiled
def _touch_order(rank: Integer, world: World, parents: Parents) -> Integer:
    """Write the nodes of a rank to `world.freed` as its file first names them, as a node or as a dependency."""
    first, end = world.rank[rank]["first"], world.rank[rank + 1]["first"]
    is_touched = np.zeros(end - first, np.bool_)
    count: Integer = 0
    for row in range(first, end):
        count = _touch(row, first, is_touched, world.freed, count)
        if not _has_forward_parent(row, parents):
            continue
        named = _distinct_parents(row, world, parents)
        _set_order(world.parents, named, _EMPTY_SET, world)
        for position in range(named):
            count = _touch(world.parents[position], first, is_touched, world.freed, count)
    return count


@_compiled
def _has_forward_parent(row: Integer, parents: Parents) -> bool:
    for edge in range(parents.data_indptr[row], parents.data_indptr[row + 1]):
        if parents.data_indices[edge] > row:
            return True
    for edge in range(parents.control_indptr[row], parents.control_indptr[row + 1]):
        if parents.control_indices[edge] > row:
            return True
    return False


@_compiled
def _touch(
    row: Integer,
    first: Integer,
    is_touched: npt.NDArray[np.bool_],
    touched: Int64Array,
    count: Integer,
) -> Integer:
    if is_touched[row - first]:
        return count
    is_touched[row - first] = True
    touched[count] = row
    return count + 1


@_compiled
def _set_order(rows: Int64Array, count: Integer, buckets: Integer, world: World) -> Integer:
    """Put the first `count` rows, given as inserted, in the iteration order of libstdc++'s unordered_set.

    Keys are the ids of the nodes, hashed to themselves. The set is empty before and has `buckets` buckets; the
    number that it has afterwards is returned. Cost: linear.
    """
    if count < 3:
        if count == 2:
            rows[0], rows[1] = rows[1], rows[0]
        return buckets if count == 0 else max(buckets, BUCKET_COUNTS[0])
    return _long_set_order(rows[:count], buckets, world.node, world.element, world.before)


@_compiled
def _long_set_order(
    rows: Int64Array, buckets: Integer, node: Records, element: Records, before: Int64Array
) -> Integer:
    """As `_set_order`, by a linked list of positions; `before`: the position before a bucket's first element."""
    head = len(rows)
    element[head]["after"] = -1
    for position in range(len(rows)):
        element[position]["row"] = rows[position]
        element[position]["identity"] = node[rows[position]]["identity"]
        if buckets == _EMPTY_SET or position == buckets:
            buckets = _grow(head, buckets, element, before)
        _place(position, head, buckets, element, before)
    position = element[head]["after"]
    for index in range(len(rows)):
        rows[index] = element[position]["row"]
        before[element[position]["bucket"]] = -1
        position = element[position]["after"]
    return buckets


@_compiled
def _place(
    position: Integer, head: Integer, buckets: Integer, element: Records, before: Int64Array
) -> None:
    """Link an element in before the first one of its bucket, or at the front when the bucket is empty."""
    bucket = np.int64(element[position]["identity"] % np.uint64(buckets))
    element[position]["bucket"] = bucket
    previous = before[bucket]
    if previous < 0:
        previous = head
        front = element[head]["after"]
        if front >= 0:
            before[element[front]["bucket"]] = position
        before[bucket] = head
    element[position]["after"] = element[previous]["after"]
    element[previous]["after"] = position


@_compiled
def _grow(head: Integer, buckets: Integer, element: Records, before: Int64Array) -> Integer:
    """Take the next number of buckets and place all elements anew, in the order in which they stand."""
    before[:buckets] = -1
    for larger in BUCKET_COUNTS:
        if larger > buckets:
            buckets = larger
            break
    position = element[head]["after"]
    element[head]["after"] = -1
    while position >= 0:
        following = element[position]["after"]
        _place(position, head, buckets, element, before)
        position = following
    return buckets
