"""Kernel of ASTRA-sim's event loop on algorithms.

Algorithm: discrete-event simulation. Events with equal time form a FIFO queue (a bucket); buckets
are in a binary heap ordered by (time, creation order). The model is that of the analytical backends
of ASTRA-sim (public release of March 2026: `EventQueue`, `Link`, `Chunk` of
astra-network-analytical, `CustomAlgorithm` and `CallbackTracker` of the simulator, `ETFeeder`
version 3 of Chakra), compiled with gcc's standard library. Messages are stored and forwarded as a
unit; a link sends one message at a time, first come, first served; the n-th receive of a key is
matched with the n-th send of that key.

Invariant: events are processed in the order in which ASTRA-sim calls its callbacks, also within one
nanosecond. That order decides which message gets a link first, so the creation order of events and
the iteration order of `std::unordered_set` are part of the model.

Cost: O(1) per event if a bucket of its time exists (nearly always in symmetric algorithms), else
O(log n). A message has two events per link (one without congestion), a computation has one, so a
run costs at most O(h log h) for h hops of messages. Building the graph and its sets costs O(nodes +
edges).

The kernel is plain Python; `compiling` explains when it runs as machine code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_kernels import Kernel, compiled, outlined
from collhub_kernels.event_queue import (
    BUCKETS,
    Integer,
    Records,
    insert,
    pop,
    push,
    remove_bucket,
    take_event,
)

from collhub_astra_sim.simulating.set_order import find_roots_in_order, link_children, sort_as_set
from hub_core import NodeTable, NodeType
from hub_core.columns import BoolArray, Int32Array, Int64Array, UInt64Array

# Each record contains the fields that one event accesses and is small, because memory access limits
# the speed: the nodes of a large simulation exceed every cache. Times in ns; -1: never.
NODE = np.dtype(
    [
        ("start", np.int64),
        ("end", np.int64),
        # COMP: the duration in ns. SEND: its last link times 2^32 plus its next link, both as
        # indices of `path_link`.
        ("work", np.int64),
        # Index of the slot in which a message meets its receive; -1 until the message begins, if
        # its key has several slots.
        ("slot", np.int32),
        ("next_message", np.int32),  # next message in the queue of a link, -1 for none
        ("first_child", np.int32),
        ("children", np.int32),
        ("unmet", np.int32),  # number of unfinished parents
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
        ("first", np.int64),  # message queue of the link: first and last node
        ("last", np.int64),
        ("link_class", np.int32),
        ("is_busy", np.bool_),
    ],
    align=True,
)
TIME = np.dtype([("size", np.int64), ("busy_ns", np.int64), ("arrival_ns", np.int64)], align=True)
# Actions of switches on a message, by its SEND node. Positions are indices of `path_link` on the
# message's route; -1: none.
SWITCHED = np.dtype(
    [
        ("first_copy", np.int32),  # first of the messages that switches copy from this one
        ("next_copy", np.int32),  # next copy of the same message
        ("leaves_at", np.int64),  # position at which it branches off the message it is copied from
        ("skipped", np.int64),  # number of links of its route before that position
        ("sum", np.int32),  # next sum that it enters
        ("sum_at", np.int64),
        # first of the messages that are delivered with this one (as parts of a sum)
        ("first_part", np.int32),
        ("next_part", np.int32),
        ("leader", np.int32),  # for a copy: the message that leaves the sender in its place
        ("is_sent", np.bool_),
    ],
    align=True,
)
# A sum in a switch: the message that carries the result, the number of missing messages, and the
# next sum that the carrier enters with its position.
SUM = np.dtype(
    [("carrier", np.int32), ("missing", np.int32), ("next", np.int32), ("next_at", np.int64)],
    align=True,
)

# Start of the transmission of a message, by its SEND node, on a link.
TRANSMISSION = np.dtype(
    [("node", np.int64), ("link", np.int64), ("start", np.int64), ("arrival", np.int64)]
)


class SimulatedWorld(NamedTuple):
    """The complete state of a simulation, changed in place by the kernel.

    `identity`: ID of every node in its file. `rank` has one record more than ranks: the last record
    marks the end of the last rank's nodes; `first_slot` (by key) likewise. `sends`, `receives`:
    number of messages of a key that have begun. `time`: by size class and link class. `slot`: the
    posted RECV, `NO_RECEIVER` or _ARRIVED. `is_shared`: messages contend for links. Heap 0 contains
    the buckets, heap 1 + r the running COMPs of rank r; `heap` gives the range of each heap in
    `entry`. `recent`: buckets by the lowest bits of their time, -1 for none. `store`: free events
    and free buckets. `counter`: number of heap entries created so far. `switched` (by node), `sum`:
    copies and sums in switches, empty without such switches. `transmission`: in order of time,
    empty if they are not recorded; `transmissions`: their number.

    Scratch arrays: `ended` (nodes finished by one event), `freed`, `parents` and `is_touched`
    (length of the largest rank, at least 2), `latest_child` (by node, all -1), `element` (one
    longer than the largest rank), `before` (all -1; its length is a bucket count not below the
    largest rank).
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
    transmission: Records
    transmissions: Int64Array
    is_shared: bool


class NodeParents(NamedTuple):
    """The dependencies of a `NodeTable`, as row pointers and row indices."""

    data_indptr: Int64Array
    data_indices: Int64Array
    control_indptr: Int64Array
    control_indices: Int64Array


def get_parents(nodes: NodeTable) -> NodeParents:
    """Return the dependencies of nodes as contiguous arrays, which compiled code requires."""
    return NodeParents(
        np.ascontiguousarray(nodes.data_indptr),
        np.ascontiguousarray(nodes.data_indices),
        np.ascontiguousarray(nodes.control_indptr),
        np.ascontiguousarray(nodes.control_indices),
    )


NO_RECEIVER, _ARRIVED = -1, -2
_START_NS = np.int64(0)
# Kinds of events: the lowest two bits of an event's item. The higher bits are the node, link or
# rank that the event concerns.
_DELIVERY, _LINK_FREE, _COMPUTED, _RECEIVED = 0, 1, 2, 3
_LOW_BITS = (1 << 32) - 1
_SEND, _RECV, _COMP = int(NodeType.COMM_SEND), int(NodeType.COMM_RECV), int(NodeType.COMP)


def _simulate(world: SimulatedWorld, parents: NodeParents) -> bool:
    """Simulate until the event queue is empty; the results are in `world`.

    Starts the nodes without parents of all ranks first, in the order of the ranks. Events are
    processed by time, those of equal time in the order of their creation. A node that ends may
    start other nodes at the same time, whose events are appended. Returns whether the initial nodes
    schedule an event at time 0 ns, on which ASTRA-sim aborts; the simulation continues
    nevertheless. Can be used only once per `world`.
    """
    link_children(world, parents)
    for rank in range(len(world.rank) - 1):
        _start_rank(rank, world, parents)
    buckets = world.heap[BUCKETS]
    has_event_at_zero = bool(buckets["size"] > 0 and world.entry[0]["time"] == 0)
    while buckets["size"] > 0:
        # The bucket stays on top of the heap during its events: new events are later, and a new
        # bucket of the same time is ordered after it.
        now, bucket = world.entry[0]["time"], world.entry[0]["item"]
        while world.bucket[bucket]["first"] >= 0:
            event = take_event(bucket, world)
            ended = _handle_event(event & 3, event >> 2, now, world)
            # A finished node may start other nodes at the same time; their events are appended to
            # the queue.
            for i in range(ended):
                _finish_node(world.ended[i], now, world)
        remove_bucket(bucket, now, world)
    return has_event_at_zero


@compiled
def _handle_event(kind: Integer, item: Integer, now: Integer, world: SimulatedWorld) -> Integer:
    """Process one event at time `now` (ns); write the nodes that end to `world.ended`.

    `kind` determines the event and the meaning of `item`: a message (SEND node) arrives at the end
    of a link, a link becomes free, a RECV node ends, or computations of a rank end. Returns the
    number of nodes that end.
    """
    if kind == _DELIVERY:
        return _handle_arrival(item, now, world)
    if kind == _LINK_FREE:
        _release_link(item, now, world)
        return 0
    if kind == _RECEIVED:
        world.ended[0] = item
        return 1
    return _finish_computations(item, now, world)


# --- the nodes of one rank ---


@compiled
def _start_rank(rank: Integer, world: SimulatedWorld, parents: NodeParents) -> None:
    """Start all nodes of a rank without parents at `_START_NS`, in ASTRA-sim's order.

    The order is that of its hash sets (`find_roots_in_order`). Events that they schedule are added
    to the queue.
    """
    roots = find_roots_in_order(rank, world, parents)
    for position in range(roots):
        _start_node(world.freed[position], _START_NS, world)


@compiled
def _start_node(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Start the node in this row at `now` (ns): send, post the receive, or start to compute.

    Any number of nodes of a rank may run at the same time. The node counts as ongoing in its rank
    until `_finish_node`. A node of any other kind starts and never ends.
    """
    node = world.node[row]
    node["start"] = now
    world.rank[node["rank"]]["ongoing"] += 1
    kind = node["kind"]
    if kind == _SEND:
        _send_message(row, now, world)
    elif kind == _RECV:
        _post_receive(row, now, world)
    elif kind == _COMP:
        _start_computation(row, now, world)
    # As in ASTRA-sim, a node of any other type never finishes.


@compiled
def _send_message(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Start the message of a SEND: determine its RECV, and put it on the first link of its route.

    Messages with the same ends, tag and size have the same key. Every key has numbered slots, in
    each of which one SEND meets one RECV. The n-th SEND of a key that starts gets the key's n-th
    slot, as does the n-th RECV. A slot that was assigned before the simulation is kept. If switches
    copy or add messages, a message that is a copy is not sent itself; its original is.
    """
    node = world.node[row]
    if node["slot"] < 0:
        key = node["key"]
        node["slot"] = world.first_slot[key] + world.sends[key]
        world.sends[key] += 1
    if len(world.switched) > 0:
        _send_unless_sent(row, now, world)
    else:
        _put_on_link(row, now, world)


@outlined
def _send_unless_sent(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Send the message of a SEND; for a copy in a multicast send the original, unless already sent.

    `row`: node of the SEND. Of a multicast only the original is put on a link; switches create the
    copies. It is sent when the first of its messages starts, which also determines the position in
    the queue of the link. The original is marked as sent, so later calls have no effect.
    """
    leader = world.switched[row]["leader"]
    first = row if leader < 0 else leader
    if not world.switched[first]["is_sent"]:
        world.switched[first]["is_sent"] = True
        _put_on_link(first, now, world)


@compiled
def _start_computation(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Start a computation at `now` (ns); it ends after its duration, `work`.

    It occupies no resource, so all computations of a rank run concurrently. It is added to the
    rank's heap of running computations. Its event refers to the rank instead of the node, because
    `_finish_computations` finishes all computations of the rank that end at the same time.
    """
    node = world.node[row]
    end = now + node["work"]
    # Convert to 64 bits, because the shift below would overflow the 32 bits of the record.
    rank = np.int64(node["rank"])
    insert(world, 1 + rank, end, row)
    push(world, end, (rank << 2) | _COMPUTED)


@compiled
def _post_receive(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Post a RECV: reserve the place in which it meets its message.

    The n-th RECV of a key (ends, tag and size) that starts gets the key's n-th slot, which the n-th
    SEND uses, too. A slot that was assigned before the simulation is kept. If the message has
    already arrived, an event at the same time ends the RECV. Otherwise the slot stores the RECV,
    which ends when the message arrives.
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
def _finish_computations(rank: Integer, now: Integer, world: SimulatedWorld) -> Integer:
    """Collect all computations of a rank that end at `now` (ns), in their starting order.

    Removes them from the rank's heap, writes them to `world.ended` and returns their number. The
    event of the first one finishes all of them, and the events of the other computations then find
    none (0), because ASTRA-sim has one callback per rank and time.
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
def _finish_node(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Finish a node at `now` (ns) and start the nodes for which it was the last unfinished parent.

    They start at the same time, in the iteration order of ASTRA-sim's hash set of ready nodes,
    whose number of buckets is kept by rank. If no node of the rank is ongoing afterwards, `now`
    becomes its finish time, even if some nodes never start. A later end of a node overwrites it.
    """
    node = world.node[row]
    rank = world.rank[node["rank"]]
    node["end"] = now
    rank["ongoing"] -= 1
    count = _release_children(row, world)
    # The set of free nodes is empty before and after, but does not shrink its number of buckets.
    rank["buckets"] = sort_as_set(world.freed, count, rank["buckets"], world)
    for position in range(count):
        _start_node(world.freed[position], now, world)
    # This also applies if some nodes never begin (a cycle): ASTRA-sim only checks for ongoing
    # nodes.
    if rank["ongoing"] == 0:
        rank["finish"] = now


@compiled
def _release_children(row: Integer, world: SimulatedWorld) -> Integer:
    """Decrement the number of unfinished parents of a node's children.

    Writes the children without unfinished parents to `world.freed`, in the order of the children,
    and returns their number.
    """
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
def _put_on_link(row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Send the message of node `row` over the next link of its route at `now` (ns).

    If the link is busy, the message is appended to the queue of the link (first come, first
    served).
    """
    index = world.path_link[world.node[row]["work"] & _LOW_BITS]
    link = world.link[index]
    if not link["is_busy"]:
        _start_transmission(index, row, now, world)
        return
    # A message waits in one queue at a time, so queues are linked lists through the nodes.
    if link["first"] < 0:
        link["first"] = row
    else:
        last = world.node[link["last"]]
        last["next_message"] = row
    link["last"] = row


@compiled
def _start_transmission(index: Integer, row: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Send the message of node `row` over the link `index`, which must be free, at `now` (ns).

    Schedules its arrival at the end of the link. The times depend on the size of the message and on
    the bandwidth and latency of the link; they are tabulated in `world.time`. With congestion
    (`world.is_shared`), it also marks the link as busy, adds to its bytes and busy time, and
    schedules its release; of equal times the arrival is first. Without congestion, the link is not
    changed. If `world.transmission` has rows, the transmission is recorded there.
    """
    size_class = world.node[row]["size_class"]
    link = world.link[index]
    time = world.time[size_class, link["link_class"]]
    arrival = now + time["arrival_ns"]
    push(world, arrival, (row << 2) | _DELIVERY)
    if len(world.transmission) > 0:
        _record_transmission(index, row, now, arrival, world)
    # Without congestion a link serves any number of messages at once.
    if world.is_shared:
        link["is_busy"] = True
        link["bytes"] += time["size"]
        link["busy_ns"] += time["busy_ns"]
        release = now + time["busy_ns"]
        push(world, release, (index << 2) | _LINK_FREE)


@outlined
def _record_transmission(
    index: Integer, row: Integer, now: Integer, arrival: Integer, world: SimulatedWorld
) -> None:
    """Record that message `row` is sent over link `index` from `now` to `arrival` (ns).

    Nothing is recorded if `world.transmission` is full; its size is 0 if transmissions are not
    requested.
    """
    count = world.transmissions[0]
    if count < len(world.transmission):
        record = world.transmission[count]
        record["node"] = row
        record["link"] = index
        record["start"] = now
        record["arrival"] = arrival
        world.transmissions[0] = count + 1


@compiled
def _release_link(index: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Mark link `index` as idle, and send the oldest message of its queue at `now` (ns), if any.

    That message leaves the queue, and the link becomes busy again. This occurs only with
    congestion.
    """
    link = world.link[index]
    link["is_busy"] = False
    row = link["first"]
    if row >= 0:
        node = world.node[row]
        link["first"] = node["next_message"]
        node["next_message"] = -1
        _start_transmission(index, row, now, world)


@compiled
def _handle_arrival(row: Integer, now: Integer, world: SimulatedWorld) -> Integer:
    """Forward the message of node `row`, which arrives at the end of a link, or deliver it.

    `now`: time of arrival in ns. The message is put on the next link of its route, unless this was
    the last one. At delivery the SEND ends, then the RECV if it is posted; otherwise its slot is
    marked as arrived. A message that carries a sum formed in switches delivers all messages of the
    sum; their SENDs ended in the switches. Writes the nodes that end to `world.ended` and returns
    their number.
    """
    node = world.node[row]
    if node["work"] & _LOW_BITS < node["work"] >> 32:
        node["work"] += 1
        if len(world.switched) > 0:
            return _forward_at_switch(row, now, world)
        _put_on_link(row, now, world)
        return 0
    if len(world.switched) > 0 and world.switched[row]["first_part"] >= 0:
        return _deliver_sum(row, world)
    # A send finishes on arrival, whether or not its receive is posted: receive buffers are
    # unlimited.
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
def _forward_at_switch(row: Integer, now: Integer, world: SimulatedWorld) -> Integer:
    """Forward the message of node `row` at the switch that it has reached at `now` (ns).

    If this switch adds the message to a sum, the message waits for the other ones of the sum
    instead, and its SEND ends if it has not yet. Copies whose routes separate from this one here
    are put on their next link. The SEND that ends is written to `world.ended`, and the result is 1;
    otherwise it is 0.
    """
    position = world.node[row]["work"] & _LOW_BITS
    switched = world.switched[row]
    ended = 0
    if switched["sum"] >= 0 and switched["sum_at"] == position:
        # The sender is finished; from here on the sum is forwarded.
        if world.node[row]["end"] < 0:
            world.ended[0] = row
            ended = 1
        _add_to_sum(switched["sum"], now, world)
    else:
        _put_on_link(row, now, world)
    copied = switched["first_copy"]
    while copied >= 0:
        record = world.switched[copied]
        if record["leaves_at"] == position:
            world.node[copied]["work"] += record["skipped"]
            _put_on_link(copied, now, world)
        copied = record["next_copy"]
    return ended


@compiled
def _add_to_sum(index: Integer, now: Integer, world: SimulatedWorld) -> None:
    """Count one more arrived message of sum `index`; when the last arrives, forward the sum.

    One of the messages, the carrier, continues on its route with the sum; the other messages end
    here. The next sum that the carrier enters on its route, and the hop at which it does, are
    stored with it (-1 for none).
    """
    total = world.sum[index]
    total["missing"] -= 1
    if total["missing"] > 0:
        return
    carrier = total["carrier"]
    world.switched[carrier]["sum"] = total["next"]
    world.switched[carrier]["sum_at"] = total["next_at"]
    _put_on_link(carrier, now, world)


@outlined
def _deliver_sum(row: Integer, world: SimulatedWorld) -> Integer:
    """Deliver all messages of a sum, which arrives with the message of node `row`.

    Writes the posted RECVs of these messages to `world.ended`, starting with that of `row`, and
    returns their number. The slots of messages whose RECV is not posted yet are marked as arrived.
    SENDs do not end here, because they ended at a switch.
    """
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


def _write_orders(
    world: SimulatedWorld, parents: NodeParents, roots: Int64Array, counts: Int64Array
) -> int:
    """Determine the order in which ASTRA-sim starts nodes, without a simulation (kernel).

    Stores the children of all nodes in `world`, in the order in which a finished node starts them.
    Writes the nodes without parents (roots) to `roots`, rank by rank in starting order, and their
    number by rank to `counts`. `roots` needs room for all nodes. Returns the total number of roots.
    """
    link_children(world, parents)
    total = 0
    for rank in range(len(counts)):
        counts[rank] = find_roots_in_order(rank, world, parents)
        for position in range(counts[rank]):
            roots[total] = world.freed[position]
            total += 1
    return total


run = Kernel(_simulate)
write_orders = Kernel(_write_orders)
