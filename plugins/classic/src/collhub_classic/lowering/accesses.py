"""What every message reads and writes, and in which order: the accesses to each block of a rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array, group_of_entry, run_mask

from collhub_classic.message_plan import MessagePlan

NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class BlockAccesses:
    """Accesses as columns with an entry for every block of every message, in the order of the plan.

    `message`, `block`: of the entry. `read_after`: the entry whose write the source reads, or -1:
    it reads what it was given. `write_after`: the entry that wrote the destination's block last, or
    -1. `read_before`: the entry whose write overwrites what the source reads, or -1. `is_last`:
    nothing writes there later. `crosses`: in the round of the write, its destination sends the same
    block on.
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
        """Order all accesses to each (rank, block): by round, reads first, then as planned.

        Cost: a sort of the entries.
        """
        message = group_of_entry(plan.indptr)
        entries = len(message)
        # Reads are the first half of the accesses, writes the second.
        rank = np.concatenate([plan.source[message], plan.destination[message]])
        place = rank * plan.num_blocks + np.tile(plan.blocks, 2)
        time = np.concatenate([plan.round[message] * 2, plan.round[message] * 2 + 1])
        order = np.lexsort((time, place))
        is_write = order >= entries
        position = np.arange(2 * entries)
        start = np.maximum.accumulate(np.where(run_mask(place[order]), position, 0))
        before = _last_marked(is_write, start)
        is_final, after = _next_marked(is_write, place[order])
        read_before_in_round = _last_marked(~is_write, start)
        same_round = time[order][read_before_in_round] // 2 == time[order] // 2
        crosses = (read_before_in_round >= 0) & same_round
        entry = order % max(entries, 1)
        found = {name: np.empty(2 * entries, np.int64) for name in ("before", "after")}
        found["before"][order] = np.where(before >= 0, entry[before], NONE)
        found["after"][order] = np.where(after >= 0, entry[after], NONE)
        last, crossing = np.empty(2 * entries, np.bool_), np.empty(2 * entries, np.bool_)
        last[order], crossing[order] = is_final, crosses
        return cls(
            message,
            plan.blocks,
            found["before"][:entries],
            found["before"][entries:],
            found["after"][:entries],
            last[entries:],
            crossing[entries:],
        )


def _last_marked(is_marked: BoolArray, start: Int64Array) -> Int64Array:
    """Per position, the last marked one before it that is not before `start`, or -1."""
    position = np.arange(len(is_marked))
    latest = np.maximum.accumulate(np.where(is_marked, position, NONE))
    earlier = np.concatenate([[NONE], latest[:-1]])[: len(is_marked)]
    return np.where(earlier >= start, earlier, NONE)


def _next_marked(is_marked: BoolArray, group: Int64Array) -> tuple[BoolArray, Int64Array]:
    """Per position, whether none of its group is marked after it, and the next that is, or -1."""
    turned_start = np.maximum.accumulate(np.where(run_mask(group[::-1]), np.arange(len(group)), 0))
    turned = _last_marked(is_marked[::-1], turned_start)
    after = np.where(turned >= 0, len(group) - 1 - turned, NONE)[::-1]
    return after < 0, after
