"""Find the fewest waits between thread blocks that keep the order of a program.

Steps are walked in a possible order of execution. Each block has a vector clock (Fidge 1988,
Mattern 1989): the last step of every other block that it knows to be done. A pair that the clock
knows already is no wait; any other one is, and the clocks merge. Invariant: a clock holds exactly
what follows from the waits taken and from blocks doing one step at a time. Cost: waits times the
blocks that they know.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
from collhub_columns import Int64Array, run_mask

from collhub_msccl.conflicts.accesses import Edges

Clock = dict[int, int]


@dataclass(slots=True)
class WaitHistory:
    """The steps of a block that waited, by their ordinal, and its clock after each."""

    ordinals: list[int] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)

    def clock_at(self, ordinal: int) -> Clock:
        """Clock of the block when it begins this step: after the last wait up to it."""
        place = bisect_right(self.ordinals, ordinal)
        return self.clocks[place - 1] if place else {}

    def last_clock(self) -> Clock:
        """Clock of the block after all its waits so far."""
        return self.clocks[-1] if self.clocks else {}

    def add(self, ordinal: int, clock: Clock) -> None:
        """Set the clock from a step on, which is none before the last one."""
        if self.ordinals and self.ordinals[-1] == ordinal:
            self.clocks[-1] = clock
            return
        self.ordinals.append(ordinal)
        self.clocks.append(clock)


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """Waits, and the order that follows from them and from thread blocks doing one step at a time.

    Per step, int64: `block`, `ordinal` (place in the block), `time` (a possible order of
    execution); `step_of_row`: int64 per row. `parents`, `children`: the waits, steps of two blocks,
    sorted by the waiting step. `history`: by block.
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
        there: int,
        at: int,
        here: int,
        start: int,
    ) -> bool:
        """Whether step `at` of block `there` is done before step `start` of `here` begins."""
        if there == here:
            return at < start
        history = self.history.get(here)
        return history is not None and history.clock_at(start).get(there, -1) >= at


def find_waits(
    block: Int64Array,
    ordinal: Int64Array,
    time: Int64Array,
    step_of_row: Int64Array,
    edges: Edges,
) -> Knowledge:
    """Of the pairs of rows (parent, waiting), take those that do not follow from others.

    Nor from the order within blocks. A step waits for at most one step of each other block.
    """
    parents, children = step_of_row[edges[0]], step_of_row[edges[1]]
    # Within a block, order is free.
    is_crossing = block[parents] != block[children]
    pairs = parents[is_crossing], children[is_crossing]
    parents, children = _latest_of_each_block(block, ordinal, pairs)
    # In order of execution, so that what a parent knows is known; its latest parent tells a step
    # most.
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
    """Only the last parent of each (waiting step, block of the parent)."""
    parents, children = pairs
    # A later step of a block being done means that earlier ones are.
    order = np.lexsort((ordinal[parents], block[parents], children))
    parents, children = parents[order], children[order]
    # The last of a run stands before the first of the next.
    is_last = np.roll(run_mask(children, block[parents]), -1)
    return parents[is_last], children[is_last]


def _not_known_before(
    block: Int64Array,
    ordinal: Int64Array,
    parents: Int64Array,
    children: Int64Array,
) -> tuple[list[int], dict[int, WaitHistory]]:
    """Indices of the pairs that tell the waiting step's block something new."""
    histories: dict[int, WaitHistory] = {}
    kept: list[int] = []
    columns = (block[children], ordinal[children], block[parents], ordinal[parents])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for index, (here, at, there, wanted) in enumerate(rows):
        history = histories.setdefault(here, WaitHistory())
        clock = history.last_clock()
        # It follows from earlier waits, its own or those of whom it waited for.
        if clock.get(there, -1) >= wanted:
            continue
        kept.append(index)
        parent_history = histories.get(there)
        learned = parent_history.clock_at(wanted) if parent_history is not None else {}
        history.add(at, _merged(clock, learned, there, wanted))
    return kept, histories


def _merged(
    clock: Clock,
    learned: Clock,
    there: int,
    wanted: int,
) -> Clock:
    """Clock after also waiting for step `wanted` of block `there`, whose clock was `learned`."""
    # A copy: the clocks of earlier steps stay as they are.
    merged = dict(clock)
    for other, step in learned.items():
        merged[other] = max(step, merged.get(other, -1))
    merged[there] = max(wanted, merged.get(there, -1))
    return merged
