"""Simulate with ASTRA-sim's analytical timing model, exact to the cycle, on any topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from collhub_astra_sim.fixed_size import check_size
from collhub_astra_sim.options import AnalyticalOptions
from collhub_astra_sim.simulating.local_costs import local_durations_ns, stated_durations_ns
from collhub_astra_sim.simulating.timing_model import TimingModel
from hub_core import NodeTable, chakra_nodes
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Buffer, Diagnostic, Location, Severity, UsageError
from hub_core.network import Topology
from hub_core.plugin_api import LinkLoad, SimulationRequest, SimulationResult
from hub_core.schedules.switch_groups import SwitchGroups, switch_groups

if TYPE_CHECKING:
    from collhub_astra_sim.simulating.kernel import SimulatedWorld


_TRACE_EXTENSION = "chakra-source"
"""Key of `Algorithm.extensions` that the reader of Chakra traces sets."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeTimes:
    """Outcome of a simulation by node; times in ns from the common start.

    `rank_finish_ns`: None where a rank never finishes. `start_ns`, `end_ns`: int64 per node, -1 for
    never; a node starts when its dependencies are met, a SEND ends when its message has arrived as
    a whole.
    """

    rank_finish_ns: tuple[int | None, ...]
    start_ns: Int64Array
    end_ns: Int64Array
    link_loads: tuple[LinkLoad, ...]
    diagnostics: tuple[Diagnostic, ...]


def simulate(request: SimulationRequest, options: AnalyticalOptions) -> SimulationResult:
    """Simulator `analytical`.

    Foreign traces of messages in bytes are simulated exactly as ASTRA-sim runs them: where it
    aborts, no rank has a time. Raises `UsageError` for a size below a byte, `InputError` where the
    topology has too few NPUs or no path between two ranks that talk, or where a trace fixes another
    size.
    """
    algorithm, size = request.algorithm, request.collective_bytes
    model = TimingModel.of_options(options)
    check_size(algorithm, size)
    nodes = chakra_nodes(algorithm, size)
    durations = local_durations_ns(algorithm, nodes, size, model)
    groups = switch_groups(algorithm, request.topology) if model.is_congestion_aware else None
    if options.rendezvous:
        from collhub_astra_sim.simulating.rendezvous import simulate_rendezvous

        if groups is not None:
            message = "rendezvous is not modelled with multicast or reductions in switches"
            raise UsageError(message, cure="leave out -O rendezvous")
        timed = replace(nodes, duration_ns=durations)
        result = simulate_rendezvous(timed, request.topology, options, request.npus)
    else:
        times = simulate_nodes(
            nodes,
            request.topology,
            model,
            durations,
            partial(_step_location, algorithm, nodes),
            _channels(algorithm, nodes),
            request.npus,
            groups,
        )
        start, end = _step_times(nodes, times, len(algorithm.steps))
        loads, found = times.link_loads, times.diagnostics
        result = SimulationResult(times.rank_finish_ns, start, end, loads, found)
    if _is_foreign_trace(algorithm):
        result = _without_aborted_times(result, request.topology, options)
    # ASTRA-sim does not count the computations inside an algorithm.
    return replace(
        result,
        shares_links=model.is_congestion_aware,
        rank_exposed_ns=result.rank_finish_ns,
    )


def _is_foreign_trace(algorithm: Algorithm) -> bool:
    """Whether an algorithm is of traces in bytes for simulators, which state no contents."""
    is_unknown = algorithm.steps.src_buffer == Buffer.UNKNOWN
    return _TRACE_EXTENSION in algorithm.extensions and bool(is_unknown.any())


def _without_aborted_times(
    result: SimulationResult, topology: Topology, options: AnalyticalOptions
) -> SimulationResult:
    """The result, or, where ASTRA-sim aborts on a folder of such traces, the reason only."""
    from collhub_astra_sim.workloads.aborts import CODE, network_abort

    aborts = [found for found in result.diagnostics if found.code == CODE]
    # Other networks are those of the hub, which ASTRA-sim cannot be given.
    if len(topology.dimensions) == 1 and (found := network_abort(topology, options.network)):
        aborts.append(found)
    if not aborts:
        return result
    cure = "let a computation of 1 ns or more precede it, or make it larger"
    errors = [
        found
        if found.severity is Severity.ERROR
        else replace(found, severity=Severity.ERROR, cure=cure)
        for found in aborts
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
) -> NodeTimes:
    """Simulate the nodes of a set of traces as they stand.

    `duration_ns`: int64 per node, at least 1 at COMP nodes; by default as stated. `locate` tells
    where a node stands, for messages; by default its rank and its position there. `channel`: int64
    per node, by default 0; it matters on topologies of several planes alone. `npus`: the NPU of
    every rank, by default NPU r for rank r. `groups`: what switches multicast and reduce. Raises
    `InputError` as `simulate`.
    """
    from collhub_astra_sim.simulating.findings import findings
    from collhub_astra_sim.simulating.kernel import parents_of, run
    from collhub_astra_sim.simulating.simulated_network import link_loads
    from collhub_astra_sim.simulating.starting_world import estimate_events, world_of

    model = model or TimingModel()
    place = locate or partial(_node_location, nodes)
    if duration_ns is None:
        duration_ns = stated_durations_ns(nodes)
    npu_of_rank = np.arange(nodes.num_ranks) if npus is None else np.asarray(npus, np.int64)
    world = world_of(nodes, duration_ns, topology, model, place, npu_of_rank, channel, groups)
    has_event_at_zero = bool(run(world, parents_of(nodes), events=estimate_events(world)))
    found = findings(nodes, world, has_event_at_zero, topology, model, place)
    loads = link_loads(topology, world.link) if model.is_congestion_aware else ()
    # Copies, as columns of records would keep all of the world in memory.
    start, end = world.node["start"].copy(), world.node["end"].copy()
    return NodeTimes(_finish_times(world), start, end, loads, found)


def _step_location(algorithm: Algorithm, nodes: NodeTable, node: int) -> Location:
    """The place of a node's step, so that messages speak of the user's file."""
    row = int(nodes.step[node])
    # The node of a rank without steps belongs to none.
    if row < 0:
        return _node_location(nodes, node)
    file = algorithm.provenance.source_name or None
    return algorithm.steps.location(row, file)


def _node_location(nodes: NodeTable, node: int) -> Location:
    """Rank of a node and its position there.

    `node` is a row of the table; the position counts from 0 and stands as the step.
    """
    # To the right of equal bounds, which are those of ranks without nodes.
    bound = np.searchsorted(nodes.rank_indptr, node, side="right")
    rank = int(bound) - 1
    position = node - nodes.rank_indptr[rank]
    return Location(rank=rank, step=int(position))


def _channels(algorithm: Algorithm, nodes: NodeTable) -> Int64Array | None:
    """Channel of every node, by its step; 0 for nodes of none.

    int64[nodes], or None for an algorithm without steps, whose messages all take plane 0.
    """
    if not len(algorithm.steps):
        return None
    channel: Int64Array = np.where(nodes.step >= 0, algorithm.steps.channel[nodes.step], 0)
    return channel


def _step_times(nodes: NodeTable, times: NodeTimes, steps: int) -> tuple[Int64Array, Int64Array]:
    """Start of the first and end of the last node of every step."""
    start = np.full(steps, -1, np.int64)
    end = np.full(steps, -1, np.int64)
    owned = np.flatnonzero(nodes.step >= 0)
    step = nodes.step[owned]
    # Of several assignments to one element, numpy keeps the last.
    end[step] = times.end_ns[owned]
    start[step[::-1]] = times.start_ns[owned[::-1]]
    return start, end


def _finish_times(world: SimulatedWorld) -> tuple[int | None, ...]:
    """When each rank finished, None where it never did.

    In ns from the start, by rank; the world keeps -1 for never.
    """
    # The last record only ends the nodes of the last rank.
    times: Int64Array = world.rank["finish"][:-1]
    return tuple(_time_or_none(time) for time in times.tolist())


def _time_or_none(time: int) -> int | None:
    """A time in ns, or None for a negative one, which stands for never."""
    return time if time >= 0 else None
