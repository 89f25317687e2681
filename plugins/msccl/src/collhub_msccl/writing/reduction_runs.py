"""Find chains of local reductions into one destination, which the runtimes execute in one pass.

The rule is that of the runtimes' parsers, see `reading.fusion`: adjacent reductions with one
destination and one source buffer, no wait and no flag between them, up to 16 operands. So that no
step comes between them, the writer treats a chain as one step whose waits all precede the first
reduction. A chain may therefore delay its first reduction, and the steps that wait for an earlier
reduction of the chain; `RunTimes` excludes such chains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.conflicts.accesses import Columns, Edges
from collhub_msccl.runtimes.known_runtimes import MAX_OPERANDS
from collhub_msccl.writing.draft import StepDraft
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Buffer, StepKind

NEVER = np.iinfo(np.int64).max
"""Time after all waits."""


@dataclass(frozen=True, slots=True, eq=False)
class RunTimes:
    """Times of rows while all reductions are single steps, int64 per row.

    `ready`: when the operands from other thread blocks are available; `begin`, `end`: of the row;
    `needed`: begin of the first row of another thread block that waits for this row.
    """

    ready: Int64Array
    begin: Int64Array
    end: Int64Array
    needed: Int64Array


def find_reduction_chains(
    draft: StepDraft,
    first: Int64Array,
    second: Int64Array,
    times: RunTimes | None = None,
) -> Edges:
    """(first reduction, later reduction) of every chain, from these ordered pairs of rows.

    With `times`, only chains that delay no row.
    """
    joins = draft.is_kind(StepKind.REDUCE)[first] & draft.is_kind(StepKind.REDUCE)[second]
    columns = {name: getattr(draft, name) for name in _COLUMNS}
    joins &= is_fusable_pair(columns, first, second)
    following: dict[int, int] = {}
    has_predecessor: set[int] = set()
    for earlier, later in zip(first[joins].tolist(), second[joins].tolist(), strict=True):
        if earlier not in following and later not in has_predecessor:
            following[earlier] = later
            has_predecessor.add(later)
    starts = [row for row in following if row not in has_predecessor]
    pairs = [pair for start in starts for pair in _list_pairs(start, following, times)]
    leaders, members = np.asarray(pairs, np.int64).reshape(-1, 2).T
    return leaders, members


_COLUMNS = ("dst_buffer", "dst_offset", "src_buffer", "src_offset", "count")


def is_fusable_pair(columns: Columns, first: Int64Array, second: Int64Array) -> BoolArray:
    """Mask of the pairs of reductions that give the same result in one pass as one by one.

    The runtime moves the count of the last one for all. Reductions with overlapping source and
    destination stay separate, because the operand must be read before or after the result changes.
    """
    is_same = np.ones(len(first), np.bool_)
    for name in ("dst_buffer", "dst_offset", "src_buffer", "count"):
        is_same &= columns[name][first] == columns[name][second]
    return is_same & _is_disjoint(columns, first) & _is_disjoint(columns, second)


def _is_disjoint(columns: Columns, row: Int64Array) -> BoolArray:
    """Mask of reductions whose source and destination share no memory in any mode."""
    source, target = columns["src_buffer"][row], columns["dst_buffer"][row]
    distance = np.abs(columns["src_offset"][row] - columns["dst_offset"][row])
    # INPUT and OUTPUT can be the same memory; SCRATCH is always separate.
    is_foreign = (source == Buffer.SCRATCH) | (target == Buffer.SCRATCH)
    is_separate: BoolArray = np.where(
        source == target, distance >= columns["count"][row], is_foreign
    )
    return is_separate


def _list_pairs(
    start: int, following: dict[int, int], times: RunTimes | None
) -> list[tuple[int, int]]:
    """Pairs (first reduction of a chain, later one) along the successors of `start`.

    A chain is cut after 16 operands, and where a longer one would cause delays.
    """
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
    """Whether one more reduction makes the chain begin later, or finish too late for other
    blocks."""
    if times.ready[row] > times.begin[run[0]]:
        return True
    return bool(times.needed[run].min() < times.end[row])
