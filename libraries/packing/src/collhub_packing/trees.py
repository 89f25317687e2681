"""Weighted spanning out-trees of a network, the elements of a packing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from collhub_columns import Int64Array


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
        """Number of arcs from the root to every node: int64[nodes], -1 outside the tree."""
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
        """Return the same links as an out-tree from another node.

        `opposite[a]`: the reverse arc of arc a.
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
        """Find the root at which the undirected tree has minimum depth: the middle of a longest
        path.

        The node with the greatest distance from any node is an end of a longest path (Jordan 1869),
        whose other end has the greatest distance from it. `opposite[a]`: the reverse arc of arc a.
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
    """Cost by which packings are compared: number of trees, then sum of weight times depth."""
    packing = list(trees)
    return len(packing), sum(tree.weight * tree.depth for tree in packing)
