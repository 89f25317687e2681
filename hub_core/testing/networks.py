"""Assertions on topologies: routes, cables, subsets. They share no search code with the core."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from hub_core.pipeline.topology_input import parse_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub_core.network.topology import Topology
    from hub_core.registry.plugins import Registry


def find_distances(topology: Topology, start: int) -> dict[int, int]:
    """Number of links from node `start` to every reachable node, by breadth-first search."""
    neighbours: dict[int, list[int]] = {}
    for source, destination in _list_ends(topology):
        neighbours.setdefault(source, []).append(destination)
    counts = {start: 0}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for neighbour in neighbours.get(node, ()):
            if neighbour not in counts:
                counts[neighbour] = counts[node] + 1
                queue.append(neighbour)
    return counts


def check_routes(topology: Topology) -> None:
    """Assert that the route between every two NPUs is a connected path with the minimum of links.

    For tests of topology builders. The time is quadratic in the number of NPUs.

    Raises:
        AssertionError: A route has a gap, leads to another NPU or is not shortest.
    """
    sources, destinations = np.divmod(np.arange(topology.num_npus**2), topology.num_npus)
    routes = topology.routes(sources, destinations)
    shortest = [find_distances(topology, start) for start in range(topology.num_npus)]
    for pair, (source, destination) in enumerate(
        zip(sources.tolist(), destinations.tolist(), strict=True)
    ):
        path = routes.links[routes.indptr[pair] : routes.indptr[pair + 1]]
        where = f"route from {source} to {destination}"
        assert len(path) == shortest[source][destination], f"{where}: {len(path)} links"
        nodes = [source, *topology.destination[path].tolist()]
        assert nodes[-1] == destination, f"{where}: ends at {nodes[-1]}"
        assert topology.source[path].tolist() == nodes[:-1], f"{where}: has a gap"


def check_cabling(topology: Topology) -> None:
    """Assert `check_routes`, and that every link has a link in the opposite direction.

    For topologies in which every cable is a pair of links.

    Raises:
        AssertionError: As by `check_routes`, or a link has no opposite link.
    """
    check_routes(topology)
    endpoints = set(_list_ends(topology))
    unpaired = sorted(link for link in endpoints if link[::-1] not in endpoints)
    assert not unpaired, f"links without a link in the opposite direction: {unpaired}"


def check_subset(topology: Topology, npus: Sequence[int], registry: Registry | None = None) -> None:
    """Assert that `topology.subset(npus)` preserves the links, rates and switch names.

    The subset must have all links between these NPUs and the switches. Its name must be a topology
    text from which the same subset is built, by the builders of `registry` (default: those of all
    plugins).

    Raises:
        AssertionError: A link is missing, additional or changed, a switch has another name, or the
            text builds another topology.
    """
    part = topology.subset(npus)
    switches = range(topology.num_npus, topology.num_nodes)
    nodes = [*npus, *switches]
    actual = [
        (nodes[source], nodes[destination], rate) for source, destination, rate in _list_links(part)
    ]
    expected = [link for link in _list_links(topology) if link[0] in nodes and link[1] in nodes]
    assert actual == expected, f"links of the subset are {actual}, not {expected}"
    names = [part.node_name(node) for node in range(len(npus), part.num_nodes)]
    expected_names = [topology.node_name(node) for node in switches]
    assert names == expected_names, (
        f"switches of the subset are named {names}, not {expected_names}"
    )
    rebuilt = parse_topology(part.name, registry)
    is_equal = (rebuilt.name, _list_links(rebuilt), rebuilt.groups) == (
        part.name,
        _list_links(part),
        part.groups,
    )
    assert is_equal, f"{part.name} builds another network than the subset of this name"
    assert np.array_equal(rebuilt.latency_s, part.latency_s), f"{part.name} has other latencies"


def _list_ends(topology: Topology) -> list[tuple[int, int]]:
    """(source, destination) of every link."""
    return list(zip(topology.source.tolist(), topology.destination.tolist(), strict=True))


def _list_links(topology: Topology) -> list[tuple[int, int, float]]:
    """(source, destination, bandwidth in bytes/s) of every link."""
    rates = topology.bandwidth_bytes_per_s.tolist()
    return [(*endpoints, rate) for endpoints, rate in zip(_list_ends(topology), rates, strict=True)]
