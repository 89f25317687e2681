"""How lines look: by their class of bandwidth and latency, or by their load in a simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_pictures.networks.drawn_lines import DrawnLines
from collhub_pictures.networks.line_loads import LineLoad
from hub_core.columns import Float64Array
from hub_core.model import format_bandwidth, format_time

# Okabe and Ito's colours, which people with any colour vision can tell apart; grey for the classes
# beyond (Okabe and Ito, Color Universal Design, 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_OTHERS = "#999999"
# From light to dark, which any eye orders; grey where nothing was sent.
_UNUSED = "#bbbbbb"
LOAD_COLOURS = ("#fed976", "#fd8d3c", "#e31a1c", "#800026")

_THINNEST = 0.8
_THICKEST = 3.6
_FEW_LINES = 40


@dataclass(frozen=True, slots=True)
class LegendRow:
    """Lines that look alike: their `colour` as CSS has it, their `width` in pixels.

    `text`: what that means.
    """

    colour: str
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class LineLooks:
    """Colour and width of every line, and the legend."""

    colours: list[str]
    widths: list[float]
    legend: list[LegendRow]


def rate_and_latency(lines: DrawnLines, row: int) -> str:
    """`50 GB/s, 500 ns`."""
    # Rounded as the topology's own latencies are, so that decimal inputs come back exactly.
    latency_ns = round(float(lines.latency_s[row]) * 1e9, 6)
    rate = format_bandwidth(float(lines.bandwidth_bytes_per_s[row]))
    return f"{rate}, {format_time(latency_ns)}"


def looks_by_class(lines: DrawnLines) -> LineLooks:
    """Colours by the classes of bandwidth and latency, by falling bandwidth, then latency."""
    if not len(lines):
        return LineLooks([], [], [])
    keys = np.stack([-lines.bandwidth_bytes_per_s, lines.latency_s])
    _, first, number = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    # Some versions of numpy return it as a row.
    number = number.ravel()
    ways = np.where(lines.is_arrow, 1, 2)
    links = np.bincount(number, lines.count * ways).astype(int).tolist()
    widths = _widths(lines)
    named = len(COLOURS)
    rows = [
        LegendRow(colour, float(widths[row]), f"{rate_and_latency(lines, row)}: {_counted(count)}")
        for colour, row, count in zip(COLOURS, first.tolist(), links, strict=False)
    ]
    if others := sum(links[named:]):
        rows.append(
            LegendRow(_OTHERS, float(widths[first[-1]]), f"slower classes: {_counted(others)}")
        )
    colours = [COLOURS[index] if index < named else _OTHERS for index in number.tolist()]
    return LineLooks(colours, widths.tolist(), rows)


def looks_by_load(lines: DrawnLines, loads: Sequence[LineLoad], whole: str) -> LineLooks:
    """Colours by the share of the time that the busier way of a line is busy.

    `whole`: what the share is of, for the legend.
    """
    quarters = len(LOAD_COLOURS)
    classes = [_quarter(load.busy) for load in loads]
    widths = _widths(lines)
    rows = []
    for quarter in range(quarters - 1, -1, -1):
        low, high = 100 * quarter // quarters, 100 * (quarter + 1) // quarters
        if count := classes.count(quarter):
            text = f"busy {low} to {high} % of {whole}: {_counted(count, 'line')}"
            rows.append(LegendRow(LOAD_COLOURS[quarter], _THICKEST, text))
    if count := classes.count(-1):
        rows.append(LegendRow(_UNUSED, _THICKEST, f"unused: {_counted(count, 'line')}"))
    colours = [_UNUSED if index < 0 else LOAD_COLOURS[index] for index in classes]
    return LineLooks(colours, widths.tolist(), rows)


def _quarter(busy: float | None) -> int:
    """Which quarter a share lies in, each with its upper end; -1 for none."""
    if busy is None:
        return -1
    quarters = len(LOAD_COLOURS)
    return min(max(math.ceil(busy * quarters) - 1, 0), quarters - 1)


def _widths(lines: DrawnLines) -> Float64Array:
    """Width of every line by its bandwidth, in pixels, float64."""
    if not len(lines):
        return np.zeros(0)
    # Many lines are thin, so that they can be told apart.
    thickest = max(_THICKEST * min(1.0, (_FEW_LINES / len(lines)) ** 0.5), 2 * _THINNEST)
    share = lines.bandwidth_bytes_per_s / lines.bandwidth_bytes_per_s.max()
    widths: Float64Array = _THINNEST + (thickest - _THINNEST) * share
    return widths


def _counted(count: int, noun: str = "link") -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"
