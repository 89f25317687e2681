"""Packings for collectives without a root: all-gather, reduce-scatter and all-reduce.

The trees of an all-reduce reduce upwards and broadcast downwards, without a barrier. If links
differ by direction, an all-reduce reduces up one tree and broadcasts down another tree of the same
root.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from collhub_packing import (
    SwitchSpread,
    TwoWayPacking,
    all_gather_trees,
    all_reduce_packing,
    direct,
    pack_two_ways,
)

from collhub_blink.packing.fewest_all_reduce_trees import find_fewest_all_reduce_trees
from collhub_blink.packing.machines import build_machine_packings, find_islands
from collhub_blink.packing.packings import (
    PlacedPacking,
    RateBound,
    build_shallow_packing,
    compute_minimum_cut_bound,
    to_ingress_bound,
    to_partition_bound,
)
from collhub_blink.packing.placing import PlacedTree, compute_unit, place_trees
from collhub_blink.packing.task import PackingTask, RankNetwork
from hub_core.schedules import directed_partition_rate, partition_rate


def build_all_gather_packings(task: PackingTask) -> list[PlacedPacking]:
    """Build the candidate packings of trees for an all-gather or a reduce-scatter.

    For a reduce-scatter, all links are reversed. The list has, in this order:

    - trees from every rank at the optimal rate, with traffic concentrated at switches
      (`SwitchSpread.NOWHERE`)
    - if there are switches or idle NPUs: such trees with traffic spread evenly
      (`SwitchSpread.EVERYWHERE`), then the packings for several hosts
      (`build_machine_packings`)
    - one packing with a shallow tree from every rank

    The packings for several hosts and the last one have the bound of the first one. Raise
    the errors of `build_every_rank_packing`.
    """
    network = task.oriented_network
    packings = [build_every_rank_packing(task, network, SwitchSpread.NOWHERE)]
    bound = packings[0].bound
    # Without switches there is no traffic to spread, and only one host.
    if not network.is_direct:
        packings.append(build_every_rank_packing(task, network, SwitchSpread.EVERYWHERE))
        packings.extend(build_machine_packings(task, bound))
    every_rank = range(network.graph.num_compute)
    packings.append(build_shallow_packing(task, "a shallow tree a rank", every_rank, bound))
    return packings


def build_every_rank_packing(
    task: PackingTask, network: RankNetwork, spread: SwitchSpread
) -> PlacedPacking:
    """Build a packing with trees from every rank to all other ranks at the optimal rate.

    `network`: the network to pack, for a reduce-scatter the reversed one. `spread`: at which
    switches traffic is distributed to all neighbours. With EVERYWHERE, `task.seeds_of_flat_trees`
    random orders are tried, otherwise `task.seeds`; their seeds are consecutive from `task.seed`.
    The packing with the fewest trees is chosen, then the one with the smallest sum of weight *
    depth.

    All ranks send at the same rate, the maximum one, so the total weight of the trees is equal for
    each root. The bound equals the rate of the trees: it is the `ingress-cut` of the data that must
    leave a set of nodes. `at_least` is the number of ranks, with the reason `every rank needs a
    tree`. The search budget is not used.

    Raises `InputError`: `one-node` for a single rank, `unreachable` if a rank cannot be reached,
    `capacities` for too large capacities, `unbalanced-switch` for some switches whose links differ
    by direction.
    """
    is_flat = spread is SwitchSpread.EVERYWHERE
    packing = all_gather_trees(
        network.graph,
        spread=spread,
        seeds=task.seeds_of_flat_trees if is_flat else task.seeds,
        first_seed=task.seed,
    )
    return PlacedPacking(
        method="trees of every rank",
        trees=place_trees(network, packing.trees, packing.network, network.graph),
        unit=packing.network.graph.unit,
        bound=to_ingress_bound(network, packing.rate),
        at_least=network.graph.num_compute,
        reason="every rank needs a tree",
    )


def build_all_reduce_packings(task: PackingTask) -> list[PlacedPacking]:
    """Build the candidate packings of trees for an all-reduce.

    If some link has no reverse link of equal bandwidth, the only candidate is
    `build_directed_packing`. Otherwise the list has, in this order:

    1. If all nodes of the network are ranks: the packing with the fewest trees at the best rate
       (`_build_minimal_packing`). Otherwise, i.e. with switches or forwarding NPUs: the packings
       of `_build_switched_packings`.
    2. One packing with a shallow tree from every rank, for small sizes.
    3. One packing with a single tree of packing 2: that of the least depth. Of several, it is the
       one with the smallest sum of depths, then with the lowest root.

    Packings 2 and 3 have the bound of the first packing. Raises `InputError` as `strength` does:
    `one-node` for a single rank, `unreachable` for a disconnected network, `capacities` for too
    large capacities.
    """
    # Using one tree in both directions needs links with equal bandwidth in both.
    if not task.network.is_duplex:
        return [build_directed_packing(task)]
    optimal = (
        [_build_minimal_packing(task)] if task.network.is_direct else _build_switched_packings(task)
    )
    bound = optimal[0].bound
    every_rank = range(task.network.graph.num_compute)
    shallow = build_shallow_packing(task, "a shallow tree a rank", every_rank, bound)
    # Small sizes use the single tree with the most central root.
    trees = [placed.tree for placed in shallow.trees]
    most_central = min(trees, key=lambda tree: (tree.depth, int(tree.depths.sum()), tree.root))
    rank = task.npus.index(most_central.root)
    return [*optimal, shallow, build_shallow_packing(task, "one shallow tree", [rank], bound)]


def _build_minimal_packing(task: PackingTask) -> PlacedPacking:
    """Build the all-reduce packing with the fewest trees at the best rate, for ranks only.

    `task.network` must be direct (no switches and no forwarding NPUs) and duplex. The best rate is
    the strength of the network. With strength a / b, the unit is that of the graph divided by b,
    and the total weight of the trees is a.

    First, `task.seeds` random orders give a packing. Then smaller numbers of trees are tried in
    ascending order, with steps from `task.budget` (`find_fewest_all_reduce_trees`). A number for
    which no packing exists raises `at_least`, the proved minimum; `reason` explains it. The first
    packing is the result if no smaller number works, the budget ends, a number is too large to
    search, or on Ctrl-C, which sets `task.budget.is_interrupted`.

    The bound of the rate is that of the partition that gives the strength. If switches multicast
    or reduce, it is the bound by minimum cuts. Raises `InputError` as `strength` does (`one-node`,
    `not-duplex`, `unreachable`, `capacities`).
    """
    network = task.network
    graph = network.graph
    optimal_packing = all_reduce_packing(graph, seeds=task.seeds, first_seed=task.seed)
    unit = graph.unit / optimal_packing.scale
    # In this unit the strength is an integer.
    scaled = replace(graph, capacity=graph.capacity * optimal_packing.scale, unit=unit)
    total = optimal_packing.strength.value.numerator
    minimal = find_fewest_all_reduce_trees(scaled, total, optimal_packing.trees, task.budget)
    return PlacedPacking(
        method="fewest trees",
        trees=place_trees(network, minimal.trees, direct(scaled), scaled),
        unit=unit,
        bound=to_partition_bound(network, optimal_packing.strength),
        at_least=minimal.lower_bound,
        reason=minimal.reason,
    )


def _build_switched_packings(task: PackingTask) -> list[PlacedPacking]:
    """Build the candidate packings of an all-reduce for a network with switches or idle NPUs.

    All have the bound of packing 2. Equal packings are not removed. They are, in this order:

    1. a reduce-scatter up the trees of every rank, then an all-gather down (`reduces_first`). The
       trees are those of `build_every_rank_packing`, without spreading at switches, and their unit
       is half of that of the all-gather. `at_least` is 1: the fewest trees are not searched.
    2. trees in which ranks forward instead of switches, with concentrated traffic
    3. the same with spread traffic
    4. the packings for several hosts (`build_machine_packings`)

    Raises `InputError` as `strength` does: `one-node` for a single rank, `not-duplex` for links
    that differ by direction, `unreachable` for a disconnected network, `capacities` for too large
    capacities.
    """
    concentrated = _build_forwarded_packing(task, SwitchSpread.NOWHERE)
    spread = _build_forwarded_packing(task, SwitchSpread.EVERYWHERE)
    bound = concentrated.bound
    all_gather = build_every_rank_packing(task, task.network, SwitchSpread.NOWHERE)
    # Each tree loads its links once downwards and their reverse links once upwards.
    up_and_down = replace(
        all_gather,
        method="up and down trees of every rank",
        unit=all_gather.unit / 2,
        bound=bound,
        at_least=1,
        reason="a packing has a tree",
        reduces_first=True,
    )
    # The first packing is simulated first: it is mostly the fastest for large data, and much slower
    # ones are then skipped.
    return [up_and_down, concentrated, spread, *build_machine_packings(task, bound)]


def _build_forwarded_packing(task: PackingTask, spread: SwitchSpread) -> PlacedPacking:
    """Build all-reduce trees of a network with switches, at a rate equal to its strength.

    Direct arcs between ranks replace the switches. `spread`: at which switches traffic is
    distributed evenly to all pairs of neighbours. One packing is computed for each of
    `task.seeds_of_flat_trees` seeds (at least one), from `task.seed` on. The packing with the
    fewest trees is chosen, then the smallest sum of weight * depth, then the lowest seed.

    The trees are placed on the routes of the arcs. The unit of the result is the unit of the
    graph divided by the scale of the packing. Its bound is `to_partition_bound` of the
    strength, which is the bound by minimum cuts if switches multicast or reduce. `at_least` is
    1.

    Raises the `InputError`s of `strength` and `orient_links`: `one-node`, `not-duplex`,
    `unreachable`, `capacities`.
    """
    network = task.network
    optimal_packing = all_reduce_packing(
        network.graph,
        spread=spread,
        seeds=task.seeds_of_flat_trees,
        first_seed=task.seed,
    )
    return PlacedPacking(
        method="trees through forwarders",
        trees=place_trees(network, optimal_packing.trees, optimal_packing.network, network.graph),
        unit=network.graph.unit / optimal_packing.scale,
        bound=to_partition_bound(network, optimal_packing.strength),
    )


def build_directed_packing(task: PackingTask) -> PlacedPacking:
    """Build all-reduce trees for links that differ by direction: one tree up and another one down.

    Both trees of a pair have the same root and weight. Data are reduced up the first and broadcast
    down the second. The trees are those of `pack_two_ways`, for which every link is divided between
    both directions. If it returns None (more than 256 nodes, for example), both sets are packed for
    the full links: all-gather trees down, and all-gather trees of the reversed network up.

    Trees are paired root by root (`_pair_trees`), in the order of `task.npus`. A root with trees in
    only one direction gives no pair. The unit is the largest at which every link has room for both
    trees of all pairs. The rate may be below the bound, which is that of `compute_directed_bound`.

    Raises `InputError`: `one-node` for a single rank, `unreachable` if a rank cannot be reached,
    `capacities` for too large capacities, `unbalanced-switch` for some switches whose links differ
    by direction. Raises `ValueError` if no root has trees in both directions.
    """
    network = task.network
    packing = pack_two_ways(network.graph, seeds=task.seeds, first_seed=task.seed)
    if packing is None:
        down, up = _pack_trees(task, network), _pack_trees(task, network.reversed)
    else:
        down = place_trees(network, packing.down, packing.down_network, network.graph)
        reversed_network = network.reversed
        up = place_trees(reversed_network, packing.up, packing.up_network, reversed_network.graph)
    down_of_root, up_of_root = _group_by_root(down), _group_by_root(up)
    pairs: list[PlacedTree] = []
    for root in task.npus:
        pairs += _pair_trees(down_of_root.get(root, []), up_of_root.get(root, []))
    # Rates up and down may differ, so the loads of both directions are added.
    unit = compute_unit(network.topology, pairs, True)
    bound = compute_directed_bound(network, packing)
    return PlacedPacking("trees for each direction", tuple(pairs), unit, bound)


def _pack_trees(task: PackingTask, network: RankNetwork) -> tuple[PlacedTree, ...]:
    """Pack trees of an all-gather at the best rate, and place them on the topology of `network`.

    Every rank of the network is a root, and the trees of each root have the same total weight. Of
    `task.seeds` random orders, from `task.seed` on, the packing with the fewest trees is returned
    (`all_gather_trees`). Only these two numbers of `task` are used.

    Raises `InputError`: `one-node` for a single rank, `unreachable` if a rank cannot be reached,
    `capacities` for too large capacities, `unbalanced-switch` for some switches whose links differ
    by direction.
    """
    packing = all_gather_trees(network.graph, seeds=task.seeds, first_seed=task.seed)
    return place_trees(network, packing.trees, packing.network, network.graph)


def _group_by_root(trees: Sequence[PlacedTree]) -> dict[int, list[PlacedTree]]:
    """Return the trees by the NPU of their root; roots and trees keep their order.

    `up` trees are not considered.
    """
    trees_of_root: dict[int, list[PlacedTree]] = {}
    for tree in trees:
        trees_of_root.setdefault(tree.tree.root, []).append(tree)
    return trees_of_root


def _pair_trees(down: Sequence[PlacedTree], up: Sequence[PlacedTree]) -> Iterator[PlacedTree]:
    """Yield `down` trees, each with an `up` tree attached (field `up`) that has the same weight.

    Trees are paired in the order of both lists, and a tree is split where its weight exceeds
    its partner's. Weights are positive integers. If the totals differ, the weights of each side
    are multiplied by a factor first, so that both totals become their least common multiple.
    Yields no trees if one side has no trees.
    """
    if not down or not up:
        return
    down_total = sum(tree.weight for tree in down)
    up_total = sum(tree.weight for tree in up)
    total = math.lcm(down_total, up_total)
    remaining_down = [tree.weight * (total // down_total) for tree in down]
    remaining_up = [tree.weight * (total // up_total) for tree in up]
    first = second = 0
    while first < len(down) and second < len(up):
        weight = min(remaining_down[first], remaining_up[second])
        yield replace(_replace_weight(down[first], weight), up=_replace_weight(up[second], weight))
        remaining_down[first] -= weight
        remaining_up[second] -= weight
        if not remaining_down[first]:
            first += 1
        if not remaining_up[second]:
            second += 1


def _replace_weight(placed_tree: PlacedTree, weight: int) -> PlacedTree:
    """Return a copy of the placed tree with the weight `weight`.

    Its `up` tree, if any, keeps its own weight, and nodes and routes are shared with the original.
    """
    tree = replace(placed_tree.tree, weight=weight)
    return replace(placed_tree, tree=tree)


def compute_directed_bound(network: RankNetwork, packing: TwoWayPacking | None = None) -> RateBound:
    """Return the smallest proved upper bound on the rate of an all-reduce, in buffer bytes/s.

    It limits every schedule, also if links have different bandwidths in the two directions. If
    switches multicast or reduce, it is the bound by minimum cuts. Otherwise it is the smallest of
    these bounds, the first of equal ones:

    1. for each partition of `find_islands` with at least two blocks, the capacity between its
       blocks. Single ranks come first, then groups connected by ever narrower links.
    2. minimum cuts: data that must leave or reach rank 0
    3. with a `packing`: the directed partition into its sets `sending` and `receiving`, if these
       are at least two sets that are all disjoint

    Nodes and blocks are numbered as in the topology. Raises `InputError`: `one-node` for a single
    rank, `unreachable` if a rank cannot be reached. Raises `ValueError` without links.
    """
    if network.is_multiplied:
        return compute_minimum_cut_bound(network)
    # Exact bandwidths in bytes/s by nodes of the topology.
    graph = network.graph
    sources = network.nodes[graph.source].tolist()
    destinations = network.nodes[graph.destination].tolist()
    bandwidths = [capacity * graph.unit for capacity in graph.capacity.tolist()]
    capacities = dict(zip(zip(sources, destinations, strict=True), bandwidths, strict=True))

    bounds: list[RateBound] = []
    for partition in find_islands(graph):
        if len(partition) > 1:
            blocks = tuple(network.to_topology_nodes(block) for block in partition)
            bounds.append(RateBound("partition", partition_rate(blocks, capacities), blocks=blocks))
    bounds.append(compute_minimum_cut_bound(network))
    limiting = () if packing is None else (*packing.sending, *packing.receiving)
    are_disjoint = len(set(chain(*limiting))) == sum(map(len, limiting))
    if packing is not None and len(limiting) > 1 and are_disjoint:
        blocks = tuple(network.to_topology_nodes(block) for block in limiting)
        senders = len(packing.sending)
        rate = directed_partition_rate(blocks, senders, capacities)
        bounds.append(RateBound("directed-partition", rate, blocks=blocks, senders=senders))
    return min(bounds, key=lambda bound: bound.rate)
