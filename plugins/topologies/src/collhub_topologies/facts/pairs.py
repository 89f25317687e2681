"""The links of a network by ordered pair of nodes."""

from __future__ import annotations

import numpy as np

from hub_core.model import BoolArray
from hub_core.network import Topology


class Pairs:
    """The links by plane and ordered pair of nodes, as columns of equal length.

    `source`, `destination`, `count`: int64; then sums of bandwidth, and the least latency.
    `back`: the row of the way back, -1 where there is none.
    """

    def __init__(self, topology: Topology) -> None:
        square = topology.num_nodes**2
        key = topology.plane * square + topology.source * topology.num_nodes + topology.destination
        # One number a (plane, source, destination), so that one sort finds parallel links.
        keys, row, self.count = np.unique(key, return_inverse=True, return_counts=True)
        self.source, self.destination = np.divmod(keys % square, topology.num_nodes)
        rates = np.bincount(row, topology.bandwidth_bytes_per_s, len(keys))
        self.bandwidth_bytes_per_s = rates.astype(np.float64)
        # Parallel links add up in bandwidth; the first message takes the fastest.
        self.latency_s = np.full(len(keys), np.inf)
        np.minimum.at(self.latency_s, row, topology.latency_s)
        # The key of the same pair the other way round, on the same plane.
        wanted = keys // square * square + self.destination * topology.num_nodes + self.source
        place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        self.back = np.where(keys[place] == wanted, place, -1) if len(keys) else place

    def __len__(self) -> int:
        return len(self.source)

    def differs_from_back(self) -> BoolArray:
        """Whether the way back exists with another bandwidth or latency."""
        rates, latencies = self.bandwidth_bytes_per_s, self.latency_s
        is_unlike = (rates != rates[self.back]) | (latencies != latencies[self.back])
        differs: BoolArray = (self.back >= 0) & is_unlike
        return differs
