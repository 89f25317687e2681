"""Move blocks of INPUT and OUTPUT to other places."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_columns import BoolArray, Int64Array, row_pointer

from collhub_compose.buffers.regions import SIDES
from hub_core.model import StepTable

# Places of blocks are a table for every copy.
MOST_BLOCKS = 1 << 25


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """Where blocks of `size` units go.

    Block k of INPUT goes to block `place[0, k]`, of OUTPUT to block `place[1, k]`; int64.
    """

    size: int
    place: Int64Array

    def apply(self, steps: StepTable) -> StepTable:
        """The steps with their regions in the new places; none of them may be torn."""
        moved = {}
        for side in SIDES:
            rows, buffer, offset = side.outer_regions(steps)
            offsets = getattr(steps, side.offset).copy()
            offsets[rows] = self.units(buffer, offset)
            moved[side.offset] = offsets
        return replace(steps, **moved)

    def units(self, buffer: npt.NDArray[np.integer[Any]] | int, offset: Int64Array) -> Int64Array:
        """New places of units of INPUT or OUTPUT, int64.

        `buffer`: of every unit, or of all; `offset`: its old place.
        """
        block, within = np.divmod(offset, self.size)
        first = self.place[buffer, block] * self.size
        new: Int64Array = first + within
        return new

    def torn(self, steps: StepTable) -> BoolArray:
        """Mask of the rows with a region that is no longer in one piece."""
        # A region is torn where a gap opens between two of its blocks: the numbers of gaps before
        # its first and its last block differ.
        gaps = np.diff(self.place, axis=1) != 1
        gaps_before = np.stack([row_pointer(of_buffer) for of_buffer in gaps])
        torn = np.zeros(len(steps), np.bool_)
        for side in SIDES:
            rows, buffer, offset = side.outer_regions(steps)
            last_unit = offset + steps.count[rows] - 1
            first = gaps_before[buffer, offset // self.size]
            last = gaps_before[buffer, last_unit // self.size]
            torn[rows] |= first != last
        return torn
