"""One chain past every rank, along neighbouring switches, for ranks that have a link each.

Trees through switches are certified on routes of their own; where messages take the shortest ones,
several may meet on a link. From one switch to the next there is one shortest route, both ways.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from collhub_columns import Int64Array
from collhub_packing import SpanningTree

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import placed_along_routes, unit_that_fits
from collhub_blink.packing.rank_network import RankNetwork
from collhub_blink.packing.task import PackingTask

# Orders that are tried, by chance among equals, and ranks beyond which they take too long.
_TRIES = 64
_MOST_RANKS = 256
# Links of the way past one switch.
_PAST_A_SWITCH = 2


def chain_packing(task: PackingTask, bound: RateBound) -> PlacedPacking | None:
    """A chain at the optimal rate on the topology's own routes; None where none was found."""
    network = task.oriented_network
    if network.graph.num_compute > _MOST_RANKS:
        return None
    for order in _orders(network, task.root, task.seed):
        trees = placed_along_routes(network, [_chain(order)])
        unit = unit_that_fits(network.topology, trees, is_up=False)
        packing = PlacedPacking("a chain along the switches", trees, unit, bound)
        if packing.is_optimal:
            return packing
    return None


def _chain(order: Int64Array) -> SpanningTree:
    """Every rank hangs at the one before it."""
    parent = np.full(len(order), -1, np.int64)
    parent[order[1:]] = order[:-1]
    return SpanningTree(int(order[0]), 1, parent, np.full(len(order), -1, np.int64))


def _orders(network: RankNetwork, root: int, seed: int) -> Iterator[Int64Array]:
    """Ranks from the root on, switch by switch, each time to a nearest switch that is left."""
    hops = _hops(network)
    near = np.minimum(hops, hops.T) <= _PAST_A_SWITCH
    # The first rank behind a switch stands for all of them.
    place_of = near.argmax(axis=1)
    places = np.unique(place_of)
    first = int(np.searchsorted(places, place_of[root]))
    between = hops[np.ix_(places, places)]
    members = [np.flatnonzero(place_of == place) for place in places.tolist()]
    members[first] = np.concatenate([[root], members[first][members[first] != root]])
    random = np.random.default_rng(seed)
    for _ in range(_TRIES):
        path = _path(between, first, random.permutation(len(places)))
        yield np.concatenate([members[place] for place in path])


def _path(hops: Int64Array, first: int, noise: Int64Array) -> list[int]:
    """From a place always on to a nearest one left, with the fewest others as near (Warnsdorff)."""
    least = np.where(hops > 0, hops, hops.max(initial=0)).min(initial=0)
    is_left = np.ones(len(hops), np.bool_)
    path = [first]
    while len(path) < len(hops):
        is_left[path[-1]] = False
        onward = (hops[:, is_left] == least).sum(axis=1)
        left = np.flatnonzero(is_left)
        path.append(int(left[np.lexsort((noise[left], onward[left], hops[path[-1], left]))[0]]))
    return path


def _hops(network: RankNetwork) -> Int64Array:
    """Links of the way from each rank to each other one: int64[ranks, ranks]."""
    ranks = network.graph.num_compute
    npus = network.nodes[:ranks]
    here, there = np.divmod(np.arange(ranks * ranks), ranks)
    routes = network.topology.routes(npus[here], npus[there])
    return np.diff(routes.indptr).reshape(ranks, ranks)
