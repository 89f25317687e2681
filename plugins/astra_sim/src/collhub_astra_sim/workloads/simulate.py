"""Simulate whole jobs as ASTRA-sim does: workload layer, native collectives, network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from collhub_astra_sim.options import CONGESTION_AWARE
from collhub_astra_sim.simulating.simulated_network import link_loads
from collhub_astra_sim.workloads.system import MemoryKind, RemoteMemory, System
from hub_core import NodeTable
from hub_core.columns import Int64Array
from hub_core.model import Diagnostic, Severity, UsageError, Workload
from hub_core.network import Topology
from hub_core.plugin_api import LinkLoad

if TYPE_CHECKING:
    from collhub_astra_sim.workloads.choices import NamedAlgorithms
    from collhub_astra_sim.workloads.layout import Layout
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
    named: NamedAlgorithms | None = None,
    queues: int = 1,
    rendezvous: bool = False,
    memory: RemoteMemory | None = None,
    backend: str = CONGESTION_AWARE,
    slots: str = ASTRA_SIM_SLOTS,
    stops_at_abort: bool = False,
) -> WorkloadTimes:
    """Simulate a job on the workload layer of ASTRA-sim (public release of March 2026).

    `algorithms`: traces of custom algorithms by the prefixes that `system` and `per_node` name;
    their ranks are positions in the group. `per_node`: identities of nodes to prefixes, `named`:
    prefixes by row of the nodes, which go first. `queues`: its option `num-queues-per-dim`.
    `stops_at_abort`: an input on which ASTRA-sim aborts has no times, else a finding says so and
    the times are those without the assertion. `slots`: `astra-sim`, at most one node of each kind
    in flight per rank, or `unlimited`: any number, and every collective has queues of its own.
    Networks of several dimensions are simulated with
    congestion, too, which ASTRA-sim cannot. Raises `InputError` and `UsageError` for inputs that
    are not modelled, and for those that ASTRA-sim refuses when it reads them.
    """
    from collhub_astra_sim.workloads.layout import Layout

    if queues < 1:
        raise UsageError(f"{queues} queues a dimension: at least 1 is needed", code="queues")
    layout = Layout(
        workload,
        topology,
        system,
        memory or RemoteMemory(MemoryKind.NONE),
        algorithms or {},
        per_node or {},
        named,
    )
    machine = layout.machine(
        queues=queues,
        has_rendezvous=rendezvous,
        is_shared=backend == CONGESTION_AWARE,
        has_slots=slots == ASTRA_SIM_SLOTS,
    )
    from collhub_astra_sim.workloads.kernel import EVENTS

    machine, aborts = _run(workload, layout, machine, stops_at_abort=stops_at_abort)
    start, end = np.empty(len(workload.nodes), np.int64), np.empty(len(workload.nodes), np.int64)
    start[layout.order], end[layout.order] = machine.node["start"], machine.node["end"]
    finish, exposed = _rank_times(machine)
    events = int(machine.counter[EVENTS])
    loads = link_loads(topology, machine.link) if machine.is_shared else ()
    if aborts and stops_at_abort:
        never = (None,) * workload.num_ranks
        return WorkloadTimes(never, never, start, end, loads, aborts, events)
    found: tuple[Diagnostic, ...] = ()
    if None in finish:
        from collhub_astra_sim.workloads.waiting import waiting_ranks

        found = waiting_ranks(workload, layout, machine)
    warnings = tuple(replace(abort, severity=Severity.WARNING) for abort in aborts)
    return WorkloadTimes(finish, exposed, start, end, loads, (*found, *warnings), events)


def _run(
    workload: Workload, layout: Layout, machine: Machine, *, stops_at_abort: bool
) -> tuple[Machine, tuple[Diagnostic, ...]]:
    """The machine after its run, and where ASTRA-sim aborts. Raises `UsageError` without room."""
    from collhub_astra_sim.workloads.aborts import (
        event_at_zero,
        statistics_aborts,
        unknown_at_start,
    )
    from collhub_astra_sim.workloads.kernel import ABORTED, DONE, NEEDS_ROOM, PASSES_ZERO, run
    from collhub_astra_sim.workloads.layout import enlarged

    aborts: tuple[Diagnostic, ...] = ()
    outcome = run(machine, events=layout.estimate_events(machine))
    while outcome in (NEEDS_ROOM, ABORTED):
        if outcome == NEEDS_ROOM:
            machine = enlarged(machine)
        else:
            aborts = (event_at_zero(workload, layout, machine),)
            if stops_at_abort:
                return machine, aborts
            machine.counter[PASSES_ZERO] = 1
        outcome = run(machine, events=0)
    if outcome != DONE:
        raise UsageError("one event has caused more than there is room for", code="too-large")
    if not stops_at_abort:
        # The remaining aborts have no influence on the times without them.
        return machine, aborts
    at_start = unknown_at_start(workload, layout, machine)
    return machine, (*at_start, *statistics_aborts(workload, layout, machine))


def never_begun(workload: Workload) -> tuple[Int64Array, Int64Array]:
    """(start, end) of nodes none of which begins."""
    times = np.full(len(workload.nodes), -1, np.int64)
    return times, times.copy()


def with_markers(
    workload: Workload, kept: Int64Array, start_ns: Int64Array, end_ns: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """(start, end) of all nodes of a job, from those of the nodes `kept` without its markers.

    A marker begins and ends when the last of its parents has ended: at 0 without parents, never if
    a parent never ends.
    """
    nodes = workload.nodes
    start, end = never_begun(workload)
    start[kept], end[kept] = start_ns, end_ns
    is_marker = np.ones(len(nodes), np.bool_)
    is_marker[kept] = False
    parents, children = nodes.edges()
    parents, children = parents[is_marker[children]], children[is_marker[children]]
    settled = ~is_marker
    # A round for each marker of the longest chain; markers of a cycle are never settled.
    while not settled.all():
        waiting = np.bincount(children[~settled[parents]], minlength=len(nodes)) > 0
        ready = np.flatnonzero(~settled & ~waiting)
        if not len(ready):
            break
        moment = np.zeros(len(nodes), np.int64)
        np.maximum.at(moment, children, end[parents])
        moment[children[end[parents] < 0]] = -1
        start[ready] = end[ready] = moment[ready]
        settled[ready] = True
    return start, end


def _rank_times(machine: Machine) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """(finish, exposed) of every rank."""
    finish = [time if time >= 0 else None for time in machine.rank["finish"].tolist()]
    compute = machine.rank["compute_ns"].tolist()
    exposed = [
        None if time is None else (time - busy) % _LIMIT_64
        for time, busy in zip(finish, compute, strict=True)
    ]
    return tuple(finish), tuple(exposed)
