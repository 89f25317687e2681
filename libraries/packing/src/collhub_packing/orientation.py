"""Trees of an all-reduce: orient the links so that out-trees of full strength fit, and pack them.

An all-reduce at rate t needs undirected trees of weight t, since reduce and broadcast on a tree
load each of its links by its weight in both directions. The strength (Nash-Williams, Tutte 1961)
is the most; to pack it, the capacity of every link is shared between its directions such that
out-trees of that total fit (Frank 1980), which `growth` then finds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from collhub_columns import Int64Array

from collhub_packing.duplex import DuplexLinks, LeastSets
from collhub_packing.flows import FlowNetwork, scaled
from collhub_packing.graph import CapacityGraph
from collhub_packing.growth import pack_arborescences, sent_from
from collhub_packing.rates import Strength, strength
from collhub_packing.splitting import DirectNetwork, SwitchSpread, direct, without_switches
from collhub_packing.trees import SpanningTree, cost
from hub_core.model import InputError


@dataclass(frozen=True, slots=True, eq=False)
class AllReducePacking:
    """Trees of an all-reduce, of weight `scale` times the strength, or the whole number below.

    The trees are made of arcs of `network`, whose graph's unit is 1 / `scale` of the given one's;
    the arcs of each of its links run over the same physical links, so that reduce and broadcast
    fit together.
    """

    strength: Strength
    scale: int
    network: DirectNetwork
    trees: list[SpanningTree]

    @property
    def rate(self) -> Fraction:
        """What the trees carry together, in units of the graph given."""
        return Fraction(sum(tree.weight for tree in self.trees), self.scale)


def all_reduce_trees(
    graph: CapacityGraph,
    *,
    seeds: int = 8,
    first_seed: int = 0,
) -> tuple[Strength, list[SpanningTree]]:
    """The strength a / q of a network without switches, and trees of weight a together.

    Weights are in units of 1 / q of the graph's. Reduce towards the root and broadcast from it,
    on every tree at once, load a link by at most its capacity in either direction. Each tree is
    rooted at its centre. Of the packings of `seeds` random orientations and orders: the fewest
    trees, then the least sum of weight times depth. Raises `InputError` as `strength` does, and
    for switches, for which there is `all_reduce_packing`.
    """
    if graph.has_switches:
        raise InputError(
            "trees of links cannot pass switches",
            cure="split the switches off",
            code="switches",
        )
    packing = all_reduce_packing(graph, seeds=seeds, first_seed=first_seed)
    return packing.strength, packing.trees


def all_reduce_packing(
    graph: CapacityGraph,
    *,
    spread: SwitchSpread = SwitchSpread.NOWHERE,
    scale: int | None = None,
    seeds: int = 8,
    first_seed: int = 0,
) -> AllReducePacking:
    """As `all_reduce_trees`, also with switches, which are split off once the links are oriented.

    Half of the capacity of a switch leads into it, so what enters can leave; the strength is
    reached there too. Weights are multiples of 1 / `scale`, of twice that where a switch has an
    odd capacity to halve. The default is the least scale at which the rate is the strength; a
    lesser one gives the best rate below, with fewer trees.
    """
    found = strength(graph)
    wanted = found.value.denominator if scale is None else scale
    orders = range(first_seed, first_seed + max(1, seeds))
    packings = [_packing(graph, found, wanted, spread, seed) for seed in orders]
    return min(packings, key=lambda packing: cost(packing.trees))


def _packing(
    graph: CapacityGraph,
    found: Strength,
    wanted: int,
    spread: SwitchSpread,
    seed: int,
) -> AllReducePacking:
    """The packing of one random orientation."""
    order = _shuffled(graph.num_compute, seed)
    directed, scale = oriented(graph, found, order, wanted)
    total = math.floor(found.value * scale)
    one_way = directed
    opposite = DuplexLinks.of(graph).opposite(graph.num_arcs)
    if graph.has_switches:
        split = _split(directed, order[0], total, spread)
        one_way = split.graph
        network, opposite = _both_ways(split, opposite, graph)
    else:
        network = direct(replace(directed, capacity=scaled(graph.capacity, scale)))
    grown = pack_arborescences(one_way, order[0], total, seeds=1, first_seed=seed)
    return AllReducePacking(found, scale, network, _at_centres(grown, opposite))


def _shuffled(count: int, seed: int) -> list[int]:
    """The numbers below `count` in a random order."""
    # The same for a seed on every machine.
    order: list[int] = np.random.default_rng(seed).permutation(count).tolist()
    return order


def _at_centres(trees: list[SpanningTree], opposite: Int64Array) -> list[SpanningTree]:
    """The trees from their centres, where they are least deep, wide ones first."""
    centred = []
    for tree in trees:
        centre = tree.centre(opposite)
        centred.append(tree.rerooted(centre, opposite))
    return sorted(centred, key=_by_width_and_depth)


def _split(
    directed: CapacityGraph,
    root: int,
    total: int,
    spread: SwitchSpread,
) -> DirectNetwork:
    """An oriented network without its switches, in which the root still sends as much."""
    sent = sent_from(directed, root, total)
    return without_switches(directed, sent, spread=spread)


def _by_width_and_depth(tree: SpanningTree) -> tuple[int, int, int, tuple[int, ...]]:
    return -tree.weight, tree.depth, tree.root, tuple(tree.arc)


def _both_ways(
    one_way: DirectNetwork,
    opposite: Int64Array,
    graph: CapacityGraph,
) -> tuple[DirectNetwork, Int64Array]:
    """A network with each arc's opposite over the opposite links, and for every arc its opposite.

    The opposites stand as far behind the arcs as there are arcs.
    """
    arcs = one_way.graph
    back = tuple(_turned(route, opposite) for route in one_way.routes)
    # The row of an arc is that of the first link of its route.
    first_links = [route[0] for route in back]
    both = replace(
        arcs,
        source=np.concatenate([arcs.source, arcs.destination]),
        destination=np.concatenate([arcs.destination, arcs.source]),
        capacity=np.tile(arcs.capacity, 2),
        row=np.concatenate([arcs.row, graph.row[first_links]]),
    )
    number = np.arange(arcs.num_arcs)
    opposites = np.concatenate([number + len(number), number])
    return DirectNetwork(both, one_way.routes + back), opposites


def _turned(route: tuple[int, ...], opposite: Int64Array) -> tuple[int, ...]:
    """The way back along a route."""
    return tuple(int(opposite[arc]) for arc in reversed(route))


def oriented(
    graph: CapacityGraph,
    rate: Strength,
    order: list[int],
    wanted: int | None = None,
) -> tuple[CapacityGraph, int]:
    """Share the capacity of every link between its directions, so that the rate fits out-trees.

    Returns the directed network, capacities `scale`-fold, and the scale: `wanted`, or the rate's
    denominator, or twice that where a switch has an odd capacity to halve. The rate reaches all
    from `order[0]`. The capacity into every set of nodes depends on the capacity into single
    nodes alone, so it is lowered node by node, in `order` from its end, as far as every set
    allows: one least cut each; the links follow by one flow (Frank 1980). Any order of the
    compute nodes is right; each may give other trees.
    """
    if sorted(order) != list(range(graph.num_compute)):
        raise InputError("the order must name every compute node once")
    links = DuplexLinks.of(graph)
    scale = _even_scale(links, graph.num_compute, rate.value, wanted)
    arriving = _arriving(links, order, math.floor(rate.value * scale), scale)
    capacity = scaled(links.capacity, scale)
    up = _shared(links, capacity, arriving)
    directed = np.zeros(graph.num_arcs, np.int64)
    directed[links.up] = up
    directed[links.down] = capacity - up
    return replace(graph, capacity=directed, unit=graph.unit / scale), scale


def _even_scale(
    links: DuplexLinks,
    num_compute: int,
    rate: Fraction,
    wanted: int | None,
) -> int:
    """The scale at which the capacity of every switch has a half."""
    scale = rate.denominator if wanted is None else wanted
    if scale < 1 or math.floor(rate * scale) < 1:
        message = f"weights that are multiples of 1/{scale} are above the rate of {rate}"
        raise InputError(message, code="scale")
    at_switches = _touching(links, scale)[num_compute:]
    return 2 * scale if np.any(at_switches % 2) else scale


def _arriving(links: DuplexLinks, order: list[int], total: int, scale: int) -> Int64Array:
    """How much capacity into every node is enough: int64[nodes].

    For a set X that lacks the root: the links inside X and `total` more. That function of sets is
    supermodular, so lowering node by node leads to a solution in whole numbers (Frank 1980).
    """
    touching = _touching(links, scale)
    # Half of a switch's capacity leads into it, whatever the rest.
    arriving = touching // 2
    arriving[order] = touching[order]
    sets = LeastSets(links, scale)
    anything = np.ones(links.num_nodes, np.bool_)
    for node in reversed(order):
        # Twice (arriving in X - links inside X - total unless X has the root),
        # by 2 * inside = touching - leaving.
        weights = 2 * arriving - touching
        weights[order[0]] += 2 * total
        value, _ = sets.least([node], weights, anything)
        arriving[node] -= value // 2 - total
    return arriving


def _touching(links: DuplexLinks, scale: int) -> Int64Array:
    """Capacity of the links at every node, `scale`-fold."""
    capacity = scaled(links.capacity, scale)
    total = np.zeros(links.num_nodes, np.int64)
    # A node may be an end of many links, so that indexing alone would lose all but one.
    np.add.at(total, links.low, capacity)
    np.add.at(total, links.high, capacity)
    return total


def _shared(links: DuplexLinks, capacity: Int64Array, arriving: Int64Array) -> Int64Array:
    """The part of every link that leads up, such that those into each node are `arriving`.

    One flow, from the nodes into which too much leads to those into which too little does: to
    turn capacity that leads from u to v moves it from the capacity into v to that into u.
    """
    up = capacity // 2
    surplus = _surplus(links, up, capacity - up, arriving)
    too_much, too_little = np.maximum(surplus, 0), np.maximum(-surplus, 0)
    n = links.num_nodes
    tails = np.concatenate([links.high, links.low])
    heads = np.concatenate([links.low, links.high])
    network = FlowNetwork.fed_and_drained(n, tails, heads)
    amounts = np.concatenate([up, capacity - up, too_much, too_little])
    value, left = network.remainder(amounts, n, n + 1)
    assert value == int(too_much.sum())
    return left[: len(up)]


def _surplus(
    links: DuplexLinks,
    up: Int64Array,
    down: Int64Array,
    arriving: Int64Array,
) -> Int64Array:
    """How much more leads into every node than should."""
    surplus = -arriving
    np.add.at(surplus, links.high, up)
    np.add.at(surplus, links.low, down)
    return surplus
