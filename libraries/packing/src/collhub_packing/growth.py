"""Pack weighted spanning out-trees, widest first, so that few trees suffice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from collhub_columns import Int64Array, csr

from collhub_packing.flows import FlowNetwork
from collhub_packing.graph import CapacityGraph
from collhub_packing.rates import SourcedNetwork
from collhub_packing.trees import SpanningTree, cost
from hub_core.model import InputError

if TYPE_CHECKING:
    from collhub_packing.kernels import GrowthField


def pack_arborescences(
    graph: CapacityGraph,
    root: int,
    total: int,
    *,
    seeds: int = 8,
    first_seed: int = 0,
) -> list[SpanningTree]:
    """Pack out-trees from one root with total weight `total`; see `pack_rooted_trees`.

    The maximum is `broadcast_rate`.
    """
    sent = sent_from(graph, root, total)
    return pack_rooted_trees(graph, sent, seeds=seeds, first_seed=first_seed)


def sent_from(graph: CapacityGraph, root: int, total: int) -> Int64Array:
    """Build the weights of a single sender: int64[compute nodes], `total` at `root`, else 0."""
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
    """Pack out-trees within the capacities; those rooted at node v have total weight `sent[v]`.

    Weights are integers. Trees grow arc by arc, each arc as wide as leaves enough for the remaining
    weight: one flow per trial, at most one trial per arc and width (Lovasz 1976; Berczi and Frank
    2010). Of the packings of `seeds` random orders, the one with the fewest trees is returned, then
    the smallest sum of weight times depth. Sorted by root, then decreasing weight. Raises
    `InputError` if the weights do not fit, and for networks with switches.
    """
    weights = np.asarray(sent, np.int64)
    _check_room(graph, weights)
    orders = range(first_seed, first_seed + max(1, seeds))
    best = min((_grow_trees(graph, weights, seed) for seed in orders), key=cost)
    return sorted(best, key=_tree_key)


def _check_room(graph: CapacityGraph, weights: Int64Array) -> None:
    """Raise `InputError` for switches and for weights that do not fit."""
    if graph.has_switches:
        raise _switches_error()
    if SourcedNetwork(graph).shortage(graph.capacity, weights) is not None:
        total = int(weights.sum())
        message = f"trees of weight {total} do not fit into the network"
        raise InputError(message, code="no-room")


def _switches_error() -> InputError:
    """Build the error for a network with switches."""
    return InputError(
        "trees grow in networks without switches",
        cure="remove the switches first",
        code="switches",
    )


def _tree_key(tree: SpanningTree) -> tuple[int, int, int, tuple[int, ...]]:
    """Sort key: root, decreasing weight, depth, arcs."""
    return tree.root, -tree.weight, tree.depth, tuple(tree.arc)


def _grow_trees(graph: CapacityGraph, sent: Int64Array, seed: int) -> list[SpanningTree]:
    """Pack trees in one random order: repeatedly the widest tree of the root with most left to
    send.
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
    """Build the state before the first tree; the kernel changes the copied arrays."""
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
