"""Union of intervals of time per rank."""

from __future__ import annotations

import numpy as np

from hub_core.columns.groups import Int64Array, IntArray


class RankIntervals:
    """Union of intervals of every rank. All ranks are placed on one time axis."""

    def __init__(self, rank: IntArray, start: Int64Array, end: Int64Array, num_ranks: int) -> None:
        """Unite, for each rank, the intervals from `start[i]` to `end[i]` of rank `rank[i]`.

        `start`, `end`: int64, not negative. Overlapping and adjacent intervals of a rank become
        one. `num_ranks`: number of ranks; some may have no intervals. Cost: a sort of the
        intervals.
        """
        self._count = num_ranks
        self._last = int(end.max(initial=0))
        self._span = self._last + 1
        # The interval of a rank on the axis begins after the last possible end on the previous
        # rank.
        base = rank.astype(np.int64) * self._span
        moments = np.concatenate([base + start, base + end])
        steps = np.repeat(np.array([1, -1]), len(start))
        # At equal times, ends come first: only lengths count.
        order = np.lexsort((steps, moments))
        self._moments = np.concatenate([[0], moments[order]])
        depth = np.cumsum(steps[order])
        lengths = np.diff(self._moments, append=self._moments[-1])
        busy = np.concatenate([[0], depth > 0]) * lengths
        self._busy = busy
        self._before = np.cumsum(busy) - busy

    def within(self, rank: IntArray, start: Int64Array, end: Int64Array) -> Int64Array:
        """Return the covered time of a rank between two times, for each row: int64[rows].

        Overlapping intervals of a rank count once.
        """
        base = rank.astype(np.int64) * self._span
        start, end = np.minimum(start, self._last), np.minimum(end, self._last)
        return self._cover_before(base + end) - self._cover_before(base + start)

    def by_rank(self) -> tuple[int, ...]:
        """Return the total time of every rank that its intervals cover, in their unit.

        Overlapping intervals count once; 0 for a rank without intervals.
        """
        edges = self._cover_before(np.arange(self._count + 1) * self._span)
        return tuple(np.diff(edges).tolist())

    def _cover_before(self, moment: Int64Array) -> Int64Array:
        """Return the covered time before points of the common time axis, int64 per point.

        On this axis, the time of rank r is shifted by r times a span longer than the run, so that
        differences of two points of a rank are its covered time between them.
        """
        at = np.searchsorted(self._moments, moment, side="right") - 1
        # Within a busy interval, only the part before the point counts.
        since = np.minimum(moment - self._moments[at], self._busy[at])
        covered: Int64Array = self._before[at] + since
        return covered
