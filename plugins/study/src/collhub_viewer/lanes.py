"""Steps of a page: their order in lanes of concurrent rows per rank, and the chunk of each step.

Waits are steps as well. The chunk of a step is a unit of the collective's full buffer.
Summaries of these steps: critical path, times of ranks, collectives by exposed time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_drawing.subjects import RunTimes, ShownTimes, TimelineSubject, assign_slots

from collhub_viewer.columns import ColumnLines
from hub_core import trace_critical_path
from hub_core.columns import BoolArray, Int64Array, RankIntervals, group_of_entry, run_mask
from hub_core.model import (
    Algorithm,
    Buffer,
    CollectiveKind,
    NodeKind,
    Workload,
    format_time,
    matched_messages,
)
from hub_core.plugin_api import RunExcerpt

MAX_STEPS = 5_000_000
"""Steps of one run beyond which later ones are omitted, because browsers draw them too slowly."""
_ROUNDS = 40
MAX_LISTED = 20_000
_MAX_COLLECTIVES = 1000


@dataclass(frozen=True, slots=True)
class LanedSteps:
    """Steps sorted by lane, then start; int64 arrays of equal length.

    `row`: row of the table, also for a wait, whose row is the step that waits. `is_wait`: bool.
    `first`: first step of each lane, with the end; `lane_rank`, `lane_sort`: rank and sort of each
    lane. `position`: step of every row of the table, -1 for rows that are not shown. `omitted`:
    number of rows beyond `MAX_STEPS`; `until`: time in ns from which they are omitted.
    """

    row: Int64Array
    is_wait: BoolArray
    start: Int64Array
    end: Int64Array
    first: Int64Array
    lane_rank: Int64Array
    lane_sort: Int64Array
    position: Int64Array
    omitted: int
    until: int

    @property
    def lane(self) -> Int64Array:
        """Number of the lane of every step, int64[steps], from 0."""
        return group_of_entry(self.first)


def arrange_steps(
    run: RunTimes, sort: Int64Array, excerpt: RunExcerpt, max_steps: int = MAX_STEPS
) -> LanedSteps:
    """Arrange the rows of a run in lanes, so that rows in a lane do not overlap in time.

    `sort`: kind or thread block of each row. Only the rows in `excerpt` are arranged. The begin of
    a receive is the time when its message is sent, that of a collective is when its last member
    begins, that of other rows is their start.

    1. A row counts as two steps if its begin is after its start, otherwise as one. If there are
       more than `max_steps` steps, the rows with the first begins are kept. The result has the
       number of omitted rows, and the begin of the first one in ns (0 if none).
    2. The rows of a rank and sort are assigned in the order of begin, end and row. Each gets the
       lowest lane that is free at its begin. If all `MAX_TRACKS` lanes are occupied, rows overlap.
    3. A row gets a wait step before it, from its start, or from the end of the previous row of the
       lane if that is later, to its begin. An empty wait is omitted.

    The lanes are sorted by rank, sort and number; steps by lane, then begin. Raises `UsageError`
    (`nothing-to-show`) for an invalid excerpt or one without rows.
    """
    begin = ShownTimes.of(run).begin
    rank = run.subject.table.rank.astype(np.int64)
    rows = run.within(excerpt).rows
    rows, omitted, until = _limit_steps(rows, run.start, begin, max_steps)
    group = rank[rows] * (int(sort.max(initial=0)) + 1) + sort[rows]
    order = np.lexsort((rows, run.end[rows], begin[rows], group))
    rows, group = rows[order], group[order]
    slot = assign_slots(group, begin[rows], run.end[rows])
    # Stable: rows of one lane stay in the order of their starts.
    order = np.lexsort((slot, group))
    rows, group, slot = rows[order], group[order], slot[order]
    is_first = run_mask(group, slot)
    # A wait lasts from the start of its row, or the end of the row before, until the row begins.
    lane_free = np.zeros(len(rows), np.int64)
    lane_free[1:] = np.where(is_first[1:], 0, run.end[rows[:-1]])
    waits_from = np.maximum(run.start[rows], lane_free)
    has_wait = waits_from < begin[rows]
    place = np.arange(len(rows)) + np.cumsum(has_wait)
    total = len(rows) + int(has_wait.sum())
    is_wait = np.ones(total, np.bool_)
    is_wait[place] = False
    row = np.empty(total, np.int64)
    start, end = np.empty(total, np.int64), np.empty(total, np.int64)
    row[place], start[place], end[place] = rows, begin[rows], run.end[rows]
    waiting = place[has_wait] - 1
    row[waiting] = rows[has_wait]
    start[waiting], end[waiting] = waits_from[has_wait], begin[rows[has_wait]]
    position = np.full(len(rank), -1, np.int64)
    position[rows] = place
    firsts = np.flatnonzero(is_first)
    first = np.append(place[firsts] - has_wait[firsts], total)
    sorts = int(sort.max(initial=0)) + 1
    lane_rank, lane_sort = np.divmod(group[firsts], sorts)
    return LanedSteps(
        row, is_wait, start, end, first, lane_rank, lane_sort, position, omitted, until
    )


def _limit_steps(
    rows: Int64Array, start: Int64Array, begin: Int64Array, max_steps: int
) -> tuple[Int64Array, int, int]:
    """Keep the rows that begin first, as many as fit into `max_steps` steps.

    `start`, `begin`: ns, of every row of the table. A row whose begin is after its start
    waits before, and needs two steps; any other row needs one. Rows are taken by begin,
    those with equal begin in the order of `rows`, up to the first that does not fit.
    Returns the kept rows, ascending if `rows` is; the number of omitted rows; and the begin
    of the first omitted one in ns. The last two are 0 if all rows fit.
    """
    waits = np.count_nonzero(begin[rows] > start[rows])
    if len(rows) + waits <= max_steps:
        return rows, 0, 0
    order = np.argsort(begin[rows], kind="stable")
    steps = np.cumsum(1 + (begin[rows[order]] > start[rows[order]]))
    kept = int(np.searchsorted(steps, max_steps, side="right"))
    until = int(begin[rows[order[kept]]])
    return np.sort(rows[order[:kept]]), len(rows) - kept, until


def find_chunks(algorithm: Algorithm) -> Int64Array | None:
    """Return the first unit of the collective's data that every step moves: int64, -1 if unknown.

    Returns None for a custom collective and for steps without contents. Otherwise the first rule
    that applies:

    1. A step that reads INPUT or OUTPUT and is no receive: the first unit that it reads.
    2. A step that writes OUTPUT, also a receive: the first unit that it writes.
    3. A receive with a matched send: the unit of its send.
    4. A step whose data another step wrote (`_find_sources`): the unit of that step, plus the
       distance from the start of the written region to the unit that is read.

    Units are numbered as in the full buffer. In an all-to-all, unit u of the INPUT of rank r
    has the number r * unit_count + u.
    """
    steps, collective = algorithm.steps, algorithm.collective
    if collective.kind is CollectiveKind.CUSTOM or not algorithm.has_contents:
        return None
    chunk = np.full(len(steps), -1, np.int64)
    reads_input = (steps.src_buffer == Buffer.INPUT) & ~steps.receives
    chunk[reads_input] = _number_units(algorithm, reads_input, steps.src_offset, is_input=True)
    reads_output = (steps.src_buffer == Buffer.OUTPUT) & ~steps.receives
    chunk[reads_output] = _number_units(algorithm, reads_output, steps.src_offset, is_input=False)
    writes_output = (chunk < 0) & (steps.dst_buffer == Buffer.OUTPUT)
    chunk[writes_output] = _number_units(algorithm, writes_output, steps.dst_offset, is_input=False)
    source, shift = _find_sources(algorithm)
    for _ in range(_ROUNDS):
        open_rows = np.flatnonzero((chunk < 0) & (source >= 0))
        known = open_rows[chunk[source[open_rows]] >= 0]
        chunk[known] = chunk[source[known]] + shift[known]
        # Skip one row of every chain, so that chains of n rows need log2 n rounds.
        rest = open_rows[chunk[open_rows] < 0]
        if not len(rest):
            break
        shift[rest] += shift[source[rest]]
        source[rest] = source[source[rest]]
    return chunk


def _number_units(
    algorithm: Algorithm,
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]],
    offset: Int64Array,
    *,
    is_input: bool,
) -> Int64Array:
    """Convert offsets of some rows in INPUT or OUTPUT to numbers of units of the full buffer.

    `mask` chooses the rows; the result (int64) has one entry for each of them. `offset` has the
    offset in units of every row of the table. `is_input` selects INPUT, otherwise OUTPUT. Let S be
    the units per rank. The first rule that applies decides:

    - The collective divides data by source and target (all-to-all): an INPUT offset u of rank r
      becomes r * `unit_count` + u. An OUTPUT offset u becomes the number at its source:
      (u // S) * `unit_count` + r * S + u % S.
    - The buffer has only the share of its rank: r * S + offset.
    - Otherwise: the offset.
    """
    collective, traits = algorithm.collective, algorithm.collective.kind.traits
    rank, at = algorithm.steps.rank[mask].astype(np.int64), offset[mask]
    share = collective.units_per_rank
    if traits.split_by_source and traits.split_by_target:
        owner, unit = np.divmod(at, share)
        if is_input:
            return rank * collective.unit_count + at
        return owner * collective.unit_count + rank * share + unit
    is_part = traits.split_by_source if is_input else traits.split_by_target
    return rank * share + at if is_part else at


def _find_sources(algorithm: Algorithm) -> tuple[Int64Array, Int64Array]:
    """Return for each row the row that wrote the first unit of its data, and a unit offset in it.

    Both are int64 by row; without such a row they are -1 and 0.

    - A receive: its send with the offset 0, or -1 if it is unmatched.
    - Any other row: the last (highest) row among its data dependencies whose written range has
      the first unit that this row reads, in the same buffer. The offset is the position of this
      unit in the written range.
    """
    steps = algorithm.steps
    source, shift = np.full(len(steps), -1, np.int64), np.zeros(len(steps), np.int64)
    child = group_of_entry(steps.data_indptr)
    parent = steps.data_indices
    inside = steps.src_offset[child] - steps.dst_offset[parent]
    is_writer = (
        (steps.dst_buffer[parent] == steps.src_buffer[child])
        & (inside >= 0)
        & (inside < steps.count[parent])
        & ~steps.receives[child]
    )
    # Parents ascend, so that the last one remains.
    source[child[is_writer]] = parent[is_writer]
    shift[child[is_writer]] = inside[is_writer]
    pairs = matched_messages(steps)
    source[pairs.receive], shift[pairs.receive] = pairs.send, 0
    return source, shift


def list_critical_path(
    subject: TimelineSubject,
    run: RunTimes,
    partner: Int64Array,
    laned: LanedSteps,
    is_local: BoolArray,
) -> dict[str, object] | None:
    """Return the steps that determine when the run ends, in order of time; None if none is shown.

    The path is that of `trace_critical_path`, without rows that never ended. Only its first
    `MAX_LISTED` (20000) nodes are used. Nodes that the page does not show are omitted. The result
    has `steps`, the numbers of the steps on the page, and `entries`, one dictionary per step in
    this order: `step`, `reason`, `start` and `duration` in ns, and `text`.

    `reason` is `message` for rows that are not in `is_local`. For local rows it is `compute` if the
    previous node of the path, shown or not, has the same rank, or if there is none; otherwise
    `order`. `partner`: send of each receive (row), -1 without one. `is_local`: bool per row.
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
    """Add columns with the times of every rank to `lines`, and return their references by name.

    The times are ns as float64, one per rank. Rows that started count until their end, or the
    end of the run if they never ended. Overlapping rows of a rank count once:

    - `compute`: time covered by rows of `is_computation`
    - `communication`: time covered by other rows
    - `exposed`: time covered by any row, minus `compute`
    - `idle`: time from 0 to the end of the run that no row covers

    A receive counts from the start of its message, and a member of a collective from the start
    of the last member, so waiting before it is idle.
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
    """Return the calls of a job's collectives, those with the longest exposed times first.

    Returns at most 1000 calls; ties are ordered by the row of the last member. None if no
    collective has ended. A call consists of the collectives (members) of all ranks that
    belong together. Its last member is the one that began last. Members that never ended do
    not count. A call is a dictionary:

    - `name`, `bytes` (0 if unknown): of the last member
    - `ranks`: number of members
    - `start`, `duration`: from the first start to the last end of the members, in ns
    - `exposed`: in ns, the maximum over the members of the time between start and end in
      which no computation runs on the device of its rank. It includes waiting for other
      members.
    - `first_step`: step of the last member, -1 if it is not shown
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
