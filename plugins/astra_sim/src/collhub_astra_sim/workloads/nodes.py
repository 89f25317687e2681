"""Parts of the kernel: ASTRA-sim's workload layer, the nodes of every rank.

Classes of ASTRA-sim: `Workload` and `HardwareResource`. At most one node per rank occupies each
slot; whenever a node of the rank finishes, the free nodes are examined in ascending order of their
IDs.
"""

from __future__ import annotations

import numpy as np
from collhub_kernels import compiled, outlined
from collhub_kernels.event_queue import Integer, insert, pop

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
from collhub_astra_sim.workloads.streams import start_collective

# Larger than all row numbers.
_NO_ROW = 1 << 62
_TAG_MODULUS = 500_000_000


@compiled
def _get_heap(rank: Integer, slot: Integer) -> Integer:
    """Return the heap of the free nodes of a rank that need a slot."""
    return 1 + SLOTS * rank + slot


@outlined
def free(row: Integer, machine: Machine) -> None:
    """Add a node whose parents have finished to the free nodes of its rank."""
    node = machine.node[row]
    insert(machine, _get_heap(node["rank"], node["slot"]), row, row)


@outlined
def start_free_nodes(rank: Integer, now: Integer, machine: Machine) -> None:
    """Start the free nodes of a rank whose slots are empty, in ascending order of their IDs."""
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
def _take_next_free(rank: Integer, machine: Machine) -> Integer:
    """Remove and return the free node with the lowest ID whose slot is empty; -1: none."""
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
def _skip_node(row: Integer, deferred_count: Integer, now: Integer, machine: Machine) -> Integer:
    """Finish a node immediately, without a slot. Return the new number of deferred nodes.

    With slots, children without unfinished parents are deferred (appended to `machine.freed`);
    otherwise they become free.
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
def _start_node(row: Integer, now: Integer, machine: Machine) -> None:
    """Start a node at time `now` (ns): occupy its slot and perform its action.

    The action is a timer, a message, a collective or a memory transfer.
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
        send(index, node["peer"], node["work"], tag, code, now, machine)
    elif action == RECV_NODE:
        receive(node["peer"], index, node["work"], tag, code, now, machine)
    elif action == COLLECTIVE_NODE:
        start_collective(row, now, machine)
    elif action == MEMORY_NODE:
        _start_transfer(row, now, machine)
    # Nodes with any other action never finish.


@outlined
def close_node(row: Integer, now: Integer, machine: Machine) -> None:
    """Finish a node, and start nodes that waited for it or for its slot."""
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
def finish_if_done(index: Integer, now: Integer, machine: Machine) -> None:
    """Set the finish time of a rank without free and running nodes, even if some never begin."""
    rank = machine.rank[index]
    if rank["ongoing"] > 0:
        return
    for slot in range(SLOTS):
        if machine.heap[_get_heap(index, slot)]["size"] > 0:
            return
    rank["finish"] = now


# --- remote memory ---


@compiled
def _start_transfer(row: Integer, now: Integer, machine: Machine) -> None:
    """Start a transfer, or append it to the queue of the shared memory if that is busy."""
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
def close_transfer(row: Integer, now: Integer, machine: Machine) -> None:
    """Finish a transfer of a shared memory, and start the next one in its queue."""
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
