"""Inputs on which ASTRA-sim itself aborts: by its network, at time 0, or when a rank finishes.

Measured with the public release of March 2026. Hazards of single nodes are in `find_hazards`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collhub_astra_sim.options import CONGESTION_AWARE
from collhub_astra_sim.workloads.machine_state import (
    CODE_BITS,
    COLLECTIVE_NODE,
    CUSTOM_ENDS,
    NEVER_ENDS,
    NO_CHOICE,
    NODE_ENDS,
    RECV_NODE,
    SEND_NODE,
)
from collhub_astra_sim.workloads.pools import BATCH_ENDS, DELIVERY, LINK_FREE
from hub_core import NodeType
from hub_core.columns import distinct
from hub_core.model import Diagnostic, NodeKind, Workload
from hub_core.network import DimensionKind, Topology

if TYPE_CHECKING:
    from collhub_astra_sim.workloads.layout import Layout
    from collhub_astra_sim.workloads.machine_state import Machine

CODE = "astra-sim-aborts"
_UNAWARE_CURE = "simulate it with -O network=congestion-unaware"
_SMALLEST_RING = 3


def find_network_abort(topology: Topology, backend: str) -> Diagnostic | None:
    """Return the reason why the congestion-aware backend aborts on a network.

    None if it runs, or if the backend is another one. The backend supports one dimension: Ring of
    three NPUs or more, FullyConnected or Switch.
    """
    dimensions = topology.dimensions
    if backend != CONGESTION_AWARE or not dimensions:
        return None
    if len(dimensions) > 1:
        message = f"the congestion-aware ASTRA-sim knows one dimension, not {len(dimensions)}"
        return Diagnostic(CODE, f"{message}: it aborts", cure=_UNAWARE_CURE)
    (only,) = dimensions
    if only.kind is DimensionKind.RING and only.size < _SMALLEST_RING:
        message = f"the congestion-aware ASTRA-sim aborts on a Ring of {only.size} NPUs"
        cure = f"write FullyConnected, which has the same links, or {_UNAWARE_CURE}"
        return Diagnostic(CODE, message, cure=cure)
    if only.size < 2:
        message = "the congestion-aware ASTRA-sim aborts on a network of one NPU"
        return Diagnostic(CODE, message, cure=_UNAWARE_CURE)
    return None


def report_event_at_zero(workload: Workload, layout: Layout, machine: Machine) -> Diagnostic:
    """Return the error about the node that schedules an event at time 0.

    The run must have stopped at that event (`ABORTED`).
    """
    bucket = machine.entry[machine.heap[0]["first"]]["item"]
    item = int(machine.event[machine.bucket[bucket]["first"]]["item"])
    row = _find_node_of_event(item & 3, item >> 2, layout, machine)
    nodes = workload.nodes
    name = f"node {int(nodes.identity[row])} ({NodeKind(int(nodes.kind[row])).name})"
    message = f"{name} takes less than 1 ns at the start: ASTRA-sim aborts on an event at time 0"
    cure = "let a computation of 1 ns or more precede it, or make it larger"
    return Diagnostic(CODE, message, location=nodes.location(row), cure=cure)


def _find_node_of_event(kind: int, item: int, layout: Layout, machine: Machine) -> int:
    """Return the row of the workload's node to which an event belongs.

    For a message of a native collective: the only collective that its rank has started.
    """
    rank, code = -1, -1
    if kind == BATCH_ENDS:
        rank = int(machine.batch[item]["rank"])
        code = int(machine.delay[machine.batch[item]["first"]]["code"])
    elif kind == LINK_FREE:
        # The message that occupies the link is at the hop of that link.
        on_link = machine.path_link[machine.message["hop"]] == item
        is_sent = ~machine.message["is_receive"] & (machine.message["bytes"] > 0)
        item = int(np.flatnonzero(on_link & is_sent)[0])
        kind = DELIVERY
    if kind == DELIVERY:
        rank = int(machine.message[item]["source"])
        code = int(machine.message[item]["sender"])
    row = _find_node_of_code(code, machine)
    if row < 0:
        # A message of a native collective: the only collective of its rank at the start.
        is_of_rank = (machine.node["rank"] == rank) & (machine.node["start"] == 0)
        row = int(np.argmax(is_of_rank & (machine.node["action"] == COLLECTIVE_NODE)))
    return int(layout.order[row])


def _find_node_of_code(code: int, machine: Machine) -> int:
    """Return the machine's node that a code finishes; -1 for codes of other kinds."""
    kind, index = code & ((1 << CODE_BITS) - 1), code >> CODE_BITS
    if code >= 0 and kind == NODE_ENDS:
        return index
    if code >= 0 and kind == CUSTOM_ENDS:
        return int(machine.stream[machine.progress[index]["stream"]]["row"])
    return -1


def report_unknown_at_start(
    workload: Workload, layout: Layout, machine: Machine
) -> tuple[Diagnostic, ...]:
    """Return errors about collectives on the host, or of unknown kinds, that start at time 0.

    The exception that they throw ends the run; inside a later event it only stops the rank.
    """
    node = machine.node
    rows = layout.order[(node["action"] == NEVER_ENDS) & (node["start"] == 0)]
    nodes = workload.nodes
    diagnostics = []
    for row in rows[nodes.is_kind(NodeKind.COLLECTIVE)[rows]].tolist():
        reason = "of the host" if nodes.on_host[row] else "of a kind without algorithms"
        message = (
            f"node {int(nodes.identity[row])} is a collective {reason} that is issued at the start:"
            " ASTRA-sim aborts"
        )
        cure = "choose another kind, and let it run on the device"
        diagnostics.append(Diagnostic(CODE, message, location=nodes.location(row), cure=cure))
    return tuple(diagnostics)


def report_statistics_aborts(
    workload: Workload, layout: Layout, machine: Machine
) -> tuple[Diagnostic, ...]:
    """Return errors about ranks with host or memory nodes whose last event is a message.

    In rank order. The statistics at the end of such a rank throw an exception. ASTRA-sim survives
    it inside the event of a computation, a memory access or a native collective, but not inside an
    event of the network.
    """
    nodes = workload.nodes
    is_risky = nodes.is_kind(NodeKind.LOAD, NodeKind.STORE, NodeKind.MARKER)
    is_risky |= nodes.is_kind(NodeKind.COMPUTE) & nodes.on_host
    diagnostics = []
    for rank in distinct(nodes.rank[is_risky]).tolist():
        last = machine.node[machine.rank[rank]["last"]]
        ends_by_message = last["action"] in (SEND_NODE, RECV_NODE)
        if last["action"] == COLLECTIVE_NODE and last["choice"] < NO_CHOICE:
            ends_by_message = last["ended_by"] != NodeType.COMP
        if machine.rank[rank]["finish"] >= 0 and ends_by_message:
            row = int(layout.order[machine.rank[rank]["last"]])
            message = (
                f"node {int(nodes.identity[row])}, a message, ends the rank, which has host, memory"
                " or marker nodes: ASTRA-sim aborts in its statistics"
            )
            cure = "let a COMPUTE node of the device come last"
            diagnostics.append(Diagnostic(CODE, message, location=nodes.location(row), cure=cure))
    return tuple(diagnostics)
