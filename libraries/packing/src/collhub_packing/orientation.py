"""Trees of an all-reduce: orient the links so that out-trees of the network's full strength fit, and pack them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from collhub_packing.duplex import DuplexLinks, LeastSets
from collhub_packing.flows import FlowNetwork, scaled
from collhub_packing.graph import CapacityGraph
from collhub_packing.growth import pack_arborescences
from collhub_packing.rates import Strength, strength
from collhub_packing.splitting import DirectNetwork, SwitchSpread, direct, without_switches
from collhub_packing.trees import SpanningTree
from hub_core.diagnostics import InputError

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class AllReducePacking:
    """Trees of an all-reduce, of weight `scale` times the strength together, or the whole number below.

    The trees are made of arcs of `network`, whose graph's unit is 1 / `scale` of the given one's; the arcs of each of
    its links run over the same physical links, so that reduce and broadcast fit together.
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
    graph: CapacityGraph, *, seeds: int = 8, first_seed: int = 0
) -> tuple[Strength, list[SpanningTree]]:
    """The strength a / q of a network without switches and trees of weight a together, in units of 1 / q of the graph's.

    Reduce towards the root and broadcast from it, on every tree at once, load a link by at most its capacity in either
    direction. Each tree is rooted at its centre. Of the packings of `seeds` random orientations and orders:
    the fewest trees, then the least sum of weight times depth. Raises `InputError` as `strength` does, and for
    switches, for which there is `all_reduce_packing`.
    """
    if graph.num_nodes > graph.num_compute:
        raise InputError(
            "trees of links cannot pass switches", cure="split the switches off", code="switches"
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
    """As `all_reduce_trees`, also with switches, which are split off (`without_switches`) once the links are oriented.

    Half of the capacity of a switch leads into it, so what enters can leave; the strength is reached there too. Weights
    are multiples of 1 / `scale`, of twice that where a switch has an odd capacity to halve. The default is the
    least scale at which the rate is the strength; a lesser one gives the best rate below, with fewer trees.
    """
    found = strength(graph)
    wanted = found.value.denominator if scale is None else scale
    packings = [
        _packing(graph, found, wanted, spread, seed)
        for seed in range(first_seed, first_seed + max(1, seeds))
    ]
    return min(
        packings,
        key=lambda packing: (len(packing.trees), sum(t.weight * t.depth for t in packing.trees)),
    )


def _packing(
    graph: CapacityGraph, found: Strength, wanted: int, spread: SwitchSpread, seed: int
) -> AllReducePacking:
    """The packing of one random orientation."""
    order = [int(node) for node in np.random.default_rng(seed).permutation(graph.num_compute)]
    directed, scale = oriented(graph, found, order, wanted)
    total = math.floor(found.value * scale)
    if graph.num_nodes == graph.num_compute:
        opposite = DuplexLinks.of(graph).opposite(graph.num_arcs)
        network = direct(replace(directed, capacity=scaled(graph.capacity, scale)))
        grown = pack_arborescences(directed, order[0], total, seeds=1, first_seed=seed)
    else:
        one_way = without_switches(
            directed, _sent(order[0], total, graph.num_compute), spread=spread
        )
        network, opposite = _both_ways(
            one_way, DuplexLinks.of(graph).opposite(graph.num_arcs), graph
        )
        grown = pack_arborescences(one_way.graph, order[0], total, seeds=1, first_seed=seed)
    trees = [tree.rerooted(tree.centre(opposite), opposite) for tree in grown]
    trees.sort(key=lambda tree: (-tree.weight, tree.depth, tree.root, tuple(tree.arc)))
    return AllReducePacking(found, scale, network, trees)


def _sent(root: int, total: int, num_compute: int) -> Int64Array:
    sent = np.zeros(num_compute, np.int64)
    sent[root] = total
    return sent


def _both_ways(
    one_way: DirectNetwork, opposite: Int64Array, graph: CapacityGraph
) -> tuple[DirectNetwork, Int64Array]:
    """A network with each arc's opposite over the opposite links, as far behind the arcs as there are arcs."""
    arcs = one_way.graph
    back = tuple(tuple(int(opposite[arc]) for arc in reversed(route)) for route in one_way.routes)
    both = replace(
        arcs,
        source=np.concatenate([arcs.source, arcs.destination]),
        destination=np.concatenate([arcs.destination, arcs.source]),
        capacity=np.tile(arcs.capacity, 2),
        row=np.concatenate([arcs.row, graph.row[[route[0] for route in back]]]),
    )
    number = np.arange(arcs.num_arcs)
    return DirectNetwork(both, one_way.routes + back), np.concatenate(
        [number + len(number), number]
    )


def oriented(
    graph: CapacityGraph, rate: Strength, order: list[int], wanted: int | None = None
) -> tuple[CapacityGraph, int]:
    """Share the capacity of every link, `scale`-fold, between its directions, so that the rate reaches all from `order[0]`.

    The scale, also returned, is `wanted`, by default the strength's denominator, or twice that where a switch has an odd
    capacity to halve; the rate is the strength times the scale, rounded down. The capacity into every set of nodes
    depends on the capacity into single nodes alone, so it is lowered node by node, in `order` from its end, as far as every set
    allows: one least cut each; the links follow by one flow (Frank 1980). Any order of the compute nodes is right;
    each may give other trees.
    """
    if sorted(order) != list(range(graph.num_compute)):
        raise InputError("the order must name every compute node once")
    links = DuplexLinks.of(graph)
    scale = rate.value.denominator if wanted is None else wanted
    if scale < 1 or math.floor(rate.value * scale) < 1:
        raise InputError(
            f"weights that are multiples of 1/{scale} are above the rate of {rate.value}",
            code="scale",
        )
    if np.any(_touching(links, scale)[graph.num_compute :] % 2):
        scale *= 2
    arriving = _arriving(links, order, math.floor(rate.value * scale), scale)
    capacity = scaled(links.capacity, scale)
    up = _shared(links, capacity, arriving)
    directed = np.zeros(graph.num_arcs, np.int64)
    directed[links.up], directed[links.down] = up, capacity - up
    return replace(graph, capacity=directed, unit=graph.unit / scale), scale


def _arriving(links: DuplexLinks, order: list[int], total: int, scale: int) -> Int64Array:
    """How much capacity into every node is enough: for X with others than the root, the links inside X and `total` more."""
    touching = _touching(links, scale)
    arriving = touching // 2
    arriving[order] = touching[order]
    sets = LeastSets(links, scale)
    anything = np.ones(links.num_nodes, np.bool_)
    for node in reversed(order):
        # Twice (arriving in X - links inside X - total unless X has the root), by 2 * inside = touching - leaving.
        weights = 2 * arriving - touching
        weights[order[0]] += 2 * total
        value, _ = sets.least([node], weights, anything)
        arriving[node] -= value // 2 - total
    return arriving


def _touching(links: DuplexLinks, scale: int) -> Int64Array:
    """Capacity of the links at every node, `scale`-fold."""
    total = np.zeros(links.num_nodes, np.int64)
    np.add.at(total, links.low, scaled(links.capacity, scale))
    np.add.at(total, links.high, scaled(links.capacity, scale))
    return total


def _shared(links: DuplexLinks, capacity: Int64Array, arriving: Int64Array) -> Int64Array:
    """The part of every link that leads up, such that the parts into each node are `arriving`: one flow."""
    up = capacity // 2
    surplus = -arriving
    np.add.at(surplus, links.high, up)
    np.add.at(surplus, links.low, capacity - up)
    n = links.num_nodes
    nodes = np.arange(n)
    # To turn capacity that leads from u to v moves it from the capacity into v to that into u.
    network = FlowNetwork.of(
        n + 2,
        np.concatenate([links.high, links.low, np.full(n, n), nodes]),
        np.concatenate([links.low, links.high, nodes, np.full(n, n + 1)]),
    )
    amounts = np.concatenate([up, capacity - up, np.maximum(surplus, 0), np.maximum(-surplus, 0)])
    value, left = network.remainder(amounts, n, n + 1)
    assert value == int(np.maximum(surplus, 0).sum())
    return left[: len(up)]
