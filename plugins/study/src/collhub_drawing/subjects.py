"""Rows of a timeline (steps of an algorithm or nodes of a job), their times and their tracks.

Intervals of one track do not overlap. Algorithm: first fit on intervals sorted by their start. It
uses the minimum number of tracks, because interval graphs are perfect: the number of colours is the
maximum overlap. Cost: O(n t) for n intervals and t tracks per group, at most `MAX_TRACKS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from collhub_kernels import Kernel

from hub_core import job_partners
from hub_core.columns import BoolArray, Int64Array, RankTable
from hub_core.model import (
    Algorithm,
    InputError,
    JobCollective,
    NodeKind,
    StepKind,
    UsageError,
    Workload,
    format_time,
    matched_messages,
    message_bytes,
)
from hub_core.plugin_api import RunExcerpt

_Kind = TypeVar("_Kind", bound=IntEnum)
Facts = dict[str, str | int | float]

_STEP_NAMES = {
    StepKind.SEND: "send to {}",
    StepKind.RECV: "receive from {}",
    StepKind.RECV_REDUCE: "receive and reduce from {}",
    StepKind.COPY: "copy",
    StepKind.REDUCE: "reduce",
    StepKind.COMPUTE: "compute",
}
_STEP_TRACKS = {
    StepKind.SEND: 0,
    StepKind.RECV: 1,
    StepKind.RECV_REDUCE: 1,
    StepKind.COPY: 2,
    StepKind.REDUCE: 2,
    StepKind.COMPUTE: 2,
}
# Columns shown as arguments of slices: name, column, and minimum value that is shown.
_STEP_COLUMNS = (("channel", "channel", 1), ("lane", "lane", 0), ("line", "source_line", 0))
_NODE_TRACKS = {
    NodeKind.COLLECTIVE: 0,
    NodeKind.SEND: 1,
    NodeKind.RECV: 2,
    NodeKind.LOAD: 3,
    NodeKind.STORE: 3,
    NodeKind.COMPUTE: 4,
    NodeKind.MARKER: 4,
}
_NODE_COLUMNS = (("bytes", "bytes", 0), ("operations", "operations", 0), ("tag", "tag", 1))
MAX_TRACKS = 256
"""Intervals beyond this overlap go to the track that is free first, where they may overlap."""


class TimelineSubject(Protocol):
    """Table whose rows a timeline shows.

    `noun`: name of one row; `tracks`: names of a rank's tracks from top to bottom; `track`: int64
    per row, index of its track; `is_message`: bool per row, true for sends and receives.
    """

    @property
    def table(self) -> RankTable:
        """The table whose rows are drawn: steps or nodes of a job, grouped by rank."""

    @property
    def noun(self) -> str:
        """The name of one row, such as `step`."""

    @property
    def tracks(self) -> Sequence[str]:
        """Names of the tracks that every rank has."""

    @property
    def track(self) -> Int64Array:
        """Index in `tracks` of the track of every row, int64."""

    @property
    def is_message(self) -> BoolArray:
        """Whether each row is a send or a receive: bool[rows]."""

    def partners(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Return for every row the row whose start it waits for: a receive's send, else itself."""

    def name(self, row: int) -> str:
        """Return the name of the slice that shows a row."""

    def facts(self, row: int) -> Facts:
        """Return the arguments of a slice: data of the row without its name and times."""


class AlgorithmSteps:
    """Steps of an algorithm as a `TimelineSubject`, with a size in bytes of the full buffer."""

    noun = "step"
    tracks = ("send", "receive", "compute")

    def __init__(self, algorithm: Algorithm, collective_bytes: int) -> None:
        """Prepare the steps of an algorithm: their tracks, message flags and sizes in bytes.

        `collective_bytes`: size of the full buffer. The size of a step is the share of its units.
        The kind of a step determines its track; sends and receives are messages. Raises
        `InputError` (`size-range`) if all steps together have 2^63 bytes or more.
        """
        steps = self.table = algorithm.steps
        self.track: Int64Array = _list_tracks(_STEP_TRACKS)[steps.kind]
        self.is_message: BoolArray = steps.sends | steps.receives
        units = algorithm.collective.unit_count
        self.sizes = message_bytes(collective_bytes, units, steps.count)

    def partners(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Return for every receive the row of its send, for all other rows their own row: int64.

        A receive without a send has its own row too. The times `start` and `end` are not used.
        """
        pairs = matched_messages(self.table)
        partners = np.arange(len(self.table))
        partners[pairs.receive] = pairs.send
        return partners

    def name(self, row: int) -> str:
        """Return the kind of the step in a row, with its peer if the kind has one."""
        return _STEP_NAMES[StepKind(self.table.kind[row])].format(self.table.peer[row])

    def facts(self, row: int) -> Facts:
        """Return the step number, the bytes, and the other columns that the producer has set."""
        facts: Facts = {"step": self.table.step_of(row), "bytes": int(self.sizes[row])}
        return facts | _read_columns(self.table, row, _STEP_COLUMNS)


class JobNodes:
    """The nodes of a job as `TimelineSubject`."""

    noun = "node"
    tracks = ("collective", "send", "receive", "memory", "compute")

    def __init__(self, workload: Workload) -> None:
        """Prepare the nodes of a workload: their tracks, message flags and sizes.

        The workload is not copied. The kind of a node determines its track; sends and receives are
        messages.
        """
        self._workload = workload
        nodes = self.table = workload.nodes
        self.sizes = nodes.bytes
        self.track: Int64Array = _list_tracks(_NODE_TRACKS)[nodes.kind]
        self.is_message: BoolArray = nodes.is_kind(NodeKind.SEND, NodeKind.RECV)

    def partners(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Return the send of a receive, and the member of a collective that began last."""
        return job_partners(self._workload, start, end)

    def name(self, row: int) -> str:
        """Return the node's name in the job; if it has none, a text for its kind."""
        name = int(self.table.name[row])
        return self._workload.names[name] if name >= 0 else self._describe_kind(row)

    def facts(self, row: int) -> Facts:
        """Return the properties of a node: id, kind, group, bytes, operations and tag.

        The id is that of the job, not the row. A node without a group has no entry for it. Negative
        bytes and operations, and tags below 1, count as not set and are omitted.
        """
        facts: Facts = {"node": int(self.table.identity[row]), "kind": self._describe_kind(row)}
        group = int(self.table.group[row])
        if group >= 0:
            facts["group"] = self._workload.groups[group].name
        return facts | _read_columns(self.table, row, _NODE_COLUMNS)

    def _describe_kind(self, row: int) -> str:
        """Return a text for the kind of a node.

        It is the collective, such as all-reduce; for messages "send to N" or "receive from N";
        otherwise the name of the kind, also for collectives of unknown kind.
        """
        kind, nodes = NodeKind(self.table.kind[row]), self.table
        collective = JobCollective(nodes.collective[row])
        if kind is NodeKind.COLLECTIVE and collective is not JobCollective.UNKNOWN:
            return collective.label
        if kind is NodeKind.SEND:
            return f"send to {nodes.peer[row]}"
        return f"receive from {nodes.peer[row]}" if kind is NodeKind.RECV else kind.name.lower()


def _list_tracks(tracks: Mapping[_Kind, int]) -> Int64Array:
    """Return the track of every kind, int64, indexed by the kind's value."""
    return np.asarray([tracks[kind] for kind in sorted(tracks)], np.int64)


def _read_columns(table: RankTable, row: int, columns: Sequence[tuple[str, str, int]]) -> Facts:
    """Return the values of a row by name, without values that are not set.

    `columns`: (name, column, minimum); a value below the minimum is not set.
    """
    values = ((name, int(getattr(table, column)[row]), low) for name, column, low in columns)
    return {name: value for name, value, low in values if value >= low}


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Times in nanoseconds, int64 per row of the table.

    `rows`: rows that started. `start`: -1 for rows that did not. `end`: the end of the run for
    rows that never finished, which `is_endless` marks. `last`: the maximum of all times.
    """

    subject: TimelineSubject
    rows: Int64Array
    start: Int64Array
    end: Int64Array
    is_endless: BoolArray
    last: int

    @classmethod
    def of(cls, subject: TimelineSubject, start_ns: Int64Array, end_ns: Int64Array) -> RunTimes:
        """Create the times of a run from measured or simulated times in ns.

        -1 means that a row never started or never finished. `rows` of the result are the rows that
        started. A row without an end gets the last time of the run and is marked in `is_endless`;
        an end before the start becomes the start. Raises `InputError` (`step-times`) if the number
        of times is not the number of rows.
        """
        count = len(subject.table)
        if len(start_ns) != count or len(end_ns) != count:
            counts = f"{len(start_ns)} starts and {len(end_ns)} ends"
            message = f"{counts} were given for {count} {subject.noun}s"
            raise InputError(message, code="step-times")
        rows = np.flatnonzero(start_ns >= 0)
        last = max(int(end_ns.max(initial=0)), int(start_ns.max(initial=0)))
        is_endless = end_ns < 0
        end = np.where(is_endless, last, np.maximum(end_ns, start_ns))
        return cls(subject, rows, start_ns, end, is_endless, last)

    def within(self, excerpt: RunExcerpt) -> RunTimes:
        """Return the run with only the rows of an excerpt; times are not changed.

        A row is kept if all of these hold; a limit of None does not restrict the rows:

        - Its rank is in the ranks of the excerpt.
        - It finishes at or after the start of the window, or never.
        - It begins at or before the end of the window.

        Raises `UsageError` (`nothing-to-show`) if the run lacks a rank of the excerpt, if the
        window begins after the end of the run, or if no row remains. Also if one limit is given and
        the start (default 0) is not before the end (default: end of the run).
        """
        table = self.subject.table
        cure = (
            f"the run has ranks 0 to {table.num_ranks - 1} and lasts {format_time(self.last)}:"
            " change --ranks, --from, --to"
        )
        if defect := excerpt.find_defect(table.num_ranks, self.last):
            raise UsageError(defect, cure=cure, code="nothing-to-show")
        rows = self.rows
        if excerpt.ranks is not None:
            rows = rows[np.isin(table.rank[rows], excerpt.ranks)]
        if excerpt.start_ns is not None:
            rows = rows[self.end[rows] >= excerpt.start_ns]
        if excerpt.end_ns is not None:
            rows = rows[self.start[rows] <= excerpt.end_ns]
        if not len(rows):
            message = f"no {self.subject.noun} runs in the part to show"
            raise UsageError(message, cure=cure, code="nothing-to-show")
        return replace(self, rows=rows)

    def num_events(self) -> int:
        """Return the maximum number of events: one per row, and one arrow end per message row.

        The actual number is lower if the partners of messages did not start.
        """
        arrow_ends = np.count_nonzero(self.subject.is_message[self.rows])
        return len(self.rows) + int(arrow_ends)


@dataclass(frozen=True, slots=True)
class ShownTimes:
    """Start times of slices, int64 per row, and the rows of messages that started at both ranks."""

    begin: Int64Array
    send: Int64Array
    receive: Int64Array

    @classmethod
    def of(cls, run: RunTimes) -> ShownTimes:
        """Compute the time from which each row is shown, and the pairs of messages to connect.

        Rows in `run.rows` that have a partner are shown from the start of the partner, because the
        time before it is waiting. The partner of a receive is its send. The partner of a member of
        a job's collective is the member that starts last. The shown time is limited to the start
        and end of the row, because clocks of measured ranks can differ.

        All other rows are shown from their start, also those whose partner never starts. The
        messages of which both ends are in `run.rows` are listed as (send, receive), by row of the
        receive.
        """
        # A receive may be posted long before; the time it waits is not transfer time. The clip
        # prevents negative durations if the clocks of measured ranks differ.
        partner = run.subject.partners(run.start, run.end)
        is_shown = np.zeros(len(partner), np.bool_)
        is_shown[run.rows] = True
        has_both = is_shown & (run.start[partner] >= 0)
        rows = np.flatnonzero(has_both & (partner != np.arange(len(partner))))
        begin = run.start.copy()
        begin[rows] = np.clip(run.start[partner[rows]], run.start[rows], run.end[rows])
        receive = rows[run.subject.is_message[rows] & is_shown[partner[rows]]]
        return cls(begin, partner[receive], receive)


class _Intervals(NamedTuple):
    """Intervals sorted by group, then start; `slot` is the result, `free_at` is by slot."""

    group: Int64Array
    begin: Int64Array
    end: Int64Array
    slot: Int64Array
    free_at: Int64Array


def assign_slots(group: Int64Array, begin: Int64Array, end: Int64Array) -> Int64Array:
    """Return for every interval the lowest track that is free at its begin: int64, from 0.

    Tracks are assigned separately in each group. The input must be sorted by group, then by
    `begin`. A track is free from the end of its last interval on. If all `MAX_TRACKS` are occupied,
    the track that becomes free first is taken.
    """
    count = len(group)
    slot = np.zeros(count, np.int64)
    free_at = np.zeros(MAX_TRACKS, np.int64)
    group, begin, end = (np.ascontiguousarray(column, np.int64) for column in (group, begin, end))
    _kernel(_Intervals(group, begin, end, slot, free_at), events=count)
    return slot


def _fill_slots(intervals: _Intervals) -> int:
    """Write the slot of every interval; return the number of intervals that overlap in their slot.

    Intervals must be sorted by group, then begin. Each group starts with all slots free. A slot is
    free from the end of its last interval on. An interval takes the lowest slot of its group that
    is free at its begin, otherwise a new one, up to `len(free_at)` slots. Without a free or new
    slot, it takes the slot with the lowest end (the lowest of equal slots) and counts as an
    overlap.

    `slot` and `free_at` are overwritten. Without intervals the result is 0.
    """
    used = 0
    overlaps = 0
    for row in range(len(intervals.group)):
        if row == 0 or intervals.group[row] != intervals.group[row - 1]:
            used = 0
        begin = intervals.begin[row]
        chosen = 0
        while chosen < used and intervals.free_at[chosen] > begin:
            chosen += 1
        if chosen == used and used < len(intervals.free_at):
            used += 1
        elif chosen == used:
            overlaps += 1
            chosen = 0
            for other in range(1, used):
                if intervals.free_at[other] < intervals.free_at[chosen]:
                    chosen = other
        intervals.slot[row] = chosen
        intervals.free_at[chosen] = intervals.end[row]
    return overlaps


_kernel = Kernel(_fill_slots)
