"""The regions that steps read and write, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from collhub_columns import Int64Array

from hub_core.model import READING, WRITING, Buffer, StepKind, StepTable

BufferRegions = tuple[Int64Array, npt.NDArray[np.uint8], Int64Array]
"""Rows of steps, the buffers that they touch, and the units at which the regions start."""


@dataclass(frozen=True, slots=True)
class RegionSide:
    """The columns of what steps read, or of what they write, and the kinds of steps that do."""

    buffer: str
    offset: str
    kinds: tuple[StepKind, ...]

    def regions(self, steps: StepTable) -> BufferRegions:
        """Every region on this side; what stands on unused sides is none."""
        rows = np.flatnonzero(steps.is_kind(*self.kinds))
        buffer = getattr(steps, self.buffer)
        offset = getattr(steps, self.offset)
        return rows, buffer[rows], offset[rows]

    def outer_regions(self, steps: StepTable) -> BufferRegions:
        """Those in INPUT and OUTPUT, which calls share with the user; SCRATCH is nobody's."""
        rows, buffer, offset = self.regions(steps)
        is_outer = buffer <= Buffer.OUTPUT
        return rows[is_outer], buffer[is_outer], offset[is_outer]


SIDES = (
    RegionSide("src_buffer", "src_offset", READING),
    RegionSide("dst_buffer", "dst_offset", WRITING),
)
