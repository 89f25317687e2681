"""Compute exact maximum rates of a network, each with the cut or partition that proves it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from collhub_packing.flows import UNLIMITED, FlowNetwork, scaled
from collhub_packing.graph import CapacityGraph, DuplexLinks, LeastSets
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import InputError

_MAX_NAMES_IN_A_MESSAGE = 8


@dataclass(frozen=True, slots=True)
class Rate:
    """A maximum rate in units of the graph, and the nodes on the source's side of the cut that
    proves it.
    """

    value: Fraction
    cut: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Strength:
    """A maximum rate in units of the graph, and the partition of the compute nodes that proves it.

    `sides[i]`: the compute nodes of `blocks[i]` with some switches. Half the capacity that leaves
    all sides, over the number of blocks minus one, is the rate.
    """

    value: Fraction
    blocks: tuple[tuple[int, ...], ...]
    sides: tuple[tuple[int, ...], ...]


def broadcast_rate(graph: CapacityGraph, root: int) -> Rate:
    """Return the maximum rate of out-trees from `root` to all compute nodes, with its proof.

    It is the smallest minimum cut between the root and any other compute node, in units
    of the graph (Edmonds 1973). The proof is this cut, the set of nodes on the root's
    side. Cost: one flow per node. Raises `InputError`: `one-node` if the root is the only
    compute node, `unreachable` if a compute node cannot be reached.
    """
    _check_size(graph)
    targets = [node for node in range(graph.num_compute) if node != root]
    sinks = _sort_by_capacity_into(graph, np.asarray(targets, np.int64))
    network = FlowNetwork.of(graph.num_nodes, graph.source, graph.destination)
    cut = network.least_cut(graph.capacity, root, sinks)
    assert cut is not None
    if not cut.value:
        raise _unreachable_error(cut.sink, cut.nodes, graph)
    return Rate(Fraction(cut.value), cut.nodes)


def all_gather_rate(graph: CapacityGraph, weights: Sequence[int] | None = None) -> Rate:
    """Compute the maximum x at which all compute nodes v can send `weights[v]` * x to all others.

    All send at the same time. `weights`: None for 1 each. x is the minimum of (capacity leaving S)
    / (weight in S) over all sets S of nodes with positive weight. S may contain switches, and must
    lack at least one compute node. Two nodes with one link of capacity 3 in each direction give 3.

    Returns x as an exact fraction in units of the graph, and one set S with this minimum,
    ascending. All-gather and reduce-scatter take 1 / x for one unit of data per weight. The method
    is Newton's iteration on cuts (Dinkelbach 1967), with one flow per node and round.

    Raises `InputError`, in this order: `one-node` for fewer than two compute nodes; an error
    without a code for another number of weights, a negative weight, or all weights 0; `capacities`
    if the scaled capacities or weights add up to 2^60 or more; `unreachable` if x would be 0,
    because some compute node cannot be reached.
    """
    _check_size(graph)
    share = to_weight_array(graph, weights)
    count = graph.num_compute
    if len(share) != count or share.min() < 0 or not share.sum():
        message = f"{len(share)} weights for {count} nodes: one each, not negative, not all 0"
        raise InputError(message)
    # Compute the rate that the capacity into single nodes allows, and the set of all nodes but that
    # one.
    # A node's own data need not enter it.
    required = (int(share.sum()) - share).tolist()
    available = _compute_capacity_into(graph).tolist()
    receivers = [node for node in range(graph.num_compute) if required[node]]
    rate, weakest = min((Fraction(available[node], required[node]), node) for node in receivers)
    side = np.arange(graph.num_nodes) != weakest
    network = SourcedNetwork(graph)
    # Every violated cut gives a lower rate; a rate without violated cut is reached by flows.
    while rate:
        # Both scaled by the denominator, to compare integers.
        capacity = scaled(graph.capacity, rate.denominator)
        cut = network.shortage(capacity, scaled(share, rate.numerator))
        if cut is None:
            return Rate(rate, _list_nodes(side))
        side = cut
        weight = int(share[side[: graph.num_compute]].sum())
        rate = Fraction(_compute_capacity_out_of(graph, side), weight)
    unreached = int(np.argmin(side[: graph.num_compute]))
    raise _unreachable_error(unreached, _list_nodes(side), graph)


def to_weight_array(graph: CapacityGraph, weights: Sequence[int] | None) -> Int64Array:
    """Convert the weights of the compute nodes to int64; None gives 1 for each.

    The weights are not checked.
    """
    if weights is None:
        return np.ones(graph.num_compute, np.int64)
    return np.asarray(weights, np.int64)


class SourcedNetwork:
    """A network with an additional source that feeds the compute nodes.

    It tests whether given amounts of data can reach all compute nodes, and finds the cuts that
    prevent it.
    """

    def __init__(self, graph: CapacityGraph) -> None:
        # One additional node, the source of all flow.
        nodes = np.arange(graph.num_compute)
        endpoints = graph.source, graph.destination
        self._num_nodes = graph.num_nodes
        self._sinks = _sort_by_capacity_into(graph, nodes)
        self._network = FlowNetwork.fed(graph.num_nodes, *endpoints, nodes)

    def shortage(self, capacity: Int64Array, sent: Int64Array) -> BoolArray | None:
        """Find a cut that prevents each node v from sending `sent[v]` to all compute nodes at once.

        Return None if there is none. A cut is a set of nodes, bool[nodes], without at least one
        compute node; it prevents the exchange if its nodes send more than the capacity of the arcs
        that leave it. The set with the largest deficit is returned. Of several it is the smallest
        one that lacks the compute node with the lowest capacity of arcs into it.

        `capacity`: int64 per arc; `sent`: int64 per compute node. Raise `InputError` (`capacities`)
        if both add up to 2^60 or more.
        """
        # A cut of at least the total is no deficit.
        limit = min(int(sent.sum()), UNLIMITED)
        amounts = np.concatenate([capacity, sent])
        cut = self._network.least_cut(amounts, self._num_nodes, self._sinks, limit)
        return None if cut is None else cut.side[: self._num_nodes]

    def generate_cuts(
        self, capacity: Int64Array, sent: Int64Array, limit: int
    ) -> Iterator[BoolArray]:
        """Yield a minimum cut between the source of all data and each compute node.

        The source feeds `sent[v]` to compute node v. A cut is the set of nodes on the side of the
        source, bool[nodes]. Its value is the capacity of the arcs that leave it, plus the data fed
        to nodes outside. Only cuts with a value below `limit` are yielded, in ascending order of
        the compute nodes; of several minimum cuts the one with the fewest nodes. `capacity`: int64
        per arc. Raise `InputError` (`capacities`) if capacities and `sent` add up to 2^60 or more.
        """
        amounts = np.concatenate([capacity, sent])
        for node in range(len(self._sinks)):
            cut = self._network.least_cut(amounts, self._num_nodes, [node], limit)
            if cut is not None:
                yield cut.side[: self._num_nodes]


def strength(graph: CapacityGraph) -> Strength:
    """Compute the strength: the maximum total weight of undirected spanning trees that fit.

    It is the minimum of c(P) / (|P| - 1) over the partitions P of the compute nodes into at least
    two blocks. Without switches, c(P) is the capacity between blocks, each link counted once
    (Nash-Williams and Tutte 1961). With switches, c(P) is half the sum of the minimum cuts between
    each block and the other compute nodes. An all-reduce without reduction in the network cannot be
    faster. Method: Newton's iteration with Dilworth truncation (Cunningham 1985).

    Returns `value` in units of the graph, and a minimum partition: `blocks`, each ascending, sorted
    by first node. `sides` are the blocks with the switches on their side of the cut. Raises
    `InputError`, in this order: `one-node` (fewer than two compute nodes), `not-duplex` (the
    directions of a link differ in capacity), `capacities` (the scaled sum is 2^60 or more),
    `unreachable` (value 0).
    """
    _check_size(graph)
    links = DuplexLinks.of(graph)
    every_node = [[node] for node in range(graph.num_compute)]
    rate = _compute_partition_rate(graph, links, every_node)
    while rate.value:
        worst, blocks = _find_worst_partition(links, graph.num_compute, rate.value)
        # The value of the partition with a single block: no partition is below it if the rate fits.
        if worst >= -2 * rate.value.numerator:
            return rate
        rate = _compute_partition_rate(graph, links, blocks)
    reached_side, unreached_block = rate.sides[0], rate.blocks[1]
    raise _unreachable_error(unreached_block[0], reached_side, graph)


def _find_worst_partition(
    links: DuplexLinks,
    num_compute: int,
    rate: Fraction,
) -> tuple[int, list[list[int]]]:
    """Divide the compute nodes into blocks that minimize capacity - rate * number of blocks.

    The capacity is that of the links between blocks. With switches, it is half of the sum of the
    minimum cuts around each block. A single block is permitted. Returns (value, blocks): the
    minimum times twice the denominator of `rate` (an integer), and the unsorted blocks.

    Compute nodes are added in ascending order. Each is merged with all blocks that have a node in
    the set of `LeastSets.least` for it. A merged block is last, and begins with its newest node.

    Raises `InputError` (`capacities`) if s + n * (s + 1) is 2^60 or more: n is the number of
    compute nodes, s twice the sum of the link capacities times the denominator of `rate`. It may
    be raised for a smaller s, because values of added nodes count too.
    """
    sets = LeastSets(links, rate.denominator)
    prices = np.zeros(links.num_nodes, np.int64)
    # Switches have price 0 and may be in any set.
    allowed = np.arange(links.num_nodes) >= num_compute
    blocks: list[list[int]] = []
    for node in range(num_compute):
        allowed[node] = True
        value, members = sets.least([node], -prices, allowed)
        prices[node] = value - 2 * rate.numerator
        # Merge a new node with the blocks that meet a set; the merged block is last.
        merged, unchanged = [node], []
        for block in blocks:
            if members[block].any():
                merged += block
            else:
                unchanged.append(block)
        blocks = [*unchanged, merged]
    return int(prices.sum()), blocks


def _compute_partition_rate(
    graph: CapacityGraph, links: DuplexLinks, blocks: list[list[int]]
) -> Strength:
    """Return the largest rate of an all-reduce that a partition of the compute nodes allows.

    `blocks`: at least two sets of compute nodes, each node in one of them. To every block
    those switches are added that minimize the capacity leaving it; of several such sets, the
    one with the fewest nodes. The rate is the sum of the capacities that leave the blocks,
    divided by 2 (blocks - 1). The result also has the blocks, each ascending and sorted by
    their first nodes, and in the same order the blocks with their switches. `links`: those of
    `graph`, with equal capacity in both directions.

    Raises `InputError` (`capacities`) for a network with switches and large capacities: with
    their sum s in both directions and n compute nodes, s + n (s + 1) is 2^60 or more.
    """
    ordered = sorted(sorted(block) for block in blocks)
    sides = []
    leaving = 0
    for block in ordered:
        is_inside = np.zeros(graph.num_nodes, np.bool_)
        is_inside[block] = True
        if graph.has_switches:
            # All compute nodes are fixed inside or outside, so that only switches are chosen.
            allowed = is_inside | (np.arange(graph.num_nodes) >= graph.num_compute)
            no_weights = np.zeros(graph.num_nodes, np.int64)
            _, is_inside = LeastSets(links, 1).least(block, no_weights, allowed)
        sides.append(_list_nodes(is_inside))
        leaving += _compute_capacity_out_of(graph, is_inside)
    # Every link between two sides leaves both of them.
    value = Fraction(leaving, 2 * (len(ordered) - 1))
    return Strength(value, tuple(map(tuple, ordered)), tuple(map(tuple, sides)))


def _sort_by_capacity_into(graph: CapacityGraph, nodes: Int64Array) -> Int64Array:
    """Return nodes sorted by the capacity of the arcs into them, the smallest first.

    Nodes of equal capacity keep their order. A small cut at the beginning shortens later
    searches.
    """
    arriving = _compute_capacity_into(graph)[nodes]
    return nodes[np.argsort(arriving, kind="stable")]


def _compute_capacity_into(graph: CapacityGraph) -> Int64Array:
    """Return the total capacity of the arcs into every node: int64[nodes].

    Parallel arcs are added up; nodes without arcs have 0.
    """
    total = np.zeros(graph.num_nodes, np.int64)
    # Not `total[...] +=`, which would count only one arc per node.
    np.add.at(total, graph.destination, graph.capacity)
    return total


def _compute_capacity_out_of(graph: CapacityGraph, side: BoolArray) -> int:
    """Return the total capacity of the arcs from a set of nodes to its complement.

    `side`: bool[nodes], True in the set.
    """
    leaves = side[graph.source] & ~side[graph.destination]
    return int(graph.capacity[leaves].sum())


def _list_nodes(side: BoolArray) -> tuple[int, ...]:
    """Return the nodes at which `side` is True, ascending."""
    return tuple(int(node) for node in np.flatnonzero(side))


def _check_size(graph: CapacityGraph) -> None:
    """Raise `InputError` (code `one-node`) for a network with fewer than two compute nodes."""
    if graph.num_compute < 2:
        raise InputError(
            "a network of one node sends nothing",
            cure="give at least two nodes",
            code="one-node",
        )


def _unreachable_error(unreached: int, side: tuple[int, ...], graph: CapacityGraph) -> InputError:
    """Return (do not raise) the `InputError` `unreachable` for a node to which no path leads
    from `side`.

    The message has the node `unreached` and the first `_MAX_NAMES_IN_A_MESSAGE` (8)
    compute nodes of `side`; switches are not listed.
    """
    nodes = [node for node in side if node < graph.num_compute]
    named = ", ".join(map(str, nodes[:_MAX_NAMES_IN_A_MESSAGE]))
    inside = named + ", ..." if len(nodes) > _MAX_NAMES_IN_A_MESSAGE else named
    return InputError(
        f"node {unreached} cannot be reached: no link of any bandwidth leaves the nodes {inside}",
        cure="add the missing links, or leave the node out",
        code="unreachable",
    )
