"""Parts of the kernel: collectives as data sets of streams, their queues, and custom algorithms.

Methods of ASTRA-sim: `Sys::generate_collective`, `proceed_to_next_vnet_baseline`, and those of
`SchedulerUnit` and `QueueLevels`. The streams of a queue that have not started wait in FIFO order;
a rank runs one collective at a time, so priorities have no effect. With unlimited slots every
collective has separate queues, as if it were a graph of messages.

Custom algorithms (class `CustomAlgorithm`) run node by node. Their nodes need no slots, and start
in the iteration order of the set of free nodes, as `simulating.kernel` explains.
"""

from __future__ import annotations

import numpy as np
from collhub_kernels import compiled, outlined
from collhub_kernels.event_queue import Integer

from collhub_astra_sim.simulating.set_order import sort_as_set
from collhub_astra_sim.workloads.machine_state import (
    ALL_GATHER,
    ANY_QUEUE,
    CODE_BITS,
    CUSTOM_ENDS,
    FIRST_QUEUES,
    NO_CHOICE,
    REDUCE_SCATTER,
    STREAMS,
    TREE,
    TYPES,
    MachineState,
    delay,
    take_record,
)
from collhub_astra_sim.workloads.messages import receive, send
from collhub_astra_sim.workloads.native import start_native
from hub_core import NodeType

_SEND, _RECV, _COMP = int(NodeType.COMM_SEND), int(NodeType.COMM_RECV), int(NodeType.COMP)
_TAG_MODULUS = 500_000_000


@outlined
def start_custom(index: Integer, now: Integer, machine: MachineState) -> None:
    """Start the custom algorithm of the stream `index` at `now` (ns): reset it and start its roots.

    The nodes are those of one rank of the algorithm: the position of the stream's rank in its
    process group, or without a group the rank.

    - The progress record of each node gets the stream, the row of the node in the table, and the
      number of its parents as unfinished ones (`unmet`).
    - In the record of the collective's node in the job, `ongoing` (started nodes without an end)
      becomes 0, and `buckets` the initial number of buckets of the set of nodes that become free.
    - Then the roots (nodes without parents) start in the order of the table (`_start_node`). Each
      increases `ongoing` by 1. An algorithm whose rank has no roots never finishes.
    """
    stream = machine.stream[index]
    node = machine.node[stream["row"]]
    position = stream["rank"]
    if node["member"] >= 0:
        position = machine.member[node["member"]]["position"]
    algorithm_rank = machine.custom_rank[machine.custom_first[-2 - node["choice"]] + position]
    for offset in range(algorithm_rank["count"]):
        progress = machine.progress[node["instance"] + offset]
        progress["stream"] = index
        progress["custom"] = algorithm_rank["first"] + offset
        progress["unmet"] = machine.custom[algorithm_rank["first"] + offset]["unmet"]
    node["ongoing"] = 0
    node["buckets"] = algorithm_rank["buckets"]
    for position in range(algorithm_rank["roots"]):
        root = machine.custom_root[algorithm_rank["first_root"] + position]
        _start_node(node["instance"] + root - algorithm_rank["first"], now, machine)


@outlined
def _start_node(progress_index: Integer, now: Integer, machine: MachineState) -> None:
    """Start a node of a custom algorithm at `now` (ns): a delay, a message or a receive.

    `progress_index`: record of the node's progress, which gives node and stream, and is the event
    of its end. `ongoing` of the collective's node increases by 1. By the type of the node:

    - COMP: a delay of `work` ns on the rank of the stream
    - SEND: a message of `work` bytes to the peer
    - RECV: a receive of `work` bytes from the peer is posted
    - any other type: nothing, so the node never ends

    The peer is a position in the group and is converted to a rank; without a group it is the rank.
    Tags are taken modulo `_TAG_MODULUS`.
    """
    progress = machine.progress[progress_index]
    custom = machine.custom[progress["custom"]]
    stream = machine.stream[progress["stream"]]
    machine.node[stream["row"]]["ongoing"] += 1
    rank, code = stream["rank"], (progress_index << CODE_BITS) | CUSTOM_ENDS
    kind, tag = custom["kind"], np.int64(custom["tag"]) % _TAG_MODULUS
    if kind == _COMP:
        delay(rank, now, custom["work"], code, machine)
    elif kind == _SEND:
        peer = _get_peer(progress["stream"], custom["peer"], machine)
        send(rank, peer, custom["work"], tag, code, stream["row"], now, machine)
    elif kind == _RECV:
        peer = _get_peer(progress["stream"], custom["peer"], machine)
        receive(peer, rank, custom["work"], tag, code, now, machine)


@compiled
def _get_peer(index: Integer, position: Integer, machine: MachineState) -> Integer:
    """Return the rank at a position of the custom algorithm that stream `index` runs.

    Positions are those of the members of the node's group; without a group the position is the
    rank.
    """
    member = machine.node[machine.stream[index]["row"]]["member"]
    if member < 0:
        return position
    rank: Integer = machine.group_rank[machine.member[member]["first"] + position]
    return rank


@outlined
def close_custom_node(progress_index: Integer, now: Integer, machine: MachineState) -> bool:
    """End a node of a custom algorithm at `now` (ns), and start its children that became ready.

    `progress_index`: progress record of the ended node. Two records change:

    - Record of the job node that is this collective: `ongoing` (number of running nodes) decreases
      by 1. `ended_by` becomes the kind of this node. `buckets` may grow.
    - Progress record of each child: `unmet` (number of parents that have not ended) decreases by 1.

    Children whose `unmet` is now 0 start (`_start_node`), which increases `ongoing` by 1 each.
    Their order is the iteration order of ASTRA-sim's hash set with `buckets` buckets.

    Returns True if `ongoing` is 0 after these starts: the algorithm has finished on the rank.
    """
    progress = machine.progress[progress_index]
    node = machine.node[machine.stream[progress["stream"]]["row"]]
    custom = machine.custom[progress["custom"]]
    node["ongoing"] -= 1
    node["ended_by"] = custom["kind"]
    shift = progress_index - progress["custom"]
    count = 0
    for edge in range(custom["first_child"], custom["first_child"] + custom["children"]):
        child = machine.custom_child[edge]
        waiting = machine.progress[shift + child]
        waiting["unmet"] -= 1
        if waiting["unmet"] == 0:
            machine.freed[count] = child
            count += 1
    node["buckets"] = sort_as_set(machine.freed, count, node["buckets"], machine)
    for position in range(count):
        _start_node(shift + machine.freed[position], now, machine)
    return bool(node["ongoing"] == 0)


# Entries of `turn` by rank and level: all queues, first half, last half, then trees by type.
TURNS = 8
_FIRST_TREE = 3
# Bits of `stream_queue` above the queue's number.
_QUEUE_MASK, _REVERSE, _LOWEST = (1 << 16) - 1, 1 << 16, 1 << 17


@outlined
def start_collective(row: Integer, now: Integer, machine: MachineState) -> None:
    """Create the streams of the collective in node `row`, and start those that may start at `now`.

    Streams are the parts into which ASTRA-sim divides a collective of a rank. `_choose_algorithm`
    first sets the algorithm of the node. `unfinished` of the node is set to its number of streams.
    A native algorithm without phases then gets no streams, so that the collective never finishes.

    Each stream has the bytes in the node's `work` and the next stream number, and begins with the
    first phase of the algorithm; a custom algorithm has phase -1 and one step. The stream is added
    to the queue that `_choose_queues` gives, and waiting streams of this queue start while it has
    capacity (`start_streams`). `machine` is changed.
    """
    node = machine.node[row]
    _choose_algorithm(row, machine)
    node["unfinished"] = node["streams"]
    is_native = node["choice"] >= 0
    # Without a phase the collective never finishes.
    if is_native and machine.plan[node["choice"]]["count"] == 0:
        return
    for _ in range(node["streams"]):
        index = take_record(machine.stream, STREAMS, machine)
        stream = machine.stream[index]
        stream["row"] = row
        stream["rank"] = node["rank"]
        stream["bytes"] = node["work"]
        stream["number"] = _take_stream_number(row, machine)
        stream["step"] = 0
        stream["steps_left"] = 1
        stream["phase"] = -1
        if is_native:
            plan = machine.plan[node["choice"]]
            stream["phase"] = plan["first"]
            stream["steps_left"] = plan["count"]
        _choose_queues(index, machine)
        start_streams(add_to_queue(index, machine), now, machine)


@compiled
def _choose_algorithm(row: Integer, machine: MachineState) -> None:
    """Set the algorithm of a collective node to that of the first one of its group and type.

    On a rank, ASTRA-sim uses the algorithm of the first collective of a process group that starts
    for all later ones of the same type. Collectives without a group are not changed.
    """
    node = machine.node[row]
    if node["member"] < 0:
        return
    choice_index = node["member"] * TYPES + node["type"]
    if machine.member_choice[choice_index] == NO_CHOICE:
        machine.member_choice[choice_index] = node["choice"]
    node["choice"] = machine.member_choice[choice_index]


@compiled
def _take_stream_number(row: Integer, machine: MachineState) -> Integer:
    """Return the number of a new stream of node `row`, and increase the counts.

    The number determines the tag of the stream's messages. Without a group it is the number of all
    streams of the rank before, including those of groups. With a group it is the base of the group
    plus the number of earlier streams of this rank in the group.
    """
    node = machine.node[row]
    rank = machine.rank[node["rank"]]
    number: Integer = rank["streams"]
    rank["streams"] += 1
    if node["member"] >= 0:
        member = machine.member[node["member"]]
        number = member["base"] + member["streams"]
        member["streams"] += 1
    return number


@compiled
def _choose_queues(index: Integer, machine: MachineState) -> None:
    """Choose a queue for every phase of a stream, round robin by rank and dimension.

    The queues, with bits for a reversed direction and for the tree, are stored in
    `machine.stream_queue`. A custom algorithm uses the first queue and does not advance the round
    robin. A phase that runs on a tree also gets one of the two trees, alternately by rank,
    dimension and type, the one with the highest position as root first.
    """
    stream = machine.stream[index]
    if stream["phase"] < 0:
        # A custom algorithm uses the first queue and does not advance the round robin.
        machine.stream_queue[index, 0] = 0
        return
    kind = machine.node[stream["row"]]["type"]
    for step in range(stream["steps_left"]):
        phase = machine.phase[stream["phase"] + step]
        queue = _take_next_queue(stream["rank"], phase["level"], phase["half"], machine)
        if phase["algorithm"] == TREE:
            turn_index = (
                (stream["rank"] * machine.levels + phase["level"]) * TURNS + _FIRST_TREE + kind
            )
            # The first tree has its root at the highest position.
            if machine.turn[turn_index] == 1:
                queue = queue | _LOWEST
            machine.turn[turn_index] = 1 - machine.turn[turn_index]
        machine.stream_queue[index, step] = queue


@compiled
def _take_next_queue(
    rank: Integer, level: Integer, half: Integer, machine: MachineState
) -> Integer:
    """Return the next queue of a rank in dimension `level`, round robin, with its direction bit.

    `half`: whether the phase uses the first half of the queues, the last one, or all. Streams of
    the second half run in reverse, unless there is only one queue and any may be used. With one
    queue both halves consist of it. The round robin is counted by rank, level and half.
    """
    queues = machine.queues_per_level
    first, count = 0, queues
    if half == FIRST_QUEUES:
        count = max(queues // 2, 1)
    elif half != ANY_QUEUE:
        first = queues // 2
        count = queues - first
    turn_index = (rank * machine.levels + level) * TURNS + half
    queue = first + machine.turn[turn_index]
    machine.turn[turn_index] = (machine.turn[turn_index] + 1) % count
    is_reverse = half != FIRST_QUEUES and queue >= queues // 2
    if half == ANY_QUEUE and queues == 1:
        is_reverse = False
    result = level * queues + queue
    queue_bits: Integer = result | _REVERSE if is_reverse else result
    return queue_bits


@outlined
def add_to_queue(index: Integer, machine: MachineState) -> Integer:
    """Append a stream to the end of its queue, and return the number of this queue in `machine`.

    `index`: number of the stream. `machine.stream_queue` has the queue for each phase of a
    stream, counted from the first queue of the stream's node. The current phase gives the queue,
    the direction (`is_reverse`) and whether the root of its tree is the lowest position
    (`is_lowest`). These three are stored in the stream.

    `machine` is changed: the stream becomes the last one of the queue, and the successor of the
    previous last one. In an empty queue it also becomes the first. It is not started.
    """
    stream = machine.stream[index]
    choice = machine.stream_queue[index, stream["step"]]
    stream["is_reverse"] = choice & _REVERSE != 0
    stream["is_lowest"] = choice & _LOWEST != 0
    number = machine.node[stream["row"]]["queue"] + (choice & _QUEUE_MASK)
    stream["queue"] = number
    stream["next"] = -1
    queue = machine.queue[number]
    if queue["first"] < 0:
        queue["first"] = index
    else:
        machine.stream[queue["last"]]["next"] = index
    queue["last"] = index
    queue_number: Integer = number
    return queue_number


@outlined
def start_streams(number: Integer, now: Integer, machine: MachineState) -> None:
    """Start waiting streams of queue `number`, the oldest first, while it has capacity.

    At most `machine.most_active` streams of a queue may be active at a time. A started stream is
    removed from the waiting ones, and starts its native phase, or its custom algorithm if it has no
    phase, at `now`.
    """
    queue = machine.queue[number]
    while queue["active"] < machine.most_active and queue["first"] >= 0:
        index = queue["first"]
        queue["first"] = machine.stream[index]["next"]
        queue["active"] += 1
        if machine.stream[index]["phase"] < 0:
            start_custom(index, now, machine)
        else:
            start_native(index, now, machine)


@outlined
def stop_stream(number: Integer, now: Integer, machine: MachineState) -> None:
    """Decrease the number of active streams of queue `number`, and start waiting ones at `now`.

    Waiting streams of the queue start, the oldest first, until none waits or `machine.most_active`
    streams of the queue are active (`start_streams`).
    """
    machine.queue[number]["active"] -= 1
    start_streams(number, now, machine)


@outlined
def start_next_phase(index: Integer, now: Integer, machine: MachineState) -> None:
    """Advance a stream to its next phase at `now` (ns), and start waiting streams of both queues.

    `index`: number of the stream; it must have a next phase. The changes in `machine`, in order:

    1. `bytes` of the stream: after a reduce-scatter divided by the size of the dimension, rounded
       down; after an all-gather multiplied by it. Other phases and trees keep it.
    2. The stream is appended to the queue of its next phase (possibly the same queue).
    3. The left queue has one active stream less, and starts waiting streams up to its capacity.
    4. The entered queue does the same, perhaps with this stream.
    """
    stream = machine.stream[index]
    phase = machine.phase[stream["phase"]]
    previous_queue = stream["queue"]
    if phase["algorithm"] != TREE:
        if phase["type"] == REDUCE_SCATTER:
            stream["bytes"] = stream["bytes"] // phase["size"]
        elif phase["type"] == ALL_GATHER:
            stream["bytes"] *= phase["size"]
    stream["phase"] += 1
    stream["step"] += 1
    stream["steps_left"] -= 1
    next_queue = add_to_queue(index, machine)
    stop_stream(previous_queue, now, machine)
    start_streams(next_queue, now, machine)
