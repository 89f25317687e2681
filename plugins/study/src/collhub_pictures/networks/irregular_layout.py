"""Where the nodes of any network stand: layers of switches above NPUs, else circles."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from collhub_pictures.networks.node_boxes import widest
from collhub_pictures.networks.places import PAGE_WIDTH, Points, circle, on_unit_circle
from hub_core.columns import Float64Array, Int64Array
from hub_core.network import Topology

_NARROWEST = 48.0
_BETWEEN = 20.0
_LAYER_HEIGHT = 110.0
_STEEPNESS = 0.12
_ROW_HEIGHT = 44.0
# What layers may take of a page, whose margins the labels at the ends need.
_LAYER_WIDTH = PAGE_WIDTH - 2 * 62.0
# Lines that can be followed by eye.
_MAX_LINES = 112
_MAX_NPU_ROWS = 3
_MAX_SWITCH_ROWS = 3


def irregular_places(topology: Topology, boxes: Collection[int] = ()) -> Points:
    """Layers by the distance from the NPUs; circles where nodes of one layer are joined.

    `boxes`: nodes among the NPUs that stand for groups.
    """
    level = _levels(topology, boxes)
    is_joined = level[topology.source] == level[topology.destination]
    if is_joined.any():
        return _circles(topology, level)
    return _layers(topology, level, boxes)


def _levels(topology: Topology, boxes: Collection[int]) -> Int64Array:
    """Links between a node and the nearest NPU, taken both ways; 1 where there is no way.

    Next to NPUs, a box is below the nodes that it is joined with, where its own switches are.
    """
    # All nodes at once, by relaxing every link until nothing gets nearer: as many rounds as there
    # are levels, of which a network has few.
    is_npu = np.arange(topology.num_nodes) < topology.num_npus
    is_box = np.zeros(topology.num_nodes, np.bool_)
    is_box[list(boxes)] = len(boxes) < topology.num_npus
    level = np.where(is_npu & ~is_box, 0, topology.num_nodes)
    while True:
        nearer = level.copy()
        np.minimum.at(nearer, topology.destination, level[topology.source] + 1)
        np.minimum.at(nearer, topology.source, level[topology.destination] + 1)
        if np.array_equal(nearer, level):
            break
        level = nearer
    # Joined with nodes of level 1 and more, a box is one further away.
    level = np.where(is_box, np.maximum(level - 2, 0), level)
    return np.where(level < topology.num_nodes - 2, level, 1)


def _layers(topology: Topology, level: Int64Array, boxes: Collection[int]) -> Points:
    """NPUs below, switches above them, a layer of more nodes than fit a page in staggered rows.

    Switches that join the NPUs of one machine, and nothing else, are below the NPUs.
    """
    floor = _floors(topology, level)
    width = _width(topology, floor)
    rise = max(_LAYER_HEIGHT, _STEEPNESS * width)
    places = np.zeros((topology.num_nodes, 2))
    position = np.zeros(topology.num_nodes)
    height = np.zeros(topology.num_nodes)
    for depth in range(int(level.max()) + 1):
        for layer in np.unique(floor[level == depth]).tolist():
            nodes = np.flatnonzero((level == depth) & (floor == layer))
            if depth:
                # Each level is ordered by the one below, so that few lines cross.
                centre = _centres(topology, position, level)[nodes]
                # Other groups are to the right of the one that is shown.
                centre = np.where(np.isin(nodes, list(boxes)), width, centre)
                nodes = nodes[np.argsort(centre, kind="stable")]
            rows = _rows(topology, nodes, width)
            column = np.arange(len(nodes))
            position[nodes] = (column + 0.5) * width / len(nodes)
            # In turn, so that lines pass between the nodes of the rows before.
            height[nodes] = column % rows * _ROW_HEIGHT
    top = 0.0
    for layer in np.unique(floor).tolist():
        nodes = np.flatnonzero(floor == layer)
        places[nodes, 1] = -(top + height[nodes])
        top += rise + float(height[nodes].max())
    places[:, 0] = position
    return places


def is_crowded(topology: Topology, boxes: Collection[int] = ()) -> bool:
    """Whether there are too many nodes for a page, in as many rows as stay readable, or lines."""
    if topology.dimensions:
        return False
    low = np.minimum(topology.source, topology.destination)
    high = np.maximum(topology.source, topology.destination)
    if len(np.unique(low * topology.num_nodes + high)) > _MAX_LINES:
        return True
    level = _levels(topology, boxes)
    if (level[topology.source] == level[topology.destination]).any():
        return 2 * _outer_radius(topology, level) > PAGE_WIDTH
    floor = _floors(topology, level)
    for layer in np.unique(floor).tolist():
        nodes = np.flatnonzero(floor == layer)
        most = _MAX_NPU_ROWS if (nodes < topology.num_npus).all() else _MAX_SWITCH_ROWS
        if len(nodes) * _room(topology, nodes) > most * _LAYER_WIDTH:
            return True
    return False


def _width(topology: Topology, floor: Int64Array) -> float:
    """The width of the picture: that of the widest layer, at most a page."""
    layers = (np.flatnonzero(floor == height) for height in np.unique(floor).tolist())
    widest_layer = max(len(nodes) * _room(topology, nodes) for nodes in layers)
    return min(widest_layer, _LAYER_WIDTH)


def _rows(topology: Topology, nodes: Int64Array, width: float) -> int:
    """Rows in which the nodes of a layer, in turn, have room in a width."""
    return max(1, math.ceil(len(nodes) * _room(topology, nodes) / width - 1e-9))


def _room(topology: Topology, nodes: Int64Array) -> float:
    """What each node of a layer takes up of its width."""
    return max(_NARROWEST, widest(topology, nodes.tolist()) + _BETWEEN)


def _floors(topology: Topology, level: Int64Array) -> Int64Array:
    """The layer of every node: its level, or -1 below the NPUs."""
    # Below are switches that join a run of NPUs and lead nowhere else, next to switches that lead
    # on or join all NPUs: a machine's own switch below, rails and NICs above, as in pictures of
    # rail-optimised clusters.
    joins = (topology.source < topology.num_npus) & (level[topology.destination] == 1)
    npu, switch = topology.source[joins], topology.destination[joins]
    least = np.full(len(level), topology.num_npus)
    most = np.full(len(level), -1)
    np.minimum.at(least, switch, npu)
    np.maximum.at(most, switch, npu)
    links = np.bincount(switch, minlength=len(level))
    leads_on = np.zeros(len(level), np.bool_)
    leads_on[topology.source[level[topology.destination] > 1]] = True
    is_first = level == 1
    is_run = (most - least + 1 == links) & ~leads_on & (links < topology.num_npus)
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
