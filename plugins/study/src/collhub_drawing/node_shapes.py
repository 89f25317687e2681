"""Labels, shapes and elementary positions of nodes in an SVG picture."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.sax.saxutils import escape

import numpy as np

from hub_core.columns import Float64Array
from hub_core.network import Topology

# Characters that XML 1.0 forbids even in escaped form (section 2.2, Characters).
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"

LABEL_LENGTH = 24


def escape_svg_text(text: str) -> str:
    """Return a text for the content of an XML element, with &, < and > escaped.

    Characters that XML 1.0 forbids, such as most control characters, become U+FFFD.
    Quotation marks are unchanged, so the result is not safe in an attribute.
    """
    legal = _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
    return escape(legal)


def label(name: str) -> str:
    """Return the name, shortened to at most `LABEL_LENGTH` characters.

    A longer name keeps its beginning and its last 4 characters, with an ellipsis in between.
    """
    if len(name) <= LABEL_LENGTH:
        return name
    head = name[: LABEL_LENGTH - 5]
    tail = name[-4:]
    return f"{head}{_ELLIPSIS}{tail}"


def truncate(text: str, length: int) -> str:
    """Return the text, cut to `length` characters of which the last one is an ellipsis.

    A text of at most `length` characters is returned unchanged. `length` must be at least
    1.
    """
    if len(text) <= length:
        return text
    return f"{text[: length - 1]}{_ELLIPSIS}"


Points = Float64Array
"""float64[count, 2]: x and y."""

ARC = 48.0
PAGE_WIDTH = 1200.0
"""Width of the widest picture that is not scaled down, in pixels."""
_MIN_RADIUS = 110.0
_STEP = 32.0
_SHAPE_GAP = 3.0
# Below and to the right first, where a picture has room; then the other directions.
_DIRECTIONS = np.asarray(
    [(1, 1), (1, 0), (0, 1), (-1, 1), (1, -1), (-1, 0), (0, -1), (-1, -1)],
    np.float64,
)


def circle(count: int, arc: float = ARC) -> Points:
    """Return `count` evenly spaced points on a circle around (0, 0), clockwise from the top.

    The result is float64[count, 2] in pixels, y downwards; it is empty for 0. The
    circumference is `count` * `arc`, where `arc` is the length in pixels between
    neighbours, but the radius is at least `_MIN_RADIUS` (110). A single point is at (0,
    0).
    """
    radius = 0.0
    if count > 1:
        radius = max(_MIN_RADIUS, count * arc / (2 * np.pi))
    angle = 2 * np.pi * np.arange(count) / max(count, 1)
    return radius * on_unit_circle(angle)


def on_unit_circle(angle: Float64Array) -> Points:
    """Return the points of the unit circle at these angles in radians, float64[angles, 2].

    Angles are measured clockwise from the top, because y increases downwards.
    """
    return np.stack([np.sin(angle), -np.cos(angle)], axis=1)


def compute_neighbour_centres(topology: Topology, places: Points) -> Points:
    """Return for each node the mean position of the NPUs with a link to it: float64[num_nodes, 2].

    Only links from an NPU to the node count, parallel ones separately. Nodes without such links
    get the mean position of all NPUs. `places`: positions of all nodes, of which only the NPUs'
    are used.
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


def find_free_places(places: Points, targets: Points, first: int, sizes: Points) -> Points:
    """Move the nodes with index `first` and above to free positions at or near their
    targets.

    Returns the positions of all nodes as a new array, float64[nodes, 2] in pixels; the
    nodes before `first` keep those of `places`. `targets` and `sizes` (width and height
    in pixels) have a row for every node. Nodes are placed in index order. A node gets its
    target if it touches no node of a lower index there, with a gap of `_SHAPE_GAP`,
    otherwise the first free point of the rings around it (`_find_free_place`).
    """
    positions = places.copy()
    for row in range(first, len(positions)):
        # Minimum distances between the centres of two shapes that do not touch.
        min_distance = (sizes[:row] + sizes[row]) / 2 + _SHAPE_GAP
        positions[row] = _find_free_place(positions[:row], min_distance, targets[row])
    return positions


def _find_free_place(taken: Points, min_distance: Points, target: Points) -> Points:
    """Return `target` if it is free (`_is_free`), otherwise the first free point around it.

    The candidates are on growing square rings of eight points around `target`. The points of
    ring n are n * `_STEP` pixels away in x, in y, or in both, in the order of `_DIRECTIONS`.
    `taken`: positions of the placed shapes, float64[n, 2]. `min_distance`: for each of them,
    the distances in x and y below which both shapes touch.
    """
    if _is_free(taken, min_distance, target):
        return target
    ring = 0
    while True:
        # The loop terminates: the rings grow, and the number of taken positions is finite.
        ring += 1
        for point in target + _DIRECTIONS * ring * _STEP:
            if _is_free(taken, min_distance, point):
                free: Points = point
                return free


def _is_free(taken: Points, min_distance: Points, point: Points) -> bool:
    """Return whether a shape centred at `point` touches none of the shapes centred at
    `taken`.

    `taken`, `min_distance`: float64[n, 2]. Shape i touches if the distance of the centres
    is below `min_distance[i]` both in x and in y; an equal distance does not touch. True
    if n is 0.
    """
    is_touched = np.all(np.abs(taken - point) < min_distance, axis=1)
    return not is_touched.any()


NPU_RADIUS = 14.0
BOX_HEIGHT = 22.0
# Names of at most this many characters are drawn in a circle.
_MAX_CIRCLE_CHARACTERS = 3
_CHARACTER_WIDTH = 6.2
_PADDING = 12.0


def is_circle(topology: Topology, node: int) -> bool:
    """Check if a node is drawn as a circle: an NPU with a short name."""
    return node < topology.num_npus and len(topology.node_name(node)) <= _MAX_CIRCLE_CHARACTERS


def box_width(name: str) -> float:
    """Return the width in pixels of a box with the label of this name; names are shortened to
    `LABEL_LENGTH` characters.
    """
    return min(len(name), LABEL_LENGTH) * _CHARACTER_WIDTH + _PADDING


def measure_widest(topology: Topology, nodes: Iterable[int]) -> float:
    """Return the width in pixels of the widest shape of these nodes.

    Raises `ValueError` without nodes.
    """
    return max(_measure_node(topology, node)[0] for node in nodes)


def measure_nodes(topology: Topology) -> Points:
    """Return width and height in pixels of every node's shape, float64[num_nodes, 2]."""
    return np.asarray([_measure_node(topology, node) for node in range(topology.num_nodes)])


def _measure_node(topology: Topology, node: int) -> tuple[float, float]:
    if is_circle(topology, node):
        return 2 * NPU_RADIUS, 2 * NPU_RADIUS
    return box_width(topology.node_name(node)), BOX_HEIGHT
