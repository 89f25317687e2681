"""What a network can carry at most, exactly, each with the cut or partition that proves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from collhub_columns import BoolArray, Int64Array

from collhub_packing.duplex import DuplexLinks, LeastSets
from collhub_packing.flows import UNLIMITED, FlowNetwork, scaled
from collhub_packing.graph import CapacityGraph
from hub_core.model import InputError

_NAMED_IN_A_MESSAGE = 8


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate in units of the graph, and the nodes of the cut that no rate exceeds.

    The links of the cut leave these nodes.
    """

    value: Fraction
    cut: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Strength:
    """A rate in units of the graph, and the partition of the compute nodes that proves it.

    `sides`: for every block a set with its compute nodes and maybe switches; half the capacity
    that leaves all of them, over the number of blocks less one, is the rate.
    """

    value: Fraction
    blocks: tuple[tuple[int, ...], ...]
    sides: tuple[tuple[int, ...], ...]


def broadcast_rate(graph: CapacityGraph, root: int) -> Rate:
    """The most that out-trees from `root` to all compute nodes carry (Edmonds 1973).

    That is the least cut behind the root: one flow per node. Raises `InputError` where a node
    cannot be reached, or there is none but the root.
    """
    _check(graph)
    others = [node for node in range(graph.num_compute) if node != root]
    sinks = _weak_first(graph, np.asarray(others, np.int64))
    network = FlowNetwork.of(graph.num_nodes, graph.source, graph.destination)
    cut = network.least_cut(graph.capacity, root, sinks)
    assert cut is not None
    if not cut.value:
        raise _unreachable(cut.sink, cut.nodes, graph)
    return Rate(Fraction(cut.value), cut.nodes)


def all_gather_rate(graph: CapacityGraph, weights: Sequence[int] | None = None) -> Rate:
    """The most x such that every compute node v sends `weights[v]` * x to all others at once.

    Weights are 1 each by default. x is the least of (capacity leaving S) / (weight in S) over
    node sets S that lack a compute node, found by Newton's iteration on cuts (Dinkelbach 1967):
    a round is one flow per node, and few are needed, since the weight behind the violated cut
    falls from round to round. All-gather and reduce-scatter take 1 / x for a unit of data per
    weight. Raises `InputError` where a node cannot be reached.
    """
    _check(graph)
    share = weights_of(graph, weights)
    _check_weights(graph, share)
    rate, side = _weakest_node(graph, share)
    network = SourcedNetwork(graph)
    # Every violated cut is a lower rate; a rate without one is what flows reach.
    while rate:
        # Both scaled by the denominator, so that whole numbers are compared.
        capacity = scaled(graph.capacity, rate.denominator)
        cut = network.shortage(capacity, scaled(share, rate.numerator))
        if cut is None:
            return Rate(rate, _nodes(side))
        side = cut
        weight = int(share[side[: graph.num_compute]].sum())
        rate = Fraction(_leaving(graph, side), weight)
    lost = int(np.argmin(side[: graph.num_compute]))
    raise _unreachable(lost, _nodes(side), graph)


def _check_weights(graph: CapacityGraph, share: Int64Array) -> None:
    """Refuse weights that are not one a node, or none at all."""
    count = graph.num_compute
    if len(share) != count or share.min() < 0 or not share.sum():
        message = f"{len(share)} weights for {count} nodes: one each, not negative, not all 0"
        raise InputError(message)


def weights_of(graph: CapacityGraph, weights: Sequence[int] | None) -> Int64Array:
    """What every compute node sends, in proportion: int64, 1 each where nothing is stated."""
    if weights is None:
        return np.ones(graph.num_compute, np.int64)
    return np.asarray(weights, np.int64)


class SourcedNetwork:
    """A network and a source of its own that feeds the compute nodes.

    It answers whether what they send can reach everybody.
    """

    def __init__(self, graph: CapacityGraph) -> None:
        # One node more than the graph has, from which all flow comes.
        nodes = np.arange(graph.num_compute)
        ends = graph.source, graph.destination
        self._num_nodes = graph.num_nodes
        self._sinks = _weak_first(graph, nodes)
        self._network = FlowNetwork.fed(graph.num_nodes, *ends, nodes)

    def shortage(self, capacity: Int64Array, sent: Int64Array) -> BoolArray | None:
        """The source side of the cut that lacks most for `sent[v]` to reach all others.

        bool[nodes]; None where all fits. `capacity`: int64 per arc, `sent`: per compute node.
        """
        # A flow of all that is sent is enough: only lesser cuts are asked for.
        limit = min(int(sent.sum()), UNLIMITED)
        amounts = np.concatenate([capacity, sent])
        cut = self._network.least_cut(amounts, self._num_nodes, self._sinks, limit)
        return None if cut is None else cut.side[: self._num_nodes]


def strength(graph: CapacityGraph) -> Strength:
    """The most that undirected spanning trees carry: min c(E(P)) / (|P| - 1) over partitions P.

    By Nash-Williams and Tutte (1961). No all-reduce without reduction in the network is faster:
    of every element |P| - 1 messages at least go up and as many down between the |P| blocks. With
    switches, P divides the compute nodes, and the sum of the blocks' least cuts from all others
    takes the place of 2 c(E(P)). Newton's iteration; each round finds the worst partition by one
    least cut per node (Dilworth truncation; Cunningham 1985). Raises `InputError` for links that
    differ by direction and for disconnected networks.
    """
    _check(graph)
    links = DuplexLinks.of(graph)
    every_node = [[node] for node in range(graph.num_compute)]
    rate = _between(graph, links, every_node)
    while rate.value:
        worst, blocks = _worst_partition(links, graph.num_compute, rate.value)
        # The bound of one block alone, which no partition falls below where the rate fits.
        if worst >= -2 * rate.value.numerator:
            return rate
        rate = _between(graph, links, blocks)
    inside, outside = rate.sides[0], rate.blocks[1]
    raise _unreachable(outside[0], inside, graph)


def _worst_partition(
    links: DuplexLinks,
    num_compute: int,
    rate: Fraction,
) -> tuple[int, list[list[int]]]:
    """The partition P with least c(E(P)) - rate * |P|, and that value.

    The value is times twice the rate's denominator, so that it is whole. Node by node: the least
    set around the new node, less what the nodes before it were worth, is its price, and all
    blocks that the set meets become one. The prices add up to the least value.
    """
    sets = LeastSets(links, rate.denominator)
    prices = np.zeros(links.num_nodes, np.int64)
    # Switches cost nothing and may be in any set.
    allowed = np.arange(links.num_nodes) >= num_compute
    blocks: list[list[int]] = []
    for node in range(num_compute):
        allowed[node] = True
        value, members = sets.least([node], -prices, allowed)
        prices[node] = value - 2 * rate.numerator
        blocks = _merged(blocks, node, members)
    return int(prices.sum()), blocks


def _merged(blocks: list[list[int]], node: int, members: BoolArray) -> list[list[int]]:
    """Blocks of which those that meet a set are one with a new node; it stands last."""
    joined, apart = [node], []
    for block in blocks:
        if members[block].any():
            joined += block
        else:
            apart.append(block)
    return [*apart, joined]


def _between(graph: CapacityGraph, links: DuplexLinks, blocks: list[list[int]]) -> Strength:
    """The rate that a partition allows."""
    sides = ordered = sorted(sorted(block) for block in blocks)
    if graph.has_switches:
        sides = [_least_side(graph, links, block) for block in ordered]
    leaving = sum(_leaving_nodes(graph, side) for side in sides)
    # Every link between two sides leaves both of them.
    value = Fraction(leaving, 2 * (len(ordered) - 1))
    return Strength(value, tuple(map(tuple, ordered)), tuple(map(tuple, sides)))


def _leaving_nodes(graph: CapacityGraph, nodes: list[int]) -> int:
    """Capacity of the arcs that leave some nodes."""
    inside = np.zeros(graph.num_nodes, np.bool_)
    inside[nodes] = True
    return _leaving(graph, inside)


def _least_side(graph: CapacityGraph, links: DuplexLinks, block: list[int]) -> list[int]:
    """A block with the switches that make the capacity that leaves it least."""
    allowed = np.arange(graph.num_nodes) >= graph.num_compute
    allowed[block] = True
    # All compute nodes are in the set or out of it, so that switches alone are chosen.
    no_weights = np.zeros(graph.num_nodes, np.int64)
    _, side = LeastSets(links, 1).least(block, no_weights, allowed)
    return list(_nodes(side))


def _weakest_node(graph: CapacityGraph, weights: Int64Array) -> tuple[Fraction, BoolArray]:
    """The rate that the capacity into single nodes allows, and all nodes but that one."""
    # What a node sends itself need not enter it.
    entering = (int(weights.sum()) - weights).tolist()
    arriving = _capacity_into(graph).tolist()
    takers = [node for node in range(graph.num_compute) if entering[node]]
    rate, weakest = min((Fraction(arriving[node], entering[node]), node) for node in takers)
    return rate, np.arange(graph.num_nodes) != weakest


def _weak_first(graph: CapacityGraph, nodes: Int64Array) -> Int64Array:
    """Nodes by the capacity into them: the least cut so far ends the search for the others."""
    arriving = _capacity_into(graph)[nodes]
    return nodes[np.argsort(arriving, kind="stable")]


def _capacity_into(graph: CapacityGraph) -> Int64Array:
    """Capacity of the arcs into every node."""
    total = np.zeros(graph.num_nodes, np.int64)
    # Not `total[...] +=`, which counts a node once however many arcs enter it.
    np.add.at(total, graph.destination, graph.capacity)
    return total


def _leaving(graph: CapacityGraph, side: BoolArray) -> int:
    """Capacity of the arcs that leave a set of nodes."""
    leaves = side[graph.source] & ~side[graph.destination]
    return int(graph.capacity[leaves].sum())


def _nodes(side: BoolArray) -> tuple[int, ...]:
    """The nodes of a set, ascending."""
    return tuple(int(node) for node in np.flatnonzero(side))


def _check(graph: CapacityGraph) -> None:
    """Refuse a network without anybody to send to."""
    if graph.num_compute < 2:
        raise InputError(
            "a network of one node sends nothing",
            cure="give at least two nodes",
            code="one-node",
        )


def _unreachable(lost: int, side: tuple[int, ...], graph: CapacityGraph) -> InputError:
    """The refusal of a network in which node `lost` cannot be reached from the nodes of `side`."""
    inside = _listed([node for node in side if node < graph.num_compute])
    return InputError(
        f"node {lost} cannot be reached: no link of any bandwidth leaves the nodes {inside}",
        cure="add the missing links, or leave the node out",
        code="unreachable",
    )


def _listed(nodes: list[int]) -> str:
    """The first nodes that are given, as a message names them."""
    named = ", ".join(map(str, nodes[:_NAMED_IN_A_MESSAGE]))
    return named + ", ..." if len(nodes) > _NAMED_IN_A_MESSAGE else named
