"""The state of a simulated job: numpy records, and the tuple of arrays that compiled code takes.

Names follow ASTRA-sim (public release of March 2026): a node of the workload layer may start a data
set; it is divided into streams; a stream passes through phases, each one algorithm in one
dimension; a phase sends and receives messages and waits for delays. Objects that come and go are
records of pools of fixed size.

A rank of ASTRA-sim has one callback per point in time (`Sys::try_register_event`): it processes all
delays of the rank that expire then, in creation order, including delays of length 0 that are
created meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_kernels import compiled, outlined
from collhub_kernels.event_queue import Integer, Records, push

from hub_core.columns import Int32Array, Int64Array, UInt64Array

# Action of a node of the workload when it starts.
TIMER, SEND_NODE, RECV_NODE, MEMORY_NODE, COLLECTIVE_NODE, SKIPPED, NEVER_ENDS = range(7)
# Slot that a node occupies while it runs; RECV nodes occupy none.
COMM_SLOT, COMPUTE_SLOT, HOST_SLOT, NO_SLOT = range(4)
SLOTS = 4
# Next action for an object: the lowest bits of a code; the object's index is in the higher bits.
(
    NOTHING, NODE_ENDS, PACKET_ARRIVES, PACKET_READY, PACKET_REDUCES, CUSTOM_ENDS, MEMORY_ENDS,
    SEND_IS_CLEARED, RECEIVE_IS_CLEARED,
) = range(9)  # fmt: skip
CODE_BITS = 4
# Types of collectives with native algorithms.
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = range(4)
TYPES = 4
# Native algorithms.
RING, DIRECT, HALVING_DOUBLING, TREE = range(4)
# The queues of a dimension that a phase may use.
ANY_QUEUE, FIRST_QUEUES, LAST_QUEUES = range(3)
# Kinds of free lists: events and buckets as in `simulating.kernel`, then these.
MESSAGES, DELAYS, BATCHES, STREAMS = range(2, 6)
STORES = 6
# Index in `counter`, after those of the kernel.
TRANSFERS = 5
# Value of `node["choice"]` and `member_choice` without an algorithm; custom algorithm t is -2 - t.
NO_CHOICE = -1
MOST_PHASES = 16

NODE = np.dtype(
    [
        ("start", np.int64),
        ("end", np.int64),
        # Timer: duration in ns; message: bytes; collective: bytes of one stream.
        ("work", np.int64),
        ("first_child", np.int64),
        ("queue", np.int64),  # first of the queues that its streams may use
        ("instance", np.int64),  # first index in `progress` of the nodes of its custom algorithm
        ("buckets", np.int64),  # bucket count of the set of free nodes of that algorithm
        ("children", np.int32),
        ("unmet", np.int32),
        ("rank", np.int32),
        ("peer", np.int32),
        ("tag", np.int32),
        ("streams", np.int32),
        ("unfinished", np.int32),  # number of unfinished streams
        ("ongoing", np.int32),  # number of running nodes of the custom algorithm
        ("choice", np.int32),
        ("member", np.int32),  # the rank's membership in the node's group, -1: all ranks
        ("type", np.int8),
        ("action", np.uint8),
        ("slot", np.uint8),
        ("is_counted", np.bool_),  # whether its time counts as computation
        ("ended_by", np.uint8),  # type of the node of its custom algorithm that finished last
    ],
    align=True,
)
RANK = np.dtype(
    [
        ("finish", np.int64),
        ("ongoing", np.int64),
        ("compute_ns", np.int64),
        ("streams", np.int64),
        ("occupied", np.int64),  # bit mask of occupied slots
        ("last", np.int64),  # node that finished last
    ],
    align=True,
)
# Membership of a rank in a group; group -1 of all ranks has one per rank, too.
MEMBER = np.dtype(
    [
        ("base", np.int64),  # base of stream numbers
        ("streams", np.int64),
        ("first", np.int64),  # first index of the group's ranks in `group_rank`
        ("position", np.int32),
        ("size", np.int32),
        ("is_small", np.bool_),  # has fewer ranks than the system
    ],
    align=True,
)
PLAN = np.dtype([("first", np.int64), ("count", np.int64)], align=True)
PHASE = np.dtype(
    [
        ("type", np.int32),
        ("algorithm", np.int32),
        ("width", np.int32),  # maximum number of packets in flight, for DIRECT; -1: one per peer
        ("level", np.int32),  # dimension
        # distance between the ranks of that dimension; 0: the ranks of the group
        ("stride", np.int32),
        ("size", np.int32),
        ("half", np.int32),
    ],
    align=True,
)
STREAM = np.dtype(
    [
        ("row", np.int64),
        ("number", np.int64),  # determines the tag of its messages
        ("bytes", np.int64),
        ("phase", np.int64),
        ("steps_left", np.int64),
        ("step", np.int64),
        ("queue", np.int64),
        ("next", np.int64),
        ("base", np.int64),  # rank at position 0 of the dimension, or first index in `group_rank`
        ("delay_ns", np.int64),
        ("reduce_ns", np.int64),
        ("made", np.int64),  # number of packets created, of which `sent` have been sent
        ("sent", np.int64),
        ("to_send", np.int64),
        ("arrived", np.int64),
        ("free", np.int64),
        ("plain", np.int64),  # remaining packets without reduction until the next one with it
        ("reduced", np.int64),  # remaining packets with reduction
        ("position", np.int32),
        ("rank", np.int32),
        ("is_reducing", np.bool_),
        ("is_reverse", np.bool_),  # counterclockwise
        ("is_lowest", np.bool_),  # whether the tree's root is the lowest position
    ],
    align=True,
)
# A message, or a posted receive without a matching message. Codes: -1 for none.
MESSAGE = np.dtype(
    [
        ("bytes", np.int64),
        ("tag", np.int64),
        ("sender", np.int64),
        ("receiver", np.int64),
        ("hop", np.int64),
        ("last_hop", np.int64),
        ("next_in_line", np.int64),
        ("next_unmet", np.int64),
        ("ready", np.int64),  # when it reached the source of its link
        ("node", np.int32),  # of the workload, -1 for a clearance
        ("source", np.int32),
        ("destination", np.int32),
        ("is_receive", np.bool_),
        ("is_arrived", np.bool_),
        ("is_unmet", np.bool_),
    ],
    align=True,
)
LINK = np.dtype(
    [
        ("bytes_per_ns", np.float64),
        ("latency_ns", np.float64),
        ("bytes", np.int64),
        ("busy_ns", np.int64),
        ("first", np.int64),  # queue of waiting messages
        ("last", np.int64),
        ("is_busy", np.bool_),
    ],
    align=True,
)
# A message on a link; times in ns.
TRANSFER = np.dtype(
    [
        ("ready", np.int64),
        ("start", np.int64),
        ("busy_ns", np.int64),
        ("link", np.int32),
        ("node", np.int32),
    ]
)
LINE = np.dtype([("first", np.int64), ("last", np.int64), ("active", np.int64)], align=True)
# The delays of one rank that expire at the same time.
BATCH = np.dtype(
    [
        ("time", np.int64), ("rank", np.int64), ("first", np.int64), ("last", np.int64),
        ("next", np.int64),
    ],
    align=True,
)  # fmt: skip
DELAY = np.dtype([("code", np.int64), ("next", np.int64)], align=True)
# Nodes of custom algorithms, and their state in a running instance.
CUSTOM = np.dtype(
    [
        ("work", np.int64),  # bytes or ns
        ("first_child", np.int64),
        ("children", np.int32),
        ("unmet", np.int32),
        ("peer", np.int32),
        ("tag", np.int32),
        ("kind", np.uint8),
    ],
    align=True,
)
CUSTOM_RANK = np.dtype(
    [
        ("first", np.int64), ("count", np.int64), ("first_root", np.int64), ("roots", np.int64),
        ("buckets", np.int64),
    ],
    align=True,
)  # fmt: skip
PROGRESS = np.dtype(
    [("stream", np.int64), ("custom", np.int32), ("unmet", np.int32)],
    align=True,
)


class MachineState(NamedTuple):
    """The complete state of a run, changed in place by the kernel.

    Nodes are in ascending order of their IDs within a rank, as ASTRA-sim starts them. `heap`: 0 the
    buckets of events, 1 + 4 r + s the free nodes of rank r that need slot s; `entry`, `bucket`,
    `event`, `recent`, `store`, `counter`, `identity`, `element`, `before`: as in
    `simulating.kernel`; `counter[1]`: whether a pool overflowed. `pair_first`, `pair_peer`: by
    source, the destinations that have a route, ascending; the links of route p are
    `path_link[path_first[p]:path_first[p + 1]]`. `unmet`: by hash, the unmatched messages and
    receives. `batch_of`: by hash, the open batches. `member_choice`: by member and type. `turn`:
    state of the round robin, by rank and level: all queues, first half, last half, and trees by
    type. `stream_queue`: queue, direction and tree of every phase of a stream. `custom_rank`: by
    custom algorithm and position; `custom_first`: by algorithm. `memory`: queues of transfers to
    remote memory. `memory_of`: by rank, -1: no queue. `transfer`: messages on links in order of
    time, empty if they are not recorded; `counter[TRANSFERS]`: their number, which may exceed the
    number of records.

    Scalars: `reduce_bytes_per_s` 0: reductions take no time.
    """

    node: Records
    rank: Records
    child: Int64Array
    member: Records
    member_choice: Int64Array
    group_rank: Int64Array
    plan: Records
    phase: Records
    stream: Records
    stream_queue: Int32Array
    queue: Records
    turn: Int32Array
    message: Records
    unmet: Records
    link: Records
    transfer: Records
    pair_first: Int64Array
    pair_peer: Int64Array
    path_first: Int64Array
    path_link: Int64Array
    batch: Records
    batch_of: Int64Array
    delay: Records
    custom: Records
    custom_rank: Records
    custom_first: Int64Array
    custom_root: Int64Array
    custom_child: Int32Array
    progress: Records
    memory: Records
    memory_of: Int64Array
    heap: Records
    entry: Records
    bucket: Records
    event: Records
    recent: Int64Array
    store: Records
    counter: Int64Array
    identity: UInt64Array
    element: Records
    before: Int64Array
    freed: Int64Array
    codes: Int64Array
    endpoint_ns: int
    reduce_bytes_per_s: float
    most_active: int
    queues_per_level: int
    levels: int
    margin: int
    is_shared: bool
    has_slots: bool
    has_rendezvous: bool


# Kinds of events, in the lowest two bits of an event's item.
DELIVERY, LINK_FREE, BATCH_ENDS, HAPPENS = 0, 1, 2, 3


@compiled
def take_record(pool: Records, kind: Integer, machine: MachineState) -> Integer:
    """Reserve a record of a pool and return its index: the one freed last, else an unused one.

    `kind`: number of the pool, `MESSAGES` to `STREAMS`. The fields are not reset. If no unused
    record is left but the last one, the pool counts as exhausted: `counter[1]` is set, so that the
    run stops before its next event, and the returned record may be in use.
    """
    store = machine.store[kind]
    index: Integer = store["returned"]
    if index >= 0:
        store["returned"] = pool[index]["next"]
        return index
    index = store["fresh"]
    if index + 1 >= len(pool):
        machine.counter[1] = 1
        return index
    store["fresh"] = index + 1
    return index


@compiled
def return_record(pool: Records, kind: Integer, index: Integer, machine: MachineState) -> None:
    """Return a record to its pool, so that `take_record` reuses it before all other records.

    `kind`: number of the pool's entry in `machine.store`. `index`: position of the record in
    `pool`.
    """
    pool[index]["next"] = machine.store[kind]["returned"]
    machine.store[kind]["returned"] = index


@compiled
def _compute_hash_slot(rank: Integer, time: Integer, machine: MachineState) -> Integer:
    """Return the index in `batch_of` of the chain with the batches of a rank and time (ns)."""
    return (time * 31 + np.int64(rank) * 0x9E3779B1) & (len(machine.batch_of) - 1)


@outlined
def delay(
    rank: Integer, now: Integer, length: Integer, code: Integer, machine: MachineState
) -> None:
    """Schedule the action `code` of a rank at `now` + `length` (ns); `length` is at least 0.

    All delays of a rank that end at the same time form a batch. A batch is one event, which
    executes the delays in the order of creation.

    - If the rank has a batch for this time, the delay is appended. This includes a batch that is
      being executed.
    - Otherwise a batch is created. Its event comes after all events of that time created earlier.

    If the pool of delays or batches is full, `machine.counter[1]` is set, which stops the run
    before its next event (`take_record`).
    """
    time = now + length
    entry = take_record(machine.delay, DELAYS, machine)
    machine.delay[entry]["code"] = code
    machine.delay[entry]["next"] = -1
    hash_slot = _compute_hash_slot(rank, time, machine)
    index = machine.batch_of[hash_slot]
    while index >= 0:
        batch = machine.batch[index]
        if batch["time"] == time and batch["rank"] == rank:
            if batch["first"] < 0:
                batch["first"] = entry
            else:
                machine.delay[batch["last"]]["next"] = entry
            batch["last"] = entry
            return
        index = batch["next"]
    index = take_record(machine.batch, BATCHES, machine)
    batch = machine.batch[index]
    batch["time"], batch["rank"], batch["first"], batch["last"] = time, rank, entry, entry
    batch["next"] = machine.batch_of[hash_slot]
    machine.batch_of[hash_slot] = index
    push(machine, time, (index << 2) | BATCH_ENDS)


@outlined
def take_next_code(index: Integer, machine: MachineState) -> Integer:
    """Remove the oldest delay of batch `index`, and return its code: the action at its end.

    A batch has all delays of a rank that end at one time. Changes `machine`:

    - The batch has a delay: the record of the delay is freed. The batch remains, even if this was
      its last delay.
    - The batch has no delay: the batch is removed from the hash table and freed, and the result is
      -1. `index` is then invalid.

    Callers call it until it returns -1.
    """
    batch = machine.batch[index]
    entry = batch["first"]
    if entry >= 0:
        code: Integer = machine.delay[entry]["code"]
        batch["first"] = machine.delay[entry]["next"]
        return_record(machine.delay, DELAYS, entry, machine)
        return code
    hash_slot = _compute_hash_slot(batch["rank"], batch["time"], machine)
    previous = machine.batch_of[hash_slot]
    if previous == index:
        machine.batch_of[hash_slot] = batch["next"]
    else:
        while machine.batch[previous]["next"] != index:
            previous = machine.batch[previous]["next"]
        machine.batch[previous]["next"] = batch["next"]
    return_record(machine.batch, BATCHES, index, machine)
    return -1
