"""Rounds of routing: every chunk is routed anew with the load of all others in view, so that the fullest link gets emptier."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.reach import hops_from, unreachable
from collhub_tacos.routing.plan import RoutePlan, hops
from collhub_tacos.routing.rules import EVERYONE, RouteRules
from collhub_tacos.routing.trees_kernel import (
    ArcMap,
    RoutingState,
    TreeWorkspace,
    distances,
    reroute,
)

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Transfers between two looks at Ctrl-C: at most a second.
_SLICE = 100_000


class Router:
    """Routes of all chunks. `origin`: int64 per chunk; `target`: int64 per chunk, or `EVERYONE` for all `needed` nodes."""

    def __init__(
        self,
        network: LinkNetwork,
        times: LinkTimes,
        origin: Int64Array,
        target: Int64Array,
        needed: BoolArray,
        seed: int,
    ) -> None:
        """Raises `InputError` that names a pair without a way and the cut."""
        self._network, self._seed = network, seed
        self._map, single = _map_of(network, times)
        self._search = _search(network.num_nodes)
        targets = np.unique(target[target >= 0])
        row = np.full(network.num_nodes, -1, np.int64)
        row[targets] = np.arange(len(targets))
        bound = distances(self._map, network.indptr, targets, self._search)
        self._check_reach(origin, target, needed, bound, row)
        load, cost = np.zeros(len(single.busy), np.int64), single.arrival.astype(np.float64)
        # Compiled code may not be given columns of a wider array: numba 0.59 takes them for arrays without gaps.
        origin, target, needed = (
            np.ascontiguousarray(origin),
            np.ascontiguousarray(target),
            np.ascontiguousarray(needed),
        )
        self._stated = (origin, target, needed, bound, row, load, cost)
        self._load = load
        self._least_ps = _least_load_ps(network, times, origin, needed)
        self._first, self._size = np.zeros(len(origin), np.int64), np.zeros(len(origin), np.int64)
        self._arc, self._parent = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._rounds = 0

    @property
    def fullest_ps(self) -> int:
        """How long the fullest link is busy: no order of these routes takes less."""
        return int(self._load.max(initial=0))

    def improve(
        self, rules: RouteRules, progress: Callable[[float], None] = lambda fraction: None
    ) -> None:
        """Route every chunk anew, in a random order."""
        chunks, nodes = len(self._first), self._network.num_nodes
        order = np.random.default_rng((self._seed, self._rounds)).permutation(chunks)
        room = max(len(self._arc), 4 * chunks) + nodes
        first, size = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
        arc, parent = np.zeros(room, np.int64), np.zeros(room, np.int64)
        position: int | np.int64 = 0
        used: int | np.int64 = 0
        fullest: int | np.int64 = self.fullest_ps
        aim = int(rules.slack * self._least_ps)
        weights = (rules.steepness, rules.depth_weight)
        while position < chunks:
            routing = RoutingState(
                *self._stated, self._first, self._size, self._arc, first, size, arc, parent
            )
            position, used, fullest = reroute(
                order,
                position,
                self._rounds,
                used,
                fullest,
                _SLICE,
                aim,
                *weights,
                self._map,
                routing,
                self._search,
            )
            if used + nodes > len(arc):
                arc, parent = (
                    np.concatenate([column, np.zeros(len(column) + nodes, np.int64)])
                    for column in (arc, parent)
                )
            progress(position / chunks)
        self._first, self._size, self._arc, self._parent = first, size, arc[:used], parent[:used]
        self._rounds += 1

    def plan(self) -> RoutePlan:
        """The routes of the last round, chunk by chunk as they were routed."""
        order = np.argsort(self._first, kind="stable")
        order = order[self._size[order] > 0]
        chunk, base = (
            np.repeat(column, self._size[order]) for column in (order, self._first[order])
        )
        return RoutePlan(
            self._network, chunk, self._arc, np.where(self._parent < 0, -1, self._parent + base)
        )

    def _check_reach(
        self,
        origin: Int64Array,
        target: Int64Array,
        needed: BoolArray,
        bound: npt.NDArray[np.float64],
        row: Int64Array,
    ) -> None:
        single = np.flatnonzero(target >= 0)
        lost = single[~np.isfinite(bound[row[target[single]], origin[single]])]
        if len(lost):
            raise unreachable(self._network, int(origin[lost[0]]), int(target[lost[0]]))
        for source in np.unique(origin[target == EVERYONE]).tolist():
            reached = hops_from(self._network, source) >= 0
            if np.any(needed & ~reached):
                raise unreachable(self._network, source, int(np.argmax(needed & ~reached)))


def _least_load_ps(
    network: LinkNetwork, times: LinkTimes, origin: Int64Array, needed: BoolArray
) -> int:
    """A bound for the fullest link where all chunks go to all `needed` nodes: some node's ingress or egress, or all links."""
    paths, single = hops(network, times)
    rate, nodes = 1.0 / np.maximum(single.busy, 1), network.num_nodes

    def of_nodes(node: Int64Array, link: Int64Array) -> npt.NDArray[np.float64]:
        ends = np.unique(np.stack([node, link]), axis=1)
        return np.maximum(np.bincount(ends[0], rate[ends[1]], nodes), 1e-30)

    own = np.bincount(origin, minlength=nodes)
    lacking = int(needed.sum()) - needed
    ingress = np.where(needed, len(origin) - own, 0) / of_nodes(
        network.destination, paths.links[paths.indptr[1:] - 1]
    )
    egress = np.where(lacking > 0, own, 0) / of_nodes(
        network.source, paths.links[paths.indptr[:-1]]
    )
    total = float((own * lacking).sum()) / max(float(rate[np.unique(paths.links)].sum()), 1e-30)
    return int(max(ingress.max(), egress.max(), total))


def _map_of(network: LinkNetwork, times: LinkTimes) -> tuple[ArcMap, LinkTimes]:
    paths, single = hops(network, times)
    tail, head = network.source.astype(np.int64), network.destination.astype(np.int64)
    out = np.argsort(tail, kind="stable").astype(np.int64)
    out_indptr = np.searchsorted(tail[out], np.arange(network.num_nodes + 1)).astype(np.int64)
    indptr, links = (
        np.ascontiguousarray(paths.indptr, np.int64),
        np.ascontiguousarray(paths.links, np.int64),
    )
    return ArcMap(out_indptr, out, tail, head, indptr, links, single.busy, single.arrival), single


def _search(nodes: int) -> TreeWorkspace:
    def numbers(value: int = 0) -> Int64Array:
        return np.full(nodes, value, np.int64)

    return TreeWorkspace(
        np.zeros(nodes),
        numbers(),
        numbers(),
        numbers(),
        numbers(),
        np.zeros(nodes),
        numbers(),
        numbers(-1),
        numbers(),
    )
