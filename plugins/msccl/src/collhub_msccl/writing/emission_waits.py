"""Find the fewest waits between thread blocks that keep the order of a program, and what each step knows to be done."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Clock = dict[int, int]
History = dict[int, tuple[list[int], list[Clock]]]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Waits, and the order that follows from them and from thread blocks doing one step at a time.

    Per step, int64: `block`, `ordinal` (place in the block), `time` (a possible order of execution); `step_of_row`:
    int64 per row. `parents`, `children`: the waits, steps of two blocks, sorted by the waiting step. `history`: for each
    block its steps that waited and, after each, the last step known to be done of every other block.
    """

    block: Int64Array
    ordinal: Int64Array
    time: Int64Array
    step_of_row: Int64Array
    parents: Int64Array
    children: Int64Array
    history: History

    def is_before(self, there: int, at: int, here: int, start: int) -> bool:
        """Whether step `at` of block `there` is done before step `start` of block `here` begins."""
        if there == here:
            return at < start
        ordinals, clocks = self.history.get(here, ([], []))
        place = bisect_right(ordinals, start)
        return place > 0 and clocks[place - 1].get(there, -1) >= at


def find_waits(
    block: Int64Array,
    ordinal: Int64Array,
    time: Int64Array,
    step_of_row: Int64Array,
    edges: tuple[Int64Array, Int64Array],
) -> Knowledge:
    """Of the pairs of rows (parent, waiting), take those that do not follow from others and the order within blocks.

    A step waits for at most one step of each other block.
    """
    parents, children = step_of_row[edges[0]], step_of_row[edges[1]]
    crossing = block[parents] != block[children]
    parents, children = _latest_of_each_block(block, ordinal, parents[crossing], children[crossing])
    # In order of execution, so that what a parent knows is known; its latest parent tells a step most.
    order = np.lexsort((-time[parents], children, time[children]))
    parents, children = parents[order], children[order]
    kept, history = _not_known_before(block, ordinal, parents, children)
    parents, children = parents[kept], children[kept]
    order = np.lexsort((parents, children))
    return Knowledge(block, ordinal, time, step_of_row, parents[order], children[order], history)


def _latest_of_each_block(
    block: Int64Array, ordinal: Int64Array, parents: Int64Array, children: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Only the last parent of each (waiting step, block of the parent)."""
    order = np.lexsort((ordinal[parents], block[parents], children))
    parents, children = parents[order], children[order]
    same = (children[1:] == children[:-1]) & (block[parents[1:]] == block[parents[:-1]])
    last = np.append(~same, True)[: len(parents)]
    return parents[last], children[last]


def _not_known_before(
    block: Int64Array, ordinal: Int64Array, parents: Int64Array, children: Int64Array
) -> tuple[list[int], History]:
    """Indices of the pairs that tell the waiting step's block something new."""
    history: History = {}
    columns = (block[children], ordinal[children], block[parents], ordinal[parents])
    kept: list[int] = []
    for index, (here, at, there, wanted) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        ordinals, clocks = history.setdefault(here, ([], []))
        clock = clocks[-1] if clocks else {}
        if clock.get(there, -1) >= wanted:
            continue
        kept.append(index)
        clock = _merged(clock, history.get(there), there, wanted)
        if ordinals and ordinals[-1] == at:
            clocks[-1] = clock
        else:
            ordinals.append(at)
            clocks.append(clock)
    return kept, history


def _merged(
    clock: Clock, its_history: tuple[list[int], list[Clock]] | None, there: int, wanted: int
) -> Clock:
    """What is known after also waiting for step `wanted` of block `there`."""
    merged = dict(clock)
    ordinals, clocks = its_history or ([], [])
    if place := bisect_right(ordinals, wanted):
        for other, step in clocks[place - 1].items():
            merged[other] = max(step, merged.get(other, -1))
    merged[there] = max(wanted, merged.get(there, -1))
    return merged
