"""Choose the number of chunks of a pipelined schedule: by a fit of its time, or by Blink's rule.

On links of latency alpha and bandwidth B, with q chunks for every unit of weight, the time of S
bytes is (d * q + f) * (alpha + S / (n * q * B)), where n / d is the rate of the trees and f the
number of steps that fill the pipeline. This has the form a + b * q + c / q, with its minimum at q =
sqrt(c / b) = sqrt(f * S / (n * B) / (d * alpha)).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

TimeOfCount = Callable[[int], int]
"""Function that returns the time of the schedule with a given number of chunks, in any unit."""

_SAMPLE_COUNTS = (1, 4, 16)
_STEP_RATIO = math.sqrt(2)
# Relative gain that more chunks must bring: every chunk costs steps, which all users of the
# algorithm pay.
_MIN_RELATIVE_GAIN = 1e-3


def best_chunks(time: TimeOfCount, maximum: int) -> int:
    """Return a number of chunks from 1 to `maximum` with nearly the shortest time.

    `time`: returns the time for a number, in any unit; it must not be negative. `maximum`
    must be at least 1. The numbers are tried in this order:

    1. 1, 4 and 16, as far as they are at most `maximum`
    2. the minimum of a + b q + c / q, fitted to these times (`fitted_chunks`)
    3. larger ones: the best number so far times sqrt(2), rounded, at most `maximum`, until this
       number was tried already or does not shorten the time
    4. smaller ones: the best number so far divided by sqrt(2), rounded, in the same way

    The result is the smallest tried number whose time is at most 0.1 % above the shortest.
    """
    times = {count: time(count) for count in _SAMPLE_COUNTS if count <= maximum}
    count = fitted_chunks(times, maximum)
    times.setdefault(count, time(count))
    for ratio in (_STEP_RATIO, 1 / _STEP_RATIO):
        while True:
            best = _find_best(times)
            # Rounding may give a count that was tried already.
            count = _round_to_range(best * ratio, maximum)
            if count in times:
                break
            times[count] = time(count)
            if times[count] >= times[best]:
                break
    good_time = min(times.values()) * (1 + _MIN_RELATIVE_GAIN)
    return min(count for count, value in times.items() if value <= good_time)


def _round_to_range(count: float, maximum: int) -> int:
    """Round a count to the nearest integer in 1..`maximum`; halves go to the even number."""
    return min(max(round(count), 1), maximum)


def _find_best(times: dict[int, int]) -> int:
    """Return the chunk count with the minimum time; of equal times the smallest count.

    `times`: time by chunk count, not empty.
    """
    return min(times, key=lambda count: (times[count], count))


def fitted_chunks(times: dict[int, int], maximum: int) -> int:
    """Choose the number of chunks with the shortest time, by a fit of the times to a + b q + c / q.

    `times`: time by number of chunks q, in any unit, not empty. With fewer than three times the
    result is the number with the shortest time, the smallest of equal ones. Otherwise a, b and c
    are fitted by least squares. The result is 1 if c <= 0, else `maximum` if b <= 0. Otherwise it
    is sqrt(c / b), rounded (halves to the even number) and limited to 1..`maximum`.
    """
    if len(times) < 3:
        return _find_best(times)
    # Fit the form to the times by least squares.
    counts = np.asarray(list(times), np.float64)
    values = np.asarray(list(times.values()), np.float64)
    form = np.stack([np.ones_like(counts), counts, 1 / counts], axis=1)
    solution, *_ = np.linalg.lstsq(form, values, rcond=None)
    growth, share = float(solution[1]), float(solution[2])
    # Without a minimum in between, the time only grows or only falls with the count.
    if share <= 0:
        return 1
    if growth <= 0:
        return maximum
    return _round_to_range(math.sqrt(share / growth), maximum)


def by_multiplicative_increase(time: TimeOfCount, maximum: int) -> int:
    """Find the number of chunks by Blink's rule (Wang et al., MLSys 2020, section 4).

    A chunk of size s is s times as large as the smallest one. It gives max(`maximum` // s, 1)
    chunks. s starts at 1 and is doubled while that shortens `time(chunks)`, until s is at least
    `maximum`. Then s is reduced by 1 while that shortens the time. An equal time ends a phase, and
    its size is not used. `time` is called for every tried size, also if the number of chunks was
    tried before.
    """
    # Find the chunk size up to which doubling helps, in units of the smallest one, and its time.
    size, minimum = 1, time(maximum)
    while size < maximum:
        doubled = time(_count_chunks(maximum, 2 * size))
        if doubled >= minimum:
            break
        size, minimum = 2 * size, doubled
    # Additive decrease: the best size may be between two doublings.
    while size > 1:
        smaller = time(_count_chunks(maximum, size - 1))
        if smaller >= minimum:
            break
        size, minimum = size - 1, smaller
    return _count_chunks(maximum, size)


def _count_chunks(maximum: int, size: int) -> int:
    """Return `maximum // size`, at least 1: the number of chunks that are `size` times
    as large as the smallest ones, of which there are `maximum`.
    """
    return max(maximum // size, 1)
