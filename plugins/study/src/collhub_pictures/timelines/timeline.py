"""When every row of a run took place, as a Chrome trace for Perfetto and chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collhub_pictures.timelines.load_counters import load_events
from collhub_pictures.timelines.row_events import row_events
from collhub_pictures.timelines.run_times import RunTimes
from collhub_pictures.timelines.subjects import Subject
from collhub_pictures.timelines.trace_events import document_of
from hub_core.columns import Int64Array

# More than that the programs that show traces do not take in a reasonable time.
MAX_RANKS = 1000
MAX_EVENTS = 200_000


@dataclass(frozen=True, slots=True)
class Timeline:
    """A trace: the bytes of one JSON document in pieces, to be taken once.

    `is_summary`: whether it only tells sums.
    """

    content: Iterator[bytes]
    is_summary: bool


def timeline(subject: Subject, start_ns: Int64Array, end_ns: Int64Array) -> Timeline:
    """A process for every rank, with tracks for what it does.

    An arrow for every message. `start_ns`, `end_ns`: int64 per row of the table, -1 where a row
    never started (it is left out) or never ended (it lasts to the end). A receive is shown from
    when its message was sent, a collective of a job from when its last member began; how long it
    had waited until then is an argument of it. Rows of one rank that overlap lie on tracks of their
    own. Beyond `MAX_RANKS` ranks or `MAX_EVENTS` events: for groups of ranks, how many rows run at
    a time, as counters, and no arrows. Raises `InputError` for times of another table.
    """
    run = RunTimes.of(subject, start_ns, end_ns)
    if subject.table.num_ranks > MAX_RANKS or run.num_events() > MAX_EVENTS:
        return Timeline(document_of(load_events(run)), is_summary=True)
    return Timeline(document_of(row_events(run)), is_summary=False)
