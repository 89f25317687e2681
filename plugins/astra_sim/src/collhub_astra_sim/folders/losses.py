"""What a run of the folder by ASTRA-sim does not show, beyond what the traces lose."""

from __future__ import annotations

import numpy as np

from collhub_astra_sim.folders.workload_traces import COLLECTIVE_KEYS
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


def own_losses(
    algorithm: Algorithm,
    nodes: NodeTable,
    network: AstraNetwork,
    options: AstraFolderOptions,
    *,
    is_first: bool,
) -> tuple[Loss, ...]:
    """All losses that the folder adds to those of its traces.

    `is_first`: whether it starts at time 0.
    """
    is_congestion_aware = options.network == CONGESTION_AWARE
    found = (
        _collective_loss(algorithm),
        _unread_sizes(options),
        _instant_messages(algorithm, nodes, network, is_congestion_aware) if is_first else None,
    )
    return tuple(loss for loss in found if loss is not None)


def location_of(algorithm: Algorithm, step: int) -> Location:
    """Where a step stands, in the file that the algorithm was read from.

    The file is None where the algorithm does not state one, the line where the step has none.
    """
    return algorithm.steps.location(step, algorithm.provenance.source_name or None)


def _collective_loss(algorithm: Algorithm) -> Loss | None:
    kind = algorithm.collective.kind
    if kind in COLLECTIVE_KEYS:
        return None
    return Loss(
        f"collective {kind}",
        "system.json, workload traces",
        "ASTRA-sim has no custom algorithms for it; "
        "it runs under the name all-reduce, with the same times",
    )


def _unread_sizes(options: AstraFolderOptions) -> Loss | None:
    """Sizes that the simulator for which the folder is written does not read."""
    unread = {PUBLIC_RELEASE: "symbolic", SYMBOLIC_BRANCH: "absolute"}[options.simulator]
    if options.dialect != unread:
        return None
    units = {"symbolic": "chunks", "absolute": "bytes"}[unread]
    known = {"symbolic": "the public ASTRA-sim", "absolute": "the branch of pull request 343"}
    cures = {
        "symbolic": f"write -O dialect=both, or ask for its reader, -O simulator={SYMBOLIC_BRANCH}",
        "absolute": "write -O dialect=both",
    }
    return Loss(
        f"sizes in {units} alone (dialect={unread})",
        "traces",
        f"{known[unread]} does not read them and aborts; {cures[unread]}",
    )


def _instant_messages(
    algorithm: Algorithm, nodes: NodeTable, network: AstraNetwork, is_congestion_aware: bool
) -> Loss | None:
    """Messages sent at time 0 that cause an event at time 0, which the event queue refuses."""
    sends = _first_sends(nodes)
    shortest_ns = _shortest_times_ns(nodes.size[sends], network, is_congestion_aware)
    instant = sends[shortest_ns == 0]
    if not len(instant):
        return None
    first = location_of(algorithm, int(nodes.step[instant[0]]))
    return Loss(
        f"{len(instant)} messages that are sent at the start and take less than 1 ns",
        f"first {first}",
        "ASTRA-sim aborts (exit status 134); use a larger size",
    )


def _first_sends(nodes: NodeTable) -> Int64Array:
    """Rows of the sends that wait for nothing.

    int64, ascending: the sends that have neither data nor control dependencies.
    """
    # Data and control dependencies hold a node alike.
    waits = np.diff(nodes.data_indptr) + np.diff(nodes.control_indptr)
    is_send = nodes.type == NodeType.COMM_SEND
    return np.flatnonzero(is_send & (waits == 0))


def _shortest_times_ns(
    sizes: Int64Array, network: AstraNetwork, is_congestion_aware: bool
) -> Int64Array:
    """Time until the earliest event that a message of each size may cause, over all dimensions.

    int64[sizes] of whole nanoseconds, rounded down; `sizes` are in bytes.
    """
    dimensions = network.dimensions
    bandwidth = np.asarray([dimension.bandwidth_bytes_per_s for dimension in dimensions])
    # As many digits as the network YAML states.
    latency_ns = np.asarray([round(dimension.latency_s * 1e9, 6) for dimension in dimensions])
    busy, arrival = link_times_ns(bandwidth[None, :], latency_ns[None, :], sizes[:, None])
    # With congestion a link becomes free before the message arrives; without, nothing else happens.
    first_event = busy if is_congestion_aware else arrival
    shortest: Int64Array = first_event.min(axis=1)
    return shortest
