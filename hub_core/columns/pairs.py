"""The links of a network by ordered pair of nodes: parallel ones together, ways back beside."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hub_core.columns.groups import BoolArray, Float64Array, Int64Array, rows_of


class NetworkLinks(Protocol):
    """Links as columns, one row a link; `num_nodes`: their ends are 0..num_nodes-1."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""

    @property
    def source(self) -> Int64Array:
        """Where each link begins."""

    @property
    def destination(self) -> Int64Array:
        """Where it ends."""

    @property
    def plane(self) -> Int64Array:
        """To which network of several it belongs."""

    @property
    def bandwidth_bytes_per_s(self) -> Float64Array:
        """What it carries."""

    @property
    def latency_s(self) -> Float64Array:
        """How long a message is on its way."""


class NodePairs:
    """The links by plane and ordered pair of nodes, as columns of equal length.

    `source`, `destination`, `count`: int64; then sums of bandwidth, and the least latency.
    `back`: the row of the way back, -1 where there is none.
    """

    def __init__(self, network: NetworkLinks) -> None:
        """Sort the links once: O(links log links)."""
        nodes = network.num_nodes
        square = nodes**2
        # One number a (plane, source, destination), so that one sort finds parallel links.
        pair = network.source * nodes + network.destination
        key = network.plane * square + pair
        keys, row, self.count = np.unique(key, return_inverse=True, return_counts=True)
        self.source, self.destination = np.divmod(keys % square, nodes)
        rates = np.bincount(row, network.bandwidth_bytes_per_s, len(keys))
        self.bandwidth_bytes_per_s = rates.astype(np.float64)
        # Parallel links add up in bandwidth; the first message takes the fastest.
        self.latency_s = np.full(len(keys), np.inf)
        np.minimum.at(self.latency_s, row, network.latency_s)
        # The key of the same pair the other way round, on the same plane.
        first_of_plane = keys // square * square
        self.back = rows_of(first_of_plane + self.destination * nodes + self.source, keys)

    def __len__(self) -> int:
        return len(self.source)

    def differs_from_back(self) -> BoolArray:
        """Whether the way back exists with another bandwidth or latency."""
        # Both directions of a cable mostly have equal values.
        rates, latencies = self.bandwidth_bytes_per_s, self.latency_s
        # Where there is no way back, -1 compares with the last row, which does not count.
        is_other = (rates != rates[self.back]) | (latencies != latencies[self.back])
        differs: BoolArray = (self.back >= 0) & is_other
        return differs
