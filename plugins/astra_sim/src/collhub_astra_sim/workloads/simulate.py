"""Simulate entire jobs as ASTRA-sim does: workload layer, native collectives, network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from collhub_astra_sim.options import CONGESTION_AWARE
from collhub_astra_sim.simulating.simulated_network import report_link_loads
from collhub_astra_sim.workloads.system import MemoryKind, RemoteMemory, System
from hub_core import NodeTable
from hub_core.columns import Int64Array
from hub_core.model import Diagnostic, Severity, UsageError, Workload
from hub_core.network import Topology
from hub_core.plugin_api import LinkLoad, LinkTransfers

if TYPE_CHECKING:
    from collhub_astra_sim.workloads.choices import NamedAlgorithms
    from collhub_astra_sim.workloads.layout import PreparedJob
    from collhub_astra_sim.workloads.machine_state import MachineState

ASTRA_SIM_SLOTS = "astra-sim"
UNLIMITED_SLOTS = "unlimited"
_LIMIT_64 = 1 << 64
MAX_TRANSFERS = 4_000_000
"""Limit of recorded messages on links; the records take up to 128 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerTimes:
    """Result of a simulation; times in ns from the common start.

    `rank_finish_ns`: None for a rank that never finishes. `rank_exposed_ns`: finish time minus the
    sum of the rank's computation, modulo 2^64 as ASTRA-sim prints it; None likewise. `start_ns`,
    `end_ns`: int64 by row of the workload's nodes, -1 for never. `link_loads`: the busiest first,
    empty if messages do not share links. `events`: number of processed events. `transfers`: rows
    are those of the workload's nodes; None if they were not requested.
    """

    rank_finish_ns: tuple[int | None, ...]
    rank_exposed_ns: tuple[int | None, ...]
    start_ns: Int64Array
    end_ns: Int64Array
    link_loads: tuple[LinkLoad, ...]
    diagnostics: tuple[Diagnostic, ...]
    events: int
    transfers: LinkTransfers | None = None


def run_workload_layer(
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
    wants_transfers: bool = False,
) -> LayerTimes:
    """Simulate a job on the workload layer of ASTRA-sim (public release of March 2026).

    Returns the times of ranks and nodes in ns; a rank that never finishes has the time None.
    Diagnostics are the causes of unfinished ranks, then aborts as warnings, then omitted transfers.

    - `algorithms`: traces of custom algorithms by prefix, whose ranks are positions in the group
    - `named`: prefixes by row; `per_node`: prefixes by identity of nodes. A collective uses
      `named`, else `per_node`, else the custom algorithm of `system`, else the native one.
    - `queues`: option `num-queues-per-dim`. `rendezvous`: messages wait for their receivers.
    - `memory`: remote memory; with None, LOAD and STORE raise `InputError`.
    - `backend`: only with `CONGESTION_AWARE`, messages share links and the result has link loads.
    - `slots`: `astra-sim` (at most one running node of each kind per rank) or `unlimited` (any
      number, with separate queues for every collective)
    - `stops_at_abort`: the first abort ends the run. No rank has a time, nodes have their times so
      far, and the aborts are the only diagnostics, as errors.
    - `wants_transfers`: the first `MAX_TRANSFERS` (4 000 000) messages on links are returned, with
      a warning if there are more; only with `CONGESTION_AWARE`

    Raises `UsageError`: `queues` for less than 1, `topology-size` unless there is one NPU per rank,
    `too-large` for an event beyond the capacity. Inputs that are not modelled or that ASTRA-sim
    refuses raise `InputError` or `UsageError`.
    """
    from collhub_astra_sim.workloads.layout import PreparedJob

    if queues < 1:
        raise UsageError(f"{queues} queues per dimension: at least 1 is needed", code="queues")
    layout = PreparedJob(
        workload,
        topology,
        system,
        memory or RemoteMemory(MemoryKind.NONE),
        algorithms or {},
        per_node or {},
        named,
    )
    machine = layout.build_machine(
        queues=queues,
        has_rendezvous=rendezvous,
        is_shared=backend == CONGESTION_AWARE,
        has_slots=slots == ASTRA_SIM_SLOTS,
        max_transfers=MAX_TRANSFERS if wants_transfers and backend == CONGESTION_AWARE else 0,
    )
    from collhub_astra_sim.workloads.kernel import EVENTS
    from collhub_astra_sim.workloads.machine_state import TRANSFERS

    machine, aborts = _run_machine(workload, layout, machine, stops_at_abort=stops_at_abort)
    start, end = np.empty(len(workload.nodes), np.int64), np.empty(len(workload.nodes), np.int64)
    start[layout.order], end[layout.order] = machine.node["start"], machine.node["end"]
    finish, exposed = _get_rank_times(machine)
    events = int(machine.counter[EVENTS])
    loads = report_link_loads(topology, machine.link) if machine.is_shared else ()
    if aborts and stops_at_abort:
        no_times = (None,) * workload.num_ranks
        return LayerTimes(no_times, no_times, start, end, loads, aborts, events)
    findings: tuple[Diagnostic, ...] = ()
    if None in finish:
        from collhub_astra_sim.workloads.stopped_jobs import report_waiting_ranks

        findings = report_waiting_ranks(workload, layout, machine)
    warnings = tuple(replace(abort, severity=Severity.WARNING) for abort in aborts)
    transfers, num_transfers = None, int(machine.counter[TRANSFERS])
    if len(machine.transfer):
        # Copies of the kernel's records, with rows of the workload's nodes.
        records = machine.transfer[:num_transfers]
        link, row = records["link"].astype(np.int64), layout.order[records["node"]]
        times = (records[name].copy() for name in ("ready", "start", "busy_ns"))
        transfers = LinkTransfers(link, row.astype(np.int64), *times)
        if num_transfers > MAX_TRANSFERS:
            message = f"the transfers on links after the first {MAX_TRANSFERS} are omitted"
            omission = Diagnostic("omitted-transfers", message, Severity.WARNING)
            warnings = (*warnings, replace(omission, cure="show a job with fewer steps or ranks"))
    return LayerTimes(finish, exposed, start, end, loads, (*findings, *warnings), events, transfers)


def _run_machine(
    workload: Workload, layout: PreparedJob, machine: MachineState, *, stops_at_abort: bool
) -> tuple[MachineState, tuple[Diagnostic, ...]]:
    """Run the simulation; return the machine after it, and the reasons why ASTRA-sim aborts.

    `machine` is changed. The result is another object if full pools of records were expanded.
    ASTRA-sim aborts at the first event at time 0, and for reasons that only the complete run shows.

    - With `stops_at_abort`, the run ends at the first event at time 0, which is then the only
      reason. If no such event occurs, the reasons are those of `report_unknown_at_start`
      (collectives that start at time 0 and have no algorithm), then those of
      `report_statistics_aborts`.
    - Without `stops_at_abort`, the run continues after this event to its end; `PASSES_ZERO` is set
      in the machine. The event is the only reason. Without an event at time 0 there is no reason.

    All reasons are errors. Raises `UsageError` (`too-large`) if one event needs more records than
    the machine's margin.
    """
    from collhub_astra_sim.workloads.kernel import ABORTED, DONE, NEEDS_ROOM, PASSES_ZERO, run
    from collhub_astra_sim.workloads.layout import expand_pools
    from collhub_astra_sim.workloads.stopped_jobs import (
        report_event_at_zero,
        report_statistics_aborts,
        report_unknown_at_start,
    )

    aborts: tuple[Diagnostic, ...] = ()
    outcome = run(machine, events=layout.estimate_events(machine))
    while outcome in (NEEDS_ROOM, ABORTED):
        if outcome == NEEDS_ROOM:
            machine = expand_pools(machine)
        else:
            aborts = (report_event_at_zero(workload, layout, machine),)
            if stops_at_abort:
                return machine, aborts
            machine.counter[PASSES_ZERO] = 1
        outcome = run(machine, events=0)
    if outcome != DONE:
        raise UsageError("one event exceeds the capacity of the simulator", code="too-large")
    if not stops_at_abort:
        # The remaining aborts do not affect the times.
        return machine, aborts
    at_start = report_unknown_at_start(workload, layout, machine)
    return machine, (*at_start, *report_statistics_aborts(workload, layout, machine))


def make_unstarted_times(workload: Workload) -> tuple[Int64Array, Int64Array]:
    """Return (start, end) of all nodes of a workload that did not run: int64[nodes] of -1 each.

    They are separate arrays.
    """
    times = np.full(len(workload.nodes), -1, np.int64)
    return times, times.copy()


def add_marker_times(
    workload: Workload, simulated_rows: Int64Array, start_ns: Int64Array, end_ns: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return start and end of all nodes in ns, int64[nodes], given those of all nodes but markers.

    `simulated_rows`: rows of all nodes except markers, with the times `start_ns` and `end_ns`,
    which are copied; an end of -1 means that the node never ends. A marker starts and ends when its
    last parent ends, at 0 without parents. Parents are data and control dependencies, and may be
    markers themselves. A marker has -1 for both times if any parent never ends. The same holds for
    markers that form a cycle, and for markers that depend on such a cycle.
    """
    nodes = workload.nodes
    start, end = make_unstarted_times(workload)
    start[simulated_rows], end[simulated_rows] = start_ns, end_ns
    is_marker = np.ones(len(nodes), np.bool_)
    is_marker[simulated_rows] = False
    parents, children = nodes.edges()
    parents, children = parents[is_marker[children]], children[is_marker[children]]
    settled = ~is_marker
    # One round per marker of the longest chain; markers of a cycle are never settled.
    while not settled.all():
        waiting = np.bincount(children[~settled[parents]], minlength=len(nodes)) > 0
        ready = np.flatnonzero(~settled & ~waiting)
        if not len(ready):
            break
        time_ns = np.zeros(len(nodes), np.int64)
        np.maximum.at(time_ns, children, end[parents])
        time_ns[children[end[parents] < 0]] = -1
        start[ready] = end[ready] = time_ns[ready]
        settled[ready] = True
    return start, end


def _get_rank_times(machine: MachineState) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """Return finish and exposed time of every rank in ns; None for ranks that never finish.

    The exposed time is the finish minus the total time of computations on the device, modulo 2^64
    as in ASTRA-sim (computations may overlap). In a replay all nodes of the device count as
    computations.
    """
    finish = [time if time >= 0 else None for time in machine.rank["finish"].tolist()]
    compute = machine.rank["compute_ns"].tolist()
    exposed = [
        None if time is None else (time - busy) % _LIMIT_64
        for time, busy in zip(finish, compute, strict=True)
    ]
    return tuple(finish), tuple(exposed)
