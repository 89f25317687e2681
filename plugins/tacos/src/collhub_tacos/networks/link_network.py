"""Rules of how many messages of one link may be on their way at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hub_core.columns import Int64Array, csr, group_of_entry, group_pointer
from hub_core.network import Occupancy, Topology, link_times_ps


@dataclass(frozen=True, slots=True)
class WindowRule:
    """How many messages of a link may be on their way before one of them has arrived.

    `most`: at most so many, 0 for as many as keep the link busy. `begins_slowly`: a link begins
    with one message, then has a few on their way, and so on, by `link_schedule.released_at_once`.
    `keeps_order`: else a message goes as soon as its data are there, whichever was planned first;
    with `sums_in_turn` those that are added up have turns all the same.
    """

    most: int
    begins_slowly: bool
    keeps_order: bool = True
    sums_in_turn: bool = False


# The fewer are under way, the less there is for a simulator to put in another order.
SLOW_START = WindowRule(most=12, begins_slowly=True)
CAPPED = WindowRule(most=12, begins_slowly=False)
UNCAPPED = WindowRule(most=0, begins_slowly=False)
# Where messages of many senders meet inside the network, none has to wait for a stated turn.
FREE = WindowRule(most=0, begins_slowly=False, keeps_order=False)
# Where switches reduce and multicast: what is added up leaves room for the sums that are complete.
SUMS_IN_TURN = WindowRule(most=0, begins_slowly=False, keeps_order=False, sums_in_turn=True)


@dataclass(frozen=True, slots=True, eq=False)
class LinkTimes:
    """What one message of a chunk's size costs on every link, in the order of `LinkNetwork`.

    `busy`: int64 picoseconds, how long the link can take no other message; `arrival`: int64
    picoseconds from the start to the arrival at its end; `rule`: how many may be on their way.
    """

    busy: Int64Array
    arrival: Int64Array
    rule: WindowRule = field(default=SLOW_START, kw_only=True)

    @property
    def is_alike(self) -> bool:
        """Whether all links take the same times."""
        alike_busy = np.all(self.busy == self.busy[:1])
        alike_arrival = np.all(self.arrival == self.arrival[:1])
        return bool(alike_busy and alike_arrival)

    @property
    def is_uniform(self) -> bool:
        """Whether all links are alike and busy until the arrival: time then goes in steps."""
        return self.is_alike and bool(np.all(self.busy == self.arrival[:1]))


@dataclass(frozen=True, slots=True, eq=False)
class LinkNetwork:
    """Directed links grouped by destination: in-links of node v are `indptr[v]:indptr[v + 1]`.

    `source`: int64, their other end; `row`: int64, the row of the topology that each one is. Nodes
    from `num_npus` on are switches. Of parallel links the first in link order stands, as
    simulators use no other.
    """

    topology: Topology
    num_npus: int
    num_nodes: int
    indptr: Int64Array
    source: Int64Array
    row: Int64Array

    @classmethod
    def of(cls, topology: Topology) -> LinkNetwork:
        """Group the links of a topology by destination, then by source."""
        nodes = topology.num_nodes
        key = topology.destination * nodes + topology.source
        # The first row of every pair: parallel links are dropped.
        _, first_rows = np.unique(key, return_index=True)
        row = first_rows.astype(np.int64)
        indptr = group_pointer(topology.destination[row], nodes)
        return cls(topology, topology.num_npus, nodes, indptr, topology.source[row], row)

    @property
    def num_links(self) -> int:
        """Number of links."""
        return len(self.row)

    @property
    def in_degree(self) -> Int64Array:
        """Number of in-links of every node: int64[nodes]."""
        return np.diff(self.indptr)

    @property
    def destination(self) -> Int64Array:
        """Destination of every link, ascending."""
        # Links stand by destination: the row pointer tells it, and no column is kept.
        return group_of_entry(self.indptr)

    def out_links(self) -> tuple[Int64Array, Int64Array]:
        """Links by source as (indptr, links): int64[nodes + 1], int64[links]."""
        return csr(self.source, np.arange(self.num_links), self.num_nodes)

    def link_times(self, chunk_bytes: int, occupancy: Occupancy) -> LinkTimes:
        """Times of a message of `chunk_bytes`, rounded to whole picoseconds."""
        latency_s = self.topology.latency_s[self.row]
        bandwidth = self.topology.bandwidth_bytes_per_s[self.row]
        return LinkTimes(*link_times_ps(bandwidth, latency_s, chunk_bytes, occupancy))
