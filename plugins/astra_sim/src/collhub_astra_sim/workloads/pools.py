"""Parts of the kernel: pools of records, and delays of ranks, which expire in batches.

A rank of ASTRA-sim has one callback per point in time (`Sys::try_register_event`): it processes all
delays of the rank that expire then, in creation order, including delays of length 0 that are
created meanwhile.
"""

from __future__ import annotations

import numpy as np
from collhub_kernels import compiled, outlined
from collhub_kernels.event_queue import Integer, Records, push

from collhub_astra_sim.workloads.machine_state import BATCHES, DELAYS, Machine

# Kinds of events, in the lowest two bits of an event's item.
DELIVERY, LINK_FREE, BATCH_ENDS, HAPPENS = 0, 1, 2, 3


@compiled
def take_record(pool: Records, kind: Integer, machine: Machine) -> Integer:
    """Allocate a record of a pool and return its index.

    If the pool is exhausted, sets `counter[1]`: the run stops after this event.
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
def return_record(pool: Records, kind: Integer, index: Integer, machine: Machine) -> None:
    """Return a record to its pool."""
    pool[index]["next"] = machine.store[kind]["returned"]
    machine.store[kind]["returned"] = index


@compiled
def _compute_hash_slot(rank: Integer, time: Integer, machine: Machine) -> Integer:
    """Return the hash slot of a batch."""
    return (time * 31 + np.int64(rank) * 0x9E3779B1) & (len(machine.batch_of) - 1)


@outlined
def delay(rank: Integer, now: Integer, length: Integer, code: Integer, machine: Machine) -> None:
    """Schedule the action `code` of a rank after `length` ns.

    All delays of a rank that expire at one time form a batch, one event, in creation order.
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
def take_next_code(index: Integer, machine: Machine) -> Integer:
    """Remove and return the next code of a batch; at its end free the batch and return -1."""
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
