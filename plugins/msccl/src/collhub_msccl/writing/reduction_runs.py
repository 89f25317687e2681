"""Find chains of local reductions into one destination, which the runtimes execute in one pass.

The rule is that of the runtimes' parsers, see `reading.dependencies`: adjacent reductions with one
destination and one source buffer, no wait and no flag between them, up to 16 operands. So that no
step comes between them, the writer treats a chain as one step whose waits all precede the first
reduction. A chain may therefore delay its first reduction, and the steps that wait for an earlier
reduction of the chain; `ReductionTimes` excludes such chains.

For runtimes without fused steps (ROCm/rccl), receives that reduce are replaced by plain steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.accesses import Columns, Edges
from collhub_msccl.runtimes.known_runtimes import MAX_OPERANDS
from collhub_msccl.thread_block_program import StepType, allocate_slots
from collhub_msccl.writing.draft import StepDraft
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Buffer, StepKind

NEVER = np.iinfo(np.int64).max
"""Time after all waits."""


@dataclass(frozen=True, slots=True, eq=False)
class ReductionTimes:
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
    times: ReductionTimes | None = None,
) -> Edges:
    """Return chains of local reductions, which the runtimes execute in one pass.

    The result is two int64 arrays: for every member of a chain except the first, (first row of the
    chain, row of the member). Within a chain they are in the order of execution. Both are empty
    without chains. A chain of one reduction is not in the result.

    `first`, `second`: pairs (earlier row, later row), examined in order. A pair links its rows if
    all of this holds: both are REDUCE steps, they can be fused (`is_fusable_pair`), the earlier
    row has no successor yet, the later row no predecessor. Linked rows form sequences, in the order
    of the links at their first rows. A sequence is divided into chains; a new one begins if:

    - The chain has `MAX_OPERANDS` (16) reductions.
    - With `times`: the next reduction would delay the first one of the chain, or it ends after
      another thread block needs the result of a member.
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
    """Return which pairs of reductions may be executed in one pass: bool[pairs].

    Both reductions must have the same destination (buffer and offset), source buffer and
    count, because the runtime uses the count of the last one for all; source offsets may
    differ. The source and destination of each must not overlap, even if INPUT and OUTPUT
    share memory, because the operand would be read before or after the result changes.
    `columns`: columns of all rows. `first`, `second`: rows of the pairs, which must be
    reductions (not checked).
    """
    is_same = np.ones(len(first), np.bool_)
    for name in ("dst_buffer", "dst_offset", "src_buffer", "count"):
        is_same &= columns[name][first] == columns[name][second]
    return is_same & _is_disjoint(columns, first) & _is_disjoint(columns, second)


def _is_disjoint(columns: Columns, row: Int64Array) -> BoolArray:
    """Return a mask of the rows whose source and destination share no memory in any mode.

    Within one buffer, the offsets must differ by at least the count. Of two different buffers, one
    must be SCRATCH, because INPUT and OUTPUT can be the same memory.
    """
    source, target = columns["src_buffer"][row], columns["dst_buffer"][row]
    distance = np.abs(columns["src_offset"][row] - columns["dst_offset"][row])
    # INPUT and OUTPUT can be the same memory; SCRATCH is always separate.
    is_foreign = (source == Buffer.SCRATCH) | (target == Buffer.SCRATCH)
    is_separate: BoolArray = np.where(
        source == target, distance >= columns["count"][row], is_foreign
    )
    return is_separate


def _list_pairs(
    start: int, following: dict[int, int], times: ReductionTimes | None
) -> list[tuple[int, int]]:
    """Divide a sequence of reductions into chains; return pairs (first, later member) of each.

    `following`: the successor of each reduction; the sequence begins at `start`. A chain ends, and
    the next reduction begins a new one, in these cases:

    - The chain has 16 members (`MAX_OPERANDS`).
    - With `times`: the next reduction is ready only after the begin of the chain's first member, so
      that it would delay the chain.
    - With `times`: the next reduction ends after the first time at which another thread block needs
      the result of a member.

    A chain of one reduction has no pair.
    """
    pairs: list[tuple[int, int]] = []
    run, row = [start], following.get(start)
    while row is not None:
        is_full = len(run) == MAX_OPERANDS
        # One more reduction would make the chain begin later, or finish too late for other blocks.
        is_delaying = times is not None and (
            times.ready[row] > times.begin[run[0]] or times.needed[run].min() < times.end[row]
        )
        if is_full or is_delaying:
            run = [row]
        else:
            pairs.append((run[0], row))
            run.append(row)
        row = following.get(row)
    return pairs


REGION = ("src_buffer", "src_offset", "dst_buffer", "dst_offset")


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Steps before positions are assigned: columns of the file by name.

    `row`: head that they belong to, ascending; `key`: position among the steps of that head, from
    1.
    """

    columns: dict[str, Int64Array]
    row: Int64Array
    key: Int64Array


def unfuse_reducing_receives(
    steps: Steps,
    block: Int64Array,
    block_rank: Int64Array,
    scratch: Int64Array,
    bases: tuple[Int64Array, ...],
) -> tuple[Steps, Int64Array]:
    """Replace each `rrc` step (dst = received + src) by steps for runtimes without `rrc`.

    The replacement depends on the addresses of src and dst in all modes (in place, out of
    place):

    - src and dst never overlap: `r` to dst, then `re` dst += src.
    - src and dst always have the same address: `r` to a slot, then `re` dst += slot.
    - Otherwise: `r` to a slot, `re` slot += src, then `cpy` from the slot to dst.

    A slot is additional scratch after that of the rank. A thread block has at most one slot,
    as large as its largest step that needs one, because a block executes one step at a time.

    `block`: thread block of each step. `block_rank`: rank of each block. `scratch`: units by
    rank. `bases`: for each mode the first address of each buffer, int64[ranks, buffers].

    Returns (steps, scratch in units by rank with slots). Each `r` has the position of its
    `rrc`. After all given steps come all `re` (`key` 2), then all `cpy` (`key` 3), with the
    `row` of their `rrc`. The arguments are not changed.
    """
    reducing = np.flatnonzero(steps.columns["type"] == StepType.RECV_REDUCE_COPY)
    receive_columns = {name: column[reducing] for name, column in steps.columns.items()}
    # Whether source and destination are equal, or disjoint, in every mode.
    rank = block_rank[block[reducing]]
    is_one = np.ones(len(rank), np.bool_)
    is_apart = np.ones(len(rank), np.bool_)
    for base in bases:
        # Addresses, so that buffers aliased in a mode count as the same memory.
        target = base[rank, receive_columns["dst_buffer"]] + receive_columns["dst_offset"]
        source = base[rank, receive_columns["src_buffer"]] + receive_columns["src_offset"]
        distance = target - source
        is_one &= distance == 0
        is_apart &= np.abs(distance) >= receive_columns["count"]
    # Neither in all modes: only a separate slot is correct in each.
    is_copied = ~is_one & ~is_apart
    block_of_step, count = block[reducing], receive_columns["count"]
    slot_of_block, scratch = allocate_slots(
        count[~is_apart], block_of_step[~is_apart], block_rank, scratch
    )
    slot = slot_of_block[block_of_step]
    receive = _set_type(_move_to_slot(receive_columns, "dst", slot, ~is_apart), StepType.RECV)
    reduce = _move_to_slot(receive_columns, "src", slot, is_one)
    reduce = _set_type(_move_to_slot(reduce, "dst", slot, is_copied), StepType.REDUCE)
    copy = _set_type(_move_to_slot(receive_columns, "src", slot, ~is_one), StepType.COPY)
    copy = {name: column[is_copied] for name, column in copy.items()}
    columns: dict[str, Int64Array] = {}
    for name, column in steps.columns.items():
        first = column.copy()
        first[reducing] = receive[name]
        columns[name] = np.concatenate([first, reduce[name], copy[name]])
    # The copies follow the reductions of their step, which follow the receives.
    second_row = steps.row[reducing]
    third_row = second_row[is_copied]
    row = np.concatenate([steps.row, second_row, third_row])
    key = np.concatenate([steps.key, np.full(len(second_row), 2), np.full(len(third_row), 3)])
    return Steps(columns, row, key), scratch


def _set_type(columns: dict[str, Int64Array], step_type: StepType) -> dict[str, Int64Array]:
    """Return the columns of steps with one type for all of them.

    The given mapping is not changed; its other columns are shared.
    """
    types = np.full(len(columns["count"]), step_type, np.int64)
    return {**columns, "type": types}


def _move_to_slot(
    columns: dict[str, Int64Array],
    side: str,
    slot: Int64Array,
    is_moved: BoolArray,
) -> dict[str, Int64Array]:
    """Return a copy of the columns with one side of some steps moved to a slot in SCRATCH.

    `side`: `src` or `dst`. Where `is_moved`, the buffer of this side becomes SCRATCH and its offset
    the entry of `slot`. The argument is not changed; other columns are not copied.
    """
    buffer, offset = f"{side}_buffer", f"{side}_offset"
    return {
        **columns,
        buffer: np.where(is_moved, int(Buffer.SCRATCH), columns[buffer]),
        offset: np.where(is_moved, slot, columns[offset]),
    }
