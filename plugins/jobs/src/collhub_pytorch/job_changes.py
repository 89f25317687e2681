"""Savings by other bucket sizes and by overlap: the job is changed and timed again.

Both changes keep the dependencies of the job, and are dropped if ranks of the changed job would
wait for each other. A change says nothing about its cost in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from collhub_job_traces.rebuilding import BucketPlanner, JoinedJob, columns_of, join_collectives

from collhub_pytorch.analysis import (
    Meetings,
    match_communications,
    measure_waiting,
    measured_timeline,
)
from collhub_pytorch.job import EXTENSION
from collhub_pytorch.predicted_times import (
    CallKey,
    Predictor,
    add_control_edges,
    next_in_group,
    predicted_calls,
)
from collhub_pytorch.rank_nodes import GAP
from collhub_pytorch.replay import measure_transfers, replay_instantly, replay_transfers
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import (
    InputError,
    JobCollective,
    NodeColumns,
    NodeKind,
    Workload,
    format_bytes,
)
from hub_core.plugin_api import JobChange

JOINABLE = (JobCollective.ALL_REDUCE, JobCollective.ALL_GATHER, JobCollective.REDUCE_SCATTER)
MAX_CLASSES = 6
MAX_LIMITS = 5
_BUCKET_ASSUMPTIONS = (
    "a bucket starts when the last of its collectives could start, and ends for all of them",
    "the time of a bucket keeps the ratio between the times of its collectives in the job and"
    " their predicted times",
)


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """A job with times: `transfer_ns` as in `replay_transfers`, `job_ns` of its replay.

    `limits_ns`: transfer times at both limits of the error of predicted times; empty for measured
    times, and where an error is not known.
    """

    workload: Workload
    meetings: Meetings
    transfer_ns: Int64Array
    job_ns: int
    limits_ns: tuple[Int64Array, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _PredictedNodes:
    """Nodes of a communication, their predicted time in ns, and its relative error.

    `time_ns`: one time for all nodes or one per node. `error`: None if unknown.
    """

    rows: Int64Array
    time_ns: float | Int64Array
    error: float | None


def find_changes(
    workload: Workload,
    predictor: Predictor,
    meetings: Meetings | None = None,
    *,
    is_predicted: bool = False,
) -> tuple[JobChange, ...]:
    """Return the changes of bucket sizes and of overlap that save time in a job.

    `workload`: every node has a time. Savings in ns are relative to the replay of the unchanged
    job, in which ranks wait only as dependencies require; changes that save no time are left out.
    First come the changes of bucket sizes: for each class of collectives (`_split_classes`) the
    size with the largest saving, of equal ones the largest size. There is none if no size can be
    timed (`_BucketTrials`). Classes are in descending order of transfer time, then by name; only
    the first `MAX_CLASSES` (6) are tried. The change of overlap, if any, is the last.

    `meetings`: the matched communications, by default those of the workload. `is_predicted`:
    the times of the collectives are predicted (`predict_job`); savings then have a range that
    corresponds to the errors of the predictions. Raises `InputError` for communications that do
    not match and nodes without a time; `HubError` of the predictor.
    """
    meetings = meetings or match_communications(workload)
    transfer = measure_transfers(measured_timeline(workload), meetings)
    replayed_ns = replay_transfers(workload, meetings, transfer).job_ns
    limits = _limit_transfers(workload, meetings, transfer, predictor) if is_predicted else ()
    job = _Job(workload, meetings, transfer, replayed_ns, limits)
    changes: list[JobChange] = []
    classes = sorted(
        _split_classes(workload),
        key=lambda one: (-int(transfer[one.rows].clip(0).sum()), one.name),
    )
    for one in classes[:MAX_CLASSES]:
        trials = _BucketTrials(job, one, predictor)
        timed = [change for limit in trials.limits() if (change := trials.time(limit))]
        changes += sorted(timed, key=lambda change: -change.saved_ns)[:1]
    changes += _overlap_changes(job)
    return tuple(change for change in changes if change.saved_ns > 0)


def find_instant(workload: Workload, predictor: Predictor) -> JobChange:
    """Return the change by which communication takes no time: the upper limit of any saving.

    `workload`: from `predict_job`. The saving in ns is relative to the replay with predicted
    times; its range corresponds to the errors of the predicted times, and is None if an error is
    unknown. Raises the `HubError` of the predictor, and `InputError` for communications that do
    not match, a node without a time (`no-times`), and cyclic dependencies (`deadlock`).
    """
    meetings = match_communications(workload)
    transfer = measure_transfers(measured_timeline(workload), meetings)
    limits = _limit_transfers(workload, meetings, transfer, predictor)
    job_ns = replay_instantly(workload, meetings).job_ns
    saved = [
        replay_transfers(workload, meetings, each).job_ns - job_ns for each in (transfer, *limits)
    ]
    return JobChange("instant", "if communication took no time", job_ns, saved[0], *_band(saved))


def _limit_transfers(
    workload: Workload, meetings: Meetings, transfer_ns: Int64Array, predictor: Predictor
) -> tuple[Int64Array, ...]:
    """Return the transfer times of all nodes in ns at both limits of the prediction errors.

    Only the times of `predicted_calls` have errors; all others are equal in both results. Returns
    () if one of these errors is unknown. Divisors and rounding are those of `_apply_errors`. Raises
    the `HubError` of the predictor.
    """
    calls = list(predicted_calls(workload, meetings))
    answers = predictor.predict(key for _, key in calls)
    predictions = [
        _PredictedNodes(rows, transfer_ns[rows], answer.held_out_error)
        for (rows, _), answer in zip(calls, answers, strict=True)
    ]
    return _apply_errors(transfer_ns, predictions)


def _apply_errors(
    transfer_ns: Int64Array, predictions: Sequence[_PredictedNodes]
) -> tuple[Int64Array, ...]:
    """Return two copies of `transfer_ns` with the shortest and the longest predicted times, in ns.

    The first array has the shorter times: with relative error e, a predicted time is divided by
    1 + e; in the second one by 1 - e, or unchanged if e is 1 or more, because such an error has no
    upper limit of the time. Results are rounded to ns; other nodes keep their times. Returns () if
    the error of any prediction is unknown, and two equal arrays without predictions.
    """
    limits = transfer_ns.copy(), transfer_ns.copy()
    for prediction in predictions:
        if prediction.error is None:
            return ()
        for sign, limit in zip((1, -1), limits, strict=True):
            divisor = 1 + sign * prediction.error
            if divisor > 0:
                limit[prediction.rows] = np.rint(prediction.time_ns / divisor)
    return limits


def _band(saved_ns: Sequence[int]) -> tuple[int | None, int | None]:
    """Return the smallest and largest of several savings; None for a single one."""
    return (min(saved_ns), max(saved_ns)) if len(saved_ns) > 1 else (None, None)


def _overlap_changes(job: _Job) -> Iterator[JobChange]:
    """Yield at most one change: communications start when their data are ready.

    Some edges are dropped from a copy of the job:

    - With the extension `EXTENSION` (profiles): edges from a node of the host to a communication,
      or to the gap (idle node) before one. The target must also have an edge from a device
      computation. Edges whose first node is a communication or such a gap remain.
    - Otherwise: control edges between a communication and a computation. The communication must
      also have a data edge on the same side, to a parent or a child.

    The saving in ns is the time with all edges minus that without the dropped ones; it can be
    negative. Its range also covers the savings with `limits_ns`, and is None without limits. No
    change is yielded if no edge is dropped, or if a replay without the dropped edges deadlocks.
    """
    workload = job.workload
    nodes = workload.nodes
    if EXTENSION in workload.extensions:
        dropped = _find_late_launches(workload, job.meetings)
        assumption = (
            "a communication starts when the work of the device that it waits for has ended, and"
            " not when the host launches it"
        )
    else:
        dropped = _find_stated_orders(nodes, job.meetings)
        assumption = (
            "where a communication has data dependencies, its control dependencies on computation"
            " only state an order"
        )
    if not (dropped[0].any() or dropped[1].any()):
        return
    changed = _without_edges(workload, *dropped)
    times = [_replay(changed, job.meetings, each) for each in (job.transfer_ns, *job.limits_ns)]
    base = [
        job.job_ns,
        *(replay_transfers(workload, job.meetings, each).job_ns for each in job.limits_ns),
    ]
    saved = [before - after for before, after in zip(base, times, strict=True) if after is not None]
    if times[0] is not None and len(saved) == len(base):
        description = "if communication starts when its data is ready"
        yield JobChange("overlap", description, times[0], saved[0], *_band(saved), (assumption,))


def _find_stated_orders(nodes: NodeColumns, meetings: Meetings) -> tuple[BoolArray, BoolArray]:
    """Mark the edges that only define an order: bool[data edges], bool[control edges].

    No data edge is marked. A control edge is marked in two cases:

    - It leads from a communication to another kind of node, and the communication also has data
      edges to later nodes.
    - It leads from another kind of node to a communication, and the communication also has data
      edges from earlier nodes.

    Without data edges on one side, the control edges on this side may be data dependencies, so
    they are not marked. Edges between two communications are never marked. A communication is a
    node that is in `meetings` (collectives and messages).
    """
    communicates = meetings.of_node >= 0
    has_data_parent, has_data_child = np.zeros((2, len(nodes)), np.bool_)
    has_data_child[nodes.data_edges[0]] = True
    has_data_parent[nodes.data_edges[1]] = True
    parents, children = nodes.control_edges
    leaves = communicates[parents] & ~communicates[children] & has_data_child[parents]
    enters = ~communicates[parents] & communicates[children] & has_data_parent[children]
    return np.zeros(len(nodes.data_indices), np.bool_), leaves | enters


def _find_late_launches(workload: Workload, meetings: Meetings) -> tuple[BoolArray, BoolArray]:
    """Mark edges by which launches on the host delay communication: bool[data], bool[control].

    `meetings` defines the nodes that are communication. A gap is a node named `GAP`, only in
    workloads with this plugin's extension. It counts as communication if the node after it
    (`_started_by`) is one. An edge is marked if all are true:

    - Its first node is on the host and does not count as communication.
    - Its second node counts as communication.
    - The second node also has a data or control edge from a node of the device that is no
      communication. So without the marked edge it does not start before its data are ready.
    """
    nodes, communicates = workload.nodes, meetings.of_node >= 0
    edges = nodes.edges()
    begins = communicates[_started_by(workload)]
    is_from_device = ~nodes.on_host[edges[0]] & ~communicates[edges[0]]
    waits_for_device = np.zeros(len(nodes), np.bool_)
    waits_for_device[edges[1][is_from_device]] = True
    marks = []
    for parents, children in (nodes.data_edges, nodes.control_edges):
        is_from_host = nodes.on_host[parents] & ~begins[parents]
        marks.append(is_from_host & begins[children] & waits_for_device[children])
    return marks[0], marks[1]


def _started_by(workload: Workload) -> Int64Array:
    """Return the row that each node starts: itself, or for a gap the node after it.

    int64[nodes].

    Gaps are nodes named `GAP`, only in workloads with this plugin's extension. The node
    after a gap depends on it, by data or control. If there are several, the one with the
    highest row is returned; if there is none, the gap itself.
    """
    nodes = workload.nodes
    started = np.arange(len(nodes))
    if EXTENSION in workload.extensions:
        is_gap = np.array([*(name == GAP for name in workload.names), False])[nodes.name]
        parents, children = nodes.edges()
        is_end = is_gap[parents]
        started[parents[is_end]] = children[is_end]
    return started


def _without_edges(workload: Workload, data: BoolArray, control: BoolArray) -> Workload:
    """Return a copy of the job without some dependencies; all columns of the nodes are kept.

    `data`, `control`: bool per data edge and per control edge of the nodes, True for those to drop.
    The order of the other edges is kept; `workload` is unchanged.
    """
    nodes = workload.nodes
    kept = [
        (edges[0][~dropped], edges[1][~dropped])
        for edges, dropped in ((nodes.data_edges, data), (nodes.control_edges, control))
    ]
    columns = columns_of(nodes)
    changed = type(nodes).from_columns(nodes.num_ranks, columns, kept[0], kept[1])
    return replace(workload, nodes=changed)


def _replay(workload: Workload, meetings: Meetings, transfer_ns: Int64Array) -> int | None:
    """Return the time of a replay, None if ranks wait for each other."""
    try:
        return replay_transfers(workload, meetings, transfer_ns).job_ns
    except InputError as error:
        if _is_deadlock(error):
            return None
        raise


@dataclass(frozen=True, slots=True, eq=False)
class _CollectiveClass:
    """Collectives of one kind in groups of equal size and distance; `rows`: their nodes."""

    name: str
    kind: JobCollective
    rows: Int64Array


def _split_classes(workload: Workload) -> list[_CollectiveClass]:
    """Return the collectives that can be joined, in classes of equal kind, rank count and distance.

    A collective can be joined if its kind is in `JOINABLE`, its bytes are above 0, it names no
    algorithm, and its group has at least 2 ranks. The distance is the second rank of the group
    minus its first, in the order of the group; it may be negative. So [0, 1] and [2, 3] share a
    class.

    Classes are ordered by kind as in `JOINABLE`, then rank count, then distance; their rows ascend.
    A class has more nodes than its rank count, i.e. more than one call of one group; smaller ones
    are left out. The result may be []. The name states the distance only if it is not 1.
    """
    nodes = workload.nodes
    is_joinable = nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.bytes > 0) & (nodes.algorithm < 0)
    rows = np.flatnonzero(is_joinable & np.isin(nodes.collective, JOINABLE))
    shapes: dict[tuple[int, int], list[int]] = {}
    for group in np.unique(nodes.group[rows]).tolist():
        ranks = workload.members(group)
        if len(ranks) > 1:
            shapes.setdefault((len(ranks), ranks[1] - ranks[0]), []).append(group)
    classes = []
    for kind in JOINABLE:
        of_kind = rows[nodes.collective[rows] == kind]
        for (count, distance), groups in sorted(shapes.items()):
            chosen = of_kind[np.isin(nodes.group[of_kind], groups)]
            if len(chosen) > count:
                name = f"{kind.label}s of {count} ranks"
                name += f" at distance {distance}" * (distance != 1)
                classes.append(_CollectiveClass(name, kind, chosen))
    return classes


class _BucketTrials:
    """Joins the collectives of one class into buckets of several sizes, and times the job.

    In the groups that have a collective of the class, the order of the collectives of any kind is
    dropped before they are joined. The joined job is timed without an order first, and then with
    the order in which its collectives could start. These edges are the order of a group:

    - Control edges from a collective to the next one of its group and rank, by the numbers of their
      communications. In profiles (jobs with `EXTENSION`), also those to the gap (idle node) before
      that next one.
    - In profiles, data edges of this kind too. There an edge is an order only if its child has at
      least two incoming edges, because a single one may carry data.
    """

    def __init__(self, job: _Job, collectives: _CollectiveClass, predictor: Predictor) -> None:
        self._job, self._class, self._predictor = job, collectives, predictor
        workload = job.workload
        nodes = workload.nodes
        candidates = np.zeros(len(nodes), np.bool_)
        candidates[collectives.rows] = job.transfer_ns[collectives.rows] >= 0
        is_profile = EXTENSION in workload.extensions
        of_class = np.isin(nodes.group, np.unique(nodes.group[collectives.rows]))
        following = next_in_group(nodes, job.meetings, of_class)
        begins = _started_by(workload)
        degree = np.bincount(nodes.edges()[1], minlength=len(nodes))
        marks, ordered_groups = [], []
        for (parents, children), is_allowed in (
            (nodes.data_edges, is_profile), (nodes.control_edges, True),
        ):  # fmt: skip
            is_order = (following[parents] >= 0) & (following[parents] == begins[children])
            if is_profile:
                is_order &= degree[children] > 1
            marks.append(is_order & is_allowed)
            ordered_groups.append(nodes.group[parents[marks[-1]]])
        self._ordered_groups = np.unique(np.concatenate(ordered_groups))
        self._unordered = _without_edges(workload, marks[0], marks[1])
        self._planner = BucketPlanner(self._unordered, candidates)

    def limits(self) -> list[int]:
        """Return the limits of the bucket size in bytes to try, at most `MAX_LIMITS`, descending.

        A bucket is one collective that replaces several of the class (`_CollectiveClass`: equal
        kind, ranks and distance). Candidates are m * 2, m * 4, m * 8 and so on, below twice the sum
        of all sizes. m is the median of the sizes, rounded down to a whole byte. Sum and median
        count the class's nodes of all ranks.

        A candidate is omitted if it gives the same buckets as the next smaller one. The smallest is
        omitted if it joins no collectives. If more than `MAX_LIMITS` remain, the largest are
        returned. The result is empty if no candidate joins collectives.
        """
        nodes = self._job.workload.nodes
        sizes = nodes.bytes[self._class.rows]
        limits: list[int] = []
        previous = np.arange(len(nodes))
        limit = 2 * int(np.median(sizes))
        while limit < 2 * int(sizes.sum()):
            plan = self._planner.plan(limit)
            if not np.array_equal(plan, previous):
                limits.append(limit)
            previous = plan
            limit *= 2
        return limits[::-1][:MAX_LIMITS]

    def time(self, limit_bytes: int) -> JobChange | None:
        """Return the change to buckets of at most `limit_bytes`, with the time of the job in ns.

        A bucket is one collective that replaces several collectives of this object's class, i.e. of
        equal kind, number of ranks and distance. Its time is a prediction, scaled by measured over
        predicted time of the collectives that it replaces. Other communications keep their transfer
        times. Collectives of a group whose order was dropped run in the order of the times at which
        they can start.

        The saving is the replayed time of the unchanged job minus this time; it may be negative.
        Its range (smallest, largest) is None if the error of any bucket is unknown.

        Returns None if a prediction is missing or 0, or if ranks would wait for each other in a
        cycle. Raises `HubError` of the predictor, and `InputError` of collectives that do not
        match.
        """
        joined = join_collectives(self._unordered, self._planner.plan(limit_bytes))
        meetings = match_communications(joined.workload)
        buckets = self._time_buckets(joined, meetings)
        if buckets is None:
            return None
        transfer = np.full(len(joined.workload.nodes), -1, np.int64)
        transfer[joined.row_of] = self._job.transfer_ns
        for bucket in buckets:
            transfer[bucket.rows] = np.rint(bucket.time_ns)
        workload = self._add_order(joined.workload, meetings, transfer)
        job_ns = None if workload is None else _replay(workload, meetings, transfer)
        if workload is None or job_ns is None:
            return None
        limits = [
            replay_transfers(workload, meetings, each).job_ns
            for each in _apply_errors(transfer, buckets)
        ]
        nodes = self._job.workload.nodes
        count = len(self._job.workload.members(int(nodes.group[self._class.rows[0]])))
        description = (
            f"if {self._class.name} have buckets of up to {format_bytes(limit_bytes)} "
            f"({joined.joined_count // count} calls become {joined.bucket_count // count})"
        )
        saved = [self._job.job_ns - limit_ns for limit_ns in (job_ns, *limits)]
        return JobChange(
            "bucket-size", description, job_ns, saved[0], *_band(saved), _BUCKET_ASSUMPTIONS
        )

    def _time_buckets(self, joined: JoinedJob, meetings: Meetings) -> list[_PredictedNodes] | None:
        """Return every bucket with its time in ns; None if a prediction is missing or not above 0.

        A bucket is one collective that replaces several. Its time is p * m / q, not rounded:

        - p: the prediction for the bucket, with the largest size of any rank.
        - m: the sum of the transfer times of the replaced collectives in the unchanged job.
        - q: the sum of the predictions of the replaced collectives, with their sizes.

        m and q count only the collectives of the bucket's first rank. For m = 0 the time is 0.
        Each result also has the rows of the bucket on all ranks, and the relative error of p (None
        if unknown). Buckets are in the order of the numbers in `meetings`. The result is []
        without buckets. Errors of the predictor pass through (`HubError`).
        """
        before, after = self._job.workload.nodes, joined.workload.nodes
        members: dict[int, list[int]] = {}
        for row in self._class.rows.tolist():
            members.setdefault(int(joined.row_of[row]), []).append(row)
        keys_of_bucket: list[tuple[Int64Array, list[int], list[CallKey]]] = []
        for meeting in range(len(meetings)):
            rows = meetings.members(meeting)
            old = members.get(int(rows[0]), [])
            if len(old) > 1:
                ranks = joined.workload.members(int(after.group[rows[0]]))
                sizes = [*(int(before.bytes[row]) for row in old), int(after.bytes[rows].max())]
                keys = [(self._class.kind, size, ranks) for size in sizes]
                keys_of_bucket.append((rows, old, keys))
        distinct = list(dict.fromkeys(key for _, _, keys in keys_of_bucket for key in keys))
        answers = dict(zip(distinct, self._predictor.predict(distinct), strict=True))
        buckets = []
        for rows, old, keys in keys_of_bucket:
            predicted = [answers[key].time_ns or 0.0 for key in keys]
            if min(predicted) <= 0:
                return None
            ratio = float(self._job.transfer_ns[old].sum()) / sum(predicted[:-1])
            error = answers[keys[-1]].held_out_error
            buckets.append(_PredictedNodes(rows, ratio * predicted[-1], error))
        return buckets

    def _add_order(
        self, workload: Workload, meetings: Meetings, transfer_ns: Int64Array
    ) -> Workload | None:
        """Return a copy of the job in which groups without an order have ordered collectives again.

        The groups are `self._ordered_groups`, whose order was dropped. On each rank, a control edge
        leads from each collective of such a group to the next one of the same group. The order is:

        1. The time at which the last rank of the collective can start it, in a replay without the
           new edges with the transfer times `transfer_ns` (ns).
        2. The number of its communication in `meetings`. Collectives that were not joined are
           included.

        Returns None if ranks already wait for each other without the new edges. With the new edges
        this is not checked. Other errors of the replay pass through.
        """
        try:
            times = replay_transfers(workload, meetings, transfer_ns).times
        except InputError as error:
            if _is_deadlock(error):
                return None
            raise
        nodes = workload.nodes
        rows = np.flatnonzero(
            nodes.is_kind(NodeKind.COLLECTIVE) & np.isin(nodes.group, self._ordered_groups)
        )
        starts = measure_waiting(times, meetings).last_start[rows]
        rows = rows[
            np.lexsort((meetings.of_node[rows], starts, nodes.group[rows], nodes.rank[rows]))
        ]
        is_same = (nodes.group[rows[1:]] == nodes.group[rows[:-1]]) & (
            nodes.rank[rows[1:]] == nodes.rank[rows[:-1]]
        )
        return add_control_edges(workload, rows[:-1][is_same], rows[1:][is_same])


def _is_deadlock(error: InputError) -> bool:
    return any(diagnostic.code == "deadlock" for diagnostic in error.diagnostics)
