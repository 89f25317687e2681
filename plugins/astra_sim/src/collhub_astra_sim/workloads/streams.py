"""Parts of the kernel: collectives as data sets of streams, and the queues in which these stand.

Methods of ASTRA-sim: `Sys::generate_collective`, `proceed_to_next_vnet_baseline`, and those of
`SchedulerUnit` and `QueueLevels`. All streams of a queue that have not started stand in line; of a
rank's collectives one is in progress at a time, so that priorities decide nothing. Where slots are
unlimited, every collective has queues of its own, as if it were a graph of messages.
"""

from __future__ import annotations

from collhub_astra_sim.compiling import compiled, outlined
from collhub_astra_sim.simulating.event_queue import Integer
from collhub_astra_sim.workloads.custom import start_custom
from collhub_astra_sim.workloads.machine_state import (
    ALL_GATHER,
    ANY_QUEUE,
    FIRST_QUEUES,
    NO_CHOICE,
    REDUCE_SCATTER,
    STREAMS,
    TREE,
    TYPES,
    Machine,
)
from collhub_astra_sim.workloads.native import start_native
from collhub_astra_sim.workloads.pools import taken

# Entries of `turn` by rank and level: queues of all, first ones, last ones, then trees by type.
TURNS = 8
_FIRST_TREE = 3
# Bits of `stream_queue` above the queue.
_QUEUE_MASK, _REVERSE, _LOWEST = (1 << 16) - 1, 1 << 16, 1 << 17


@outlined
def begin_collective(row: Integer, now: Integer, machine: Machine) -> None:
    """Create the streams of a collective; each starts as soon as its queue lets it."""
    node = machine.node[row]
    _choose(row, machine)
    node["unfinished"] = node["streams"]
    is_native = node["choice"] >= 0
    # Without a phase nothing ever ends.
    if is_native and machine.plan[node["choice"]]["count"] == 0:
        return
    for _ in range(node["streams"]):
        index = taken(machine.stream, STREAMS, machine)
        stream = machine.stream[index]
        stream["row"] = row
        stream["rank"] = node["rank"]
        stream["bytes"] = node["work"]
        stream["number"] = _next_number(row, machine)
        stream["step"] = 0
        stream["steps_left"] = 1
        stream["phase"] = -1
        if is_native:
            plan = machine.plan[node["choice"]]
            stream["phase"] = plan["first"]
            stream["steps_left"] = plan["count"]
        _choose_queues(index, machine)
        pump(stand_in_line(index, machine), now, machine)


@compiled
def _choose(row: Integer, machine: Machine) -> None:
    """Inside a group the algorithm of a type's first collective holds for all that follow."""
    node = machine.node[row]
    if node["member"] < 0:
        return
    place = node["member"] * TYPES + node["type"]
    if machine.member_choice[place] == NO_CHOICE:
        machine.member_choice[place] = node["choice"]
    node["choice"] = machine.member_choice[place]


@compiled
def _next_number(row: Integer, machine: Machine) -> Integer:
    """The number of a new stream: counted by group, without a group over all of the rank."""
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
def _choose_queues(index: Integer, machine: Machine) -> None:
    """Take the queues of all phases of a stream in turn."""
    stream = machine.stream[index]
    if stream["phase"] < 0:
        # A custom algorithm is queued in the first queue and does not advance the round robin.
        machine.stream_queue[index, 0] = 0
        return
    kind = machine.node[stream["row"]]["type"]
    for step in range(stream["steps_left"]):
        phase = machine.phase[stream["phase"] + step]
        queue = _next_queue(stream["rank"], phase["level"], phase["half"], machine)
        if phase["algorithm"] == TREE:
            place = (stream["rank"] * machine.levels + phase["level"]) * TURNS + _FIRST_TREE + kind
            # The first tree has its root at the highest position.
            if machine.turn[place] == 1:
                queue = queue | _LOWEST
            machine.turn[place] = 1 - machine.turn[place]
        machine.stream_queue[index, step] = queue


@compiled
def _next_queue(rank: Integer, level: Integer, half: Integer, machine: Machine) -> Integer:
    """The next queue of a dimension, with its direction."""
    queues = machine.queues_per_level
    first, count = 0, queues
    if half == FIRST_QUEUES:
        count = max(queues // 2, 1)
    elif half != ANY_QUEUE:
        first = queues // 2
        count = queues - first
    place = (rank * machine.levels + level) * TURNS + half
    queue = first + machine.turn[place]
    machine.turn[place] = (machine.turn[place] + 1) % count
    is_reverse = half != FIRST_QUEUES and queue >= queues // 2
    if half == ANY_QUEUE and queues == 1:
        is_reverse = False
    result = level * queues + queue
    found: Integer = result | _REVERSE if is_reverse else result
    return found


@outlined
def stand_in_line(index: Integer, machine: Machine) -> Integer:
    """Put a stream behind those that wait for the queue of its phase; return the queue."""
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
    found: Integer = number
    return found


@outlined
def pump(number: Integer, now: Integer, machine: Machine) -> None:
    """Start the streams that a queue has room for."""
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
def leave(number: Integer, now: Integer, machine: Machine) -> None:
    """End a stream's time in a queue."""
    machine.queue[number]["active"] -= 1
    pump(number, now, machine)


@outlined
def next_phase(index: Integer, now: Integer, machine: Machine) -> None:
    """Hand the bytes of a stream on to its next phase."""
    stream = machine.stream[index]
    phase = machine.phase[stream["phase"]]
    left = stream["queue"]
    if phase["algorithm"] != TREE:
        if phase["type"] == REDUCE_SCATTER:
            stream["bytes"] = stream["bytes"] // phase["size"]
        elif phase["type"] == ALL_GATHER:
            stream["bytes"] *= phase["size"]
    stream["phase"] += 1
    stream["step"] += 1
    stream["steps_left"] -= 1
    entered = stand_in_line(index, machine)
    leave(left, now, machine)
    pump(entered, now, machine)
