"""Move whole buffers into other ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from collhub_columns import BoolArray, Int64Array

from collhub_compose.buffers.regions import SIDES
from hub_core.model import Buffer, StepTable

# Where an algorithm is put between others, its steps stay: what changes is which memory their
# buffers are. A table of three entries a rank says so, and one pass over the regions does it.


@dataclass(frozen=True, slots=True)
class Relocation:
    """New places of whole buffers: unit k of a rank's buffer goes to unit `shift + k` of `buffer`.

    `buffer` uint8 and `shift` int64: [num_ranks, 3], indexed by rank and old `Buffer`. Change them
    freely before use.
    """

    buffer: npt.NDArray[np.uint8]
    shift: Int64Array

    @classmethod
    def none(cls, num_ranks: int) -> Relocation:
        """Everything stays."""
        buffers = np.arange(3, dtype=np.uint8)
        return cls(
            np.tile(buffers, (num_ranks, 1)),
            np.zeros((num_ranks, 3), np.int64),
        )

    def move(self, old: Buffer, where: BoolArray, new: Buffer, shift: Int64Array) -> None:
        """Let buffer `old` of the ranks `where` start at unit `shift[rank]` of buffer `new`.

        `where`: bool[num_ranks]; `shift`: int64[num_ranks].
        """
        self.buffer[where, old] = new
        self.shift[where, old] = shift[where]

    def apply(self, steps: StepTable) -> StepTable:
        """The steps with their regions in the new places."""
        moved = {}
        for side in SIDES:
            rows, buffer, offset = side.regions(steps)
            rank = steps.rank[rows]
            buffers = getattr(steps, side.buffer).copy()
            buffers[rows] = self.buffer[rank, buffer]
            offsets = getattr(steps, side.offset).copy()
            offsets[rows] = offset + self.shift[rank, buffer]
            moved[side.buffer] = buffers
            moved[side.offset] = offsets
        return replace(steps, **moved)
