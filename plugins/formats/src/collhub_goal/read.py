"""Read GOAL as a timing-only algorithm.

Messages are in bytes, work is in nanoseconds; dependencies become data dependencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collhub_goal.parse import parse_goal
from collhub_goal.schedule import GoalOperation, GoalSchedule
from hub_core.columns import Int64Array, csr, expanded_ranges
from hub_core.model import (
    MAX_UNITS,
    Algorithm,
    Collective,
    CollectiveKind,
    CustomContract,
    Diagnostic,
    InputError,
    Location,
    Provenance,
    Severity,
    StepKind,
    StepTable,
)
from hub_core.plugin_api import NoOptions, Source

_KINDS = {
    GoalOperation.CALC: StepKind.COMPUTE,
    GoalOperation.SEND: StepKind.SEND,
    GoalOperation.RECV: StepKind.RECV,
}
# A channel of the hub is an int32.
_LARGEST_TAG = int(np.iinfo(np.int32).max)
# Real traces chain two or three; a cycle would never terminate.
_MAX_HOPS = 1000
_SAMPLE = b"""num_ranks 2

rank 0 {
a: calc 100 cpu 0
b: send 1024b to 1 tag 7 cpu 0
b requires a
// The answer.
recv 8b from 1 tag 8
}

rank 1 {
a: recv 1024b from 0 tag 7
b: send 8b to 0 tag 8 nic 0
c: calc 50
b requires a
c irequires b
}
"""


def read(source: Source, options: NoOptions) -> Algorithm:
    """Read a GOAL schedule as an algorithm that has only times, without buffers.

    A unit is one byte, a cpu becomes a lane, and a tag a channel. Each of these changes that occurs
    gives one note to `source.report`, with the line of its first case:

    - `irequires` is read as waiting for the dependencies of the awaited operation.
    - nic numbers are ignored.
    - Tags above 2^31 - 1, ascending, get the lowest numbers from 0 on that no other tag has.

    Raises `InputError` with the line of the first error in the file, and the errors of
    `build_algorithm`.
    """
    del options
    schedule = parse_goal(source.content(), source.name)
    if len(schedule.early_child):
        first = int(schedule.early_child[0])
        message = "'a irequires b' is read as: a waits for everything that b waits for"
        _report_note(source, "irequires", message, int(schedule.line[first]))
    states_nic = schedule.nic >= 0
    if np.any(states_nic):
        first = int(np.argmax(states_nic))
        message = "nic numbers are ignored: the hub's network decides the routes of messages"
        _report_note(source, "nic", message, int(schedule.line[first]))
    is_large = schedule.tag > _LARGEST_TAG
    if np.any(is_large):
        first = int(np.argmax(is_large))
        message = "tags above 2^31 - 1 are replaced by free numbers, equal ones by the same"
        _report_note(source, "large-tag", message, int(schedule.line[first]))
        # ATLAHS writes the number of the chunk, the channel and the number of the collective as the
        # digits of one tag.
        distinct, which = np.unique(schedule.tag, return_inverse=True)
        kept = distinct[distinct <= _LARGEST_TAG]
        free = np.setdiff1d(np.arange(len(distinct), dtype=np.int64), kept)
        # The distinct tags ascend, so that the large ones are last.
        new_tags = np.concatenate((kept, free))[: len(distinct)]
        schedule = replace(schedule, tag=new_tags[which])
    provenance = Provenance("goal", "", source.name, source.sha256())
    return build_algorithm(schedule, source.name, provenance)


def build_algorithm(schedule: GoalSchedule, file: str | None, provenance: Provenance) -> Algorithm:
    """Build the algorithm of a schedule: one step per operation, with times but unknown buffers.

    Steps are grouped by rank, in the order of the operations. If an operation of any rank depends
    on a later one, the steps of the ranks are put in topological order; of ready steps, the first
    is next.

    - A message has its bytes as units, its tag as channel and no duration (-1).
    - A calc has its time in ns as duration, 0 units and channel 0.
    - The lane is the cpu (-1 if not given), the source line that of the schedule; the nic is
      dropped.

    The collective is custom without expected results. INPUT and OUTPUT of every rank and the size
    of the algorithm are the largest total in bytes that any rank sends or receives, at least 1.
    Sends and receives need not match. `file`: name for error messages, or None.

    Raises `InputError`, in this order: `goal-dependencies` for more than `_MAX_HOPS` `irequires` in
    a chain, `crossing-dependency` between ranks, `cyclic-dependencies`, and `size-range` for totals
    above 2^62 bytes.
    """
    num_ranks = schedule.num_ranks
    edges = _find_dependencies(schedule, file)
    # One step per operation, in the order of operations. `amount` is the time of a calc, or the
    # bytes of a message. The table refuses cyclic dependencies.
    is_message = schedule.operation != GoalOperation.CALC
    is_kind = [schedule.operation == operation for operation in _KINDS]
    steps = StepTable.from_columns(
        num_ranks,
        {
            "rank": schedule.rank,
            "kind": np.select(is_kind, list(_KINDS.values())),
            "peer": schedule.peer,
            "channel": np.where(is_message, schedule.tag, 0),
            "count": np.where(is_message, schedule.amount, 0),
            "lane": schedule.cpu,
            "duration_ns": np.where(is_message, -1, schedule.amount),
            "source_line": schedule.line,
        },
        edges,
        file=file,
    )
    units = _count_max_bytes(schedule, file)
    buffer_units = np.full(num_ranks, units, np.int64)
    # Every rank has data; the file defines only the amounts that are moved.
    contract = CustomContract(buffer_units, buffer_units, np.ones(num_ranks, np.bool_))
    collective = Collective(
        CollectiveKind.CUSTOM,
        num_ranks,
        units,
        contract=contract,
    )
    scratch_units = np.zeros(num_ranks, np.int64)
    return Algorithm(collective, steps, scratch_units, provenance, units)


def samples() -> Sequence[Source]:
    """Return a list with one small correct file for the conformance kit.

    Notes of the reader about this file are discarded.
    """
    quiet = Source.of_bytes("two-ranks.goal", _SAMPLE)
    # Suppress the reader's notes about ignored parts: the checks do not need them.
    return [Source(quiet.name, quiet.parts, report=lambda diagnostic: None)]


def _find_dependencies(schedule: GoalSchedule, file: str | None) -> tuple[Int64Array, Int64Array]:
    """Return all dependencies of a schedule as two int64 columns: parents and their children.

    A child waits for the end of its parent. First come the pairs of `requires`, in their order;
    pairs may be repeated. Then come pairs that replace `irequires` (waiting for a start), which the
    hub does not have. An operation starts when its predecessors have finished. So `c irequires b`
    becomes: c waits for all operations that b requires, possibly none. If also `b irequires a`, c
    waits for all operations that a requires too, and so on. Pairs over fewer `irequires` come
    first.

    Raises `InputError` (`goal-dependencies`, with the line of a waiting operation) if more than
    `_MAX_HOPS` (1000) `irequires` follow one another or form a cycle.
    """
    parents, children = [schedule.parent], [schedule.child]
    # For a row, the rows whose end it waits for, and those whose start it waits for.
    finished = _Followers(schedule.child, schedule.parent, len(schedule))
    started = _Followers(schedule.early_child, schedule.early_parent, len(schedule))
    early, late = schedule.early_parent, schedule.early_child
    for _ in range(_MAX_HOPS):
        if not len(early):
            break
        # The predecessors of `early` become predecessors of the waiting row `late`.
        parent, which = finished.look_up(early)
        parents.append(parent)
        children.append(late[which])
        early, which = started.look_up(early)
        # Several paths of waits may lead from one operation to another: each pair is kept once.
        late = late[which]
        _, first = np.unique(early * len(schedule) + late, return_index=True)
        first.sort()
        early, late = early[first], late[first]
    if not len(early):
        return np.concatenate(parents), np.concatenate(children)
    line = int(schedule.line[late[0]])
    raise InputError(
        f"more than {_MAX_HOPS} irequires follow one another, or form a cycle",
        location=Location(file, line),
        cure="shorten the chain of irequires, or write requires",
        code="goal-dependencies",
    )


class _Followers:
    """For every row the rows at the other end of its pairs, as a CSR table."""

    def __init__(self, key: Int64Array, value: Int64Array, rows: int) -> None:
        self._indptr, self._value = csr(key, value, rows)

    def look_up(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the values of some rows, and for each value the index of its row in `rows`.

        A row has any number of values, possibly none, in the order of the pairs. Values are ordered
        by this index; a repeated row gives its values again.
        """
        first = self._indptr[rows]
        count = self._indptr[rows + 1] - first
        which = np.repeat(np.arange(len(rows)), count)
        return self._value[expanded_ranges(first, count)], which


def _count_max_bytes(schedule: GoalSchedule, file: str | None) -> int:
    """Return the largest number of bytes that a rank sends in total, or receives in total.

    Sent and received bytes of a rank are not added. The result is at least 1. Raises
    `InputError` (`size-range`) if a rank sends or receives more than 2^62 bytes. `file`: its
    name for the error, None if unknown.
    """
    max_bytes = 1
    for operation in (GoalOperation.SEND, GoalOperation.RECV):
        rows = schedule.operation == operation
        rank, amount = schedule.rank[rows], schedule.amount[rows]
        # Sums of doubles only show whether the exact integers are in range.
        approximate_totals = np.bincount(rank, amount.astype(np.float64), schedule.num_ranks)
        if float(approximate_totals.max(initial=0)) > MAX_UNITS:
            raise InputError(
                "a rank sends or receives more than 2^62 bytes",
                location=Location(file),
                code="size-range",
            )
        total = np.zeros(schedule.num_ranks, np.int64)
        np.add.at(total, rank, amount)
        max_bytes = max(max_bytes, int(total.max(initial=0)))
    return max_bytes


def _report_note(source: Source, code: str, message: str, line: int) -> None:
    """Report to the user how a part of the file is interpreted."""
    source.report(
        Diagnostic(
            code,
            message,
            Severity.NOTE,
            Location(source.name, line),
        )
    )
