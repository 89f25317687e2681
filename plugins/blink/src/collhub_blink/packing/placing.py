"""Put trees of a packing on the network: which NPU hands on to which, over which links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from collhub_packing import CapacityGraph, DirectNetwork, SpanningTree

from collhub_blink.packing.rank_network import RankNetwork
from hub_core.network import Topology

Stops = tuple[int, ...]
"""Nodes of a way from one NPU to another, both included."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedTree:
    """A tree over the nodes of the topology.

    `stops[v]`: the nodes from v's parent to v, both included, where there are more than these.
    `up`: another tree of this root, of the links turned round, on which an all-reduce is reduced;
    None for the same way back.
    """

    tree: SpanningTree
    stops: Mapping[int, Stops]
    up: PlacedTree | None = None

    @property
    def weight(self) -> int:
        """As in the packing."""
        return self.tree.weight

    @property
    def depth(self) -> int:
        """Most hops of one way."""
        upward = 0 if self.up is None else self.up.depth
        return max(self.tree.depth, upward)

    def paths(self) -> list[Stops]:
        """Nodes of every way from a parent to its child."""
        paths = []
        for node, parent in enumerate(self.tree.parent.tolist()):
            # The root has none.
            if parent >= 0:
                paths.append(self.stops.get(node, (parent, node)))
        return paths


def placed_by_stops(
    topology: Topology,
    root: int,
    weight: int,
    ways: Iterable[Stops],
) -> PlacedTree:
    """A tree whose NPUs hang where the ways to them begin."""
    parent = np.full(topology.num_nodes, -1, np.int64)
    stops = {}
    for way in ways:
        parent[way[-1]] = way[0]
        if len(way) > 2:
            stops[way[-1]] = way
    # Its arcs are those of no graph any more.
    arc = np.full(topology.num_nodes, -1, np.int64)
    return PlacedTree(SpanningTree(root, weight, parent, arc), stops)


def placed(
    network: RankNetwork,
    trees: Sequence[SpanningTree],
    direct: DirectNetwork,
    graph: CapacityGraph,
) -> tuple[PlacedTree, ...]:
    """Trees over ranks as trees over NPUs.

    Arc a of a tree stands for the arcs `direct.routes[a]` of `graph`. An NPU that takes no part
    and lies on a route hands on as a node of the tree; once it has a chunk, it serves all that
    pass it. Reversed networks give the trees of the reversed links.
    """
    return tuple(_placed(network, tree, direct, graph) for tree in trees)


def _placed(
    network: RankNetwork,
    tree: SpanningTree,
    direct: DirectNetwork,
    graph: CapacityGraph,
) -> PlacedTree:
    """One tree on the network."""
    nodes = network.nodes
    root = int(nodes[tree.root])
    ways: list[Stops] = []
    has_chunk = {root}
    ranks = np.argsort(tree.depths, kind="stable")
    # Parents before children, so that it is known who has the chunk.
    # A way may begin at any NPU that has the chunk by then, not at the parent alone.
    for rank in ranks[tree.parent[ranks] >= 0].tolist():
        route = list(direct.routes[tree.arc[rank]])
        passed = nodes[graph.destination[route]].tolist()
        path = [int(nodes[tree.parent[rank]]), *passed]
        # Parts of it that others have brought the chunk along already are left out.
        for way in _new_ways(path, has_chunk, network.topology.num_npus):
            has_chunk.add(way[-1])
            ways.append(way)
    return placed_by_stops(network.topology, root, tree.weight, ways)


def _new_ways(path: Sequence[int], has_chunk: set[int], num_npus: int) -> Iterator[Stops]:
    """The path from its last NPU that has a chunk on, from NPU to NPU, without circles."""
    places = [place for place, node in enumerate(path) if node < num_npus]
    last_of = {path[place]: place for place in places}
    # At the parent, or at an NPU behind it that another way has brought the chunk to.
    here = max(place for place in places if path[place] in has_chunk)
    while path[here] != path[-1]:
        there = next(place for place in places if place > here)
        yield tuple(path[here : there + 1])
        # A node that comes again: what lies between is a circle.
        here = last_of[path[there]]


def placed_along_routes(
    network: RankNetwork,
    trees: Sequence[SpanningTree],
) -> tuple[PlacedTree, ...]:
    """Trees over ranks whose messages take the shortest routes, as those of simulators do."""
    return tuple(_along_routes(network, tree) for tree in trees)


def _along_routes(network: RankNetwork, tree: SpanningTree) -> PlacedTree:
    """One tree over ranks on the topology's own routes."""
    nodes = network.nodes
    ranks = np.flatnonzero(tree.parent >= 0)
    ways = network.ways(nodes[tree.parent[ranks]], nodes[ranks])
    return placed_by_stops(network.topology, int(nodes[tree.root]), tree.weight, ways)


def shallow_tree(graph: CapacityGraph, root: int) -> SpanningTree:
    """The out-tree of weight 1 from a rank with the fewest links to every other.

    Over the widest links that allow it. Over ranks alone: switches, and NPUs that only forward,
    lie between.
    """
    depth = np.full(graph.num_nodes, -1, np.int64)
    parent = np.full(graph.num_nodes, -1, np.int64)
    depth[root] = 0
    # Wide arcs first, so that the first arc into a node is the widest.
    order = np.lexsort((graph.source, -graph.capacity))
    for level in range(graph.num_nodes):
        is_outward = (depth[graph.source] == level) & (depth[graph.destination] < 0)
        outward = order[is_outward[order]]
        heads, first = np.unique(graph.destination[outward], return_index=True)
        if not len(heads):
            break
        tails = graph.source[outward[first]]
        depth[heads] = level + 1
        # Behind a switch hangs what the rank before the switch sends.
        parent[heads] = np.where(tails < graph.num_compute, tails, parent[tails])
    arc = np.full(graph.num_compute, -1, np.int64)
    return SpanningTree(root, 1, parent[: graph.num_compute], arc)


def unit_that_fits(
    topology: Topology,
    trees: Sequence[PlacedTree],
    is_up: bool,
) -> Fraction:
    """Bytes per second and weight for which all links have room; `is_up` as in `loads`."""
    bandwidth = exact_bandwidths(topology)
    # A link that is not there has no room.
    nothing = Fraction(0)
    carried = loads(trees, is_up)
    return min(bandwidth.get(pair, nothing) / load for pair, load in carried.items())


def loads(trees: Sequence[PlacedTree], is_up: bool) -> Counter[tuple[int, int]]:
    """By the ends of a link, the weight that it carries.

    Trees load their links, and on the way up, where there is one, the opposite ones.
    """
    load: Counter[tuple[int, int]] = Counter()
    for tree in trees:
        _add_load(load, tree.paths(), tree.weight)
        if is_up:
            # Without another tree, the way up is the same one turned round.
            upward = (tree.up or tree).paths()
            _add_load(load, [path[::-1] for path in upward], tree.weight)
    return load


def _add_load(
    load: Counter[tuple[int, int]],
    paths: Iterable[Stops],
    weight: int,
) -> None:
    """Add a weight to all links of some paths."""
    for path in paths:
        for pair in pairwise(path):
            load[pair] += weight


def exact_bandwidths(topology: Topology) -> dict[tuple[int, int], Fraction]:
    """Bandwidth in bytes/s by the ends of a link; of parallel links the first one stands."""
    bandwidth: dict[tuple[int, int], Fraction] = {}
    for link in topology.links():
        # The shortest decimal text, as in capacities.
        exact = Fraction(repr(link.bandwidth_bytes_per_s))
        bandwidth.setdefault((link.source, link.destination), exact)
    return bandwidth
