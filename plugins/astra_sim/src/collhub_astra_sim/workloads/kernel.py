"""Kernel: the event loop of a whole job.

A discrete-event simulation on the event queue of `simulating.kernel`. An event carries a code: the
kind of the action and the index of its object. One event yields at most two codes, a batch any
number; each is processed before the next one is read, as in ASTRA-sim's callbacks.

Native collectives are never expanded: a message exists from the time when it is sent, or its
receive is posted, until it has been matched and has arrived. Messages in flight are stored in pools
of fixed size; if less than a margin is free, the run returns, its caller enlarges the pools, and
the run continues. The margin bounds the demand of one event.

Cost: O(1) for an event if a bucket of its time exists, else O(log n), as in `simulating.kernel`;
O(log d) for the route of a message, with d destinations of its source; O(log n) to find a free
node.
"""

from __future__ import annotations

from collhub_kernels import Kernel, compiled, outlined
from collhub_kernels.event_queue import Integer, remove_bucket, take_event

from collhub_astra_sim.workloads.machine_state import (
    CODE_BITS,
    CUSTOM_ENDS,
    DELAYS,
    MEMORY_ENDS,
    MESSAGES,
    NODE_ENDS,
    PACKET_ARRIVES,
    PACKET_READY,
    PACKET_REDUCES,
    RECEIVE_IS_CLEARED,
    SEND_IS_CLEARED,
    STREAMS,
    Machine,
)
from collhub_astra_sim.workloads.messages import (
    handle_arrival,
    start_message,
    update_link,
    wait_for_cleared,
)
from collhub_astra_sim.workloads.native import handle_packet_arrival, handle_ready_packet
from collhub_astra_sim.workloads.nodes import (
    close_node,
    close_transfer,
    finish_if_done,
    start_free_nodes,
)
from collhub_astra_sim.workloads.pools import (
    BATCH_ENDS,
    DELIVERY,
    LINK_FREE,
    delay,
    return_record,
    take_next_code,
)
from collhub_astra_sim.workloads.streams import close_custom_node, start_next_phase, stop_stream

# Results of a call.
DONE, NEEDS_ROOM, OVERFLOWED, ABORTED = range(4)


# Entries of `counter` after the event queue's: whether a pool overflowed, number of events, number
# of started ranks, and whether events at time 0 are executed instead of ending the run.
OVERFLOW, EVENTS, STARTED, PASSES_ZERO = 1, 2, 3, 4


@outlined
def _start(rank: Integer, machine: Machine) -> None:
    """Start the nodes of a rank without parents, at time 0."""
    start_free_nodes(rank, 0, machine)
    finish_if_done(rank, 0, machine)


@compiled
def _advance_stream(index: Integer, now: Integer, machine: Machine) -> None:
    """Advance a stream whose phase has finished: start its next phase, or finish it.

    The node finishes before the stream leaves its queue, because the rank's next collective may
    start first.
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
def _execute_code(code: Integer, now: Integer, machine: Machine) -> None:
    """Perform the action of a code at time `now` (ns)."""
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
def _handle_event(event: Integer, now: Integer, machine: Machine) -> None:
    """Process one event and execute all codes that it yields.

    A delivery yields up to two codes, a batch of delays any number, other events one.
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
def _has_room(machine: Machine) -> bool:
    """Return whether every pool has space for the objects that one event can create."""
    margin = machine.margin
    store = machine.store
    is_enough = store[0]["fresh"] + 2 * margin < len(machine.event)
    is_enough = is_enough and store[1]["fresh"] + 2 * margin < len(machine.bucket)
    is_enough = is_enough and store[MESSAGES]["fresh"] + margin < len(machine.message)
    is_enough = is_enough and store[DELAYS]["fresh"] + margin < len(machine.delay)
    is_enough = is_enough and store[STREAMS]["fresh"] + margin < len(machine.stream)
    return bool(is_enough)


def _run(machine: Machine) -> int:
    """Run until the event queue is empty (`DONE`) or pools have to grow (`NEEDS_ROOM`).

    `OVERFLOWED`: one event has needed more than the margin. `ABORTED`: there is an event at time 0,
    which ASTRA-sim's event queue refuses; the event remains in the queue.
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
