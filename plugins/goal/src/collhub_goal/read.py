"""Read GOAL as a timing-only algorithm: messages in bytes, work in nanoseconds, and what waits for what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collhub_goal.parse import parse
from collhub_goal.schedule import Int64Array, Operation, Schedule
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
from hub_core.plugin_api import Options, Source

_KINDS = {
    Operation.CALC: StepKind.COMPUTE,
    Operation.SEND: StepKind.SEND,
    Operation.RECV: StepKind.RECV,
}
_MOST_HOPS = 1000


def read(source: Source, options: Options) -> Algorithm:
    """One unit is one byte; a cpu becomes a lane, a tag a channel. Raises `InputError` with the line of what is wrong."""
    del options
    schedule = parse(source.content(), source.name)
    if len(schedule.early_child):
        message = "'a irequires b' is read as: a waits for whatever b waits for"
        _report(source, "irequires", message, int(schedule.line[schedule.early_child[0]]))
    if np.any(schedule.nic >= 0):
        line = int(schedule.line[np.argmax(schedule.nic >= 0)])
        _report(
            source,
            "nic",
            "numbers of nics are left out: a network of the hub decides which way messages go",
            line,
        )
    provenance = Provenance("goal", "", source.name, source.sha256())
    return algorithm_of(schedule, source.name, provenance)


def algorithm_of(schedule: Schedule, file: str | None, provenance: Provenance) -> Algorithm:
    """The timing-only algorithm of a schedule. The full buffer is the most bytes that one rank sends or receives."""
    is_message = schedule.operation != Operation.CALC
    columns = {
        "rank": schedule.rank,
        "kind": np.select(
            [schedule.operation == operation for operation in _KINDS], list(_KINDS.values())
        ),
        "peer": schedule.peer,
        "channel": np.where(is_message, schedule.tag, 0),
        "count": np.where(is_message, schedule.amount, 0),
        "lane": schedule.cpu,
        "duration_ns": np.where(is_message, -1, schedule.amount),
        "source_line": schedule.line,
    }
    edges = _required(schedule, file)
    steps = StepTable.from_columns(schedule.num_ranks, columns, edges, file=file)
    units = _most_bytes(schedule, file)
    whole = np.full(schedule.num_ranks, units, np.int64)
    contract = CustomContract(whole, whole, np.ones(schedule.num_ranks, np.bool_))
    collective = Collective(CollectiveKind.CUSTOM, schedule.num_ranks, units, contract=contract)
    return Algorithm(collective, steps, np.zeros(schedule.num_ranks, np.int64), provenance, units)


def samples() -> Sequence[Source]:
    """A small correct file for the conformance kit."""
    text = b"""num_ranks 2

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
    quiet = Source.of_bytes("two-ranks.goal", text)
    # What it leaves out of this file, the reader reports; a check of the plugin need not show it.
    return [Source(quiet.name, quiet.parts, report=lambda found: None)]


def _required(schedule: Schedule, file: str | None) -> tuple[Int64Array, Int64Array]:
    """(parent, child) of all dependencies on the end of an operation, those in place of `irequires` included."""
    parents, children = [schedule.parent], [schedule.child]
    finished = _Followers(schedule.child, schedule.parent, len(schedule))
    started = _Followers(schedule.early_child, schedule.early_parent, len(schedule))
    early, late = schedule.early_parent, schedule.early_child
    for _ in range(_MOST_HOPS):
        if not len(early):
            return np.concatenate(parents), np.concatenate(children)
        found, which = finished.of(early)
        parents.append(found)
        children.append(late[which])
        early, which = started.of(early)
        late = late[which]
    line = int(schedule.line[late[0]])
    raise InputError(
        f"more than {_MOST_HOPS} irequires follow one another, or form a cycle",
        location=Location(file, line),
    )


class _Followers:
    """For every row the rows on the other side of its pairs."""

    def __init__(self, key: Int64Array, value: Int64Array, rows: int) -> None:
        order = np.argsort(key, kind="stable")
        self._value = value[order]
        self._start = np.searchsorted(key[order], np.arange(rows + 1))

    def of(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The values of all `rows`, and for each the index in `rows` to which it belongs."""
        count = self._start[rows + 1] - self._start[rows]
        which = np.repeat(np.arange(len(rows)), count)
        within = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        return self._value[self._start[rows][which] + within], which


def _most_bytes(schedule: Schedule, file: str | None) -> int:
    most = 1
    for operation in (Operation.SEND, Operation.RECV):
        rows = schedule.operation == operation
        # Sums of doubles only tell whether the whole numbers are in range.
        rough = np.bincount(
            schedule.rank[rows], schedule.amount[rows].astype(np.float64), schedule.num_ranks
        )
        if float(rough.max(initial=0)) > MAX_UNITS:
            raise InputError(
                "a rank sends or receives more than 2^62 bytes",
                location=Location(file),
                code="size-range",
            )
        total = np.zeros(schedule.num_ranks, np.int64)
        np.add.at(total, schedule.rank[rows], schedule.amount[rows])
        most = max(most, int(total.max(initial=0)))
    return most


def _report(source: Source, code: str, message: str, line: int) -> None:
    source.report(Diagnostic(code, message, Severity.NOTE, Location(source.name, line)))
