"""Parts of the kernel: ASTRA-sim's workload layer, the nodes of every rank.

Classes of ASTRA-sim: `Workload` and `HardwareResource`. At most one node a rank occupies each slot;
whenever a node of the rank ends, the free ones are looked at again in ascending order of their ids.
"""

from __future__ import annotations

import numpy as np

from collhub_astra_sim.compiling import compiled, outlined
from collhub_astra_sim.simulating.event_queue import Integer, insert, pop
from collhub_astra_sim.workloads.machine_state import (
    CODE_BITS,
    COLLECTIVE_NODE,
    MEMORY_ENDS,
    MEMORY_NODE,
    NO_SLOT,
    NODE_ENDS,
    RECV_NODE,
    SEND_NODE,
    SKIPPED,
    SLOTS,
    TIMER,
    Machine,
)
from collhub_astra_sim.workloads.messages import receive, send
from collhub_astra_sim.workloads.pools import delay
from collhub_astra_sim.workloads.streams import begin_collective

# Above all numbers of rows.
_NO_ROW = 1 << 62
_TAG_MODULUS = 500_000_000


@compiled
def _heap(rank: Integer, slot: Integer) -> Integer:
    """The heap of the free nodes of a rank that need a slot."""
    return 1 + SLOTS * rank + slot


@outlined
def free(row: Integer, machine: Machine) -> None:
    """Put a node whose parents have ended among those that may be issued."""
    node = machine.node[row]
    insert(machine, _heap(node["rank"], node["slot"]), row, row)


@outlined
def issue_free(rank: Integer, now: Integer, machine: Machine) -> None:
    """Issue the free nodes of a rank whose slots are empty, in ascending order of their ids."""
    held: Integer = 0
    while True:
        row = _next_free(rank, machine)
        if row < 0:
            break
        if machine.node[row]["action"] == SKIPPED:
            held = _skip(row, held, now, machine)
        else:
            _issue(row, now, machine)
    # What a skipped node frees waits until another node ends; a rank may stop for ever by it.
    for position in range(held):
        free(machine.freed[position], machine)


@outlined
def _next_free(rank: Integer, machine: Machine) -> Integer:
    """Take the free node of the lowest id whose slot is empty; -1: there is none."""
    best = -1
    best_row = _NO_ROW
    occupied = machine.rank[rank]["occupied"]
    for slot in range(SLOTS):
        heap = machine.heap[_heap(rank, slot)]
        if heap["size"] == 0 or (occupied >> slot) & 1:
            continue
        row = machine.entry[heap["first"]]["item"]
        if row < best_row:
            best, best_row = slot, row
    if best < 0:
        return -1
    pop(machine.entry, machine.heap, _heap(rank, best))
    return best_row


@outlined
def _skip(row: Integer, held: Integer, now: Integer, machine: Machine) -> Integer:
    """End a node at once, which occupies nothing; write what it frees to `machine.freed`."""
    node = machine.node[row]
    node["start"] = now
    node["end"] = now
    for edge in range(node["first_child"], node["first_child"] + node["children"]):
        child = machine.child[edge]
        machine.node[child]["unmet"] -= 1
        if machine.node[child]["unmet"] > 0:
            continue
        if machine.has_slots:
            machine.freed[held] = child
            held += 1
        else:
            free(child, machine)
    return held


@outlined
def _issue(row: Integer, now: Integer, machine: Machine) -> None:
    """Start a node."""
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
        send(index, node["peer"], node["work"], tag, code, now, machine)
    elif action == RECV_NODE:
        receive(node["peer"], index, node["work"], tag, code, now, machine)
    elif action == COLLECTIVE_NODE:
        begin_collective(row, now, machine)
    elif action == MEMORY_NODE:
        _transfer(row, now, machine)
    # Any other never ends.


@outlined
def end_node(row: Integer, now: Integer, machine: Machine) -> None:
    """End a node, and issue what waited for it or for its slot."""
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
    issue_free(index, now, machine)
    finish_if_done(index, now, machine)


@outlined
def finish_if_done(index: Integer, now: Integer, machine: Machine) -> None:
    """Note when a rank has nothing free and nothing under way, also where nodes never begin."""
    rank = machine.rank[index]
    if rank["ongoing"] > 0:
        return
    for slot in range(SLOTS):
        if machine.heap[_heap(index, slot)]["size"] > 0:
            return
    rank["finish"] = now


# --- remote memory ---


@compiled
def _transfer(row: Integer, now: Integer, machine: Machine) -> None:
    """Start a transfer, or stand in the line of those that share its memory."""
    node = machine.node[row]
    place = machine.memory_of[node["rank"]]
    if place < 0:
        delay(node["rank"], now, node["work"], (row << CODE_BITS) | NODE_ENDS, machine)
        return
    line = machine.memory[place]
    node["queue"] = -1
    if line["active"] == 0:
        line["active"] = 1
        delay(node["rank"], now, node["work"], (row << CODE_BITS) | MEMORY_ENDS, machine)
    elif line["first"] < 0:
        line["first"] = row
        line["last"] = row
    else:
        machine.node[line["last"]]["queue"] = row
        line["last"] = row


@outlined
def end_transfer(row: Integer, now: Integer, machine: Machine) -> None:
    """End a transfer of a shared memory, and start the next one in line."""
    line = machine.memory[machine.memory_of[machine.node[row]["rank"]]]
    following = line["first"]
    line["active"] = 0
    if following >= 0:
        node = machine.node[following]
        line["first"] = node["queue"]
        line["active"] = 1
        code = (following << CODE_BITS) | MEMORY_ENDS
        delay(node["rank"], now, node["work"], code, machine)
    end_node(row, now, machine)
