"""When the steps of a run started and ended, as a timeline shows them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array

from hub_core.model import Findings, InputError, StepTable, match_messages


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Times in nanoseconds, int64 per row of the step table.

    `rows`: those of the steps that started. `start`: -1 for others. `end`: that of the run for
    steps that never ended, which `is_endless` marks. `last`: the last time of all.
    """

    steps: StepTable
    rows: Int64Array
    start: Int64Array
    end: Int64Array
    is_endless: BoolArray
    last: int

    @classmethod
    def of(cls, steps: StepTable, start_ns: Int64Array, end_ns: Int64Array) -> RunTimes:
        """The times that were told, -1 for what never started or ended.

        Raises `InputError` where they are those of another table.
        """
        if len(start_ns) != len(steps) or len(end_ns) != len(steps):
            given = f"{len(start_ns)} starts and {len(end_ns)} ends"
            message = f"{given} were given for {len(steps)} steps"
            raise InputError(message, code="step-times")
        rows = np.flatnonzero(start_ns >= 0)
        last = max(int(end_ns.max(initial=0)), int(start_ns.max(initial=0)))
        is_endless = end_ns < 0
        end = np.where(is_endless, last, np.maximum(end_ns, start_ns))
        return cls(steps, rows, start_ns, end, is_endless, last)

    def num_events(self) -> int:
        """A slice a step, and an end of an arrow for every send and receive.

        That is the most there can be: without the other end there is no arrow.
        """
        is_message = self.steps.sends | self.steps.receives
        arrow_ends = np.count_nonzero(is_message[self.rows])
        return len(self.rows) + int(arrow_ends)


@dataclass(frozen=True, slots=True)
class ShownTimes:
    """Where slices begin, int64 per row, and the messages whose both ends started, as rows."""

    begin: Int64Array
    send: Int64Array
    receive: Int64Array

    @classmethod
    def of(cls, run: RunTimes) -> ShownTimes:
        """Match the messages of a run; a receive begins when its message was sent."""
        # A receive may be posted long before: that it waits is not what takes its time. The clip
        # keeps it a slice where clocks of measured ranks differ.
        pairs = match_messages(run.steps, Findings())
        has_send = run.start[pairs.send] >= 0
        has_both = has_send & (run.start[pairs.receive] >= 0)
        send, receive = pairs.send[has_both], pairs.receive[has_both]
        begin = run.start.copy()
        begin[receive] = np.clip(run.start[send], run.start[receive], run.end[receive])
        return cls(begin, send, receive)
