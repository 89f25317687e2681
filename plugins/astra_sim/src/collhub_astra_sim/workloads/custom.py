"""Parts of the kernel: a custom algorithm in progress, node by node.

Class of ASTRA-sim: `CustomAlgorithm`. Its nodes need no slots, and start in the iteration order of
the set of free nodes, as `simulating.kernel` explains.
"""

from __future__ import annotations

import numpy as np
from collhub_kernels import compiled, outlined
from collhub_kernels.event_queue import Integer

from collhub_astra_sim.simulating.set_order import sort_as_set
from collhub_astra_sim.workloads.machine_state import CODE_BITS, CUSTOM_ENDS, Machine
from collhub_astra_sim.workloads.messages import receive, send
from collhub_astra_sim.workloads.pools import delay
from hub_core import NodeType

_SEND, _RECV, _COMP = int(NodeType.COMM_SEND), int(NodeType.COMM_RECV), int(NodeType.COMP)
_TAG_MODULUS = 500_000_000


@outlined
def start_custom(index: Integer, now: Integer, machine: Machine) -> None:
    """Start the root nodes of the algorithm that a stream runs, and reset its progress."""
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
def _start_node(progress_index: Integer, now: Integer, machine: Machine) -> None:
    """Start a node of an algorithm; a node of unknown type never finishes."""
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
        send(rank, peer, custom["work"], tag, code, now, machine)
    elif kind == _RECV:
        peer = _get_peer(progress["stream"], custom["peer"], machine)
        receive(peer, rank, custom["work"], tag, code, now, machine)


@compiled
def _get_peer(index: Integer, position: Integer, machine: Machine) -> Integer:
    """Return the rank at a position of the algorithm."""
    member = machine.node[machine.stream[index]["row"]]["member"]
    if member < 0:
        return position
    rank: Integer = machine.group_rank[machine.member[member]["first"] + position]
    return rank


@outlined
def close_custom_node(progress_index: Integer, now: Integer, machine: Machine) -> bool:
    """Finish a node and start the nodes for which it was the last parent.

    Return whether the algorithm has finished.
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
