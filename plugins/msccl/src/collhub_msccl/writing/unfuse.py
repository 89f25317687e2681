"""Replace receives that reduce by plain steps, for runtimes without fused steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_msccl.thread_block_program import StepType
from hub_core.collectives import Buffer

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

REGION = ("src_buffer", "src_offset", "dst_buffer", "dst_offset")


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps before they have positions: columns of the file by name; `row`: what they stand for, ascending; `key`: their
    place among the steps of that, the first one 1."""

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
    """Replace `rrc` (dst = received + src) by `r` and `re`; also return the scratch that every rank needs then.

    Where src and dst lie apart: `r` to dst, `re` dst += src. Where they are one place: `r` to a slot, `re` dst += slot.
    Where that differs from mode to mode, or they overlap: `r` to a slot, `re` slot += src, `cpy` slot to dst. A thread
    block does one step at a time, so one slot for each is enough.
    """
    reducing = np.flatnonzero(steps.columns["type"] == StepType.RECV_REDUCE_COPY)
    given = {name: column[reducing] for name, column in steps.columns.items()}
    is_one, is_apart = _relation(given, block_rank[block[reducing]], bases)
    slot, scratch = _slots(given["count"], block[reducing], ~is_apart, block_rank, scratch)
    receive = _to(given, "dst", slot, ~is_apart) | {"type": np.full(len(reducing), StepType.RECV)}
    reduce = _to(_to(given, "src", slot, is_one), "dst", slot, ~is_one & ~is_apart)
    copy = {
        name: column[~is_one & ~is_apart]
        for name, column in _to(given, "src", slot, ~is_one).items()
    }
    columns = {name: column.copy() for name, column in steps.columns.items()}
    for name, column in receive.items():
        columns[name][reducing] = column
    reduce["type"] = np.full(len(reducing), StepType.REDUCE)
    copy["type"] = np.full(len(copy["count"]), StepType.COPY)
    row = np.concatenate([steps.row, steps.row[reducing], steps.row[reducing][~is_one & ~is_apart]])
    key = np.concatenate([steps.key, np.full(len(reducing), 2), np.full(len(copy["count"]), 3)])
    merged = {name: np.concatenate([columns[name], reduce[name], copy[name]]) for name in columns}
    return Steps(merged, row, key), scratch


def _relation(
    given: dict[str, Int64Array], rank: Int64Array, bases: tuple[Int64Array, ...]
) -> tuple[BoolArray, BoolArray]:
    """Whether source and destination are one place in every mode, and whether they lie apart in every mode."""
    is_one, is_apart = np.ones((2, len(rank)), np.bool_)
    for base in bases:
        distance = (
            base[rank, given["dst_buffer"]]
            + given["dst_offset"]
            - base[rank, given["src_buffer"]]
            - given["src_offset"]
        )
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
    """Where the slot of each step's thread block starts, behind the scratch so far, and the scratch in all."""
    size = np.zeros(len(block_rank), np.int64)
    np.maximum.at(size, block[is_needed], count[is_needed])
    before = np.cumsum(size) - size
    of_rank = np.zeros(len(scratch), np.int64)
    np.add.at(of_rank, block_rank, size)
    start = scratch[block_rank] + before - (np.cumsum(of_rank) - of_rank)[block_rank]
    return start[block], scratch + of_rank


def _to(
    given: dict[str, Int64Array], side: str, slot: Int64Array, moved: BoolArray
) -> dict[str, Int64Array]:
    """The same columns with one side moved to the slot where `moved`."""
    buffer, offset = f"{side}_buffer", f"{side}_offset"
    return {
        **given,
        buffer: np.where(moved, int(Buffer.SCRATCH), given[buffer]),
        offset: np.where(moved, slot, given[offset]),
    }
