"""When every step of a run started and ended, simulated or measured, as a Chrome trace that Perfetto and chrome://tracing show.

Format: "Trace Event Format" of the Chromium project; times in microseconds.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.model.algorithm import Algorithm, message_bytes
from hub_core.model.diagnostics import InputError
from hub_core.model.findings import Findings
from hub_core.model.kinds import StepKind
from hub_core.model.messages import match_messages
from hub_core.model.rank_lists import format_ranks
from hub_core.model.steps import StepTable

MAX_RANKS = 1000
MAX_EVENTS = 200_000
_SUMMARY_GROUPS = 100
_SUMMARY_INTERVALS = 500
_EVENTS_PER_CHUNK = 4096
_TRACKS = ("send", "receive", "compute")
_TRACK = {
    StepKind.SEND: 0,
    StepKind.RECV: 1,
    StepKind.RECV_REDUCE: 1,
    StepKind.COPY: 2,
    StepKind.REDUCE: 2,
    StepKind.COMPUTE: 2,
}
_NAMES = {
    StepKind.SEND: "send to {}",
    StepKind.RECV: "receive from {}",
    StepKind.RECV_REDUCE: "receive and reduce from {}",
    StepKind.COPY: "copy",
    StepKind.REDUCE: "reduce",
    StepKind.COMPUTE: "compute",
}

Int64Array = npt.NDArray[np.int64]
Event = dict[str, "str | int | float | dict[str, str | int | float]"]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A trace: the bytes of one JSON document in pieces (to be taken once), and whether it only tells sums."""

    content: Iterator[bytes]
    is_summary: bool


def timeline(
    algorithm: Algorithm, collective_bytes: int, start_ns: Int64Array, end_ns: Int64Array
) -> Timeline:
    """A process for every rank with tracks for sends, receives and local work, and an arrow for every message.

    `start_ns`, `end_ns`: int64 per row of the step table, -1 where a step never started (it is left out) or never
    ended (it lasts to the end). A receive is shown from when its message was sent; how long it had waited until then is an
    argument of it. Steps of one rank that overlap lie on tracks of their own. Beyond `MAX_RANKS` ranks
    or `MAX_EVENTS` events: for groups of ranks, how many steps run at a time, as counters, and no arrows.
    """
    steps = algorithm.steps
    if len(start_ns) != len(steps) or len(end_ns) != len(steps):
        raise InputError(
            f"{len(start_ns)} starts and {len(end_ns)} ends were given for {len(steps)} steps",
            code="step-times",
        )
    rows = np.flatnonzero(start_ns >= 0)
    last = max(int(end_ns.max(initial=0)), int(start_ns.max(initial=0)))
    end = np.where(end_ns < 0, last, np.maximum(end_ns, start_ns))
    # A slice a step, and an end of an arrow for every send and receive.
    events = len(rows) + int(np.count_nonzero((steps.sends | steps.receives)[rows]))
    if algorithm.num_ranks > MAX_RANKS or events > MAX_EVENTS:
        return Timeline(_document(_summary(steps, rows, start_ns, end, last)), is_summary=True)
    sizes = message_bytes(collective_bytes, algorithm.collective.unit_count, steps.count)
    return Timeline(
        _document(_details(_run(steps, rows, start_ns, end_ns, end), sizes)), is_summary=False
    )


def _document(events: Iterator[Event]) -> Iterator[bytes]:
    """The JSON document, some thousand events at a time, one a line."""
    yield b'{"displayTimeUnit": "ns", "traceEvents": [\n'
    separator = ""
    while chunk := list(itertools.islice(events, _EVENTS_PER_CHUNK)):
        yield (separator + ",\n".join(map(json.dumps, chunk))).encode("ascii")
        separator = ",\n"
    yield b"\n]}\n"


@dataclass(frozen=True, slots=True)
class _Run:
    """Times of the rows that started: `shown` is the start of a step, or of the message for which a receive waited."""

    steps: StepTable
    rows: Int64Array
    send: Int64Array
    receive: Int64Array
    start: Int64Array
    shown: Int64Array
    end: Int64Array
    is_endless: npt.NDArray[np.bool_]


def _run(
    steps: StepTable, rows: Int64Array, start: Int64Array, stated_end: Int64Array, end: Int64Array
) -> _Run:
    pairs = match_messages(steps, Findings())
    both = (start[pairs.send] >= 0) & (start[pairs.receive] >= 0)
    send, receive = pairs.send[both], pairs.receive[both]
    shown = start.copy()
    shown[receive] = np.clip(start[send], start[receive], end[receive])
    return _Run(steps, rows, send, receive, start, shown, end, stated_end < 0)


def _details(run: _Run, sizes: Int64Array) -> Iterator[Event]:
    track = _tracks(run)
    yield from _names(run.steps, run.rows, track)
    yield from heapq.merge(_slices(run, track, sizes), *_arrows(run, track), key=_time)


def _time(event: Event) -> float:
    time = event["ts"]
    assert isinstance(time, int | float)
    return time


def _micros(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _tracks(run: _Run) -> Int64Array:
    """The thread id of every row, -1 for those left out: k-th track of kind c is 3 * k + c, so that none overlap in one."""
    steps, rows = run.steps, run.rows
    group = steps.rank[rows].astype(np.int64) * len(_TRACKS) + _track_kinds(steps)[rows]
    order = np.lexsort((rows, run.end[rows], run.shown[rows], group))
    columns = (rows[order], group[order], run.shown[rows[order]], run.end[rows[order]])
    track = np.full(len(steps), -1, np.int64)
    current, count = -1, 0
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for row, own, begin, stop in zip(*(column.tolist() for column in columns), strict=True):
        if own != current:
            current, count, busy, free = own, 0, [], []
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        slot = heapq.heappop(free) if free else count
        count = max(count, slot + 1)
        heapq.heappush(busy, (stop, slot))
        track[row] = slot * len(_TRACKS) + own % len(_TRACKS)
    return track


def _track_kinds(steps: StepTable) -> Int64Array:
    """Index in `_TRACKS` of every row."""
    kinds: Int64Array = np.asarray([_TRACK[kind] for kind in StepKind], np.int64)[steps.kind]
    return kinds


def _names(steps: StepTable, rows: Int64Array, track: Int64Array) -> Iterator[Event]:
    """Names and order of processes and threads."""
    for rank in range(steps.num_ranks):
        yield {
            "ph": "M",
            "name": "process_name",
            "pid": rank,
            "tid": 0,
            "args": {"name": f"rank {rank}"},
        }
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": rank,
            "tid": 0,
            "args": {"sort_index": rank},
        }
    used = np.unique(np.stack([steps.rank[rows].astype(np.int64), track[rows]]), axis=1)
    for rank, thread in used.T.tolist():
        number, kind = divmod(thread, len(_TRACKS))
        name = _TRACKS[kind] + (f" {number + 1}" if number else "")
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": name}}
        # All sends stand above all receives, and these above local work.
        order = kind * len(rows) + number
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": rank,
            "tid": thread,
            "args": {"sort_index": order},
        }


def _slices(run: _Run, track: Int64Array, sizes: Int64Array) -> Iterator[Event]:
    steps, order = run.steps, run.rows[np.argsort(run.shown[run.rows], kind="stable")]
    whole = (steps.rank, steps.kind, steps.peer, track, run.shown, run.end)
    columns = (order, *(column[order] for column in whole))
    for row, rank, kind, peer, thread, begin, stop in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        yield {
            "ph": "X",
            "name": _NAMES[StepKind(kind)].format(peer),
            "cat": _TRACKS[thread % len(_TRACKS)],
            "pid": rank,
            "tid": thread,
            "ts": _micros(begin),
            "dur": _micros(stop - begin),
            "args": _arguments(run, row, int(sizes[row])),
        }


def _arguments(run: _Run, row: int, size: int) -> dict[str, str | int | float]:
    steps = run.steps
    known: dict[str, str | int | float] = {"step": steps.step_of(row), "bytes": size}
    stated = (
        ("channel", steps.channel, 1),
        ("lane", steps.lane, 0),
        ("line", steps.source_line, 0),
    )
    known |= {name: int(column[row]) for name, column, least in stated if column[row] >= least}
    if waited := int(run.shown[row] - run.start[row]):
        known["waited_us"] = _micros(waited)
    return known | ({"ends": "never"} if run.is_endless[row] else {})


def _arrows(run: _Run, track: Int64Array) -> Sequence[Iterator[Event]]:
    """Both ends of the arrow of every message whose steps both started, each in order of time; ids are row numbers of sends."""
    send, receive = run.send, run.receive
    middle = (run.shown[receive] + run.end[receive]) // 2
    return (
        _ends(run.steps, track, send, send, run.start[send], {"ph": "s"}),
        _ends(run.steps, track, send, receive, middle, {"ph": "f", "bp": "e"}),
    )


def _ends(
    steps: StepTable,
    track: Int64Array,
    ids: Int64Array,
    rows: Int64Array,
    time: Int64Array,
    head: dict[str, str],
) -> Iterator[Event]:
    order = np.argsort(time, kind="stable")
    columns = (ids[order], steps.rank[rows[order]], track[rows[order]], time[order])
    for number, rank, thread, when in zip(*(column.tolist() for column in columns), strict=True):
        yield {
            **head,
            "id": number,
            "cat": "message",
            "name": "message",
            "pid": rank,
            "tid": thread,
            "ts": _micros(when),
        }


def _summary(
    steps: StepTable, rows: Int64Array, start: Int64Array, end: Int64Array, last: int
) -> Iterator[Event]:
    """For groups of consecutive ranks, how many steps run at a time on average in each of some hundred intervals."""
    groups = min(steps.num_ranks, _SUMMARY_GROUPS)
    members = np.array_split(np.arange(steps.num_ranks), groups)
    edges = np.unique(
        np.linspace(0, max(last, 1), min(_SUMMARY_INTERVALS, max(last, 1)) + 1).astype(np.int64)
    )
    kinds = _track_kinds(steps)
    busy = np.zeros((groups, len(_TRACKS), len(edges) - 1))
    for group, ranks in enumerate(members):
        bounds = np.searchsorted(rows, steps.rank_indptr[[ranks[0], ranks[-1] + 1]])
        own = rows[slice(*bounds)]
        for track in range(len(_TRACKS)):
            chosen = own[kinds[own] == track]
            busy[group, track] = np.diff(
                _elapsed(start[chosen], edges) - _elapsed(end[chosen], edges)
            ) / np.diff(edges)
    for group, ranks in enumerate(members):
        name = (
            f"ranks {format_ranks(ranks.tolist())}" if len(ranks) > 1 else f"rank {int(ranks[0])}"
        )
        yield {"ph": "M", "name": "process_name", "pid": group, "tid": 0, "args": {"name": name}}
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": group,
            "tid": 0,
            "args": {"sort_index": group},
        }
    for interval, edge in enumerate(edges.tolist()):
        for group in range(groups):
            values = (
                busy[group, :, interval] if interval < len(edges) - 1 else np.zeros(len(_TRACKS))
            )
            args: dict[str, str | int | float] = {
                name: round(value, 3) for name, value in zip(_TRACKS, values.tolist(), strict=True)
            }
            yield {
                "ph": "C",
                "name": "steps that run",
                "pid": group,
                "tid": 0,
                "ts": _micros(edge),
                "args": args,
            }


def _elapsed(times: Int64Array, edges: Int64Array) -> npt.NDArray[np.float64]:
    """For every edge the sum of what has passed since those of `times` that lie before it."""
    ordered = np.sort(times).astype(np.float64)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    before = np.searchsorted(ordered, edges)
    passed: npt.NDArray[np.float64] = before * edges.astype(np.float64) - total[before]
    return passed
