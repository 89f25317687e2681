"""Kernel of the machine timing: thread blocks that execute instructions, and shared links.

Algorithm: discrete-event simulation. An instruction of a thread block (receive, send, receive and
send in one, local work) begins when the instructions that it waits for have ended and the first
part of its messages is visible. It keeps its block busy for `duration`. Links cut through: a
message occupies all links of its path at once, from its begin, and shares each link with the
messages that began before it. A link is represented by the time at which it has sent all bytes
of the messages so far, so that no events of links are needed: a message ends no earlier than that
time on each of its links. The first part of a message is visible `first` after its begin, later by
the part `halves` / 2 of any delay on links; the entire message is visible `lag` after its end.

Source: the protocols of NCCL (slices in FIFO buffers with flags: Simple, LL, LL128) and the rules
of `constants`. Rings of Simple give the closed form of `collhub_machine_profiles.time_models`.

Invariant: events are processed in the order of their times, and those of equal times in the order
of their creation. A link serves messages in the order in which they begin, so the bytes that
it has sent never exceed its rate times the time.

Cost: two events per instruction with a message, one per instruction without, each O(1) if an event
of its time exists, else O(log n), plus O(1) per link of a message and per dependency. Instructions
refer to the few records of `TIMES` of a size and protocol, so that their own records serve all
sizes and protocols and are not written again; 64 bytes of each instruction are read.

The kernel is one file, because its parts share one state. It is plain Python; `collhub_kernels`
explains when it runs as machine code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_kernels import Kernel, compiled
from collhub_kernels.event_queue import (
    BUCKET,
    BUCKETS,
    ENTRY,
    EVENT,
    HEAP,
    RECENT_TIMES,
    STORE,
    Integer,
    Records,
    push,
    remove_bucket,
    take_event,
)

from hub_core.columns import Int64Array

# An instruction, without its progress. Ranges of children, receivers and links: first index and
# number.
INSTRUCTION = np.dtype(
    [
        ("times", np.int32),  # index in `BlockWorld.times`
        ("first_child", np.int32),
        ("children", np.int32),
        ("first_receiver", np.int32),
        ("receivers", np.int32),
        ("first_link", np.int32),
        ("links", np.int32),
    ],
    align=True,
)

# Progress of an instruction. Times in ps; -1: never.
PROGRESS = np.dtype(
    [
        ("begin", np.int64),
        ("end", np.int64),
        ("received", np.int64),  # time at which all received messages are entirely visible
        ("unmet", np.int32),
    ],
    align=True,
)

# Times in ps that many instructions share, and the bytes of their messages.
TIMES = np.dtype(
    [
        ("duration", np.int64),  # time in which the thread block is busy
        ("tail", np.int64),  # work on the last part of a received message
        ("first", np.int64),
        ("lag", np.int64),
        ("size_class", np.int32),
        ("halves", np.int32),
    ],
    align=True,
)


class BlockWorld(NamedTuple):
    """The complete state of a simulation, changed in place by the kernel.

    `instruction`, `progress`: records of `INSTRUCTION` and `PROGRESS`, one of each per instruction;
    the kernel changes only the progress. `times`: records of `TIMES`. `child`: instructions that
    wait for the end of another; `receiver`: those that wait for the first part of its message;
    `link`: links of the paths of messages, as indices of `free_ps`. `free_ps`: time at which a link
    has sent all messages so far. `busy_ps`: time of a message on a link, by size class times
    `classes` plus `link_class`. `roots`: instructions without dependencies. The other fields are
    the event queue.
    """

    instruction: Records
    progress: Records
    times: Records
    child: Int64Array
    receiver: Int64Array
    link: Int64Array
    link_class: Int64Array
    free_ps: Int64Array
    busy_ps: Int64Array
    roots: Int64Array
    classes: int
    launch_ps: int
    heap: Records
    entry: Records
    bucket: Records
    event: Records
    recent: Int64Array
    store: Records
    counter: Int64Array


def create_queue(
    events: int,
) -> tuple[Records, Records, Records, Records, Int64Array, Records, Int64Array]:
    """Return the fields `heap` to `counter` of an empty queue for at most `events` events.

    The arrays have fixed sizes: entries, buckets and events have `events` elements, which are
    written before they are read, and there are `RECENT_TIMES` recent times, initially -1 (none).
    """
    store = np.zeros(2, STORE)
    store["returned"] = -1
    return (
        np.zeros(1, HEAP),
        np.empty(events, ENTRY),
        np.empty(events, BUCKET),
        np.empty(events, EVENT),
        np.full(RECENT_TIMES, -1, np.int64),
        store,
        np.zeros(1, np.int64),
    )


# Kinds of events: the lowest two bits of an item. The higher bits are the instruction.
_END, _VISIBLE = 0, 1


def _simulate(world: BlockWorld) -> int:
    """Simulate until the event queue is empty; return the number of instructions that ended.

    First the roots begin at the launch time, in order. Events are executed by time, and those of
    equal times in the order of their creation. If the result is less than the number of
    instructions, there is a deadlock. Changes `world`.
    """
    for position in range(len(world.roots)):
        _begin(world.roots[position], world.launch_ps, world)
    buckets = world.heap[BUCKETS]
    ended = 0
    while buckets["size"] > 0:
        # The bucket stays on top of the heap during its events: an event that is created at the
        # same time is appended to it.
        now, bucket = world.entry[0]["time"], world.entry[0]["item"]
        while world.bucket[bucket]["first"] >= 0:
            event = take_event(bucket, world)
            if event & 3 == _END:
                ended += 1
                _end(event >> 2, now, world)
            else:
                _show(event >> 2, now, world)
        remove_bucket(bucket, now, world)
    return ended


@compiled
def _begin(index: Integer, now: Integer, world: BlockWorld) -> None:
    """Begin an instruction at `now` (ps): occupy its links, and create the events of its effects.

    Each of its links is occupied from its first free time on, for the time of the size class. The
    end is the latest of: the end on these links, `now` plus the duration, and the arrival of
    received data plus `tail`. Receivers see the first part of the message after `first`, plus half
    of the delay by links times `halves`; their `received` becomes at least the end plus `lag`, when
    they have all of it. One event is created for the end, one for the first part if there are
    receivers. Changes `world`.
    """
    instruction = world.instruction[index]
    progress = world.progress[index]
    times = world.times[instruction["times"]]
    progress["begin"] = now
    # Without contention for links.
    unshared = now + times["duration"]
    sent = unshared
    first_link = instruction["first_link"]
    row = times["size_class"] * world.classes
    for position in range(first_link, first_link + instruction["links"]):
        link = world.link[position]
        free = max(world.free_ps[link], now) + world.busy_ps[row + world.link_class[link]]
        world.free_ps[link] = free
        sent = max(sent, free)
    end = max(sent, progress["received"] + times["tail"])
    push(world, end, (index << 2) | _END)
    receivers = instruction["receivers"]
    if receivers > 0:
        first = now + times["first"] + ((sent - unshared) * times["halves"] >> 1)
        whole = end + times["lag"]
        first_receiver = instruction["first_receiver"]
        for position in range(first_receiver, first_receiver + receivers):
            receiver = world.progress[world.receiver[position]]
            receiver["received"] = max(receiver["received"], whole)
        push(world, first, (index << 2) | _VISIBLE)


@compiled
def _end(index: Integer, now: Integer, world: BlockWorld) -> None:
    """End an instruction at `now` (ps) and release its children.

    A child begins when all its conditions are met. Changes `world`.
    """
    instruction = world.instruction[index]
    world.progress[index]["end"] = now
    first = instruction["first_child"]
    for position in range(first, first + instruction["children"]):
        _release(world.child[position], now, world)


@compiled
def _show(index: Integer, now: Integer, world: BlockWorld) -> None:
    """Make the first part of a message visible at `now` (ps): release its receivers.

    Changes `world`.
    """
    instruction = world.instruction[index]
    first = instruction["first_receiver"]
    for position in range(first, first + instruction["receivers"]):
        _release(world.receiver[position], now, world)


@compiled
def _release(index: Integer, now: Integer, world: BlockWorld) -> None:
    """Decrease the number of unmet conditions of an instruction; begin it at `now` if none is left.

    Changes `world`.
    """
    progress = world.progress[index]
    progress["unmet"] -= 1
    if progress["unmet"] == 0:
        _begin(index, now, world)


run = Kernel(_simulate)
