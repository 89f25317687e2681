"""Parts of the kernel: pools of records, and delays of ranks, which end in batches.

A rank of ASTRA-sim has one callback for each instant (`Sys::try_register_event`): all of its delays
that end then are gone through by it in order of making, those of no length that are made meanwhile
included.
"""

from __future__ import annotations

import numpy as np

from collhub_astra_sim.compiling import compiled, outlined
from collhub_astra_sim.simulating.event_queue import Integer, Records, push
from collhub_astra_sim.workloads.machine_state import BATCHES, DELAYS, Machine

# Kinds of events, in the lowest two bits of an event's item.
DELIVERY, LINK_FREE, BATCH_ENDS, HAPPENS = 0, 1, 2, 3


@compiled
def taken(pool: Records, kind: Integer, machine: Machine) -> Integer:
    """The index of something free in a pool; where none is left, the run stops after this event."""
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
def given_back(pool: Records, kind: Integer, index: Integer, machine: Machine) -> None:
    """Make something free again."""
    pool[index]["next"] = machine.store[kind]["returned"]
    machine.store[kind]["returned"] = index


@compiled
def _place_of(rank: Integer, time: Integer, machine: Machine) -> Integer:
    return (time * 31 + np.int64(rank) * 0x9E3779B1) & (len(machine.batch_of) - 1)


@outlined
def delay(rank: Integer, now: Integer, length: Integer, code: Integer, machine: Machine) -> None:
    """Let a code happen to a rank after so many ns."""
    time = now + length
    entry = taken(machine.delay, DELAYS, machine)
    machine.delay[entry]["code"] = code
    machine.delay[entry]["next"] = -1
    place = _place_of(rank, time, machine)
    index = machine.batch_of[place]
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
    index = taken(machine.batch, BATCHES, machine)
    batch = machine.batch[index]
    batch["time"], batch["rank"], batch["first"], batch["last"] = time, rank, entry, entry
    batch["next"] = machine.batch_of[place]
    machine.batch_of[place] = index
    push(machine, time, (index << 2) | BATCH_ENDS)


@outlined
def next_of_batch(index: Integer, machine: Machine) -> Integer:
    """The next code of a batch; -1 at its end, with which the batch is gone."""
    batch = machine.batch[index]
    entry = batch["first"]
    if entry >= 0:
        code: Integer = machine.delay[entry]["code"]
        batch["first"] = machine.delay[entry]["next"]
        given_back(machine.delay, DELAYS, entry, machine)
        return code
    place = _place_of(batch["rank"], batch["time"], machine)
    other = machine.batch_of[place]
    if other == index:
        machine.batch_of[place] = batch["next"]
    else:
        while machine.batch[other]["next"] != index:
            other = machine.batch[other]["next"]
        machine.batch[other]["next"] = batch["next"]
    given_back(machine.batch, BATCHES, index, machine)
    return -1
