"""Find runs of local reductions into one place, which the runtimes do in one pass.

The rule is that of the runtimes' parsers, see `reading.fusion`: neighbours with one destination and
one source buffer, no wait and no flag between them, up to 16 operands. So that nothing stands
between them, a run becomes one step of the writer: its waits all go before its first reduction.
A run may therefore delay its first reduction, and whatever waits for an earlier one of the run;
`RunTimes` excludes such runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array

from collhub_msccl.conflicts.accesses import Columns, Edges
from collhub_msccl.runtimes.known_runtimes import MAX_OPERANDS
from collhub_msccl.writing.draft import StepDraft
from hub_core.model import Buffer, StepKind

NEVER = np.iinfo(np.int64).max
"""Time at which nothing waits any more."""


@dataclass(frozen=True, slots=True, eq=False)
class RunTimes:
    """Times of rows while all reductions are single steps, int64 per row.

    `ready`: when the operands that other thread blocks provide are there; `begin`, `end`: of the
    row; `needed`: when the first row of another thread block begins that waits for this one.
    """

    ready: Int64Array
    begin: Int64Array
    end: Int64Array
    needed: Int64Array


def reduction_runs(
    draft: StepDraft,
    first: Int64Array,
    second: Int64Array,
    times: RunTimes | None = None,
) -> Edges:
    """(first reduction, later reduction) rows of every run, of these pairs of rows in order.

    With `times`, only runs that delay no row.
    """
    joins = draft.is_kind(StepKind.REDUCE)[first] & draft.is_kind(StepKind.REDUCE)[second]
    columns = {name: getattr(draft, name) for name in _COLUMNS}
    joins &= may_run(columns, first, second)
    following: dict[int, int] = {}
    has_one_before: set[int] = set()
    for one, other in zip(first[joins].tolist(), second[joins].tolist(), strict=True):
        if one not in following and other not in has_one_before:
            following[one] = other
            has_one_before.add(other)
    starts = [row for row in following if row not in has_one_before]
    pairs = [pair for start in starts for pair in _pairs_from(start, following, times)]
    leaders, members = np.asarray(pairs, np.int64).reshape(-1, 2).T
    return leaders, members


_COLUMNS = ("dst_buffer", "dst_offset", "src_buffer", "src_offset", "count")


def may_run(columns: Columns, first: Int64Array, second: Int64Array) -> BoolArray:
    """Of pairs of reductions, which can be done in one pass with the same result as one by one.

    The runtime moves the count of the last one for all. Operands that the result may lie in have to
    be read before or after it changes, so they stay apart.
    """
    is_same = np.ones(len(first), np.bool_)
    for name in ("dst_buffer", "dst_offset", "src_buffer", "count"):
        is_same &= columns[name][first] == columns[name][second]
    return is_same & _is_apart(columns, first) & _is_apart(columns, second)


def _is_apart(columns: Columns, row: Int64Array) -> BoolArray:
    """Whether source and destination of reductions share no memory in any mode."""
    source, target = columns["src_buffer"][row], columns["dst_buffer"][row]
    distance = np.abs(columns["src_offset"][row] - columns["dst_offset"][row])
    # INPUT and OUTPUT can be one memory, SCRATCH is never that of another buffer.
    is_foreign = (source == Buffer.SCRATCH) | (target == Buffer.SCRATCH)
    found: BoolArray = np.where(source == target, distance >= columns["count"][row], is_foreign)
    return found


def _pairs_from(
    start: int, following: dict[int, int], times: RunTimes | None
) -> list[tuple[int, int]]:
    """The pairs of the chain that begins at `start`."""
    pairs: list[tuple[int, int]] = []
    run, row = [start], following.get(start)
    while row is not None:
        is_full = len(run) == MAX_OPERANDS
        if is_full or (times is not None and _is_delaying(run, row, times)):
            run = [row]
        else:
            pairs.append((run[0], row))
            run.append(row)
        row = following.get(row)
    return pairs


def _is_delaying(run: list[int], row: int, times: RunTimes) -> bool:
    """Whether the run with one more reduction begins later, or ends too late for other blocks."""
    if times.ready[row] > times.begin[run[0]]:
        return True
    return bool(times.needed[run].min() < times.end[row])
