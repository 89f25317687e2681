"""Simulate with ASTRA-sim's analytical timing model, exact to the cycle, on any topology.

With the rendezvous protocol a message is sent only after a message of 8192 bytes from its receiver
has arrived. The kernel of jobs models it, so the algorithm is then simulated as a custom collective
of a job, without times of single nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from collhub_astra_sim.options import AnalyticalOptions
from collhub_astra_sim.simulating.simulated_network import (
    TimingModel,
    check_size,
    compute_durations_ns,
    get_trace_durations_ns,
)
from hub_core import NodeTable, chakra_nodes
from hub_core.columns import Int64Array
from hub_core.model import (
    Algorithm,
    Buffer,
    Diagnostic,
    JobCollective,
    Location,
    NodeColumns,
    NodeKind,
    ProcessGroup,
    Severity,
    UsageError,
    Workload,
    format_ranks,
)
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import LinkLoad, LinkTransfers, SimulationRequest, SimulationResult
from hub_core.schedules import SwitchGroups, find_switch_groups

if TYPE_CHECKING:
    from collhub_astra_sim.simulating.kernel import SimulatedWorld

_TRACE_EXTENSION = "chakra-source"
"""Key of `Algorithm.extensions` that the reader of Chakra traces sets."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeTimes:
    """Result of a simulation by node; times in ns from the common start.

    `rank_finish_ns`: None for a rank that never finishes. `start_ns`, `end_ns`: int64 per node, -1
    for never; a node starts when its dependencies are met, a SEND ends when its entire message has
    arrived. `transfers`: rows are nodes; None if they were not requested.
    """

    rank_finish_ns: tuple[int | None, ...]
    start_ns: Int64Array
    end_ns: Int64Array
    link_loads: tuple[LinkLoad, ...]
    diagnostics: tuple[Diagnostic, ...]
    transfers: LinkTransfers | None = None


def simulate(request: SimulationRequest, options: AnalyticalOptions) -> SimulationResult:
    """Simulate an algorithm; return times of its ranks and steps in ns (simulator `analytical`).

    A rank that never finishes has None, a step without a time has -1 (int64). Diagnostics give
    the reasons. With `rendezvous`, no step has times. `rank_exposed_ns` equals `rank_finish_ns`.
    Only the congestion-aware model reports link loads (`shares_links` is True) and models
    multicasts and sums in switches. It reports transfers if requested, except with `rendezvous`.
    If ASTRA-sim aborts on a foreign trace with unknown buffers, see `_remove_aborted_times`.

    - `UsageError`: size below 1 byte; `rendezvous` with multicasts or sums in switches (only in
      the congestion-aware model); other requests that `simulate_rendezvous` refuses.
    - `InputError`: `fixed-size` if the algorithm is a trace of unknown contents, recorded for
      another size than `request.collective_bytes`; `invalid-extension` or `size-range` of
      `chakra_nodes`; too few NPUs; a pair of ranks without a path; too large values.
    """
    algorithm, size = request.algorithm, request.collective_bytes
    model = TimingModel.of_options(options)
    check_size(algorithm, size)
    nodes = chakra_nodes(algorithm, size)
    durations = compute_durations_ns(algorithm, nodes, size, model)
    groups = find_switch_groups(algorithm, request.topology) if model.is_congestion_aware else None
    if options.rendezvous:
        if groups is not None:
            message = "rendezvous is not modelled with multicast or reductions in switches"
            raise UsageError(message, cure=_RENDEZVOUS_CURE)
        timed = replace(nodes, duration_ns=durations)
        result = simulate_rendezvous(timed, request.topology, options, request.npus)
    else:
        times = simulate_nodes(
            nodes,
            request.topology,
            model,
            durations,
            partial(_find_step_location, algorithm, nodes),
            _find_channels(algorithm, nodes),
            request.npus,
            groups,
            # Without congestion every pair of ranks has a link of its own.
            records_transfers=request.wants_transfers and model.is_congestion_aware,
        )
        start, end = _compute_step_times(nodes, times, len(algorithm.steps))
        loads, diagnostics = times.link_loads, times.diagnostics
        transfers = times.transfers
        if transfers is not None:
            transfers = replace(transfers, row=nodes.step[transfers.row].astype(np.int64))
        result = SimulationResult(
            times.rank_finish_ns, start, end, loads, diagnostics, transfers=transfers
        )
    is_unknown = algorithm.steps.src_buffer == Buffer.UNKNOWN
    if _TRACE_EXTENSION in algorithm.extensions and bool(is_unknown.any()):
        result = _remove_aborted_times(result, request.topology, options)
    # ASTRA-sim does not count the computations inside an algorithm.
    return replace(
        result,
        shares_links=model.is_congestion_aware,
        rank_exposed_ns=result.rank_finish_ns,
    )


def _remove_aborted_times(
    result: SimulationResult, topology: Topology, options: AnalyticalOptions
) -> SimulationResult:
    """Return errors in place of the times if ASTRA-sim aborts on the traces; else `result`.

    ASTRA-sim aborts for each of these reasons, which are listed in this order:

    - the diagnostics of `result` with the code `stopped_jobs.CODE` (`astra-sim-aborts`)
    - only for a topology of exactly one dimension: the option `network` is the congestion-aware
      backend, and the dimension is a ring of 1 or 2 NPUs or another kind with 1 NPU

    After an abort the result has None as finish time of every rank, no step times, loads or
    transfers, and exactly these reasons as diagnostics. Reasons that were warnings become
    errors with another cure; errors are unchanged.
    """
    from collhub_astra_sim.workloads.stopped_jobs import CODE, find_network_abort

    aborts = [finding for finding in result.diagnostics if finding.code == CODE]
    # Networks of several dimensions exist only in the hub; ASTRA-sim cannot simulate them.
    if len(topology.dimensions) == 1 and (finding := find_network_abort(topology, options.network)):
        aborts.append(finding)
    if not aborts:
        return result
    cure = "let a computation of 1 ns or more precede it, or make it larger"
    errors = [
        finding
        if finding.severity is Severity.ERROR
        else replace(finding, severity=Severity.ERROR, cure=cure)
        for finding in aborts
    ]
    return SimulationResult((None,) * len(result.rank_finish_ns), diagnostics=tuple(errors))


def simulate_nodes(
    nodes: NodeTable,
    topology: Topology,
    model: TimingModel | None = None,
    duration_ns: Int64Array | None = None,
    locate: Callable[[int], Location] | None = None,
    channel: Int64Array | None = None,
    npus: Sequence[int] | None = None,
    groups: SwitchGroups | None = None,
    *,
    records_transfers: bool = False,
) -> NodeTimes:
    """Simulate the nodes of the traces of all ranks; return the times of ranks and nodes in ns.

    `rank_finish_ns` has one time per rank, None if the rank never finishes. `start_ns` and
    `end_ns` are int64 in the order of `nodes`, -1 for a node that does not start or end.
    Diagnostics give the reasons. Loads of links are () unless `model` is congestion-aware;
    transfers are None without `records_transfers`.

    - `model`: None for the default, which is congestion-aware.
    - `duration_ns`: int64 per node, at least 1 for computations; None for the durations of the
      traces, where missing and smaller ones become 1.
    - `locate`: function from the row of a node to its location in messages; by default its rank
      and the position in the rank.
    - `channel`: int64 per node, by default 0; the plane of a message is the channel of its SEND
      modulo the number of planes of the topology.
    - `npus`: NPU of every rank, by default NPU r for rank r.
    - `groups`: multicasts and sums in switches; None for none.

    Raises `InputError` for traces that cannot be simulated, too few NPUs in the topology, a
    message without a path, and times or tables that are too large.
    """
    from collhub_astra_sim.simulating.findings import report_findings
    from collhub_astra_sim.simulating.kernel import get_parents, run
    from collhub_astra_sim.simulating.simulated_network import report_link_loads
    from collhub_astra_sim.simulating.starting_world import build_world

    model = model or TimingModel()
    location_of = locate or partial(_find_node_location, nodes)
    if duration_ns is None:
        duration_ns = get_trace_durations_ns(nodes)
    npu_of_rank = np.arange(nodes.num_ranks) if npus is None else np.asarray(npus, np.int64)
    world, events = build_world(
        nodes,
        duration_ns,
        topology,
        model,
        location_of,
        npu_of_rank,
        channel,
        groups,
        records_transmissions=records_transfers,
    )
    has_event_at_zero = bool(run(world, get_parents(nodes), events=events))
    diagnostics = report_findings(nodes, world, has_event_at_zero, topology, model, location_of)
    loads = report_link_loads(topology, world.link) if model.is_congestion_aware else ()
    # Copies, because the columns would keep all records of the world in memory.
    start, end = world.node["start"].copy(), world.node["end"].copy()
    finish_times: Int64Array = world.rank["finish"][:-1]
    finish = tuple(time if time >= 0 else None for time in finish_times.tolist())
    transfers = _collect_transfers(world) if records_transfers else None
    return NodeTimes(finish, start, end, loads, diagnostics, transfers)


def _collect_transfers(world: SimulatedWorld) -> LinkTransfers:
    """Return the recorded transmissions of messages over links, one row each, as recorded.

    `row`: row of the message's SEND in the table of trace nodes, not in the step table. All
    times are in ns. `busy_ns`: how long the message occupies the link. `ready_ns`: when the
    message can enter the link, limited to the range from 0 to the start of the transmission:

    - on its first link, when its SEND starts
    - on each later link, when it arrives at the end of the previous one

    Without transmissions the result is empty.
    """
    records = world.transmission[: world.transmissions[0]]
    node, link, start = (records[name].copy() for name in ("node", "link", "start"))
    times = world.time[world.node["size_class"][node], world.link["link_class"][link]]
    # Stable: the transmissions of a message stay in the order of its route.
    order = np.argsort(node, kind="stable")
    ready = world.node["start"][node]
    is_same = node[order][1:] == node[order][:-1]
    ready[order[1:][is_same]] = records["arrival"][order[:-1][is_same]]
    ready = np.clip(ready, 0, start)
    return LinkTransfers(link, node, ready, start, times["busy_ns"].copy())


def _find_step_location(algorithm: Algorithm, nodes: NodeTable, node: int) -> Location:
    """Return the location, in the user's file, of the step to which a trace node belongs.

    `node`: row of `nodes`. For a node without a step, the location has no file: it is the
    rank of the node, with the position of the node in this rank (from 0) as the step.
    """
    row = int(nodes.step[node])
    # The node of a rank without steps belongs to no step.
    if row < 0:
        return _find_node_location(nodes, node)
    file = algorithm.provenance.source_name or None
    return algorithm.steps.location(row, file)


def _find_node_location(nodes: NodeTable, node: int) -> Location:
    """Return a location of the node's rank, with its position in the rank (from 0) as the step.

    `node` is a row of the table.
    """
    # Use the right side of equal bounds, which belong to ranks without nodes.
    bound = np.searchsorted(nodes.rank_indptr, node, side="right")
    rank = int(bound) - 1
    position = node - nodes.rank_indptr[rank]
    return Location(rank=rank, step=int(position))


def _find_channels(algorithm: Algorithm, nodes: NodeTable) -> Int64Array | None:
    """Return the channel of every node's step; 0 for nodes without a step.

    int64[nodes], or None for an algorithm without steps, whose messages all use plane 0.
    """
    if not len(algorithm.steps):
        return None
    channel: Int64Array = np.where(nodes.step >= 0, algorithm.steps.channel[nodes.step], 0)
    return channel


def _compute_step_times(
    nodes: NodeTable, times: NodeTimes, steps: int
) -> tuple[Int64Array, Int64Array]:
    """Return the start and the end of every step in ns, both int64[steps].

    A step may have several trace nodes, in order: its start is that of the first, its end that of
    the last. -1 for a step without nodes or whose node did not start or end. `steps`: number of
    steps.
    """
    start = np.full(steps, -1, np.int64)
    end = np.full(steps, -1, np.int64)
    with_step = np.flatnonzero(nodes.step >= 0)
    step = nodes.step[with_step]
    # If an element is assigned repeatedly, numpy uses the last value.
    end[step] = times.end_ns[with_step]
    start[step[::-1]] = times.start_ns[with_step[::-1]]
    return start, end


_RENDEZVOUS_PREFIX = "algorithm"
_RENDEZVOUS_CURE = "leave out -O rendezvous"


def simulate_rendezvous(
    nodes: NodeTable,
    topology: Topology,
    options: AnalyticalOptions,
    npus: Sequence[int] | None,
) -> SimulationResult:
    """Simulate traces with the rendezvous protocol, in which messages wait for their receivers.

    Returns the finish time of each rank in ns, in the order of the ranks, and no times of
    steps. Link loads are empty unless the option `network` is the congestion-aware backend.
    `nodes`: with the durations of all computations. `npus`: ascending NPUs of the ranks; None
    for NPU r for rank r.

    A rank that never finishes has None. If there are any, the only diagnostic is one error
    (`unfinished`) that lists them. Otherwise the diagnostics are those of the simulation.

    Raises `UsageError` for the first of: NPUs that do not ascend, a network of several planes,
    the option `occupancy=alpha-beta`. Errors of `run_workload_layer` pass through: `InputError`
    and `UsageError` for inputs that are not modelled.
    """
    # Imported here, because most algorithms are simulated without a job.
    from collhub_astra_sim.workloads.simulate import run_workload_layer
    from collhub_astra_sim.workloads.system import System

    members = tuple(range(nodes.num_ranks)) if npus is None else tuple(npus)
    if list(members) != sorted(members):
        raise UsageError("rendezvous needs ranks on ascending NPUs", cure=_RENDEZVOUS_CURE)
    if topology.num_planes > 1:
        raise UsageError(
            "rendezvous is not modelled on networks of several planes", cure=_RENDEZVOUS_CURE
        )
    if TimingModel.of_options(options).occupancy is not Occupancy.SERIALIZATION:
        raise UsageError(
            "rendezvous is not modelled with occupancy=alpha-beta", cure=_RENDEZVOUS_CURE
        )
    system = System(custom={JobCollective.ALL_REDUCE: _RENDEZVOUS_PREFIX})
    times = run_workload_layer(
        _build_job(members, topology.num_npus),
        topology,
        system,
        algorithms={_RENDEZVOUS_PREFIX: nodes},
        rendezvous=True,
        backend=options.network,
    )
    finish = tuple(times.rank_finish_ns[npu] for npu in members)
    unfinished = [rank for rank, end in enumerate(finish) if end is None]
    message = (
        f"rank {format_ranks(unfinished)} waits for messages, or for receivers, that never come"
    )
    diagnostics = (Diagnostic("unfinished", message),) if unfinished else times.diagnostics
    return SimulationResult(finish, link_loads=times.link_loads, diagnostics=diagnostics)


def _build_job(members: Sequence[int], num_npus: int) -> Workload:
    """Return a job in which the NPUs `members` run one all-reduce and the rest are idle.

    The caller simulates a custom algorithm in place of the all-reduce, so that its size has
    no effect. The job has `num_npus` ranks. If `members` are only a part of the NPUs, the
    collective has a process group with the name `1` and these members.
    """
    count = len(members)
    is_part = count < num_npus
    columns = {
        "rank": np.array(members),
        "kind": np.full(count, int(NodeKind.COLLECTIVE)),
        "collective": np.full(count, int(JobCollective.ALL_REDUCE)),
        "bytes": np.full(count, num_npus),
        "group": np.full(count, 0 if is_part else -1),
    }
    groups = (ProcessGroup("1", tuple(members)),) if is_part else ()
    return Workload(NodeColumns.from_columns(num_npus, columns), groups=groups)
