"""Replace receives that reduce by plain steps, for runtimes without fused steps (ROCm/rccl)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array, first_positions

from collhub_msccl.thread_block_program import StepType
from hub_core.model import Buffer

REGION = ("src_buffer", "src_offset", "dst_buffer", "dst_offset")


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Steps before they have positions: columns of the file by name.

    `row`: what they stand for, ascending; `key`: their place among the steps of that, the first one
    1.
    """

    columns: dict[str, Int64Array]
    row: Int64Array
    key: Int64Array


def unfused(
    steps: Steps,
    block: Int64Array,
    block_rank: Int64Array,
    scratch: Int64Array,
    bases: tuple[Int64Array, ...],
) -> tuple[Steps, Int64Array]:
    """Replace `rrc` (dst = received + src) by `r` and `re`; also return the scratch needed then.

    Where src and dst lie apart: `r` to dst, `re` dst += src. Where they are one place: `r` to a
    slot, `re` dst += slot. Where that differs from mode to mode, or they overlap: `r` to a slot,
    `re` slot += src, `cpy` slot to dst. A thread block does one step at a time, so one slot for
    each is enough.
    """
    reducing = np.flatnonzero(steps.columns["type"] == StepType.RECV_REDUCE_COPY)
    given = {name: column[reducing] for name, column in steps.columns.items()}
    is_one, is_apart = _relation(given, block_rank[block[reducing]], bases)
    # Neither in all modes: only a slot of its own is right in each.
    is_copied = ~is_one & ~is_apart
    slot, scratch = _slots(given["count"], block[reducing], ~is_apart, block_rank, scratch)
    receive = _typed(_moved(given, "dst", slot, ~is_apart), StepType.RECV)
    reduce = _moved(given, "src", slot, is_one)
    reduce = _typed(_moved(reduce, "dst", slot, is_copied), StepType.REDUCE)
    copy = _typed(_moved(given, "src", slot, ~is_one), StepType.COPY)
    copy = {name: column[is_copied] for name, column in copy.items()}
    columns: dict[str, Int64Array] = {}
    for name, column in steps.columns.items():
        first = column.copy()
        first[reducing] = receive[name]
        columns[name] = np.concatenate([first, reduce[name], copy[name]])
    # The copies stand behind the reductions of their step, those behind the receives.
    second_row = steps.row[reducing]
    third_row = second_row[is_copied]
    row = np.concatenate([steps.row, second_row, third_row])
    key = np.concatenate([steps.key, np.full(len(second_row), 2), np.full(len(third_row), 3)])
    return Steps(columns, row, key), scratch


def _typed(columns: dict[str, Int64Array], step_type: StepType) -> dict[str, Int64Array]:
    """The same columns with one type for all."""
    types = np.full(len(columns["count"]), step_type, np.int64)
    return {**columns, "type": types}


def _relation(
    given: dict[str, Int64Array],
    rank: Int64Array,
    bases: tuple[Int64Array, ...],
) -> tuple[BoolArray, BoolArray]:
    """Whether source and destination are one place in every mode, and whether apart in every."""
    is_one = np.ones(len(rank), np.bool_)
    is_apart = np.ones(len(rank), np.bool_)
    for base in bases:
        # Addresses, so that aliases of the mode count as the memory that they are.
        target = base[rank, given["dst_buffer"]] + given["dst_offset"]
        source = base[rank, given["src_buffer"]] + given["src_offset"]
        distance = target - source
        is_one &= distance == 0
        is_apart &= np.abs(distance) >= given["count"]
    return is_one, is_apart


def _slots(
    count: Int64Array,
    block: Int64Array,
    is_needed: BoolArray,
    block_rank: Int64Array,
    scratch: Int64Array,
) -> tuple[Int64Array, Int64Array]:
    """First unit of the slot of each step's thread block, and units of scratch of each rank.

    Slots lie behind the scratch so far, each as large as the largest step that needs it.
    """
    size = np.zeros(len(block_rank), np.int64)
    np.maximum.at(size, block[is_needed], count[is_needed])
    before = first_positions(size)
    of_rank = np.zeros(len(scratch), np.int64)
    np.add.at(of_rank, block_rank, size)
    before_rank = first_positions(of_rank)
    start = scratch[block_rank] + before - before_rank[block_rank]
    return start[block], scratch + of_rank


def _moved(
    given: dict[str, Int64Array],
    side: str,
    slot: Int64Array,
    is_moved: BoolArray,
) -> dict[str, Int64Array]:
    """The same columns with one side moved to the slot where `is_moved`."""
    buffer, offset = f"{side}_buffer", f"{side}_offset"
    return {
        **given,
        buffer: np.where(is_moved, int(Buffer.SCRATCH), given[buffer]),
        offset: np.where(is_moved, slot, given[offset]),
    }
