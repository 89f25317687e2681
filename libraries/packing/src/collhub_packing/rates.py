"""What a network can carry at most, exactly, each with the cut or partition that proves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from collhub_packing.duplex import DuplexLinks, LeastSets
from collhub_packing.flows import UNLIMITED, FlowNetwork, scaled
from collhub_packing.graph import CapacityGraph
from hub_core.model import InputError

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate in units of the graph, and the nodes of the cut that no rate exceeds: the links leave these nodes."""

    value: Fraction
    cut: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Strength:
    """A rate in units of the graph, and the partition of the compute nodes between whose blocks no more fits.

    `sides`: for every block a set with its compute nodes and maybe switches; half the capacity that leaves all of them,
    over the number of blocks less one, is the rate.
    """

    value: Fraction
    blocks: tuple[tuple[int, ...], ...]
    sides: tuple[tuple[int, ...], ...]


def broadcast_rate(graph: CapacityGraph, root: int) -> Rate:
    """The most that out-trees from `root` to all compute nodes carry: the least cut behind it (Edmonds 1973).

    One flow per node. Raises `InputError` where a node cannot be reached, or there is none but the root.
    """
    _check(graph)
    arriving = _capacity_into(graph)
    sinks = np.asarray([v for v in range(graph.num_compute) if v != root], np.int64)
    # Weak nodes first: the least cut so far ends the search for the others.
    sinks = sinks[np.argsort(arriving[sinks], kind="stable")]
    network = FlowNetwork.of(graph.num_nodes, graph.source, graph.destination)
    cut = network.least_cut(graph.capacity, root, sinks)
    assert cut is not None
    if not cut.value:
        raise _unreachable(cut.sink, cut.nodes, graph)
    return Rate(Fraction(cut.value), cut.nodes)


def all_gather_rate(graph: CapacityGraph, weights: Sequence[int] | None = None) -> Rate:
    """The most x such that every compute node v sends `weights[v]` * x to all others at once; 1 each by default.

    The least of (capacity leaving S) / (weight in S) over node sets S that lack a compute node, by Newton's
    iteration on cuts: a round is one flow per node, and few are needed. All-gather and reduce-scatter take 1 / x
    for a unit of data per weight. Raises `InputError` where a node cannot be reached.
    """
    _check(graph)
    share = (
        np.ones(graph.num_compute, np.int64) if weights is None else np.asarray(weights, np.int64)
    )
    if len(share) != graph.num_compute or share.min() < 0 or not share.sum():
        raise InputError(
            f"{len(share)} weights for {graph.num_compute} nodes: one each, not negative, not all 0"
        )
    rate, side = _weakest_node(graph, share)
    network = SourcedNetwork(graph)
    while rate:
        cut = network.shortage(
            scaled(graph.capacity, rate.denominator), scaled(share, rate.numerator)
        )
        if cut is None:
            return Rate(rate, tuple(int(v) for v in np.flatnonzero(side)))
        side = cut
        rate = Fraction(_leaving(graph, side), int(share[side[: graph.num_compute]].sum()))
    raise _unreachable(
        int(np.argmin(side[: graph.num_compute])),
        tuple(int(v) for v in np.flatnonzero(side)),
        graph,
    )


class SourcedNetwork:
    """A network and a source of its own that feeds the compute nodes: can what they send reach everybody?"""

    def __init__(self, graph: CapacityGraph) -> None:
        nodes = np.arange(graph.num_compute)
        self._num_nodes = graph.num_nodes
        self._sinks = nodes[np.argsort(_capacity_into(graph)[nodes], kind="stable")]
        feeder = np.full(graph.num_compute, graph.num_nodes)
        self._network = FlowNetwork.of(
            graph.num_nodes + 1,
            np.concatenate([graph.source, feeder]),
            np.concatenate([graph.destination, nodes]),
        )

    def shortage(self, capacity: Int64Array, sent: Int64Array) -> BoolArray | None:
        """The source side of the cut that lacks most for `sent[v]` from each node v to reach everybody; None: all fits."""
        total = int(sent.sum())
        cut = self._network.least_cut(
            np.concatenate([capacity, sent]), self._num_nodes, self._sinks, min(total, UNLIMITED)
        )
        return None if cut is None else cut.side[: self._num_nodes]


def strength(graph: CapacityGraph) -> Strength:
    """The most that undirected spanning trees carry (Nash-Williams, Tutte 1961): min c(E(P)) / (|P| - 1) over partitions P.

    No all-reduce without reduction in the network is faster: of every element |P| - 1 messages at least go up and as
    many down between the |P| blocks. With switches, P divides the compute nodes, and the sum of the blocks' least cuts
    from all others takes the place of 2 c(E(P)). Newton's iteration; each round finds the worst partition
    by one least cut per node (Dilworth truncation; Cunningham 1985). Raises `InputError` for links that
    differ by direction and for disconnected networks.
    """
    _check(graph)
    links = DuplexLinks.of(graph)
    rate = _between(graph, links, [[node] for node in range(graph.num_compute)])
    while rate.value:
        worst, blocks = _worst_partition(links, graph.num_compute, rate.value)
        if worst >= -2 * rate.value.numerator:
            return rate
        rate = _between(graph, links, blocks)
    inside, outside = rate.sides[0], rate.blocks[1]
    raise _unreachable(outside[0], inside, graph)


def _worst_partition(
    links: DuplexLinks, num_compute: int, rate: Fraction
) -> tuple[int, list[list[int]]]:
    """The partition P with least c(E(P)) - rate * |P|, and that value times twice the rate's denominator."""
    sets = LeastSets(links, rate.denominator)
    prices = np.zeros(links.num_nodes, np.int64)
    # Switches cost nothing and may be in any set.
    allowed = np.arange(links.num_nodes) >= num_compute
    blocks: list[list[int]] = []
    for node in range(num_compute):
        allowed[node] = True
        value, members = sets.least([node], -prices, allowed)
        prices[node] = value - 2 * rate.numerator
        joined = [node, *(other for block in blocks if members[block].any() for other in block)]
        blocks = [block for block in blocks if not members[block].any()] + [joined]
    return int(prices.sum()), blocks


def _between(graph: CapacityGraph, links: DuplexLinks, blocks: list[list[int]]) -> Strength:
    """The rate that a partition allows."""
    ordered = sorted(sorted(block) for block in blocks)
    sides = (
        [_least_side(graph, links, block) for block in ordered]
        if graph.num_nodes > graph.num_compute
        else ordered
    )
    leaving = 0
    for side in sides:
        inside = np.zeros(graph.num_nodes, np.bool_)
        inside[side] = True
        leaving += _leaving(graph, inside)
    return Strength(
        Fraction(leaving, 2 * (len(ordered) - 1)),
        tuple(map(tuple, ordered)),
        tuple(map(tuple, sides)),
    )


def _least_side(graph: CapacityGraph, links: DuplexLinks, block: list[int]) -> list[int]:
    """A block with the switches that make the capacity that leaves it least."""
    allowed = np.arange(graph.num_nodes) >= graph.num_compute
    allowed[block] = True
    _, side = LeastSets(links, 1).least(block, np.zeros(graph.num_nodes, np.int64), allowed)
    return [int(node) for node in np.flatnonzero(side)]


def _weakest_node(graph: CapacityGraph, weights: Int64Array) -> tuple[Fraction, BoolArray]:
    """The rate that the capacity into single nodes allows, and all nodes but that one."""
    total = int(weights.sum())
    arriving = _capacity_into(graph)
    rate, weakest = min(
        (Fraction(int(arriving[v]), total - int(weights[v])), v)
        for v in range(graph.num_compute)
        if weights[v] < total
    )
    return rate, np.arange(graph.num_nodes) != weakest


def _capacity_into(graph: CapacityGraph) -> Int64Array:
    """Capacity of the arcs into every node."""
    total = np.zeros(graph.num_nodes, np.int64)
    np.add.at(total, graph.destination, graph.capacity)
    return total


def _leaving(graph: CapacityGraph, side: BoolArray) -> int:
    """Capacity of the arcs that leave a set of nodes."""
    return int(graph.capacity[side[graph.source] & ~side[graph.destination]].sum())


def _check(graph: CapacityGraph) -> None:
    if graph.num_compute < 2:
        raise InputError(
            "a network of one node sends nothing", cure="give at least two nodes", code="one-node"
        )


def _unreachable(lost: int, side: tuple[int, ...], graph: CapacityGraph) -> InputError:
    """The refusal of a network in which node `lost` cannot be reached from the nodes of `side`."""
    inside = [v for v in side if v < graph.num_compute]
    named = ", ".join(map(str, inside[:8])) + (", ..." if len(inside) > 8 else "")
    return InputError(
        f"node {lost} cannot be reached: no link of any bandwidth leaves the nodes {named}",
        cure="add the missing links, or leave the node out",
        code="unreachable",
    )
