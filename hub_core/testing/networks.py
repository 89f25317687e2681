"""Laws that every topology keeps, judged by plain searches that share no code with the core."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from hub_core.pipeline.topology_input import parse_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub_core.network.topology import Topology
    from hub_core.registry.plugins import Registry


def distances(topology: Topology, start: int) -> dict[int, int]:
    """Number of links from a node to each node it reaches, by plain breadth-first search."""
    neighbours: dict[int, list[int]] = {}
    for source, destination in _ends(topology):
        neighbours.setdefault(source, []).append(destination)
    found = {start: 0}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for neighbour in neighbours.get(node, ()):
            if neighbour not in found:
                found[neighbour] = found[node] + 1
                queue.append(neighbour)
    return found


def check_routes(topology: Topology) -> None:
    """Assert that the route between every two NPUs is a connected path with the fewest links.

    For builders in tests; takes time in proportion to the square of the NPUs.

    Raises:
        AssertionError: A route has a gap, ends elsewhere or is longer than need be.
    """
    sources, destinations = np.divmod(np.arange(topology.num_npus**2), topology.num_npus)
    routes = topology.routes(sources, destinations)
    shortest = [distances(topology, start) for start in range(topology.num_npus)]
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
    """Assert what holds where every cable is a link each way: `check_routes`, and ways back.

    Raises:
        AssertionError: As by `check_routes`, or a link leads one way alone.
    """
    check_routes(topology)
    ends = set(_ends(topology))
    alone = sorted(link for link in ends if link[::-1] not in ends)
    assert not alone, f"links lead one way alone: {alone}"


def check_subset(topology: Topology, npus: Sequence[int], registry: Registry | None = None) -> None:
    """Assert that the subset on these NPUs keeps the links, rates and names of what stays.

    And that its name is the text that builds it, by the builders of the registry (default: those
    of all plugins).

    Raises:
        AssertionError: A link is lost, invented or changed, or a switch lost its name.
    """
    part = topology.subset(npus)
    switches = range(topology.num_npus, topology.num_nodes)
    kept = [*npus, *switches]
    found = [(kept[source], kept[destination], rate) for source, destination, rate in _rated(part)]
    wanted = [link for link in _rated(topology) if link[0] in kept and link[1] in kept]
    assert found == wanted, f"links of the subset are {found}, not {wanted}"
    names = [part.node_name(node) for node in range(len(npus), part.num_nodes)]
    before = [topology.node_name(node) for node in switches]
    assert names == before, f"switches of the subset are named {names}, not {before}"
    again = parse_topology(part.name, registry)
    same = (again.name, _rated(again), again.groups) == (part.name, _rated(part), part.groups)
    assert same, f"{part.name} builds another network than the subset of this name"
    assert np.array_equal(again.latency_s, part.latency_s), f"{part.name} has other latencies"


def _ends(topology: Topology) -> list[tuple[int, int]]:
    return list(zip(topology.source.tolist(), topology.destination.tolist(), strict=True))


def _rated(topology: Topology) -> list[tuple[int, int, float]]:
    rates = topology.bandwidth_bytes_per_s.tolist()
    return [(*ends, rate) for ends, rate in zip(_ends(topology), rates, strict=True)]
