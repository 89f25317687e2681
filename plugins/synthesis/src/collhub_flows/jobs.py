"""Pieces on their paths as jobs on links, and the orders in which links take them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from collhub_flows.network import FlowNetwork
from collhub_flows.paths import FlowPaths
from hub_core.columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    expanded_ranges,
    inverse,
    row_pointer,
    stable_order,
)
from hub_core.network import Occupancy, link_times_ps

# Passes forward and backward; later ones gain next to nothing.
_PASSES = 6
_MOST_FAILURES = 2


@dataclass(frozen=True, slots=True, eq=False)
class FlowJobs:
    """One job a piece and link of its path, by piece, in the order of the path; int64 columns.

    `piece`: the piece of each job; `link`: row of the topology; `is_forwarded`: whether that
    begins at a switch. `busy`, `arrival`: picoseconds that the link is taken, and until the piece
    is at its end. `indptr`: where the jobs of each piece begin. `number`: of each piece within its
    path; `units`: of each piece; `path`: its path.
    """

    piece: Int64Array
    link: Int64Array
    is_forwarded: BoolArray
    busy: Int64Array
    arrival: Int64Array
    indptr: Int64Array
    number: Int64Array
    units: Int64Array
    path: Int64Array
    around: Int64Array
    num_links: int

    @classmethod
    def of(
        cls,
        network: FlowNetwork,
        paths: FlowPaths,
        most_pieces: int,
        unit_bytes: float,
        occupancy: Occupancy,
    ) -> FlowJobs:
        """Cut every path in up to `most_pieces`; a unit has `unit_bytes`."""
        path, units = paths.pieces(most_pieces)
        links, indptr_of_path = _links_of_paths(network, paths)
        lengths = np.diff(indptr_of_path)[path]
        link = links[expanded_ranges(indptr_of_path[path], lengths)]
        piece = np.repeat(np.arange(len(path)), lengths)
        topology = network.topology
        bandwidth, latency_s = topology.bandwidth_bytes_per_s[link], topology.latency_s[link]
        busy, arrival = link_times_ps(bandwidth, latency_s, units[piece] * unit_bytes, occupancy)
        number = counted_positions(np.bincount(path))
        indptr = row_pointer(lengths)
        num_links = topology.num_links
        is_forwarded = topology.source[link] >= topology.num_npus
        around = _around(piece, len(units))
        columns = piece, link, is_forwarded, busy, arrival, indptr, number, units, path, around
        return cls(*columns, num_links)

    def by_pieces(self) -> Int64Array:
        """Starts of all jobs, int64 picoseconds: the first pieces of all paths first."""
        return self._starts(self._rank(self.number[self.piece], -self._remaining()))

    def time_ps(self, start: Int64Array) -> int:
        """When the last piece arrives."""
        return int((start + self.arrival).max(initial=0))

    def least_ps(self) -> int:
        """What no order goes below: the load of the fullest link, or the latencies of a path."""
        load = np.bincount(self.link, self.busy, self.num_links)
        latency = np.add.reduceat(self.arrival - self.busy, self.indptr[:-1])
        return int(max(load.max(initial=0), latency.max(initial=0)))

    def forward_and_backward(self) -> Iterator[Int64Array]:
        """Starts by ever better orders.

        Longest remaining time first; then the reversed jobs by latest end, and so to and fro. After
        the forward-backward improvement of Li and Willis (Eur. J. Oper. Res. 56, 1992).
        """
        start = self._starts(self._rank(-self._remaining()))
        yield start
        turned = self._reversed()
        least = self.time_ps(start)
        failures = 0
        for _ in range(_PASSES):
            before = start
            # What ended last starts first on the way back.
            back = turned._starts(turned._rank(-(start + self.arrival)[::-1]))
            start = self._starts(self._rank(-(back + turned.arrival)[::-1]))
            # The next pass would lead here again.
            if np.array_equal(start, before):
                return
            yield start
            failures = 0 if self.time_ps(start) < least else failures + 1
            least = min(least, self.time_ps(start))
            # Two without a gain are followed by none, mostly.
            if failures == _MOST_FAILURES:
                return

    def _reversed(self) -> FlowJobs:
        """The same with the order of all jobs turned round: each piece from its target back."""
        last = len(self.units) - 1
        lengths = np.diff(self.indptr)
        # Pieces are numbered anew, so that the last one stands first.
        piece = last - self.piece[::-1]
        return FlowJobs(
            piece,
            self.link[::-1].copy(),
            # On the way back nothing has an order of its own.
            np.zeros(len(piece), np.bool_),
            self.busy[::-1].copy(),
            self.arrival[::-1].copy(),
            row_pointer(lengths[::-1]),
            self.number[::-1].copy(),
            self.units[::-1].copy(),
            self.path[::-1].copy(),
            _around(piece, last + 1),
            self.num_links,
        )

    def _starts(self, rank: Int64Array) -> Int64Array:
        # Imported here: numba takes a second.
        from collhub_flows.list_kernel import list_starts

        # Each job but the last of its piece has one behind it.
        has_next = np.ones(len(self.link), np.int64)
        has_next[self.indptr[1:] - 1] = 0
        following = np.flatnonzero(has_next) + 1
        links = self.link, row_pointer(has_next), following, self.busy, self.arrival
        return list_starts(*links, rank, self.is_forwarded, self.num_links)

    def _remaining(self) -> Int64Array:
        """Time from the start of each job to the arrival of its piece, without waits."""
        total = np.cumsum(self.arrival)
        end = total[self.indptr[1:] - 1][self.piece]
        remaining: Int64Array = end - total + self.arrival
        return remaining

    def _rank(self, *keys: Int64Array) -> Int64Array:
        """Place of each job by these keys, the first one first, then by its way round."""
        order = self.around
        for key in reversed(keys):
            order = order[stable_order(key[order])]
        return inverse(order)


def _around(piece: Int64Array, num_pieces: int) -> Int64Array:
    """Jobs in an order in which alike pieces of all sources go round alike."""
    # Instead of all to NPU 0 first.
    spread = (piece * 2654435761) % max(num_pieces, 1)
    return np.lexsort((piece, spread))


def _links_of_paths(network: FlowNetwork, paths: FlowPaths) -> tuple[Int64Array, Int64Array]:
    """Rows of the topology that each path takes, and where the path begins among them."""
    indptr = network.routes.indptr
    lengths = np.diff(indptr)[paths.arcs]
    links = network.routes.links[expanded_ranges(indptr[paths.arcs], lengths)]
    return links, row_pointer(lengths)[paths.indptr]
