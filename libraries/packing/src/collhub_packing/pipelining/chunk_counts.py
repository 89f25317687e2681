"""How many chunks a pipelined schedule should have: by the form of its time, and by Blink's rule.

On links of latency alpha and bandwidth B, with q chunks for every unit of weight, the time of S
bytes is (d * q + f) * (alpha + S / (n * q * B)), where n / d is the rate of the trees and f the
steps that fill the pipeline. That is a + b * q + c / q, and least at
q = sqrt(c / b) = sqrt(f * S / (n * B) / (d * alpha)).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

TimeOfCount = Callable[[int], int]
"""Time of the schedule with so many chunks, in any unit."""

_SAMPLES = (1, 4, 16)
_RATIO = math.sqrt(2)
# More chunks must save so much: every chunk costs steps, which all who work on the algorithm pay.
_WORTH = 1e-3


def best_chunks(time: TimeOfCount, most: int) -> int:
    """The number of chunks, 1..`most`, of about the least `time(number)`.

    Of those that are a thousandth apart, the fewest. Starts where a fit of the form has its least
    value, and climbs from there in steps of sqrt(2), by `time` alone. Works for links that
    differ, since the coefficients are fitted. Calls: three small numbers, then about four large
    ones.
    """
    tried = {count: time(count) for count in _SAMPLES if count <= most}
    count = fitted_chunks(tried, most)
    tried.setdefault(count, time(count))
    for ratio in (_RATIO, 1 / _RATIO):
        _climb(time, tried, ratio, most)
    return _fewest_of_good(tried)


def _fewest_of_good(times: dict[int, int]) -> int:
    """The fewest chunks whose time is about the least."""
    good = min(times.values()) * (1 + _WORTH)
    counts = [count for count, value in times.items() if value <= good]
    return min(counts)


def _climb(time: TimeOfCount, tried: dict[int, int], ratio: float, most: int) -> None:
    """Go on from the best count in one direction while that helps."""
    while True:
        best = _best(tried)
        # Where rounding leads back to the same number, the climb ends.
        count = _within(best * ratio, most)
        if count in tried:
            return
        tried[count] = time(count)
        if tried[count] >= tried[best]:
            return


def _within(count: float, most: int) -> int:
    """The whole number next to a count, 1..`most`."""
    return min(max(round(count), 1), most)


def _best(times: dict[int, int]) -> int:
    """The count of the least time, the fewest of equals."""
    return min(times, key=lambda count: (times[count], count))


def fitted_chunks(times: dict[int, int], most: int) -> int:
    """The count, 1..`most`, at which a + b * q + c / q through three given times is least.

    The best given one for fewer than three.
    """
    if len(times) < 3:
        return _best(times)
    growth, share = _fit(times)
    # The form has no least value between: it only grows, or only falls.
    if share <= 0:
        return 1
    if growth <= 0:
        return most
    return _within(math.sqrt(share / growth), most)


def _fit(times: dict[int, int]) -> tuple[float, float]:
    """b and c of the form that comes nearest to the times."""
    counts = np.asarray(list(times), np.float64)
    values = np.asarray(list(times.values()), np.float64)
    form = np.stack([np.ones_like(counts), counts, 1 / counts], axis=1)
    solution, *_ = np.linalg.lstsq(form, values, rcond=None)
    return float(solution[1]), float(solution[2])


def by_multiplicative_increase(time: TimeOfCount, most: int) -> int:
    """The number of chunks by Blink's rule (Wang et al., MLSys 2020, section 4).

    From the smallest chunk on, double its size while that helps, then take the smallest size off
    again while that helps.
    """
    size, least = _by_doubling(time, most)
    # Additive decrease: the best size may lie between two doublings.
    while size > 1:
        smaller = time(_count(most, size - 1))
        if smaller >= least:
            break
        size, least = size - 1, smaller
    return _count(most, size)


def _by_doubling(time: TimeOfCount, most: int) -> tuple[int, int]:
    """The chunk size, in smallest ones, up to which doubling helps, and its time."""
    size, least = 1, time(most)
    while size < most:
        doubled = time(_count(most, 2 * size))
        if doubled >= least:
            break
        size, least = 2 * size, doubled
    return size, least


def _count(most: int, size: int) -> int:
    """Chunks of `size` times the smallest size, of which there would be `most`."""
    return max(most // size, 1)
