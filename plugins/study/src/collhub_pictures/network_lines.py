"""Lines of a network picture: their curves around nodes, their loads, and their colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_drawing.node_shapes import Points

from hub_core.columns import BoolArray, ColumnTable, Float64Array, Int64Array, NodePairs
from hub_core.model import UsageError, format_bandwidth, format_bytes, format_count, format_time
from hub_core.network import Topology
from hub_core.plugin_api import LinkLoad

_CLEARANCE = 17.0
# Position of a curve's control points as a fraction of the line, measured from each end. A small
# value moves the curve away from the straight line early.
_SHOULDER = 0.12
_MIN_BEND = 15.0
_BEND_PER_NODE = 4.0
_MAX_BEND = 45.0
_BLOCK_CELLS = 1 << 22
# Lengths below this count as zero (nodes at the same position).
_MIN_LENGTH = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class DrawnLines(ColumnTable):
    """Lines as columns of equal length: one per symmetric link, else one arrow per direction.

    `source`, `destination`, `count` (parallel links): int64. `bandwidth_bytes_per_s`, `latency_s`:
    float64, of one direction. `is_arrow`: the line has an arrowhead at `destination`. `bend`:
    distance in pixels between the curve's midpoint and the straight line, 0 for straight lines.
    `controls`: the two control points of a cubic curve, float64[lines, 2, 2].
    """

    source: Int64Array
    destination: Int64Array
    bandwidth_bytes_per_s: Float64Array
    latency_s: Float64Array
    count: Int64Array
    is_arrow: BoolArray
    bend: Float64Array
    controls: Float64Array

    @classmethod
    def of(cls, topology: Topology, places: Points) -> DrawnLines:
        """Return the lines with which a picture shows the links of a network.

        `places`: float64[num_nodes, 2], positions of the nodes in pixels. Links from a node to
        itself are not drawn. Parallel links (equal plane, source and destination) are merged:
        bandwidths are added, the latency is their minimum, and `count` is their number.

        A merged link and the merged link in the opposite direction are one line without an
        arrowhead, from the lower to the higher node, if they have equal bandwidth and latency. Any
        other merged link is an arrow. Lines ascend by plane, then source, then destination. Lines
        of several planes between two nodes coincide.

        A line is bent if it is one of two opposite arrows, or if n > 0 other nodes are nearer than
        `_CLEARANCE`. The bend is 15 + 4 n pixels, at most 45. Lines without an arrowhead bend
        upwards (vertical ones to the right), arrows to the left of their direction.
        """
        pairs = NodePairs(topology)
        has_back = pairs.back >= 0
        rows, is_arrow = _select_lines(pairs)
        source, destination = pairs.source[rows], pairs.destination[rows]
        passed = _count_nodes_passed(places, source, destination)
        # Straight arrows in both directions between two nodes would overlap.
        is_bent = (is_arrow & has_back[rows]) | (passed > 0)
        # The bend grows with the number of avoided nodes, so that lines along one row are separate.
        grown = np.minimum(_MIN_BEND + _BEND_PER_NODE * passed, _MAX_BEND)
        bend = np.where(is_bent, grown, 0.0)
        vector = places[destination] - places[source]
        # The midpoint of a cubic curve is at three quarters of the distance to its control points.
        offset = _compute_normals(vector, is_arrow) * bend[:, None] / 0.75
        return cls(
            source,
            destination,
            pairs.bandwidth_bytes_per_s[rows],
            pairs.latency_s[rows],
            pairs.count[rows],
            is_arrow,
            bend,
            np.stack(
                [
                    places[source] + _SHOULDER * vector + offset,
                    places[destination] - _SHOULDER * vector + offset,
                ],
                axis=1,
            ),
        )


def count_lines(topology: Topology) -> int:
    """Return the number of lines of `DrawnLines.of`, whose shapes are not computed here."""
    return len(_select_lines(NodePairs(topology))[0])


def _select_lines(pairs: NodePairs) -> tuple[Int64Array, BoolArray]:
    """Return the rows of `pairs` that are drawn as a line, and whether each line is an arrow."""
    is_symmetric = (pairs.back >= 0) & ~pairs.differs_from_back()
    rows = np.flatnonzero(~is_symmetric | (pairs.source < pairs.destination))
    return rows, ~is_symmetric[rows]


def _count_nodes_passed(places: Points, source: Int64Array, destination: Int64Array) -> Int64Array:
    """Return how many nodes are too close to each straight line: int64[lines].

    `places`: positions of all nodes in pixels, at least one. `source`, `destination`: end
    nodes of each line, by index. A node counts if its distance from the line between its two
    ends is below 17 pixels (`_CLEARANCE`). The two end nodes of a line do not count.
    """
    # Compares every line with every node: a spatial index would be faster only for pictures that
    # are too large to read. Blocks of lines limit the memory of the table of distances.
    passed = np.zeros(len(source), np.int64)
    block = max(1, _BLOCK_CELLS // len(places))
    for first in range(0, len(source), block):
        rows = slice(first, first + block)
        start = places[source[rows]]
        vector = places[destination[rows]] - start
        to_node = places[None, :, :] - start[:, None, :]
        square = np.maximum(np.sum(vector * vector, axis=1), _MIN_LENGTH)

        # The foot of the perpendicular as a fraction of the line, limited to its end points.
        projection = np.einsum("lnx,lx->ln", to_node, vector) / square[:, None]
        fraction = np.clip(projection, 0.0, 1.0)
        perpendicular = to_node - fraction[:, :, None] * vector[:, None, :]
        distance: Float64Array = np.hypot(*np.moveaxis(perpendicular, 2, 0))
        line = np.arange(len(start))
        distance[line, source[rows]] = np.inf
        distance[line, destination[rows]] = np.inf
        passed[rows] = np.count_nonzero(distance < _CLEARANCE, axis=1)
    return passed


def _compute_normals(vector: Points, is_arrow: BoolArray) -> Points:
    """Return the unit vectors of the directions in which lines bend: float64[lines, 2].

    `vector`: from source to destination of each line, in pixels, y downwards. Lines
    without an arrowhead bend upwards, vertical ones to the right. Arrows bend to the left
    of their direction, so that the two directions of a link bend to different sides. A
    line of length 0 has the vector 0.
    """
    length = np.maximum(np.hypot(*vector.T), _MIN_LENGTH)
    across = np.stack([vector[:, 1], -vector[:, 0]], axis=1) / length[:, None]
    is_level = np.abs(across[:, 1]) <= _MIN_LENGTH
    is_down = (across[:, 1] > _MIN_LENGTH) | (is_level & (across[:, 0] < 0))
    normals: Points = np.where((is_down & ~is_arrow)[:, None], -across, across)
    return normals


_NodePair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LineLoad:
    """Load of a line.

    `busy`: fraction of the time for which its busier direction sends, None for unused lines.
    `text`: the loads of both directions as text.
    """

    busy: float | None
    text: str


def compute_line_loads(
    topology: Topology, lines: DrawnLines, loads: Sequence[LinkLoad], time_ns: int
) -> list[LineLoad]:
    """Return the load (bytes, fraction of time) of every line of a picture, in order.

    The loads of a pair (source, destination) are combined first: their bytes are added, and the
    longest busy time is taken. The lines of several planes between two nodes each have this load,
    because loads name no plane.

    - `busy` is the busy time divided by `time_ns` (0 counts as 1 ns); it is not limited to 1. A
      line without an arrowhead has the larger value of its two directions. None without a load.
    - `text` is bytes and percent, such as `1 MiB, busy 25 %`, or `unused`. A line without an
      arrowhead has both, joined by ` / `: first from its source to its destination.

    Raises `UsageError` (`load-without-link`) for a load between nodes that no line connects in this
    direction; the lowest such pair is named. `topology` only gives its name for this message.
    """
    by_pair: dict[_NodePair, LinkLoad] = {}
    for load in loads:
        pair = (load.source, load.destination)
        previous = by_pair.get(pair, LinkLoad(*pair, 0, 0))
        busy_ns = max(previous.busy_ns, load.busy_ns)
        by_pair[pair] = LinkLoad(*pair, previous.bytes + load.bytes, busy_ns)
    result = []
    drawn: set[_NodePair] = set()
    for source, destination, is_arrow in zip(
        lines.source.tolist(), lines.destination.tolist(), lines.is_arrow.tolist(), strict=True
    ):
        directions = [(source, destination), *([] if is_arrow else [(destination, source)])]
        fractions, texts = [], []
        for pair in directions:
            if pair not in by_pair:
                texts.append("unused")
                continue
            num_bytes, busy_ns = by_pair[pair].bytes, by_pair[pair].busy_ns
            percent = 100 * busy_ns / max(time_ns, 1)
            fractions.append(busy_ns / max(time_ns, 1))
            texts.append(f"{format_bytes(num_bytes)}, busy {percent:.0f} %")
        result.append(LineLoad(max(fractions, default=None), " / ".join(texts)))
        drawn.update(directions)
    if unknown := by_pair.keys() - drawn:
        source, destination = min(unknown)
        raise _missing_link_error(topology, source, destination)
    return result


def check_loads(topology: Topology, loads: Sequence[LinkLoad]) -> None:
    """Raise `UsageError` (`load-without-link`) for the first load of a link that the
    topology lacks.

    Only pairs of source and destination are compared: a load needs a link in its
    direction, on any plane.
    """
    known = set(zip(topology.source.tolist(), topology.destination.tolist(), strict=True))
    for load in loads:
        if (load.source, load.destination) not in known:
            raise _missing_link_error(topology, load.source, load.destination)


def _missing_link_error(topology: Topology, source: int, destination: int) -> UsageError:
    return UsageError(
        f"topology {topology.name} has no link {source} -> {destination}, which has a load",
        cure="name the topology that was simulated",
        code="load-without-link",
    )


# Colours that are distinguishable with any colour vision (Okabe and Ito, Color Universal Design,
# 2008), and grey for further classes.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_FURTHER_CLASSES = "#999999"
# From light to dark, an order that is visible with any colour vision; grey for unused lines.
_UNUSED = "#bbbbbb"
LOAD_COLOURS = ("#fed976", "#fd8d3c", "#e31a1c", "#800026")

_MIN_WIDTH = 0.8
_MAX_WIDTH = 3.6
_FEW_LINES = 40


@dataclass(frozen=True, slots=True)
class LegendRow:
    """A class of lines with its CSS `colour`, its `width` in pixels and its meaning (`text`)."""

    colour: str
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class LineLooks:
    """CSS colour and width in pixels of every line, and the legend."""

    colours: list[str]
    widths: list[float]
    legend: list[LegendRow]


def format_rate_and_latency(lines: DrawnLines, row: int) -> str:
    """Return bandwidth and latency of line `row` of `lines` as text, such as `50 GB/s, 500
    ns`.

    The bandwidth is that of one direction, the sum of parallel links. The texts are those
    of `format_bandwidth` and `format_time`, so a latency below 1 us is an integer number
    of ns.
    """
    # Rounded like the latencies of the topology, so that decimal inputs are reproduced exactly.
    latency_ns = round(float(lines.latency_s[row]) * 1e9, 6)
    rate = format_bandwidth(float(lines.bandwidth_bytes_per_s[row]))
    return f"{rate}, {format_time(latency_ns)}"


def create_looks_by_class(lines: DrawnLines) -> LineLooks:
    """Colour the lines of a picture by bandwidth and latency, and write the legend.

    Lines with equal bandwidth and latency form a class. The classes are ordered by descending
    bandwidth, then ascending latency. The first 7 classes get the colours of `COLOURS` in order,
    and each has a row in the legend: `BANDWIDTH, LATENCY: N links`. All further classes are grey
    (`_FURTHER_CLASSES`) and share one last row: `slower classes: N links`. It exists only if there
    are more than 7 classes.

    N is the number of parallel links of the lines (`count`), twice for a line without an arrowhead.
    Widths are linear in the bandwidth, and thinner if there are more than 40 lines
    (`_compute_widths`). A row has the width of the first line of its class; the shared row that of
    the last class. Colours and widths have the order of the lines. All is empty without lines.
    """
    if not len(lines):
        return LineLooks([], [], [])
    keys = np.stack([-lines.bandwidth_bytes_per_s, lines.latency_s])
    _, first, number = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    # Some versions of numpy return it as a row.
    number = number.ravel()
    directions = np.where(lines.is_arrow, 1, 2)
    links = np.bincount(number, lines.count * directions).astype(int).tolist()
    widths = _compute_widths(lines)
    named = len(COLOURS)
    rows = [
        LegendRow(
            colour,
            float(widths[row]),
            f"{format_rate_and_latency(lines, row)}: {format_count(count, 'link')}",
        )
        for colour, row, count in zip(COLOURS, first.tolist(), links, strict=False)
    ]
    if further := sum(links[named:]):
        text = f"slower classes: {format_count(further, 'link')}"
        rows.append(LegendRow(_FURTHER_CLASSES, float(widths[first[-1]]), text))
    colours = [COLOURS[index] if index < named else _FURTHER_CLASSES for index in number.tolist()]
    return LineLooks(colours, widths.tolist(), rows)


def create_looks_by_load(lines: DrawnLines, loads: Sequence[LineLoad], time_text: str) -> LineLooks:
    """Colour the lines of a picture by the fraction of time for which they are busy.

    `loads` has one entry per line. Its `busy` gives the class: up to 0.25 (included), up to 0.5, up
    to 0.75, and above, also above 1. The colours are those of `LOAD_COLOURS`, from the lowest class
    to the highest. Unused lines (None) are one more class, in grey.

    The legend has a row for each class that occurs, the busiest first and unused lines last. It has
    the number of lines, such as `busy 25 to 50 % of TIME: 3 lines`; TIME is `time_text`, the time
    that is 100 %. All rows have the width `_MAX_WIDTH`. The widths of lines follow their bandwidths
    (`_compute_widths`). Without lines all is empty.
    """
    quarters = len(LOAD_COLOURS)
    classes = [-1] * len(loads)
    for row, load in enumerate(loads):
        if load.busy is not None:
            # Each quarter includes its upper limit, and the first one also 0.
            classes[row] = min(max(math.ceil(load.busy * quarters) - 1, 0), quarters - 1)
    widths = _compute_widths(lines)
    rows = []
    for quarter in range(quarters - 1, -1, -1):
        low, high = 100 * quarter // quarters, 100 * (quarter + 1) // quarters
        if count := classes.count(quarter):
            text = f"busy {low} to {high} % of {time_text}: {format_count(count, 'line')}"
            rows.append(LegendRow(LOAD_COLOURS[quarter], _MAX_WIDTH, text))
    if count := classes.count(-1):
        rows.append(LegendRow(_UNUSED, _MAX_WIDTH, f"unused: {format_count(count, 'line')}"))
    colours = [_UNUSED if index < 0 else LOAD_COLOURS[index] for index in classes]
    return LineLooks(colours, widths.tolist(), rows)


def _compute_widths(lines: DrawnLines) -> Float64Array:
    """Return the width of every line in pixels, linear in its bandwidth: float64[lines].

    It is `_MIN_WIDTH` for bandwidth 0 and the maximum width for the largest bandwidth. The maximum
    is `_MAX_WIDTH`; for n lines, if n exceeds `_FEW_LINES`, it is multiplied by the square root of
    `_FEW_LINES` / n, but it is at least twice `_MIN_WIDTH`.
    """
    if not len(lines):
        return np.zeros(0)
    # Pictures with many lines have thinner lines, so that they remain distinguishable.
    thickest = max(_MAX_WIDTH * min(1.0, (_FEW_LINES / len(lines)) ** 0.5), 2 * _MIN_WIDTH)
    fraction = lines.bandwidth_bytes_per_s / lines.bandwidth_bytes_per_s.max()
    widths: Float64Array = _MIN_WIDTH + (thickest - _MIN_WIDTH) * fraction
    return widths
