"""Positions of nodes in a picture.

Regular networks: a circle for one dimension, a grid for several. Irregular networks: layers of
switches above the NPUs, or concentric circles if nodes of one layer are linked with each other.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from collhub_drawing.node_shapes import (
    ARC,
    PAGE_WIDTH,
    Points,
    circle,
    compute_neighbour_centres,
    find_free_places,
    measure_nodes,
    measure_widest,
    on_unit_circle,
)
from hub_core.columns import Float64Array, Int64Array
from hub_core.network import DimensionKind, Topology

_SPACING = 70.0
_NPU_GAP = 20.0
_GAP = 30.0
# Offset per step of the third dimension: nodes and lines do not overlap the row in front.
_DEPTH = np.asarray([52.0, -40.0])


def place_regular_nodes(topology: Topology) -> Points:
    """Return the positions of NPUs by their coordinates, and of switches between their NPUs.

    The result is float64[num_nodes, 2] in pixels, y downwards. The topology must have dimensions.

    - One dimension that is no line: the NPUs are on a circle, clockwise from the top around (0, 0).
    - Exactly three dimensions of more than one NPU: NPU 0 is at (0, 0). The first dimension extends
      to the right, the second down, the third obliquely to the upper right.
    - Any other case: NPU 0 is at (0, 0). Dimensions of more than one NPU extend alternately right
      and down. Each has a larger spacing than the previous ones, so that it is outside of them.

    A switch is at the mean position of the NPUs that have a link to it (of all NPUs without such
    links). If it would touch an NPU or an earlier switch there, it is at the nearest free place.
    """
    dimensions = topology.dimensions
    if len(dimensions) == 1 and dimensions[0].kind is not DimensionKind.LINE:
        npus = circle(topology.num_npus, arc=max(ARC, _measure_widest_npu(topology) + _NPU_GAP))
    else:
        sizes = [dimension.size for dimension in dimensions]
        steps = _compute_steps(sizes, _measure_widest_npu(topology))
        # The first dimension changes fastest with the number of an NPU.
        node = np.arange(int(np.prod(sizes)))
        npus = np.zeros((len(node), 2))
        for size, step in zip(sizes, steps, strict=True):
            coordinate = node % size
            npus += coordinate[:, None] * step
            node = node // size
    switches = topology.num_nodes - topology.num_npus
    if not switches:
        return npus
    # The initial positions of switches are irrelevant: only their neighbours' positions count.
    places = np.concatenate([npus, np.zeros((switches, 2))])
    targets = compute_neighbour_centres(topology, places)
    return find_free_places(places, targets, topology.num_npus, measure_nodes(topology))


def _measure_widest_npu(topology: Topology) -> float:
    """Return the width in pixels of the widest NPU shape."""
    return measure_widest(topology, range(topology.num_npus))


def _compute_steps(sizes: list[int], width: float) -> list[Float64Array]:
    """Return the offset (x, y) in pixels between neighbours in every dimension of a grid.

    `sizes`: nodes per dimension, at least 1. A dimension of size 1 has the offset 0; the offsets of
    the others are as if it did not exist. The distance `across` between neighbours to the right is
    the larger of `_SPACING` and `width` (of a node) + `_NPU_GAP`; y grows downwards.

    If exactly three dimensions are larger than 1, the first extends to the right, the second down,
    and the third to the upper right by `_DEPTH` (52, -40) per node. With n nodes in the third, the
    first offset is `across` + 52 * (n - 1) and the second `_SPACING` + 40 * (n - 1).

    Otherwise dimensions extend alternately right and down. Their offset is the extent (offset times
    size - 1) of all previous ones of the same direction, plus `across` or `_SPACING`, plus `_GAP`
    from the third one on: sizes 2, 2, 2, 2 and `across` 80 give (80, 0), (0, 70), (190, 0),
    (0, 170). Without dimensions the list is empty.
    """
    large = [size for size in sizes if size > 1]
    across = max(_SPACING, width + _NPU_GAP)
    if len(large) == 3:
        # The nodes of the third dimension end before the next node of the first or the second.
        depth = large[2] - 1
        steps = [
            np.asarray([across + _DEPTH[0] * depth, 0.0]),
            np.asarray([0.0, _SPACING - _DEPTH[1] * depth]),
            _DEPTH,
        ]
    else:
        # Extent of all dimensions so far, to the right and down.
        extent = [0.0, 0.0]
        steps = []
        for axis, size in enumerate(large):
            # From the third dimension on, a gap separates the grids of the first two dimensions.
            gap = _GAP if axis > 1 else 0.0
            length = extent[axis % 2] + (across, _SPACING)[axis % 2] + gap
            extent[axis % 2] += length * (size - 1)
            step = np.zeros(2)
            step[axis % 2] = length
            steps.append(step)
    for axis, size in enumerate(sizes):
        if size == 1:
            steps.insert(axis, np.zeros(2))
    return steps


_NARROWEST = 48.0
_NODE_GAP = 20.0
_LAYER_HEIGHT = 110.0
_STEEPNESS = 0.12
_ROW_HEIGHT = 44.0
# Maximum width of layers: a page without the margins for the labels at both sides.
_LAYER_WIDTH = PAGE_WIDTH - 2 * 62.0
# Maximum number of lines that a reader can follow.
_MAX_LINES = 112
_MAX_NPU_ROWS = 3
_MAX_SWITCH_ROWS = 3


def place_irregular_nodes(topology: Topology, boxes: Collection[int] = ()) -> Points:
    """Place nodes by their level, the number of links to the nearest NPU, in layers or on
    circles.

    The result is float64[num_nodes, 2] in pixels, x to the right and y downwards.
    `boxes`: the NPUs that represent collapsed groups; `_compute_levels` defines their
    level and that of nodes without a path to an NPU.

    If any two linked nodes have equal levels, such as two linked NPUs, the levels are
    concentric circles with the NPUs outermost. Otherwise they are horizontal layers, with
    the NPUs lowest, except that internal switches of hosts can be below them
    (`_assign_layers`).
    """
    level = _compute_levels(topology, boxes)
    is_joined = level[topology.source] == level[topology.destination]
    if is_joined.any():
        return _place_on_circles(topology, level)
    return _place_in_layers(topology, level, boxes)


def _compute_levels(topology: Topology, boxes: Collection[int]) -> Int64Array:
    """Return the level of each node for a layered picture: its distance from the nearest NPU.

    The result is int64[num_nodes]. The distance is a number of links, which count in both
    directions. NPUs have level 0. Nodes without a path to an NPU have level 1.

    `boxes`: the NPUs that represent a collapsed group. If all NPUs are boxes, they are ordinary
    NPUs. Otherwise distances do not start at boxes: the level of a box is its distance from the
    nearest NPU that is no box, less 2, at least 0. It is 1 without a path to such an NPU.
    """
    # Relax all links at once until no distance decreases. The number of rounds is the number of
    # levels, which is small.
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
    is_reached = level < topology.num_nodes
    # A box is linked with nodes of level 1 and more: its relaxed distance is 2 too large.
    level = np.where(is_box, np.maximum(level - 2, 0), level)
    return np.where(is_reached, level, 1)


def _place_in_layers(topology: Topology, level: Int64Array, boxes: Collection[int]) -> Points:
    """Place the nodes of a topology in layers; return float64[num_nodes, 2] in pixels.

    - Layers: each level is a layer; `level` is 0 for NPUs, from 1 for switches. Exception: internal
      switches of hosts get a layer below the NPUs if other switches of level 1 exist.
    - Height: the lowest layer has y = 0; higher ones have negative y. Two layers are 0.12 times the
      width apart, at least 110 pixels, plus the height of the lower layer's rows.
    - Width: all layers are spread evenly over one width. It is that of the widest layer, but at
      most that of the page without margins. The nodes of a layer that needs more alternate between
      two or more rows, which are 44 pixels apart.
    - Order in a layer: NPUs by number. Switches by the mean x of their neighbours one level below
      (0 without any), ties by number. Switches in `boxes` (collapsed groups) come last: for the
      order their mean x is the full width.
    """
    floor = _assign_layers(topology, level)
    layers = [np.flatnonzero(floor == layer) for layer in np.unique(floor).tolist()]
    widest_layer = max(len(nodes) * _measure_room(topology, nodes) for nodes in layers)
    width = min(widest_layer, _LAYER_WIDTH)
    rise = max(_LAYER_HEIGHT, _STEEPNESS * width)
    places = np.zeros((topology.num_nodes, 2))
    position = np.zeros(topology.num_nodes)
    height = np.zeros(topology.num_nodes)
    for depth in range(int(level.max()) + 1):
        for layer in np.unique(floor[level == depth]).tolist():
            nodes = np.flatnonzero((level == depth) & (floor == layer))
            if depth:
                # Order each level by the positions of the level below, so that few lines cross.
                centre = _compute_centres(topology, position, level)[nodes]
                # Collapsed groups are to the right of the expanded group.
                centre = np.where(np.isin(nodes, list(boxes)), width, centre)
                nodes = nodes[np.argsort(centre, kind="stable")]
            rows = max(1, math.ceil(len(nodes) * _measure_room(topology, nodes) / width - 1e-9))
            column = np.arange(len(nodes))
            position[nodes] = (column + 0.5) * width / len(nodes)
            # Nodes alternate between the rows, so that lines pass between nodes of other rows.
            height[nodes] = column % rows * _ROW_HEIGHT
    top = 0.0
    for nodes in layers:
        places[nodes, 1] = -(top + height[nodes])
        top += rise + float(height[nodes].max())
    places[:, 0] = position
    return places


def is_crowded(topology: Topology, boxes: Collection[int] = ()) -> bool:
    """Return whether a network has too many lines or nodes to be drawn on a page.

    The first rule that applies decides:

    1. The network has regular dimensions: False.
    2. More than 112 (`_MAX_LINES`) pairs of nodes are linked: True. Directions and parallel
       links do not count.
    3. Two linked nodes have equal levels (`_compute_levels`), so that the layout has circles:
       True if the diameter of the circle of the NPUs is above 1200 pixels (`PAGE_WIDTH`).
    4. Otherwise the layout has layers: True if the nodes of a layer (`_assign_layers`) need
       more than three rows of `_LAYER_WIDTH`. Each node needs the width of the widest one in
       its layer and a gap, at least `_NARROWEST`.

    `boxes`: NPUs that represent a collapsed group; they influence the levels.
    """
    if topology.dimensions:
        return False
    low = np.minimum(topology.source, topology.destination)
    high = np.maximum(topology.source, topology.destination)
    if len(np.unique(low * topology.num_nodes + high)) > _MAX_LINES:
        return True
    level = _compute_levels(topology, boxes)
    if (level[topology.source] == level[topology.destination]).any():
        return 2 * _compute_outer_radius(topology, level) > PAGE_WIDTH
    floor = _assign_layers(topology, level)
    for layer in np.unique(floor).tolist():
        nodes = np.flatnonzero(floor == layer)
        max_rows = _MAX_NPU_ROWS if (nodes < topology.num_npus).all() else _MAX_SWITCH_ROWS
        if len(nodes) * _measure_room(topology, nodes) > max_rows * _LAYER_WIDTH:
            return True
    return False


def _measure_room(topology: Topology, nodes: Int64Array) -> float:
    """Return the width in pixels that each node of a layer needs: that of the widest shape and a
    gap, at least `_NARROWEST`.
    """
    return max(_NARROWEST, measure_widest(topology, nodes.tolist()) + _NODE_GAP)


def _assign_layers(topology: Topology, level: Int64Array) -> Int64Array:
    """Return the layer of every node: its level, or -1 for internal switches of hosts.

    Layer -1 is drawn below the NPUs. `level`: level of every node, 1 for the switches next to NPUs.
    A switch of level 1 is internal if all of these hold:

    - Its links from NPUs are as many as the numbers from its first to its last NPU. This is so for
      consecutive NPUs with one link each.
    - They are fewer than the NPUs of the network.
    - It has no link to a node of level 2 or more.

    If all or none of the nodes of level 1 are internal, `level` itself is returned. Otherwise the
    result is a new array.
    """
    # As in pictures of rail-optimised clusters, a host's internal switch is below the NPUs, rails
    # and NICs are above. Internal switches link a run of consecutive NPUs and no other switch.
    # If all first-level switches are of this kind, they stay above.
    joins = (topology.source < topology.num_npus) & (level[topology.destination] == 1)
    npu, switch = topology.source[joins], topology.destination[joins]
    first_npu = np.full(len(level), topology.num_npus)
    last_npu = np.full(len(level), -1)
    np.minimum.at(first_npu, switch, npu)
    np.maximum.at(last_npu, switch, npu)
    links = np.bincount(switch, minlength=len(level))
    leads_on = np.zeros(len(level), np.bool_)
    leads_on[topology.source[level[topology.destination] > 1]] = True
    is_first = level == 1
    is_run = (last_npu - first_npu + 1 == links) & ~leads_on & (links < topology.num_npus)
    of_first = is_run[is_first]
    if of_first.any() and not of_first.all():
        return np.where(is_first & is_run, -1, level)
    return level


def _compute_centres(topology: Topology, position: Float64Array, level: Int64Array) -> Float64Array:
    """Return for each node the mean position of its neighbours one level below: float64[num_nodes].

    `position`: one coordinate of every node. `level`: level of every node. A neighbour one level
    below counts once per link from it to the node; links in the other direction do not count.
    Nodes without such links have 0.
    """
    nodes = len(position)
    is_up = level[topology.source] == level[topology.destination] - 1
    destination = topology.destination[is_up]
    below = position[topology.source[is_up]]
    count = np.bincount(destination, minlength=nodes)
    sums = np.bincount(destination, below, nodes)
    # Nodes without such neighbours get position 0.
    centres: Float64Array = sums / np.maximum(count, 1)
    return centres


def _place_on_circles(topology: Topology, level: Int64Array) -> Points:
    """Return the positions of nodes on concentric circles: NPUs outside, switches by level inside.

    The result is float64[num_nodes, 2] in pixels around the centre (0, 0), y downwards. The circle
    of the NPUs (level 0) has the radius of `_compute_outer_radius`; that of level h is h * 110
    (`_LAYER_HEIGHT`) smaller. If the innermost level has a single node, it is at the centre.

    The n nodes of a circle are 1/n of the circle apart, clockwise. NPUs are in their order;
    switches are sorted by the mean angle of their neighbours on the next larger circle, ties by
    number. The first node is at the top if there is only level 0. Otherwise each circle begins
    half of its own 1/n after the top.
    """
    inner = int(level.max())
    radius = _compute_outer_radius(topology, level)
    places = np.zeros((topology.num_nodes, 2))
    angle = np.zeros(topology.num_nodes)
    for height in range(inner + 1):
        nodes = np.flatnonzero(level == height)
        if height:
            # Each switch is near its neighbours on the next larger circle.
            centre = _compute_centres(topology, angle, level)[nodes]
            nodes = nodes[np.argsort(centre, kind="stable")]
        # Circles start half a slot after the top, so that nodes line up with those outside.
        start = 0.5 if inner else 0.0
        angle[nodes] = (np.arange(len(nodes)) + start) / len(nodes)
        is_centre = height == inner and len(nodes) == 1
        reach = 0.0 if is_centre else radius - _LAYER_HEIGHT * height
        places[nodes] = reach * on_unit_circle(2 * np.pi * angle[nodes])
    return places


def _compute_outer_radius(topology: Topology, level: Int64Array) -> float:
    """Return the radius in pixels of the outermost circle, on which the NPUs are.

    It is the smallest radius with room for the shapes of all NPUs and, on the inner circles,
    of the switches of each level; but at least that of `circle` (110 for two or more NPUs). The
    circle of level h is h * `_LAYER_HEIGHT` smaller. `level`: level of every node, 0 for NPUs.
    """
    outer = circle(topology.num_npus, arc=_measure_room(topology, np.arange(topology.num_npus)))
    radius = float(np.hypot(*outer[0]))
    for height in range(1, int(level.max()) + 1):
        switches = np.flatnonzero(level == height)
        # The distance of two neighbours is the chord, which is shorter than the arc.
        angle = np.pi / max(len(switches), 2)
        needed = _measure_room(topology, switches) / (2 * np.sin(angle))
        radius = max(radius, needed + _LAYER_HEIGHT * height)
    return radius
