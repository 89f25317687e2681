"""Read and write accesses of messages to blocks, and their order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_classic.message_plan import MessagePlan
from hub_core.columns import BoolArray, Int64Array, group_of_entry, run_mask

NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class BlockAccesses:
    """Accesses as columns, one entry per block of every message, in the order of the plan.

    `message`, `block`: of the entry. `read_after`: the entry whose write the source reads, or -1 if
    it reads the input. `write_after`: the entry that wrote the destination's block last, or -1.
    `read_before`: the entry whose write overwrites the data that the source reads, or -1.
    `is_last`: no later write to this block of the destination. `crosses`: in the round of the
    write, the destination sends the same block.
    """

    message: Int64Array
    block: Int64Array
    read_after: Int64Array
    write_after: Int64Array
    read_before: Int64Array
    is_last: BoolArray
    crosses: BoolArray

    @classmethod
    def of(cls, plan: MessagePlan) -> BlockAccesses:
        """Sort all accesses to each (rank, block): by round, reads first, then in the order of the
        plan.

        Cost: one sort of the entries.
        """
        message = group_of_entry(plan.indptr)
        entries = len(message)
        # The first half of the accesses are reads, the second half writes.
        rank = np.concatenate([plan.source[message], plan.destination[message]])
        location = rank * plan.num_blocks + np.tile(plan.blocks, 2)
        time = np.concatenate([plan.round[message] * 2, plan.round[message] * 2 + 1])
        order = np.lexsort((time, location))
        is_write = order >= entries
        position = np.arange(2 * entries)
        start = np.maximum.accumulate(np.where(run_mask(location[order]), position, 0))
        before = _find_last_marked(is_write, start)
        is_final, after = _find_next_marked(is_write, location[order])
        read_before_in_round = _find_last_marked(~is_write, start)
        same_round = time[order][read_before_in_round] // 2 == time[order] // 2
        crosses = (read_before_in_round >= 0) & same_round
        entry = order % max(entries, 1)
        neighbours = {name: np.empty(2 * entries, np.int64) for name in ("before", "after")}
        neighbours["before"][order] = np.where(before >= 0, entry[before], NONE)
        neighbours["after"][order] = np.where(after >= 0, entry[after], NONE)
        last, crossing = np.empty(2 * entries, np.bool_), np.empty(2 * entries, np.bool_)
        last[order], crossing[order] = is_final, crosses
        return cls(
            message,
            plan.blocks,
            neighbours["before"][:entries],
            neighbours["before"][entries:],
            neighbours["after"][:entries],
            last[entries:],
            crossing[entries:],
        )


def _find_last_marked(is_marked: BoolArray, start: Int64Array) -> Int64Array:
    """Find per position the last marked position before it and not before `start`, or -1."""
    position = np.arange(len(is_marked))
    latest = np.maximum.accumulate(np.where(is_marked, position, NONE))
    earlier = np.concatenate([[NONE], latest[:-1]])[: len(is_marked)]
    return np.where(earlier >= start, earlier, NONE)


def _find_next_marked(is_marked: BoolArray, group: Int64Array) -> tuple[BoolArray, Int64Array]:
    """Find per position the next marked position of its group, or -1; also whether there is none.

    The result is (bool, int64). Groups are adjacent.
    """
    reversed_start = np.maximum.accumulate(
        np.where(run_mask(group[::-1]), np.arange(len(group)), 0)
    )
    reversed_last = _find_last_marked(is_marked[::-1], reversed_start)
    after = np.where(reversed_last >= 0, len(group) - 1 - reversed_last, NONE)[::-1]
    return after < 0, after
