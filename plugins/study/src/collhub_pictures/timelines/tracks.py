"""Tracks of a rank, one for each sort of row, and more where rows overlap."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from collhub_pictures.timelines.run_times import RunTimes, ShownTimes
from hub_core.columns import Int64Array


def tracks_of(run: RunTimes, shown: ShownTimes) -> Int64Array:
    """The thread id of every row, int64, -1 for those left out.

    The k-th track of sort c of n is n * k + c.
    """
    # First fit, which takes as few tracks as any choice does (intervals are a perfect graph: as
    # many colours as overlap at once): rows of one rank and sort by their beginning, each on the
    # lowest track that is free again. A heap holds the ends of the tracks in use, another one the
    # free tracks. Cost: a sort, and log tracks a step.
    subject = run.subject
    sorts = len(subject.tracks)
    rank = subject.table.rank[run.rows].astype(np.int64)
    group = rank * sorts + subject.track[run.rows]
    begin, end = shown.begin[run.rows], run.end[run.rows]
    order = np.lexsort((run.rows, end, begin, group))
    slots = np.fromiter(
        _first_fit(group[order].tolist(), begin[order].tolist(), end[order].tolist()),
        np.int64,
        len(order),
    )
    track = np.full(len(subject.table), -1, np.int64)
    track[run.rows[order]] = slots * sorts + group[order] % sorts
    return track


def _first_fit(groups: list[int], begins: list[int], ends: list[int]) -> Iterator[int]:
    """The slot of every interval within its group; groups one behind the other, by beginning."""
    current = -1
    count = 0
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for group, begin, end in zip(groups, begins, ends, strict=True):
        if group != current:
            current, count, busy, free = group, 0, [], []
        while busy and busy[0][0] <= begin:
            _, slot = heapq.heappop(busy)
            heapq.heappush(free, slot)
        if free:
            slot = heapq.heappop(free)
        else:
            slot, count = count, count + 1
        heapq.heappush(busy, (end, slot))
        yield slot
