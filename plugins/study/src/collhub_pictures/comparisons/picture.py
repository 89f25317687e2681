"""The picture of a comparison: bandwidth over size, both logarithmic, as an SVG document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collhub_pictures.comparisons.curves import Curve, curves_of, winners
from collhub_pictures.comparisons.label_places import label_places
from collhub_pictures.comparisons.scales import LogScale, size_scale, value_scale
from collhub_pictures.networks.svg_text import label, shortened, svg_text
from hub_core.model import format_bandwidth, format_bytes
from hub_core.plugin_api import ReportRequest

_LEFT, _TOP, _PLOT_WIDTH, _LEAST_HEIGHT = 92.0, 52.0, 640.0, 420.0
_BELOW = 72.0
_LABEL_GAP = 17.0
_LEADER, _SAMPLE = 36.0, 26.0
_CHARACTER_WIDTH = 6.8
_TITLE_CHARACTER_WIDTH = 8.6
_STYLE = (
    "text{font:12px sans-serif;fill:#222}"
    ".t{font-size:15px;font-weight:bold}"
    ".x{text-anchor:middle}.y{text-anchor:end}"
    ".g{stroke:#ddd;stroke-width:1}.l{stroke:#aaa;stroke-width:.8;fill:none}"
    ".c{fill:none;stroke-width:1.8;stroke-linejoin:round}"
)
_CAPTION = "filled: the fastest at this size"
_BOUND_CAPTION = "black, dashed: the bound, which no algorithm exceeds"


@dataclass(frozen=True, slots=True)
class _Plot:
    """Curves, the axes that they stand on, and the pixel of every label."""

    request: ReportRequest
    curves: Sequence[Curve]
    sizes: LogScale
    bandwidths: LogScale
    labels: Sequence[float]

    @property
    def right(self) -> float:
        """Where labels begin."""
        return self.sizes.end + _LEADER

    @property
    def bottom(self) -> float:
        """The lower end of the area of the curves."""
        return self.bandwidths.start


def draw(request: ReportRequest) -> bytes:
    """The SVG document, ASCII, the same bytes for the same numbers.

    A label beside the end of every curve tells name and bandwidth at the largest size. Colours can
    be told apart with any colour vision; marker and dash differ as well. Every point has its
    numbers as a tooltip. Raises `UsageError` where there is nothing to draw.
    """
    plot = _plot(request)
    fastest = winners(request.series, len(request.sizes))
    body = [*_head(plot), *_axes(plot)]
    # The bound lies behind all, the fastest on top.
    bounds = [curve for curve in plot.curves if curve.is_bound]
    others = [curve for curve in plot.curves if not curve.is_bound]
    for curve in (*bounds, *reversed(others)):
        body += _curve(plot, curve, fastest)
    body += _labels(plot)
    return "\n".join([*body, "</svg>", ""]).encode("ascii", "xmlcharrefreplace")


def _plot(request: ReportRequest) -> _Plot:
    curves = curves_of(request)
    height = max(_LEAST_HEIGHT, _LABEL_GAP * len(curves))
    sizes = size_scale(request.sizes, _LEFT, _LEFT + _PLOT_WIDTH)
    values = [value for curve in curves for value in curve.values]
    bandwidths = value_scale(values, _TOP + height, _TOP)
    curves.sort(key=lambda curve: bandwidths.place(curve.values[-1]))
    wanted = [bandwidths.place(curve.values[-1]) for curve in curves]
    labels = label_places(wanted, _LABEL_GAP, _TOP, _TOP + height)
    return _Plot(request, curves, sizes, bandwidths, labels)


def _head(plot: _Plot) -> Iterator[str]:
    """The opening tag, the title above, and what explains the looks below."""
    title = shortened(plot.request.title, 90)
    longest = max(len(_label(plot, curve)) for curve in plot.curves)
    width = plot.right + _SAMPLE + 8 + longest * _CHARACTER_WIDTH + 12
    width = max(width, len(title) * _TITLE_CHARACTER_WIDTH + 24)
    height = plot.bottom + _BELOW
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>'
    yield f"<title>{svg_text(plot.request.title)}</title><style>{_STYLE}</style>"
    yield '<rect width="100%" height="100%" fill="#fff"/>'
    yield f'<text class="t" x="12" y="24">{svg_text(title)}</text>'
    has_bound = any(curve.is_bound for curve in plot.curves)
    caption = f"{_CAPTION}; {_BOUND_CAPTION}" if has_bound else _CAPTION
    yield f'<text x="{_LEFT:.1f}" y="{height - 12:.1f}">{caption}</text>'


def _axes(plot: _Plot) -> Iterator[str]:
    """Grid lines with their values, and the names of the axes."""
    left, right, top, bottom = _LEFT, plot.sizes.end, _TOP, plot.bottom
    for value in plot.bandwidths.ticks:
        y = plot.bandwidths.place(value)
        yield f'<path class="g" d="M{left:.1f} {y:.1f}H{right:.1f}"/>'
        text = svg_text(format_bandwidth(value))
        yield f'<text class="y" x="{left - 8:.1f}" y="{y + 4:.1f}">{text}</text>'
    for value in plot.sizes.ticks:
        x = plot.sizes.place(value)
        yield f'<path class="g" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>'
        text = svg_text(format_bytes(value))
        yield f'<text class="x" x="{x:.1f}" y="{bottom + 18:.1f}">{text}</text>'
    middle = (left + right) / 2
    yield f'<text class="x" x="{middle:.1f}" y="{bottom + 38:.1f}">size of the full buffer</text>'
    turned = f'transform="translate(16 {(top + bottom) / 2:.1f}) rotate(-90)"'
    yield f'<text class="x" {turned}>bus bandwidth</text>'


def _curve(plot: _Plot, curve: Curve, fastest: Sequence[str]) -> Iterator[str]:
    """A line through all points, interrupted where an algorithm has none, and its markers."""
    dash = f' stroke-dasharray="{curve.look.dash}"' if curve.look.dash else ""
    colour = f'stroke="{curve.look.colour}"'
    yield f'<path class="c" {colour}{dash} d="{_course(plot, curve)}"/>'
    name = curve.series.name
    if curve.is_bound:
        return
    points = zip(plot.request.sizes, curve.series.bandwidths, fastest, strict=True)
    for size, value, winner in points:
        if value is None:
            continue
        fill = curve.look.colour if winner == name else "#fff"
        at = f"translate({plot.sizes.place(size):.1f} {plot.bandwidths.place(value):.1f})"
        tooltip = svg_text(f"{name}, {format_bytes(size)}: {format_bandwidth(value)}")
        shape = f'<path d="{curve.look.marker}" transform="{at}" {colour} fill="{fill}"'
        yield f"{shape}><title>{tooltip}</title></path>"


def _course(plot: _Plot, curve: Curve) -> str:
    """The way of a line as SVG path data, with a new beginning behind every gap."""
    course, is_drawing = "", False
    for size, value in zip(plot.request.sizes, curve.series.bandwidths, strict=True):
        if value is not None:
            at = f"{plot.sizes.place(size):.1f} {plot.bandwidths.place(value):.1f}"
            course += f"L{at}" if is_drawing else f"M{at}"
        is_drawing = value is not None
    return course


def _labels(plot: _Plot) -> Iterator[str]:
    """Beside every curve its look, its name and its last bandwidth, with a line to its end."""
    for curve, y in zip(plot.curves, plot.labels, strict=True):
        if curve.series.bandwidths[-1] is not None:
            start = plot.bandwidths.place(curve.values[-1])
            way = f"M{plot.sizes.end + 8:.1f} {start:.1f}L{plot.right - 4:.1f} {y:.1f}"
            yield f'<path class="l" d="{way}"/>'
        dash = f' stroke-dasharray="{curve.look.dash}"' if curve.look.dash else ""
        colour = f'stroke="{curve.look.colour}"'
        sample = f"M{plot.right:.1f} {y:.1f}h{_SAMPLE:.0f}"
        yield f'<path class="c" {colour}{dash} d="{sample}"/>'
        if not curve.is_bound:
            at = f"translate({plot.right + _SAMPLE / 2:.1f} {y:.1f})"
            yield f'<path d="{curve.look.marker}" transform="{at}" {colour} fill="#fff"/>'
        text = svg_text(_label(plot, curve))
        yield f'<text x="{plot.right + _SAMPLE + 8:.1f}" y="{y + 4:.1f}">{text}</text>'


def _label(plot: _Plot, curve: Curve) -> str:
    """`ring, 20.3 GB/s`: the bandwidth at the largest size, or that it has none there."""
    last = curve.series.bandwidths[-1]
    told = "not at the largest size" if last is None else format_bandwidth(last)
    return f"{label(curve.series.name)}, {told}"
