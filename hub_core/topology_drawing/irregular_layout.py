"""Where the nodes of any network stand: layers where switches stand above NPUs, else circles within one another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hub_core.network.topology import Topology
from hub_core.topology_drawing.places import Points, circle

Int64Array = npt.NDArray[np.int64]

_NPU_WIDTH = 48.0
_SWITCH_WIDTH = 96.0
_LAYER_HEIGHT = 110.0
_STEEPNESS = 0.12


def irregular_places(topology: Topology) -> Points:
    """Layers by the distance from the NPUs; circles where nodes of one layer are joined."""
    level = _levels(topology)
    is_joined = bool(np.any(level[topology.source] == level[topology.destination]))
    return _circles(topology, level) if is_joined else _layers(topology, level)


def _levels(topology: Topology) -> Int64Array:
    """Number of links between a node and the nearest NPU, links taken both ways; 1 where there is no way."""
    level = np.where(np.arange(topology.num_nodes) < topology.num_npus, 0, topology.num_nodes)
    ends = (topology.source, topology.destination)
    while True:
        nearer = level.copy()
        for near, far in (ends, ends[::-1]):
            np.minimum.at(nearer, far, level[near] + 1)
        if np.array_equal(nearer, level):
            return np.where(level < topology.num_nodes, level, 1)
        level = nearer


def _layers(topology: Topology, level: Int64Array) -> Points:
    """NPUs in a row, switches above them; those that join a run of NPUs stand below where others join distant ones."""
    rank = np.arange(topology.num_nodes, dtype=np.float64)
    floor = _floors(topology, level)
    counts = np.unique(floor, return_counts=True)[1]
    width = max(
        topology.num_npus * _NPU_WIDTH,
        int(counts.max()) * _SWITCH_WIDTH * (topology.num_nodes > topology.num_npus),
    )
    places = np.zeros((topology.num_nodes, 2))
    for depth in sorted(set(level.tolist())):
        for height in sorted(set(floor[level == depth].tolist())):
            nodes = np.flatnonzero((level == depth) & (floor == height))
            nodes = nodes[
                np.argsort(
                    _centres(topology, places[:, 0], level)[nodes] if depth else rank[nodes],
                    kind="stable",
                )
            ]
            places[nodes, 0] = (np.arange(len(nodes)) + 0.5) * width / len(nodes)
            places[nodes, 1] = -height * max(_LAYER_HEIGHT, _STEEPNESS * width)
    return places


def _floors(topology: Topology, level: Int64Array) -> Int64Array:
    """The layer of every node: its level, or -1 for a switch of a run of NPUs beside switches of distant ones."""
    joins = (topology.source < topology.num_npus) & (level[topology.destination] == 1)
    npu, switch = topology.source[joins], topology.destination[joins]
    least, most = np.full(len(level), topology.num_npus), np.full(len(level), -1)
    np.minimum.at(least, switch, npu)
    np.maximum.at(most, switch, npu)
    is_run = most - least + 1 == np.bincount(switch, minlength=len(level))
    first = level == 1
    is_mixed = bool(np.any(is_run[first])) and not np.all(is_run[first])
    return np.where(first & is_run, -1, level) if is_mixed else level


def _centres(
    topology: Topology, position: npt.NDArray[np.float64], level: Int64Array
) -> npt.NDArray[np.float64]:
    """Mean position of every node's neighbours in the level below it."""
    below = level[topology.source] == level[topology.destination] - 1
    source, destination = topology.source[below], topology.destination[below]
    count = np.bincount(destination, minlength=len(position))
    centres: npt.NDArray[np.float64] = np.bincount(
        destination, position[source], len(position)
    ) / np.maximum(count, 1)
    return centres


def _circles(topology: Topology, level: Int64Array) -> Points:
    """NPUs on the outer circle in their order; every level of switches on a smaller one, each near its neighbours."""
    outer = circle(topology.num_npus)
    radius = float(np.hypot(*outer[0]))
    inner = [np.flatnonzero(level == height) for height in range(1, int(level.max()) + 1)]
    needed = [len(nodes) * _SWITCH_WIDTH / (2 * np.pi) for nodes in inner]
    # The outer circles leave room for the inner ones.
    radius = max(
        [radius, *(size + _LAYER_HEIGHT * (height + 1) for height, size in enumerate(needed))]
    )
    places, turn = np.zeros((topology.num_nodes, 2)), np.zeros(topology.num_nodes)
    for height in range(len(inner) + 1):
        nodes = np.flatnonzero(level == height)
        if height:
            nodes = nodes[np.argsort(_centres(topology, turn, level)[nodes], kind="stable")]
        # Every circle begins half a place from the top, so that equal shares of two circles stand side by side.
        turn[nodes] = (np.arange(len(nodes)) + 0.5 * bool(inner)) / len(nodes)
        is_centre = len(nodes) == 1 and height == len(inner)
        reach, angle = (
            0.0 if is_centre else radius - _LAYER_HEIGHT * height,
            2 * np.pi * turn[nodes],
        )
        places[nodes] = reach * np.stack([np.sin(angle), -np.cos(angle)], axis=1)
    return places
