"""Weighted spanning out-trees of a network, and packings of them, widest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from collhub_packing.flows import FlowNetwork
from collhub_packing.graph import CapacityGraph
from collhub_packing.rates import SourcedNetwork
from hub_core.columns import Int64Array, csr
from hub_core.model import InputError

if TYPE_CHECKING:
    from collhub_packing.kernels import GrowthField


# Without slots, so that depths are computed once: every schedule reads them.
@dataclass(frozen=True, eq=False)
class SpanningTree:
    """An out-tree that spans the compute nodes: `parent[v]` sends to node v over arc `arc[v]`.

    `parent`, `arc`: int64[nodes], -1 at the root and at nodes outside. `weight`: capacity that it
    uses on each of its arcs, in units of the graph.
    """

    root: int
    weight: int
    parent: Int64Array
    arc: Int64Array

    @cached_property
    def depths(self) -> Int64Array:
        """Return the number of arcs from the root to every node; int64[nodes].

        It is 0 at the root and -1 outside the tree. Nodes whose parents do not lead to the root, as
        in a cycle, are outside.
        """
        depth = np.full(len(self.parent), -1, np.int64)
        depth[self.root] = 0
        waiting = np.flatnonzero(self.parent >= 0)
        while len(waiting):
            is_reached = depth[self.parent[waiting]] >= 0
            reached = waiting[is_reached]
            # The remaining nodes have no path from the root, as in a cycle.
            if not len(reached):
                break
            # Level by level, since parents may have higher numbers than their children.
            depth[reached] = depth[self.parent[reached]] + 1
            waiting = waiting[~is_reached]
        return depth

    @property
    def depth(self) -> int:
        """Number of arcs from the root to the most distant node."""
        return int(self.depths.max(initial=0))

    def rerooted(self, root: int, opposite: Int64Array) -> SpanningTree:
        """Return the tree with the same links, but with another of its nodes as the root.

        Only the links between both roots change their direction. `opposite[a]`: the reverse arc of
        arc a. This tree is not changed.
        """
        parent, arc = self.parent.copy(), self.arc.copy()
        node = root
        # Only the links between the old and the new root change their direction.
        while node != self.root:
            above = int(self.parent[node])
            parent[above] = node
            arc[above] = opposite[self.arc[node]]
            node = above
        parent[root] = arc[root] = -1
        return SpanningTree(root, self.weight, parent, arc)

    def centre(self, opposite: Int64Array) -> int:
        """Return the node at which the tree has the smallest depth if it is the root.

        It is the middle of a longest path. One end of the path is the node farthest from the
        root (Jordan 1869); the other is the node farthest from this end. Of equally far nodes,
        the lowest number is used. If the path has two middle nodes, the one nearer to the
        second end is returned. A single node is its own centre. `opposite[a]`: the reverse arc
        of arc a. The tree is not changed.
        """
        end = int(np.argmax(self.depths))
        longest = self.rerooted(end, opposite)
        depths = longest.depths
        node = int(np.argmax(depths))
        # Go back half of the longest path.
        for _ in range(int(depths[node]) // 2):
            node = int(longest.parent[node])
        return node


def cost(trees: Iterable[SpanningTree]) -> tuple[int, int]:
    """Return the cost of a packing: (number of trees, sum of weight * depth); the lowest is best.

    It is (0, 0) without trees.
    """
    packing = list(trees)
    return len(packing), sum(tree.weight * tree.depth for tree in packing)


def pack_arborescences(
    graph: CapacityGraph,
    root: int,
    total: int,
    *,
    seeds: int = 8,
    first_seed: int = 0,
) -> list[SpanningTree]:
    """Pack trees from one root to all nodes, with the total weight `total`; the widest tree first.

    `total` must not exceed `broadcast_rate`; 0 gives no trees. Trees of equal weight are sorted
    by lower depth, then by arcs. `seeds` random orders are tried, from `first_seed` on, and the
    best packing is returned (`pack_rooted_trees`). Raise `InputError` for networks with
    switches (`switches`), and if the weight does not fit (`no-room`).
    """
    sent = sent_from(graph, root, total)
    return pack_rooted_trees(graph, sent, seeds=seeds, first_seed=first_seed)


def sent_from(graph: CapacityGraph, root: int, total: int) -> Int64Array:
    """Return the weights that each compute node sends if `root` is the only sender.

    int64[compute nodes]: `total` at `root`, else 0.
    """
    sent = np.zeros(graph.num_compute, np.int64)
    sent[root] = total
    return sent


def pack_rooted_trees(
    graph: CapacityGraph,
    sent: Sequence[int] | Int64Array,
    *,
    seeds: int = 8,
    first_seed: int = 0,
) -> list[SpanningTree]:
    """Return spanning trees of which those rooted at node v have the total weight `sent[v]`.

    Each tree leads from its root to all nodes and has an integer weight of at least 1. All trees
    together stay within the capacities of the arcs. `sent`: one weight per node; if all are 0, the
    list is empty.

    One packing is made for each of `seeds` random orders (at least one), numbered from `first_seed`
    (`_grow_trees`). The one with the fewest trees is returned. Of several it is the one with the
    smallest sum of weight times depth, then the first. Its trees are sorted by root, then larger
    weight, lower depth and arcs.

    Trees grow arc by arc; each arc must leave enough capacity for the remaining weight (Lovasz
    1976; Berczi and Frank 2010), which needs one flow per trial. Raises `InputError` for networks
    with switches (`switches`), then if the weights do not fit (`no-room`).
    """
    weights = np.asarray(sent, np.int64)
    if graph.has_switches:
        raise InputError(
            "trees grow in networks without switches",
            cure="remove the switches first",
            code="switches",
        )
    if SourcedNetwork(graph).shortage(graph.capacity, weights) is not None:
        total = int(weights.sum())
        message = f"trees of weight {total} do not fit into the network"
        raise InputError(message, code="no-room")
    orders = range(first_seed, first_seed + max(1, seeds))
    best = min((_grow_trees(graph, weights, seed) for seed in orders), key=cost)
    return sorted(best, key=lambda tree: (tree.root, -tree.weight, tree.depth, tuple(tree.arc)))


def _grow_trees(graph: CapacityGraph, sent: Int64Array, seed: int) -> list[SpanningTree]:
    """Return trees that send all weights, in the order in which they were packed.

    `sent`: total weight of the trees of each root; [] if all are 0. The next tree has the root with
    the most unsent weight, of equal ones the lowest. Its weight is the unsent weight of the root,
    or less if the capacities do not suffice. Capacity for the unsent weights of all other roots is
    reserved.

    Arcs are tried by descending capacity; `seed` and the number of the tree determine the order of
    equal ones. The arguments are not changed. The weights must fit, otherwise `AssertionError`.
    """
    from collhub_packing import kernels

    field = _build_field(graph, sent)
    trees: list[SpanningTree] = []
    while field.unsent.any():
        # The root with most left to send is first: its tree may take the widest arcs.
        root = int(np.argmax(field.unsent))
        arc = np.empty(graph.num_nodes, np.int64)
        # Every tree has its own random order.
        salt = (seed << 32) + len(trees)
        width = int(kernels.grow_tree(field, root, salt, arc))
        assert width
        parent = np.where(arc >= 0, graph.source[arc], -1)
        trees.append(SpanningTree(root, width, parent, arc))
    return trees


def _build_field(graph: CapacityGraph, sent: Int64Array) -> GrowthField:
    """Return the state from which the kernel grows trees; arrays that it modifies are copied.

    The flow network of the state is the graph with an additional source node. A wire, i.e. an edge
    of this network, joins all arcs with the same ends; further wires lead from the source to every
    node. `residual`: remaining capacity per wire, at first the total of its arcs, and `sent[v]` for
    the wire from the source to node v. `place` and `feed` give the wire of each arc and of each
    node. `unsent` is a copy of `sent`. `out` lists the arcs by the node that they leave; `first` is
    the position of each node's first arc in it.

    Raises `InputError` if capacities and `sent` add up to 2^60 or more.
    """
    from collhub_packing.kernels import GrowthField

    n = graph.num_nodes
    network = FlowNetwork.fed(n, graph.source, graph.destination, np.arange(n))
    first, out = csr(graph.source, np.arange(graph.num_arcs), n)
    return GrowthField(
        wires=network.wires,
        place=network.place[: graph.num_arcs],
        source=graph.source.copy(),
        destination=graph.destination.copy(),
        first=first,
        out=out,
        feed=network.place[graph.num_arcs :],
        capacity=graph.capacity.copy(),
        unsent=sent.copy(),
        residual=network.residual(np.concatenate([graph.capacity, sent])),
    )
