"""Pack weighted spanning out-trees, widest first, so that few do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collhub_packing.flows import FlowNetwork
from collhub_packing.graph import CapacityGraph
from collhub_packing.rates import SourcedNetwork
from collhub_packing.trees import Tree
from hub_core.diagnostics import InputError

if TYPE_CHECKING:
    from collhub_packing.kernels import Field

__all__ = ["pack_arborescences", "pack_rooted_trees"]

Int64Array = npt.NDArray[np.int64]

# A width that fails is tried no more than so often, at lesser widths, before the tree narrows as it grows.
_TRIES = 16


def pack_arborescences(graph: CapacityGraph, root: int, total: int, *, seeds: int = 8, first_seed: int = 0) -> list[Tree]:
    """Out-trees from one root of weight `total` together; see `pack_rooted_trees`. `broadcast_rate` is the most."""
    sent = np.zeros(graph.num_compute, np.int64)
    sent[root] = total
    return pack_rooted_trees(graph, sent, seeds=seeds, first_seed=first_seed)


def pack_rooted_trees(
    graph: CapacityGraph, sent: Sequence[int] | Int64Array, *, seeds: int = 8, first_seed: int = 0
) -> list[Tree]:
    """Out-trees within the capacities, those from node v of weight `sent[v]` together, whole weights.

    Trees grow arc by arc, each arc as wide as leaves enough for the rest: one flow per try, at most one try per arc
    and width. Of the packings of `seeds` random orders: the fewest trees, then the least sum of weight times depth.
    Ordered by root, then wide to narrow. Raises `InputError` where the weights do not fit, or for switches.
    """
    weights = np.asarray(sent, np.int64)
    if graph.num_nodes > graph.num_compute:
        raise InputError("trees grow in networks without switches", cure="remove the switches first", code="switches")
    if SourcedNetwork(graph).shortage(graph.capacity, weights) is not None:
        raise InputError(f"trees of weight {int(weights.sum())} do not fit into the network", code="no-room")
    packings = (_Packing(graph, weights, seed).trees() for seed in range(first_seed, first_seed + max(1, seeds)))
    best = min(packings, key=lambda trees: (len(trees), sum(tree.weight * tree.depth for tree in trees)))
    return sorted(best, key=lambda tree: (tree.root, -tree.weight, tree.depth, tuple(tree.arc)))


@dataclass(slots=True)
class _Packing:
    """One packing in one random order."""

    graph: CapacityGraph
    sent: Int64Array
    seed: int

    def trees(self) -> list[Tree]:
        """Grow the widest tree that any root may have, again and again."""
        field = _field(self.graph, self.sent)
        most = self.sent.copy()
        grown: list[Tree] = []
        failures = 0
        while field.unsent.any():
            np.minimum(most, field.unsent, out=most)
            root = int(np.argmax(most))
            tree, narrower = self._grow(field, root, int(most[root]), failures >= _TRIES)
            if tree is None:
                most[root] = narrower
                failures += 1
            else:
                grown.append(tree)
                failures = 0
        return grown

    def _grow(self, field: Field, root: int, width: int, narrows: bool) -> tuple[Tree | None, int]:
        """A tree of at most this width, or None and the next width to try."""
        from collhub_packing import kernels

        arc = np.empty(self.graph.num_nodes, np.int64)
        salt = (self.seed << 32) + int(field.unsent.sum())
        found = int(kernels.grow_tree(field, root, width, salt, narrows, arc))
        if found <= 0:
            return None, -found
        parent = np.where(arc >= 0, self.graph.source[arc], -1)
        return Tree(root, found, parent, arc), 0


def _field(graph: CapacityGraph, sent: Int64Array) -> Field:
    """The network before any tree has grown."""
    from collhub_packing.kernels import Field

    n = graph.num_nodes
    nodes = np.arange(n)
    network = FlowNetwork.of(n + 1, np.concatenate([graph.source, np.full(n, n)]), np.concatenate([graph.destination, nodes]))
    out = np.argsort(graph.source, kind="stable")
    return Field(
        network.wires,
        network.place[: graph.num_arcs],
        graph.source.copy(),
        graph.destination.copy(),
        np.searchsorted(graph.source[out], np.arange(n + 1)).astype(np.int64),
        out,
        network.place[graph.num_arcs :],
        graph.capacity.copy(),
        sent.copy(),
        network.residual(np.concatenate([graph.capacity, sent])),
    )
