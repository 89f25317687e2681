"""Assign intervals to tracks so that intervals of one track do not overlap.

Algorithm: first fit on intervals sorted by their start. It uses the minimum number of tracks,
because interval graphs are perfect: the number of colours is the maximum overlap. Cost: O(n t) for
n intervals and t tracks per group, at most `MAX_TRACKS`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_kernels import Kernel

from hub_core.columns import Int64Array

MAX_TRACKS = 256
"""Intervals beyond this overlap go to the track that is free first, where they may overlap."""


class _Intervals(NamedTuple):
    """Intervals sorted by group, then start; `slot` is the result, `free_at` is by slot."""

    group: Int64Array
    begin: Int64Array
    end: Int64Array
    slot: Int64Array
    free_at: Int64Array


def assign_slots(group: Int64Array, begin: Int64Array, end: Int64Array) -> Int64Array:
    """Return the number of a track, from 0, for every interval: int64, the lowest that is free.

    The input is sorted by group, then `begin`; groups are consecutive runs of equal numbers. An
    interval that ends exactly when another one begins has freed its track.
    """
    count = len(group)
    slot = np.zeros(count, np.int64)
    free_at = np.zeros(MAX_TRACKS, np.int64)
    group, begin, end = (np.ascontiguousarray(column, np.int64) for column in (group, begin, end))
    _kernel(_Intervals(group, begin, end, slot, free_at), events=count)
    return slot


def _fill_slots(intervals: _Intervals) -> int:
    """Write the slot of every interval; return the number of intervals that overlap on their track.

    Intervals are sorted by group. Each takes the lowest slot of its group that is free at its
    begin, or a new one. If all `len(free_at)` slots are occupied, it takes the slot that becomes
    free first (the lowest of equal ones) and counts as an overlap. Overwrites `slot` and `free_at`.
    """
    used = 0
    overlaps = 0
    for row in range(len(intervals.group)):
        if row == 0 or intervals.group[row] != intervals.group[row - 1]:
            used = 0
        begin = intervals.begin[row]
        chosen = 0
        while chosen < used and intervals.free_at[chosen] > begin:
            chosen += 1
        if chosen == used and used < len(intervals.free_at):
            used += 1
        elif chosen == used:
            overlaps += 1
            chosen = 0
            for other in range(1, used):
                if intervals.free_at[other] < intervals.free_at[chosen]:
                    chosen = other
        intervals.slot[row] = chosen
        intervals.free_at[chosen] = intervals.end[row]
    return overlaps


_kernel = Kernel(_fill_slots)
