"""Cables: pairs of links between the same nodes, one per direction, with equal properties.

ns-3 and htsim describe networks by cables, the hub by directed links.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import UsageError
from hub_core.network import Links, Topology


class Cable(NamedTuple):
    """A cable between two nodes, with bandwidth in bytes per second and latency in seconds."""

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
    """Build the topology of the cables; each cable becomes two adjacent links, one per direction.

    Link 2i leads from the source of cable i to its destination, link 2i + 1 back; both have the
    cable's bandwidth and latency. Nodes from `num_npus` on are switches; nodes have no names.
    Raises the errors of `Topology` for invalid nodes or values.
    """
    low = np.asarray([cable.source for cable in cables], np.int64)
    high = np.asarray([cable.destination for cable in cables], np.int64)
    rates = np.asarray([cable.bandwidth_bytes_per_s for cable in cables], np.float64)
    latencies = np.asarray([cable.latency_s for cable in cables], np.float64)
    # The two links of a cable are adjacent.
    endpoints = np.stack([low, high], axis=1)
    links = Links(
        endpoints.reshape(-1),
        endpoints[:, ::-1].reshape(-1),
        np.repeat(rates, 2),
        np.repeat(latencies, 2),
    )
    return links.topology(name, num_npus, num_nodes)


def cables_of(topology: Topology) -> list[Cable]:
    """Convert the links of a topology to cables, each of which stands for a link and its reverse.

    Cables are in the order of the first of their two links, and have its source and destination.
    Raises `UsageError` (`inexpressible-topology`) for a topology of several planes, and if a link
    has no reverse link of equal bandwidth and latency. Among parallel links of equal values, both
    directions must have the same number of links. The list is empty for a topology without links.
    """
    if topology.num_planes > 1:
        message = f"topology {topology.name} has {topology.num_planes} planes, a cable network one"
        raise UsageError(message, cure="write the planes one by one", code="inexpressible-topology")
    reverse_link = find_reverse_links(topology)
    if (reverse_link < 0).any():
        link = int(np.argmax(reverse_link < 0))
        source = topology.node_name(int(topology.source[link]))
        destination = topology.node_name(int(topology.destination[link]))
        raise UsageError(
            f"topology {topology.name}: the link from {source} to {destination} has no reverse "
            "link of the same bandwidth and latency, which every cable has",
            cure="use the simulator analytical, which accepts every topology",
            code="inexpressible-topology",
        )
    # The first link of each pair represents the cable.
    first = np.flatnonzero(reverse_link > np.arange(topology.num_links))
    columns = (
        topology.source[first].tolist(),
        topology.destination[first].tolist(),
        topology.bandwidth_bytes_per_s[first].tolist(),
        topology.latency_s[first].tolist(),
    )
    return [Cable(*row) for row in zip(*columns, strict=True)]


def find_reverse_links(topology: Topology) -> Int64Array:
    """Return the index of the reverse link of every link: int64[links], -1 without one.

    A reverse link connects the same nodes in the other direction and has equal bandwidth, latency
    and plane. Several parallel links of equal values are paired by index, the i-th of one direction
    with the i-th of the other; if their numbers differ, none of them has a reverse link. If b is
    the reverse of a, a is the reverse of b.
    """
    source, destination = topology.source, topology.destination
    values = (topology.bandwidth_bytes_per_s, topology.latency_s, topology.plane)
    low, high = np.minimum(source, destination), np.maximum(source, destination)
    is_back = source > destination
    # Equal links between the same two nodes become adjacent, sorted by direction.
    order = np.lexsort((is_back, *values, high, low))
    keys = np.stack([low[order], high[order], *(value[order] for value in values)])
    starts = np.append(True, np.any(keys[:, 1:] != keys[:, :-1], axis=0))
    bounds = [*np.flatnonzero(starts).tolist(), len(order)]
    reverse = np.full(len(order), -1, np.int64)
    for first, end in itertools.pairwise(bounds):
        links = order[first:end]
        back_count = int(is_back[links].sum())
        # Links are paired only if both directions have equally many.
        if 2 * back_count == len(links):
            reverse[links] = np.roll(links, back_count)
    return reverse
