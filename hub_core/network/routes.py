"""Routes of messages, one shortest path per pair of nodes, and minimum traffic of collectives.

Routes have the ties of `Topology.routes`. The traffic across a cut bounds the time of a collective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hub_core.columns import (
    BoolArray,
    Float64Array,
    Int64Array,
    expanded_ranges,
    group_of_entry,
    row_pointer,
    rows_of,
    run_lengths,
)
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import CollectiveKind
from hub_core.network.source_routes import find_routes_from_sources

if TYPE_CHECKING:
    from hub_core.network.topology import Topology

# Maximum number of cells of the (destination, node or link) tables of one search step.
_SEARCH_CELLS = 1 << 20
# Destinations per source above which searches begin at the sources.
_DESTINATIONS_PER_SOURCE = 16


@dataclass(frozen=True, slots=True)
class Routes:
    """One path per pair: path i takes the link rows `links[indptr[i]:indptr[i + 1]]` in order."""

    indptr: Int64Array
    links: Int64Array


def shortest_routes(topology: Topology, sources: Int64Array, destinations: Int64Array) -> Routes:
    """Find the routes of all pairs on a topology with one plane, as `Topology.routes` does.

    A pair with equal ends has an empty route. Raises `InputError` with a pair that has no path.
    """
    # The first link in link order from each source to its destination, or -1.
    nodes = topology.num_nodes
    keys, first = np.unique(topology.source * nodes + topology.destination, return_index=True)
    # The index -1 of a missing pair selects the appended -1.
    direct = np.append(first, -1)[rows_of(sources * nodes + destinations, keys)]
    # Neighbours need no search; in fully connected networks all pairs are neighbours.
    direct_rows = np.flatnonzero(direct >= 0)
    distant = np.flatnonzero((direct < 0) & (sources != destinations))
    parts = [(direct_rows, Routes(np.arange(len(direct_rows) + 1), direct[direct_rows]))]
    if _has_few_sources(sources[distant], destinations[distant]):
        routes = find_routes_from_sources(topology, sources[distant], destinations[distant])
        if routes is not None:
            return joined_routes(len(sources), [*parts, (distant, Routes(*routes))])
    if len(distant):
        parts += _distant_routes(topology, sources, destinations, distant)
    return joined_routes(len(sources), parts)


def _has_few_sources(sources: Int64Array, destinations: Int64Array) -> bool:
    """Return whether searches from the sources are much fewer than searches per destination."""
    return _DESTINATIONS_PER_SOURCE * len(np.unique(sources)) < len(np.unique(destinations))


def joined_routes(count: int, parts: Sequence[tuple[Int64Array, Routes]]) -> Routes:
    """Combine routes of subsets of `count` pairs; pairs in no subset get an empty route.

    `parts`: (indices of pairs, their routes in this order) of each subset; subsets must not
    overlap.
    """
    length = np.zeros(count, np.int64)
    for pairs, routes in parts:
        length[pairs] = np.diff(routes.indptr)
    indptr = row_pointer(length)
    links = np.empty(int(indptr[-1]), np.int64)
    for pairs, routes in parts:
        links[expanded_ranges(indptr[pairs], length[pairs])] = routes.links
    return Routes(indptr, links)


def _distant_routes(
    topology: Topology, sources: Int64Array, destinations: Int64Array, pairs: Int64Array
) -> list[tuple[Int64Array, Routes]]:
    """Find the routes of `pairs`; return the indices of the pairs of each batch with their routes.

    `pairs`: indices of `sources` and `destinations`. Pairs with the same destination share a
    search; as many destinations are searched at once as `_SEARCH_CELLS` allows. Raises `InputError`
    with a pair that has no path.
    """
    # Pairs of one destination share its search.
    pairs = pairs[np.argsort(destinations[pairs], kind="stable")]
    goals, first = np.unique(destinations[pairs], return_index=True)
    bounds = np.append(first, len(pairs))
    search = _RouteSearch(topology)
    batch = max(1, _SEARCH_CELLS // max(topology.num_links, topology.num_nodes))
    parts = []
    for start in range(0, len(goals), batch):
        stop = min(start + batch, len(goals))
        chosen = pairs[bounds[start] : bounds[stop]]
        goal_of_pair = group_of_entry(bounds[start : stop + 1])
        routes = search.routes(goals[start:stop], goal_of_pair, sources[chosen])
        parts.append((chosen, routes))
    return parts


class _RouteSearch:
    """Shortest paths of one topology to a batch of goals.

    A breadth-first search runs backwards from the goals. A link is useful if it leads to a node one
    hop nearer to the goal. A path takes one useful link at every node, so it never needs to
    backtrack. Links are grouped by their source, in link order within a group.
    """

    def __init__(self, topology: Topology) -> None:
        """Prepare the search for routes in a topology of one plane (not checked).

        It runs backwards from destinations; arcs and groups of arcs are computed once here.
        """
        self._topology = topology
        self._backwards = topology.arcs(backwards=True)
        self._links = self._backwards.entering

    def routes(self, goals: Int64Array, goal_of_path: Int64Array, sources: Int64Array) -> Routes:
        """Return the path from `sources[i]` to `goals[goal_of_path[i]]`, for every i.

        Paths are shortest in the number of links. Among the links that bring the path nearer to its
        goal, an NPU takes the first. A switch with n such links takes the one with the number d mod
        n, and d becomes d // n; d is the number of the goal at first. The route of equal ends is
        empty. Raises `InputError` (code `disconnected`) with the first pair that has no path.
        """
        distance = self._backwards.hops(goals)
        length = distance[goal_of_path, sources].astype(np.int64)
        lost = np.flatnonzero(length < 0)
        if len(lost):
            name = self._topology.node_name
            source, goal = sources[lost[0]], goals[goal_of_path[lost[0]]]
            raise InputError(
                f"topology {self._topology.name}: no path from {name(source)} to {name(goal)}",
                cure="add the missing links, or choose a connected topology",
                code="disconnected",
            )
        useful, count, start = self._useful_links(distance)
        indptr = row_pointer(length)
        links = np.empty(int(indptr[-1]), np.int64)
        path, node, digits = np.arange(len(sources)), sources, goals[goal_of_path]
        hop = 0
        # All paths advance by one link per iteration; finished paths are removed.
        while len(path):
            goal = goal_of_path[path]
            # Only switches spread paths; an NPU uses its first link, as ASTRA-sim does on rings.
            is_switch = node >= self._topology.num_npus
            ties = np.where(is_switch, count[goal, node], 1)
            digits, choice = np.divmod(digits, ties)
            link = useful[start[goal, node] + choice]
            links[indptr[path] + hop] = link
            hop += 1
            going = np.flatnonzero(length[path] > hop)
            path, digits = path[going], digits[going]
            node = self._topology.destination[link[going]]
        return Routes(indptr, links)

    def _useful_links(
        self, distance: npt.NDArray[np.int32]
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the links that bring a path nearer to its goal: (links, count, start), int64.

        Those of a node for a goal are `count[goal, node]` entries of `links` from `start[goal,
        node]` on, in the order of the node's links. `distance`: hops from every node to every goal,
        [goals, nodes], -1 without a path.
        """
        rows, tails, first = self._links
        tail = np.repeat(tails, run_lengths(first, len(rows)))
        remaining = distance[:, self._topology.destination[rows]]
        is_useful = (remaining >= 0) & (remaining == distance[:, tail] - 1)
        count = np.zeros(distance.shape, np.int64)
        count[:, tails] = np.add.reduceat(is_useful, first, axis=1, dtype=np.int64)
        # `np.nonzero` lists useful links row by row of the (goal, link) table.
        start = np.cumsum(count).reshape(count.shape) - count
        return rows[np.nonzero(is_useful)[1]], count, start


@dataclass(frozen=True, slots=True, eq=False)
class RankSets:
    """Sets of ranks as columns, one row per set, float64[sets] each.

    `ranks`: number of ranks; `shares`: bytes of their shares of the buffer; `has_root`: 1 if the
    root is in the set, else 0. `sent`, `received`: bytes from ranks of the set to other ranks, and
    from these to it, in an all-to-all-v; otherwise 0.
    """

    ranks: Float64Array
    shares: Float64Array
    has_root: Float64Array
    sent: Float64Array
    received: Float64Array


@dataclass(frozen=True)
class Traffic:
    """A collective of `size` bytes, and the bytes that must leave sets of its ranks.

    The share of rank r is bytes `[r * size // n, (r + 1) * size // n)`: shares differ by at most
    one byte. In an uneven collective it is in proportion to its count, in an all-to-all-v to all
    units that the rank receives from other ranks.
    """

    collective: Collective
    size: int

    @cached_property
    def share(self) -> Float64Array:
        """Return the bytes of the share of every rank, float64[ranks].

        The size is divided at size * rank // ranks, so that shares differ by at most 1 byte and add
        up to the size. Those of uneven collectives are exact, and not rounded.
        """
        if self.collective.counts is not None:
            received: Float64Array = self.pair_bytes.sum(axis=0)
            return received
        n = self.collective.num_ranks
        # Python integers: size times ranks may exceed 64 bits.
        borders = [self.size * rank // n for rank in range(n + 1)]
        return np.diff(np.asarray(borders, np.float64))

    @cached_property
    def pair_bytes(self) -> Float64Array:
        """Return the bytes of an uneven collective from rank to rank, float64[ranks, ranks].

        Without the data that stay on their rank. Of an all-gather-v or a reduce-scatter-v: one row,
        the bytes of every rank's part.
        """
        assert self.collective.counts is not None
        table = self.collective.counts.table.astype(np.float64)
        table *= self.size / self.collective.unit_count
        if not self.collective.counts.is_per_pair:
            return table[None]
        np.fill_diagonal(table, 0.0)
        return table

    @property
    def is_known(self) -> bool:
        """Whether bounds of this kind are known; False for custom collectives."""
        return self.collective.kind in _LEAVING

    def sets_of(self, label: Int64Array, count: int) -> RankSets:
        """Build `count` sets of ranks: set k has the ranks whose `label` is k.

        `label`: int64[ranks], -1 for a rank in no set. Stored are the number of ranks, the bytes of
        their shares, and whether the root is in it (1.0, else 0.0). A set may be empty.
        """
        inside = label >= 0
        set_index = label[inside]
        ranks = np.bincount(set_index, minlength=count).astype(np.float64)
        shares = np.bincount(set_index, self.share[inside], count).astype(np.float64)
        has_root = np.zeros(count)
        root = self.collective.root
        if root is not None and label[root] >= 0:
            has_root[label[root]] = 1.0
        sent, received = self._exchanged(label, count, is_prefix=False)
        return RankSets(ranks, shares, has_root, sent, received)

    def prefixes_of(self, position: Int64Array, count: int) -> RankSets:
        """Build `count` - 1 sets of ranks: set k has the ranks at positions 0..k of an order.

        `position`: int64[ranks], from 0.
        """
        sets = self.sets_of(position, count)
        sent, received = self._exchanged(position, count, is_prefix=True)
        return RankSets(
            np.cumsum(sets.ranks)[:-1],
            np.cumsum(sets.shares)[:-1],
            np.cumsum(sets.has_root)[:-1],
            sent,
            received,
        )

    def _exchanged(
        self, label: Int64Array, count: int, is_prefix: bool
    ) -> tuple[Float64Array, Float64Array]:
        """Return the bytes that sets of ranks send to and receive from other ranks: float64[sets].

        Zeros unless the collective is an all-to-all-v. A set has the ranks of one label, or, if
        `is_prefix`, those of labels 0..k; the set of all labels is then left out.
        """
        sets = count - 1 if is_prefix else count
        if self.collective.kind is not CollectiveKind.ALL_TO_ALL_V:
            return np.zeros(sets), np.zeros(sets)
        # Ranks in no set have the label -1 and are counted as the set `count`.
        inside = np.where(label >= 0, label, count)
        pair = inside[:, None] * (count + 1) + inside
        cells = np.bincount(pair.ravel(), self.pair_bytes.ravel(), (count + 1) ** 2)
        between = cells.reshape(count + 1, count + 1)
        internal = np.diag(between)
        if is_prefix:
            internal = np.diag(np.cumsum(np.cumsum(between, axis=0), axis=1))
            leaving, entering = (np.cumsum(between.sum(axis=axis)) for axis in (1, 0))
        else:
            leaving, entering = between.sum(axis=1), between.sum(axis=0)
        sent, received = leaving - internal, entering - internal
        # Rounding errors of the differences must not give negative bytes.
        return np.maximum(sent[:sets], 0.0), np.maximum(received[:sets], 0.0)

    def complements(self, sets: RankSets) -> RankSets:
        """Build the complement of each set: all ranks that are not in it.

        Its shares are those of the collective minus those of the set; it has the root if the set
        has not; the sent bytes of the set are received by its complement, and conversely.
        """
        has_root = 1.0 - sets.has_root if self.collective.root is not None else sets.has_root
        return RankSets(
            self.collective.num_ranks - sets.ranks,
            self.size - sets.shares,
            has_root,
            sets.received,
            sets.sent,
        )

    def leaving(self, sets: RankSets) -> Float64Array:
        """Return the bytes that must leave each set, float64[sets].

        Reductions are combined within the set first. Empty sets and the set of all ranks have 0.
        """
        is_divided = (sets.ranks > 0) & (sets.ranks < self.collective.num_ranks)
        needed = _LEAVING[self.collective.kind](sets, float(self.size))
        return np.where(is_divided, needed, 0.0)

    def between(self, blocks: RankSets) -> float:
        """Return the minimum bytes of all messages between the blocks of a partition of the ranks.

        In every algorithm, each unit crosses to (or from) every other ends in one message per
        ends, in an all-reduce in two (Patarasuk and Yuan, JPDC 2009, with ranks as blocks). Not
        valid for switches that multicast or reduce.
        """
        kind = self.collective.kind
        crossings = float(np.count_nonzero(blocks.ranks)) - 1.0
        if kind is CollectiveKind.ALL_REDUCE:
            return 2 * crossings * self.size
        if kind in (CollectiveKind.GATHER, CollectiveKind.SCATTER):
            return float(blocks.shares[blocks.has_root == 0].sum())
        if kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL_V):
            return float(self.leaving(blocks).sum())
        return crossings * self.size


def dependent_pairs(collective: Collective) -> BoolArray:
    """Return which ranks of an uneven collective need data of which: bool[ranks, ranks] (from, to).

    False on the diagonal. A part of an all-gather-v goes to all ranks, a part of a reduce-scatter-v
    comes from all ranks; empty parts and messages cause no dependency.
    """
    assert collective.counts is not None
    ranks, needs = collective.num_ranks, collective.counts.table > 0
    if not collective.counts.is_per_pair:
        is_gather = collective.kind.traits.input_is_part
        needs = np.broadcast_to(needs[:, None] if is_gather else needs, (ranks, ranks))
    is_other: BoolArray = needs & ~np.eye(ranks, dtype=np.bool_)
    return is_other


_Leaving = Callable[[RankSets, float], Float64Array]

# Bytes that must leave a set with at least one rank but not all.
_LEAVING: Mapping[CollectiveKind, _Leaving] = {
    CollectiveKind.ALL_REDUCE: lambda sets, size: np.full(len(sets.ranks), size),
    CollectiveKind.ALL_GATHER: lambda sets, size: sets.shares,
    CollectiveKind.REDUCE_SCATTER: lambda sets, size: size - sets.shares,
    CollectiveKind.ALL_TO_ALL: lambda sets, size: sets.ranks * (size - sets.shares),
    CollectiveKind.BROADCAST: lambda sets, size: sets.has_root * size,
    CollectiveKind.REDUCE: lambda sets, size: (1.0 - sets.has_root) * size,
    CollectiveKind.GATHER: lambda sets, size: (1.0 - sets.has_root) * sets.shares,
    CollectiveKind.SCATTER: lambda sets, size: sets.has_root * (size - sets.shares),
    CollectiveKind.ALL_GATHER_V: lambda sets, size: sets.shares,
    CollectiveKind.REDUCE_SCATTER_V: lambda sets, size: size - sets.shares,
    CollectiveKind.ALL_TO_ALL_V: lambda sets, size: sets.sent,
}
