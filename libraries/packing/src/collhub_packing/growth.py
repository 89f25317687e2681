"""Pack weighted spanning out-trees, widest first, so that few do."""

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
    """Out-trees from one root of weight `total` together; see `pack_rooted_trees`.

    The most that fits is `broadcast_rate`.
    """
    sent = sent_from(graph, root, total)
    return pack_rooted_trees(graph, sent, seeds=seeds, first_seed=first_seed)


def sent_from(graph: CapacityGraph, root: int, total: int) -> Int64Array:
    """What every compute node sends where one alone does: int64[compute nodes]."""
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
    """Out-trees within the capacities, those from node v of weight `sent[v]` together.

    Weights are whole. Trees grow arc by arc, each arc as wide as leaves enough for the rest: one
    flow per try, at most one try per arc and width (Lovasz 1976; Berczi and Frank 2010). Of the
    packings of `seeds` random orders: the fewest trees, then the least sum of weight times depth.
    Ordered by root, then wide to narrow. Raises `InputError` where the weights do not fit, or for
    switches.
    """
    weights = np.asarray(sent, np.int64)
    _check(graph, weights)
    orders = range(first_seed, first_seed + max(1, seeds))
    best = min((_grown(graph, weights, seed) for seed in orders), key=cost)
    return sorted(best, key=_by_root_and_width)


def _check(graph: CapacityGraph, weights: Int64Array) -> None:
    """Refuse what cannot be packed."""
    if graph.has_switches:
        raise _with_switches()
    if SourcedNetwork(graph).shortage(graph.capacity, weights) is not None:
        total = int(weights.sum())
        message = f"trees of weight {total} do not fit into the network"
        raise InputError(message, code="no-room")


def _with_switches() -> InputError:
    return InputError(
        "trees grow in networks without switches",
        cure="remove the switches first",
        code="switches",
    )


def _by_root_and_width(tree: SpanningTree) -> tuple[int, int, int, tuple[int, ...]]:
    return tree.root, -tree.weight, tree.depth, tuple(tree.arc)


def _grown(graph: CapacityGraph, sent: Int64Array, seed: int) -> list[SpanningTree]:
    """The packing of one random order.

    Again and again the widest tree of the root with most to send.
    """
    from collhub_packing import kernels

    field = _field(graph, sent)
    grown: list[SpanningTree] = []
    while field.unsent.any():
        # Who has most to send first: its tree may take the widest arcs.
        root = int(np.argmax(field.unsent))
        arc = np.empty(graph.num_nodes, np.int64)
        # Every tree has an order of its own.
        salt = (seed << 32) + len(grown)
        width = int(kernels.grow_tree(field, root, salt, arc))
        assert width
        parent = np.where(arc >= 0, graph.source[arc], -1)
        grown.append(SpanningTree(root, width, parent, arc))
    return grown


def _field(graph: CapacityGraph, sent: Int64Array) -> GrowthField:
    """The network before any tree has grown; the kernel changes the copies."""
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
