"""Rounds of routing: in each round every chunk is routed again with the load of all others.

This reduces the maximum load. Import this module inside functions: numba takes a second to import.
"""

from __future__ import annotations

import numpy as np

from collhub_tacos.link_network import LinkNetwork, LinkTimes, get_links_of_arcs
from collhub_tacos.routing.routes import ALL_NEEDED_NODES, RoutePlan, RouteRules
from collhub_tacos.routing.trees_kernel import (
    ArcMap,
    RoutingState,
    TreeWorkspace,
    compute_distances,
    reroute,
)
from collhub_tacos.search.seeds import FractionReport, ignore_fraction
from collhub_tacos.symmetry import hops_from, unreachable_error
from hub_core.columns import BoolArray, Float64Array, Int64Array, positions_in

# Transfers between two checks for Ctrl-C: at most a second.
_TRANSFERS_PER_CALL = 100_000
# Replaces a rate of 0 in divisions.
_MIN_RATE = 1e-30


class _Round:
    """Routes of one round: chunk x has `size[x]` transfers from row `first[x]` on."""

    def __init__(self, num_chunks: int, capacity: int) -> None:
        self.first = np.zeros(num_chunks, np.int64)
        self.size = np.zeros(num_chunks, np.int64)
        self.arc = np.zeros(capacity, np.int64)
        self.parent = np.zeros(capacity, np.int64)

    def enlarge(self, nodes: int) -> None:
        """Append `len(self.arc) + nodes` rows of zeros to the arrays of arcs and parents.

        The arrays are at least twice as long afterwards; existing rows are kept.
        """
        more = np.zeros(len(self.arc) + nodes, np.int64)
        self.arc = np.concatenate([self.arc, more])
        self.parent = np.concatenate([self.parent, more])

    def cut(self, used: int) -> None:
        """Keep the first `used` rows of the round's arcs and parents, and drop the rest."""
        # The capacity of the next round follows from the size of this one.
        self.arc = self.arc[:used]
        self.parent = self.parent[:used]


class Router:
    """Finds routes of all chunks, round by round.

    `origin`: int64 per chunk. `target`: int64 per chunk, or `ALL_NEEDED_NODES`.
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
        """Prepare the search for routes; no chunk is routed yet, and all loads are 0.

        `origin`: int64, the start node of each chunk. `target`: int64, the target node of each
        chunk, or `ALL_NEEDED_NODES` (-1) for all nodes with True in `needed` (bool[nodes]). `seed`
        and the number of a round determine the order of the chunks in this round. Distances to all
        single targets are computed here, and a lower bound on the largest load of a link.

        Raises `InputError` (`disconnected`), with two nodes, if a chunk cannot reach a target.
        Chunks with a single target are checked first, in order. Chunks with -1 follow, by origin;
        the lowest node out of reach is named.
        """
        self._network, self._seed = network, seed
        self._arcs, single = _build_arc_map(network, times)
        nodes = network.num_nodes
        arc, entry, stamp, in_tree, node, trail = np.zeros((6, nodes), np.int64)
        self._space = TreeWorkspace(
            cost=np.zeros(nodes),
            arc=arc,
            entry=entry,
            stamp=stamp,
            in_tree=in_tree,
            key=np.zeros(nodes),
            node=node,
            # No node is in the heap.
            slot=np.full(nodes, -1, np.int64),
            trail=trail,
        )
        # Distances to targets guide the search; each target has a row.
        targets = np.unique(target[target >= 0])
        row = positions_in(targets, network.num_nodes)
        bound = compute_distances(self._arcs, network.indptr, targets, self._space)
        self._check_reachability(origin, target, needed, bound, row)
        # Compiled code requires contiguous columns: numba 0.59 assumes them.
        origin = np.ascontiguousarray(origin)
        target = np.ascontiguousarray(target)
        needed = np.ascontiguousarray(needed)
        # Shared with the kernel, which modifies it.
        self._load = np.zeros(len(single.busy), np.int64)
        cost = single.arrival.astype(np.float64)
        self._fixed_columns = (origin, target, needed, bound, row, self._load, cost)
        # Reference load if the rules have slack.
        self._min_load_ps = _bound_max_load_ps(network, times, origin, needed)
        self._routes = _Round(len(origin), 0)
        self._rounds = 0

    @property
    def max_load_ps(self) -> int:
        """Picoseconds for which the busiest link is busy, a lower bound for these routes."""
        return int(self._load.max(initial=0))

    def improve(self, rules: RouteRules, progress: FractionReport = ignore_fraction) -> None:
        """Route every chunk once more, one by one, given the routes of all other chunks.

        The order is random; it depends on the seed and the number of the round. The old route
        of a chunk is removed from the loads, then its new route is chosen and added. Chunks
        that come later still have their old routes; in the first round they have none. The new
        routes are kept even if the largest load increases. Then the number of rounds increases
        by 1.

        `rules`: prices of links grow with load / reference. The reference is `slack` times the
        lower bound of the largest load; with `slack` 0 it is the largest load so far.
        `progress` gets the fraction of routed chunks, after about every 100 000 transfers and
        at the end. Without chunks, only the number of rounds changes.
        """
        chunks, nodes = len(self._routes.first), self._network.num_nodes
        # Chunks that are routed last see most of the new load, so every round uses another order.
        order = np.random.default_rng((self._seed, self._rounds)).permutation(chunks)
        capacity = max(len(self._routes.arc), 4 * chunks) + nodes
        new = _Round(chunks, capacity)
        position: int | np.int64 = 0
        used: int | np.int64 = 0
        max_load: int | np.int64 = self.max_load_ps
        old = self._routes
        while position < chunks:
            # The kernel modifies the loads of the links and the rows of `new`.
            state = RoutingState(
                *self._fixed_columns,
                old_first=old.first,
                old_size=old.size,
                old_arc=old.arc,
                new_first=new.first,
                new_size=new.size,
                new_arc=new.arc,
                new_parent=new.parent,
            )
            position, used, max_load = reroute(
                order,
                position,
                self._rounds,
                used,
                max_load,
                _TRANSFERS_PER_CALL,
                int(rules.slack * self._min_load_ps),
                rules.steepness,
                rules.depth_weight,
                self._arcs,
                state,
                self._space,
            )
            if used + nodes > len(new.arc):
                new.enlarge(nodes)
            progress(position / chunks)
        new.cut(int(used))
        self._routes = new
        self._rounds += 1

    def plan(self) -> RoutePlan:
        """Return the transfers of the last round, chunk by chunk in the order of routing.

        Chunks without transfers are omitted. The parent of a transfer is the row of the transfer
        that brings the chunk to its sender, -1 at the origin.
        """
        routes = self._routes
        order = np.argsort(routes.first, kind="stable")
        # Chunks without transfers share the first row of their successor.
        order = order[routes.size[order] > 0]
        size = routes.size[order]
        chunk = np.repeat(order, size)
        base = np.repeat(routes.first[order], size)
        parent = np.where(routes.parent < 0, -1, routes.parent + base)
        return RoutePlan(self._network, chunk, routes.arc, parent)

    def _check_reachability(
        self,
        origin: Int64Array,
        target: Int64Array,
        needed: BoolArray,
        bound: Float64Array,
        row: Int64Array,
    ) -> None:
        """Raise `InputError` (`disconnected`) if a chunk cannot reach its target or a needed node.

        `origin`, `target`: nodes of each chunk; the target `ALL_NEEDED_NODES` means all nodes in
        `needed`, bool[nodes]. `bound`: float64[targets, nodes], distance of each node to a single
        target, infinite without a path. `row`: row in `bound` of each target node.

        The error names an origin and a node that it cannot reach:

        1. the first chunk with an unreachable single target: its origin and target
        2. otherwise, of the chunks for all needed nodes, the lowest such origin, with the lowest
           needed node that it cannot reach
        """
        # For single targets the distances are known.
        single = np.flatnonzero(target >= 0)
        distance = bound[row[target[single]], origin[single]]
        unreachable_rows = single[~np.isfinite(distance)]
        if len(unreachable_rows):
            chunk = int(unreachable_rows[0])
            raise unreachable_error(self._network, int(origin[chunk]), int(target[chunk]))
        # For all needed nodes a search from every origin is used.
        for source in np.unique(origin[target == ALL_NEEDED_NODES]).tolist():
            is_reached = hops_from(self._network, source) >= 0
            is_unreachable = needed & ~is_reached
            if np.any(is_unreachable):
                raise unreachable_error(self._network, source, int(np.argmax(is_unreachable)))


def _bound_max_load_ps(
    network: LinkNetwork, times: LinkTimes, origin: Int64Array, needed: BoolArray
) -> int:
    """Return a lower bound in ps on the largest load of a link.

    All nodes with True in `needed` (bool[nodes]) get all chunks. `origin`: node of each chunk. An
    arc connects two NPUs, by one link or through switches. The rate of a link is one message per
    busy time, at least 1 ps. The bound is the largest of these quotients, rounded down:

    - For each needed node: the number of chunks of other nodes, divided by the sum of the rates of
      the last links of its incoming arcs.
    - For each node, if another node is needed: the number of its chunks, divided by the sum of the
      rates of the first links of its outgoing arcs.
    - The sum over all chunks of the number of needed nodes other than the origin, divided by the
      sum of the rates of all links of arcs.

    Each link counts once per sum. A sum of 0 is replaced by 1e-30, which gives a huge bound.
    """
    paths, single = get_links_of_arcs(network, times)
    rate = 1.0 / np.maximum(single.busy, 1)
    first = paths.links[paths.indptr[:-1]]
    last = paths.links[paths.indptr[1:] - 1]
    ingress_rate = _sum_rates_of_nodes(network.destination, last, rate, network.num_nodes)
    egress_rate = _sum_rates_of_nodes(network.source, first, rate, network.num_nodes)
    total_rate = float(rate[np.unique(paths.links)].sum())
    chunks_at_node = np.bincount(origin, minlength=network.num_nodes)
    lacking = int(needed.sum()) - needed
    ingress = np.where(needed, len(origin) - chunks_at_node, 0) / ingress_rate
    egress = np.where(lacking > 0, chunks_at_node, 0) / egress_rate
    total = float((chunks_at_node * lacking).sum()) / max(total_rate, _MIN_RATE)
    return int(max(ingress.max(), egress.max(), total))


def _sum_rates_of_nodes(
    node: Int64Array, link: Int64Array, rate: Float64Array, num_nodes: int
) -> Float64Array:
    """Return the sum of the rates of the links of every node: float64[nodes].

    `node`, `link`: for each arc, a node and one of its links; a link counts once per node,
    also if several arcs of the node use it. `rate`: float64, by link. Nodes without links
    get 1e-30 (`_MIN_RATE`), so that the sums can be divisors.
    """
    # A link counts once per node, also if several arcs share it.
    pairs = np.unique(np.stack([node, link]), axis=1)
    total = np.bincount(pairs[0], rate[pairs[1]], num_nodes)
    rates: Float64Array = np.maximum(total, _MIN_RATE)
    return rates


def _build_arc_map(network: LinkNetwork, times: LinkTimes) -> tuple[ArcMap, LinkTimes]:
    """Return the arcs of a network in the form that the kernels need, and the times of its links.

    An arc connects two NPUs. Without switches an arc is one link; with switches it is the
    path of links between the NPUs. The outgoing arcs of node i are
    `out[out_indptr[i]:out_indptr[i + 1]]`. The links of arc i are
    `path[path_indptr[i]:path_indptr[i + 1]]`, in order. `tail` and `head` are the source
    and destination of an arc. All these arrays are int64.

    The second result has `busy` and `arrival` in ps by link; the arc map has the same
    arrays.
    """
    paths, single = get_links_of_arcs(network, times)
    # Kernels are compiled for one type: contiguous int64 arrays.
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
