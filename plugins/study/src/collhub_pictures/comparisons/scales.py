"""Logarithmic scales: where a value stands on an axis, and which values are written there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Of so many decades, each is divided by 2 and 5 as well; of more, no line would be apart.
_DIVIDED_DECADES = 3
_MOST_TICKS = 11


@dataclass(frozen=True, slots=True)
class LogScale:
    """A logarithmic axis: `least` stands at pixel `start`, `most` at pixel `end`.

    `ticks`: the values to write, ascending, within both.
    """

    least: float
    most: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """The pixel of a value."""
        if self.least == self.most:
            return (self.start + self.end) / 2
        share = math.log(value / self.least) / math.log(self.most / self.least)
        return self.start + share * (self.end - self.start)


def size_scale(sizes: Sequence[int], start: float, end: float) -> LogScale:
    """Sizes from the first to the last; where they are too many to write, every n-th is written."""
    step = math.ceil(len(sizes) / _MOST_TICKS)
    ticks = tuple(float(size) for size in sizes[::step])
    return LogScale(float(sizes[0]), float(sizes[-1]), start, end, ticks)


def value_scale(values: Sequence[float], start: float, end: float) -> LogScale:
    """Decades around all values, or parts of them, so that both ends are round numbers."""
    least, most = min(values), max(values)
    is_divided = math.log10(most / least) < _DIVIDED_DECADES
    candidates = _round_numbers(least, most, (1, 2, 5) if is_divided else (1,))
    first = max(value for value in candidates if value <= least)
    last = min(value for value in candidates if value >= most and value > first)
    ticks = tuple(value for value in candidates if first <= value <= last)
    return LogScale(first, last, start, end, ticks)


def _round_numbers(least: float, most: float, parts: Sequence[int]) -> list[float]:
    """These parts of every decade from below the least value to above the most."""
    decades = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    # Powers of whole numbers, so that 1000 is not 999.9999.
    return [part * 10.0**decade for decade in decades for part in parts]
