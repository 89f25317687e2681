"""The picture of a network: an SVG document of plain shapes, the same bytes every time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from collhub_pictures.networks.collapsed_groups import Collapse, CollapsedNetwork, collapsed, folded
from collhub_pictures.networks.drawn_lines import DrawnLines
from collhub_pictures.networks.irregular_layout import irregular_places, is_crowded
from collhub_pictures.networks.line_loads import LineLoad, check_loads, line_loads
from collhub_pictures.networks.line_looks import (
    LegendRow,
    LineLooks,
    looks_by_class,
    looks_by_load,
    rate_and_latency,
)
from collhub_pictures.networks.node_boxes import (
    BOX_HEIGHT,
    NPU_RADIUS,
    box_width,
    is_circle,
    widest,
)
from collhub_pictures.networks.places import PAGE_WIDTH, Points
from collhub_pictures.networks.regular_layout import regular_places
from collhub_pictures.networks.svg_text import label, shortened, svg_text
from hub_core.model import UsageError, format_time
from hub_core.network import Topology
from hub_core.plugin_api import LinkLoad

MAX_NODES = 4096
MAX_LINES = 32768

_MARGIN = 62.0
_EDGE = 8.0
_TITLE_HEIGHT = 26.0
_LEGEND_HEIGHT = 18.0
_CHARACTER_WIDTH = 7.2
_ARROW = ' marker-end="url(#arrow)"'
# Styles of elements, not attributes: a picture of 4096 nodes is a third smaller so.
_STYLE = (
    "text{font:11px sans-serif;fill:#222}"
    ".n text{text-anchor:middle}"
    "circle,rect{fill:#fff;stroke:#333;stroke-width:1.2}"
    ".s rect{fill:#e8e8e8}"
    "path{fill:none;stroke-linecap:round}"
)
_MARKER = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4"'
    ' markerWidth="9" markerHeight="9" orient="auto"\n'
    ' markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8z" style="fill:#333"/></marker></defs>'
)


@dataclass(frozen=True, slots=True, eq=False)
class _NetworkPicture:
    """What a picture shows: nodes at `places`, lines, how they look, and their loads, if any.

    `whole`: the network, of which `topology` is drawn, maybe with groups as single nodes.
    """

    topology: Topology
    whole: Topology
    places: Points
    lines: DrawnLines
    looks: LineLooks
    loads: Sequence[LineLoad]


def draw(
    topology: Topology,
    loads: Sequence[LinkLoad] = (),
    time_ns: int | None = None,
    collapse: Collapse = Collapse.AUTO,
) -> bytes:
    """The SVG document, ASCII.

    Colour and width tell bandwidth and latency; every shape has its facts as a tooltip. Parallel
    links are one line with the sum of their bandwidths. After a simulation, `loads` of `time_ns`,
    or of the busiest link where that is None, colour tells how busy a line was. `collapse`: groups
    as single nodes; by default where the picture would be wider than a page, and then equal nodes
    as one where it still would. A picture that is wider is scaled down to a page. Raises
    `UsageError` for a network that is too large, and for loads of links that it lacks.
    """
    whole = topology
    check_loads(topology, loads)
    network = _drawn_network(topology, collapse)
    topology, loads = network.topology, network.loads(loads)
    if topology.num_nodes > MAX_NODES:
        raise _too_large(topology, f"{topology.num_nodes} nodes are more than {MAX_NODES}")
    places = _places(topology, network.boxes)
    lines = DrawnLines.of(topology, places)
    if len(lines) > MAX_LINES:
        raise _too_large(topology, f"{len(lines)} lines are more than {MAX_LINES}")
    looks = _looks(topology, lines, loads, time_ns)
    picture = _NetworkPicture(topology, whole, places, lines, *looks)
    # Nodes stand before the lines that end at them, so they come later.
    body = [*_head(picture), *_paths(picture), *_nodes(picture), "</svg>", ""]
    return "\n".join(body).encode("ascii", "xmlcharrefreplace")


def _drawn_network(topology: Topology, collapse: Collapse) -> CollapsedNetwork:
    """The network that is drawn: as it is, or with groups as single nodes."""
    is_readable = not topology.groups or not is_crowded(topology)
    if collapse is Collapse.NEVER or (collapse is Collapse.AUTO and is_readable):
        return CollapsedNetwork(topology, np.arange(topology.num_nodes), {})
    network = collapsed(topology)
    if collapse is Collapse.AUTO and len(folded(network, switches=False).boxes) == 1:
        # All groups are alike: the first one shows what is in each.
        example = folded(collapsed(topology, num_expanded=1), switches=False)
        if not is_crowded(example.topology, example.boxes):
            return example
    for switches in (True, False):
        if is_crowded(network.topology, network.boxes):
            network = folded(network, switches=switches)
    return network


def _looks(
    topology: Topology, lines: DrawnLines, loads: Sequence[LinkLoad], time_ns: int | None
) -> tuple[LineLooks, Sequence[LineLoad]]:
    if not loads:
        return looks_by_class(lines), ()
    whole = "the busiest link's time" if time_ns is None else format_time(time_ns)
    longest_ns = max(load.busy_ns for load in loads)
    of_lines = line_loads(topology, lines, loads, longest_ns if time_ns is None else time_ns)
    return looks_by_load(lines, of_lines, whole), of_lines


def _too_large(topology: Topology, message: str) -> UsageError:
    return UsageError(
        f"topology {topology.name}: {message} in one picture",
        cure="draw a part of it, as in ?npus=0-63",
        code="too-large-to-draw",
    )


def _places(topology: Topology, boxes: Collection[int]) -> Points:
    """Where all nodes stand in the picture, float64[num_nodes, 2]."""
    is_regular = bool(topology.dimensions)
    found = regular_places(topology) if is_regular else irregular_places(topology, boxes)
    # The widest box at the left edge stays in the picture.
    half = widest(topology, range(topology.num_nodes)) / 2
    corner = (max(_MARGIN, half + _EDGE), _MARGIN + _TITLE_HEIGHT)
    # Rounded, so that the last digits of a machine's arithmetic do not show.
    least = found.min(axis=0)
    places: Points = np.round(found - least + corner, 1)
    return places


def _head(picture: _NetworkPicture) -> Iterator[str]:
    """The opening tag, the title and the legend below the picture."""
    topology = picture.whole
    title = f"{shortened(topology.name, 80)}: {topology.num_npus} NPUs"
    if picture.topology is not topology:
        title += f" in {len(topology.groups)} groups, collapsed"
    legend: list[LegendRow] = picture.looks.legend
    half = widest(picture.topology, range(picture.topology.num_nodes)) / 2
    right, bottom = (float(end) + _MARGIN for end in picture.places.max(axis=0))
    right = max(right, right - _MARGIN + half + _EDGE)
    yield _opening_tag(right, bottom, title, [row.text for row in legend])
    yield f"<title>{svg_text(topology.name)}</title><style>{_STYLE}</style>"
    heading = f'<text x="12" y="20">{svg_text(title)}</text>'
    yield f'<rect width="100%" height="100%" style="stroke:none"/>{heading}'
    yield _MARKER
    for number, row in enumerate(legend):
        y = bottom + _LEGEND_HEIGHT * number
        yield f'<path d="M12 {y:.1f}h30" {_stroke(row.colour, row.width)}/>'
        yield f'<text x="50" y="{y + 4:.1f}">{svg_text(row.text)}</text>'


def _opening_tag(right: float, bottom: float, title: str, legend: list[str]) -> str:
    """As large as nodes, title and legend need; texts by the mean width of a character."""
    longest = len(title)
    for text in legend:
        # Before a text of the legend, its colour is shown.
        longest = max(longest, len(text) + 6)
    width = max(right, longest * _CHARACTER_WIDTH + 24)
    height = bottom + _LEGEND_HEIGHT * len(legend) + 12
    # Wider pictures are scaled down, so that they fit a page.
    scale = min(1.0, PAGE_WIDTH / width)
    size = f'width="{width * scale:.0f}" height="{height * scale:.0f}"'
    view = f'viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view}>'


def _stroke(colour: str, width: float) -> str:
    """Colour and width of a line."""
    return f'stroke="{colour}" stroke-width="{width:.1f}"'


def _paths(picture: _NetworkPicture) -> Iterator[str]:
    """A path a line, straight or as a quadratic curve."""
    lines = picture.lines
    for row in range(len(lines)):
        stroke = _stroke(picture.looks.colours[row], picture.looks.widths[row])
        if lines.is_arrow[row]:
            stroke += _ARROW
        tooltip = f"{_ends(picture, row)}: {rate_and_latency(lines, row)}"
        if picture.loads:
            tooltip += f"; {picture.loads[row].text}"
        shape = f'<path d="{_course(picture, row)}" {stroke}>'
        yield f"{shape}<title>{svg_text(tooltip)}</title></path>"


def _course(picture: _NetworkPicture, row: int) -> str:
    """The way of a line, as SVG path data."""
    lines = picture.lines
    start = picture.places[lines.source[row]]
    end = picture.places[lines.destination[row]]
    first, last = lines.controls[row].tolist()
    is_bent = bool(lines.bend[row])
    if lines.is_arrow[row]:
        # The tip would be hidden by the node.
        end = _before(end, lines.controls[row, 1] if is_bent else start)
    middle = "L"
    if is_bent:
        middle = f"C{first[0]:.1f} {first[1]:.1f} {last[0]:.1f} {last[1]:.1f} "
    return f"M{start[0]:.1f} {start[1]:.1f}{middle}{end[0]:.1f} {end[1]:.1f}"


def _ends(picture: _NetworkPicture, row: int) -> str:
    """`0 <-> 1`, or `0 -> 1` for an arrow."""
    source = int(picture.lines.source[row])
    destination = int(picture.lines.destination[row])
    sign = "<->"
    if picture.lines.is_arrow[row]:
        sign = "->"
    name = picture.topology.node_name
    return f"{name(source)} {sign} {name(destination)}"


def _before(end: Points, towards: Points) -> Points:
    """The point at the rim of a node, on the way from `towards`; float64[2] each."""
    way = end - towards
    # Two nodes at one place have no way between them.
    length = max(float(np.hypot(*way)), 1e-9)
    back = way / length * NPU_RADIUS
    rim: Points = end - back
    return rim


def _nodes(picture: _NetworkPicture) -> Iterator[str]:
    """A shape a node with its label, and its name as a tooltip."""
    topology = picture.topology
    for node, (x, y) in enumerate(picture.places.tolist()):
        name = topology.node_name(node)
        is_npu = node < topology.num_npus
        style = "n" if is_npu else "n s"
        shape = _circle(x, y) if is_circle(topology, node) else _box(x, y, name)
        text = f'<text x="{x:.1f}" y="{y + 4:.1f}">{svg_text(label(name))}</text>'
        yield f'<g class="{style}">{shape}{text}<title>{svg_text(name)}</title></g>'


def _circle(x: float, y: float) -> str:
    """The shape of NPUs with short names."""
    centre = f'cx="{x:.1f}" cy="{y:.1f}"'
    return f'<circle {centre} r="{NPU_RADIUS:.0f}"/>'


def _box(x: float, y: float, name: str) -> str:
    """A shape that is as wide as the label, around its middle."""
    width = box_width(name)
    left, top = x - width / 2, y - BOX_HEIGHT / 2
    place = f'x="{left:.1f}" y="{top:.1f}"'
    return f'<rect {place} width="{width:.1f}" height="{BOX_HEIGHT:.0f}" rx="4"/>'
