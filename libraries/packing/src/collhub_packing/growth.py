"""Pack weighted spanning out-trees, widest first, so that few do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collhub_packing.flows import FlowNetwork
from collhub_packing.graph import CapacityGraph
from collhub_packing.rates import SourcedNetwork
from collhub_packing.trees import SpanningTree
from hub_core.diagnostics import InputError

if TYPE_CHECKING:
    from collhub_packing.kernels import GrowthField


Int64Array = npt.NDArray[np.int64]


def pack_arborescences(
    graph: CapacityGraph, root: int, total: int, *, seeds: int = 8, first_seed: int = 0
) -> list[SpanningTree]:
    """Out-trees from one root of weight `total` together; see `pack_rooted_trees`. `broadcast_rate` is the most."""
    sent = np.zeros(graph.num_compute, np.int64)
    sent[root] = total
    return pack_rooted_trees(graph, sent, seeds=seeds, first_seed=first_seed)


def pack_rooted_trees(
    graph: CapacityGraph, sent: Sequence[int] | Int64Array, *, seeds: int = 8, first_seed: int = 0
) -> list[SpanningTree]:
    """Out-trees within the capacities, those from node v of weight `sent[v]` together, whole weights.

    Trees grow arc by arc, each arc as wide as leaves enough for the rest: one flow per try, at most one try per arc
    and width. Of the packings of `seeds` random orders: the fewest trees, then the least sum of weight times depth.
    Ordered by root, then wide to narrow. Raises `InputError` where the weights do not fit, or for switches.
    """
    weights = np.asarray(sent, np.int64)
    if graph.num_nodes > graph.num_compute:
        raise InputError(
            "trees grow in networks without switches",
            cure="remove the switches first",
            code="switches",
        )
    if SourcedNetwork(graph).shortage(graph.capacity, weights) is not None:
        raise InputError(
            f"trees of weight {int(weights.sum())} do not fit into the network", code="no-room"
        )
    packings = (
        _packing(graph, weights, seed) for seed in range(first_seed, first_seed + max(1, seeds))
    )
    best = min(
        packings, key=lambda trees: (len(trees), sum(tree.weight * tree.depth for tree in trees))
    )
    return sorted(best, key=lambda tree: (tree.root, -tree.weight, tree.depth, tuple(tree.arc)))


def _packing(graph: CapacityGraph, sent: Int64Array, seed: int) -> list[SpanningTree]:
    """One packing in one random order: again and again the widest tree of the root with most to send."""
    from collhub_packing import kernels

    field = _field(graph, sent)
    grown: list[SpanningTree] = []
    while field.unsent.any():
        root = int(np.argmax(field.unsent))
        arc = np.empty(graph.num_nodes, np.int64)
        width = int(kernels.grow_tree(field, root, (seed << 32) + len(grown), arc))
        assert width
        grown.append(SpanningTree(root, width, np.where(arc >= 0, graph.source[arc], -1), arc))
    return grown


def _field(graph: CapacityGraph, sent: Int64Array) -> GrowthField:
    """The network before any tree has grown."""
    from collhub_packing.kernels import GrowthField

    n = graph.num_nodes
    nodes = np.arange(n)
    network = FlowNetwork.of(
        n + 1,
        np.concatenate([graph.source, np.full(n, n)]),
        np.concatenate([graph.destination, nodes]),
    )
    out = np.argsort(graph.source, kind="stable")
    return GrowthField(
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
