"""Find the network that ASTRA-sim can be given for a topology and an algorithm, or say why there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.network_yaml import KIND_NAMES
from hub_core.model import Loss, UsageError
from hub_core.network import Dimension, DimensionKind, Topology

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AstraNetwork:
    """Dimensions for the network YAML, and what they do not say."""

    dimensions: tuple[Dimension, ...]
    losses: tuple[Loss, ...] = ()


def expressed(
    topology: Topology, sources: Int64Array, destinations: Int64Array, *, is_congestion_aware: bool
) -> AstraNetwork:
    """The network for messages from `sources` to `destinations` (NPUs, int64[messages]).

    Congestion-aware ASTRA-sim takes one dimension, congestion-unaware any number. Other networks of uniform links
    become FullyConnected, one private link per pair of NPUs, where the algorithm sends to neighbours only: the
    times are the same. Raises `UsageError` with the reason where there is no such network.
    """
    dimensions = tuple(
        _native(dimension) for dimension in topology.dimensions if dimension.size > 1
    )
    is_native = bool(dimensions) and all(dimension.kind in KIND_NAMES for dimension in dimensions)
    if is_native and (len(dimensions) == 1 or not is_congestion_aware):
        return AstraNetwork(dimensions)
    if reason := _obstacle(topology, sources, destinations):
        raise UsageError(
            f"ASTRA-sim cannot express topology {topology.name}: {reason}",
            cure="use the simulator analytical, which takes every topology, or ring:N, fully-connected:N, switch:N",
            code="inexpressible-topology",
        )
    loss = Loss(
        f"topology {topology.name}",
        "network.yml",
        "written as FullyConnected: the times are those of this topology, as the algorithm sends between neighbours only; "
        "other algorithms would find links that the topology does not have",
    )
    link = (float(topology.bandwidth_bytes_per_s[0]), float(topology.latency_s[0]))
    return replace(fully_connected(topology.num_npus, *link), losses=(loss,))


def fully_connected(npus: int, bandwidth_bytes_per_s: float, latency_s: float) -> AstraNetwork:
    """A private link for every ordered pair of NPUs. Raises `UsageError` for less than two."""
    if npus < 2:
        raise UsageError(
            "ASTRA-sim needs at least two NPUs", cure="name a larger topology", code="too-few-npus"
        )
    return AstraNetwork(
        (Dimension(DimensionKind.FULLY_CONNECTED, npus, bandwidth_bytes_per_s, latency_s),)
    )


def _native(dimension: Dimension) -> Dimension:
    """Two nodes in a line or ring are fully connected: ASTRA-sim has no lines, and no ring of two."""
    pair = dimension.size == 2 and dimension.kind in (DimensionKind.LINE, DimensionKind.RING)
    return replace(dimension, kind=DimensionKind.FULLY_CONNECTED) if pair else dimension


def _obstacle(topology: Topology, sources: Int64Array, destinations: Int64Array) -> str | None:
    """Why links cannot be written as private links of equal speed, or None."""
    if not topology.num_links:
        return "it has no links"
    if topology.num_planes > 1:
        return f"it has {topology.num_planes} planes, and ASTRA-sim routes all messages over one network"
    for values, unit, name in (
        (topology.bandwidth_bytes_per_s / 1e9, "GB/s", "bandwidth"),
        (topology.latency_ns, "ns", "latency"),
    ):
        if values.min() != values.max():
            return f"its links differ in {name} ({values.min():g} to {values.max():g} {unit})"
    links = topology.source * topology.num_nodes + topology.destination
    apart = np.flatnonzero(~np.isin(sources * topology.num_nodes + destinations, links))
    if len(apart):
        pair = (topology.node_name(int(ends[apart[0]])) for ends in (sources, destinations))
        return "the algorithm sends from NPU {} to NPU {}, which are no neighbours".format(*pair)
    return None
