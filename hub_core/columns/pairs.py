"""Links of a network by ordered pair of nodes: parallel links merged, with the reverse pair."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hub_core.columns.groups import BoolArray, Float64Array, Int64Array, rows_of


class NetworkLinks(Protocol):
    """Links as columns, one row per link; their ends are nodes 0..num_nodes-1."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""

    @property
    def source(self) -> Int64Array:
        """Source node of each link."""

    @property
    def destination(self) -> Int64Array:
        """Destination node of each link."""

    @property
    def plane(self) -> Int64Array:
        """Plane of each link, in networks of several planes."""

    @property
    def bandwidth_bytes_per_s(self) -> Float64Array:
        """Bandwidth of each link."""

    @property
    def latency_s(self) -> Float64Array:
        """Latency of each link."""


class NodePairs:
    """Links merged by plane and ordered pair of nodes, as columns of equal length.

    `source`, `destination`, `count`: int64. `bandwidth_bytes_per_s`: sum over parallel links.
    `latency_s`: minimum over parallel links. `back`: the row of the reverse pair on the same plane,
    -1 if there is none.
    """

    def __init__(self, network: NetworkLinks) -> None:
        """Merge the links with one sort: O(links log links)."""
        nodes = network.num_nodes
        square = nodes**2
        # One number per (plane, source, destination), so that one sort finds parallel links.
        pair = network.source * nodes + network.destination
        key = network.plane * square + pair
        keys, row, self.count = np.unique(key, return_inverse=True, return_counts=True)
        self.source, self.destination = np.divmod(keys % square, nodes)
        rates = np.bincount(row, network.bandwidth_bytes_per_s, len(keys))
        self.bandwidth_bytes_per_s = rates.astype(np.float64)
        # Bandwidths of parallel links add up; the first message takes the fastest link.
        self.latency_s = np.full(len(keys), np.inf)
        np.minimum.at(self.latency_s, row, network.latency_s)
        # The key of the reverse pair on the same plane.
        first_of_plane = keys // square * square
        self.back = rows_of(first_of_plane + self.destination * nodes + self.source, keys)

    def __len__(self) -> int:
        return len(self.source)

    def differs_from_back(self) -> BoolArray:
        """Return whether the reverse pair exists with another bandwidth or latency."""
        rates, latencies = self.bandwidth_bytes_per_s, self.latency_s
        # Without a reverse pair, -1 compares with the last row, which is masked below.
        is_different = (rates != rates[self.back]) | (latencies != latencies[self.back])
        differs: BoolArray = (self.back >= 0) & is_different
        return differs
