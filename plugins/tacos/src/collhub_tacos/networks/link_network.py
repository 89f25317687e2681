"""Network for the kernels: in-links of every node as columns, and link times in picoseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hub_core.columns import Int64Array, csr, group_of_entry, group_pointer
from hub_core.network import Occupancy, Topology, link_times_ps


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Limit on the number of messages of a link that are in flight at the same time.

    `max_in_flight`: 0 for as many as keep the link busy. `begins_slowly`: a link starts with one
    message in flight, then increases the number, as `link_schedule.max_released_at_once` describes.
    `keeps_order`: messages are sent in the planned order; otherwise a message is sent as soon as
    its data are available. `sums_in_turn`: even without that order, messages that are reduced are
    sent in turn.
    """

    max_in_flight: int
    begins_slowly: bool
    keeps_order: bool = True
    sums_in_turn: bool = False


# With fewer messages in flight, simulators have fewer opportunities to reorder them.
SLOW_START = WindowRule(max_in_flight=12, begins_slowly=True)
CAPPED = WindowRule(max_in_flight=12, begins_slowly=False)
UNCAPPED = WindowRule(max_in_flight=0, begins_slowly=False)
# If messages of many senders share links inside the network, no message waits for its turn.
FREE = WindowRule(max_in_flight=0, begins_slowly=False, keeps_order=False)
# If switches reduce and multicast, the reduced messages must leave room for completed sums.
SUMS_IN_TURN = WindowRule(
    max_in_flight=0, begins_slowly=False, keeps_order=False, sums_in_turn=True
)


@dataclass(frozen=True, slots=True, eq=False)
class LinkTimes:
    """Times of one message of a chunk's size on every link, in the order of `LinkNetwork`.

    `busy`: int64 picoseconds for which the link accepts no other message. `arrival`: int64
    picoseconds from the start to the arrival. `rule`: limit on the messages in flight.
    """

    busy: Int64Array
    arrival: Int64Array
    rule: WindowRule = field(default=SLOW_START, kw_only=True)

    @property
    def is_equal(self) -> bool:
        """Whether all links have equal times."""
        is_busy_equal = np.all(self.busy == self.busy[:1])
        is_arrival_equal = np.all(self.arrival == self.arrival[:1])
        return bool(is_busy_equal and is_arrival_equal)

    @property
    def is_uniform(self) -> bool:
        """Whether all links are equal and busy until the arrival: time is divided into steps."""
        return self.is_equal and bool(np.all(self.busy == self.arrival[:1]))


@dataclass(frozen=True, slots=True, eq=False)
class LinkNetwork:
    """Directed links grouped by destination: in-links of node v are `indptr[v]:indptr[v + 1]`.

    `source`: int64 source of each link. `row`: int64 row of the link in the topology. Nodes from
    `num_npus` on are switches. Of parallel links only the first in link order is kept, because
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
        # The first row of every pair: other parallel links are dropped.
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
        # Links are sorted by destination, so the row pointer determines the column.
        return group_of_entry(self.indptr)

    def out_links(self) -> tuple[Int64Array, Int64Array]:
        """Return the links by source as (indptr, links): int64[nodes + 1], int64[links]."""
        return csr(self.source, np.arange(self.num_links), self.num_nodes)

    def link_times(self, chunk_bytes: int, occupancy: Occupancy) -> LinkTimes:
        """Return the times of a message of `chunk_bytes`, rounded to picoseconds."""
        latency_s = self.topology.latency_s[self.row]
        bandwidth = self.topology.bandwidth_bytes_per_s[self.row]
        return LinkTimes(*link_times_ps(bandwidth, latency_s, chunk_bytes, occupancy))
