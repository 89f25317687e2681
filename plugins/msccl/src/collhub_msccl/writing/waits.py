"""Find the minimal waits between the steps of a file, and the order that they imply.

Steps are visited in a possible order of execution. Each block has a vector clock (Fidge 1988,
Mattern 1989): for every other block of its rank, its last step known to be finished. A pair that
the clock already implies needs no wait; for any other pair a wait is added, and the clocks are
merged. Invariant: a clock contains exactly the order implied by the chosen waits and by sequential
execution within blocks. Cost: waits times the blocks of a rank.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.writing.list_kernels import NONE, as_array, run
from hub_core.columns import BoolArray, Int32Array, Int64Array, first_positions, run_mask

# Entries of clocks that take as long as one node of list scheduling, in plain Python.
_ENTRIES_PER_NODE = 1 << 9


class _Waits(NamedTuple):
    """Pairs of steps, and the tables of their clocks.

    By pair, in order of execution: `own`, `at`: thread block of the waiting step and its position
    there; `other`, `needed`: those of the step for which it waits; `is_kept`: 1 for a necessary
    pair. `place`: by block its number within the rank; a clock has `width` entries, one for each
    place. The clocks of block b are numbered `slot_start[b]` to `slot_start[b]` + `number[b]` - 1:
    `slot_ordinal` is the position from which on a clock holds, `slot_clock` the row in `clocks`.
    """

    own: Any
    at: Any
    other: Any
    needed: Any
    is_kept: Any
    place: Any
    slot_start: Any
    number: Any
    slot_ordinal: Any
    slot_clock: Any
    clocks: Any
    width: int


def select_unknown_waits(waits: _Waits) -> tuple[Any, Any, Any, Any, Any]:
    """Select the necessary waits, and record the clock of a block after each of them.

    The pairs (waiting step, other step) must be in order of execution of the waiting steps, for
    each of them the latest other step first. A clock has, for each block of the rank, the position
    of its last step that is known to be finished, or NONE.

    - A pair is omitted if the clock of the waiting block already has the other step or a later one
      of its block.
    - Otherwise it is necessary. From the waiting step on, the clock of the waiting block also has
      the other step, and all that the clock of the other block has at that step; of two positions
      the larger one.

    Returns five arrays of the argument, which are changed in place: `is_kept` (1 for necessary
    pairs), `number` (clocks per block), `slot_ordinal` (position from which on a clock holds),
    `slot_clock` (its row in `clocks`) and `clocks`. Rows of `clocks` are filled in order; unused
    rows are not touched, so that they need no memory. Cost: pairs times `width`.
    """
    used = 0
    for index in range(len(waits.own)):
        own, other, needed = waits.own[index], waits.other[index], waits.needed[index]
        last = waits.slot_start[own] + waits.number[own] - 1
        has_clock = waits.number[own] > 0
        begin = waits.slot_clock[last] * waits.width
        # Implied by earlier waits of this block, or of the blocks that it waited for.
        if has_clock and waits.clocks[begin + waits.place[other]] >= needed:
            continue
        waits.is_kept[index] = 1
        # Bisection: the number of clocks of the other block that hold at the needed step.
        low, high = waits.slot_start[other], waits.slot_start[other] + waits.number[other]
        while low < high:
            middle = (low + high) // 2
            if waits.slot_ordinal[middle] <= needed:
                low = middle + 1
            else:
                high = middle
        if not has_clock or waits.slot_ordinal[last] != waits.at[index]:
            # A copy: the clocks of earlier steps must not change.
            target = used * waits.width
            for place in range(waits.width):
                waits.clocks[target + place] = waits.clocks[begin + place] if has_clock else NONE
            waits.slot_ordinal[last + 1] = waits.at[index]
            waits.slot_clock[last + 1] = used
            waits.number[own] += 1
            used += 1
            begin = target
        if low > waits.slot_start[other]:
            learned = waits.slot_clock[low - 1] * waits.width
            for place in range(waits.width):
                if waits.clocks[learned + place] > waits.clocks[begin + place]:
                    waits.clocks[begin + place] = waits.clocks[learned + place]
        known = begin + waits.place[other]
        waits.clocks[known] = max(waits.clocks[known], needed)
    return waits.is_kept, waits.number, waits.slot_ordinal, waits.slot_clock, waits.clocks


@dataclass(frozen=True, slots=True, eq=False)
class Clocks:
    """The clock of each thread block after each of its waits, see `_Waits`.

    `ordinals`, `rows`: by block, the positions from which on its clocks hold, and their rows in
    `entries`, int32[clocks, blocks of a rank]. `place`: by block its number within the rank.
    """

    ordinals: list[list[int]]
    rows: list[list[int]]
    entries: Int32Array
    place: list[int]

    def find_finished(self, block: int, ordinal: int, other: int) -> int:
        """Return the last step of `other` that has finished when step `ordinal` of `block` begins.

        The blocks are different ones of a rank. -1 if no step is known to have finished.
        """
        index = bisect_right(self.ordinals[block], ordinal)
        return int(self.entries[self.rows[block][index - 1], self.place[other]]) if index else -1


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """Waits, and the order implied by them and by sequential execution within thread blocks.

    Per step, int64: `block`, `ordinal` (position in the block), `time` (a possible order of
    execution); `step_of_row`: int64 per row. `parents`, `children`: the waits between steps of
    different blocks, sorted by the waiting step.
    """

    block: Int64Array
    ordinal: Int64Array
    time: Int64Array
    step_of_row: Int64Array
    parents: Int64Array
    children: Int64Array
    clocks: Clocks

    def is_before(
        self,
        parent_block: int,
        at: int,
        block_of_step: int,
        start: int,
    ) -> bool:
        """Return whether step `at` of one block is known to finish before step `start` of another.

        `parent_block`: thread block of `at`; `block_of_step`: that of `start`, of the same rank;
        steps are counted within their block. Within one block the result is `at` < `start`.
        Otherwise it is True only if the recorded waits of the second block up to and including
        `start` imply it.
        """
        if parent_block == block_of_step:
            return at < start
        return self.clocks.find_finished(block_of_step, start, parent_block) >= at


def find_waits(
    block: Int64Array,
    ordinal: Int64Array,
    time: Int64Array,
    step_of_row: Int64Array,
    edges: Edges,
    rank_of_block: Int64Array,
) -> Knowledge:
    """Find the waits between thread blocks that must be written.

    `block`, `ordinal`, `time`: for each step its thread block, its position in it, and its position
    in the order of execution. `step_of_row`: step of each row. `edges`: pairs of rows of a rank
    that must keep their order. `rank_of_block`: ascending. A wait is left out if the order within a
    block or other waits imply it; a step waits for at most one step of each other block, the last
    required one. The pairs (parent, child) of the result are sorted by waiting step, then by the
    other step. It also has, for every block, which steps of other blocks are known to be finished
    at each step.
    """
    parents, children = step_of_row[edges[0]], step_of_row[edges[1]]
    # Order within a block needs no wait.
    is_crossing = block[parents] != block[children]
    parents, children = parents[is_crossing], children[is_crossing]
    # Only the latest parent of each (waiting step, block of the parent): a finished step implies
    # that the earlier steps of its block are finished.
    order = np.lexsort((ordinal[parents], block[parents], children))
    parents, children = parents[order], children[order]
    # The last parent of a group precedes the first of the next.
    is_last = np.roll(run_mask(children, block[parents]), -1)
    parents, children = parents[is_last], children[is_last]
    # In order of execution, so that the clocks of parents are final; the latest parent first,
    # because it implies most.
    order = np.lexsort((-time[parents], children, time[children]))
    parents, children = parents[order], children[order]
    pairs = (block[children], ordinal[children], block[parents], ordinal[parents])
    is_kept, clocks = _select(pairs, rank_of_block)
    parents, children = parents[is_kept], children[is_kept]
    order = np.lexsort((parents, children))
    return Knowledge(
        block,
        ordinal,
        time,
        step_of_row,
        parents[order],
        children[order],
        clocks,
    )


def _select(
    pairs: tuple[Int64Array, Int64Array, Int64Array, Int64Array], rank_of_block: Int64Array
) -> tuple[BoolArray, Clocks]:
    """Return which waits are necessary, and the clocks of the thread blocks after them.

    A pair is a step that waits for a step of another thread block of its rank. `pairs`: four int64
    columns with an entry per pair, in the order that `select_unknown_waits` requires: block of the
    waiting step, its position there, block of the other step, its position there. `rank_of_block`:
    int64, ascending.

    The first result is bool by pair: False if earlier waits imply this wait. `Clocks` has, for each
    necessary wait, the last step of each block of the rank that is known to have finished after it.
    Without pairs, both are empty.
    """
    blocks, size = len(rank_of_block), len(pairs[0])
    per_rank = np.bincount(rank_of_block, minlength=1)
    place = np.arange(blocks) - first_positions(per_rank)[rank_of_block]
    width = int(per_rank.max())
    # A block has at most one clock for each pair.
    per_block = np.bincount(pairs[0], minlength=blocks)
    slot_start = first_positions(per_block)
    waits = _Waits(
        *pairs,
        np.zeros(size, np.int64),
        place,
        slot_start,
        np.zeros(blocks, np.int64),
        # One more entry, which is read before the first clock of a block.
        np.zeros(size + 1, np.int64),
        np.zeros(size + 1, np.int64),
        np.empty((size + 1) * width, np.int32),
        width,
    )
    work = size * width // _ENTRIES_PER_NODE
    is_kept, number, slot_ordinal, slot_clock, entries = run(select_unknown_waits, work, waits)
    ordinals, rows = as_array(slot_ordinal).tolist(), as_array(slot_clock).tolist()
    bounds = list(zip(slot_start.tolist(), (slot_start + as_array(number)).tolist(), strict=True))
    clocks = Clocks(
        [ordinals[start:stop] for start, stop in bounds],
        [rows[start:stop] for start, stop in bounds],
        np.asarray(entries, np.int32).reshape(-1, max(width, 1)),
        place.tolist(),
    )
    return as_array(is_kept) > 0, clocks
