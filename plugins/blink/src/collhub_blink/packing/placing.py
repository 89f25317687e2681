"""Place the trees of a packing on the topology: which NPU forwards to which, over which links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise

import numpy as np
from collhub_packing import CapacityGraph, DirectNetwork, SpanningTree

from collhub_blink.packing.task import RankNetwork
from hub_core.network import Topology

Stops = tuple[int, ...]
"""Nodes on the route from one NPU to another, both included."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedTree:
    """A tree over the nodes of the topology.

    `stops[v]`: the nodes from v's parent to v, both included; no entry if there is a direct link.
    `up`: tree of the same root in the reversed network on which an all-reduce reduces; None if it
    reduces up this tree.
    """

    tree: SpanningTree
    stops: Mapping[int, Stops]
    up: PlacedTree | None = None

    @property
    def content(self) -> tuple[object, ...]:
        """Root, weight, parents and routes; equal trees have equal contents.

        The class itself compares by identity. An `up` tree is included, arcs are not.
        """
        up = None if self.up is None else self.up.content
        stops = tuple(sorted(self.stops.items()))
        return self.tree.root, self.weight, tuple(self.tree.parent.tolist()), stops, up

    @property
    def weight(self) -> int:
        """Weight of the tree in its packing."""
        return self.tree.weight

    @property
    def depth(self) -> int:
        """Return the number of edges on the longest path from the root to a leaf; 0 for one node.

        An edge from parent to child counts as one, also if its route has several links. With an
        `up` tree, the larger depth of both trees is returned.
        """
        upward = 0 if self.up is None else self.up.depth
        return max(self.tree.depth, upward)

    def paths(self) -> list[Stops]:
        """Return the routes from parents to their children, in ascending order of the children.

        A route is the tuple of its nodes, from parent to child; without a recorded route it is
        (parent, child). The list is empty for a root without children. An `up` tree is not
        included.
        """
        paths = []
        for node, parent in enumerate(self.tree.parent.tolist()):
            if parent >= 0:
                paths.append(self.stops.get(node, (parent, node)))
        return paths


def build_placed_tree(
    topology: Topology,
    root: int,
    weight: int,
    routes: Iterable[Stops],
) -> PlacedTree:
    """Build a tree in which the last node of every route is a child of the first node.

    `routes`: nodes from parent to child, both included; the last route of a child counts. A
    route of more than two nodes is stored as the stops of the child. Nodes without a route
    have no parent (-1). The arcs of the tree are -1. Whether the routes form a tree is not
    checked.
    """
    parent = np.full(topology.num_nodes, -1, np.int64)
    stops: dict[int, Stops] = {}
    for route in routes:
        parent[route[-1]] = route[0]
        stops.pop(route[-1], None)
        if len(route) > 2:
            stops[route[-1]] = route
    # The edges of the tree are not arcs of a graph.
    arc = np.full(topology.num_nodes, -1, np.int64)
    return PlacedTree(SpanningTree(root, weight, parent, arc), stops)


def place_trees(
    network: RankNetwork,
    trees: Sequence[SpanningTree],
    direct: DirectNetwork,
    graph: CapacityGraph,
) -> tuple[PlacedTree, ...]:
    """Convert trees over ranks to trees over NPUs.

    Arc a of a tree is the sequence `direct.routes[a]` of arcs of `graph`. An idle NPU on a route
    becomes a node of the tree that forwards; an NPU that has a chunk serves all later routes
    through it. In a reversed network the trees are those of the reversed links.
    """
    return tuple(_place_tree(network, tree, direct, graph) for tree in trees)


def _place_tree(
    network: RankNetwork,
    tree: SpanningTree,
    direct: DirectNetwork,
    graph: CapacityGraph,
) -> PlacedTree:
    """Convert a tree over ranks to a tree over NPUs of the topology.

    Root and weight are kept; the arcs of the result are -1. The ranks except the root are added by
    ascending depth, ties by number. A rank is reached from its parent along a route: the arcs of
    `graph` that `direct` lists for the arc of the tree. It may pass switches, and NPUs that
    forward.

    Only the part after the last NPU of the route that already has the chunk is added, without its
    cycles, so no NPU gets the chunk twice. Each NPU on the part becomes a child of the NPU before
    it; the switches in between are its `stops`.
    """
    nodes = network.nodes
    root = int(nodes[tree.root])
    segments: list[Stops] = []
    has_chunk = {root}
    ranks = np.argsort(tree.depths, kind="stable")
    # Parents before children: a route may begin at any NPU on it that has the chunk already.
    for rank in ranks[tree.parent[ranks] >= 0].tolist():
        route = list(direct.routes[tree.arc[rank]])
        passed = nodes[graph.destination[route]].tolist()
        path = [int(nodes[tree.parent[rank]]), *passed]
        for segment in _generate_new_segments(path, has_chunk, network.topology.num_npus):
            has_chunk.add(segment[-1])
            segments.append(segment)
    return build_placed_tree(network.topology, root, tree.weight, segments)


def _generate_new_segments(
    path: Sequence[int], has_chunk: set[int], num_npus: int
) -> Iterator[Stops]:
    """Yield the parts of a route that must still carry a chunk, in the order of the route.

    `path`: nodes of the route; those below `num_npus` are NPUs, the last one must be an NPU.
    `has_chunk`: NPUs that have the chunk; the caller may add to it during the iteration.

    A part is a tuple of nodes: an NPU, the switches after it, and the next NPU. The first
    part begins at the last NPU of `path` that has the chunk. If an NPU occurs several times,
    the next part begins at its last occurrence, so that cycles are skipped. There are no parts
    if the last node has the chunk. Raise `ValueError` if no NPU of the route has it.
    """
    positions = [position for position, node in enumerate(path) if node < num_npus]
    last_of = {path[position]: position for position in positions}
    # The parent, or a later NPU of the path that has the chunk from another path.
    begin = max(position for position in positions if path[position] in has_chunk)
    while path[begin] != path[-1]:
        end = next(position for position in positions if position > begin)
        yield tuple(path[begin : end + 1])
        # If the node occurs again later, the nodes in between form a cycle: skip them.
        begin = last_of[path[end]]


def place_along_routes(
    network: RankNetwork,
    trees: Sequence[SpanningTree],
) -> tuple[PlacedTree, ...]:
    """Place trees over ranks on the topology's shortest routes, as simulators route messages.

    The root of a tree becomes the NPU of its rank; the weight stays, and the arcs are -1. The route
    of every edge is that of `RankNetwork.find_routes`. Raise `InputError` (`disconnected`) for an
    edge without a path.
    """
    nodes = network.nodes
    placed: list[PlacedTree] = []
    for tree in trees:
        ranks = np.flatnonzero(tree.parent >= 0)
        routes = network.find_routes(nodes[tree.parent[ranks]], nodes[ranks])
        root = int(nodes[tree.root])
        placed.append(build_placed_tree(network.topology, root, tree.weight, routes))
    return tuple(placed)


def build_shallow_tree(graph: CapacityGraph, root: int) -> SpanningTree:
    """Build the tree of weight 1 from a rank that reaches every other rank over the fewest links.

    Of several shortest routes to a node, the one whose last link is the widest is used, then the
    one from the lowest node. Nodes of the tree are ranks only: the parent of a rank is the last
    rank before it on the route, over switches and idle NPUs. Ranks that cannot be reached have no
    parent. The arcs of the tree are -1.
    """
    depth = np.full(graph.num_nodes, -1, np.int64)
    parent = np.full(graph.num_nodes, -1, np.int64)
    depth[root] = 0
    # Wide arcs first: the first arc into a node is the widest.
    order = np.lexsort((graph.source, -graph.capacity))
    for level in range(graph.num_nodes):
        is_outward = (depth[graph.source] == level) & (depth[graph.destination] < 0)
        outward = order[is_outward[order]]
        heads, first = np.unique(graph.destination[outward], return_index=True)
        if not len(heads):
            break
        tails = graph.source[outward[first]]
        depth[heads] = level + 1
        # The parent of a node after a switch is the rank that sends to the switch.
        parent[heads] = np.where(tails < graph.num_compute, tails, parent[tails])
    arc = np.full(graph.num_compute, -1, np.int64)
    return SpanningTree(root, 1, parent[: graph.num_compute], arc)


def compute_unit(
    topology: Topology,
    trees: Sequence[PlacedTree],
    is_up: bool,
) -> Fraction:
    """Compute the largest unit, in bytes/s per weight, at which the trees fit on all links.

    It is the minimum over the links of bandwidth divided by the total weight of the trees
    on the link (`compute_loads`). With `is_up` the trees also carry a reduction. The result
    is 0 if a tree uses a pair of nodes without a link. Raise `ValueError` if no tree has an
    edge.
    """
    bandwidth = collect_exact_bandwidths(topology)
    missing = Fraction(0)
    load_of = compute_loads(trees, is_up)
    return min(bandwidth.get(pair, missing) / load for pair, load in load_of.items())


def compute_loads(trees: Sequence[PlacedTree], is_up: bool) -> Counter[tuple[int, int]]:
    """Return the total weight of the trees on every link, by (source, destination).

    A tree loads each link of its routes, from parent to child. With `is_up` there is also a
    reduction: each tree loads, with the same weight, the reverse links of its `up` tree, or
    of itself if it has none. Unused links are missing. Parallel links count as one.
    """
    load: Counter[tuple[int, int]] = Counter()
    for tree in trees:
        paths = tree.paths()
        if is_up:
            # Without a separate tree the reduction takes the same routes backwards.
            paths += [path[::-1] for path in (tree.up or tree).paths()]
        for pair in chain.from_iterable(map(pairwise, paths)):
            load[pair] += tree.weight
    return load


def collect_exact_bandwidths(topology: Topology) -> dict[tuple[int, int], Fraction]:
    """Return the bandwidth in bytes/s of every (source, destination) as a fraction.

    It is the value of the float's shortest decimal text: 0.1 gives 1/10. Of parallel links, only
    the first in the order of the topology counts. Pairs without a link are missing; the keys are in
    the order of the links.
    """
    bandwidth: dict[tuple[int, int], Fraction] = {}
    for link in topology.links():
        # The shortest decimal text of the float, as in the capacities of a graph.
        exact = Fraction(repr(link.bandwidth_bytes_per_s))
        bandwidth.setdefault((link.source, link.destination), exact)
    return bandwidth
