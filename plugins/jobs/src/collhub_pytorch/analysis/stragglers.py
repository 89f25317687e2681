"""Which rank makes the others wait: the only last one to start a communication."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_pytorch.analysis.matching import Meetings
from collhub_pytorch.analysis.timeline import Timeline
from collhub_pytorch.analysis.waiting import MeetingTimes
from collhub_pytorch.job import fact_list
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Stragglers:
    """By communication, int64[meetings].

    `rank`: the rank for which the others waited, -1 where several started last together or fewer
    than two ranks are measured. `caused_ns`: the time that the others waited for it, summed over
    them. `measured`: number of its ranks with a file.
    """

    rank: Int64Array
    caused_ns: Int64Array
    measured: Int64Array


def is_measured(workload: Workload) -> BoolArray:
    """Nodes of ranks with a file, not of copies of another rank: bool[nodes]."""
    assumed = [int(str(rank)) for rank in fact_list(workload, "assumed_ranks")]
    mask: BoolArray = ~np.isin(workload.nodes.rank, np.array(assumed, np.int64))
    return mask


def find_stragglers(
    workload: Workload, times: Timeline, meetings: Meetings, waits: MeetingTimes
) -> Stragglers:
    """The straggler of every communication, among its measured ranks."""
    measured_rows = is_measured(workload)
    rank, caused, measured = np.full((3, len(meetings)), -1, np.int64)
    for meeting in range(len(meetings)):
        rows = meetings.members(meeting)
        rows = rows[measured_rows[rows]]
        measured[meeting] = len(rows)
        caused[meeting] = waits.waiting[rows].sum()
        if len(rows) < 2:
            continue
        start = times.start[rows]
        latest = np.flatnonzero(start == start.max())
        if len(latest) == 1:
            rank[meeting] = workload.nodes.rank[rows[int(latest[0])]]
    return Stragglers(rank, caused, measured)
