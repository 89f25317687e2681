"""The text of a picture: an SVG document of plain shapes, the same bytes for the same network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np

from hub_core.model.diagnostics import UsageError
from hub_core.model.quantities import format_bandwidth, format_time
from hub_core.network.topology import Topology
from hub_core.topology_drawing.irregular_layout import irregular_places
from hub_core.topology_drawing.lines import Lines
from hub_core.topology_drawing.places import Points
from hub_core.topology_drawing.regular_layout import regular_places

MAX_NODES = 4096
MAX_LINES = 32768

_MARGIN = 62.0
_TITLE_HEIGHT = 26.0
_LEGEND_HEIGHT = 18.0
_CHARACTER_WIDTH = 7.2
_LABEL_LENGTH = 12
# Okabe and Ito's colours, which people with any colour vision can tell apart; grey for the classes beyond.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_OTHERS = "#999999"
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE = (
    "text{font:11px sans-serif;fill:#222}.n text{text-anchor:middle}"
    "circle,rect{fill:#fff;stroke:#333;stroke-width:1.2}.s rect{fill:#e8e8e8}path{fill:none;stroke-linecap:round}"
)


@dataclass(frozen=True, slots=True)
class _Class:
    """Lines of one bandwidth and latency, drawn in one colour and width."""

    bandwidth_bytes_per_s: float
    latency_s: float
    colour: str
    width: float
    links: int

    @property
    def text(self) -> str:
        rate, latency = (
            format_bandwidth(self.bandwidth_bytes_per_s),
            format_time(round(self.latency_s * 1e9, 6)),
        )
        return f"{rate}, {latency}: {self.links} link{'s' if self.links > 1 else ''}"


def draw(topology: Topology) -> bytes:
    """The SVG document, ASCII. Colour and width tell bandwidth and latency; every shape has its facts as a tooltip.

    Parallel links are one line with the sum of their bandwidths. Raises `UsageError` for a network that is too large.
    """
    if topology.num_nodes > MAX_NODES:
        raise _too_large(topology, f"{topology.num_nodes} nodes are more than {MAX_NODES}")
    places = regular_places(topology) if topology.dimensions else irregular_places(topology)
    places = np.round(places - places.min(axis=0) + (_MARGIN, _MARGIN + _TITLE_HEIGHT), 1)
    lines = Lines.of(topology, places)
    if len(lines) > MAX_LINES:
        raise _too_large(topology, f"{len(lines)} lines are more than {MAX_LINES}")
    classes, number = _classes(lines)
    body = [*_paths(topology, lines, places, classes, number), *_nodes(topology, places)]
    return "\n".join([*_head(topology, places, classes), *body, "</svg>", ""]).encode(
        "ascii", "xmlcharrefreplace"
    )


def _too_large(topology: Topology, message: str) -> UsageError:
    cure = "draw a part of it, as in ?npus=0-63"
    return UsageError(
        f"topology {topology.name}: {message} in one picture", cure=cure, code="too-large-to-draw"
    )


def _classes(lines: Lines) -> tuple[list[_Class], list[int]]:
    """The classes by falling bandwidth, then latency; and the class of every line."""
    if not len(lines):
        return [], []
    keys = np.stack([-lines.bandwidth_bytes_per_s, lines.latency_s])
    distinct, number = np.unique(keys, axis=1, return_inverse=True)
    links = (
        np.bincount(number.ravel(), lines.count * np.where(lines.is_arrow, 1, 2))
        .astype(int)
        .tolist()
    )
    fastest = -distinct[0, 0]
    classes = [
        _Class(
            -rate,
            latency,
            _COLOURS[index] if index < len(_COLOURS) else _OTHERS,
            1.0 + 3.0 * -rate / fastest,
            links[index],
        )
        for index, (rate, latency) in enumerate(distinct.T.tolist())
    ]
    return classes, number.ravel().tolist()


def _head(topology: Topology, places: Points, classes: list[_Class]) -> Iterator[str]:
    """The opening tag, the title and the legend below the picture."""
    shown = classes[: len(_COLOURS)] + classes[-1:] * (len(classes) > len(_COLOURS))
    rest = sum(one.links for one in classes[len(_COLOURS) :])
    texts = [
        one.text if index < len(_COLOURS) else f"slower classes: {rest} links"
        for index, one in enumerate(shown)
    ]
    bottom = float(places[:, 1].max()) + _MARGIN
    title = f"{_short(topology.name, 80)}: {topology.num_npus} NPUs"
    longest = max([len(title), *(len(text) + 6 for text in texts)])
    width = max(float(places[:, 0].max()) + _MARGIN, longest * _CHARACTER_WIDTH + 24)
    height = bottom + _LEGEND_HEIGHT * len(shown) + 12
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    yield f"<title>{_text(topology.name)}</title><style>{_STYLE}</style>"
    yield f'<rect width="100%" height="100%" style="stroke:none"/><text x="12" y="20">{_text(title)}</text>'
    yield '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="9" markerHeight="9" orient="auto"'
    yield ' markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8z" style="fill:#333"/></marker></defs>'
    for row, (one, text) in enumerate(zip(shown, texts, strict=True)):
        y = bottom + _LEGEND_HEIGHT * row
        yield f'<path d="M12 {y:.1f}h30" stroke="{one.colour}" stroke-width="{one.width:.1f}"/>'
        yield f'<text x="50" y="{y + 4:.1f}">{_text(text)}</text>'


def _paths(
    topology: Topology, lines: Lines, places: Points, classes: list[_Class], number: list[int]
) -> Iterator[str]:
    for row in range(len(lines)):
        source, destination = int(lines.source[row]), int(lines.destination[row])
        one, is_arrow = classes[number[row]], bool(lines.is_arrow[row])
        start, end = places[source], places[destination]
        control = lines.control[row]
        if is_arrow:
            end = _before(end, control if lines.bend[row] else start)
        middle = f"Q{control[0]:.1f} {control[1]:.1f} " if lines.bend[row] else "L"
        facts = f"{topology.node_name(source)} {'->' if is_arrow else '<->'} {topology.node_name(destination)}: "
        facts += f"{format_bandwidth(one.bandwidth_bytes_per_s)}, {format_time(round(one.latency_s * 1e9, 6))}"
        yield (
            f'<path d="M{start[0]:.1f} {start[1]:.1f}{middle}{end[0]:.1f} {end[1]:.1f}" stroke="{one.colour}"'
            f' stroke-width="{one.width:.1f}"{_ARROW if is_arrow else ""}><title>{_text(facts)}</title></path>'
        )


_ARROW = ' marker-end="url(#arrow)"'
_RADIUS = 14.0


def _before(end: Points, towards: Points) -> Points:
    """The point at the rim of a node, on the way from `towards`."""
    way = end - towards
    rim: Points = end - way / max(float(np.hypot(*way)), 1e-9) * _RADIUS
    return rim


def _nodes(topology: Topology, places: Points) -> Iterator[str]:
    for node, (x, y) in enumerate(places.tolist()):
        name = topology.node_name(node)
        label = _text(_label(name))
        if node < topology.num_npus and len(name) <= 3:
            shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS:.0f}"/>'
        else:
            width = min(len(name), _LABEL_LENGTH) * 6.2 + 12
            shape = f'<rect x="{x - width / 2:.1f}" y="{y - 11:.1f}" width="{width:.1f}" height="22" rx="4"/>'
        kind = "n" if node < topology.num_npus else "n s"
        yield f'<g class="{kind}">{shape}<text x="{x:.1f}" y="{y + 4:.1f}">{label}</text><title>{_text(name)}</title></g>'


def _label(name: str) -> str:
    """A name that fits into its shape: of a long one, the two ends, which tell most."""
    is_long = len(name) > _LABEL_LENGTH
    return f"{name[: _LABEL_LENGTH - 5]}\N{HORIZONTAL ELLIPSIS}{name[-4:]}" if is_long else name


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}\N{HORIZONTAL ELLIPSIS}"


def _text(text: str) -> str:
    """Names are not to be trusted: markup is escaped, and what XML cannot hold is replaced."""
    return escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text))
