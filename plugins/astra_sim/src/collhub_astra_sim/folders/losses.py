"""Losses of a folder beyond those of its traces: differences of a run by ASTRA-sim."""

from __future__ import annotations

import numpy as np

from collhub_astra_sim.folders.world import COLLECTIVE_KEYS
from collhub_astra_sim.networks.expressible import AstraNetwork
from collhub_astra_sim.options import (
    CONGESTION_AWARE,
    PUBLIC_RELEASE,
    SYMBOLIC_BRANCH,
    AstraFolderOptions,
)
from hub_core import NodeTable, NodeType
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Location, Loss
from hub_core.network import link_times_ns


def collect_losses(
    algorithm: Algorithm,
    nodes: NodeTable,
    network: AstraNetwork,
    options: AstraFolderOptions,
    *,
    is_first: bool,
) -> tuple[Loss, ...]:
    """Return all losses that the folder adds to those of its traces.

    `is_first`: whether the algorithm starts at time 0.
    """
    is_congestion_aware = options.network == CONGESTION_AWARE
    candidates = (
        _check_collective(algorithm),
        _check_dialect(options),
        _check_instant_messages(algorithm, nodes, network, is_congestion_aware)
        if is_first
        else None,
    )
    return tuple(loss for loss in candidates if loss is not None)


def locate_step(algorithm: Algorithm, step: int) -> Location:
    """Return the location of a step in the file from which the algorithm was read.

    The file is None if the algorithm has none, likewise the line of the step.
    """
    return algorithm.steps.location(step, algorithm.provenance.source_name or None)


def _check_collective(algorithm: Algorithm) -> Loss | None:
    """Return the loss of a collective for which ASTRA-sim has no custom algorithms, or None."""
    kind = algorithm.collective.kind
    if kind in COLLECTIVE_KEYS:
        return None
    return Loss(
        f"collective {kind}",
        "system.json, workload traces",
        "ASTRA-sim has no custom algorithms for it; "
        "it runs under the name all-reduce, with the same times",
    )


def _check_dialect(options: AstraFolderOptions) -> Loss | None:
    """Return the loss of sizes that the chosen simulator does not read, or None."""
    unread = {PUBLIC_RELEASE: "symbolic", SYMBOLIC_BRANCH: "absolute"}[options.simulator]
    if options.dialect != unread:
        return None
    units = {"symbolic": "chunks", "absolute": "bytes"}[unread]
    known = {"symbolic": "the public ASTRA-sim", "absolute": "the branch of pull request 343"}
    cures = {
        "symbolic": f"write -O dialect=both, or choose its reader, -O simulator={SYMBOLIC_BRANCH}",
        "absolute": "write -O dialect=both",
    }
    return Loss(
        f"sizes only in {units} (dialect={unread})",
        "traces",
        f"{known[unread]} does not read them and aborts; {cures[unread]}",
    )


def _check_instant_messages(
    algorithm: Algorithm, nodes: NodeTable, network: AstraNetwork, is_congestion_aware: bool
) -> Loss | None:
    """Return the loss of initial messages with an event at time 0, which ASTRA-sim refuses."""
    sends = _find_first_sends(nodes)
    shortest_ns = _compute_shortest_times_ns(nodes.size[sends], network, is_congestion_aware)
    instant = sends[shortest_ns == 0]
    if not len(instant):
        return None
    first = locate_step(algorithm, int(nodes.step[instant[0]]))
    return Loss(
        f"{len(instant)} messages that are sent at the start and take less than 1 ns",
        f"first {first}",
        "ASTRA-sim aborts (exit status 134); use a larger size",
    )


def _find_first_sends(nodes: NodeTable) -> Int64Array:
    """Return the rows of the sends without dependencies, int64, ascending."""
    # Data and control dependencies both delay a node.
    waits = np.diff(nodes.data_indptr) + np.diff(nodes.control_indptr)
    is_send = nodes.type == NodeType.COMM_SEND
    return np.flatnonzero(is_send & (waits == 0))


def _compute_shortest_times_ns(
    sizes: Int64Array, network: AstraNetwork, is_congestion_aware: bool
) -> Int64Array:
    """Return the time of the earliest event that a message of each size may cause.

    The minimum over all dimensions; int64[sizes] of whole nanoseconds, rounded down; `sizes` in
    bytes.
    """
    dimensions = network.dimensions
    bandwidth = np.asarray([dimension.bandwidth_bytes_per_s for dimension in dimensions])
    # Rounded to the number of digits in the network YAML.
    latency_ns = np.asarray([round(dimension.latency_s * 1e9, 6) for dimension in dimensions])
    busy, arrival = link_times_ns(bandwidth[None, :], latency_ns[None, :], sizes[:, None])
    # With congestion a link becomes free before the message arrives; without, the arrival is the
    # first event.
    first_event = busy if is_congestion_aware else arrival
    shortest: Int64Array = first_event.min(axis=1)
    return shortest
