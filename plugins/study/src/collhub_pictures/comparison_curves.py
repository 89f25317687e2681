"""Curves of a comparison: order, colours, logarithmic axes, and positions of the labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.model import UsageError
from hub_core.plugin_api import BandwidthComparison, BandwidthSeries

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


@dataclass(frozen=True, slots=True)
class CurveLook:
    """Colour, dash (as `stroke-dasharray`) and marker (as path data) of a line; empty: none."""

    colour: str
    dash: str
    marker: str


BOUND_LOOK = CurveLook("#000000", "6 4", "")


def get_look(index: int) -> CurveLook:
    """Return the look of the curve at this index (from 0) of the ranking.

    Colours and markers repeat cyclically; the dash changes after all colours.
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

    Series without values are omitted. Raises `UsageError` if no algorithm has a value.
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
    """Return the fastest series' name at each of `count` sizes; "" for a size without bandwidths.

    Of equal bandwidths the first series wins; a missing one counts as 0.
    """
    names = []
    for index in range(count):
        timed = [(row.bandwidths[index] or 0.0, row.name) for row in series]
        best, name = max(timed, key=lambda pair: pair[0], default=(0.0, ""))
        names.append(name if best else "")
    return names


# Axes of fewer decades also have grid lines at 2 and 5; on longer axes they would be too dense.
_DIVIDED_DECADES = 3
_MAX_TICKS = 11


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
        """Return the pixel of a positive value on the logarithmic scale from `start` to `end`.

        Values outside of minimum and maximum lie outside of the scale; if both are equal, every
        value is in the middle.
        """
        if self.minimum == self.maximum:
            return (self.start + self.end) / 2
        fraction = math.log(value / self.minimum) / math.log(self.maximum / self.minimum)
        return self.start + fraction * (self.end - self.start)


def create_size_scale(sizes: Sequence[int], start: float, end: float) -> LogScale:
    """Create the logarithmic axis of ascending sizes from pixel `start` to `end`; of more than
    `_MAX_TICKS` sizes, every n-th from the first one is labelled. Raises `IndexError` without
    sizes.
    """
    step = math.ceil(len(sizes) / _MAX_TICKS)
    ticks = tuple(float(size) for size in sizes[::step])
    return LogScale(float(sizes[0]), float(sizes[-1]), start, end, ticks)


def create_value_scale(values: Sequence[float], start: float, end: float) -> LogScale:
    """Create an axis that contains all values and starts and finishes at round numbers.

    These are 1, 2 and 5 times powers of ten if the values span fewer than `_DIVIDED_DECADES`
    decades, else powers of ten, and also the ticks. The values must be positive and not empty; the
    end is always above the start. `start` and `end` are pixels.
    """
    minimum, maximum = min(values), max(values)
    is_divided = math.log10(maximum / minimum) < _DIVIDED_DECADES
    candidates = _list_round_numbers(minimum, maximum, (1, 2, 5) if is_divided else (1,))
    first = max(value for value in candidates if value <= minimum)
    last = min(value for value in candidates if value >= maximum and value > first)
    ticks = tuple(value for value in candidates if first <= value <= last)
    return LogScale(first, last, start, end, ticks)


def _list_round_numbers(minimum: float, maximum: float, factors: Sequence[int]) -> list[float]:
    """Return factor * 10^k for all `factors`, by ascending k: from below the minimum to above the
    maximum, which must be positive.
    """
    decades = range(math.floor(math.log10(minimum)) - 1, math.ceil(math.log10(maximum)) + 2)
    # Powers with integer exponents, so that 1000 is not 999.9999.
    return [factor * 10.0**decade for decade in decades for factor in factors]


def place_labels(targets: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Return label positions near the ascending target pixels, with distances of at least `gap`.

    All positions are between `top` and `bottom` if the labels fit. Labels that would overlap form
    a block around the mean of their targets. This minimizes the sum of squared displacements (pool
    adjacent violators, as in isotonic regression; linear in the number of labels).
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
