"""Weighted spanning out-trees of a network: what every packing consists of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Tree"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """An out-tree that spans the compute nodes: node v hangs at `parent[v]` over arc `arc[v]` of its graph.

    `parent`, `arc`: int64 per node, -1 at the root and at nodes outside. `weight`: capacity that it takes of each
    of its arcs, in the units of the graph.
    """

    root: int
    weight: int
    parent: Int64Array
    arc: Int64Array

    def depths(self) -> Int64Array:
        """Arcs from the root to every node; -1 outside the tree."""
        depth = np.full(len(self.parent), -1, np.int64)
        depth[self.root] = 0
        waiting = np.flatnonzero(self.parent >= 0)
        while len(waiting):
            reached = depth[self.parent[waiting]] >= 0
            depth[waiting[reached]] = depth[self.parent[waiting[reached]]] + 1
            if not reached.any():
                break
            waiting = waiting[~reached]
        return depth

    @property
    def depth(self) -> int:
        """Arcs from the root to the farthest node."""
        return int(self.depths().max(initial=0))
