"""Simulate whole jobs as ASTRA-sim does: workload layer, native collectives, network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from collhub_columns import Int64Array

from collhub_astra_sim.options import CONGESTION_AWARE
from collhub_astra_sim.simulating.simulated_network import link_loads
from collhub_astra_sim.workloads.system import MemoryKind, RemoteMemory, System
from hub_core import NodeTable
from hub_core.model import Diagnostic, UsageError, Workload
from hub_core.network import Topology
from hub_core.plugin_api import LinkLoad

if TYPE_CHECKING:
    from collhub_astra_sim.workloads.machine_state import Machine

ASTRA_SIM_SLOTS = "astra-sim"
UNLIMITED_SLOTS = "unlimited"
_LIMIT_64 = 1 << 64


@dataclass(frozen=True, slots=True, eq=False)
class WorkloadTimes:
    """Outcome of a simulation; times in ns from the common start.

    `rank_finish_ns`: None where a rank never finishes. `rank_exposed_ns`: its finish without the
    sum of its computation, modulo 2^64 as ASTRA-sim prints it; None likewise. `start_ns`, `end_ns`:
    int64 by row of the workload's nodes, -1 for never. `link_loads`: the busiest first, none where
    messages do not share links. `events`: that the event queue went through.
    """

    rank_finish_ns: tuple[int | None, ...]
    rank_exposed_ns: tuple[int | None, ...]
    start_ns: Int64Array
    end_ns: Int64Array
    link_loads: tuple[LinkLoad, ...]
    diagnostics: tuple[Diagnostic, ...]
    events: int


def simulate_workload(
    workload: Workload,
    topology: Topology,
    system: System,
    *,
    algorithms: Mapping[str, NodeTable] | None = None,
    per_node: Mapping[int, str] | None = None,
    queues: int = 1,
    rendezvous: bool = False,
    memory: RemoteMemory | None = None,
    backend: str = CONGESTION_AWARE,
    slots: str = ASTRA_SIM_SLOTS,
) -> WorkloadTimes:
    """Simulate a job on the workload layer of ASTRA-sim (public release of March 2026).

    `algorithms`: traces of custom algorithms by the prefixes that `system` and `per_node` name;
    their ranks are positions in the group. `per_node`: identities of nodes to prefixes. `queues`:
    its option `num-queues-per-dim`. `slots`: `astra-sim`, at most one node of each kind in flight a
    rank, or `unlimited`: any number, and every collective has queues of its own. Networks of
    several dimensions are simulated with congestion, too, which ASTRA-sim cannot. Raises
    `InputError` and `UsageError` for what ASTRA-sim aborts on, and for what is not modelled.
    """
    from collhub_astra_sim.workloads.layout import Layout, enlarged
    from collhub_astra_sim.workloads.waiting import waiting_ranks

    if queues < 1:
        raise UsageError(f"{queues} queues a dimension: at least 1 is needed", code="queues")
    layout = Layout(
        workload,
        topology,
        system,
        memory or RemoteMemory(MemoryKind.NONE),
        algorithms or {},
        per_node or {},
    )
    machine = layout.machine(
        queues=queues,
        has_rendezvous=rendezvous,
        is_shared=backend == CONGESTION_AWARE,
        has_slots=slots == ASTRA_SIM_SLOTS,
    )
    from collhub_astra_sim.workloads.kernel import DONE, EVENTS, NEEDS_ROOM, run

    events = layout.estimate_events(machine)
    outcome = run(machine, events=events)
    while outcome == NEEDS_ROOM:
        machine = enlarged(machine)
        outcome = run(machine, events=0)
    if outcome != DONE:
        raise UsageError("one event has caused more than there is room for", code="too-large")
    start, end = np.empty(len(workload.nodes), np.int64), np.empty(len(workload.nodes), np.int64)
    start[layout.order], end[layout.order] = machine.node["start"], machine.node["end"]
    finish, exposed = _rank_times(machine)
    loads = link_loads(topology, machine.link) if machine.is_shared else ()
    found = waiting_ranks(workload, layout, machine) if None in finish else ()
    return WorkloadTimes(finish, exposed, start, end, loads, found, int(machine.counter[EVENTS]))


def _rank_times(machine: Machine) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """(finish, exposed) of every rank."""
    finish = [time if time >= 0 else None for time in machine.rank["finish"].tolist()]
    compute = machine.rank["compute_ns"].tolist()
    exposed = [
        None if time is None else (time - busy) % _LIMIT_64
        for time, busy in zip(finish, compute, strict=True)
    ]
    return tuple(finish), tuple(exposed)
