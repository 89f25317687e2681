"""Shortest-path in-trees, one a destination, with one rule for ties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_tacos.networks.distances import ShortestPaths
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from hub_core.columns import Int64Array

# Times below are far less, and an int64 holds the sum of two.
_UNREACHABLE = 1 << 61


@dataclass(frozen=True, slots=True, eq=False)
class InTrees:
    """Next arcs to all destinations: `arc[d, u]` int64, -1 at d itself and where there is no way.

    `distance[d, u]`: int64 picoseconds from u to d on idle links.
    """

    network: LinkNetwork
    arc: Int64Array
    distance: Int64Array

    @property
    def connects_all(self) -> bool:
        """Whether every NPU reaches every other."""
        return bool(np.all(self.distance < _UNREACHABLE))

    @property
    def parent(self) -> Int64Array:
        """Next NPU on the way to every destination: int64 as `arc`."""
        return np.where(self.arc < 0, -1, self.network.destination[self.arc])


def in_trees(network: LinkNetwork, times: LinkTimes) -> InTrees:
    """The trees of a network of NPUs alone, by `times.arrival`.

    Of several next NPUs that of the nearest number is taken, and of these the first in turn: so
    trees of neighbours share what they can. That is dimension by dimension on meshes, tori and
    hypercubes. Cost: links times NPUs.
    """
    source, destination = network.source, network.destination
    nodes = network.num_nodes
    # Paths to a node are those from it on links that are turned round.
    paths = ShortestPaths(nodes, destination, source, times.arrival)
    distance = paths.lengths(np.arange(nodes))
    arc = np.full((nodes, nodes), -1, np.int64)
    order = _ties(network)
    for target in range(nodes):
        is_tight = distance[target, source] == times.arrival + distance[target, destination]
        arc[target] = _first_of(order[is_tight[order]], source, nodes)
    # A tree ends at its own NPU.
    np.fill_diagonal(arc, -1)
    return InTrees(network, arc, distance)


def _ties(network: LinkNetwork) -> Int64Array:
    """Arcs in the order in which they are taken, the best first."""
    # Near numbers are near on rings and grids.
    step = network.destination - network.source
    return np.lexsort((step % network.num_nodes, np.abs(step)))


def _first_of(arcs: Int64Array, source: Int64Array, nodes: int) -> Int64Array:
    """First of the arcs that leave every node, -1 for none."""
    found = np.full(nodes, -1, np.int64)
    # Of several assignments to one element, numpy keeps the last.
    found[source[arcs[::-1]]] = arcs[::-1]
    return found
