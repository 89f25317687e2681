"""The rows of a run as slices on their tracks, with an arrow for every message."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from collhub_pictures.timelines.message_arrows import arrows_of
from collhub_pictures.timelines.run_times import RunTimes, ShownTimes
from collhub_pictures.timelines.trace_events import (
    TraceEvent,
    microseconds,
    named_process,
    named_thread,
    time_of,
)
from collhub_pictures.timelines.tracks import tracks_of
from hub_core.columns import Int64Array


def row_events(run: RunTimes) -> Iterator[TraceEvent]:
    """All events in the order of time, names first."""
    shown = ShownTimes.of(run)
    track = tracks_of(run, shown)
    yield from _names(run, track)
    slices = _slices(run, shown, track)
    starts, ends = arrows_of(run, shown, track)
    yield from heapq.merge(slices, starts, ends, key=time_of)


def _names(run: RunTimes, track: Int64Array) -> Iterator[TraceEvent]:
    """Names and order of processes (ranks) and threads (tracks)."""
    table, tracks = run.subject.table, run.subject.tracks
    for rank in range(table.num_ranks):
        yield from named_process(rank, f"rank {rank}")
    ranks = table.rank[run.rows].astype(np.int64)
    used = np.unique(np.stack([ranks, track[run.rows]]), axis=1)
    for rank, thread in used.T.tolist():
        number, sort = divmod(thread, len(tracks))
        name = tracks[sort]
        if number:
            name = f"{name} {number + 1}"
        # All tracks of one sort stand together.
        order = sort * len(run.rows) + number
        yield from named_thread(rank, thread, name, order)


def _slices(run: RunTimes, shown: ShownTimes, track: Int64Array) -> Iterator[TraceEvent]:
    """A slice a row that started, by beginning."""
    subject = run.subject
    order = run.rows[np.argsort(shown.begin[run.rows], kind="stable")]
    columns = (subject.table.rank, track, shown.begin, run.end)
    # As lists: taking single numbers out of arrays would take most of the time.
    values = [column[order].tolist() for column in columns]
    for row, rank, thread, begin, end in zip(order.tolist(), *values, strict=True):
        yield {
            "ph": "X",
            "name": subject.name(row),
            "cat": subject.tracks[thread % len(subject.tracks)],
            "pid": rank,
            "tid": thread,
            "ts": microseconds(begin),
            "dur": microseconds(end - begin),
            "args": _arguments(run, shown, row),
        }


def _arguments(run: RunTimes, shown: ShownTimes, row: int) -> dict[str, str | int | float]:
    """What is known of a row, but its name and times."""
    known = run.subject.facts(row)
    waited = int(shown.begin[row] - run.start[row])
    if waited:
        known["waited_us"] = microseconds(waited)
    if run.is_endless[row]:
        known["ends"] = "never"
    return known
