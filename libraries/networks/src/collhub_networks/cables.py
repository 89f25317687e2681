"""Cables: two links between the same nodes, one each way, alike. Files for simulators know no less.

ns-3 and htsim describe networks by them, the hub by directed links.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from collhub_columns import Int64Array

from hub_core.model import UsageError
from hub_core.network import Links, Topology


class Cable(NamedTuple):
    """A cable between two nodes; bytes per second, seconds."""

    source: int
    destination: int
    bandwidth_bytes_per_s: float
    latency_s: float


def topology_of(
    name: str,
    num_npus: int,
    num_nodes: int,
    cables: Sequence[Cable],
) -> Topology:
    """The network of these cables, each of them a link each way."""
    low = np.asarray([cable.source for cable in cables], np.int64)
    high = np.asarray([cable.destination for cable in cables], np.int64)
    rates = np.asarray([cable.bandwidth_bytes_per_s for cable in cables], np.float64)
    latencies = np.asarray([cable.latency_s for cable in cables], np.float64)
    # The two links of a cable stand side by side.
    ends = np.stack([low, high], axis=1)
    links = Links(
        ends.reshape(-1),
        ends[:, ::-1].reshape(-1),
        np.repeat(rates, 2),
        np.repeat(latencies, 2),
    )
    return links.topology(name, num_npus, num_nodes)


def cables_of(topology: Topology) -> list[Cable]:
    """The links in pairs, in the order of their first ones.

    Raises `UsageError` for several planes, and for a link without a way back that is like it.
    """
    if topology.num_planes > 1:
        message = f"topology {topology.name} has {topology.num_planes} planes, a cable network one"
        raise UsageError(message, cure="write the planes one by one", code="inexpressible-topology")
    way_back = ways_back(topology)
    if (way_back < 0).any():
        link = int(np.argmax(way_back < 0))
        source = topology.node_name(int(topology.source[link]))
        destination = topology.node_name(int(topology.destination[link]))
        raise UsageError(
            f"topology {topology.name}: the link from {source} to {destination} has no way back "
            "of the same bandwidth and latency, and every cable has one",
            cure="use the simulator analytical, which takes every topology",
            code="inexpressible-topology",
        )
    # Of each pair the first one stands for the cable.
    first = np.flatnonzero(way_back > np.arange(topology.num_links))
    columns = (
        topology.source[first].tolist(),
        topology.destination[first].tolist(),
        topology.bandwidth_bytes_per_s[first].tolist(),
        topology.latency_s[first].tolist(),
    )
    return [Cable(*row) for row in zip(*columns, strict=True)]


def ways_back(topology: Topology) -> Int64Array:
    """The link that goes back beside every link, int64[links], -1 where there is none.

    The two are alike: of one plane, bandwidth and latency. Of parallel links that are alike the
    i-th one each way make a pair.
    """
    source, destination = topology.source, topology.destination
    values = (topology.bandwidth_bytes_per_s, topology.latency_s, topology.plane)
    low, high = np.minimum(source, destination), np.maximum(source, destination)
    is_back = source > destination
    # Alike links between the same two nodes become neighbours, all one way before all the other.
    order = np.lexsort((is_back, *values, high, low))
    keys = np.stack([low[order], high[order], *(value[order] for value in values)])
    starts = np.append(True, np.any(keys[:, 1:] != keys[:, :-1], axis=0))
    bounds = [*np.flatnonzero(starts).tolist(), len(order)]
    found = np.full(len(order), -1, np.int64)
    for first, end in itertools.pairwise(bounds):
        links = order[first:end]
        back = int(is_back[links].sum())
        # Only as many there as back make pairs; others are left alone together.
        if 2 * back == len(links):
            found[links] = np.roll(links, back)
    return found
