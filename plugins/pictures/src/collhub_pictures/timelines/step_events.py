"""The steps of a run as slices on their tracks, with an arrow for every message."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
from collhub_columns import Int64Array

from collhub_pictures.timelines.message_arrows import arrows_of
from collhub_pictures.timelines.run_times import RunTimes, ShownTimes
from collhub_pictures.timelines.trace_events import (
    TraceEvent,
    microseconds,
    named_process,
    named_thread,
    time_of,
)
from collhub_pictures.timelines.tracks import TRACKS, tracks_of
from hub_core.model import StepKind

_NAMES = {
    StepKind.SEND: "send to {}",
    StepKind.RECV: "receive from {}",
    StepKind.RECV_REDUCE: "receive and reduce from {}",
    StepKind.COPY: "copy",
    StepKind.REDUCE: "reduce",
    StepKind.COMPUTE: "compute",
}
# Columns that slices tell, and the least value that says something.
_STATED = (("channel", "channel", 1), ("lane", "lane", 0), ("line", "source_line", 0))


def step_events(run: RunTimes, sizes: Int64Array) -> Iterator[TraceEvent]:
    """All events in the order of time, names first; `sizes`: bytes per row."""
    shown = ShownTimes.of(run)
    track = tracks_of(run, shown)
    yield from _names(run, track)
    slices = _slices(run, shown, track, sizes)
    starts, ends = arrows_of(run, shown, track)
    yield from heapq.merge(slices, starts, ends, key=time_of)


def _names(run: RunTimes, track: Int64Array) -> Iterator[TraceEvent]:
    """Names and order of processes (ranks) and threads (tracks)."""
    for rank in range(run.steps.num_ranks):
        yield from named_process(rank, f"rank {rank}")
    ranks = run.steps.rank[run.rows].astype(np.int64)
    used = np.unique(np.stack([ranks, track[run.rows]]), axis=1)
    for rank, thread in used.T.tolist():
        number, kind = divmod(thread, len(TRACKS))
        name = TRACKS[kind]
        if number:
            name = f"{name} {number + 1}"
        # All sends stand above all receives, and these above local work.
        order = kind * len(run.rows) + number
        yield from named_thread(rank, thread, name, order)


def _slices(
    run: RunTimes, shown: ShownTimes, track: Int64Array, sizes: Int64Array
) -> Iterator[TraceEvent]:
    """A slice a step that started, by beginning."""
    steps = run.steps
    order = run.rows[np.argsort(shown.begin[run.rows], kind="stable")]
    columns = (steps.rank, steps.kind, steps.peer, track, shown.begin, run.end)
    # As lists: taking single numbers out of arrays would take most of the time.
    values = [column[order].tolist() for column in columns]
    for row, rank, kind, peer, thread, begin, end in zip(order.tolist(), *values, strict=True):
        yield {
            "ph": "X",
            "name": _NAMES[StepKind(kind)].format(peer),
            "cat": TRACKS[thread % len(TRACKS)],
            "pid": rank,
            "tid": thread,
            "ts": microseconds(begin),
            "dur": microseconds(end - begin),
            "args": _arguments(run, shown, row, int(sizes[row])),
        }


def _arguments(
    run: RunTimes, shown: ShownTimes, row: int, size: int
) -> dict[str, str | int | float]:
    """What is known of a step, but its name and times."""
    steps = run.steps
    known: dict[str, str | int | float] = {"step": steps.step_of(row), "bytes": size}
    for name, column, least in _STATED:
        value = int(getattr(steps, column)[row])
        if value >= least:
            known[name] = value
    waited = int(shown.begin[row] - run.start[row])
    if waited:
        known["waited_us"] = microseconds(waited)
    if run.is_endless[row]:
        known["ends"] = "never"
    return known
