"""Time of all-reduce on several nodes: a closed form of five constants for one network.

Small messages: start + 2 log2(N) H (S / 64 KiB)^g + S / r. The exponent g describes the growth of
the hop with the size: on Slingshot a hop grows from 8 us at 1 KiB to 40 us at 128 KiB. Large
messages have a longer hop and are limited by the NICs of a node: start + 2 log2(N) H' + S / (R f),
f = 1 for two nodes and n / (2 (n - 1)) for more. The time is the smooth minimum of both. The hop of
one network does not transfer to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collhub_machine_profiles.calls import CollectiveCall, may_be_equal
from collhub_machine_profiles.table import Table
from hub_core.plugin_api import Library

FloatArray = NDArray[np.float64]

NETWORK_NAMES = (
    "hop_small_us",
    "hop_growth",
    "rate_small_GBps",
    "hop_large_us",
    "rate_large_GBps",
)
MIN_TABLES = 3
MAX_GROWTH = 0.35

_START_US = 7.0
_HOP_BYTES = 64 * 1024
_POWER = 6


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """Constants in the order of `NETWORK_NAMES` of one number of GPUs per node.

    `points` is the number of fitted measurements, `nodes` the numbers of nodes that they cover.
    """

    library: Library
    ranks_per_node: int
    values: tuple[float, ...]
    points: int
    nodes: tuple[int, ...]

    def applies_to(self, point: CollectiveCall) -> bool:
        """Whether the model predicts a point: an all-reduce within the measured node counts."""
        return (
            is_between_nodes(point)
            and may_be_equal(point.library, self.library)
            and point.ranks == self.ranks_per_node * point.nodes
            and self.nodes[0] <= point.nodes <= self.nodes[-1]
        )

    def times_us(self, points: Sequence[CollectiveCall]) -> FloatArray:
        """Return the predicted times of points in us."""
        return np.exp(log_network_times(np.log(self.values), *network_columns(points)))


def is_between_nodes(point: CollectiveCall) -> bool:
    """Whether the form describes a point: an all-reduce on several nodes of equal size."""
    return (
        point.collective == "all-reduce"
        and point.nodes > 1
        and point.ranks % point.nodes == 0
        and not point.dtype
    )


def bandwidth_factor(point: CollectiveCall) -> float:
    """Return the algorithm bandwidth of a large all-reduce relative to the NICs of a node.

    Two nodes use a tree, whose node sends the vector once; more nodes use rings.
    """
    return 1.0 if point.nodes == 2 else point.ranks / (2 * (point.ranks - 1))


def network_columns(points: Sequence[CollectiveCall]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return sizes in bytes, twice log2 of the nodes, and the factor f of the large rate."""
    sizes = np.array([point.size_bytes for point in points], dtype=float)
    nodes = np.array([point.nodes for point in points], dtype=float)
    factor = np.array([bandwidth_factor(point) for point in points])
    return sizes, 2 * np.log2(nodes), factor


def log_network_times(
    position: FloatArray, sizes: FloatArray, hops: FloatArray, factor: FloatArray
) -> FloatArray:
    """Return logarithms of times in us; `position` holds the logarithms of the constants."""
    hop_small, growth, rate_small, hop_large, rate_large = np.exp(position)
    hop = hop_small * (sizes / _HOP_BYTES) ** growth
    small = _START_US + hops * hop + sizes / (rate_small * 1e3)
    large = _START_US + hops * hop_large + sizes / (rate_large * factor * 1e3)
    minimum = np.minimum(small, large)
    power = (small / minimum) ** -_POWER + (large / minimum) ** -_POWER
    return np.asarray(np.log(minimum) - np.log(power) / _POWER)


def extrapolate_nodes(tables: Sequence[Table], point: CollectiveCall) -> float | None:
    """Return the time in us on more nodes than were measured, None with fewer than three tables.

    The time of the largest measured number of nodes grows along a line in log2(nodes) whose slope
    is the median over all pairs (Theil-Sen), between 0 and 35 % per doubling.
    """
    same = sorted(
        (
            table
            for table in tables
            if table.nodes > 1
            and (table.collective, table.dtype) == (point.collective, point.dtype)
            and may_be_equal(table.library, point.library)
            and table.ranks * point.nodes == point.ranks * table.nodes
        ),
        key=lambda table: table.nodes,
    )
    if len(same) < MIN_TABLES or point.nodes <= same[-1].nodes:
        return None
    size = np.array([point.size_bytes], dtype=float)
    doublings = np.log2([table.nodes for table in same])
    times_us = np.array([float(table.time_us(size)[0]) for table in same])
    first, second = np.triu_indices(len(same), 1)
    slopes = (times_us[second] - times_us[first]) / (doublings[second] - doublings[first])
    slope = float(np.clip(np.median(slopes), 0, MAX_GROWTH * times_us[-1]))
    return float(times_us[-1] + slope * (np.log2(point.nodes) - doublings[-1]))
