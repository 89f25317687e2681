"""Packings of trees for collectives of all nodes: all-gather from all roots, and all-reduce.

All-gather after ForestColl (Zhao et al., arXiv 2402.06787): scale to the smallest integers at which
the rate is an integer number of trees per root (or use a fixed number of trees), split off the
switches, then grow trees from all roots.

An all-reduce at rate t needs undirected trees of weight t, since reduce and broadcast on a tree
load each of its links by its weight in both directions. The strength (Nash-Williams, Tutte 1961) is
the maximum. To pack it, the capacity of every link is divided between its directions such that
out-trees of that total weight fit (Frank 1980), which `pack_arborescences` then finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from collhub_packing.flows import FlowNetwork, scaled
from collhub_packing.graph import CapacityGraph, DuplexLinks, LeastSets
from collhub_packing.rates import (
    Rate,
    SourcedNetwork,
    Strength,
    all_gather_rate,
    strength,
    to_weight_array,
)
from collhub_packing.splitting import (
    DirectNetwork,
    SwitchSpread,
    direct,
    remove_switches,
    without_switches,
)
from collhub_packing.trees import (
    SpanningTree,
    cost,
    pack_arborescences,
    pack_rooted_trees,
    sent_from,
)
from hub_core.columns import Int64Array
from hub_core.model import InputError


@dataclass(frozen=True, slots=True, eq=False)
class MultirootPacking:
    """Trees in `network`; those rooted at node v have total weight `per_root[v]`.

    The unit of the network's graph is one weight in bytes/s. `rate`: rate of the trees in units of
    the original graph, per unit of the nodes' weights; its `cut` proves it if it is the best rate,
    and is empty for a fixed number of trees.
    """

    rate: Rate
    per_root: Int64Array
    network: DirectNetwork
    trees: list[SpanningTree]


def all_gather_trees(
    graph: CapacityGraph,
    weights: Sequence[int] | None = None,
    *,
    spread: SwitchSpread = SwitchSpread.NOWHERE,
    seeds: int = 4,
    first_seed: int = 0,
) -> MultirootPacking:
    """Pack trees for an all-gather at the best rate x.

    Every node v sends `weights[v]` * x to all other nodes. x is `all_gather_rate`; `weights`
    None means 1 for each. The numbers are scaled to the smallest integers. For 1 / x = a / b,
    let g be the greatest common divisor of b and all capacities. Capacities are multiplied by
    a / g, and a node sends b / g per unit of its weight.

    Switches are then replaced by direct links, as `spread` selects. Packings are computed for
    `seeds` random orders (at least one), numbered from `first_seed`. The one with the fewest
    trees is returned; of several the one with the smallest sum of weight times depth, then
    the first.

    Raises the `InputError`s of `all_gather_rate` and of the removal of switches.
    """
    share = to_weight_array(graph, weights)
    rate = all_gather_rate(graph, weights)
    # A common divisor of the trees per root and of all capacities is not needed.
    divisor = math.gcd(rate.value.numerator, *graph.capacity.tolist())
    scaled_graph = _scale_capacities(graph, Fraction(rate.value.denominator, divisor))
    sent = scaled(share, rate.value.numerator // divisor)
    network = remove_switches(scaled_graph, sent, spread=spread)
    trees = pack_rooted_trees(network.graph, sent, seeds=seeds, first_seed=first_seed)
    return MultirootPacking(rate, sent, network, trees)


def fixed_trees(
    graph: CapacityGraph,
    per_root: int,
    weights: Sequence[int] | None = None,
    *,
    spread: SwitchSpread = SwitchSpread.NOWHERE,
    seeds: int = 4,
    first_seed: int = 0,
) -> MultirootPacking:
    """Pack trees of weight 1 for an all-gather, `per_root` trees per unit of each node's weight.

    The rate is the best one with this number of trees (`fixed_rate`); `per_root` = 1
    gives the fewest possible trees. `weights` (None means 1 for each node), `spread`,
    `seeds`, `first_seed`, the choice among packings, and the errors are as in
    `all_gather_trees`. The rate of the result has no cut as a proof, because more trees
    may be faster.
    """
    value = fixed_rate(graph, per_root, weights)
    sent = scaled(to_weight_array(graph, weights), per_root)
    network = remove_switches(_scale_capacities(graph, per_root / value), sent, spread=spread)
    trees = pack_rooted_trees(network.graph, sent, seeds=seeds, first_seed=first_seed)
    return MultirootPacking(Rate(value, ()), sent, network, trees)


def fixed_rate(
    graph: CapacityGraph,
    per_root: int,
    weights: Sequence[int] | None = None,
) -> Fraction:
    """Compute the best all-gather rate if every node gets a given number of trees.

    `weights`: one per compute node, None for 1 each. A compute node is the root of `per_root`
    * weight trees, each of which carries the same amount of data.

    The rate is the exact fraction `per_root` / U. U is the smallest factor for which the
    capacities c, scaled to floor(U * c), carry one unit of data per tree from its root to all
    compute nodes. It is found by binary search among the multiples of 1 / c of all c.

    The rate is at most that of `all_gather_rate`, which also raises the errors.
    """
    sent = scaled(to_weight_array(graph, weights), per_root)
    network = SourcedNetwork(graph)

    def is_sufficient(times: Fraction) -> bool:
        """Return whether the scaled capacities carry the data `sent` of all nodes.

        They are the capacities times the factor `times`, rounded down.
        """
        return network.shortage(_scale_and_floor(graph.capacity, times), sent) is None

    lower = per_root / all_gather_rate(graph, weights).value
    factor = lower
    # Terminates, because rounding down reduces a capacity by less than 1.
    while not is_sufficient(factor):
        factor *= 2
    upper = factor
    for capacity in sorted({int(value) for value in graph.capacity if value}):
        upper = _find_smallest_multiple(capacity, lower, upper, is_sufficient)
    return per_root / upper


@dataclass(frozen=True, slots=True, eq=False)
class AllReducePacking:
    """Trees of an all-reduce with total weight floor(`scale` times the strength).

    The trees use arcs of `network`, whose graph's unit is that of the original graph over `scale`.
    The arcs of both directions of a link run over the same physical links, so that reduce and
    broadcast fit together.
    """

    strength: Strength
    scale: int
    network: DirectNetwork
    trees: list[SpanningTree]

    @property
    def rate(self) -> Fraction:
        """Total rate of the trees, in units of the original graph."""
        return Fraction(sum(tree.weight for tree in self.trees), self.scale)


def all_reduce_trees(
    graph: CapacityGraph,
    *,
    seeds: int = 8,
    first_seed: int = 0,
) -> tuple[Strength, list[SpanningTree]]:
    """Compute the strength a / q of a network without switches, and pack trees of total weight a.

    The strength, a reduced fraction, is the largest possible rate of an all-reduce over
    trees. Weights are in units of 1 / q of those of the graph. All trees together, used for
    reducing to their roots and broadcasting from them, load every link by at most its
    capacity in each direction. Each tree is rooted at its centre. The packings of `seeds`
    random orientations (at least one), with the random numbers `first_seed`, `first_seed` +
    1, ..., are compared: the one with the fewest trees is returned, of equal ones that with
    the smallest sum of weight times depth. Raises `InputError` for switches (`switches`;
    use `all_reduce_packing`) and as `strength` does.
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
    """Pack trees for an all-reduce at the best rate (`strength`) of any network, also with
    switches.

    Links are oriented first; half of a switch's capacity is directed into it, so that all
    data that enter can leave. Switches are then replaced by direct links (`spread`).
    Weights are multiples of 1 / `scale`, or of 1 / (2 `scale`) if a switch has an odd
    capacity to halve. The default of `scale` is the smallest one at which the rate equals
    the strength. A smaller one gives the best rate below it, with fewer trees.

    One packing is made for each of `seeds` random orientations (at least one), numbered
    from `first_seed`. The one with the fewest trees is returned; of several the one with
    the smallest sum of weight times depth, then the first. Raises the `InputError`s of
    `strength` and `orient_links`.
    """
    network_strength = strength(graph)
    min_scale = network_strength.value.denominator if scale is None else scale
    orders = range(first_seed, first_seed + max(1, seeds))
    packings = [_build_packing(graph, network_strength, min_scale, spread, seed) for seed in orders]
    return min(packings, key=lambda packing: cost(packing.trees))


def orient_links(
    graph: CapacityGraph,
    rate: Strength,
    order: list[int],
    min_scale: int | None = None,
) -> tuple[CapacityGraph, int]:
    """Divide the capacity of every link between its directions, so that out-trees at `rate` fit.

    Returns the directed network, with capacities in units of `graph.unit` / scale, and the scale.
    The scale is `min_scale` (default: the denominator of the rate), or twice that if a switch has
    an odd total capacity at `min_scale`. For every pair of opposite arcs, the two new capacities
    add up to scale times the capacity of the link.

    Trees from the root `order[0]` to all compute nodes, with the total weight floor(rate x scale),
    then fit. `order`: all compute nodes; different orders may give different capacities. The
    capacity into every compute node is lowered in reversed `order` as far as every set of nodes
    allows, with one minimum cut each; half of a switch's capacity leads into it. One flow then
    divides the links (Frank 1980).

    Raises `InputError`, in this order: if `order` does not contain every compute node once;
    `not-duplex` for links that differ by direction; `scale` if the scale is below 1 or the rate
    times the scale is below 1; `capacities` if scaled capacities add up to 2^60 or more.
    """
    if sorted(order) != list(range(graph.num_compute)):
        raise InputError("the order must name every compute node once")
    links = DuplexLinks.of(graph)
    # Find the scale (`min_scale`, or twice that) at which the capacity at every switch is even.
    scale = rate.value.denominator if min_scale is None else min_scale
    if scale < 1 or math.floor(rate.value * scale) < 1:
        message = f"weights that are multiples of 1/{scale} are above the rate of {rate.value}"
        raise InputError(message, code="scale")
    at_switches = _compute_touching(links, scale)[graph.num_compute :]
    scale = 2 * scale if np.any(at_switches % 2) else scale
    arriving = _compute_arriving(links, order, math.floor(rate.value * scale), scale)
    capacity = scaled(links.capacity, scale)
    up = _divide_links(links, capacity, arriving)
    directed = np.zeros(graph.num_arcs, np.int64)
    directed[links.up] = up
    directed[links.down] = capacity - up
    return replace(graph, capacity=directed, unit=graph.unit / scale), scale


def _find_smallest_multiple(
    capacity: int,
    lower: Fraction,
    upper: Fraction,
    is_sufficient: Callable[[Fraction], bool],
) -> Fraction:
    """Return the smallest multiple of 1 / `capacity` that `is_sufficient` accepts.

    Only multiples from `lower` to `upper` are tried, both included. If `is_sufficient`
    accepts a factor, it must accept all larger ones (binary search). If it accepts none of
    them, `upper` is returned, which then need not be such a multiple.
    """
    low, high = math.ceil(lower * capacity), math.floor(upper * capacity)
    # More capacity never hurts, so that sufficient factors are above the insufficient ones.
    while low <= high:
        middle = (low + high) // 2
        factor = Fraction(middle, capacity)
        if is_sufficient(factor):
            upper, high = factor, middle - 1
        else:
            low = middle + 1
    return upper


def _scale_capacities(graph: CapacityGraph, times: Fraction) -> CapacityGraph:
    """Return the network with its capacities multiplied by a positive factor and rounded
    down.

    The unit is divided by the factor, so that capacity * unit stays the same, up to
    rounding. A capacity may become 0. Raises the `InputError` of `scaled`.
    """
    capacity = _scale_and_floor(graph.capacity, times)
    return replace(graph, capacity=capacity, unit=graph.unit / times)


def _scale_and_floor(capacity: Int64Array, times: Fraction) -> Int64Array:
    """Multiply capacities by a factor, rounded down."""
    # Integers only: a float would round some of them up.
    return scaled(capacity, times.numerator) // times.denominator


def _build_packing(
    graph: CapacityGraph,
    network_strength: Strength,
    min_scale: int,
    spread: SwitchSpread,
    seed: int,
) -> AllReducePacking:
    """Build the packing of trees of an all-reduce for one random orientation of the links.

    `seed` decides the order of the compute nodes for the orientation, and the search of trees. The
    first node of the order is the root of the search. Capacities are multiplied by the scale:
    `min_scale`, or twice that if a switch has an odd capacity to halve. The weights of the trees
    add up to strength times scale, rounded down.

    Without switches, the network of the result is `graph` with scaled capacities. With switches it
    has direct links between compute nodes, chosen by `spread`, and the reverse of each. Trees are
    rerooted at their centres, i.e. at minimum depth, and sorted: larger weight first, then lower
    depth, root and arcs. Raises `InputError` as `orient_links`.
    """
    order: list[int] = np.random.default_rng(seed).permutation(graph.num_compute).tolist()
    directed, scale = orient_links(graph, network_strength, order, min_scale)
    total = math.floor(network_strength.value * scale)
    one_way = directed
    opposite = DuplexLinks.of(graph).opposite(graph.num_arcs)
    if graph.has_switches:
        sent = sent_from(directed, order[0], total)
        split = without_switches(directed, sent, spread=spread)
        one_way = split.graph
        # Add the reverse of every arc, over the reverse links.
        arcs = split.graph
        back = tuple(tuple(int(opposite[arc]) for arc in reversed(route)) for route in split.routes)
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
        network, opposite = DirectNetwork(both, split.routes + back), opposites
    else:
        network = direct(replace(directed, capacity=scaled(graph.capacity, scale)))
    trees = pack_arborescences(one_way, order[0], total, seeds=1, first_seed=seed)
    # Reroot trees at their centres, where they have minimum depth; sort wide ones first.
    centred = []
    for tree in trees:
        centre = tree.centre(opposite)
        centred.append(tree.rerooted(centre, opposite))
    centred.sort(key=lambda tree: (-tree.weight, tree.depth, tree.root, tuple(tree.arc)))
    return AllReducePacking(network_strength, scale, network, centred)


def _compute_arriving(links: DuplexLinks, order: list[int], total: int, scale: int) -> Int64Array:
    """Choose how much capacity is directed into each node, so that trees from the first node fit.

    `order`: the compute nodes, the root of the trees first. `total`: weight of the trees. Returns
    int64[nodes], in units of 1 / `scale`.

    - A switch gets half of its capacity, rounded down.
    - A compute node starts with the capacity of all its links. In reversed `order`, so that the
      root is last, each is lowered to the smallest value that every set of nodes with this node
      permits. The sum over a set must be at least the capacity of the links inside it, plus `total`
      if the root is not in it.

    As this requirement is a supermodular function of the set, lowering node by node leads to an
    integer solution (Frank 1980). Raises `InputError` (`capacities`) if scaled capacities add up to
    2^60 or more.
    """
    touching = _compute_touching(links, scale)
    # Half of a switch's capacity is directed into it.
    arriving = touching // 2
    arriving[order] = touching[order]
    sets = LeastSets(links, scale)
    all_nodes = np.ones(links.num_nodes, np.bool_)
    for node in reversed(order):
        # Twice (arriving in X - links inside X - total unless X has the root),
        # by 2 * inside = touching - leaving.
        weights = 2 * arriving - touching
        weights[order[0]] += 2 * total
        value, _ = sets.least([node], weights, all_nodes)
        arriving[node] -= value // 2 - total
    return arriving


def _compute_touching(links: DuplexLinks, scale: int) -> Int64Array:
    """Return for each node the sum of the capacities of its links, times `scale`: int64[nodes].

    A link counts at both of its nodes; a node without links has 0. Raises `InputError` if the
    capacities of all links, each counted once, times `scale` add up to 2^60 or more.
    """
    capacity = scaled(links.capacity, scale)
    total = np.zeros(links.num_nodes, np.int64)
    # `np.add.at`, since a node occurs many times.
    np.add.at(total, links.low, capacity)
    np.add.at(total, links.high, capacity)
    return total


def _divide_links(links: DuplexLinks, capacity: Int64Array, arriving: Int64Array) -> Int64Array:
    """Divide the capacity of each link between its two directions, with a limit at each node.

    Returns the capacity from `low` to `high` of every link: int64[links]. The rest of the capacity
    is that from `high` to `low`. The division starts with equal halves; for an odd capacity, the
    smaller half is from `low` to `high`. One flow then turns capacity around, so that at most
    `arriving` leads into each node.

    `capacity`: int64 by link; `arriving`: int64[nodes], as of `_compute_arriving`. Neither is
    changed. Raises `AssertionError` if no division satisfies all limits.
    """
    up = capacity // 2
    # Compute the capacity into every node minus `arriving`.
    surplus = -arriving
    np.add.at(surplus, links.high, up)
    np.add.at(surplus, links.low, capacity - up)
    excess, deficit = np.maximum(surplus, 0), np.maximum(-surplus, 0)
    n = links.num_nodes
    tails = np.concatenate([links.high, links.low])
    heads = np.concatenate([links.low, links.high])
    network = FlowNetwork.fed_and_drained(n, tails, heads)
    amounts = np.concatenate([up, capacity - up, excess, deficit])
    value, remaining = network.remainder(amounts, n, n + 1)
    assert value == int(excess.sum())
    return remaining[: len(up)]
