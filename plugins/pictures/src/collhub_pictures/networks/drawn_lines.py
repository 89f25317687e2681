"""Which lines a picture has, and how they bend around nodes that stand on their way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_pictures.networks.places import Points
from hub_core.model import BoolArray, Float64Array, Int64Array
from hub_core.network import NodePairs, Topology

_CLEARANCE = 17.0
_BLOCK_CELLS = 1 << 22
# Lengths below this are no lengths: nodes that stand at one place.
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class DrawnLines:
    """Lines as columns of equal length: one for links alike both ways, else an arrow a way.

    `source`, `destination`, `count` (parallel links): int64. `bandwidth_bytes_per_s`, `latency_s`:
    float64, of one direction. `is_arrow`: an arrow at `destination`, or none. `control`: the
    control point of the curve, on the straight line where there is nothing to avoid. `bend`: how
    far it lies beside the middle, in pixels.
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
    def of(cls, topology: Topology, places: Points) -> DrawnLines:
        """The lines of a topology whose nodes stand at `places`, float64[num_nodes, 2]."""
        pairs = NodePairs(topology)
        has_back = pairs.back >= 0
        is_alike = has_back & ~pairs.differs_from_back()
        rows = np.flatnonzero(~is_alike | (pairs.source < pairs.destination))
        source, destination = pairs.source[rows], pairs.destination[rows]
        is_arrow = ~is_alike[rows]
        bend = _bends(places, source, destination, is_arrow & has_back[rows])
        start, end = places[source], places[destination]
        side = _sides(end - start, is_arrow)
        return cls(
            source,
            destination,
            pairs.bandwidth_bytes_per_s[rows],
            pairs.latency_s[rows],
            pairs.count[rows],
            is_arrow,
            bend,
            (start + end) / 2 + side * bend[:, None],
        )


def _bends(
    places: Points, source: Int64Array, destination: Int64Array, is_one_of_two: BoolArray
) -> Float64Array:
    """How far each line is bent, in pixels, float64; 0 for one with a free way."""
    # Two ways between the same nodes would cover one another.
    needs = is_one_of_two | _is_blocked(places, source, destination)
    # Enough to pass beside the nodes, more for longer lines, which are seen to bend less.
    way = places[destination] - places[source]
    length = np.hypot(*way.T)
    bend = np.minimum(36.0 + 0.06 * length, 90.0)
    return np.where(needs, bend, 0.0)


# Every line against every node: a search by place would pay for itself only beyond the pictures
# that anybody can read. By blocks of lines, so that the table of distances fits in memory.


def _is_blocked(places: Points, source: Int64Array, destination: Int64Array) -> BoolArray:
    """Whether a node other than its ends stands on a line."""
    blocked = np.zeros(len(source), np.bool_)
    block = max(1, _BLOCK_CELLS // len(places))
    for first in range(0, len(source), block):
        rows = slice(first, first + block)
        distance = _distances(places, source[rows], destination[rows])
        blocked[rows] = np.any(distance < _CLEARANCE, axis=1)
    return blocked


def _distances(places: Points, source: Int64Array, destination: Int64Array) -> Float64Array:
    """How far every node is from every line, float64[lines, nodes]; infinitely from its own."""
    start = places[source]
    way = places[destination] - start
    apart = places[None, :, :] - start[:, None, :]
    square = np.maximum(np.sum(way * way, axis=1), _NOTHING)

    # The foot of the perpendicular, as a share of the way; beyond the ends, the end itself.
    along = np.einsum("lnx,lx->ln", apart, way) / square[:, None]
    share = np.clip(along, 0.0, 1.0)
    beside = apart - share[:, :, None] * way[:, None, :]
    distance: Float64Array = np.hypot(*np.moveaxis(beside, 2, 0))
    line = np.arange(len(start))
    distance[line, source] = np.inf
    distance[line, destination] = np.inf
    return distance


def _sides(way: Points, is_arrow: BoolArray) -> Points:
    """Unit vectors across the lines, float64[lines, 2].

    Upwards, or to the right of a vertical one; to the left of an arrow's direction, so that the two
    ways bend apart.
    """
    length = np.maximum(np.hypot(*way.T), _NOTHING)
    across = np.stack([way[:, 1], -way[:, 0]], axis=1) / length[:, None]
    is_level = np.abs(across[:, 1]) <= _NOTHING
    is_down = (across[:, 1] > _NOTHING) | (is_level & (across[:, 0] < 0))
    turned: Points = np.where((is_down & ~is_arrow)[:, None], -across, across)
    return turned
