"""ASTRA-sim's event loop and the set orders that it follows, as a kernel.

The algorithm is a discrete-event simulation, one step of the model an event: events of one time
stand in line in a bucket, buckets in a binary heap by (time, order of making). The model is that of
the analytical backends of ASTRA-sim (public release of March 2026: `EventQueue`, `Link`, `Chunk` of
astra-network-analytical, `CustomAlgorithm` and `CallbackTracker` of the simulator, `ETFeeder`
version 3 of Chakra) with gcc's standard library. Messages are stored and forwarded whole; a link
sends one at a time, first come, first served; the n-th receive of a key meets the n-th send of that
key.

Invariant: events come out in the order in which ASTRA-sim calls its callbacks, also within one
nanosecond. That order decides who gets a link first, so the order of scheduling and the iteration
order of `std::unordered_set` are part of the model, not an accident of it.

Cost: O(1) for an event whose time has a bucket, as in symmetric algorithms nearly all have, else
O(log n); a message has two events a link (one without congestion), local work one, so the whole is
at most O(h log h) for h hops of messages. The graph and its sets cost O(nodes + edges).

The kernel is plain Python; `compiling` explains when it runs as machine code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collhub_astra_sim.compiling import Kernel, compiled, outlined
from collhub_astra_sim.simulating.event_queue import (
    BUCKETS,
    Integer,
    Records,
    end_bucket,
    insert,
    next_event,
    pop,
    push,
)
from collhub_astra_sim.simulating.set_order import EMPTY_SET, set_order
from hub_core import NodeTable, NodeType
from hub_core.columns import BoolArray, Int32Array, Int64Array, UInt64Array

# Records keep together what one event touches, and are small, because memory sets the pace: the
# nodes of a large simulation exceed every cache. Times in ns, -1: never.
NODE = np.dtype(
    [
        ("start", np.int64),
        ("end", np.int64),
        # Of a COMP its duration in ns, of a SEND its next and its last link, both indices of
        # `path_link`: the last one times 2^32, and the next one.
        ("work", np.int64),
        # Where a message meets its other side; -1 before it begins, if its key has several places.
        ("slot", np.int32),
        ("next_message", np.int32),  # the next one in the line for a link, -1 for none
        ("first_child", np.int32),
        ("children", np.int32),
        ("unmet", np.int32),  # parents that have not ended
        ("rank", np.int32),
        ("key", np.int32),  # equal for messages that match, -1 for local nodes
        ("size_class", np.int32),
        ("kind", np.uint8),
    ],
    align=True,
)
RANK = np.dtype(
    [("first", np.int64), ("finish", np.int64), ("ongoing", np.int64), ("buckets", np.int64)],
    align=True,
)
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
# What switches do with a message, by its SEND; places are indices of `path_link` of its own route,
# -1 for none.
SWITCHED = np.dtype(
    [
        ("first_copy", np.int32),  # the messages that switches copy from this one
        ("next_copy", np.int32),  # another copy of the same message
        ("leaves_at", np.int64),  # the place at which it leaves the message it is copied from
        ("skipped", np.int64),  # links of its own route up to there
        ("sum", np.int32),  # the next sum that it comes into
        ("sum_at", np.int64),
        ("first_part", np.int32),  # the messages that arrive within this one
        ("next_part", np.int32),
        ("leader", np.int32),  # the message that leaves the sender for it, of a copy
        ("is_sent", np.bool_),
    ],
    align=True,
)
# A sum in a switch: the message that carries it on, how many are still to come, and the next sum of
# the carrier.
SUM = np.dtype(
    [("carrier", np.int32), ("missing", np.int32), ("next", np.int32), ("next_at", np.int64)],
    align=True,
)


class SimulatedWorld(NamedTuple):
    """The state of a simulation.

    `identity`: the id of every node in its file. `rank` has one record more than ranks, for the end
    of the last one's nodes; `first_slot`, by key, likewise. `sends`, `receives`: how many of a key
    have begun. `time`: by size class and link class. `slot`: what a meeting place holds: the posted
    RECV, `NOBODY` or _ARRIVED. `is_shared`: messages wait for one another on links. Heap 0 holds
    the buckets, heap 1 + r the running COMPs of rank r; `heap` says where each stands in `entry`.
    `recent`: buckets by the lowest bits of their time, -1 for none. `store`: of events, of buckets.
    `counter`: the number of entries so far. `switched` (by node), `sum`: what switches copy and add
    up, empty where they do neither. `ended` (room for all that one event ends), `freed`, `parents`,
    `is_touched` (as long as the largest rank, at least 2), `latest_child` (by node, all -1),
    `element` (one longer than the largest rank) and `before` (a bucket count that holds the largest
    rank, all -1) are room to work in.
    """

    node: Records
    identity: UInt64Array
    rank: Records
    first_slot: Int64Array
    sends: Int32Array
    receives: Int32Array
    link: Records
    time: Records
    slot: Int32Array
    path_link: Int64Array
    child: Int32Array
    heap: Records
    entry: Records
    bucket: Records
    event: Records
    recent: Int64Array
    store: Records
    counter: Int64Array
    switched: Records
    sum: Records
    ended: Int64Array
    freed: Int64Array
    parents: Int64Array
    is_touched: BoolArray
    latest_child: Int32Array
    element: Records
    before: Int64Array
    is_shared: bool


class NodeParents(NamedTuple):
    """The dependencies of a `NodeTable`."""

    data_indptr: Int64Array
    data_indices: Int64Array
    control_indptr: Int64Array
    control_indices: Int64Array


def parents_of(nodes: NodeTable) -> NodeParents:
    """The dependencies of nodes, in a form that compiled code takes."""
    return NodeParents(
        np.ascontiguousarray(nodes.data_indptr),
        np.ascontiguousarray(nodes.data_indices),
        np.ascontiguousarray(nodes.control_indptr),
        np.ascontiguousarray(nodes.control_indices),
    )


NOBODY, _ARRIVED = -1, -2
_START_NS = np.int64(0)
# Kinds of events, in the lowest two bits of an event's item; the others say what it happens to.
_DELIVERY, _LINK_FREE, _COMPUTED, _RECEIVED = 0, 1, 2, 3
_LOW_BITS = (1 << 32) - 1
_SEND, _RECV, _COMP = int(NodeType.COMM_SEND), int(NodeType.COMM_RECV), int(NodeType.COMP)


def _run(world: SimulatedWorld, parents: NodeParents) -> bool:
    """Simulate until nothing is left to happen.

    Return whether the start schedules an event at time 0, on which ASTRA-sim aborts.
    """
    link_children(world, parents)
    for rank in range(len(world.rank) - 1):
        _start(rank, world, parents)
    buckets = world.heap[BUCKETS]
    has_event_at_zero = bool(buckets["size"] > 0 and world.entry[0]["time"] == 0)
    while buckets["size"] > 0:
        # A bucket stays on top while its events happen: what they cause comes later, and a new
        # bucket of the same time stands behind it.
        now, place = world.entry[0]["time"], world.entry[0]["item"]
        while world.bucket[place]["first"] >= 0:
            event = next_event(place, world)
            ended = _happen(event & 3, event >> 2, now, world)
            # A node that ends may issue others in the same instant, behind what is in line.
            for position in range(ended):
                _finish(world.ended[position], now, world)
        end_bucket(place, now, world)
    return has_event_at_zero


@compiled
def _happen(kind: Integer, item: Integer, now: Integer, world: SimulatedWorld) -> Integer:
    """Let an event happen.

    Nodes that end by it are written to `world.ended`, in order; their number is returned.
    """
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


@compiled
def _start(rank: Integer, world: SimulatedWorld, parents: NodeParents) -> None:
    """Issue the nodes without parents.

    They start at `_START_NS`, in the order of `roots_in_order`.
    """
    roots = roots_in_order(rank, world, parents)
    for position in range(roots):
        _issue(world.freed[position], _START_NS, world)


@compiled
def roots_in_order(rank: Integer, world: SimulatedWorld, parents: NodeParents) -> Integer:
    """Write the nodes without parents to `world.freed`; return their number.

    Their order is that of the set which Chakra's feeder fills with them, while it goes through the
    set of all nodes.
    """
    count = _touch_order(rank, world, parents)
    set_order(world.freed, count, EMPTY_SET, world)
    # Roots are moved to the front of the same array: they are never ahead of what is read.
    roots = 0
    for position in range(count):
        row = world.freed[position]
        if world.node[row]["unmet"] == 0:
            world.freed[roots] = row
            roots += 1
    world.rank[rank]["buckets"] = set_order(world.freed, roots, EMPTY_SET, world)
    return roots


@compiled
def _issue(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Start a node. Any number of nodes of a rank may run at once.

    Its start is `now` (ns), and it counts as ongoing in its rank until `_finish`.
    """
    node = world.node[row]
    node["start"] = now
    world.rank[node["rank"]]["ongoing"] += 1
    kind = node["kind"]
    if kind == _SEND:
        _send(row, now, world)
    elif kind == _RECV:
        _post(row, now, world)
    elif kind == _COMP:
        _compute(row, now, world)
    # A node of any other type stays unfinished for ever, as in ASTRA-sim.


@compiled
def _send(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Give a message the next slot of its key, and put it on its way.

    A slot of -1 is to be given: the n-th SEND of its key to begin takes the key's n-th slot.
    """
    node = world.node[row]
    if node["slot"] < 0:
        key = node["key"]
        node["slot"] = world.first_slot[key] + world.sends[key]
        world.sends[key] += 1
    if len(world.switched) > 0:
        _send_once(row, now, world)
    else:
        _put(row, now, world)


@outlined
def _send_once(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Put a message on its way, or the one that it is copied from, if that is not under way yet.

    Messages of a multicast begin in one instant: the first to begin has its place in the line.
    """
    leader = world.switched[row]["leader"]
    first = row if leader < 0 else leader
    if not world.switched[first]["is_sent"]:
        world.switched[first]["is_sent"] = True
        _put(first, now, world)


@compiled
def _compute(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Run a COMP, which keeps nothing busy: COMPs of one rank run side by side.

    Its event names the rank, not the node, as `_end_batch` ends all that end at one time.
    """
    node = world.node[row]
    end = now + node["work"]
    # In 64 bits, as the shift below would leave the 32 of the record.
    rank = np.int64(node["rank"])
    insert(world, 1 + rank, end, row)
    push(world, end, (rank << 2) | _COMPUTED)


@compiled
def _post(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Post a RECV.

    If its message is there, it finishes in the same instant, but through the event queue.
    """
    node = world.node[row]
    if node["slot"] < 0:
        key = node["key"]
        node["slot"] = world.first_slot[key] + world.receives[key]
        world.receives[key] += 1
    slot = node["slot"]
    if world.slot[slot] == _ARRIVED:
        push(world, now, (row << 2) | _RECEIVED)
    else:
        world.slot[slot] = row


@compiled
def _end_batch(rank: Integer, now: Integer, world: SimulatedWorld) -> Integer:
    """End all COMPs of a rank that end now, one after the other, by the first one's event.

    They end in the order in which they began. The events of the others then find nothing left to
    do: ASTRA-sim has one callback for each instant of a rank.
    """
    running = world.heap[1 + rank]
    first = running["first"]
    count = 0
    while running["size"] > 0 and world.entry[first]["time"] == now:
        world.ended[count] = world.entry[first]["item"]
        pop(world.entry, world.heap, 1 + rank)
        count += 1
    return count


@compiled
def _finish(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """End a node, and start those that waited for nothing else.

    These start at `now` (ns), in the iteration order of the set that holds them.
    """
    node = world.node[row]
    rank = world.rank[node["rank"]]
    node["end"] = now
    rank["ongoing"] -= 1
    count = _free_children(row, world)
    # The set of free nodes is empty before and after, but keeps its number of buckets.
    rank["buckets"] = set_order(world.freed, count, rank["buckets"], world)
    for position in range(count):
        _issue(world.freed[position], now, world)
    # Also where nodes never begin, as those of a cycle: ASTRA-sim asks for what is under way alone.
    if rank["ongoing"] == 0:
        rank["finish"] = now


@compiled
def _free_children(row: Integer, world: SimulatedWorld) -> Integer:
    """Write the nodes that waited for this one last to `world.freed`; return their number."""
    node = world.node[row]
    first = node["first_child"]
    count = 0
    for edge in range(first, first + node["children"]):
        index = world.child[edge]
        child = world.node[index]
        child["unmet"] -= 1
        if child["unmet"] == 0:
            world.freed[count] = index
            count += 1
    return count


# --- the network ---


@compiled
def _put(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Put a message on the next link of its route, or in the line of those that wait for it."""
    index = world.path_link[world.node[row]["work"] & _LOW_BITS]
    link = world.link[index]
    if not link["is_busy"]:
        _transmit(index, row, now, world)
        return
    # A message waits in one line at a time, so the lines are linked lists through the nodes.
    if link["first"] < 0:
        link["first"] = row
    else:
        last = world.node[link["last"]]
        last["next_message"] = row
    link["last"] = row


@compiled
def _transmit(index: Integer, row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Send a message over a free link: first its arrival is scheduled, then the link's release."""
    size_class = world.node[row]["size_class"]
    link = world.link[index]
    time = world.time[size_class, link["link_class"]]
    arrival = now + time["arrival_ns"]
    push(world, arrival, (row << 2) | _DELIVERY)
    # Without congestion a link serves any number of messages at once.
    if world.is_shared:
        link["is_busy"] = True
        link["bytes"] += time["size"]
        link["busy_ns"] += time["busy_ns"]
        release = now + time["busy_ns"]
        push(world, release, (index << 2) | _LINK_FREE)


@compiled
def _free_link(index: Integer, now: Integer, world: SimulatedWorld) -> None:
    """End the use of a link by one message, and send the next one in line.

    Happens in congestion-aware simulations alone: without congestion no link is ever busy.
    """
    link = world.link[index]
    link["is_busy"] = False
    row = link["first"]
    if row >= 0:
        node = world.node[row]
        link["first"] = node["next_message"]
        node["next_message"] = -1
        _transmit(index, row, now, world)


@compiled
def _arrive(row: Integer, now: Integer, world: SimulatedWorld) -> Integer:
    """Pass a whole message on, or deliver it: the SEND ends, after it the RECV if it is posted."""
    node = world.node[row]
    if node["work"] & _LOW_BITS < node["work"] >> 32:
        node["work"] += 1
        if len(world.switched) > 0:
            return _switch(row, now, world)
        _put(row, now, world)
        return 0
    if len(world.switched) > 0 and world.switched[row]["first_part"] >= 0:
        return _deliver_sum(row, world)
    # A send ends by arrival, whether or not anybody waits for it: buffers are without limit.
    world.ended[0] = row
    slot = node["slot"]
    receiver = world.slot[slot]
    if receiver < 0:
        world.slot[slot] = _ARRIVED
        return 1
    world.ended[1] = receiver
    return 2


# --- switches that multicast and reduce ---


@outlined
def _switch(row: Integer, now: Integer, world: SimulatedWorld) -> Integer:
    """Pass a message on from a switch, with the copies and into the sum that are made there."""
    place = world.node[row]["work"] & _LOW_BITS
    switched = world.switched[row]
    ended = 0
    if switched["sum"] >= 0 and switched["sum_at"] == place:
        # Its sender is done with it: what goes on is the sum.
        if world.node[row]["end"] < 0:
            world.ended[0] = row
            ended = 1
        _add(switched["sum"], now, world)
    else:
        _put(row, now, world)
    copy = switched["first_copy"]
    while copy >= 0:
        made = world.switched[copy]
        if made["leaves_at"] == place:
            world.node[copy]["work"] += made["skipped"]
            _put(copy, now, world)
        copy = made["next_copy"]
    return ended


@compiled
def _add(index: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Add a message to a sum, which goes on when it is complete."""
    total = world.sum[index]
    total["missing"] -= 1
    if total["missing"] > 0:
        return
    carrier = total["carrier"]
    world.switched[carrier]["sum"] = total["next"]
    world.switched[carrier]["sum_at"] = total["next_at"]
    _put(carrier, now, world)


@outlined
def _deliver_sum(row: Integer, world: SimulatedWorld) -> Integer:
    """Deliver all messages of a sum at once; RECVs that are posted end, in the order of the sum."""
    ended = 0
    part = row
    while part >= 0:
        slot = world.node[part]["slot"]
        receiver = world.slot[slot]
        if receiver < 0:
            world.slot[slot] = _ARRIVED
        else:
            world.ended[ended] = receiver
            ended += 1
        following = world.switched[part]
        part = following["first_part"] if part == row else following["next_part"]
    return ended


# --- the graph of one rank, and the iteration order of its hash sets ---


@compiled
def link_children(world: SimulatedWorld, parents: NodeParents) -> None:
    """List who waits for a node, in the iteration order of the set that holds them.

    Also count the parents of every node. Cost: the dependencies are read twice, to count and to
    place, which takes less memory than to sort them.
    """
    _count_children(world, parents)
    _reserve_children(world)
    _place_children(world, parents)
    _order_children(world)


@compiled
def _count_children(world: SimulatedWorld, parents: NodeParents) -> None:
    for row in range(len(world.node)):
        unmet = _distinct_parents(row, world, parents)
        world.node[row]["unmet"] = unmet
        for position in range(unmet):
            parent = world.node[world.parents[position]]
            parent["children"] += 1


@compiled
def _reserve_children(world: SimulatedWorld) -> None:
    """Give every node as many places as it has children, none of them taken yet."""
    total = 0
    for row in range(len(world.node)):
        node = world.node[row]
        node["first_child"] = total
        total += node["children"]
        # Both are counted anew while the children are placed.
        node["children"] = 0
        world.latest_child[row] = -1


@compiled
def _order_children(world: SimulatedWorld) -> None:
    """Put the children of every node in the order of their set.

    Afterwards `latest_child` is -1 for every node.
    """
    for row in range(len(world.node)):
        node = world.node[row]
        # Parents are asked for once more, when the roots are sought.
        world.latest_child[row] = -1
        first = np.int64(node["first_child"])
        count = np.int64(node["children"])
        children = world.child[first : first + count]
        set_order(children, count, EMPTY_SET, world)


@compiled
def _place_children(world: SimulatedWorld, parents: NodeParents) -> None:
    """Write every node behind the children that its parents have so far, in file order."""
    for row in range(len(world.node)):
        count = _distinct_parents(row, world, parents)
        for position in range(count):
            parent = world.node[world.parents[position]]
            world.child[parent["first_child"] + parent["children"]] = row
            parent["children"] += 1


@compiled
def _distinct_parents(row: Integer, world: SimulatedWorld, parents: NodeParents) -> Integer:
    """Write the parents of a node to `world.parents`, data before control, each once.

    Return their number.
    """
    count: Integer = 0
    for edge in range(parents.data_indptr[row], parents.data_indptr[row + 1]):
        count = _add_parent(parents.data_indices[edge], row, count, world)
    for edge in range(parents.control_indptr[row], parents.control_indptr[row + 1]):
        count = _add_parent(parents.control_indices[edge], row, count, world)
    return count


@compiled
def _add_parent(parent: Integer, row: Integer, count: Integer, world: SimulatedWorld) -> Integer:
    """Add a parent to the first `count` ones of `row`, if it is new; return their number.

    `latest_child[parent]` is the last row that named the parent, which spares a search.
    """
    if world.latest_child[parent] == row:
        return count
    world.latest_child[parent] = row
    world.parents[count] = parent
    return count + 1


@compiled
def _touch_order(rank: Integer, world: SimulatedWorld, parents: NodeParents) -> Integer:
    """Write the nodes of a rank to `world.freed` as its file first names them.

    A node is named by its own record, or before it by a dependency of another one; dependencies of
    one record in the order of the set that the feeder puts them in. Return the number of nodes.
    """
    first, end = world.rank[rank]["first"], world.rank[rank + 1]["first"]
    is_touched = world.is_touched[: end - first]
    for index in range(end - first):
        is_touched[index] = False
    count: Integer = 0
    for row in range(first, end):
        count = _touch(row, first, is_touched, world.freed, count)
        # What stands earlier in the file has been named, so only forward references count.
        if not _has_forward_parent(row, parents):
            continue
        named = _distinct_parents(row, world, parents)
        set_order(world.parents, named, EMPTY_SET, world)
        for position in range(named):
            count = _touch(world.parents[position], first, is_touched, world.freed, count)
    return count


@compiled
def _has_forward_parent(row: Integer, parents: NodeParents) -> bool:
    """Whether a node waits for one that stands behind it in the file.

    Only such a dependency names a node before the node's own record does.
    """
    for edge in range(parents.data_indptr[row], parents.data_indptr[row + 1]):
        if parents.data_indices[edge] > row:
            return True
    for edge in range(parents.control_indptr[row], parents.control_indptr[row + 1]):
        if parents.control_indices[edge] > row:
            return True
    return False


@compiled
def _touch(
    row: Integer,
    first: Integer,
    is_touched: BoolArray,
    touched: Int64Array,
    count: Integer,
) -> Integer:
    """Add a node to the first `count` ones of `touched`, if it is new; return their number."""
    index = row - first
    if is_touched[index]:
        return count
    is_touched[index] = True
    touched[count] = row
    return count + 1


def _write_orders(
    world: SimulatedWorld, parents: NodeParents, roots: Int64Array, counts: Int64Array
) -> int:
    """Kernel: write children to the world, and roots, rank by rank, with their counts.

    Return the number of roots.
    """
    link_children(world, parents)
    total = 0
    for rank in range(len(counts)):
        counts[rank] = roots_in_order(rank, world, parents)
        for position in range(counts[rank]):
            roots[total] = world.freed[position]
            total += 1
    return total


run = Kernel(_run)
write_orders = Kernel(_write_orders)
