"""Places on the plane, in pixels, y downwards: circles, centres of neighbours, free room."""

from __future__ import annotations

import numpy as np

from hub_core.columns import Float64Array
from hub_core.network import Topology

Points = Float64Array
"""float64[count, 2]: x and y."""

ARC = 48.0
PAGE_WIDTH = 1200.0
"""Width of the widest picture that is not scaled down, in pixels."""
_LEAST_RADIUS = 110.0
_STEP = 32.0
_BETWEEN = 3.0
# Below and to the right first, where a picture has room; then around.
_DIRECTIONS = np.asarray(
    [(1, 1), (1, 0), (0, 1), (-1, 1), (1, -1), (-1, 0), (0, -1), (-1, -1)],
    np.float64,
)


def circle(count: int, arc: float = ARC) -> Points:
    """Places on a circle, `arc` apart, clockwise from the top; one alone is the centre."""
    used = 0.0
    if count > 1:
        used = max(_LEAST_RADIUS, count * arc / (2 * np.pi))
    angle = 2 * np.pi * np.arange(count) / max(count, 1)
    return used * on_unit_circle(angle)


def on_unit_circle(angle: Float64Array) -> Points:
    """The points of the unit circle at these angles, float64[angles, 2].

    Clockwise from the top, as y goes downwards.
    """
    return np.stack([np.sin(angle), -np.cos(angle)], axis=1)


def neighbour_centres(topology: Topology, places: Points) -> Points:
    """The mean place of the NPUs at the ends of every node's links in, float64[num_nodes, 2].

    The middle of all NPUs where there are none. `places`: of all nodes.
    """
    is_from_npu = topology.source < topology.num_npus
    source = topology.source[is_from_npu]
    destination = topology.destination[is_from_npu]
    count = np.bincount(destination, minlength=topology.num_nodes)
    sums = []
    for axis in (0, 1):
        position = places[source, axis]
        sums.append(np.bincount(destination, position, topology.num_nodes))
    middle = places[: topology.num_npus].mean(axis=0)
    means = np.stack(sums, axis=1) / np.maximum(count, 1)[:, None]
    return np.where(count[:, None] > 0, means, middle)


def free_places(places: Points, wanted: Points, first: int, sizes: Points) -> Points:
    """`places` with the rows from `first` on set to what is wanted, or beside it.

    A node moves aside where others stand already. `sizes`: width and height of every node.
    """
    found = places.copy()
    for row in range(first, len(found)):
        # As far apart as the shapes of two nodes need.
        needed = (sizes[:row] + sizes[row]) / 2 + _BETWEEN
        found[row] = _free_place(found[:row], needed, wanted[row])
    return found


def _free_place(taken: Points, needed: Points, wanted: Points) -> Points:
    """The nearest free place of growing rings of eight around the wanted one."""
    if _is_free(taken, needed, wanted):
        return wanted
    ring = 0
    while True:
        # There is a free place in the end: every ring is larger, and those taken are finitely many.
        ring += 1
        for place in wanted + _DIRECTIONS * ring * _STEP:
            if _is_free(taken, needed, place):
                free: Points = place
                return free


def _is_free(taken: Points, needed: Points, place: Points) -> bool:
    """Whether the shape of no other node would be touched."""
    is_touched = np.all(np.abs(taken - place) < needed, axis=1)
    return not is_touched.any()
