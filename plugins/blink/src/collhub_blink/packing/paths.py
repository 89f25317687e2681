"""Scatter and gather: every rank's part goes on paths of its own, at the rate of the weakest cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from collhub_packing import CapacityGraph, FlowNetwork, SpanningTree

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import PlacedTree
from collhub_blink.packing.rank_network import RankNetwork
from collhub_blink.packing.task import PackingTask

Int64Array = npt.NDArray[np.int64]


def path_packings(task: PackingTask) -> list[PlacedPacking]:
    """Paths from the root to every rank for a scatter, or with all links turned round for a gather."""
    network = task.oriented_network
    graph, ranks = network.graph, network.graph.num_compute
    flow = _best_flow(graph, task.root)
    bound = _bound(network, flow)
    paths = sorted(
        _paths(graph, flow, task.root), key=lambda path: (path[0][-1], -path[1], path[0])
    )
    trees = tuple(_placed(network, path, weight) for path, weight in paths)
    targets = tuple(int(network.nodes[path[-1]]) for path, _ in paths)
    # What a path carries for its rank is that part of the collective's rate; the root's own part goes nowhere.
    unit = graph.unit * flow.rate / flow.need
    return [
        PlacedPacking(
            "paths to every rank",
            trees,
            unit,
            bound,
            ranks - 1,
            "every rank but the root needs a path",
            targets,
        )
    ]


def path_bound(task: PackingTask) -> RateBound:
    """What no scatter or gather exceeds."""
    network = task.oriented_network
    return _bound(network, _best_flow(network.graph, task.root))


def _bound(network: RankNetwork, flow: _Flow) -> RateBound:
    # A unit of every rank's rate is as many units of the collective's as there are ranks.
    return RateBound(
        "cut", flow.rate * network.graph.unit * network.graph.num_compute, network.named(flow.cut)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Flow:
    """The largest equal rate to every rank, in units of the graph, its cut, and the flow scaled to whole numbers.

    `need`: what every rank takes of the flow; `amount`: int64 per arc.
    """

    rate: Fraction
    cut: tuple[int, ...]
    need: int
    amount: Int64Array


def _best_flow(graph: CapacityGraph, root: int) -> _Flow:
    """Newton's iteration on cuts: the rate falls to what a violated cut lets through per rank behind it, until all fits."""
    takers = np.asarray([rank for rank in range(graph.num_compute) if rank != root])
    sink = graph.num_nodes
    network = FlowNetwork.of(
        sink + 1,
        np.concatenate([graph.source, takers]),
        np.concatenate([graph.destination, np.full(len(takers), sink)]),
    )
    cut = np.arange(graph.num_nodes) == root
    while True:
        behind = int(np.count_nonzero(~cut[: graph.num_compute]))
        rate = Fraction(
            int(graph.capacity[cut[graph.source] & ~cut[graph.destination]].sum()), behind
        )
        whole = np.concatenate(
            [graph.capacity * rate.denominator, np.full(len(takers), rate.numerator)]
        )
        least = network.least_cut(whole, root, [sink])
        assert least is not None
        if least.value == rate.numerator * len(takers):
            _, left = network.remainder(whole, root, sink)
            flow = np.maximum(whole - left, 0)[: graph.num_arcs]
            return _Flow(rate, tuple(np.flatnonzero(cut).tolist()), rate.numerator, flow)
        cut = least.side[: graph.num_nodes]


def _paths(graph: CapacityGraph, flow: _Flow, root: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Paths of the flow to every rank, the shortest first, and what each carries: at most one per arc and rank."""
    left = flow.amount.copy()
    for rank in range(graph.num_compute):
        needed = 0 if rank == root else flow.need
        while needed:
            arcs = _shortest(graph, left, root, rank)
            amount = min(needed, int(left[arcs].min()))
            left[arcs] -= amount
            needed -= amount
            yield (root, *graph.destination[arcs].tolist()), amount


def _shortest(graph: CapacityGraph, left: Int64Array, root: int, rank: int) -> list[int]:
    """Arcs from the root to a rank on which flow is left, as few as possible."""
    arc_to = np.full(graph.num_nodes, -1, np.int64)
    reached = np.arange(graph.num_nodes) == root
    while not reached[rank]:
        outward = np.flatnonzero((left > 0) & reached[graph.source] & ~reached[graph.destination])
        heads, first = np.unique(graph.destination[outward], return_index=True)
        arc_to[heads] = outward[first]
        reached[heads] = True
    arcs = []
    while rank != root:
        arcs.append(int(arc_to[rank]))
        rank = int(graph.source[arcs[-1]])
    return arcs[::-1]


def _placed(network: RankNetwork, path: tuple[int, ...], weight: int) -> PlacedTree:
    nodes = [int(network.nodes[node]) for node in path]
    npus = network.topology.num_npus
    parent = np.full(network.topology.num_nodes, -1, np.int64)
    stops = {}
    places = [place for place, node in enumerate(nodes) if node < npus]
    for first, last in pairwise(places):
        parent[nodes[last]] = nodes[first]
        if last > first + 1:
            stops[nodes[last]] = tuple(nodes[first : last + 1])
    return PlacedTree(
        SpanningTree(nodes[0], weight, parent, np.full(len(parent), -1, np.int64)), stops
    )
