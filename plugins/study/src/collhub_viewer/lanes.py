"""Order of the steps of a page: lanes of concurrent rows per rank, with waits as steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_drawing.subjects import RunTimes, ShownTimes
from collhub_drawing.tracks import assign_slots

from hub_core.columns import BoolArray, Int64Array, run_mask
from hub_core.plugin_api import RunExcerpt

MAX_STEPS = 5_000_000
"""Steps of one run beyond which later ones are omitted, because browsers draw them too slowly."""


@dataclass(frozen=True, slots=True)
class LanedSteps:
    """Steps sorted by lane, then start; int64 arrays of equal length.

    `row`: row of the table, also for a wait, whose row is the step that waits. `is_wait`: bool.
    `first`: first step of each lane, with the end; `lane_rank`, `lane_sort`: rank and sort of each
    lane. `position`: step of every row of the table, -1 for rows that are not shown. `omitted`:
    number of rows beyond `MAX_STEPS`; `until`: time in ns from which they are omitted.
    """

    row: Int64Array
    is_wait: BoolArray
    start: Int64Array
    end: Int64Array
    first: Int64Array
    lane_rank: Int64Array
    lane_sort: Int64Array
    position: Int64Array
    omitted: int
    until: int

    @property
    def lane(self) -> Int64Array:
        """Lane of every step."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


def arrange_steps(
    run: RunTimes, sort: Int64Array, excerpt: RunExcerpt, max_steps: int = MAX_STEPS
) -> LanedSteps:
    """Arrange the rows of a run in lanes; concurrent rows of a rank and sort get further lanes.

    `sort`: int64 per row, such as its kind or thread block. A receive begins when its message is
    sent, a collective when its last member begins; the time from its own start until then, as far
    as its lane is free, becomes a wait. Raises `UsageError` if nothing would be shown.
    """
    begin = ShownTimes.of(run).begin
    rank = run.subject.table.rank.astype(np.int64)
    rows = run.within(excerpt).rows
    rows, omitted, until = _limit_steps(rows, run.start, begin, max_steps)
    group = rank[rows] * (int(sort.max(initial=0)) + 1) + sort[rows]
    order = np.lexsort((rows, run.end[rows], begin[rows], group))
    rows, group = rows[order], group[order]
    slot = assign_slots(group, begin[rows], run.end[rows])
    # Stable: rows of one lane stay in the order of their starts.
    order = np.lexsort((slot, group))
    rows, group, slot = rows[order], group[order], slot[order]
    is_first = run_mask(group, slot)
    # A wait lasts from the start of its row, or the end of the row before, until the row begins.
    lane_free = np.zeros(len(rows), np.int64)
    lane_free[1:] = np.where(is_first[1:], 0, run.end[rows[:-1]])
    waits_from = np.maximum(run.start[rows], lane_free)
    has_wait = waits_from < begin[rows]
    place = np.arange(len(rows)) + np.cumsum(has_wait)
    total = len(rows) + int(has_wait.sum())
    is_wait = np.ones(total, np.bool_)
    is_wait[place] = False
    row = np.empty(total, np.int64)
    start, end = np.empty(total, np.int64), np.empty(total, np.int64)
    row[place], start[place], end[place] = rows, begin[rows], run.end[rows]
    waiting = place[has_wait] - 1
    row[waiting] = rows[has_wait]
    start[waiting], end[waiting] = waits_from[has_wait], begin[rows[has_wait]]
    position = np.full(len(rank), -1, np.int64)
    position[rows] = place
    firsts = np.flatnonzero(is_first)
    first = np.append(place[firsts] - has_wait[firsts], total)
    sorts = int(sort.max(initial=0)) + 1
    lane_rank, lane_sort = np.divmod(group[firsts], sorts)
    return LanedSteps(
        row, is_wait, start, end, first, lane_rank, lane_sort, position, omitted, until
    )


def _limit_steps(
    rows: Int64Array, start: Int64Array, begin: Int64Array, max_steps: int
) -> tuple[Int64Array, int, int]:
    """Return the rows that begin first, the number of others, and the start of the first other."""
    waits = np.count_nonzero(begin[rows] > start[rows])
    if len(rows) + waits <= max_steps:
        return rows, 0, 0
    order = np.argsort(begin[rows], kind="stable")
    steps = np.cumsum(1 + (begin[rows[order]] > start[rows[order]]))
    kept = int(np.searchsorted(steps, max_steps, side="right"))
    until = int(begin[rows[order[kept]]])
    return np.sort(rows[order[:kept]]), len(rows) - kept, until
