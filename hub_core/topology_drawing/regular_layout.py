"""Where the nodes of a regular network stand: a circle for one dimension, a grid for more."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hub_core.network.topology import DimensionKind, Topology
from hub_core.topology_drawing.places import Points, circle, free_places, neighbour_centres

_SPACING = 70.0
_GAP = 30.0
_DEPTH = np.asarray([34.0, -26.0])


def regular_places(topology: Topology) -> Points:
    """NPUs by their coordinates, first dimension to the right, second down, third into the depth; switches among theirs.

    From four dimensions on, they go right and down in turn, each around all of the ones before.
    """
    dimensions = topology.dimensions
    if len(dimensions) == 1 and dimensions[0].kind is not DimensionKind.LINE:
        npus = circle(topology.num_npus)
    else:
        npus = _grid(tuple(dimension.size for dimension in dimensions))
    if topology.num_nodes == topology.num_npus:
        return npus
    places = np.concatenate([npus, np.zeros((topology.num_nodes - topology.num_npus, 2))])
    return free_places(places, neighbour_centres(topology, places), topology.num_npus)


def _grid(sizes: tuple[int, ...]) -> Points:
    node = np.arange(int(np.prod(sizes)))
    places = np.zeros((len(node), 2))
    for size, step in zip(sizes, _steps(sizes), strict=True):
        places += (node % size)[:, None] * step
        node = node // size
    return places


def _steps(sizes: tuple[int, ...]) -> list[npt.NDArray[np.float64]]:
    """How far the next node of every dimension stands."""
    large = tuple(size for size in sizes if size > 1)
    if len(large) == 3:
        # Wide enough that the nodes in the depth end before the next one on the plane.
        spacing = _SPACING + _DEPTH[0] * (large[2] - 1)
        oblique = iter([np.asarray([spacing, 0.0]), np.asarray([0.0, spacing]), _DEPTH])
        return [next(oblique) if size > 1 else np.zeros(2) for size in sizes]
    extent, steps, axis = [0.0, 0.0], [], 0
    for size in sizes:
        step = np.zeros(2)
        if size > 1:
            step[axis % 2] = extent[axis % 2] + _SPACING + (_GAP if axis > 1 else 0.0)
            extent[axis % 2] += step[axis % 2] * (size - 1)
            axis += 1
        steps.append(step)
    return steps
