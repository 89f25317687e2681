"""Kernel: the event loop of a whole job, and ASTRA-sim's workload layer, the nodes of every rank.

A discrete-event simulation on the event queue of `simulating.kernel`. An event carries a code: the
kind of the action and the index of its object. One event yields at most two codes, a batch any
number; each is processed before the next one is read, as in ASTRA-sim's callbacks.

Native collectives are never expanded: a message exists from the time when it is sent, or its
receive is posted, until it has been matched and has arrived. Messages in flight are stored in pools
of fixed size; if less than a margin is free, the run returns, its caller enlarges the pools, and
the run continues. The margin bounds the demand of one event.

The workload layer corresponds to ASTRA-sim's classes `Workload` and `HardwareResource`. At most one
node per rank occupies each slot; whenever a node of the rank finishes, the free nodes are examined
in ascending order of their IDs.

Cost: O(1) for an event if a bucket of its time exists, else O(log n), as in `simulating.kernel`;
O(log d) for the route of a message, with d destinations of its source; O(log n) to find a free
node.
"""

from __future__ import annotations

import numpy as np
from collhub_kernels import Kernel, compiled, outlined
from collhub_kernels.event_queue import Integer, insert, pop, remove_bucket, take_event

from collhub_astra_sim.workloads.machine_state import (
    BATCH_ENDS,
    CODE_BITS,
    COLLECTIVE_NODE,
    CUSTOM_ENDS,
    DELAYS,
    DELIVERY,
    LINK_FREE,
    MEMORY_ENDS,
    MEMORY_NODE,
    MESSAGES,
    NO_SLOT,
    NODE_ENDS,
    PACKET_ARRIVES,
    PACKET_READY,
    PACKET_REDUCES,
    RECEIVE_IS_CLEARED,
    RECV_NODE,
    SEND_IS_CLEARED,
    SEND_NODE,
    SKIPPED,
    SLOTS,
    STREAMS,
    TIMER,
    MachineState,
    delay,
    return_record,
    take_next_code,
)
from collhub_astra_sim.workloads.messages import (
    handle_arrival,
    receive,
    send,
    start_message,
    update_link,
    wait_for_cleared,
)
from collhub_astra_sim.workloads.native import handle_packet_arrival, handle_ready_packet
from collhub_astra_sim.workloads.streams import (
    close_custom_node,
    start_collective,
    start_next_phase,
    stop_stream,
)

# Results of a call.
DONE, NEEDS_ROOM, OVERFLOWED, ABORTED = range(4)


# Entries of `counter` after the event queue's: whether a pool overflowed, number of events, number
# of started ranks, and whether events at time 0 are executed instead of ending the run.
OVERFLOW, EVENTS, STARTED, PASSES_ZERO = 1, 2, 3, 4


@outlined
def _start(rank: Integer, machine: MachineState) -> None:
    """Start a rank at time 0: its nodes without parents, as far as its slots permit.

    A rank runs one node of each kind at a time (a slot); other nodes wait. A rank without such
    nodes has finished, at time 0.
    """
    start_free_nodes(rank, 0, machine)
    finish_if_done(rank, 0, machine)


@compiled
def _advance_stream(index: Integer, now: Integer, machine: MachineState) -> None:
    """Advance a stream (part of a collective on a rank) whose phase has finished at `now` (ns).

    A phase is the algorithm of one network dimension. The next one starts, if there is one.
    Otherwise the stream leaves its queue, in which the next stream may start, and its record is
    freed. The last stream of a collective node finishes the node, before it leaves the queue,
    because this may start the next collective of the rank.
    """
    stream = machine.stream[index]
    if stream["steps_left"] > 1:
        start_next_phase(index, now, machine)
        return
    node = machine.node[stream["row"]]
    queue = stream["queue"]
    node["unfinished"] -= 1
    if node["unfinished"] == 0:
        close_node(stream["row"], now, machine)
    stop_stream(queue, now, machine)
    return_record(machine.stream, STREAMS, index, machine)


@outlined
def _execute_code(code: Integer, now: Integer, machine: MachineState) -> None:
    """Perform the action of a code at `now` (ns); unknown actions have no effect.

    The lowest `CODE_BITS` bits of the code are the action, the other bits the index of its object
    (stream, message, node or transfer). A received packet that must be reduced becomes ready after
    the reduction time of its stream. If the action completes a stream's phase, its next phase
    starts or the stream ends.
    """
    kind, index = code & ((1 << CODE_BITS) - 1), code >> CODE_BITS
    stream: Integer = -1
    if kind == PACKET_READY:
        if handle_ready_packet(index, now, machine):
            stream = index
    elif kind == PACKET_ARRIVES:
        handle_packet_arrival(index, now, machine)
    elif kind == PACKET_REDUCES:
        record = machine.stream[index]
        ready = (index << CODE_BITS) | PACKET_READY
        delay(record["rank"], now, record["reduce_ns"], ready, machine)
    elif kind == NODE_ENDS:
        close_node(index, now, machine)
    elif kind == CUSTOM_ENDS:
        if close_custom_node(index, now, machine):
            stream = machine.progress[index]["stream"]
    elif kind == MEMORY_ENDS:
        close_transfer(index, now, machine)
    elif kind == SEND_IS_CLEARED:
        start_message(index, now, machine)
    elif kind == RECEIVE_IS_CLEARED:
        wait_for_cleared(index, now, machine)
    if stream >= 0:
        _advance_stream(stream, now, machine)


@compiled
def _handle_event(event: Integer, now: Integer, machine: MachineState) -> None:
    """Process one event at `now` (ns) and perform all actions that it causes.

    The lowest two bits of `event` are its kind, the higher bits are its object. The release of a
    link only serves the link. A delivery causes up to two actions, a batch of expired delays any
    number, in the order of creation, including those added meanwhile. For other kinds the object is
    the code of the action. Negative codes are skipped.
    """
    kind, item = event & 3, event >> 2
    if kind == LINK_FREE:
        update_link(item, now, machine)
        return
    count: Integer = 1
    position = 0
    if kind == DELIVERY:
        count = handle_arrival(item, now, machine)
    elif kind != BATCH_ENDS:
        machine.codes[0] = item
    # A delivery yields at most two codes; read the second before the first action overwrites it.
    second = machine.codes[1]
    while position < count:
        code = machine.codes[0] if position == 0 else second
        if kind == BATCH_ENDS:
            code = take_next_code(item, machine)
            # Continue until the batch returns -1.
            count = position + 2 if code >= 0 else 0
        if code >= 0:
            _execute_code(code, now, machine)
        position += 1


@compiled
def _has_room(machine: MachineState) -> bool:
    """Return whether the pools have enough unused records for all objects of one event.

    Objects that come and go are records of pools of fixed size. `machine.margin` is the maximum
    number that one event creates. Messages, delays and streams need that many unused records;
    events and buckets (events of one time) twice as many. Records that were returned for reuse do
    not count.
    """
    margin = machine.margin
    store = machine.store
    is_enough = store[0]["fresh"] + 2 * margin < len(machine.event)
    is_enough = is_enough and store[1]["fresh"] + 2 * margin < len(machine.bucket)
    is_enough = is_enough and store[MESSAGES]["fresh"] + margin < len(machine.message)
    is_enough = is_enough and store[DELAYS]["fresh"] + margin < len(machine.delay)
    is_enough = is_enough and store[STREAMS]["fresh"] + margin < len(machine.stream)
    return bool(is_enough)


def _run(machine: MachineState) -> int:
    """Simulate the job until the event queue is empty (`DONE`), or until the caller must act.

    `NEEDS_ROOM`: pools must be expanded, then a further call continues. `OVERFLOWED`: one event
    needed more records than the margin; the run is invalid. `ABORTED`: there is an event at time 0,
    on which ASTRA-sim aborts; it remains in the queue, and a later call continues if `PASSES_ZERO`
    is set. Ranks that have not started are started first. The state is kept in `machine`.
    """
    while machine.counter[STARTED] < len(machine.rank):
        if not _has_room(machine):
            return NEEDS_ROOM
        _start(machine.counter[STARTED], machine)
        machine.counter[STARTED] += 1
    buckets = machine.heap[0]
    first = buckets["first"]
    while buckets["size"] > 0:
        now, bucket = machine.entry[first]["time"], machine.entry[first]["item"]
        if now <= 0 and machine.counter[PASSES_ZERO] == 0:
            return ABORTED
        while machine.bucket[bucket]["first"] >= 0:
            if machine.counter[OVERFLOW] != 0:
                return OVERFLOWED
            if not _has_room(machine):
                return NEEDS_ROOM
            machine.counter[EVENTS] += 1
            _handle_event(take_event(bucket, machine), now, machine)
        remove_bucket(bucket, now, machine)
    return DONE


run = Kernel(_run)


# Larger than all row numbers.
_NO_ROW = 1 << 62
_TAG_MODULUS = 500_000_000


@compiled
def _get_heap(rank: Integer, slot: Integer) -> Integer:
    """Return the heap of the free nodes of a rank that need a slot."""
    return 1 + SLOTS * rank + slot


@outlined
def free(row: Integer, machine: MachineState) -> None:
    """Add node `row` to the nodes of its rank that may start; it is not started here.

    All its parents must have finished. There is one heap of such nodes per rank and slot (kind of
    node of which a rank runs one at a time), ordered by row.
    """
    node = machine.node[row]
    insert(machine, _get_heap(node["rank"], node["slot"]), row, row)


@outlined
def start_free_nodes(rank: Integer, now: Integer, machine: MachineState) -> None:
    """Start the nodes of a rank that may start and whose slots are free, lowest row first.

    A node may start if it has been added by `free`. A slot is occupied while a node of its kind
    runs. Nodes to skip (markers) end at once and need no slot. If the machine has slots, children
    of skipped nodes are not started by this call, but when another node of the rank finishes; the
    rank hangs if there is none.
    """
    deferred_count: Integer = 0
    while True:
        row = _take_next_free(rank, machine)
        if row < 0:
            break
        if machine.node[row]["action"] == SKIPPED:
            deferred_count = _skip_node(row, deferred_count, now, machine)
        else:
            _start_node(row, now, machine)
    # Children of skipped nodes become free only when another node finishes; the rank may hang.
    for position in range(deferred_count):
        free(machine.freed[position], machine)


@outlined
def _take_next_free(rank: Integer, machine: MachineState) -> Integer:
    """Remove and return the lowest row of a node that may start on a rank; -1 without one.

    The slot of the node (kind of which a rank runs one at a time) must be free; it is not occupied
    here. Only the first node of every slot is considered.
    """
    best = -1
    best_row = _NO_ROW
    occupied = machine.rank[rank]["occupied"]
    for slot in range(SLOTS):
        heap = machine.heap[_get_heap(rank, slot)]
        if heap["size"] == 0 or (occupied >> slot) & 1:
            continue
        row = machine.entry[heap["first"]]["item"]
        if row < best_row:
            best, best_row = slot, row
    if best < 0:
        return -1
    pop(machine.entry, machine.heap, _get_heap(rank, best))
    return best_row


@outlined
def _skip_node(
    row: Integer, deferred_count: Integer, now: Integer, machine: MachineState
) -> Integer:
    """End a node at `now` without running it; return the new number of deferred children.

    Of its children, those without other unfinished parents may start. If the machine has slots,
    ASTRA-sim starts them later: they are appended to `machine.freed`, after the `deferred_count`
    entries before. Otherwise they are added to the nodes that may start at once.
    """
    node = machine.node[row]
    node["start"] = now
    node["end"] = now
    for edge in range(node["first_child"], node["first_child"] + node["children"]):
        child = machine.child[edge]
        machine.node[child]["unmet"] -= 1
        if machine.node[child]["unmet"] > 0:
            continue
        if machine.has_slots:
            machine.freed[deferred_count] = child
            deferred_count += 1
        else:
            free(child, machine)
    return deferred_count


@outlined
def _start_node(row: Integer, now: Integer, machine: MachineState) -> None:
    """Start a node at `now` (ns): store its start, and perform its action.

    The node is added to the ongoing nodes of its rank and, if slots are limited and it has one,
    occupies its slot. The action is a timer, a message, a collective or a memory transfer. The
    duration of a counted timer is added to the computing time of the rank. Tags are taken modulo
    5e8.
    """
    node = machine.node[row]
    index = node["rank"]
    rank = machine.rank[index]
    node["start"] = now
    rank["ongoing"] += 1
    if machine.has_slots and node["slot"] != NO_SLOT:
        rank["occupied"] |= 1 << node["slot"]
    code = (row << CODE_BITS) | NODE_ENDS
    action, tag = node["action"], np.int64(node["tag"]) % _TAG_MODULUS
    if action == TIMER:
        if node["is_counted"]:
            rank["compute_ns"] += node["work"]
        delay(index, now, node["work"], code, machine)
    elif action == SEND_NODE:
        send(index, node["peer"], node["work"], tag, code, row, now, machine)
    elif action == RECV_NODE:
        receive(node["peer"], index, node["work"], tag, code, now, machine)
    elif action == COLLECTIVE_NODE:
        start_collective(row, now, machine)
    elif action == MEMORY_NODE:
        _start_transfer(row, now, machine)
    # Nodes with any other action never finish.


@outlined
def close_node(row: Integer, now: Integer, machine: MachineState) -> None:
    """End a node at `now` (ns), release its slot, and start nodes of its rank that may start.

    These include children without other unfinished parents. `now` becomes the finish time of the
    rank if none of its nodes is running or may start. The node becomes the last finished one of its
    rank.
    """
    node = machine.node[row]
    index = node["rank"]
    rank = machine.rank[index]
    node["end"] = now
    rank["last"] = row
    rank["ongoing"] -= 1
    rank["occupied"] &= ~(1 << node["slot"])
    for edge in range(node["first_child"], node["first_child"] + node["children"]):
        child = machine.child[edge]
        machine.node[child]["unmet"] -= 1
        if machine.node[child]["unmet"] == 0:
            free(child, machine)
    start_free_nodes(index, now, machine)
    finish_if_done(index, now, machine)


@outlined
def finish_if_done(index: Integer, now: Integer, machine: MachineState) -> None:
    """Set a rank's finish time to `now` if none of its nodes is running or may start.

    `index`: number of the rank. Nodes that still wait for parents do not prevent this. If they
    start later, the time is overwritten when they finish.
    """
    rank = machine.rank[index]
    if rank["ongoing"] > 0:
        return
    for slot in range(SLOTS):
        if machine.heap[_get_heap(index, slot)]["size"] > 0:
            return
    rank["finish"] = now


# --- remote memory ---


@compiled
def _start_transfer(row: Integer, now: Integer, machine: MachineState) -> None:
    """Start the remote-memory transfer of a node at `now` (ns), or queue it.

    A memory that several ranks share serves one transfer at a time, first come, first served. On a
    rank without a shared memory, transfers do not wait for each other, and the node ends with its
    transfer.
    """
    node = machine.node[row]
    queue_index = machine.memory_of[node["rank"]]
    if queue_index < 0:
        delay(node["rank"], now, node["work"], (row << CODE_BITS) | NODE_ENDS, machine)
        return
    queue = machine.memory[queue_index]
    node["queue"] = -1
    if queue["active"] == 0:
        queue["active"] = 1
        delay(node["rank"], now, node["work"], (row << CODE_BITS) | MEMORY_ENDS, machine)
    elif queue["first"] < 0:
        queue["first"] = row
        queue["last"] = row
    else:
        machine.node[queue["last"]]["queue"] = row
        queue["last"] = row


@outlined
def close_transfer(row: Integer, now: Integer, machine: MachineState) -> None:
    """Finish a transfer of remote memory at `now` (ns), and start the next waiting one.

    Transfers of a memory wait in a queue (first in, first out); the memory is that of the rank of
    node `row`. Then the node is closed, which may start its children.
    """
    queue = machine.memory[machine.memory_of[machine.node[row]["rank"]]]
    following = queue["first"]
    queue["active"] = 0
    if following >= 0:
        node = machine.node[following]
        queue["first"] = node["queue"]
        queue["active"] = 1
        code = (following << CODE_BITS) | MEMORY_ENDS
        delay(node["rank"], now, node["work"], code, machine)
    close_node(row, now, machine)
