"""Trees as jobs on links with what they wait for, and the orders in which links take them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from collhub_flows.groups.trees import Trees
from collhub_flows.network import FlowNetwork
from hub_core.columns import (
    BoolArray,
    Float64Array,
    Int64Array,
    csr,
    expanded_ranges,
    inverse,
    row_pointer,
)
from hub_core.network import Occupancy, link_times_ps

# Of more jobs, passes forward and backward gain less than they take.
_FEW = 60_000
_Edges = tuple[Int64Array, Int64Array]


@dataclass(frozen=True, slots=True, eq=False)
class TreeJobs:
    """One job an entry of the trees and link of its arc, by entry; int64 columns.

    `is_forwarded`: whether the link begins at a switch. `busy`, `arrival`: picoseconds that the
    link is taken, and until the piece is at its end.
    `first`: where the jobs of each entry begin, with the end. `edges`: (job, job that waits for
    it). `number`: of the piece within its share.
    """

    link: Int64Array
    is_forwarded: BoolArray
    busy: Int64Array
    arrival: Int64Array
    first: Int64Array
    edges: _Edges
    number: Int64Array
    num_links: int

    @classmethod
    def of(
        cls, network: FlowNetwork, trees: Trees, share_bytes: Float64Array, occupancy: Occupancy
    ) -> TreeJobs:
        """Jobs of all trees; `share_bytes`: of every share."""
        topology, routes = network.topology, network.routes
        lengths = np.diff(routes.indptr)[trees.arcs]
        link = routes.links[expanded_ranges(routes.indptr[trees.arcs], lengths)]
        piece = np.repeat(trees.piece[trees.tree_of_entry], lengths)
        pieces = trees.pieces
        size = share_bytes[pieces.share] * pieces.units / pieces.share_units
        bandwidth, latency_s = topology.bandwidth_bytes_per_s[link], topology.latency_s[link]
        busy, arrival = link_times_ps(bandwidth, latency_s, size[piece], occupancy)
        first = row_pointer(lengths)
        edges = _edges(trees, first)
        number = pieces.number[piece]
        is_forwarded = topology.source[link] >= topology.num_npus
        times = busy, arrival, first
        return cls(link, is_forwarded, *times, edges, number, topology.num_links)

    def orders(self, passes: int) -> Iterator[Int64Array]:
        """Starts of all jobs, int64 picoseconds, by one order after another.

        Piece number by piece number, then what has longest to go, improved by `passes` forward and
        backward.
        """
        tails = self._tails()
        yield self._starts(self._rank(self.number, -tails))
        start = self._starts(self._rank(-tails))
        yield start
        if len(self.link) > _FEW:
            return
        turned = self._reversed()
        for _ in range(passes):
            back = turned._starts(turned._rank(-(start + self.arrival)))
            start = self._starts(self._rank(-(back + self.arrival)))
            yield start

    def time_ps(self, start: Int64Array) -> int:
        """When the last piece arrives."""
        return int((start + self.arrival).max(initial=0))

    def least_ps(self) -> int:
        """What no order goes below: the load of the fullest link."""
        # Messages on other links can be on their way meanwhile.
        load = np.bincount(self.link, self.busy, self.num_links)
        return int(load.max(initial=0))

    def _reversed(self) -> TreeJobs:
        """The same with time turned round."""
        before, after = self.edges
        # What came last is first now, and what waited is waited for.
        edges = (after, before)
        # On the way back nothing has an order of its own.
        is_forwarded = np.zeros(len(self.link), np.bool_)
        columns = (self.link, is_forwarded, self.busy, self.arrival, self.first)
        return TreeJobs(*columns, edges, self.number, self.num_links)

    def _starts(self, rank: Int64Array) -> Int64Array:
        """When every job begins where links take their jobs by rank; int64[jobs]."""
        # Imported here: numba takes a second.
        from collhub_flows.list_kernel import list_starts

        count = len(self.link)
        indptr, following = csr(*self.edges, count)
        links = self.link, indptr, following, self.busy, self.arrival
        return list_starts(*links, rank, self.is_forwarded, self.num_links)

    def _tails(self) -> Int64Array:
        """Time from the start of each job until all that follows has arrived, without waits."""
        from collhub_flows.groups.kernels import longest_tails

        indptr, following = csr(*self.edges, len(self.link))
        return longest_tails(indptr, following, self.arrival)

    def _rank(self, *keys: Int64Array) -> Int64Array:
        """Place of each job by these keys, the first one first, then scattered."""
        count = len(self.link)
        # Alike pieces of all sources go round alike, instead of all to NPU 0 first.
        number = np.arange(count)
        scattered = (number * 2654435761) % max(count, 1)
        return inverse(np.lexsort((scattered, *reversed(keys))))


def _edges(trees: Trees, first: Int64Array) -> _Edges:
    """What waits for what: along every arc, from arc to arc, and from sums to what is spread."""
    head, last = first[:-1], first[1:] - 1
    inner = np.flatnonzero(np.diff(np.repeat(np.arange(len(head)), np.diff(first))) == 0)
    child = np.flatnonzero(trees.parent >= 0)
    parent = trees.parent[child]
    inward = trees.inward[trees.tree_of_entry[child]]
    # Towards the root a child comes first.
    before = np.where(inward, last[child], last[parent])
    after = np.where(inward, head[parent], head[child])
    ends, begins = _sums_to_spread(trees)
    return (
        np.concatenate([inner, before, last[ends]]),
        np.concatenate([inner + 1, after, head[begins]]),
    )


def _sums_to_spread(trees: Trees) -> _Edges:
    """Entries at the root of pieces with two trees: each inward one before each outward one."""
    tree = trees.tree_of_entry
    at_root = np.flatnonzero(trees.parent < 0)
    inward = trees.inward[tree[at_root]]
    piece = trees.piece[tree[at_root]]
    pieces = len(trees.pieces.share)
    indptr, spread = csr(piece[~inward], at_root[~inward], pieces)
    ends, owner = at_root[inward], piece[inward]
    counts = np.diff(indptr)[owner]
    begins = spread[expanded_ranges(indptr[owner], counts)]
    return np.repeat(ends, counts), begins
