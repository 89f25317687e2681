"""Packings on the topology's own routes: shallow trees for small data, and a single chain.

Shallow trees have few hops instead of the full rate, since latency dominates for small data. The
chain visits all ranks along neighbouring switches, for ranks with one link each: trees through
switches are certified on their own routes, and if messages take the shortest routes instead,
several may share a link. Between neighbouring switches there is only one shortest route in each
direction, so a chain along them keeps its rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from collhub_packing import SpanningTree

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import build_shallow_tree, compute_unit, place_along_routes
from collhub_blink.packing.task import PackingTask, RankNetwork
from hub_core.columns import Int64Array
from hub_core.model import CollectiveKind

_KINDS_WITH_A_TREE_PER_RANK = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)


def build_shallow_packing(
    task: PackingTask,
    method: str,
    roots: Sequence[int],
    bound: RateBound,
) -> PlacedPacking:
    """Build one tree of minimum depth from each of the roots, all of equal weight.

    On a single switch these are the one-hop trees of Blink (Wang et al., MLSys 2020). `roots`:
    ranks.
    """
    trees = [build_shallow_tree(task.oriented_network.graph, root) for root in roots]
    return build_packing_along_routes(task, method, trees, bound)


def build_packing_along_routes(
    task: PackingTask,
    method: str,
    trees: Sequence[SpanningTree],
    bound: RateBound,
) -> PlacedPacking:
    """Build a packing of trees over ranks on the topology's own routes.

    The unit is the largest for which all links have room (in both directions for an all-reduce).
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
    """Search for a chain at the optimal rate on the topology's own routes.

    None if none of 64 random orders gives such a chain, or with more than 256 ranks.
    """
    network = task.oriented_network
    if network.graph.num_compute > _MAX_RANKS:
        return None
    for order in _generate_orders(network, task.root, task.seed):
        trees = place_along_routes(network, [_build_chain(order)])
        unit = compute_unit(network.topology, trees, is_up=False)
        packing = PlacedPacking("a chain along the switches", trees, unit, bound)
        if packing.is_optimal:
            return packing
    return None


def _build_chain(order: Int64Array) -> SpanningTree:
    """Build the tree of weight 1 in which every rank of `order` is the child of its predecessor."""
    parent = np.full(len(order), -1, np.int64)
    parent[order[1:]] = order[:-1]
    return SpanningTree(int(order[0]), 1, parent, np.full(len(order), -1, np.int64))


def _generate_orders(network: RankNetwork, root: int, seed: int) -> Iterator[Int64Array]:
    """Yield random orders of the ranks, the root first, switch by switch to a nearest switch."""
    hops = _count_hops(network)
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
        yield np.concatenate([members[group] for group in path])


def _find_path(hops: Int64Array, first: int, noise: Int64Array) -> list[int]:
    """Find a path over all positions that always continues at a nearest unvisited position.

    Ties go to the position with the fewest unvisited positions at minimum distance (Warnsdorff's
    rule), then by `noise`. `hops`: distances, int64[positions, positions].
    """
    minimum_hops = np.where(hops > 0, hops, hops.max(initial=0)).min(initial=0)
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


def _count_hops(network: RankNetwork) -> Int64Array:
    """Count the links on the route from every rank to every other rank: int64[ranks, ranks]."""
    ranks = network.graph.num_compute
    npus = network.nodes[:ranks]
    sources, destinations = np.divmod(np.arange(ranks * ranks), ranks)
    routes = network.topology.routes(npus[sources], npus[destinations])
    return np.diff(routes.indptr).reshape(ranks, ranks)
