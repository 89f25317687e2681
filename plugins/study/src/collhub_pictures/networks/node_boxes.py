"""How large the shapes of nodes are, in pixels: a box is as wide as the label in it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from collhub_pictures.networks.places import Points
from collhub_pictures.networks.svg_text import LABEL_LENGTH
from hub_core.network import Topology

NPU_RADIUS = 14.0
BOX_HEIGHT = 22.0
# A name of at most so many characters stands in a circle.
_CIRCLED = 3
_CHARACTER_WIDTH = 6.2
_PADDING = 12.0


def is_circle(topology: Topology, node: int) -> bool:
    """Whether a node is drawn as a circle: an NPU with a short name."""
    return node < topology.num_npus and len(topology.node_name(node)) <= _CIRCLED


def box_width(name: str) -> float:
    """The width of a box with the label of a node of this name."""
    return min(len(name), LABEL_LENGTH) * _CHARACTER_WIDTH + _PADDING


def widest(topology: Topology, nodes: Iterable[int]) -> float:
    """The width of the widest shape of some nodes."""
    return max(_size(topology, node)[0] for node in nodes)


def sizes_of(topology: Topology) -> Points:
    """Width and height of the shape of every node, float64[num_nodes, 2]."""
    return np.asarray([_size(topology, node) for node in range(topology.num_nodes)])


def _size(topology: Topology, node: int) -> tuple[float, float]:
    if is_circle(topology, node):
        return 2 * NPU_RADIUS, 2 * NPU_RADIUS
    return box_width(topology.node_name(node)), BOX_HEIGHT
