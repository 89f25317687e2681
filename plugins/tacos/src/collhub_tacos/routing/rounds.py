"""Rounds of routing: every chunk is routed anew with the load of all others in view.

So the fullest link gets emptier. Import it late: numba takes a second.
"""

from __future__ import annotations

import numpy as np

from collhub_tacos.networks.distances import hops_from, unreachable
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.switches import links_of_arcs
from collhub_tacos.routing.routes import EVERYONE, RoutePlan, RouteRules
from collhub_tacos.routing.trees_kernel import (
    ArcMap,
    RoutingState,
    TreeWorkspace,
    distances,
    reroute,
)
from collhub_tacos.seed_search import FractionReport, unreported
from hub_core.columns import BoolArray, Float64Array, Int64Array

# Transfers between two looks at Ctrl-C: at most a second.
_SLICE = 100_000
# In place of a rate of nothing, so that it may be divided by.
_LEAST_RATE = 1e-30


class _Round:
    """Routes of one round, chunk by chunk; of chunk x `size[x]` transfers from `first[x]` on."""

    def __init__(self, num_chunks: int, room: int) -> None:
        self.first = np.zeros(num_chunks, np.int64)
        self.size = np.zeros(num_chunks, np.int64)
        self.arc = np.zeros(room, np.int64)
        self.parent = np.zeros(room, np.int64)

    def widen(self, nodes: int) -> None:
        """Double the room, and leave enough for a tree."""
        more = np.zeros(len(self.arc) + nodes, np.int64)
        self.arc = np.concatenate([self.arc, more])
        self.parent = np.concatenate([self.parent, more])

    def cut(self, used: int) -> None:
        """Drop the room that is left."""
        # The next round makes room by what this one used.
        self.arc = self.arc[:used]
        self.parent = self.parent[:used]


class Router:
    """Routes of all chunks.

    `origin`: int64 per chunk; `target`: int64 per chunk, or `EVERYONE` for all `needed` nodes.
    """

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
        self._arcs, single = _map_of(network, times)
        self._space = _workspace(network.num_nodes)
        # Distances to targets guide the search; each has a row.
        targets = np.unique(target[target >= 0])
        row = np.full(network.num_nodes, -1, np.int64)
        row[targets] = np.arange(len(targets))
        bound = distances(self._arcs, network.indptr, targets, self._space)
        self._check_reach(origin, target, needed, bound, row)
        # Compiled code may not be given columns of a wider array: numba 0.59 takes them for arrays
        # without gaps.
        origin = np.ascontiguousarray(origin)
        target = np.ascontiguousarray(target)
        needed = np.ascontiguousarray(needed)
        # Shared with the kernel, which changes it in place.
        self._load = np.zeros(len(single.busy), np.int64)
        cost = single.arrival.astype(np.float64)
        self._stated = (origin, target, needed, bound, row, self._load, cost)
        # What loads are compared to where rules have slack.
        self._least_ps = _least_load_ps(network, times, origin, needed)
        self._routes = _Round(len(origin), 0)
        self._rounds = 0

    @property
    def fullest_ps(self) -> int:
        """How long the fullest link is busy: no order of these routes takes less."""
        return int(self._load.max(initial=0))

    def improve(self, rules: RouteRules, progress: FractionReport = unreported) -> None:
        """Route every chunk anew, in a random order."""
        chunks, nodes = len(self._routes.first), self._network.num_nodes
        # Who is routed last knows most of the others: that is drawn anew every round.
        order = np.random.default_rng((self._seed, self._rounds)).permutation(chunks)
        room = max(len(self._routes.arc), 4 * chunks) + nodes
        new = _Round(chunks, room)
        position: int | np.int64 = 0
        used: int | np.int64 = 0
        fullest: int | np.int64 = self.fullest_ps
        while position < chunks:
            position, used, fullest = reroute(
                order,
                position,
                self._rounds,
                used,
                fullest,
                _SLICE,
                int(rules.slack * self._least_ps),
                rules.steepness,
                rules.depth_weight,
                self._arcs,
                self._state(new),
                self._space,
            )
            if used + nodes > len(new.arc):
                new.widen(nodes)
            progress(position / chunks)
        new.cut(int(used))
        self._routes = new
        self._rounds += 1

    def _state(self, new: _Round) -> RoutingState:
        old = self._routes
        return RoutingState(
            *self._stated,
            old_first=old.first,
            old_size=old.size,
            old_arc=old.arc,
            new_first=new.first,
            new_size=new.size,
            new_arc=new.arc,
            new_parent=new.parent,
        )

    def plan(self) -> RoutePlan:
        """Routes of the last round, chunk by chunk as they were routed."""
        routes = self._routes
        order = np.argsort(routes.first, kind="stable")
        # Chunks that are where they should be have no route, and begin where the next one does.
        order = order[routes.size[order] > 0]
        size = routes.size[order]
        chunk = np.repeat(order, size)
        base = np.repeat(routes.first[order], size)
        parent = np.where(routes.parent < 0, -1, routes.parent + base)
        return RoutePlan(self._network, chunk, routes.arc, parent)

    def _check_reach(
        self,
        origin: Int64Array,
        target: Int64Array,
        needed: BoolArray,
        bound: Float64Array,
        row: Int64Array,
    ) -> None:
        """Raise `InputError` for the first chunk that cannot get to a target."""
        # Of one target the distances that guide the search tell it.
        single = np.flatnonzero(target >= 0)
        distance = bound[row[target[single]], origin[single]]
        lost = single[~np.isfinite(distance)]
        if len(lost):
            chunk = int(lost[0])
            raise unreachable(self._network, int(origin[chunk]), int(target[chunk]))
        # Of all needed nodes a search from every origin does.
        for source in np.unique(origin[target == EVERYONE]).tolist():
            is_reached = hops_from(self._network, source) >= 0
            is_lost = needed & ~is_reached
            if np.any(is_lost):
                raise unreachable(self._network, source, int(np.argmax(is_lost)))


def _least_load_ps(
    network: LinkNetwork, times: LinkTimes, origin: Int64Array, needed: BoolArray
) -> int:
    """Bound for the fullest link where all chunks go to all `needed` nodes.

    By some node's ingress or egress, or by all links.
    """
    paths, single = links_of_arcs(network, times)
    rate = 1.0 / np.maximum(single.busy, 1)
    first = paths.links[paths.indptr[:-1]]
    last = paths.links[paths.indptr[1:] - 1]
    ingress_rate = _rate_of_nodes(network.destination, last, rate, network.num_nodes)
    egress_rate = _rate_of_nodes(network.source, first, rate, network.num_nodes)
    total_rate = float(rate[np.unique(paths.links)].sum())
    own = np.bincount(origin, minlength=network.num_nodes)
    lacking = int(needed.sum()) - needed
    ingress = np.where(needed, len(origin) - own, 0) / ingress_rate
    egress = np.where(lacking > 0, own, 0) / egress_rate
    total = float((own * lacking).sum()) / max(total_rate, _LEAST_RATE)
    return int(max(ingress.max(), egress.max(), total))


def _rate_of_nodes(
    node: Int64Array, link: Int64Array, rate: Float64Array, num_nodes: int
) -> Float64Array:
    """Rates of the links of every node, in sum; several arcs may share a link."""
    # A link counts once for a node, however many arcs it belongs to.
    ends = np.unique(np.stack([node, link]), axis=1)
    total = np.bincount(ends[0], rate[ends[1]], num_nodes)
    found: Float64Array = np.maximum(total, _LEAST_RATE)
    return found


def _map_of(network: LinkNetwork, times: LinkTimes) -> tuple[ArcMap, LinkTimes]:
    """Arcs for the kernel, and the times of their links."""
    paths, single = links_of_arcs(network, times)
    # Compiled code is made for one type: int64 throughout, without gaps.
    out_indptr, out = network.out_links()
    arcs = ArcMap(
        out_indptr=out_indptr.astype(np.int64),
        out=out.astype(np.int64),
        tail=network.source.astype(np.int64),
        head=network.destination.astype(np.int64),
        path_indptr=np.ascontiguousarray(paths.indptr, np.int64),
        path=np.ascontiguousarray(paths.links, np.int64),
        busy=single.busy,
        arrival=single.arrival,
    )
    return arcs, single


def _workspace(nodes: int) -> TreeWorkspace:
    def zeros() -> Int64Array:
        return np.zeros(nodes, np.int64)

    return TreeWorkspace(
        cost=np.zeros(nodes),
        arc=zeros(),
        entry=zeros(),
        stamp=zeros(),
        in_tree=zeros(),
        key=np.zeros(nodes),
        node=zeros(),
        place=np.full(nodes, -1, np.int64),
        trail=zeros(),
    )
