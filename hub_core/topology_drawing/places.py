"""Places on the plane, in pixels, y downwards: circles, centres of neighbours, and room beside what stands already."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hub_core.network.topology import Topology

Points = npt.NDArray[np.float64]
"""float64[count, 2]: x and y."""

_ARC = 48.0
_LEAST_RADIUS = 110.0
_APART = 32.0


def circle(count: int, radius: float = 0.0) -> Points:
    """Places on a circle, clockwise from the top, far enough apart for a node each; at least of `radius`."""
    radius = max(radius, _LEAST_RADIUS, count * _ARC / (2 * np.pi)) if count > 1 else 0.0
    angle = 2 * np.pi * np.arange(count) / max(count, 1)
    return radius * np.stack([np.sin(angle), -np.cos(angle)], axis=1)


def neighbour_centres(topology: Topology, places: Points) -> Points:
    """The mean place of the NPUs at the ends of every node's links in; the middle of all NPUs where there are none."""
    is_npu = topology.source < topology.num_npus
    source, destination = topology.source[is_npu], topology.destination[is_npu]
    count = np.bincount(destination, minlength=topology.num_nodes)
    sums = [np.bincount(destination, places[source, axis], topology.num_nodes) for axis in (0, 1)]
    middle = places[: topology.num_npus].mean(axis=0)
    return np.where(
        count[:, None] > 0, np.stack(sums, axis=1) / np.maximum(count, 1)[:, None], middle
    )


def free_places(places: Points, wanted: Points, first: int) -> Points:
    """`places` with the rows from `first` on set to what is wanted, or beside it where others stand already."""
    found = places.copy()
    for row in range(first, len(found)):
        found[row] = _free(found[:row], wanted[row])
    return found


def _free(taken: Points, wanted: Points) -> Points:
    """The nearest free place of growing rings of eight around the wanted one."""
    directions = np.asarray(
        [(1, 1), (1, 0), (0, 1), (-1, 1), (1, -1), (-1, 0), (0, -1), (-1, -1)], np.float64
    )
    ring = 0
    while True:
        for place in wanted + directions * ring * _APART if ring else wanted[None, :]:
            if not len(taken) or np.min(np.hypot(*(taken - place).T)) >= _APART - 1:
                free: Points = place
                return free
        ring += 1
