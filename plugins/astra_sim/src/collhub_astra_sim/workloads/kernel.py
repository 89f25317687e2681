"""Kernel: the event loop of a whole job.

A discrete-event simulation on the event queue of `simulating.kernel`: what happens is a code, the
kind of the happening and the index of the thing that it happens to. One event hands on at most two
codes, a batch any number, and each is acted on before the next one is looked at, as ASTRA-sim's
callbacks are.

Native collectives are never expanded: a message exists from the instant in which it is sent, or its
receive is posted, until both have met and it has arrived. What is under way has to fit in pools of
fixed size; where less than a margin is left, the run returns, its caller enlarges them, and it goes
on. The margin bounds what one event can cause.

Cost: O(1) for an event whose time is in use, else O(log n), as in `simulating.kernel`; O(log d) for
a message's route, d destinations of its source; O(log n) for a node among the free ones.
"""

from __future__ import annotations

from collhub_astra_sim.compiling import Kernel, compiled, outlined
from collhub_astra_sim.simulating.event_queue import Integer, end_bucket, next_event
from collhub_astra_sim.workloads.custom import end_custom
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
from collhub_astra_sim.workloads.messages import arrive, await_cleared, free_link, launch
from collhub_astra_sim.workloads.native import packet_arrives, packet_is_ready
from collhub_astra_sim.workloads.nodes import (
    end_node,
    end_transfer,
    finish_if_done,
    issue_free,
)
from collhub_astra_sim.workloads.pools import (
    BATCH_ENDS,
    DELIVERY,
    LINK_FREE,
    delay,
    given_back,
    next_of_batch,
)
from collhub_astra_sim.workloads.streams import leave, next_phase

# Outcomes of a call.
DONE, NEEDS_ROOM, OVERFLOWED, ABORTED = range(4)


# Entries of `counter` beside the event queue's: whether room ran out, events, ranks that started,
# whether events at time 0 are executed instead of ending the run.
OVERFLOW, EVENTS, STARTED, PASSES_ZERO = 1, 2, 3, 4


@outlined
def _start(rank: Integer, machine: Machine) -> None:
    """Issue the nodes of a rank that wait for nothing, at time 0."""
    issue_free(rank, 0, machine)
    finish_if_done(rank, 0, machine)


@compiled
def _advance(index: Integer, now: Integer, machine: Machine) -> None:
    """Go on with a stream whose phase has ended.

    The node ends before the queue is left: the rank's next collective may start first.
    """
    stream = machine.stream[index]
    if stream["steps_left"] > 1:
        next_phase(index, now, machine)
        return
    node = machine.node[stream["row"]]
    left = stream["queue"]
    node["unfinished"] -= 1
    if node["unfinished"] == 0:
        end_node(stream["row"], now, machine)
    leave(left, now, machine)
    given_back(machine.stream, STREAMS, index, machine)


@outlined
def _act(code: Integer, now: Integer, machine: Machine) -> None:
    """Let what a code says happen."""
    kind, index = code & ((1 << CODE_BITS) - 1), code >> CODE_BITS
    stream: Integer = -1
    if kind == PACKET_READY:
        if packet_is_ready(index, now, machine):
            stream = index
    elif kind == PACKET_ARRIVES:
        packet_arrives(index, now, machine)
    elif kind == PACKET_REDUCES:
        record = machine.stream[index]
        ready = (index << CODE_BITS) | PACKET_READY
        delay(record["rank"], now, record["reduce_ns"], ready, machine)
    elif kind == NODE_ENDS:
        end_node(index, now, machine)
    elif kind == CUSTOM_ENDS:
        if end_custom(index, now, machine):
            stream = machine.progress[index]["stream"]
    elif kind == MEMORY_ENDS:
        end_transfer(index, now, machine)
    elif kind == SEND_IS_CLEARED:
        launch(index, now, machine)
    elif kind == RECEIVE_IS_CLEARED:
        await_cleared(index, now, machine)
    if stream >= 0:
        _advance(stream, now, machine)


@compiled
def _happen(event: Integer, now: Integer, machine: Machine) -> None:
    """Let an event happen, and all that it hands on."""
    kind, item = event & 3, event >> 2
    if kind == LINK_FREE:
        free_link(item, now, machine)
        return
    count: Integer = 1
    position = 0
    if kind == DELIVERY:
        count = arrive(item, now, machine)
    elif kind != BATCH_ENDS:
        machine.codes[0] = item
    # The codes of a delivery are two at most; read before the first one writes others.
    second = machine.codes[1]
    while position < count:
        code = machine.codes[0] if position == 0 else second
        if kind == BATCH_ENDS:
            code = next_of_batch(item, machine)
            # Until the batch says that it has ended.
            count = position + 2 if code >= 0 else 0
        if code >= 0:
            _act(code, now, machine)
        position += 1


@compiled
def _has_room(machine: Machine) -> bool:
    """Whether all pools have their margins."""
    margin = machine.margin
    store = machine.store
    is_enough = store[0]["fresh"] + 2 * margin < len(machine.event)
    is_enough = is_enough and store[1]["fresh"] + 2 * margin < len(machine.bucket)
    is_enough = is_enough and store[MESSAGES]["fresh"] + margin < len(machine.message)
    is_enough = is_enough and store[DELAYS]["fresh"] + margin < len(machine.delay)
    is_enough = is_enough and store[STREAMS]["fresh"] + margin < len(machine.stream)
    return bool(is_enough)


def _run(machine: Machine) -> int:
    """Go on until nothing is left to happen (`DONE`) or pools have to grow (`NEEDS_ROOM`).

    `OVERFLOWED`: one event has needed more than the margin. `ABORTED`: there is an event at time 0,
    which the event queue of ASTRA-sim refuses; the event is left in the queue.
    """
    while machine.counter[STARTED] < len(machine.rank):
        if not _has_room(machine):
            return NEEDS_ROOM
        _start(machine.counter[STARTED], machine)
        machine.counter[STARTED] += 1
    buckets = machine.heap[0]
    first = buckets["first"]
    while buckets["size"] > 0:
        now, place = machine.entry[first]["time"], machine.entry[first]["item"]
        if now <= 0 and machine.counter[PASSES_ZERO] == 0:
            return ABORTED
        while machine.bucket[place]["first"] >= 0:
            if machine.counter[OVERFLOW] != 0:
                return OVERFLOWED
            if not _has_room(machine):
                return NEEDS_ROOM
            machine.counter[EVENTS] += 1
            _happen(next_event(place, machine), now, machine)
        end_bucket(place, now, machine)
    return DONE


run = Kernel(_run)
