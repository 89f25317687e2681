"""Say which ranks never finish and why, and where ASTRA-sim itself would stop."""

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


def findings(
    nodes: NodeTable,
    world: SimulatedWorld,
    has_event_at_zero: bool,
    topology: Topology,
    model: TimingModel,
    locate: Locate,
) -> tuple[Diagnostic, ...]:
    """All that is to be said about a run, ranks in order."""
    found: list[Diagnostic] = []
    # Looking for reasons takes longer than most runs, so only where something is stuck.
    if np.any(world.node["end"] < 0):
        stuck = StuckNodes(nodes, world, locate)
        for rank in range(nodes.num_ranks):
            found += stuck.findings_of(rank)
    if has_event_at_zero and _is_astra_sim_network(topology, model):
        found.append(_abort_warning())
    return tuple(found)


def _abort_warning() -> Diagnostic:
    # The simulator's event queue asserts that every event is later than its current time.
    return Diagnostic(
        "astra-sim-aborts",
        "a message at the start takes less than 1 ns to send, where ASTRA-sim itself aborts",
        Severity.WARNING,
        cure="these times hold for a start a little later; use larger messages to compare",
    )


def _is_astra_sim_network(topology: Topology, model: TimingModel) -> bool:
    """Whether ASTRA-sim can be given this network at all.

    It knows serialization alone and dimensions of three kinds, of which congestion allows one.
    """
    if model.occupancy is not Occupancy.SERIALIZATION:
        return False
    kinds = [dimension.kind for dimension in topology.dimensions]
    most = 1 if model.is_congestion_aware else len(kinds)
    is_counted = 1 <= len(kinds) <= most
    return is_counted and all(kind in _ASTRA_SIM_KINDS for kind in kinds)
