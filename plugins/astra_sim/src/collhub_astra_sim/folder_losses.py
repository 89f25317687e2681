"""What a run of the folder by ASTRA-sim does not show, beyond what the traces lose."""

from __future__ import annotations

import numpy as np

from collhub_astra_sim.expressible import AstraNetwork
from collhub_astra_sim.workload import COLLECTIVE_KEYS
from hub_core import NodeTable, NodeType
from hub_core.model import Algorithm, Location, Loss
from hub_core.network import link_times_ns


def own_losses(
    algorithm: Algorithm, nodes: NodeTable, network: AstraNetwork, is_congestion_aware: bool
) -> tuple[Loss, ...]:
    """All losses that the folder adds to those of its traces."""
    found = (
        _collective(algorithm),
        _instant_messages(algorithm, nodes, network, is_congestion_aware),
    )
    return tuple(loss for loss in found if loss is not None)


def location_of(algorithm: Algorithm, step: int) -> Location:
    """Where a step stands, in the file that the algorithm was read from."""
    return algorithm.steps.location(step, algorithm.provenance.source_name or None)


def _collective(algorithm: Algorithm) -> Loss | None:
    kind = algorithm.collective.kind
    if kind in COLLECTIVE_KEYS:
        return None
    return Loss(
        f"collective {kind}",
        "system.json, workload traces",
        "ASTRA-sim has no custom algorithms for it; it runs under the name all-reduce, with the same times",
    )


def _instant_messages(
    algorithm: Algorithm, nodes: NodeTable, network: AstraNetwork, is_congestion_aware: bool
) -> Loss | None:
    """Messages sent at time 0 that cause an event at time 0, which the simulator's event queue refuses."""
    is_root = (np.diff(nodes.data_indptr) == 0) & (np.diff(nodes.control_indptr) == 0)
    roots = np.flatnonzero(is_root & (nodes.type == NodeType.COMM_SEND))
    bandwidth = np.asarray([dimension.bandwidth_bytes_per_s for dimension in network.dimensions])
    latency_ns = np.asarray(
        [round(dimension.latency_s * 1e9, 6) for dimension in network.dimensions]
    )
    busy, arrival = link_times_ns(bandwidth[None, :], latency_ns[None, :], nodes.size[roots, None])
    instant = roots[((busy if is_congestion_aware else arrival) == 0).any(axis=1)]
    if not len(instant):
        return None
    first = location_of(algorithm, int(nodes.step[instant[0]]))
    return Loss(
        f"{len(instant)} messages that are sent at the start and take less than 1 ns",
        f"first {first}",
        "ASTRA-sim aborts (exit status 134); use a larger size",
    )
