"""Arrows from sends to receives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collhub_pictures.timelines.run_times import RunTimes, ShownTimes
from collhub_pictures.timelines.trace_events import TraceEvent, microseconds
from hub_core.columns import Int64Array

# Where arrows begin, and where they end: `bp` binds the end to the slice around it, not the next.
_START = {"ph": "s"}
_FINISH = {"ph": "f", "bp": "e"}


def arrows_of(
    run: RunTimes, shown: ShownTimes, track: Int64Array
) -> tuple[Iterator[TraceEvent], Iterator[TraceEvent]]:
    """Both ends of the arrow of every message whose ends both started, each in order of time.

    Ids are row numbers of sends. `track`: the thread of every row.
    """
    # A message takes all of the time between both, on whatever links: one arrow tells that.
    # In the middle of the receive, so that the end is inside of its slice for sure.
    middle = (shown.begin[shown.receive] + run.end[shown.receive]) // 2
    sent = run.start[shown.send]
    starts = _ends(run, track, shown.send, shown.send, sent, _START)
    finishes = _ends(run, track, shown.send, shown.receive, middle, _FINISH)
    return starts, finishes


def _ends(
    run: RunTimes,
    track: Int64Array,
    ids: Int64Array,
    rows: Int64Array,
    time: Int64Array,
    head: dict[str, str],
) -> Iterator[TraceEvent]:
    """One end of every arrow: at the step of `rows`, at `time`; int64 columns of equal length."""
    order = np.argsort(time, kind="stable")
    at = rows[order]
    columns = (ids[order], run.subject.table.rank[at], track[at], time[order])
    values = [column.tolist() for column in columns]
    for number, rank, thread, when in zip(*values, strict=True):
        yield {
            **head,
            "id": number,
            "cat": "message",
            "name": "message",
            "pid": rank,
            "tid": thread,
            "ts": microseconds(when),
        }
