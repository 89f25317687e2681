"""Runs that are too large for slices: how many rows run at a time, by groups of ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collhub_pictures.timelines.run_times import RunTimes
from collhub_pictures.timelines.subjects import Subject
from collhub_pictures.timelines.trace_events import TraceEvent, microseconds, named_process
from hub_core.columns import Float64Array, Int64Array
from hub_core.model import format_ranks

_GROUPS = 100
_INTERVALS = 500


def load_events(run: RunTimes) -> Iterator[TraceEvent]:
    """Counters of the rows that run at a time, on average in each of some hundred intervals.

    A process for every group of consecutive ranks.
    """
    num_ranks = run.subject.table.num_ranks
    groups = min(num_ranks, _GROUPS)
    members = np.array_split(np.arange(num_ranks), groups)
    edges = _edges(run.last)
    busy = np.stack([_busy(run, ranks, edges) for ranks in members])
    for group, ranks in enumerate(members):
        yield from named_process(group, _group_name(ranks))
    # After the last interval nothing runs.
    silent = np.zeros((groups, len(run.subject.tracks), 1))
    levels = np.concatenate([busy, silent], axis=2)
    for interval, edge in enumerate(edges.tolist()):
        for group in range(groups):
            yield _counter(run.subject, group, edge, levels[group, :, interval])


def _edges(last: int) -> Int64Array:
    """The borders of the intervals, whole nanoseconds, int64."""
    # Distinct, so that no interval of a short run is empty.
    end = max(last, 1)
    count = min(_INTERVALS, end)
    edges = np.linspace(0, end, count + 1)
    return np.unique(edges.astype(np.int64))


def _busy(run: RunTimes, ranks: Int64Array, edges: Int64Array) -> Float64Array:
    """Rows of consecutive ranks that run on average, float64[tracks, intervals]."""
    # By sums: the time that all rows spend before an edge is that since their starts, less that
    # since their ends. Cost: two sorts of the rows, whatever the number of intervals.
    subject = run.subject
    indptr = subject.table.rank_indptr
    first, last = np.searchsorted(run.rows, indptr[[ranks[0], ranks[-1] + 1]])
    own = run.rows[first:last]
    kinds = subject.track[own]
    busy = np.zeros((len(subject.tracks), len(edges) - 1))
    for track in range(len(subject.tracks)):
        chosen = own[kinds == track]
        spent = _elapsed(run.start[chosen], edges) - _elapsed(run.end[chosen], edges)
        busy[track] = np.diff(spent) / np.diff(edges)
    return busy


def _elapsed(times: Int64Array, edges: Int64Array) -> Float64Array:
    """For every edge the sum of what has passed since those of `times` that lie before it."""
    ordered = np.sort(times).astype(np.float64)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    before = np.searchsorted(ordered, edges)
    # Each of them adds the edge less its time.
    reached = before * edges.astype(np.float64)
    passed: Float64Array = reached - total[before]
    return passed


def _group_name(ranks: Int64Array) -> str:
    """`ranks 0-9`, or `rank 3` where each is a group of its own."""
    if len(ranks) == 1:
        return f"rank {int(ranks[0])}"
    return f"ranks {format_ranks(ranks.tolist())}"


def _counter(subject: Subject, group: int, time: int, levels: Float64Array) -> TraceEvent:
    """The levels of all tracks of a group from this time on."""
    values = zip(subject.tracks, levels.tolist(), strict=True)
    return {
        "ph": "C",
        "name": f"{subject.noun}s that run",
        "pid": group,
        "tid": 0,
        "ts": microseconds(time),
        "args": {name: round(level, 3) for name, level in values},
    }
