"""A packing that a collective can run on: trees, what they carry, and what proves that no more is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from collhub_packing.graph import CapacityGraph
from collhub_packing.trees import Tree

__all__ = ["Bound", "Packing", "shallow_tree", "unit_that_fits"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest rate in bytes of the collective per second, and the nodes of the topology that prove it.

    `nodes`: a side of a cut (`cut`, `ingress-cut`); `blocks`: of a `partition`.
    """

    kind: str
    rate: Fraction
    nodes: tuple[int, ...] = ()
    blocks: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Weighted trees over the ranks 0..n-1; a weight of 1 carries `unit` bytes of the collective per second.

    `routes[t]`: for some nodes, the nodes of the network between them and their parent in tree t; empty where all are
    neighbours. `at_least`: no packing of this rate has fewer trees, `reason` says why. `targets[t]`: the only
    rank whose part tree t carries, empty where every tree serves all. `method`: for people.
    """

    method: str
    trees: tuple[Tree, ...]
    unit: Fraction
    bound: Bound
    at_least: int = 1
    reason: str = "a packing has a tree"
    routes: tuple[Mapping[int, tuple[int, ...]], ...] = ()
    targets: tuple[int, ...] = ()

    @property
    def rate(self) -> Fraction:
        """Bytes of the collective per second that all trees carry."""
        return self.unit * sum(tree.weight for tree in self.trees)

    @property
    def depth(self) -> int:
        """Of the deepest tree."""
        return max(tree.depth for tree in self.trees)

    @property
    def is_optimal(self) -> bool:
        """Whether the rate is the bound."""
        return self.rate == self.bound.rate

    @property
    def status(self) -> str:
        """`optimal` where the number of trees is proved to be the least, else `feasible`."""
        return "optimal" if self.at_least == len(self.trees) else "feasible"


def shallow_tree(graph: CapacityGraph, root: int) -> Tree:
    """The out-tree of weight 1 with the least number of hops to every node, over the widest arcs that allow it."""
    depth = np.full(graph.num_nodes, -1, np.int64)
    parent, arc = np.full(graph.num_nodes, -1, np.int64), np.full(graph.num_nodes, -1, np.int64)
    depth[root] = 0
    order = np.lexsort((graph.source, -graph.capacity))
    for level in range(graph.num_nodes):
        outward = order[(depth[graph.source[order]] == level) & (depth[graph.destination[order]] < 0)]
        heads, first = np.unique(graph.destination[outward], return_index=True)
        if not len(heads):
            break
        arc[heads], parent[heads], depth[heads] = outward[first], graph.source[outward[first]], level + 1
    return Tree(root, 1, parent, arc)


def unit_that_fits(graph: CapacityGraph, trees: Sequence[Tree], is_both_ways: bool = False) -> Fraction:
    """The largest rate per weight for which all links have room; `is_both_ways`: trees load the opposite arcs as well."""
    load: dict[tuple[int, int], int] = {}
    for tree in trees:
        for node, parent in enumerate(tree.parent.tolist()):
            if parent >= 0:
                for pair in ((parent, node), (node, parent))[: 1 + is_both_ways]:
                    load[pair] = load.get(pair, 0) + tree.weight
    capacity = {
        (tail, head): value
        for tail, head, value in zip(graph.source.tolist(), graph.destination.tolist(), graph.capacity.tolist(), strict=True)
    }
    return min(Fraction(capacity.get(pair, 0), carried) for pair, carried in load.items()) * graph.unit
