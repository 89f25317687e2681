"""How long communication transfers, and how long it waits for the last rank to come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_pytorch.analysis.matching import Meetings
from collhub_pytorch.analysis.timeline import Timeline
from hub_core.columns import Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class MeetingTimes:
    """int64[nodes] each, 0 for nodes without communication, in ns.

    `waiting`: of this rank, until the last rank has come. `transferring`: from then to its end, 0
    where a rank had ended before. Their sum is the measured duration. `last_start`: when the last
    rank came, -1 without communication.
    """

    waiting: Int64Array
    transferring: Int64Array
    last_start: Int64Array


def meeting_times(times: Timeline, meetings: Meetings) -> MeetingTimes:
    """Waiting and transferring of every node that communicates."""
    last_start = np.full(len(times.start), -1, np.int64)
    rows, of_node = meetings.rows, meetings.of_node
    if len(rows):
        # Every communication has at least one node.
        last = np.maximum.reduceat(times.start[rows], meetings.indptr[:-1])
        last_start[rows] = last[of_node[rows]]
    waiting, transferring = np.zeros((2, len(times.start)), np.int64)
    since = np.maximum(times.start[rows], last_start[rows])
    transferring[rows] = np.maximum(times.end[rows] - since, 0)
    waiting[rows] = times.end[rows] - times.start[rows] - transferring[rows]
    return MeetingTimes(waiting, transferring, last_start)
