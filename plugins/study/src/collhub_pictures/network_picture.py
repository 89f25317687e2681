"""Draw a network as an SVG document of plain shapes; equal networks give equal bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from collhub_drawing.layout import is_crowded, place_irregular_nodes, place_regular_nodes
from collhub_drawing.node_shapes import (
    BOX_HEIGHT,
    NPU_RADIUS,
    PAGE_WIDTH,
    Points,
    box_width,
    escape_svg_text,
    is_circle,
    label,
    measure_widest,
    truncate,
)

from collhub_pictures.collapsed_groups import (
    Collapse,
    CollapsedNetwork,
    collapse_groups,
    fold_equal_nodes,
)
from collhub_pictures.network_lines import (
    DrawnLines,
    LegendRow,
    LineLoad,
    LineLooks,
    check_loads,
    compute_line_loads,
    count_lines,
    create_looks_by_class,
    create_looks_by_load,
    format_rate_and_latency,
)
from hub_core.model import UsageError, format_time
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, LinkLoad, NoOptions, TopologyDrawing, WriteResult

MAX_NODES = 4096
MAX_LINES = 32768

_MARGIN = 62.0
_EDGE = 8.0
_TITLE_HEIGHT = 26.0
_LEGEND_HEIGHT = 18.0
_CHARACTER_WIDTH = 7.2
_ARROW = ' marker-end="url(#arrow)"'
# Styles per element type instead of attributes: a picture of 4096 nodes is a third smaller.
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
    """Content of a picture: nodes at `places`, lines, their looks, and their loads, if any.

    `topology`: the network as drawn, with groups as single nodes if they are collapsed.
    `original`: the network as given.
    """

    topology: Topology
    original: Topology
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
    """Draw the network as an ASCII SVG document, the same bytes for equal arguments.

    `_select_network` decides from `collapse` which groups are drawn as single nodes. Parallel links
    are one line with the sum of their bandwidths. Both directions are one line if bandwidth and
    latency are equal, otherwise two arrows. Every node and line has a tooltip with its data. Nodes
    of a network with `dimensions` are placed by their coordinates, those of any other in layers.

    `loads`: results of a simulation. Without loads, the colour of a line shows bandwidth and
    latency. With loads, it shows the fraction of `time_ns` for which the line is busy. If `time_ns`
    is None, 100 % is the busy time of the busiest drawn link. Loads inside collapsed groups are
    omitted.

    Raises `UsageError`, in this order: `load-without-link` for a load of a missing link,
    `no-groups` for ALWAYS and a network without groups, `too-large-to-draw` for more than
    `MAX_NODES` nodes or `MAX_LINES` lines after collapsing.
    """
    original = topology
    check_loads(topology, loads)
    network = _select_network(topology, collapse)
    topology, loads = network.topology, network.loads(loads)
    if topology.num_nodes > MAX_NODES:
        raise _too_large_error(topology, f"{topology.num_nodes} nodes are more than {MAX_NODES}")
    # Counted first, because shapes of millions of lines take minutes.
    line_count = count_lines(topology)
    if line_count > MAX_LINES:
        raise _too_large_error(topology, f"{line_count} lines are more than {MAX_LINES}")
    is_regular = bool(topology.dimensions)
    relative = (
        place_regular_nodes(topology)
        if is_regular
        else place_irregular_nodes(topology, network.boxes)
    )
    # The left margin has room for half of the widest box.
    half = measure_widest(topology, range(topology.num_nodes)) / 2
    corner = (max(_MARGIN, half + _EDGE), _MARGIN + _TITLE_HEIGHT)
    # Rounded, so that floating-point differences between platforms do not change the bytes.
    places: Points = np.round(relative - relative.min(axis=0) + corner, 1)
    lines = DrawnLines.of(topology, places)
    loads_of_lines: Sequence[LineLoad] = ()
    if loads:
        time_text = "the busiest link's time" if time_ns is None else format_time(time_ns)
        longest_ns = max(load.busy_ns for load in loads)
        full_ns = longest_ns if time_ns is None else time_ns
        loads_of_lines = compute_line_loads(topology, lines, loads, full_ns)
        looks = create_looks_by_load(lines, loads_of_lines, time_text)
    else:
        looks = create_looks_by_class(lines)
    picture = _NetworkPicture(topology, original, places, lines, looks, loads_of_lines)
    # SVG paints in document order: nodes cover the ends of their lines.
    body = [*_write_head(picture), *_write_paths(picture), *_write_nodes(picture), "</svg>", ""]
    return "\n".join(body).encode("ascii", "xmlcharrefreplace")


def _select_network(topology: Topology, collapse: Collapse) -> CollapsedNetwork:
    """Decide which groups of a network are drawn as single nodes, and return the network to draw.

    A network is crowded if it does not fit a page (`is_crowded`). The first rule that applies:

    1. NEVER: the network as given.
    2. AUTO without groups, or with a network that is not crowded: the network as given.
    3. AUTO, and all groups are equal: the first group keeps its NPUs, the others are one node. This
       rule is skipped if the result is crowded.
    4. Each group is one node. If this is crowded, equal switches are merged, and if it is still
       crowded, also equal groups. The result may be crowded.

    Nodes are equal if they have the same links to the same nodes, and groups also the same number
    of NPUs. A single group is equal to itself. Raises `UsageError` (`no-groups`) with ALWAYS for a
    network without groups.
    """
    is_readable = not topology.groups or not is_crowded(topology)
    if collapse is Collapse.NEVER or (collapse is Collapse.AUTO and is_readable):
        return CollapsedNetwork(topology, np.arange(topology.num_nodes), {})
    network = collapse_groups(topology)
    if collapse is Collapse.AUTO and len(fold_equal_nodes(network, switches=False).boxes) == 1:
        # All groups are equal: expand the first one as an example.
        example = fold_equal_nodes(collapse_groups(topology, num_expanded=1), switches=False)
        if not is_crowded(example.topology, example.boxes):
            return example
    for switches in (True, False):
        if is_crowded(network.topology, network.boxes):
            network = fold_equal_nodes(network, switches=switches)
    return network


def _too_large_error(topology: Topology, message: str) -> UsageError:
    return UsageError(
        f"topology {topology.name}: {message} in one picture",
        cure="draw a part of it, as in ?npus=0-63",
        code="too-large-to-draw",
    )


def _write_head(picture: _NetworkPicture) -> Iterator[str]:
    """Yield the beginning of the SVG document in lines: all that comes before lines and nodes.

    1. the opening tag, with the size of nodes, heading and legend, scaled to at most `PAGE_WIDTH`
    2. `title` with the full name of the network, and the styles
    3. the white background with the visible heading, such as `NAME: 64 NPUs`. The name is cut to 80
       characters. If nodes are collapsed, ` in N groups, collapsed` follows; N is the number of
       groups of the given network.
    4. the definition of the arrowhead
    5. for each row of the legend, in its order, a sample line and then its text. The rows are below
       the lowest node. There are none for a network without lines.

    Names and texts are escaped.
    """
    topology = picture.original
    title = f"{truncate(topology.name, 80)}: {topology.num_npus} NPUs"
    if picture.topology is not topology:
        title += f" in {len(topology.groups)} groups, collapsed"
    legend: list[LegendRow] = picture.looks.legend
    half = measure_widest(picture.topology, range(picture.topology.num_nodes)) / 2
    right, bottom = (float(end) + _MARGIN for end in picture.places.max(axis=0))
    right = max(right, right - _MARGIN + half + _EDGE)
    # The colour sample before a text of the legend takes the width of 6 characters.
    longest = max([len(title), *(len(row.text) + 6 for row in legend)])
    width = max(right, longest * _CHARACTER_WIDTH + 24)
    height = bottom + _LEGEND_HEIGHT * len(legend) + 12
    # Wider pictures are scaled down, so that they fit a page.
    scale = min(1.0, PAGE_WIDTH / width)
    size = f'width="{width * scale:.0f}" height="{height * scale:.0f}"'
    view = f'viewBox="0 0 {width:.0f} {height:.0f}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view}>'
    yield f"<title>{escape_svg_text(topology.name)}</title><style>{_STYLE}</style>"
    heading = f'<text x="12" y="20">{escape_svg_text(title)}</text>'
    yield f'<rect width="100%" height="100%" style="stroke:none"/>{heading}'
    yield _MARKER
    for number, row in enumerate(legend):
        y = bottom + _LEGEND_HEIGHT * number
        yield f'<path d="M12 {y:.1f}h30" {_format_stroke(row.colour, row.width)}/>'
        yield f'<text x="50" y="{y + 4:.1f}">{escape_svg_text(row.text)}</text>'


def _format_stroke(colour: str, width: float) -> str:
    """Return the SVG attributes `stroke` and `stroke-width` (pixels, one digit)."""
    return f'stroke="{colour}" stroke-width="{width:.1f}"'


def _write_paths(picture: _NetworkPicture) -> Iterator[str]:
    """Yield an SVG path with a tooltip for every line, in the order of the lines.

    A line goes from the centre of its source to that of its destination, straight (`M.. L..`) or,
    with a bend, as a cubic curve (`M.. C..`) with its two control points. An arrow ends
    `NPU_RADIUS` pixels before the centre, for boxes too, measured along the straight line to the
    source, or to the last control point of a curve. Coordinates have one decimal place.

    The tooltip has both ends, as `0 <-> 1` or for an arrow `0 -> 1`, bandwidth and latency, and the
    load if the picture has loads.
    """
    lines = picture.lines
    for row in range(len(lines)):
        start = picture.places[lines.source[row]]
        end = picture.places[lines.destination[row]]
        first, last = lines.controls[row].tolist()
        is_bent, is_arrow = bool(lines.bend[row]), bool(lines.is_arrow[row])
        if is_arrow:
            # The arrowhead ends at the rim, because the node would hide it.
            vector = end - (lines.controls[row, 1] if is_bent else start)
            # Avoids a division by zero for two nodes at one position.
            length = max(float(np.hypot(*vector)), 1e-9)
            end = end - vector / length * NPU_RADIUS
        middle = "L"
        if is_bent:
            middle = f"C{first[0]:.1f} {first[1]:.1f} {last[0]:.1f} {last[1]:.1f} "
        course = f"M{start[0]:.1f} {start[1]:.1f}{middle}{end[0]:.1f} {end[1]:.1f}"
        stroke = _format_stroke(picture.looks.colours[row], picture.looks.widths[row])
        stroke += _ARROW if is_arrow else ""
        source = picture.topology.node_name(int(lines.source[row]))
        destination = picture.topology.node_name(int(lines.destination[row]))
        sign = "->" if is_arrow else "<->"
        tooltip = f"{source} {sign} {destination}: {format_rate_and_latency(lines, row)}"
        if picture.loads:
            tooltip += f"; {picture.loads[row].text}"
        yield f'<path d="{course}" {stroke}><title>{escape_svg_text(tooltip)}</title></path>'


def _write_nodes(picture: _NetworkPicture) -> Iterator[str]:
    """Yield the SVG group of every node in order: its shape, its label, and its name as a tooltip.

    The shape is a circle if `is_circle` is true (an NPU with a short name), otherwise a box.
    Switches also have the style class `s`. The label may be a shortened name. Names are
    escaped.
    """
    topology = picture.topology
    for node, (x, y) in enumerate(picture.places.tolist()):
        name = topology.node_name(node)
        is_npu = node < topology.num_npus
        style = "n" if is_npu else "n s"
        if is_circle(topology, node):
            shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{NPU_RADIUS:.0f}"/>'
        else:
            width = box_width(name)
            corner = f'x="{x - width / 2:.1f}" y="{y - BOX_HEIGHT / 2:.1f}"'
            shape = f'<rect {corner} width="{width:.1f}" height="{BOX_HEIGHT:.0f}" rx="4"/>'
        text = f'<text x="{x:.1f}" y="{y + 4:.1f}">{escape_svg_text(label(name))}</text>'
        yield f'<g class="{style}">{shape}{text}<title>{escape_svg_text(name)}</title></g>'


def write(drawing: TopologyDrawing, options: NoOptions) -> WriteResult:
    """Return one SVG file of a network, with link loads if the drawing has them.

    It is drawn at once, and the name of the artifact has no addition. Raise `UsageError` for
    loads of links that the network does not have (`load-without-link`), if
    `drawing.collapse` is `always` and the network has no groups (`no-groups`), and for a
    network that is too large for a picture (`too-large-to-draw`). Raise `ValueError` for
    another value of `collapse` than `auto`, `always` and `never`.
    """
    collapse = Collapse(drawing.collapse)
    content = draw(drawing.topology, drawing.link_loads, drawing.time_ns, collapse)
    return WriteResult([Artifact("", lambda: content)])
