"""Packings that a collective can run on: their rate, the bounds that prove it, and a cache.

Packings do not depend on the size of the collective; only the choice among them does. Comparisons
and tables of sizes request one network many times, and proofs of fewest trees take most of the
time, so packings are cached.

Two kinds of packings use the topology's own routes. Shallow trees have few hops instead of the full
rate, since latency dominates for small data. A single chain visits all ranks along neighbouring
switches, for ranks with one link each: trees through switches are certified on their own routes,
and if messages take the shortest routes instead, several may share a link. Between neighbouring
switches there is only one shortest route in each direction, so a chain along them keeps its rate.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from collhub_packing import Rate, SpanningTree, Strength, broadcast_rate

from collhub_blink.packing.placing import (
    PlacedTree,
    build_shallow_tree,
    compute_unit,
    place_along_routes,
)
from collhub_blink.packing.task import PackingTask, RankNetwork
from hub_core.columns import Int64Array
from hub_core.model import CollectiveKind
from hub_core.network import find_reached


@dataclass(frozen=True, slots=True)
class RateBound:
    """Upper bound of the rate in bytes of the collective per second, with the nodes that prove it.

    `kind`: `cut` or `ingress-cut` with one side of the cut in `nodes`, or `partition` or
    `directed-partition` with `blocks`, of which the first `senders` count by the links that leave
    them. All are nodes of the topology.
    """

    kind: str
    rate: Fraction
    nodes: tuple[int, ...] = ()
    blocks: tuple[tuple[int, ...], ...] = ()
    senders: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPacking:
    """Weighted trees over NPUs; a weight of 1 carries `unit` bytes of the collective per second.

    `method`: name shown to users. `at_least`: no packing of this rate with integer weights has
    fewer trees; `reason`: the proof in words. `targets[t]`: the only NPU whose data tree t carries
    (scatter, gather); empty if every tree serves all NPUs. `is_shallow`: designed for low latency,
    not for the rate. `reduces_first`: an all-reduce that sends messages up the trees before those
    down.
    """

    method: str
    trees: tuple[PlacedTree, ...]
    unit: Fraction
    bound: RateBound
    at_least: int = 1
    reason: str = "a packing has a tree"
    targets: tuple[int, ...] = ()
    is_shallow: bool = False
    reduces_first: bool = False

    @property
    def weights(self) -> list[int]:
        """Weights of the trees, in order."""
        return [tree.weight for tree in self.trees]

    @property
    def rate(self) -> Fraction:
        """Return the rate in bytes of the collective per second: unit times the sum of the weights.

        For a scatter or gather (trees with targets), the root's own part, which no tree carries,
        counts too: with n distinct targets, the rate is multiplied by (n + 1) / n.
        """
        carried = self.unit * sum(self.weights)
        num_targets = len(set(self.targets))
        if not num_targets:
            return carried
        # The root of a scatter keeps its own part, which no tree carries.
        return carried * Fraction(num_targets + 1, num_targets)

    @property
    def depth(self) -> int:
        """Depth of the deepest tree in hops."""
        return max(placed.depth for placed in self.trees)

    @property
    def is_optimal(self) -> bool:
        """Whether the rate equals the bound."""
        return self.rate == self.bound.rate

    @property
    def status(self) -> str:
        """`optimal` if the number of trees is proved to be minimal, else `feasible`."""
        return "optimal" if self.at_least == len(self.trees) else "feasible"


def to_cut_bound(network: RankNetwork, rate: Rate) -> RateBound:
    """Convert the rate of a broadcast to a bound of the kind `cut`, in bytes/s.

    `rate`: the value, in units of the graph of `network`, and the nodes of the minimum cut
    on the root's side, which get their numbers in the topology. For a reduce, `network`
    must be the reversed network.
    """
    bytes_per_s = rate.value * network.graph.unit
    return RateBound("cut", bytes_per_s, network.to_topology_nodes(rate.cut))


def to_ingress_bound(network: RankNetwork, rate: Rate) -> RateBound:
    """Convert the rate of an all-gather to a bound of the kind `ingress-cut`, in bytes/s.

    `rate`: the value is the data of one rank, in units of the graph of `network`; the bound
    counts the data of all ranks. The nodes of the cut get their numbers in the topology.
    For a reduce-scatter, `network` must be the reversed network.
    """
    # `rate` counts the data of one rank; the collective has the data of all ranks.
    bytes_per_s = rate.value * network.graph.unit * network.graph.num_compute
    return RateBound("ingress-cut", bytes_per_s, network.to_topology_nodes(rate.cut))


def to_partition_bound(network: RankNetwork, network_strength: Strength) -> RateBound:
    """Convert the strength of a network to a bound of an all-reduce, in bytes/s.

    The rate is the value of `network_strength` times the unit of the graph (bytes/s per unit
    of weight). The bound has the kind `partition`. Its blocks are the sides of the partition
    that gives the strength, as nodes of the topology, with switches.

    If switches multicast or reduce, `network_strength` is ignored and the result is
    `compute_minimum_cut_bound`, because one message would count several times in a partition.
    Each link must have an equal reverse link; this is not checked.
    """
    if network.is_multiplied:
        return compute_minimum_cut_bound(network)
    bytes_per_s = network_strength.value * network.graph.unit
    # The sides include switches: the links that leave the sides prove the rate.
    blocks = tuple(network.to_topology_nodes(side) for side in network_strength.sides)
    return RateBound("partition", bytes_per_s, blocks=blocks)


def compute_minimum_cut_bound(network: RankNetwork) -> RateBound:
    """Return the bound of an all-reduce by minimum cuts, crossed by all data in both directions.

    It is the smaller of two bounds, the first if they are equal: for data that rank 0 sends to all
    other ranks, and for data that it receives from all. The nodes of the bound are those on the
    side of the cut that the links leave. Raises `InputError`: `one-node` for a single rank,
    `unreachable` if some rank cannot be reached from rank 0, or cannot reach it.
    """
    leaving = to_cut_bound(network, broadcast_rate(network.graph, 0))
    arriving = broadcast_rate(network.reversed.graph, 0)
    # In the original direction, the links leave the other side of the cut.
    every_node = range(network.graph.num_nodes)
    source_side = tuple(node for node in every_node if node not in arriving.cut)
    entering = to_cut_bound(network, replace(arriving, cut=source_side))
    return min(leaving, entering, key=lambda bound: bound.rate)


# Enough for the planes of a network and a few collectives; trees of large networks take megabytes.
_MAX_CACHED = 8
# The packings and the number of search steps that they took.
_cache: OrderedDict[tuple[object, ...], tuple[list[PlacedPacking], int]] = OrderedDict()


def get_cached_packings(
    task: PackingTask, pack: Callable[[PackingTask], list[PlacedPacking]]
) -> list[PlacedPacking]:
    """Return `pack(task)`, or a copy of the cached result of an equal task in this process.

    Tasks are equal if all of these are: kind and root of the collective, NPUs, seeds and first
    seed, depth, remaining search steps of the budget, and the topology (name, nodes, links with
    plane, bandwidth and latency, multicast, reduction). `pack` is not compared, so that it must
    depend only on the kind of the collective. The cache has the 8 results that were used last.

    A cached result takes as many steps from the budget as its search took. If Ctrl-C arrives during
    this, the budget is marked as interrupted, and the result is still returned. The result of an
    interrupted search is returned but not cached. Errors of `pack` are raised and not cached. The
    packings in the list are shared between callers.
    """
    # The key contains everything that a packing depends on.
    collective = task.collective
    search = (task.seed, task.seeds, task.depth, task.budget.steps)
    topology = task.topology
    columns = (
        topology.source,
        topology.destination,
        topology.plane,
        topology.bandwidth_bytes_per_s,
        topology.latency_s,
    )
    content = (np.ascontiguousarray(column).tobytes() for column in columns)
    key = (
        collective.kind,
        collective.root,
        task.npus,
        *search,
        topology.name,
        topology.num_npus,
        topology.num_nodes,
        topology.multicast,
        topology.reduction,
        *content,
    )
    if key in _cache:
        try:
            task.budget.take(_cache[key][1])
        except KeyboardInterrupt:
            task.budget.is_interrupted = True
    else:
        steps = task.budget.steps
        packings = pack(task)
        # A search that was cut short may give a worse packing than requested.
        if task.budget.is_interrupted:
            return packings
        _cache[key] = packings, steps - task.budget.steps
    _cache.move_to_end(key)
    while len(_cache) > _MAX_CACHED:
        _cache.popitem(last=False)
    return list(_cache[key][0])


_KINDS_WITH_A_TREE_PER_RANK = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)


def build_shallow_packing(
    task: PackingTask,
    method: str,
    roots: Sequence[int],
    bound: RateBound,
) -> PlacedPacking:
    """Build a packing of trees of minimum depth, one per root, of equal weight.

    `roots`: ranks, at least one; the trees keep their order. `method`: name of the packing.
    `bound`: upper bound of the rate, which is only stored. The rate is the largest at which
    the trees fit on all links. For collectives towards the root, the links are reversed. On
    a single switch these are the one-hop trees of Blink (Wang et al., MLSys 2020). Ranks
    that a root does not reach are missing in its tree. Raises `InputError` (`disconnected`)
    for an edge without a route, and `ValueError` if no tree has an edge.
    """
    trees = [build_shallow_tree(task.oriented_network.graph, root) for root in roots]
    return build_packing_along_routes(task, method, trees, bound)


def build_packing_along_routes(
    task: PackingTask,
    method: str,
    trees: Sequence[SpanningTree],
    bound: RateBound,
) -> PlacedPacking:
    """Build a packing from trees over ranks, whose edges follow the topology's own routes.

    The unit is the largest at which the trees fit on all links; for an all-reduce, both
    downwards and upwards. Links are reversed for reduce, gather and reduce-scatter.
    `method`: name of the packing. `bound`: upper bound on its rate. `is_shallow` is set.
    `at_least` is the number of ranks for an all-gather or reduce-scatter, in which every
    rank needs a tree, otherwise 1. Raise `InputError` (`disconnected`) for an edge without
    a route, and `ValueError` if no tree has an edge.
    """
    kind = task.collective.kind
    network = task.oriented_network
    placed_trees = place_along_routes(network, trees)
    unit = compute_unit(network.topology, placed_trees, kind is CollectiveKind.ALL_REDUCE)
    # If every rank sends its own data, every rank needs a tree.
    at_least = network.graph.num_compute if kind in _KINDS_WITH_A_TREE_PER_RANK else 1
    return PlacedPacking(method, placed_trees, unit, bound, at_least, is_shallow=True)


# Number of random orders to try, and maximum number of ranks (time limit).
_MAX_TRIALS = 64
_MAX_RANKS = 256
# Number of links from a rank over one switch to another rank.
_HOPS_OVER_ONE_SWITCH = 2


def find_chain_packing(task: PackingTask, bound: RateBound) -> PlacedPacking | None:
    """Search for one chain through all ranks, from the root, that reaches the rate of `bound`.

    Its edges follow the topology's own routes, all links reversed for collectives towards the root.
    The orders of `_generate_orders` are tried with the seed of the task. The result is a packing of
    one tree of weight 1, from the first order whose rate equals the bound. None if no order does,
    also because links in one direction permit no chain, or with more than `_MAX_RANKS` (256) ranks.
    Takes no steps from the budget. The collective must have a root.
    """
    network = task.oriented_network
    if network.graph.num_compute > _MAX_RANKS:
        return None
    for order in _generate_orders(network, task.root, task.seed):
        # Every rank is the child of its predecessor, by arc -1.
        parent = np.full(len(order), -1, np.int64)
        parent[order[1:]] = order[:-1]
        chain = SpanningTree(int(order[0]), 1, parent, np.full(len(order), -1, np.int64))
        trees = place_along_routes(network, [chain])
        unit = compute_unit(network.topology, trees, is_up=False)
        packing = PlacedPacking("a chain along the switches", trees, unit, bound)
        if packing.is_optimal:
            return packing
    return None


def _generate_orders(network: RankNetwork, root: int, seed: int) -> Iterator[Int64Array]:
    """Yield up to 64 orders of the ranks for a chain from `root`: int64[ranks], also repeated.

    Ranks at the same switch form a group. The group of a rank is that of the lowest rank (it may
    be itself) with a route of at most 2 links to or from it. The distance between two groups is
    the number of links from the lowest rank of the first one to that of the second one.

    The first group is that of the root. The next group is chosen among the unvisited ones:

    1. the nearest one
    2. the one with the fewest unvisited groups at distance d, the smallest distance of all pairs
    3. by random numbers of `seed`, drawn anew for each order

    The ranks of a group are ascending, but the root is the first rank. Each order is one of 64
    trials. A trial is omitted if some rank has no route to the next one.
    """
    # Count the links on the route from every rank to every other rank: int64[ranks, ranks].
    ranks = network.graph.num_compute
    npus = network.nodes[:ranks]
    is_reached = np.stack([find_reached(network.topology, npu)[npus] for npu in npus.tolist()])
    sources, destinations = np.nonzero(is_reached)
    routes = network.topology.routes(npus[sources], npus[destinations])
    # More links than any route has, for ranks without a route.
    hops = np.full((ranks, ranks), network.topology.num_nodes, np.int64)
    hops[is_reached] = np.diff(routes.indptr)
    is_same_switch = np.minimum(hops, hops.T) <= _HOPS_OVER_ONE_SWITCH
    # Ranks at one switch form a group, numbered by their first rank.
    group_of = is_same_switch.argmax(axis=1)
    groups = np.unique(group_of)
    first = int(np.searchsorted(groups, group_of[root]))
    group_hops = hops[np.ix_(groups, groups)]
    members = [np.flatnonzero(group_of == group) for group in groups.tolist()]
    members[first] = np.concatenate([[root], members[first][members[first] != root]])
    random = np.random.default_rng(seed)
    for _ in range(_MAX_TRIALS):
        path = _find_path(group_hops, first, random.permutation(len(groups)))
        order = np.concatenate([members[group] for group in path])
        if is_reached[order[:-1], order[1:]].all():
            yield order


def _find_path(hops: Int64Array, first: int, noise: Int64Array) -> list[int]:
    """Find a path through all positions from `first` that always continues to a nearest one.

    Returns all positions, each once, in the order of the path. `hops`: distances,
    int64[from, to], 0 on the diagonal. The next position is chosen among the unvisited
    ones, by these rules in order:

    1. the lowest distance from the current position
    2. the fewest unvisited neighbours (Warnsdorff's rule): neighbours are positions at the
       smallest positive distance of the entire table
    3. the lowest `noise` (int64[positions])
    4. the lowest number
    """
    largest = hops.max(initial=0)
    minimum_hops = np.where(hops > 0, hops, largest).min(initial=largest)
    is_unvisited = np.ones(len(hops), np.bool_)
    path = [first]
    while len(path) < len(hops):
        is_unvisited[path[-1]] = False
        neighbour_counts = (hops[:, is_unvisited] == minimum_hops).sum(axis=1)
        unvisited = np.flatnonzero(is_unvisited)
        path.append(
            int(
                unvisited[
                    np.lexsort(
                        (noise[unvisited], neighbour_counts[unvisited], hops[path[-1], unvisited])
                    )[0]
                ]
            )
        )
    return path
