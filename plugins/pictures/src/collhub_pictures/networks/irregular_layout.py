"""Where the nodes of any network stand: layers of switches above NPUs, else circles."""

from __future__ import annotations

import numpy as np
from collhub_columns import Float64Array, Int64Array

from collhub_pictures.networks.node_boxes import widest
from collhub_pictures.networks.places import Points, circle, on_unit_circle
from hub_core.network import Topology

_NARROWEST = 48.0
_BETWEEN = 20.0
_LAYER_HEIGHT = 110.0
_STEEPNESS = 0.12


def irregular_places(topology: Topology) -> Points:
    """Layers by the distance from the NPUs; circles where nodes of one layer are joined."""
    level = _levels(topology)
    is_joined = level[topology.source] == level[topology.destination]
    if is_joined.any():
        return _circles(topology, level)
    return _layers(topology, level)


def _levels(topology: Topology) -> Int64Array:
    """Links between a node and the nearest NPU, taken both ways; 1 where there is no way."""
    # All nodes at once, by relaxing every link until nothing gets nearer: as many rounds as there
    # are levels, of which a network has few.
    is_npu = np.arange(topology.num_nodes) < topology.num_npus
    level = np.where(is_npu, 0, topology.num_nodes)
    while True:
        nearer = level.copy()
        np.minimum.at(nearer, topology.destination, level[topology.source] + 1)
        np.minimum.at(nearer, topology.source, level[topology.destination] + 1)
        if np.array_equal(nearer, level):
            return np.where(level < topology.num_nodes, level, 1)
        level = nearer


def _layers(topology: Topology, level: Int64Array) -> Points:
    """NPUs in a row, switches above them.

    Those that join a run of NPUs stand below where others join distant ones.
    """
    floor = _floors(topology, level)
    width = _width(topology, floor)
    rise = max(_LAYER_HEIGHT, _STEEPNESS * width)
    places = np.zeros((topology.num_nodes, 2))
    for depth in range(int(level.max()) + 1):
        for height in np.unique(floor[level == depth]).tolist():
            nodes = np.flatnonzero((level == depth) & (floor == height))
            if depth:
                # Each level is ordered by the one below, so that few lines cross.
                centre = _centres(topology, places[:, 0], level)[nodes]
                nodes = nodes[np.argsort(centre, kind="stable")]
            column = np.arange(len(nodes)) + 0.5
            places[nodes, 0] = column * width / len(nodes)
            places[nodes, 1] = -height * rise
    return places


def _width(topology: Topology, floor: Int64Array) -> float:
    """The width of the picture: that of the widest layer, whose labels stand side by side."""
    layers = (np.flatnonzero(floor == height) for height in np.unique(floor).tolist())
    return max(len(nodes) * _room(topology, nodes) for nodes in layers)


def _room(topology: Topology, nodes: Int64Array) -> float:
    """What each node of a layer takes up of its width."""
    return max(_NARROWEST, widest(topology, nodes.tolist()) + _BETWEEN)


def _floors(topology: Topology, level: Int64Array) -> Int64Array:
    """The layer of every node: its level, or -1 below the NPUs."""
    # Below stand switches that join a run of NPUs, beside switches of distant ones: a machine's own
    # switch below, the rails above, as in pictures of rail-optimised clusters.
    joins = (topology.source < topology.num_npus) & (level[topology.destination] == 1)
    npu, switch = topology.source[joins], topology.destination[joins]
    least = np.full(len(level), topology.num_npus)
    most = np.full(len(level), -1)
    np.minimum.at(least, switch, npu)
    np.maximum.at(most, switch, npu)
    links = np.bincount(switch, minlength=len(level))
    is_run = most - least + 1 == links
    is_first = level == 1
    of_first = is_run[is_first]
    if of_first.any() and not of_first.all():
        return np.where(is_first & is_run, -1, level)
    return level


def _centres(topology: Topology, position: Float64Array, level: Int64Array) -> Float64Array:
    """Mean position of every node's neighbours in the level below it, float64[num_nodes]."""
    nodes = len(position)
    is_up = level[topology.source] == level[topology.destination] - 1
    destination = topology.destination[is_up]
    below = position[topology.source[is_up]]
    count = np.bincount(destination, minlength=nodes)
    sums = np.bincount(destination, below, nodes)
    # Nodes without such neighbours are at 0, wherever that is.
    centres: Float64Array = sums / np.maximum(count, 1)
    return centres


def _circles(topology: Topology, level: Int64Array) -> Points:
    """NPUs on the outer circle in their order, every level of switches on a smaller one."""
    inner = int(level.max())
    radius = _outer_radius(topology, level)
    places = np.zeros((topology.num_nodes, 2))
    turn = np.zeros(topology.num_nodes)
    for height in range(inner + 1):
        nodes = np.flatnonzero(level == height)
        if height:
            # Each switch near its neighbours outside.
            centre = _centres(topology, turn, level)[nodes]
            nodes = nodes[np.argsort(centre, kind="stable")]
        # Circles begin half a place from the top, so that equal shares of two stand side by side.
        start = 0.5 if inner else 0.0
        turn[nodes] = (np.arange(len(nodes)) + start) / len(nodes)
        is_centre = height == inner and len(nodes) == 1
        reach = 0.0 if is_centre else radius - _LAYER_HEIGHT * height
        places[nodes] = reach * on_unit_circle(2 * np.pi * turn[nodes])
    return places


def _outer_radius(topology: Topology, level: Int64Array) -> float:
    """Large enough for all NPUs, and to leave room for the inner circles."""
    outer = circle(topology.num_npus, arc=_room(topology, np.arange(topology.num_npus)))
    radius = float(np.hypot(*outer[0]))
    for height in range(1, int(level.max()) + 1):
        switches = np.flatnonzero(level == height)
        # Two neighbours on a circle are nearer to one another than the arc between them is long.
        angle = np.pi / max(len(switches), 2)
        needed = _room(topology, switches) / (2 * np.sin(angle))
        radius = max(radius, needed + _LAYER_HEIGHT * height)
    return radius
