"""Find the network of ASTRA-sim for a topology and an algorithm, if there is one.

ASTRA-sim has no link lists: its network is a product of rings, switches and full meshes. But a full
mesh has a private link per ordered pair of NPUs, so an algorithm that sends only along existing
links of any graph with uniform links takes the same time there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from collhub_astra_sim.networks.network_yaml import KIND_NAMES
from hub_core.columns import Int64Array
from hub_core.model import Loss, UsageError
from hub_core.network import Dimension, DimensionKind, Topology


@dataclass(frozen=True, slots=True)
class AstraNetwork:
    """Dimensions for the network YAML, and the losses of this representation."""

    dimensions: tuple[Dimension, ...]
    losses: tuple[Loss, ...] = ()


def find_astra_network(
    topology: Topology, sources: Int64Array, destinations: Int64Array, *, is_congestion_aware: bool
) -> AstraNetwork:
    """Return the network for messages from `sources` to `destinations` (NPUs, int64[messages]).

    Congestion-aware ASTRA-sim supports one dimension, congestion-unaware any number. Other networks
    of uniform links become FullyConnected if the algorithm sends only to neighbours. Raises
    `UsageError` with the reason if there is no such network.
    """
    dimensions: tuple[Dimension, ...] = ()
    if not (topology.multicast or topology.reduction):
        # Dimensions of one node do not occur in the network YAML.
        several = [dimension for dimension in topology.dimensions if dimension.size > 1]
        dimensions = tuple(map(_as_astra, several))
    is_native = bool(dimensions) and all(dimension.kind in KIND_NAMES for dimension in dimensions)
    if is_native and (len(dimensions) == 1 or not is_congestion_aware):
        return AstraNetwork(dimensions)
    reason = _find_obstacle(topology, sources, destinations)
    if reason:
        raise UsageError(
            f"ASTRA-sim cannot express topology {topology.name}: {reason}",
            cure="use the simulator analytical, which takes every topology, "
            "or ring:N, fully-connected:N, switch:N",
            code="inexpressible-topology",
        )
    return _as_full_mesh(topology)


def _as_full_mesh(topology: Topology) -> AstraNetwork:
    """Return a full mesh with the values of the topology's links, which must be equal.

    It is written as FullyConnected, so that only algorithms between neighbours have correct times;
    `losses` of the result say so. Raises `UsageError` for fewer than two NPUs.
    """
    loss = Loss(
        f"topology {topology.name}",
        "network.yml",
        "written as FullyConnected: the times are those of this topology, "
        "because the algorithm sends only between neighbours; "
        "other algorithms would use links that the topology does not have",
    )
    # All links have equal values.
    bandwidth_bytes_per_s = float(topology.bandwidth_bytes_per_s[0])
    latency_s = float(topology.latency_s[0])
    mesh = make_full_mesh(topology.num_npus, bandwidth_bytes_per_s, latency_s)
    return replace(mesh, losses=(loss,))


def make_full_mesh(npus: int, bandwidth_bytes_per_s: float, latency_s: float) -> AstraNetwork:
    """Return a network with a private link per ordered pair of NPUs.

    Raises `UsageError` for fewer than two NPUs.
    """
    if npus < 2:
        message = "ASTRA-sim needs at least two NPUs"
        raise UsageError(message, cure="name a larger topology", code="too-few-npus")
    kind = DimensionKind.FULLY_CONNECTED
    dimension = Dimension(kind, npus, bandwidth_bytes_per_s, latency_s)
    return AstraNetwork((dimension,))


def _as_astra(dimension: Dimension) -> Dimension:
    """Return the dimension; two nodes in a line or ring become fully connected."""
    # ASTRA-sim has no lines, and its rings need three nodes.
    is_pair = dimension.size == 2 and dimension.kind in (DimensionKind.LINE, DimensionKind.RING)
    if is_pair:
        return replace(dimension, kind=DimensionKind.FULLY_CONNECTED)
    return dimension


def _find_obstacle(topology: Topology, sources: Int64Array, destinations: Int64Array) -> str | None:
    """Return why links cannot be written as private links of equal speed, or None."""
    if not topology.num_links:
        return "it has no links"
    if topology.multicast or topology.reduction:
        return "its switches multicast or reduce"
    if topology.num_planes > 1:
        planes = topology.num_planes
        return f"it has {planes} planes, and ASTRA-sim routes all messages over one network"
    return _find_difference(topology) or _find_distant_pair(topology, sources, destinations)


def _find_difference(topology: Topology) -> str | None:
    """Return how links differ, or None if they are uniform."""
    bandwidths = topology.bandwidth_bytes_per_s / 1e9
    columns = (
        ("bandwidth", bandwidths, "GB/s"),
        ("latency", topology.latency_ns, "ns"),
    )
    for name, values, unit in columns:
        minimum = values.min()
        maximum = values.max()
        if minimum != maximum:
            return f"its links differ in {name} ({minimum:g} to {maximum:g} {unit})"
    return None


def _find_distant_pair(
    topology: Topology, sources: Int64Array, destinations: Int64Array
) -> str | None:
    """Describe the first message between NPUs without a link, or return None."""
    # A number for each pair of nodes, so that pairs can be looked up in a sorted array.
    nodes = topology.num_nodes
    links = topology.source * nodes + topology.destination
    pairs = sources * nodes + destinations
    without_link = np.flatnonzero(~np.isin(pairs, links))
    if not len(without_link):
        return None
    first = int(without_link[0])
    source = topology.node_name(int(sources[first]))
    destination = topology.node_name(int(destinations[first]))
    return f"the algorithm sends from NPU {source} to NPU {destination}, which are no neighbours"
