"""Weighted spanning out-trees of a network: what every packing consists of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from collhub_columns import Int64Array


# Without slots, so that depths are found once: a tree is asked for them at every schedule.
@dataclass(frozen=True, eq=False)
class SpanningTree:
    """An out-tree that spans the compute nodes: node v hangs at `parent[v]` over arc `arc[v]`.

    `parent`, `arc`: int64 per node, -1 at the root and at nodes outside. `weight`: capacity that
    it takes of each of its arcs, in the units of the graph.
    """

    root: int
    weight: int
    parent: Int64Array
    arc: Int64Array

    @cached_property
    def depths(self) -> Int64Array:
        """Arcs from the root to every node; -1 outside the tree."""
        depth = np.full(len(self.parent), -1, np.int64)
        depth[self.root] = 0
        waiting = np.flatnonzero(self.parent >= 0)
        while len(waiting):
            is_reached = depth[self.parent[waiting]] >= 0
            reached = waiting[is_reached]
            # The rest hangs at no node of the tree, as in a circle.
            if not len(reached):
                break
            # Level by level, since parents may stand behind their children.
            depth[reached] = depth[self.parent[reached]] + 1
            waiting = waiting[~is_reached]
        return depth

    @property
    def depth(self) -> int:
        """Arcs from the root to the farthest node."""
        return int(self.depths.max(initial=0))

    def rerooted(self, root: int, opposite: Int64Array) -> SpanningTree:
        """The same links as an out-tree from another node.

        `opposite[a]` is the arc that leads back along arc a.
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
        """The node from which the undirected tree is least deep: the middle of its longest path.

        The node farthest from any node is an end of a longest path (Jordan 1869), which the
        distances from it then show.
        """
        end = int(np.argmax(self.depths))
        longest = self.rerooted(end, opposite)
        depths = longest.depths
        node = int(np.argmax(depths))
        # Half of the way back.
        for _ in range(int(depths[node]) // 2):
            node = int(longest.parent[node])
        return node


def cost(trees: Iterable[SpanningTree]) -> tuple[int, int]:
    """By what packings are compared: number of trees, then sum of weight times depth."""
    found = list(trees)
    return len(found), sum(tree.weight * tree.depth for tree in found)
