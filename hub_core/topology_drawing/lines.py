"""Which lines a picture has: one for links that are alike both ways, an arrow a direction for others; bent around nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.network.topology import Topology
from hub_core.topology_drawing.pairs import Pairs
from hub_core.topology_drawing.places import Points

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_CLEARANCE = 17.0
_BLOCK_CELLS = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """Lines as columns: ends, bandwidth and latency of one direction, parallel links, an arrow at `destination` or none,
    and the control point of the curve, which lies on the straight line where there is nothing to avoid.

    `bend`: how far the control point lies beside the middle, in pixels.
    """

    source: Int64Array
    destination: Int64Array
    bandwidth_bytes_per_s: Float64Array
    latency_s: Float64Array
    count: Int64Array
    is_arrow: BoolArray
    bend: Float64Array
    control: Points

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def of(cls, topology: Topology, places: Points) -> Lines:
        """The lines of a topology whose nodes stand at `places`."""
        pairs = Pairs(topology)
        is_alike = (pairs.back >= 0) & ~pairs.differs_from_back()
        rows = np.flatnonzero(~is_alike | (pairs.source < pairs.destination))
        source, destination, is_arrow = pairs.source[rows], pairs.destination[rows], ~is_alike[rows]
        bend = _bends(places, source, destination, is_arrow & (pairs.back[rows] >= 0))
        middle = (places[source] + places[destination]) / 2
        control = middle + _sides(places[destination] - places[source], is_arrow) * bend[:, None]
        rates, latencies = pairs.bandwidth_bytes_per_s[rows], pairs.latency_s[rows]
        return cls(
            source, destination, rates, latencies, pairs.count[rows], is_arrow, bend, control
        )


def _bends(
    places: Points, source: Int64Array, destination: Int64Array, is_one_of_two: BoolArray
) -> Float64Array:
    """Nothing for lines with a free way; else enough to pass beside the nodes, more for longer lines."""
    length = np.hypot(*(places[destination] - places[source]).T)
    needs = is_one_of_two | _is_blocked(places, source, destination)
    return np.where(needs, np.minimum(36.0 + 0.06 * length, 90.0), 0.0)


def _is_blocked(places: Points, source: Int64Array, destination: Int64Array) -> BoolArray:
    """Whether a node other than its ends stands on a line, by blocks of lines."""
    blocked = np.zeros(len(source), np.bool_)
    block = max(1, _BLOCK_CELLS // len(places))
    for first in range(0, len(source), block):
        rows = slice(first, first + block)
        start, way = places[source[rows]], places[destination[rows]] - places[source[rows]]
        apart = places[None, :, :] - start[:, None, :]
        square = np.maximum(np.sum(way * way, axis=1), 1e-9)
        share = np.clip(np.einsum("lnx,lx->ln", apart, way) / square[:, None], 0.0, 1.0)
        distance = np.hypot(*np.moveaxis(apart - share[:, :, None] * way[:, None, :], 2, 0))
        line = np.arange(len(start))
        distance[line, source[rows]] = distance[line, destination[rows]] = np.inf
        blocked[rows] = np.any(distance < _CLEARANCE, axis=1)
    return blocked


def _sides(way: Points, is_arrow: BoolArray) -> Points:
    """Unit vectors across the lines: upwards, or to the right of a vertical one; to the left of an arrow's direction."""
    across = np.stack([way[:, 1], -way[:, 0]], axis=1) / np.maximum(np.hypot(*way.T), 1e-9)[:, None]
    is_down = (across[:, 1] > 1e-9) | ((np.abs(across[:, 1]) <= 1e-9) & (across[:, 0] < 0))
    turned: Points = np.where((is_down & ~is_arrow)[:, None], -across, across)
    return turned
