"""Which lines a picture has, and how they bend around nodes that stand on their way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_pictures.networks.places import Points
from hub_core.columns import BoolArray, ColumnTable, Float64Array, Int64Array, NodePairs
from hub_core.network import Topology

_CLEARANCE = 17.0
# Where the control points of a curve stand along its way: near the ends, so that it soon runs
# beside the nodes that it avoids.
_SHOULDER = 0.12
_LEAST_BEND = 15.0
_BEND_A_NODE = 4.0
_MOST_BEND = 45.0
_BLOCK_CELLS = 1 << 22
# Lengths below this are no lengths: nodes that stand at one place.
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class DrawnLines(ColumnTable):
    """Lines as columns of equal length: one for links alike both ways, else an arrow a way.

    `source`, `destination`, `count` (parallel links): int64. `bandwidth_bytes_per_s`, `latency_s`:
    float64, of one direction. `is_arrow`: an arrow at `destination`, or none. `bend`: how far the
    middle lies beside the straight line, in pixels; 0 where there is nothing to avoid. `controls`:
    the two control points of a cubic curve, float64[lines, 2, 2].
    """

    source: Int64Array
    destination: Int64Array
    bandwidth_bytes_per_s: Float64Array
    latency_s: Float64Array
    count: Int64Array
    is_arrow: BoolArray
    bend: Float64Array
    controls: Float64Array

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
        way = places[destination] - places[source]
        # A cubic curve goes three quarters of the way to its control points.
        aside = _sides(way, is_arrow) * bend[:, None] / 0.75
        return cls(
            source,
            destination,
            pairs.bandwidth_bytes_per_s[rows],
            pairs.latency_s[rows],
            pairs.count[rows],
            is_arrow,
            bend,
            np.stack(
                [
                    places[source] + _SHOULDER * way + aside,
                    places[destination] - _SHOULDER * way + aside,
                ],
                axis=1,
            ),
        )


def _bends(
    places: Points, source: Int64Array, destination: Int64Array, is_one_of_two: BoolArray
) -> Float64Array:
    """How far each line is bent, in pixels, float64; 0 for one with a free way."""
    passed = _nodes_passed(places, source, destination)
    # Two ways between the same nodes would cover one another.
    needs = is_one_of_two | (passed > 0)
    # Beside the nodes, and farther beside more of them, so that lines along one row stay apart.
    bend = np.minimum(_LEAST_BEND + _BEND_A_NODE * passed, _MOST_BEND)
    return np.where(needs, bend, 0.0)


# Every line against every node: a search by place would pay for itself only beyond the pictures
# that anybody can read. By blocks of lines, so that the table of distances fits in memory.


def _nodes_passed(places: Points, source: Int64Array, destination: Int64Array) -> Int64Array:
    """How many nodes other than its ends stand on every line."""
    passed = np.zeros(len(source), np.int64)
    block = max(1, _BLOCK_CELLS // len(places))
    for first in range(0, len(source), block):
        rows = slice(first, first + block)
        distance = _distances(places, source[rows], destination[rows])
        passed[rows] = np.count_nonzero(distance < _CLEARANCE, axis=1)
    return passed


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
