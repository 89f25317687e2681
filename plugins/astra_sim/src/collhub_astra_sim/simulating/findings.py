"""Report ranks that never finish, with the reasons, and inputs on which ASTRA-sim itself aborts."""

from __future__ import annotations

import numpy as np

from collhub_astra_sim.simulating.kernel import SimulatedWorld
from collhub_astra_sim.simulating.node_checks import Locate
from collhub_astra_sim.simulating.stuck_nodes import StuckNodes
from collhub_astra_sim.simulating.timing_model import TimingModel
from hub_core import NodeTable
from hub_core.model import Diagnostic, Severity
from hub_core.network import DimensionKind, Occupancy, Topology

_ASTRA_SIM_KINDS = (DimensionKind.RING, DimensionKind.FULLY_CONNECTED, DimensionKind.SWITCH)


def report_findings(
    nodes: NodeTable,
    world: SimulatedWorld,
    has_event_at_zero: bool,
    topology: Topology,
    model: TimingModel,
    locate: Locate,
) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of a finished simulation, in the order of ranks."""
    diagnostics: list[Diagnostic] = []
    # The search for reasons takes longer than most runs, so it runs only if a node is stuck.
    if np.any(world.node["end"] < 0):
        stuck = StuckNodes(nodes, world, locate)
        for rank in range(nodes.num_ranks):
            diagnostics += stuck.findings_of(rank)
    if has_event_at_zero and _is_astra_sim_network(topology, model):
        diagnostics.append(_abort_warning())
    return tuple(diagnostics)


def _abort_warning() -> Diagnostic:
    # The simulator's event queue asserts that every event is later than its current time.
    """Return the warning about an event at time 0."""
    return Diagnostic(
        "astra-sim-aborts",
        "a message at the start takes less than 1 ns to send, where ASTRA-sim itself aborts",
        Severity.WARNING,
        cure="these times hold for a start a little later; use larger messages to compare",
    )


def _is_astra_sim_network(topology: Topology, model: TimingModel) -> bool:
    """Return whether ASTRA-sim can simulate this network.

    It requires the occupancy model `serialization` and dimensions of the three kinds of ASTRA-sim;
    with congestion exactly one dimension.
    """
    if model.occupancy is not Occupancy.SERIALIZATION:
        return False
    kinds = [dimension.kind for dimension in topology.dimensions]
    max_dimensions = 1 if model.is_congestion_aware else len(kinds)
    has_valid_count = 1 <= len(kinds) <= max_dimensions
    return has_valid_count and all(kind in _ASTRA_SIM_KINDS for kind in kinds)
