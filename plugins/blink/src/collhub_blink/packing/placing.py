"""Put trees of a packing on the network: which NPU hands on to which, over which links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from collhub_packing import CapacityGraph, DirectNetwork, SpanningTree

from collhub_blink.packing.rank_network import RankNetwork
from hub_core.topology import Topology

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PlacedTree:
    """A tree over the nodes of the topology; `stops[v]`: the nodes from v's parent to v, both included, where there are more.

    `up`: another tree of this root, of the links turned round, on which an all-reduce is reduced; None for the same way back.
    """

    tree: SpanningTree
    stops: Mapping[int, tuple[int, ...]]
    up: PlacedTree | None = None

    @property
    def weight(self) -> int:
        """As in the packing."""
        return self.tree.weight

    @property
    def depth(self) -> int:
        """Most hops of one way."""
        return max(self.tree.depth, 0 if self.up is None else self.up.depth)

    def paths(self) -> list[tuple[int, ...]]:
        """Nodes of every way from a parent to its child."""
        parents = self.tree.parent.tolist()
        return [
            self.stops.get(node, (parent, node))
            for node, parent in enumerate(parents)
            if parent >= 0
        ]


def placed(
    network: RankNetwork, trees: Sequence[SpanningTree], direct: DirectNetwork, graph: CapacityGraph
) -> tuple[PlacedTree, ...]:
    """Trees over ranks as trees over NPUs; arc a of a tree stands for the arcs `direct.routes[a]` of `graph`.

    An NPU that takes no part and lies on a route hands on as a node of the tree; once it has a chunk, it serves all that
    pass it. Reversed networks give the trees of the reversed links.
    """
    return tuple(_placed(network, tree, direct, graph) for tree in trees)


def _placed(
    network: RankNetwork, tree: SpanningTree, direct: DirectNetwork, graph: CapacityGraph
) -> PlacedTree:
    nodes, topology = network.nodes, network.topology
    parent = np.full(topology.num_nodes, -1, np.int64)
    stops: dict[int, tuple[int, ...]] = {}
    has_chunk = {int(nodes[tree.root])}
    ranks = np.argsort(tree.depths(), kind="stable")
    for rank in ranks[tree.parent[ranks] >= 0].tolist():
        path = [
            int(nodes[tree.parent[rank]]),
            *nodes[graph.destination[list(direct.routes[tree.arc[rank]])]].tolist(),
        ]
        for stop in _new_stops(path, has_chunk, topology.num_npus):
            has_chunk.add(stop[-1])
            parent[stop[-1]] = stop[0]
            if len(stop) > 2:
                stops[stop[-1]] = stop
    return PlacedTree(
        SpanningTree(
            int(nodes[tree.root]), tree.weight, parent, np.full(len(parent), -1, np.int64)
        ),
        stops,
    )


def _new_stops(
    path: Sequence[int], has_chunk: set[int], num_npus: int
) -> Iterator[tuple[int, ...]]:
    """The path from its last NPU that has a chunk on, from NPU to NPU, without circles."""
    places = [place for place, node in enumerate(path) if node < num_npus]
    last_of = {path[place]: place for place in places}
    here = max(place for place in places if path[place] in has_chunk)
    while path[here] != path[-1]:
        there = next(place for place in places if place > here)
        yield tuple(path[here : there + 1])
        here = last_of[path[there]]


def placed_along_routes(
    network: RankNetwork, trees: Sequence[SpanningTree]
) -> tuple[PlacedTree, ...]:
    """Trees over ranks whose messages take the shortest routes, as those of simulators do."""
    topology, nodes = network.topology, network.nodes
    made = []
    for tree in trees:
        ranks = np.flatnonzero(tree.parent >= 0)
        parent = np.full(topology.num_nodes, -1, np.int64)
        parent[nodes[ranks]] = nodes[tree.parent[ranks]]
        routes = topology.routes(parent[nodes[ranks]], nodes[ranks])
        stops = {}
        for place, child in enumerate(nodes[ranks].tolist()):
            rows = routes.links[routes.indptr[place] : routes.indptr[place + 1]]
            if len(rows) > 1:
                stops[child] = (int(parent[child]), *topology.destination[rows].tolist())
        made.append(
            PlacedTree(
                SpanningTree(
                    int(nodes[tree.root]), tree.weight, parent, np.full(len(parent), -1, np.int64)
                ),
                stops,
            )
        )
    return tuple(made)


def shallow_tree(graph: CapacityGraph, root: int) -> SpanningTree:
    """The out-tree of weight 1 from a rank with the least number of links to every other, over the widest that allow it.

    Over ranks alone: switches, and NPUs that only forward, lie between.
    """
    depth = np.full(graph.num_nodes, -1, np.int64)
    parent = np.full(graph.num_nodes, -1, np.int64)
    depth[root] = 0
    order = np.lexsort((graph.source, -graph.capacity))
    for level in range(graph.num_nodes):
        outward = order[
            (depth[graph.source[order]] == level) & (depth[graph.destination[order]] < 0)
        ]
        heads, first = np.unique(graph.destination[outward], return_index=True)
        if not len(heads):
            break
        tails = graph.source[outward[first]]
        depth[heads] = level + 1
        parent[heads] = np.where(tails < graph.num_compute, tails, parent[tails])
    return SpanningTree(
        root, 1, parent[: graph.num_compute], np.full(graph.num_compute, -1, np.int64)
    )


def unit_that_fits(topology: Topology, trees: Sequence[PlacedTree], is_up: bool) -> Fraction:
    """Bytes per second and weight for which all links have room; trees load their links, and on the way up the opposite ones."""
    load: dict[tuple[int, int], int] = {}
    for tree in trees:
        upward = (tree.up or tree).paths() if is_up else []
        for path in [*tree.paths(), *(path[::-1] for path in upward)]:
            for pair in pairwise(path):
                load[pair] = load.get(pair, 0) + tree.weight
    capacity: dict[tuple[int, int], Fraction] = {}
    for link in topology.links():
        capacity.setdefault(
            (link.source, link.destination), Fraction(repr(link.bandwidth_bytes_per_s))
        )
    return min(capacity.get(pair, Fraction(0)) / carried for pair, carried in load.items())
