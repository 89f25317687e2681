"""Read GOAL as a timing-only algorithm.

Messages are in bytes, work is in nanoseconds; what waits for what becomes data dependencies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from collhub_columns import Int64Array, csr, expanded_ranges

from collhub_goal.parse import parse
from collhub_goal.schedule import GoalOperation, GoalSchedule
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
# Traces chain two or three; a cycle would go on for ever.
_MOST_HOPS = 1000
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
    """Read a schedule: one unit is one byte; a cpu becomes a lane, a tag a channel.

    What is left out or read otherwise goes to `source.report`. Raises `InputError` with the line of
    what is wrong.
    """
    del options
    schedule = parse(source.content(), source.name)
    if len(schedule.early_child):
        first = int(schedule.early_child[0])
        message = "'a irequires b' is read as: a waits for whatever b waits for"
        _report(source, "irequires", message, int(schedule.line[first]))
    states_nic = schedule.nic >= 0
    if np.any(states_nic):
        first = int(np.argmax(states_nic))
        message = "numbers of nics are left out: a network of the hub decides which way messages go"
        _report(source, "nic", message, int(schedule.line[first]))
    provenance = Provenance("goal", "", source.name, source.sha256())
    return algorithm_of(schedule, source.name, provenance)


def algorithm_of(schedule: GoalSchedule, file: str | None, provenance: Provenance) -> Algorithm:
    """The timing-only algorithm of a schedule.

    The full buffer is the most bytes that one rank sends or receives. Raises `InputError` where
    dependencies or sizes make no algorithm.
    """
    num_ranks = schedule.num_ranks
    edges = _required(schedule, file)
    # Raises `InputError` for dependencies that form a cycle.
    steps = StepTable.from_columns(num_ranks, _step_columns(schedule), edges, file=file)
    units = _most_bytes(schedule, file)
    whole = np.full(num_ranks, units, np.int64)
    # Every rank has data, of which the file says nothing but how much moves.
    contract = CustomContract(whole, whole, np.ones(num_ranks, np.bool_))
    collective = Collective(
        CollectiveKind.CUSTOM,
        num_ranks,
        units,
        contract=contract,
    )
    scratch_units = np.zeros(num_ranks, np.int64)
    return Algorithm(collective, steps, scratch_units, provenance, units)


def _step_columns(schedule: GoalSchedule) -> dict[str, Int64Array]:
    """Columns of steps, one for each operation, in its order."""
    # A calc states its time in the column in which a message states its bytes.
    is_message = schedule.operation != GoalOperation.CALC
    is_kind = [schedule.operation == operation for operation in _KINDS]
    return {
        "rank": schedule.rank,
        "kind": np.select(is_kind, list(_KINDS.values())),
        "peer": schedule.peer,
        "channel": np.where(is_message, schedule.tag, 0),
        "count": np.where(is_message, schedule.amount, 0),
        "lane": schedule.cpu,
        "duration_ns": np.where(is_message, -1, schedule.amount),
        "source_line": schedule.line,
    }


def samples() -> Sequence[Source]:
    """A small correct file for the conformance kit."""
    quiet = Source.of_bytes("two-ranks.goal", _SAMPLE)
    # What it leaves out of this file, the reader reports; a check of the plugin need not show it.
    return [Source(quiet.name, quiet.parts, report=lambda found: None)]


def _required(schedule: GoalSchedule, file: str | None) -> tuple[Int64Array, Int64Array]:
    """(parent, child) of all dependencies on the end of an operation.

    The hub has no dependency on a start. An operation starts when what it waits for has ended, so
    `c irequires b` becomes: c waits for whatever b waits for. Where b itself waits for the start of
    a, c waits for the start of a too, and so on; each round of the loop follows one such hop.
    """
    parents, children = [schedule.parent], [schedule.child]
    # For a row, the rows whose end it waits for, and those whose start it waits for.
    finished = _Followers(schedule.child, schedule.parent, len(schedule))
    started = _Followers(schedule.early_child, schedule.early_parent, len(schedule))
    early, late = schedule.early_parent, schedule.early_child
    for _ in range(_MOST_HOPS):
        if not len(early):
            return np.concatenate(parents), np.concatenate(children)
        # What `early` waits for becomes what the waiting row `late` waits for.
        parent, which = finished.of(early)
        parents.append(parent)
        children.append(late[which])
        early, which = started.of(early)
        late = late[which]
    line = int(schedule.line[late[0]])
    raise InputError(
        f"more than {_MOST_HOPS} irequires follow one another, or form a cycle",
        location=Location(file, line),
    )


class _Followers:
    """For every row the rows on the other side of its pairs, as a CSR table."""

    def __init__(self, key: Int64Array, value: Int64Array, rows: int) -> None:
        self._indptr, self._value = csr(key, value, rows)

    def of(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The values of all `rows`, and for each the index in `rows` to which it belongs."""
        first = self._indptr[rows]
        count = self._indptr[rows + 1] - first
        which = np.repeat(np.arange(len(rows)), count)
        return self._value[expanded_ranges(first, count)], which


def _most_bytes(schedule: GoalSchedule, file: str | None) -> int:
    """The most bytes that one rank sends or receives, at least 1.

    Raises `InputError` where they are more than units may be.
    """
    most = 1
    for operation in (GoalOperation.SEND, GoalOperation.RECV):
        rows = schedule.operation == operation
        rank, amount = schedule.rank[rows], schedule.amount[rows]
        # Sums of doubles only tell whether the whole numbers are in range.
        rough = np.bincount(rank, amount.astype(np.float64), schedule.num_ranks)
        if float(rough.max(initial=0)) > MAX_UNITS:
            raise InputError(
                "a rank sends or receives more than 2^62 bytes",
                location=Location(file),
                code="size-range",
            )
        total = np.zeros(schedule.num_ranks, np.int64)
        np.add.at(total, rank, amount)
        most = max(most, int(total.max(initial=0)))
    return most


def _report(source: Source, code: str, message: str, line: int) -> None:
    """Tell the user how a part of the file is read."""
    source.report(
        Diagnostic(
            code,
            message,
            Severity.NOTE,
            Location(source.name, line),
        )
    )
