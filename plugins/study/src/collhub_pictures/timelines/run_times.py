"""When the rows of a run started and ended, as a timeline shows them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_pictures.timelines.subjects import Subject
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import InputError


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Times in nanoseconds, int64 per row of the table.

    `rows`: those that started. `start`: -1 for others. `end`: that of the run for
    rows that never ended, which `is_endless` marks. `last`: the last time of all.
    """

    subject: Subject
    rows: Int64Array
    start: Int64Array
    end: Int64Array
    is_endless: BoolArray
    last: int

    @classmethod
    def of(cls, subject: Subject, start_ns: Int64Array, end_ns: Int64Array) -> RunTimes:
        """The times that were told, -1 for what never started or ended.

        Raises `InputError` where they are those of another table.
        """
        count = len(subject.table)
        if len(start_ns) != count or len(end_ns) != count:
            given = f"{len(start_ns)} starts and {len(end_ns)} ends"
            message = f"{given} were given for {count} {subject.noun}s"
            raise InputError(message, code="step-times")
        rows = np.flatnonzero(start_ns >= 0)
        last = max(int(end_ns.max(initial=0)), int(start_ns.max(initial=0)))
        is_endless = end_ns < 0
        end = np.where(is_endless, last, np.maximum(end_ns, start_ns))
        return cls(subject, rows, start_ns, end, is_endless, last)

    def num_events(self) -> int:
        """A slice a row, and an end of an arrow for every send and receive.

        That is the most there can be: without the other end there is no arrow.
        """
        arrow_ends = np.count_nonzero(self.subject.is_message[self.rows])
        return len(self.rows) + int(arrow_ends)


@dataclass(frozen=True, slots=True)
class ShownTimes:
    """Where slices begin, int64 per row, and the messages whose both ends started, as rows."""

    begin: Int64Array
    send: Int64Array
    receive: Int64Array

    @classmethod
    def of(cls, run: RunTimes) -> ShownTimes:
        """A row begins when its partner did: a receive when its message was sent."""
        # It may be posted long before: that it waits is not what takes its time. The clip keeps it
        # a slice where clocks of measured ranks differ.
        partner = run.subject.partners(run.start, run.end)
        has_both = (run.start >= 0) & (run.start[partner] >= 0)
        rows = np.flatnonzero(has_both & (partner != np.arange(len(partner))))
        begin = run.start.copy()
        begin[rows] = np.clip(run.start[partner[rows]], run.start[rows], run.end[rows])
        receive = rows[run.subject.is_message[rows]]
        return cls(begin, partner[receive], receive)
