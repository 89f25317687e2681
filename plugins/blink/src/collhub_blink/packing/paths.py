"""Packings for scatter and gather: every rank's part is sent on its own paths.

A single flow from the root brings every rank an equal amount at the rate of the tightest cut. It is
decomposed into paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from collhub_packing import CapacityGraph, FlowNetwork

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import build_placed_tree
from collhub_blink.packing.task import PackingTask, RankNetwork
from hub_core.columns import Int64Array

_Path = tuple[int, ...]


def build_path_packings(task: PackingTask) -> list[PlacedPacking]:
    """Build the packing of paths from the root to every other rank, for a scatter or a gather.

    The list has this packing only. Each path is a separate tree, whose last NPU is its target: the
    NPU whose data it carries. `targets` has its number in the topology. The rate is the largest one
    at which all ranks can receive equal amounts at the same time. The weights of a target add up to
    the same integer for every target. For a gather, the paths are those of the reversed network, so
    they also begin at the root. Paths are sorted by target, then by decreasing weight, then by
    nodes. On a path, every NPU is the child of the NPU before it.

    All other ranks must be reachable from the root, and there must be one (not checked). Raises
    `InputError` if the scaled capacities add up to 2^60 or more.
    """
    network = task.oriented_network
    graph = network.graph
    flow = _find_best_flow(graph, task.root)
    paths = sorted(_generate_paths(graph, flow, task.root), key=_path_key)
    trees = []
    for path, weight in paths:
        nodes = [int(network.nodes[node]) for node in path]
        is_npu = [node < network.topology.num_npus for node in nodes]
        # Every NPU on the path is the child of the one before it, over the switches in between.
        positions = np.flatnonzero(is_npu).tolist()
        segments = [tuple(nodes[first : last + 1]) for first, last in pairwise(positions)]
        trees.append(build_placed_tree(network.topology, nodes[0], weight, segments))
    packing = PlacedPacking(
        method="paths to every rank",
        trees=tuple(trees),
        # A path of weight w carries w / need of one rank's part. The root's own part is not sent.
        unit=graph.unit * flow.rate / flow.need,
        bound=_build_bound(network, flow),
        at_least=graph.num_compute - 1,
        reason="every rank but the root needs a path",
        targets=tuple(int(network.nodes[path[-1]]) for path, _ in paths),
    )
    return [packing]


def _path_key(path_and_weight: tuple[_Path, int]) -> tuple[int, int, _Path]:
    """Return the key that sorts paths: by last node, then by decreasing weight.

    Equal ones are sorted by their nodes.
    """
    path, weight = path_and_weight
    return path[-1], -weight, path


def compute_path_bound(task: PackingTask) -> RateBound:
    """Return the upper bound of the rate of a scatter or gather, in bytes per second.

    Every rank has separate data, so a set of nodes with the root limits the rate to the
    bandwidth out of the set (for a gather: into it) divided by the number of ranks outside,
    times the number of all ranks. The bound is the minimum over all sets, and has the nodes
    of one that attains it. It is 0 if some rank cannot be reached (for a gather: cannot reach
    the root). At least two ranks are required. Raises `InputError` (`capacities`) if the
    scaled capacities add up to 2^60 or more.
    """
    network = task.oriented_network
    return _build_bound(network, _find_best_flow(network.graph, task.root))


def _build_bound(network: RankNetwork, flow: _Flow) -> RateBound:
    """Convert the maximum flow to a bound in bytes of the collective per second.

    The rate of the flow is that of one rank's part; the collective has one part per rank,
    so it is multiplied by the number of ranks. The bound has the kind `cut`, with the nodes
    of the flow's cut as numbered in the topology.
    """
    # The flow's rate is that of one rank's part; the collective has one part per rank.
    rate = flow.rate * network.graph.unit * network.graph.num_compute
    return RateBound("cut", rate, network.to_topology_nodes(flow.cut))


@dataclass(frozen=True, slots=True, eq=False)
class _Flow:
    """The flow that brings every rank but the root an equal, maximum amount.

    `rate`: amount per rank in units of the graph. `cut`: nodes on the root's side of the tightest
    cut. `amount`: flow on every arc, int64[arcs], scaled so that it is integral and every rank
    takes `need`.
    """

    rate: Fraction
    cut: tuple[int, ...]
    need: int
    amount: Int64Array


def _find_best_flow(graph: CapacityGraph, root: int) -> _Flow:
    """Find the largest rate at which all other ranks receive from the root, and the flow.

    The root sends different data to every other rank (compute node), at an equal rate. There must
    be at least two ranks. The rate is 0 if one of them cannot be reached. The result has:

    - `rate`: exact data per rank and time, in units of the graph
    - `cut`: ascending nodes on the root's side of a cut that limits the rate, with the root
    - `amount`: the flow of every arc times the denominator of the rate, which is an integer
    - `need`: the numerator of the rate, i.e. the part of `amount` that every rank takes

    Newton's iteration on cuts (Dinkelbach 1967): the first cut is the root. The rate of a cut is
    the capacity out of it, divided by the number of ranks beyond it. While the network has no flow
    of this rate, a minimum cut that prevents it is the next cut. Raises `InputError` (`capacities`)
    if the scaled capacities add up to 2^60 or more.
    """
    # Build the flow network with an additional sink that takes flow from every rank but the root.
    takers = np.asarray([rank for rank in range(graph.num_compute) if rank != root])
    drains = np.full(len(takers), graph.num_nodes)
    network = FlowNetwork.of(
        graph.num_nodes + 1,
        np.concatenate([graph.source, takers]),
        np.concatenate([graph.destination, drains]),
    )
    sink = graph.num_nodes
    # The first limit is the capacity out of the root.
    cut = np.arange(graph.num_nodes) == root
    while True:
        # The capacity out of a cut per rank on the other side.
        is_leaving = cut[graph.source] & ~cut[graph.destination]
        beyond_count = np.count_nonzero(~cut[: graph.num_compute])
        rate = Fraction(int(graph.capacity[is_leaving].sum()), int(beyond_count))
        demands = np.full(len(takers), rate.numerator)
        capacities = np.concatenate([graph.capacity * rate.denominator, demands])
        minimum_cut = network.least_cut(capacities, root, [sink])
        assert minimum_cut is not None
        if minimum_cut.value == rate.numerator * len(takers):
            _, remaining = network.remainder(capacities, root, sink)
            # Flow against an arc raises its remainder above the capacity: it is counted on the
            # opposite arc.
            flow = np.maximum(capacities - remaining, 0)[: graph.num_arcs]
            return _Flow(rate, tuple(np.flatnonzero(cut).tolist()), rate.numerator, flow)
        cut = minimum_cut.side[: graph.num_nodes]


def _generate_paths(graph: CapacityGraph, flow: _Flow, root: int) -> Iterator[tuple[_Path, int]]:
    """Divide a flow into paths from the root to every other rank; yield (path, weight).

    A path is the tuple of its nodes in the graph, from the root to the rank. Ranks are in
    ascending order, and the weights of a rank add up to `flow.need`. Each path has the
    fewest arcs that the remaining flow permits, and takes as much as its narrowest arc and
    the remaining need allow. The number of paths is at most that of arcs and ranks
    together. `flow` is not changed; it must be valid, otherwise the search does not
    terminate.
    """
    remaining = flow.amount.copy()
    for rank in range(graph.num_compute):
        needed = 0 if rank == root else flow.need
        while needed:
            arcs = _find_shortest_path(graph, remaining, root, rank)
            # Every path exhausts an arc or the demand of its rank, so the loop terminates.
            amount = min(needed, int(remaining[arcs].min()))
            remaining[arcs] -= amount
            needed -= amount
            yield (root, *graph.destination[arcs].tolist()), amount


def _find_shortest_path(graph: CapacityGraph, left: Int64Array, root: int, rank: int) -> list[int]:
    """Return the arcs of a shortest path from the root to `rank` over arcs with `left` > 0.

    The arcs are row numbers of the graph, in the order of the path; [] if `rank` is the root. The
    length is the number of arcs. Of several arcs into a node from nodes that are one arc nearer to
    the root, the arc with the lowest row is used. A path must exist, otherwise the search does not
    end. `left`: int64, remaining capacity by arc; it is not changed.
    """
    # Breadth-first search: the last arc of a shortest path to every node that is reached.
    arc_to = np.full(graph.num_nodes, -1, np.int64)
    reached = np.arange(graph.num_nodes) == root
    while not reached[rank]:
        # Breadth first: one more arc per iteration.
        is_outward = (left > 0) & reached[graph.source] & ~reached[graph.destination]
        outward = np.flatnonzero(is_outward)
        heads, first = np.unique(graph.destination[outward], return_index=True)
        arc_to[heads] = outward[first]
        reached[heads] = True
    arcs = []
    while rank != root:
        arcs.append(int(arc_to[rank]))
        rank = int(graph.source[arcs[-1]])
    return arcs[::-1]
