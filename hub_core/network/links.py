"""Links in columns while a topology is built, and the time that a message takes on a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from collhub_columns import Float64Array, Int64Array

from hub_core.network.topology import Dimension, Topology


class Occupancy(StrEnum):
    """How long a message keeps a link busy, and when it arrives after it was put on the link.

    SERIALIZATION: busy size/bandwidth, arrival after latency + size/bandwidth (ASTRA-sim's model).
    ALPHA_BETA: busy and arrival both latency + size/bandwidth (TACOS's model).
    """

    SERIALIZATION = "serialization"
    ALPHA_BETA = "alpha-beta"


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Directed links as columns of equal length; without `plane`, all on plane 0."""

    source: Int64Array
    destination: Int64Array
    bandwidth_bytes_per_s: Float64Array
    latency_s: Float64Array
    plane: Int64Array | None = None

    @classmethod
    def uniform(
        cls,
        source: Int64Array,
        destination: Int64Array,
        bandwidth_bytes_per_s: float,
        latency_s: float,
    ) -> Links:
        """Links that differ in their ends only."""
        rates = np.full(len(source), bandwidth_bytes_per_s, np.float64)
        return cls(source, destination, rates, np.full(len(source), latency_s, np.float64))

    @classmethod
    def joined(cls, parts: Sequence[Links]) -> Links:
        """All links of all parts, in order; parts without planes lie on plane 0."""
        return cls(
            np.concatenate([part.source for part in parts]),
            np.concatenate([part.destination for part in parts]),
            np.concatenate([part.bandwidth_bytes_per_s for part in parts]),
            np.concatenate([part.latency_s for part in parts]),
            np.concatenate([part._planes() for part in parts]),
        )

    def by_source(self, num_npus: int | None = None) -> Links:
        """The links in the order of their sources, ties as they stand.

        With `num_npus`, those of all switches count as of one source, the last.
        """
        key = self.source if num_npus is None else np.minimum(self.source, num_npus)
        rows = np.argsort(key, kind="stable")
        return Links(
            self.source[rows],
            self.destination[rows],
            self.bandwidth_bytes_per_s[rows],
            self.latency_s[rows],
            self._planes()[rows],
        )

    def topology(
        self,
        name: str,
        num_npus: int,
        num_nodes: int,
        *,
        dimensions: tuple[Dimension, ...] = (),
        node_names: tuple[str, ...] = (),
        groups: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Topology:
        """The topology of these links as they stand."""
        return Topology(
            name,
            num_npus,
            num_nodes,
            self.source,
            self.destination,
            self.bandwidth_bytes_per_s,
            self.latency_s,
            dimensions,
            node_names,
            groups or {},
            self._planes(),
        )

    def _planes(self) -> Int64Array:
        """The plane of every link: int64[links]."""
        return np.zeros(len(self.source), np.int64) if self.plane is None else self.plane


def link_times_ns(
    bandwidth_bytes_per_s: Float64Array,
    latency_ns: Float64Array,
    sizes: Int64Array,
    occupancy: Occupancy = Occupancy.SERIALIZATION,
) -> tuple[Int64Array, Int64Array]:
    """(busy, arrival) in whole nanoseconds, by numpy broadcasting of the three arguments.

    One truncation of the double result each, as ASTRA-sim's analytical network does: busy =
    trunc(size / B), arrival = trunc(latency + size / B), B in bytes per nanosecond.
    """
    # Bytes per nanosecond first: the same order of operations as the simulator, bit by bit.
    serialization = sizes / (bandwidth_bytes_per_s / 1e9)
    arrival = np.trunc(latency_ns + serialization).astype(np.int64)
    if occupancy is Occupancy.ALPHA_BETA:
        return arrival, arrival
    busy = np.trunc(serialization).astype(np.int64)
    # Adding zeros gives both the shape that the latencies bring in.
    return busy + np.zeros_like(arrival), arrival
