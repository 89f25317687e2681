"""Where the nodes of a regular network stand: a circle for one dimension, a grid for more."""

from __future__ import annotations

import numpy as np

from collhub_pictures.networks.node_boxes import sizes_of, widest
from collhub_pictures.networks.places import (
    ARC,
    Points,
    circle,
    free_places,
    neighbour_centres,
)
from hub_core.columns import Float64Array
from hub_core.network import DimensionKind, Topology

_SPACING = 70.0
_BETWEEN = 20.0
_GAP = 30.0
# Far enough that a node in the depth, and a line around it, stand clear of the row in front.
_DEPTH = np.asarray([52.0, -40.0])


def regular_places(topology: Topology) -> Points:
    """NPUs by their coordinates, switches among theirs; float64[num_nodes, 2].

    The first dimension goes to the right, the second down, the third into the depth. From four
    dimensions on, they go right and down in turn, each around all of the ones before.
    """
    dimensions = topology.dimensions
    if len(dimensions) == 1 and dimensions[0].kind is not DimensionKind.LINE:
        npus = circle(topology.num_npus, arc=max(ARC, _width(topology) + _BETWEEN))
    else:
        npus = _grid([dimension.size for dimension in dimensions], _width(topology))
    switches = topology.num_nodes - topology.num_npus
    if not switches:
        return npus
    # Switches begin anywhere: only the places of their neighbours count.
    places = np.concatenate([npus, np.zeros((switches, 2))])
    wanted = neighbour_centres(topology, places)
    return free_places(places, wanted, topology.num_npus, sizes_of(topology))


def _width(topology: Topology) -> float:
    """The width of the widest NPU."""
    return widest(topology, range(topology.num_npus))


def _grid(sizes: list[int], width: float) -> Points:
    """The places of all nodes of a `width`, float64[nodes, 2].

    Node id = a0 + n0 * (a1 + n1 * (a2 ...)), with coordinates a and sizes n.
    """
    node = np.arange(int(np.prod(sizes)))
    places = np.zeros((len(node), 2))
    for size, step in zip(sizes, _steps(sizes, width), strict=True):
        coordinate = node % size
        places += coordinate[:, None] * step
        node = node // size
    return places


def _steps(sizes: list[int], width: float) -> list[Float64Array]:
    """How far the next node of every dimension stands; nowhere in dimensions of one node."""
    large = [size for size in sizes if size > 1]
    across = max(_SPACING, width + _BETWEEN)
    steps = _oblique_steps(large, across) if len(large) == 3 else _flat_steps(large, across)
    for axis, size in enumerate(sizes):
        if size == 1:
            steps.insert(axis, np.zeros(2))
    return steps


def _oblique_steps(sizes: list[int], across: float) -> list[Float64Array]:
    """Three dimensions in parallel projection."""
    # Wide enough that the nodes in the depth end before the next one on the plane.
    depth = sizes[2] - 1
    return [
        np.asarray([across + _DEPTH[0] * depth, 0.0]),
        np.asarray([0.0, _SPACING - _DEPTH[1] * depth]),
        _DEPTH,
    ]


def _flat_steps(sizes: list[int], across: float) -> list[Float64Array]:
    """To the right and down in turn, each step over all that the ones before take up."""
    # What all dimensions so far take up, to the right and down.
    extent = [0.0, 0.0]
    spacing = (across, _SPACING)
    steps = []
    for axis, size in enumerate(sizes):
        # A gap parts what the first two dimensions hold together; beyond these, what looks like
        # one node of the picture is many.
        gap = _GAP if axis > 1 else 0.0
        length = extent[axis % 2] + spacing[axis % 2] + gap
        extent[axis % 2] += length * (size - 1)
        step = np.zeros(2)
        step[axis % 2] = length
        steps.append(step)
    return steps
