"""The network as the kernels see it: in-links of every node as columns, link times in picoseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.topology import Occupancy, Topology

Int64Array = npt.NDArray[np.int64]

_PICOSECONDS = 1e12


@dataclass(frozen=True, slots=True, eq=False)
class LinkTimes:
    """What one message of a chunk's size costs on every link: int64 picoseconds, in the order of `LinkNetwork`.

    `busy`: how long the link can take no other message; `arrival`: from the start to the arrival at its end.
    """

    busy: Int64Array
    arrival: Int64Array

    @property
    def is_uniform(self) -> bool:
        """Whether all links take the same time and are busy until the arrival: time then goes in equal steps."""
        return bool(
            np.all(self.busy == self.arrival[:1]) and np.all(self.arrival == self.arrival[:1])
        )


@dataclass(frozen=True, slots=True, eq=False)
class LinkNetwork:
    """Directed links grouped by destination: the in-links of node v are `indptr[v]:indptr[v + 1]`.

    `source`: int64, their other end; `row`: int64, the row of the topology that each one is. Nodes from `num_npus`
    on are switches. Of parallel links the first in link order stands, as simulators use no other.
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
        key = topology.destination * topology.num_nodes + topology.source
        _, row = np.unique(key, return_index=True)
        row = row.astype(np.int64)
        indptr = np.searchsorted(
            topology.destination[row], np.arange(topology.num_nodes + 1)
        ).astype(np.int64)
        return cls(
            topology, topology.num_npus, topology.num_nodes, indptr, topology.source[row], row
        )

    @property
    def num_links(self) -> int:
        """Number of links."""
        return len(self.row)

    @property
    def destination(self) -> Int64Array:
        """Destination of every link, ascending."""
        return np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))

    def link_times(self, chunk_bytes: int, occupancy: Occupancy) -> LinkTimes:
        """Times of a message of `chunk_bytes`, rounded to whole picoseconds."""
        latency = np.rint(self.topology.latency_s[self.row] * _PICOSECONDS).astype(np.int64)
        exact = chunk_bytes * _PICOSECONDS / self.topology.bandwidth_bytes_per_s[self.row]
        serialization = np.rint(exact).astype(np.int64)
        arrival = latency + serialization
        return LinkTimes(arrival if occupancy is Occupancy.ALPHA_BETA else serialization, arrival)
