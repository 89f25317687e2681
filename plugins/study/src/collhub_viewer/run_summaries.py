"""Summaries of a run for a page: critical path, times of ranks, collectives by exposed time."""

from __future__ import annotations

import numpy as np
from collhub_drawing.subjects import RunTimes, Subject

from collhub_viewer.columns import ColumnLines
from collhub_viewer.lanes import LanedSteps
from hub_core import trace_critical_path
from hub_core.columns import BoolArray, Int64Array, RankIntervals
from hub_core.model import NodeKind, Workload, format_time

MAX_LISTED = 20_000
_MAX_COLLECTIVES = 1000


def list_critical_path(
    subject: Subject,
    run: RunTimes,
    partner: Int64Array,
    laned: LanedSteps,
    is_local: BoolArray,
) -> dict[str, object] | None:
    """Return the steps that determine the end of the run, in order of time: their numbers (`steps`)
    and `entries` with reason, start, duration and text. Reasons: `message` (or a collective),
    `compute` for local work after a step of the same rank, else `order`. Steps outside the shown
    part are omitted, as are those after the first `MAX_LISTED`; None if no step remains.
    """
    started_by = subject.partners(run.start, run.end)
    is_receive = subject.is_message & (partner >= 0) & (started_by != np.arange(len(partner)))
    end = np.where(run.is_endless, -1, run.end)
    path = trace_critical_path(subject.table, started_by, is_receive, run.start, end)
    entries = []
    before = -1
    for node in path[:MAX_LISTED]:
        step = int(laned.position[node.row])
        rank = int(subject.table.rank[node.row])
        if step >= 0:
            text = f"rank {rank}: {subject.name(node.row)}, {format_time(node.duration_ns)}"
            reason = "message"
            if is_local[node.row]:
                reason = "compute" if before in (-1, rank) else "order"
            entries.append(
                {
                    "step": step,
                    "reason": reason,
                    "start": node.start_ns,
                    "duration": node.duration_ns,
                    "text": text,
                }
            )
        before = rank
    return {"steps": [entry["step"] for entry in entries], "entries": entries} if entries else None


def compute_rank_totals(
    run: RunTimes, is_computation: BoolArray, lines: ColumnLines
) -> dict[str, object]:
    """Add columns with the times of every rank, and return their references: `compute`,
    `communication`, its `exposed` part, and `idle`. Rows of a rank that overlap count once.
    Communication is exposed while its rank does not compute. Waiting for a message is idle, as is
    the time until the end of the run.
    """
    from collhub_drawing.subjects import ShownTimes

    begin = ShownTimes.of(run).begin
    num_ranks = run.subject.table.num_ranks
    rank = run.subject.table.rank
    computing = run.rows[is_computation[run.rows]]
    communicating = run.rows[~is_computation[run.rows]]
    totals = [
        np.asarray(RankIntervals(rank[rows], begin[rows], run.end[rows], num_ranks).by_rank())
        for rows in (computing, communicating, run.rows)
    ]
    compute, communication, busy = totals
    columns = {
        "compute": compute,
        "communication": communication,
        "exposed": busy - compute,
        "idle": run.last - busy,
    }
    return {name: lines.add(values.astype(np.float64)) for name, values in columns.items()}


def list_collectives(
    workload: Workload, run: RunTimes, laned: LanedSteps
) -> list[dict[str, object]] | None:
    """Return at most `_MAX_COLLECTIVES` calls of collectives by exposed time, largest first; None
    without collectives. Times are in the unit of the run. Exposed time: the part of a member not
    covered by device computation of its rank; that of a call is the maximum over its members. A
    call lasts from the first start to the last end of its members.
    """
    nodes = workload.nodes
    last = run.subject.partners(run.start, run.end)
    rows = run.rows[nodes.is_kind(NodeKind.COLLECTIVE)[run.rows] & ~run.is_endless[run.rows]]
    if not len(rows):
        return None
    computing = run.rows[(nodes.is_kind(NodeKind.COMPUTE) & ~nodes.on_host)[run.rows]]
    covered = RankIntervals(
        nodes.rank[computing], run.start[computing], run.end[computing], workload.num_ranks
    )
    start, end = run.start[rows], run.end[rows]
    exposed = end - start - covered.within(nodes.rank[rows], start, end)
    # All members of a call have the same last member.
    call, number, members = np.unique(last[rows], return_inverse=True, return_counts=True)
    most, first = np.zeros(len(call), np.int64), np.full(len(call), run.last)
    stop = np.zeros(len(call), np.int64)
    np.maximum.at(most, number, exposed)
    np.minimum.at(first, number, start)
    np.maximum.at(stop, number, end)
    calls = []
    for one in np.argsort(-most, kind="stable")[:_MAX_COLLECTIVES].tolist():
        row = int(call[one])
        calls.append(
            {
                "name": run.subject.name(row),
                "bytes": max(0, int(nodes.bytes[row])),
                "ranks": int(members[one]),
                "start": int(first[one]),
                "duration": int(stop[one] - first[one]),
                "exposed": int(most[one]),
                "first_step": int(laned.position[row]),
            }
        )
    return calls
