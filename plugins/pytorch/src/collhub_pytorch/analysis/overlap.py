"""How much of a rank's communication is hidden behind its computation."""

from __future__ import annotations

import numpy as np
from collhub_columns import BoolArray, Int64Array

from collhub_pytorch.analysis.timeline import Timeline
from collhub_pytorch.passing_time import PASSING_TIME
from hub_core.model import NodeKind, Workload

_ISSUER = "c10d::"


def overlap_percent(workload: Workload, times: Timeline) -> list[float | None]:
    """Per rank the share of the time with communication in which it computes too.

    None for ranks without communication.
    """
    communicates = workload.nodes.is_kind(NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV)
    computes = is_computation(workload)
    found: list[float | None] = []
    for own in np.split(np.arange(len(workload.nodes)), workload.nodes.rank_indptr[1:-1]):
        busy = _busy(times, own[communicates[own]])
        both = _shared_ns(busy, _busy(times, own[computes[own]]))
        total = int((busy[1] - busy[0]).sum())
        found.append(100 * both / total if total else None)
    return found


def is_computation(workload: Workload) -> BoolArray:
    """Nodes in which a rank works on its model: bool[nodes]."""
    is_work = [not name.startswith(_ISSUER) and name not in PASSING_TIME for name in workload.names]
    named = np.array([*is_work, False], np.bool_)[workload.nodes.name]
    mask: BoolArray = named & workload.nodes.is_kind(NodeKind.COMPUTE)
    return mask


def _busy(times: Timeline, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The union of the nodes' times as (starts, ends) of intervals that do not touch."""
    order = np.argsort(times.start[rows], kind="stable")
    start, end = times.start[rows][order], times.end[rows][order]
    if not len(rows):
        return start, end
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    return start[first], reach[np.append(first[1:] - 1, len(rows) - 1)]


def _shared_ns(one: tuple[Int64Array, Int64Array], two: tuple[Int64Array, Int64Array]) -> int:
    """The time that lies in an interval of each: busy in both is busy less busy in either."""
    starts, ends = np.concatenate([one[0], two[0]]), np.concatenate([one[1], two[1]])
    moments = np.concatenate([starts, ends])
    change = np.concatenate([np.ones(len(starts), np.int64), np.full(len(ends), -1)])
    order = np.argsort(moments, kind="stable")
    depth = np.cumsum(change[order])[:-1]
    lengths = np.diff(moments[order])
    return int(lengths[depth == 2].sum())
