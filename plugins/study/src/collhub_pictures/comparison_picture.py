"""The picture of a comparison: bandwidth over size, both logarithmic, as an SVG document.

Curves have colours, dashes and markers in a fixed order; their labels do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from collhub_drawing.node_shapes import escape_svg_text, label, truncate

from hub_core.model import UsageError, format_bandwidth, format_bytes
from hub_core.plugin_api import (
    Artifact,
    BandwidthComparison,
    BandwidthSeries,
    NoOptions,
    WriteResult,
)

_LEFT, _TOP, _PLOT_WIDTH, _MIN_HEIGHT = 92.0, 52.0, 640.0, 420.0
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
_PAGE_STYLE = (
    "body{font:14px sans-serif;color:#222;margin:2em}"
    "svg{max-width:100%;height:auto}"
    "div{overflow-x:auto}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "caption{text-align:left;padding:.5em 0}"
    "td,th{padding:.25em .7em;border-bottom:1px solid #ddd;white-space:nowrap}"
    "td{text-align:right}th{text-align:right}"
    "th[scope=row]{text-align:left;position:sticky;left:0;background:#fff}"
    "td.w{font-weight:bold;background:#e3f1ea}"
)
_TABLE_CAPTION = (
    "Bus bandwidth by size of the full buffer, as nccl-tests define it; the fastest in bold."
)
# Okabe and Ito's colours without the black, which is the bound's (Color Universal Design, 2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("", "9 3", "2 3", "9 3 2 3")
# SVG path data, centred at the origin. Six colours and seven markers give 42 distinct pairs.
_MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.5 -3.5h7v7h-7z",
    "M0 -4.6L4.4 3.4H-4.4z",
    "M0 -5L5 0L0 5L-5 0z",
    "M0 4.6L4.4 -3.4H-4.4z",
    "M-4 -4H4L-4 4H4z",
    "M-4 -4V4L4 -4V4z",
)
# Axes of fewer decades also have grid lines at 2 and 5; on longer axes they would be too dense.
_DIVIDED_DECADES = 3
_MAX_TICKS = 11


@dataclass(frozen=True, slots=True)
class _Plot:
    """Curves, both axes, and the vertical pixel of every label."""

    request: BandwidthComparison
    curves: Sequence[Curve]
    sizes: LogScale
    bandwidths: LogScale
    labels: Sequence[float]

    @property
    def right(self) -> float:
        """Horizontal pixel at which the labels begin, to the right of the curves."""
        return self.sizes.end + _LEADER

    @property
    def bottom(self) -> float:
        """Vertical pixel of the lower end of the area of the curves."""
        return self.bandwidths.start


def draw(request: BandwidthComparison) -> bytes:
    """Draw the comparison as an ASCII SVG document; equal numbers give equal bytes.

    A label has the name of the curve and its bandwidth at the largest size. Without one it has
    `not at the largest size`. Curves differ in colour (for any colour vision) and dash. A curve is
    interrupted at sizes without a bandwidth (None).

    Each algorithm has markers of its own shape, with its numbers as a tooltip. At each size, the
    marker of the fastest algorithm is filled, of equal ones the first in the request. The bound has
    no markers.

    A series, also the bound, is omitted if it has no bandwidth above 0. Raises `UsageError`
    (`nothing-to-draw`) if no algorithm remains. Not checked: sizes must be above 0, and a series
    that is drawn must have no bandwidth of 0.
    """
    curves = build_curves(request)
    height = max(_MIN_HEIGHT, _LABEL_GAP * len(curves))
    sizes = create_size_scale(request.sizes, _LEFT, _LEFT + _PLOT_WIDTH)
    values = [value for curve in curves for value in curve.values]
    bandwidths = create_value_scale(values, _TOP + height, _TOP)
    # From top to bottom, as their labels.
    curves.sort(key=lambda curve: bandwidths.to_pixel(curve.values[-1]))
    targets = [bandwidths.to_pixel(curve.values[-1]) for curve in curves]
    labels = place_labels(targets, _LABEL_GAP, _TOP, _TOP + height)
    plot = _Plot(request, curves, sizes, bandwidths, labels)
    fastest = find_winners(request.series, len(request.sizes))
    body = [*_write_head(plot), *_write_axes(plot)]
    # SVG paints in document order: the bound first, the fastest algorithm last.
    bounds = [curve for curve in plot.curves if curve.is_bound]
    algorithms = [curve for curve in plot.curves if not curve.is_bound]
    for curve in (*bounds, *reversed(algorithms)):
        body += _write_curve(plot, curve, fastest)
    body += _write_labels(plot)
    return "\n".join([*body, "</svg>", ""]).encode("ascii", "xmlcharrefreplace")


def _write_head(plot: _Plot) -> Iterator[str]:
    """Yield the first SVG elements of the picture: opening tag, titles, background and caption.

    In this order: the `<svg>` tag, the complete title (for readers of the document) with the
    style, a white background, the visible title and the caption. The visible title is cut to 90
    characters, the last of which is an ellipsis. The caption is at the lower edge. It explains
    filled markers and, if there is a bound, its line.

    The picture is as wide as the longest label next to the curves or the visible title needs,
    estimated by the number of characters. Its height is that of the plot with the axes. Titles
    are escaped. Raises `ValueError` without curves.
    """
    title = truncate(plot.request.title, 90)
    longest = max(len(_format_label(plot, curve)) for curve in plot.curves)
    width = plot.right + _SAMPLE + 8 + longest * _CHARACTER_WIDTH + 12
    width = max(width, len(title) * _TITLE_CHARACTER_WIDTH + 24)
    height = plot.bottom + _BELOW
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>'
    yield f"<title>{escape_svg_text(plot.request.title)}</title><style>{_STYLE}</style>"
    yield '<rect width="100%" height="100%" fill="#fff"/>'
    yield f'<text class="t" x="12" y="24">{escape_svg_text(title)}</text>'
    has_bound = any(curve.is_bound for curve in plot.curves)
    caption = f"{_CAPTION}; {_BOUND_CAPTION}" if has_bound else _CAPTION
    yield f'<text x="{_LEFT:.1f}" y="{height - 12:.1f}">{caption}</text>'


def _write_axes(plot: _Plot) -> Iterator[str]:
    """Yield the grid lines with their values, then the names of the axes, as SVG elements.

    For each tick of the bandwidths, ascending: a horizontal line, then its value to the left of
    the plot, such as `10 GB/s`. For each tick of the sizes, ascending: a vertical line, then
    its value below the plot, such as `16 KiB`. Last are the names `size of the full buffer`
    below and `bus bandwidth`, rotated, on the left.
    """
    left, right, top, bottom = _LEFT, plot.sizes.end, _TOP, plot.bottom
    for value in plot.bandwidths.ticks:
        y = plot.bandwidths.to_pixel(value)
        yield f'<path class="g" d="M{left:.1f} {y:.1f}H{right:.1f}"/>'
        text = escape_svg_text(format_bandwidth(value))
        yield f'<text class="y" x="{left - 8:.1f}" y="{y + 4:.1f}">{text}</text>'
    for value in plot.sizes.ticks:
        x = plot.sizes.to_pixel(value)
        yield f'<path class="g" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>'
        text = escape_svg_text(format_bytes(value))
        yield f'<text class="x" x="{x:.1f}" y="{bottom + 18:.1f}">{text}</text>'
    middle = (left + right) / 2
    yield f'<text class="x" x="{middle:.1f}" y="{bottom + 38:.1f}">size of the full buffer</text>'
    rotation = f'transform="translate(16 {(top + bottom) / 2:.1f}) rotate(-90)"'
    yield f'<text class="x" {rotation}>bus bandwidth</text>'


def _write_curve(plot: _Plot, curve: Curve, fastest: Sequence[str]) -> Iterator[str]:
    """Yield the SVG elements of a curve: first its line, then one marker per size with a value.

    The line is interrupted at sizes without a value; it is empty if no size has one. A curve that
    is the bound has only the line. A marker is filled if the curve is the one in `fastest`, which
    has the name of the winner at each size; otherwise it is white. A tooltip on each marker has
    name, size and bandwidth.
    """
    dash = f' stroke-dasharray="{curve.look.dash}"' if curve.look.dash else ""
    colour = f'stroke="{curve.look.colour}"'
    course, is_drawing = "", False
    for size, value in zip(plot.request.sizes, curve.series.bandwidths, strict=True):
        if value is not None:
            at = f"{plot.sizes.to_pixel(size):.1f} {plot.bandwidths.to_pixel(value):.1f}"
            course += f"L{at}" if is_drawing else f"M{at}"
        is_drawing = value is not None
    yield f'<path class="c" {colour}{dash} d="{course}"/>'
    name = curve.series.name
    if curve.is_bound:
        return
    points = zip(plot.request.sizes, curve.series.bandwidths, fastest, strict=True)
    for size, value, winner in points:
        if value is None:
            continue
        fill = curve.look.colour if winner == name else "#fff"
        at = f"translate({plot.sizes.to_pixel(size):.1f} {plot.bandwidths.to_pixel(value):.1f})"
        tooltip = escape_svg_text(f"{name}, {format_bytes(size)}: {format_bandwidth(value)}")
        shape = f'<path d="{curve.look.marker}" transform="{at}" {colour} fill="{fill}"'
        yield f"{shape}><title>{tooltip}</title></path>"


def _write_labels(plot: _Plot) -> Iterator[str]:
    """Write a sample of every curve, its label, and a line to its last point, as SVG elements.

    Labels are to the right of the plot at the heights of `plot.labels`. The line is left out if the
    curve has no bandwidth at the last size; the bound has no marker.
    """
    for curve, y in zip(plot.curves, plot.labels, strict=True):
        if curve.series.bandwidths[-1] is not None:
            start = plot.bandwidths.to_pixel(curve.values[-1])
            leader = f"M{plot.sizes.end + 8:.1f} {start:.1f}L{plot.right - 4:.1f} {y:.1f}"
            yield f'<path class="l" d="{leader}"/>'
        dash = f' stroke-dasharray="{curve.look.dash}"' if curve.look.dash else ""
        colour = f'stroke="{curve.look.colour}"'
        sample = f"M{plot.right:.1f} {y:.1f}h{_SAMPLE:.0f}"
        yield f'<path class="c" {colour}{dash} d="{sample}"/>'
        if not curve.is_bound:
            at = f"translate({plot.right + _SAMPLE / 2:.1f} {y:.1f})"
            yield f'<path d="{curve.look.marker}" transform="{at}" {colour} fill="#fff"/>'
        text = escape_svg_text(_format_label(plot, curve))
        yield f'<text x="{plot.right + _SAMPLE + 8:.1f}" y="{y + 4:.1f}">{text}</text>'


def _format_label(plot: _Plot, curve: Curve) -> str:
    """Return the label of a curve: its shortened name, and its bandwidth at the largest size.

    For example `ring, 20.3 GB/s`; without that bandwidth `ring, not at the largest size`.
    The text is not escaped.
    """
    last = curve.series.bandwidths[-1]
    bandwidth = "not at the largest size" if last is None else format_bandwidth(last)
    return f"{label(curve.series.name)}, {bandwidth}"


def draw_page(request: BandwidthComparison) -> bytes:
    """Return the picture and a table of its numbers as an ASCII HTML document.

    The table has a header with the sizes in their order, then one row per algorithm, also without
    values, by descending bandwidth at the largest size, then at the next smaller one; equal rows
    keep their order. The bound, if there is one, is last. A missing value is `-`. At each size, the
    cell of the algorithm with the highest bandwidth above 0 is marked; of equal ones the first in
    the request. Cells of the bound are never marked. Names are escaped.

    Equal numbers give equal bytes. The page loads no other file and has no script. Raises
    `UsageError` if no algorithm has a bandwidth.
    """
    title = _escape_text(request.title)
    picture = draw(request).decode("ascii")
    sizes = "".join(
        f'<th scope="col">{_escape_text(format_bytes(size))}</th>' for size in request.sizes
    )
    rows = [f'<tr><th scope="row">algorithm</th>{sizes}</tr>']
    fastest = find_winners(request.series, len(request.sizes))
    for series in rank_series(request.series):
        rows.append(_format_row(series, [name == series.name for name in fastest]))
    if request.bound is not None:
        rows.append(_format_row(request.bound, [False] * len(request.sizes)))
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{_PAGE_STYLE}</style></head><body>",
        f"{picture.rstrip()}",
        f"<div><table><caption>{_TABLE_CAPTION}</caption>",
        *rows,
        "</table></div></body></html>",
        "",
    ]
    return "\n".join(lines).encode("ascii", "xmlcharrefreplace")


def _format_row(series: BandwidthSeries, is_fastest: list[bool]) -> str:
    cells = ""
    for value, wins in zip(series.bandwidths, is_fastest, strict=True):
        text = "-" if value is None else _escape_text(format_bandwidth(value))
        cells += f'<td class="w">{text}</td>' if wins else f"<td>{text}</td>"
    return f'<tr><th scope="row">{_escape_text(series.name)}</th>{cells}</tr>'


def _escape_text(text: str) -> str:
    """Escape the markup of an untrusted name and replace characters that are not printable."""
    return escape(
        "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
    )


def write_picture(request: BandwidthComparison, options: NoOptions) -> WriteResult:
    """Return one SVG file with the picture of a comparison, as in `draw`.

    The picture is drawn during the call, and the artifact has an empty name (layout
    FILE). Raises `UsageError` (`nothing-to-draw`) if no algorithm has a bandwidth.
    """
    content = draw(request)
    return WriteResult([Artifact("", lambda: content)])


def write_page(request: BandwidthComparison, options: NoOptions) -> WriteResult:
    """Return one HTML file with the picture of a comparison and a table, as in `draw_page`.

    The page is created during the call, and the artifact has an empty name (layout FILE).
    Raises `UsageError` (`nothing-to-draw`) if no algorithm has a bandwidth.
    """
    content = draw_page(request)
    return WriteResult([Artifact("", lambda: content)])


@dataclass(frozen=True, slots=True)
class CurveLook:
    """Colour, dash (as `stroke-dasharray`) and marker (as path data) of a line; empty: none."""

    colour: str
    dash: str
    marker: str


BOUND_LOOK = CurveLook("#000000", "6 4", "")


def get_look(index: int) -> CurveLook:
    """Return the look of the curve at an index of the ranking, from 0.

    Colours (6) and markers (7) change with every index and repeat cyclically. The dash
    changes after every 6 curves, and also repeats.
    """
    colours = len(_COLOURS)
    dash = _DASHES[index // colours % len(_DASHES)]
    return CurveLook(_COLOURS[index % colours], dash, _MARKERS[index % len(_MARKERS)])


@dataclass(frozen=True, slots=True)
class Curve:
    """A series and its look."""

    series: BandwidthSeries
    look: CurveLook
    is_bound: bool = False

    @property
    def values(self) -> list[float]:
        """Bandwidths, in bytes per second, at the sizes that have one."""
        return [value for value in self.series.bandwidths if value is not None]


def build_curves(request: BandwidthComparison) -> list[Curve]:
    """Return the bound, then all algorithms, the fastest at the largest size first.

    Equal ones are ordered by the next smaller size, then as in the request. Series without values,
    or with 0 only, are omitted, also the bound. Raises `UsageError` (`nothing-to-draw`) if no
    algorithm has a value.
    """
    ranking = [series for series in rank_series(request.series) if any(series.bandwidths)]
    if not ranking:
        raise UsageError("no algorithm has a bandwidth to draw", code="nothing-to-draw")
    curves = [Curve(series, get_look(index)) for index, series in enumerate(ranking)]
    if request.bound is not None and any(request.bound.bandwidths):
        curves.insert(0, Curve(request.bound, BOUND_LOOK, is_bound=True))
    return curves


def rank_series(series: Sequence[BandwidthSeries]) -> list[BandwidthSeries]:
    """Sort by descending bandwidth at the largest size, then at the next smaller size; stable."""
    return sorted(series, key=lambda row: [-(value or 0.0) for value in reversed(row.bandwidths)])


def find_winners(series: Sequence[BandwidthSeries], count: int) -> list[str]:
    """Return the name of the fastest series at each of `count` sizes, in order of the sizes.

    The fastest series has the highest bandwidth; None counts as 0. Of equal bandwidths the first
    series wins. A size at which all bandwidths are 0 or None gets "", and so do all sizes without
    series. Raises `IndexError` if a series has fewer than `count` bandwidths.
    """
    names = []
    for index in range(count):
        timed = [(row.bandwidths[index] or 0.0, row.name) for row in series]
        best, name = max(timed, key=lambda pair: pair[0], default=(0.0, ""))
        names.append(name if best else "")
    return names


@dataclass(frozen=True, slots=True)
class LogScale:
    """A logarithmic axis from value `minimum` at pixel `start` to `maximum` at pixel `end`.

    `ticks`: the labelled values, ascending, within this range.
    """

    minimum: float
    maximum: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def to_pixel(self, value: float) -> float:
        """Return the pixel of a positive value: `start` for the minimum, `end` for the maximum.

        The pixel is linear in the logarithm of the value. It is not limited: values below the
        minimum or above the maximum give pixels outside `start` to `end`. If minimum and
        maximum are equal, every value is in the middle.
        """
        if self.minimum == self.maximum:
            return (self.start + self.end) / 2
        fraction = math.log(value / self.minimum) / math.log(self.maximum / self.minimum)
        return self.start + fraction * (self.end - self.start)


def create_size_scale(sizes: Sequence[int], start: float, end: float) -> LogScale:
    """Create the logarithmic axis from the first to the last of the ascending `sizes`.

    `start` and `end` are the pixels of these two sizes. Every n-th size from the first on
    is a tick, where n is the smallest number that gives at most `_MAX_TICKS` (11) ticks;
    so the last size need not be one. Raises `IndexError` without sizes.
    """
    step = math.ceil(len(sizes) / _MAX_TICKS)
    ticks = tuple(float(size) for size in sizes[::step])
    return LogScale(float(sizes[0]), float(sizes[-1]), start, end, ticks)


def create_value_scale(values: Sequence[float], start: float, end: float) -> LogScale:
    """Create a logarithmic axis from pixel `start` to `end` that contains all values.

    It begins at the largest round number that is not above the smallest value, and ends at the
    smallest one that is not below the largest value and above the begin. All round numbers in
    between are ticks: 1, 2 and 5 times powers of ten if the values span fewer than
    `_DIVIDED_DECADES` decades, otherwise powers of ten. The values must be positive and not empty.
    """
    minimum, maximum = min(values), max(values)
    is_divided = math.log10(maximum / minimum) < _DIVIDED_DECADES
    factors = (1, 2, 5) if is_divided else (1,)
    decades = range(math.floor(math.log10(minimum)) - 1, math.ceil(math.log10(maximum)) + 2)
    # Powers with integer exponents, so that 1000 is not 999.9999.
    candidates = [factor * 10.0**decade for decade in decades for factor in factors]
    first = max(value for value in candidates if value <= minimum)
    last = min(value for value in candidates if value >= maximum and value > first)
    ticks = tuple(value for value in candidates if first <= value <= last)
    return LogScale(first, last, start, end, ticks)


def place_labels(targets: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Return positions of labels near the ascending `targets`, at least `gap` pixels apart.

    There is one position per target, in the same order. If the labels fit between `top` and
    `bottom`, all positions are in this range. If they do not fit, the first label is at `top`, each
    further one is `gap` below the one before, and the last ones are below `bottom`. Labels that
    would overlap form a block around the mean of their targets, which minimizes the sum of squared
    displacements (pool adjacent violators, as in isotonic regression; linear in the number of
    labels).
    """
    blocks: list[tuple[float, int]] = []
    for number, target in enumerate(targets):
        # With all gaps subtracted, positions only have to be non-decreasing.
        total, count = target - number * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before, members = blocks.pop()
            total, count = total + before, count + members
        blocks.append((total, count))
    means = [total / count for total, count in blocks for _ in range(count)]
    last = max(top, bottom - (len(targets) - 1) * gap)
    return [min(max(mean, top), last) + number * gap for number, mean in enumerate(means)]
