"""Find a minimal set of waits between thread blocks that preserves the order of a program.

Steps are visited in a possible order of execution. Each block has a vector clock (Fidge 1988,
Mattern 1989): for every other block, its last step known to be finished. A pair that the clock
already implies needs no wait; for any other pair a wait is added, and the clocks are merged.
Invariant: a clock contains exactly the order implied by the chosen waits and by sequential
execution within blocks. Cost: waits times the blocks in their clocks.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from collhub_msccl.conflicts.accesses import Edges
from hub_core.columns import Int64Array, run_mask

Clock = dict[int, int]


@dataclass(slots=True)
class WaitHistory:
    """Steps of a block that waited, by ordinal, and its clock after each."""

    ordinals: list[int] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)

    def clock_at(self, ordinal: int) -> Clock:
        """Clock of the block when this step begins: after the last wait up to it."""
        index = bisect_right(self.ordinals, ordinal)
        return self.clocks[index - 1] if index else {}

    def last_clock(self) -> Clock:
        """Clock of the block after all its waits so far."""
        return self.clocks[-1] if self.clocks else {}

    def add(self, ordinal: int, clock: Clock) -> None:
        """Set the clock from step `ordinal` on, which must not be before the last one."""
        if self.ordinals and self.ordinals[-1] == ordinal:
            self.clocks[-1] = clock
            return
        self.ordinals.append(ordinal)
        self.clocks.append(clock)


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """Waits, and the order implied by them and by sequential execution within thread blocks.

    Per step, int64: `block`, `ordinal` (position in the block), `time` (a possible order of
    execution); `step_of_row`: int64 per row. `parents`, `children`: the waits between steps of
    different blocks, sorted by the waiting step. `history`: by block.
    """

    block: Int64Array
    ordinal: Int64Array
    time: Int64Array
    step_of_row: Int64Array
    parents: Int64Array
    children: Int64Array
    history: dict[int, WaitHistory]

    def is_before(
        self,
        parent_block: int,
        at: int,
        block_of_step: int,
        start: int,
    ) -> bool:
        """Whether step `at` of block `parent_block` is finished before step `start` of block
        `block_of_step` begins."""
        if parent_block == block_of_step:
            return at < start
        history = self.history.get(block_of_step)
        return history is not None and history.clock_at(start).get(parent_block, -1) >= at


def find_waits(
    block: Int64Array,
    ordinal: Int64Array,
    time: Int64Array,
    step_of_row: Int64Array,
    edges: Edges,
) -> Knowledge:
    """Select the pairs (parent row, waiting row) that other pairs and block order do not imply.

    A step waits for at most one step of each other block.
    """
    parents, children = step_of_row[edges[0]], step_of_row[edges[1]]
    # Order within a block needs no wait.
    is_crossing = block[parents] != block[children]
    pairs = parents[is_crossing], children[is_crossing]
    parents, children = _latest_of_each_block(block, ordinal, pairs)
    # In order of execution, so that the clocks of parents are final; the latest parent first,
    # because it implies most.
    order = np.lexsort((-time[parents], children, time[children]))
    parents, children = parents[order], children[order]
    kept, history = _not_known_before(block, ordinal, parents, children)
    parents, children = parents[kept], children[kept]
    order = np.lexsort((parents, children))
    return Knowledge(
        block,
        ordinal,
        time,
        step_of_row,
        parents[order],
        children[order],
        history,
    )


def _latest_of_each_block(
    block: Int64Array,
    ordinal: Int64Array,
    pairs: Edges,
) -> Edges:
    """Only the latest parent of each (waiting step, block of the parent)."""
    parents, children = pairs
    # A finished step implies that the earlier steps of its block are finished.
    order = np.lexsort((ordinal[parents], block[parents], children))
    parents, children = parents[order], children[order]
    # The last parent of a group precedes the first of the next.
    is_last = np.roll(run_mask(children, block[parents]), -1)
    return parents[is_last], children[is_last]


def _not_known_before(
    block: Int64Array,
    ordinal: Int64Array,
    parents: Int64Array,
    children: Int64Array,
) -> tuple[list[int], dict[int, WaitHistory]]:
    """Indices of the pairs that the clock of the waiting block does not yet imply, and the
    histories."""
    histories: dict[int, WaitHistory] = {}
    kept: list[int] = []
    columns = (block[children], ordinal[children], block[parents], ordinal[parents])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for index, (block_of_step, at, parent_block, wanted) in enumerate(rows):
        history = histories.setdefault(block_of_step, WaitHistory())
        clock = history.last_clock()
        # Implied by earlier waits of this block, or of the blocks that it waited for.
        if clock.get(parent_block, -1) >= wanted:
            continue
        kept.append(index)
        parent_history = histories.get(parent_block)
        learned = parent_history.clock_at(wanted) if parent_history is not None else {}
        history.add(at, _merged(clock, learned, parent_block, wanted))
    return kept, histories


def _merged(
    clock: Clock,
    learned: Clock,
    parent_block: int,
    wanted: int,
) -> Clock:
    """Clock after also waiting for step `wanted` of block `parent_block`, whose clock was
    `learned`."""
    # A copy: the clocks of earlier steps must not change.
    merged = dict(clock)
    for other, step in learned.items():
        merged[other] = max(step, merged.get(other, -1))
    merged[parent_block] = max(wanted, merged.get(parent_block, -1))
    return merged
