"""Scatter and gather: every rank's part goes on paths of its own, at the rate of the weakest cut.

One flow from the root that brings every rank as much as every other, cut into paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from collhub_columns import BoolArray, Int64Array
from collhub_packing import CapacityGraph, FlowNetwork

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import PlacedTree, placed_by_stops
from collhub_blink.packing.rank_network import RankNetwork
from collhub_blink.packing.task import PackingTask

_Path = tuple[int, ...]


def path_packings(task: PackingTask) -> list[PlacedPacking]:
    """Paths from the root to every rank for a scatter; all links turned round for a gather."""
    network = task.oriented_network
    graph = network.graph
    flow = _best_flow(graph, task.root)
    paths = sorted(_paths(graph, flow, task.root), key=_by_target_and_width)
    packing = PlacedPacking(
        method="paths to every rank",
        trees=tuple(_placed(network, path, weight) for path, weight in paths),
        # What a path carries for its rank is that part of the collective's rate; the root's own
        # part goes nowhere.
        unit=graph.unit * flow.rate / flow.need,
        bound=_bound(network, flow),
        at_least=graph.num_compute - 1,
        reason="every rank but the root needs a path",
        targets=tuple(int(network.nodes[path[-1]]) for path, _ in paths),
    )
    return [packing]


def _by_target_and_width(found: tuple[_Path, int]) -> tuple[int, int, _Path]:
    path, weight = found
    return path[-1], -weight, path


def path_bound(task: PackingTask) -> RateBound:
    """What no scatter or gather exceeds."""
    network = task.oriented_network
    return _bound(network, _best_flow(network.graph, task.root))


def _bound(network: RankNetwork, flow: _Flow) -> RateBound:
    # A unit of every rank's rate is as many units of the collective's as there are ranks.
    rate = flow.rate * network.graph.unit * network.graph.num_compute
    return RateBound("cut", rate, network.named(flow.cut))


@dataclass(frozen=True, slots=True, eq=False)
class _Flow:
    """The largest equal rate to every rank, in units of the graph, its cut, and the flow.

    Scaled to whole numbers. `need`: what every rank takes of the flow; `amount`: int64 per arc.
    """

    rate: Fraction
    cut: tuple[int, ...]
    need: int
    amount: Int64Array


def _best_flow(graph: CapacityGraph, root: int) -> _Flow:
    """The flow of the best rate, by Newton's iteration on cuts (Dinkelbach 1967).

    The rate falls to what a violated cut lets through per rank behind it, until all fits.
    """
    network, takers = _drained(graph, root)
    sink = graph.num_nodes
    # To begin with, what leaves the root is all that is known to be a limit.
    cut = np.arange(graph.num_nodes) == root
    while True:
        rate = _rate_through(graph, cut)
        needs = np.full(len(takers), rate.numerator)
        whole = np.concatenate([graph.capacity * rate.denominator, needs])
        least = network.least_cut(whole, root, [sink])
        assert least is not None
        if least.value == rate.numerator * len(takers):
            _, left = network.remainder(whole, root, sink)
            # Flow against an arc leaves more than its capacity: that is the opposite arc's flow.
            flow = np.maximum(whole - left, 0)[: graph.num_arcs]
            return _Flow(rate, tuple(np.flatnonzero(cut).tolist()), rate.numerator, flow)
        cut = least.side[: graph.num_nodes]


def _drained(graph: CapacityGraph, root: int) -> tuple[FlowNetwork, Int64Array]:
    """The network with one more node, which takes from all ranks but the root, and these ranks."""
    takers = np.asarray([rank for rank in range(graph.num_compute) if rank != root])
    drains = np.full(len(takers), graph.num_nodes)
    network = FlowNetwork.of(
        graph.num_nodes + 1,
        np.concatenate([graph.source, takers]),
        np.concatenate([graph.destination, drains]),
    )
    return network, takers


def _rate_through(graph: CapacityGraph, cut: BoolArray) -> Fraction:
    """What leaves the nodes of a cut per rank behind it."""
    is_leaving = cut[graph.source] & ~cut[graph.destination]
    behind = np.count_nonzero(~cut[: graph.num_compute])
    return Fraction(int(graph.capacity[is_leaving].sum()), int(behind))


def _paths(graph: CapacityGraph, flow: _Flow, root: int) -> Iterator[tuple[_Path, int]]:
    """Paths of the flow to every rank, the shortest first, and what each carries.

    At most one per arc and rank.
    """
    left = flow.amount.copy()
    for rank in range(graph.num_compute):
        needed = 0 if rank == root else flow.need
        while needed:
            arcs = _shortest(graph, left, root, rank)
            # Every path uses up an arc, or what the rank needs.
            amount = min(needed, int(left[arcs].min()))
            left[arcs] -= amount
            needed -= amount
            yield (root, *graph.destination[arcs].tolist()), amount


def _shortest(graph: CapacityGraph, left: Int64Array, root: int, rank: int) -> list[int]:
    """Arcs from the root to a rank on which flow is left, as few as possible."""
    arc_to = _arcs_towards(graph, left, root, rank)
    arcs = []
    while rank != root:
        arcs.append(int(arc_to[rank]))
        rank = int(graph.source[arcs[-1]])
    return arcs[::-1]


def _arcs_towards(graph: CapacityGraph, left: Int64Array, root: int, rank: int) -> Int64Array:
    """The last arc of a shortest path to every node up to a rank: int64[nodes]."""
    arc_to = np.full(graph.num_nodes, -1, np.int64)
    reached = np.arange(graph.num_nodes) == root
    while not reached[rank]:
        # Breadth first, so that the path is a shortest one.
        is_outward = (left > 0) & reached[graph.source] & ~reached[graph.destination]
        outward = np.flatnonzero(is_outward)
        heads, first = np.unique(graph.destination[outward], return_index=True)
        arc_to[heads] = outward[first]
        reached[heads] = True
    return arc_to


def _placed(network: RankNetwork, path: _Path, weight: int) -> PlacedTree:
    """A path as a tree, from NPU to NPU."""
    nodes = [int(network.nodes[node]) for node in path]
    places = [place for place, node in enumerate(nodes) if node < network.topology.num_npus]
    ways = [tuple(nodes[first : last + 1]) for first, last in pairwise(places)]
    return placed_by_stops(network.topology, nodes[0], weight, ways)
