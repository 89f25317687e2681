"""Timelines of runs as Chrome traces for Perfetto and chrome://tracing.

Source: "Trace Event Format" of the Chromium project. Phases used here: M (metadata), X (complete
events), s and f (ends of a flow, drawn as an arrow), C (counters). Times are microseconds.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from collhub_drawing.subjects import (
    AlgorithmSteps,
    JobNodes,
    RunTimes,
    ShownTimes,
    TimelineSubject,
    assign_slots,
)

from hub_core.columns import Float64Array, Int64Array
from hub_core.model import UsageError, format_ranks
from hub_core.plugin_api import (
    Artifact,
    JobTimeline,
    NoOptions,
    RunExcerpt,
    RunTimeline,
    WriteResult,
)


def write(timeline: RunTimeline, options: NoOptions) -> WriteResult:
    """Return one file with the timeline of an algorithm's run, in Trace Event format (JSON).

    A note follows if the timeline is only a summary (`build_timeline`). The content is
    created while it is written; the name of the artifact has no addition. Raise `UsageError`
    if the run has no times of steps, or for an excerpt that is invalid or has no steps.
    Raise `InputError` (`step-times`) if the times do not fit the steps.
    """
    steps = AlgorithmSteps(timeline.algorithm, timeline.collective_bytes)
    return _write_timeline(timeline, steps)


def write_job(timeline: JobTimeline, options: NoOptions) -> WriteResult:
    """Write the timeline of a job's nodes, with a note if it is only a summary.

    Raises `UsageError` if the run has no times of nodes.
    """
    return _write_timeline(timeline, JobNodes(timeline.workload))


def _write_timeline(timeline: RunTimeline | JobTimeline, subject: TimelineSubject) -> WriteResult:
    start, end = timeline.step_start_ns, timeline.step_end_ns
    if start is None or end is None:
        raise UsageError(
            f"the run gives no times of {subject.noun}s",
            cure="leave out --timeline, or choose another program for the run",
        )
    trace = build_timeline(subject, start, end, timeline.excerpt)
    artifact = Artifact("", lambda: b"".join(trace.content))
    notes = []
    if trace.is_summary:
        rows = f"{subject.noun}s"
        summary = f"shows how many {rows} run at a time in groups of ranks, not the {rows}"
        notes.append(f"{summary}: more than {MAX_RANKS} ranks or {MAX_EVENTS} events")
    return WriteResult([artifact], notes=notes)


TraceEvent = dict[str, "str | int | float | dict[str, str | int | float]"]

# Larger traces are shown as summaries, because trace viewers load them too slowly.
MAX_RANKS = 1000
MAX_EVENTS = 200_000
_EVENTS_PER_PIECE = 4096


@dataclass(frozen=True, slots=True)
class TimelineDocument:
    """A trace: the bytes of one JSON document in pieces; `content` can be consumed once.

    `is_summary`: it contains counters of running rows instead of the rows.
    """

    content: Iterator[bytes]
    is_summary: bool


def build_timeline(
    subject: TimelineSubject,
    start_ns: Int64Array,
    end_ns: Int64Array,
    excerpt: RunExcerpt | None = None,
) -> TimelineDocument:
    """Build a trace of a run in Trace Event format.

    `start_ns`, `end_ns`: int64 per row of the table, -1 if a row never started (it is omitted) or
    never finished (it is shown to the end of the run). The trace has a process per rank, tracks per
    kind of row, and an arrow per message. A receive is shown from the send of its message on, a
    collective of a job from the start of its last member on; the time waited before is an argument
    of the slice. Overlapping rows of a rank are on separate tracks.

    Above `MAX_RANKS` ranks or `MAX_EVENTS` events the trace is a summary: counters of the running
    rows per group of ranks. With an `excerpt` that selects a part of the run, all rows of that part
    are in the trace, however many. Raises `InputError` if the times do not fit the table, and
    `UsageError` for an excerpt without rows.
    """
    run = RunTimes.of(subject, start_ns, end_ns)
    if excerpt is not None and not excerpt.is_all:
        return TimelineDocument(
            write_document(create_row_events(run.within(excerpt))), is_summary=False
        )
    if subject.table.num_ranks > MAX_RANKS or run.num_events() > MAX_EVENTS:
        return TimelineDocument(write_document(create_load_events(run)), is_summary=True)
    return TimelineDocument(write_document(create_row_events(run)), is_summary=False)


def write_document(events: Iterator[TraceEvent]) -> Iterator[bytes]:
    """Yield the JSON document in Trace Event format, in pieces of at most 4096 events.

    There is one event per line, in ASCII. Events are taken from the iterator only when a piece is
    requested. Without events the document is valid too.
    """
    yield b'{"displayTimeUnit": "ns", "traceEvents": [\n'
    separator = ""
    while True:
        piece = list(itertools.islice(events, _EVENTS_PER_PIECE))
        if not piece:
            break
        lines = ",\n".join(map(json.dumps, piece))
        yield (separator + lines).encode("ascii")
        separator = ",\n"
    yield b"\n]}\n"


def name_process(process: int, name: str) -> Iterator[TraceEvent]:
    """Yield the metadata of a process of the timeline: its name, then its sort index.

    The sort index is the number of the process, so that viewers list processes by number.
    """
    # The format attaches metadata of a process to thread 0, even if that thread does not exist.
    yield _metadata("process_name", process, 0, {"name": name})
    order = process
    yield _metadata("process_sort_index", process, 0, {"sort_index": order})


def name_thread(process: int, thread: int, name: str, order: int) -> Iterator[TraceEvent]:
    """Yield the metadata events of a thread: its name, and its sort index within the process.

    `order`: the sort index.
    """
    yield _metadata("thread_name", process, thread, {"name": name})
    yield _metadata("thread_sort_index", process, thread, {"sort_index": order})


def to_microseconds(nanoseconds: int) -> float:
    """Convert ns to us, the unit of Chrome traces."""
    return nanoseconds / 1000


def get_time(event: TraceEvent) -> float:
    """Return the time (`ts`) of an event in us, as a sort key.

    Raises `KeyError` for metadata events, which have no time.
    """
    time = event["ts"]
    assert isinstance(time, int | float)
    return time


def _metadata(
    name: str, process: int, thread: int, arguments: dict[str, str | int | float]
) -> TraceEvent:
    return {
        "ph": "M",
        "name": name,
        "pid": process,
        "tid": thread,
        "args": arguments,
    }


def assign_tracks(run: RunTimes, shown: ShownTimes) -> Int64Array:
    """Choose a thread of the trace for every row, so that rows on one thread do not overlap: int64.

    Rows of a rank that overlap and are of one kind of track get parallel tracks of this
    kind, each the lowest one that is free at the begin of the row. With n kinds, the k-th
    parallel track of kind c is thread n * k + c, both from 0. Rows that begin exactly when
    another ends share its track. Above `MAX_TRACKS` (256) parallel tracks, rows overlap.
    Rows that are not in `run.rows` have -1: they did not start or are not in the excerpt.
    """
    subject = run.subject
    sorts = len(subject.tracks)
    rank = subject.table.rank[run.rows].astype(np.int64)
    group = rank * sorts + subject.track[run.rows]
    begin, end = shown.begin[run.rows], run.end[run.rows]
    order = np.lexsort((run.rows, end, begin, group))
    slots = assign_slots(group[order], begin[order], end[order])
    track = np.full(len(subject.table), -1, np.int64)
    track[run.rows[order]] = slots * sorts + group[order] % sorts
    return track


# Phases of an arrow's two ends. `bp` binds the end to the enclosing slice instead of the next one.
_START = {"ph": "s"}
_FINISH = {"ph": "f", "bp": "e"}


def create_arrows(
    run: RunTimes, shown: ShownTimes, track: Int64Array
) -> tuple[Iterator[TraceEvent], Iterator[TraceEvent]]:
    """Return the events of the starts and of the ends of all arrows, each sorted by time.

    There is an arrow for every message of `shown`, whose send and receive both started. It
    begins at the start of the send, and ends in the middle of the receive as it is shown.
    Both ends have the row of the send as id. `track`: thread of every row.
    """
    # The arrow ends in the middle of the receive, so that its end is always inside the slice.
    middle = (shown.begin[shown.receive] + run.end[shown.receive]) // 2
    sent = run.start[shown.send]
    starts = _create_arrow_ends(run, track, shown.send, shown.send, sent, _START)
    finishes = _create_arrow_ends(run, track, shown.send, shown.receive, middle, _FINISH)
    return starts, finishes


def _create_arrow_ends(
    run: RunTimes,
    track: Int64Array,
    ids: Int64Array,
    rows: Int64Array,
    time: Int64Array,
    head: dict[str, str],
) -> Iterator[TraceEvent]:
    """Yield the events of one end of every arrow (message), sorted by time.

    Events with equal times are in the order of the arrows. `ids`, `rows`, `time`: int64, one entry
    per arrow: the number that both ends share, the row of this end, and its time in ns. `head`: the
    fields that distinguish starts from ends, such as the phase; they come first.

    An event has the category and name `message`. Its process is the rank of the row, its thread is
    `track[row]`, and its time is in us.
    """
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
            "ts": to_microseconds(when),
        }


def create_row_events(run: RunTimes) -> Iterator[TraceEvent]:
    """Yield the names of processes and threads, then all slices and arrows sorted by time.

    At equal times, slices come first, then starts of arrows, then their ends. Process r is `rank
    r`, also without rows. Then come the threads that started rows use, by rank, then by thread
    (`assign_tracks`). With n kinds of track, thread n * k + c is the parallel track k of kind c,
    both from 0; its name is that of the kind, from k = 1 on with k + 1, for example `send 2`. Sort
    indices order the threads of a rank by kind, then by k.
    """
    shown = ShownTimes.of(run)
    track = assign_tracks(run, shown)
    table, tracks = run.subject.table, run.subject.tracks
    for rank in range(table.num_ranks):
        yield from name_process(rank, f"rank {rank}")
    ranks = table.rank[run.rows].astype(np.int64)
    used = np.unique(np.stack([ranks, track[run.rows]]), axis=1)
    for rank, thread in used.T.tolist():
        number, sort = divmod(thread, len(tracks))
        name = f"{tracks[sort]} {number + 1}" if number else tracks[sort]
        # All tracks of one sort are adjacent.
        order = sort * len(run.rows) + number
        yield from name_thread(rank, thread, name, order)
    slices = _create_slices(run, shown, track)
    starts, finishes = create_arrows(run, shown, track)
    yield from heapq.merge(slices, starts, finishes, key=get_time)


def _create_slices(run: RunTimes, shown: ShownTimes, track: Int64Array) -> Iterator[TraceEvent]:
    """Yield a slice for every row that started, sorted by shown start, then by row.

    A slice begins at `shown.begin`. It ends at the end of the row, or at the end of the run for a
    row that never ended. Times are in us. Name and arguments are the `name` and `facts` of the
    subject for the row. The process is the rank of the row, the thread is `track[row]`. The
    category is the entry `track[row]` modulo n of the n `tracks` of the subject.

    Two arguments are added: `waited_us`, the time from the row's start to `shown.begin`, if it is
    not 0; and `ends` with the text `never` for a row without an end.
    """
    subject = run.subject
    order = run.rows[np.argsort(shown.begin[run.rows], kind="stable")]
    columns = (subject.table.rank, track, shown.begin, run.end)
    # Lists, because reading single numbers from arrays would dominate the time.
    values = [column[order].tolist() for column in columns]
    for row, rank, thread, begin, end in zip(order.tolist(), *values, strict=True):
        arguments = run.subject.facts(row)
        waited_ns = int(shown.begin[row] - run.start[row])
        if waited_ns:
            arguments["waited_us"] = to_microseconds(waited_ns)
        if run.is_endless[row]:
            arguments["ends"] = "never"
        yield {
            "ph": "X",
            "name": subject.name(row),
            "cat": subject.tracks[thread % len(subject.tracks)],
            "pid": rank,
            "tid": thread,
            "ts": to_microseconds(begin),
            "dur": to_microseconds(end - begin),
            "args": arguments,
        }


_GROUPS = 100
_INTERVALS = 500


def create_load_events(run: RunTimes) -> Iterator[TraceEvent]:
    """Yield counter events of a trace: how many rows run at once, by time and group of ranks.

    Groups are at most 100 sets of consecutive ranks with sizes that differ by at most 1. Each is
    one process of the trace, numbered from 0. The events are in this order, with times in us:

    1. The name of each group.
    2. For each interval of the run, one counter per group at the interval's start. It has the mean
       number of running rows by kind of track, rounded to three decimal places.
    3. For each group, a counter of zeros at the end of the run.

    The run is 0 to `run.last` (at least 1 ns), in at most 500 nearly equal intervals of 1 ns or
    more. A row runs from start to end, also while it waits; without an end, to the end of the run.
    Rows that did not start are not counted.
    """
    subject = run.subject
    num_ranks = subject.table.num_ranks
    groups = min(num_ranks, _GROUPS)
    members = np.array_split(np.arange(num_ranks), groups)
    end = max(run.last, 1)
    borders = np.linspace(0, end, min(_INTERVALS, end) + 1)
    # Distinct borders, so that no interval of a short run is empty.
    edges = np.unique(borders.astype(np.int64))
    busy = np.stack([_count_running(run, ranks, edges) for ranks in members])
    for group, ranks in enumerate(members):
        name = f"ranks {format_ranks(ranks.tolist())}"
        if len(ranks) == 1:
            name = f"rank {int(ranks[0])}"
        yield from name_process(group, name)
    # Counters are zero after the last interval.
    silent = np.zeros((groups, len(subject.tracks), 1))
    levels = np.concatenate([busy, silent], axis=2)
    for interval, edge in enumerate(edges.tolist()):
        for group in range(groups):
            values = zip(subject.tracks, levels[group, :, interval].tolist(), strict=True)
            yield {
                "ph": "C",
                "name": f"{subject.noun}s that run",
                "pid": group,
                "tid": 0,
                "ts": to_microseconds(edge),
                "args": {track: round(level, 3) for track, level in values},
            }


def _count_running(run: RunTimes, ranks: Int64Array, edges: Int64Array) -> Float64Array:
    """Return the mean number of rows that run at once, by kind of track: float64[kinds, intervals].

    `ranks`: at least one rank, ascending without gaps; their rows are added up. `edges`: strictly
    ascending times in ns; interval i is from `edges[i]` to `edges[i + 1]`. A row that runs during
    half of an interval adds 0.5 there. Only `run.rows` (rows that started) are counted. A row runs
    from its start, also while it waits, to its end; a row that never ended runs to the end of the
    run.
    """
    # The time that all rows run before an edge is the sum of the times since their starts minus
    # the sum of the times since their ends. Cost: two sorts of the rows.
    subject = run.subject
    indptr = subject.table.rank_indptr
    first, last = np.searchsorted(run.rows, indptr[[ranks[0], ranks[-1] + 1]])
    group_rows = run.rows[first:last]
    kinds = subject.track[group_rows]
    busy = np.zeros((len(subject.tracks), len(edges) - 1))
    for track in range(len(subject.tracks)):
        chosen = group_rows[kinds == track]
        spent = _sum_elapsed(run.start[chosen], edges) - _sum_elapsed(run.end[chosen], edges)
        busy[track] = np.diff(spent) / np.diff(edges)
    return busy


def _sum_elapsed(times: Int64Array, edges: Int64Array) -> Float64Array:
    """Return for every edge how much time has passed since all earlier `times`, in total: float64.

    It is the sum of edge - time over all times before the edge, 0 if there are none. `times` need
    not be sorted.
    """
    ordered = np.sort(times).astype(np.float64)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    before = np.searchsorted(ordered, edges)
    edge_sums = before * edges.astype(np.float64)
    elapsed: Float64Array = edge_sums - total[before]
    return elapsed
