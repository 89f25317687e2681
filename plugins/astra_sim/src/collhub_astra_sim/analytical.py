"""Simulate an algorithm with ASTRA-sim's analytical timing model, exact to the cycle, on any topology."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.fixed_size import check_size
from collhub_astra_sim.local_costs import local_durations_ns, stated_durations_ns
from collhub_astra_sim.options import Model
from hub_core import NodeTable
from hub_core import chakra_nodes as lower
from hub_core.model import Algorithm, Diagnostic, Location
from hub_core.network import Topology
from hub_core.plugin_api import LinkLoad, Options, SimulationResult

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class NodeTimes:
    """Outcome of a simulation by node; times in ns from the common start.

    `rank_finish_ns`: None where a rank never finishes. `start_ns`, `end_ns`: int64 per node, -1 for never; a node
    starts when its dependencies are met, a SEND ends when its message has arrived as a whole.
    """

    rank_finish_ns: tuple[int | None, ...]
    start_ns: Int64Array
    end_ns: Int64Array
    link_loads: tuple[LinkLoad, ...]
    diagnostics: tuple[Diagnostic, ...]


def simulate(
    algorithm: Algorithm, topology: Topology, collective_bytes: int, options: Options
) -> SimulationResult:
    """Simulate `algorithm` for a collective of `collective_bytes`; rank r runs on NPU r.

    Raises `UsageError` for invalid options, `InputError` where the topology has too few NPUs or no path between
    two ranks that talk, or where a trace fixes another size.
    """
    model = Model.of_options(options)
    check_size(algorithm, collective_bytes)
    nodes = lower(algorithm, collective_bytes)
    durations = local_durations_ns(algorithm, nodes, collective_bytes, model)

    def locate(node: int) -> Location:
        row = int(nodes.step[node])
        return (
            algorithm.steps.location(row, algorithm.provenance.source_name or None)
            if row >= 0
            else _node_location(nodes, node)
        )

    channel = (
        np.where(nodes.step >= 0, algorithm.steps.channel[nodes.step], 0)
        if len(algorithm.steps)
        else None
    )
    times = simulate_nodes(nodes, topology, model, durations, locate, channel)
    start, end = _step_times(nodes, times, len(algorithm.steps))
    return SimulationResult(times.rank_finish_ns, start, end, times.link_loads, times.diagnostics)


def simulate_nodes(
    nodes: NodeTable,
    topology: Topology,
    model: Model | None = None,
    duration_ns: Int64Array | None = None,
    locate: Callable[[int], Location] | None = None,
    channel: Int64Array | None = None,
) -> NodeTimes:
    """Simulate the nodes of a set of traces as they stand.

    `duration_ns`: int64 per node, at least 1 at COMP nodes; by default as stated. `locate` tells where a node
    stands, for messages; by default its rank and its position there. `channel`: int64 per node, by default 0; it
    matters on topologies of several planes alone. Raises `InputError` as `simulate`.
    """
    # The modules that import numba take a second to import.
    from collhub_astra_sim.findings import findings
    from collhub_astra_sim.inputs import world_of
    from collhub_astra_sim.kernel import Parents, run

    model = model or Model()
    place = locate or (lambda node: _node_location(nodes, node))
    durations = stated_durations_ns(nodes) if duration_ns is None else duration_ns
    world = world_of(nodes, durations, topology, model, place, channel)
    has_event_at_zero = run(
        world,
        Parents(nodes.data_indptr, nodes.data_indices, nodes.control_indptr, nodes.control_indices),
    )
    finish = tuple(time if time >= 0 else None for time in world.rank["finish"][:-1].tolist())
    loads = (
        _link_loads(topology, world.link["bytes"], world.link["busy_ns"])
        if model.is_congestion_aware
        else ()
    )
    found = findings(nodes, world, has_event_at_zero, topology, model, place)
    return NodeTimes(finish, world.node["start"].copy(), world.node["end"].copy(), loads, found)


def _node_location(nodes: NodeTable, node: int) -> Location:
    rank = int(np.searchsorted(nodes.rank_indptr, node, side="right")) - 1
    return Location(rank=rank, step=int(node - nodes.rank_indptr[rank]))


def _step_times(nodes: NodeTable, times: NodeTimes, steps: int) -> tuple[Int64Array, Int64Array]:
    """Start of the first and end of the last node of every step."""
    start, end = np.full(steps, -1, np.int64), np.full(steps, -1, np.int64)
    owned = np.flatnonzero(nodes.step >= 0)
    # Of several assignments to one element, numpy keeps the last.
    end[nodes.step[owned]] = times.end_ns[owned]
    start[nodes.step[owned[::-1]]] = times.start_ns[owned[::-1]]
    return start, end


def _link_loads(
    topology: Topology, carried: Int64Array, busy_ns: Int64Array
) -> tuple[LinkLoad, ...]:
    used = np.flatnonzero(carried)
    used = used[np.lexsort((used, -carried[used], -busy_ns[used]))]
    columns = (topology.source[used], topology.destination[used], carried[used], busy_ns[used])
    return tuple(
        LinkLoad(*load) for load in zip(*(column.tolist() for column in columns), strict=True)
    )
