"""Move blocks of INPUT and OUTPUT to other places; steps that such a move tears apart are cut first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.composition.memory import SIDES, Side
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import Buffer
from hub_core.model.messages import Messages
from hub_core.model.steps import COLUMN_DTYPES, StepTable

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MOST_BLOCKS = 1 << 25
MOST_STEPS = 1 << 28


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """Block k (of `size` units) of INPUT goes to block `place[0, k]`, of OUTPUT to block `place[1, k]`."""

    size: int
    place: Int64Array

    def apply(self, steps: StepTable) -> StepTable:
        """The steps with their regions in the new places; none of them may be torn."""
        moved = {}
        for side in SIDES:
            rows, buffer, offset = _regions(steps, side)
            moved[side.offset] = getattr(steps, side.offset).copy()
            moved[side.offset][rows] = self.units(buffer, offset)
        return replace(steps, **moved)

    def units(self, buffer: npt.NDArray[np.integer[Any]] | int, offset: Int64Array) -> Int64Array:
        """New places of units of INPUT or OUTPUT."""
        block, within = np.divmod(offset, self.size)
        new: Int64Array = self.place[buffer, block] * self.size + within
        return new

    def torn(self, steps: StepTable) -> BoolArray:
        """Mask of the rows with a region that is no longer in one piece."""
        gaps = np.diff(self.place, axis=1) != 1
        before = np.concatenate([np.zeros((2, 1), np.int64), np.cumsum(gaps, axis=1)], axis=1)
        torn = np.zeros(len(steps), np.bool_)
        for side in SIDES:
            rows, buffer, offset = _regions(steps, side)
            first, last = offset // self.size, (offset + steps.count[rows] - 1) // self.size
            torn[rows] |= before[buffer, first] != before[buffer, last]
        return torn


def cut_torn_steps(steps: StepTable, moves: BlockMoves, messages: Messages) -> StepTable:
    """Cut rows that `moves` would tear apart, and the other ends of their messages, in equal pieces that stay whole.

    The pieces of a step run one after another, and who waited for it waits for the last.
    """
    torn = moves.torn(steps)
    torn[messages.receive] |= torn[messages.send]
    torn[messages.send] |= torn[messages.receive]
    if not torn.any():
        return steps
    piece = _piece(steps, torn, moves.size)
    pieces = np.where(torn, steps.count // piece, 1)
    if int(pieces.sum()) > MOST_STEPS:
        raise InputError(
            f"too large: the blocks that move cut the steps in {int(pieces.sum())} pieces",
            code="too-large",
        )
    last = np.cumsum(pieces) - 1
    first = last - pieces + 1
    row = np.repeat(np.arange(len(steps)), pieces)
    within = np.arange(len(row)) - first[row]
    columns = {name: getattr(steps, name)[row] for name in COLUMN_DTYPES}
    columns["count"] = np.where(torn[row], piece, columns["count"])
    for side in SIDES:
        columns[side.offset] += np.where(np.isin(columns["kind"], side.kinds), within * piece, 0)
    duration = columns["duration_ns"]
    columns["duration_ns"] = np.where(duration > 0, -(-duration // pieces[row]), duration)
    follows = np.flatnonzero(within > 0)
    data = _moved(steps.data_indptr, steps.data_indices, first, last)
    data = np.concatenate([data[0], follows - 1]), np.concatenate([data[1], follows])
    control = _moved(steps.control_indptr, steps.control_indices, first, last)
    return StepTable.from_columns(steps.num_ranks, columns, data, control)


def _piece(steps: StepTable, torn: BoolArray, size: int) -> int:
    """The largest number of units that divides the blocks, and the torn rows and all their places in blocks."""
    found = [(rows, offset) for rows, _, offset in (_regions(steps, side) for side in SIDES)]
    offsets = [offset[torn[rows]] for rows, offset in found]
    return int(np.gcd.reduce(np.concatenate([[size], steps.count[torn], *offsets])))


def _regions(steps: StepTable, side: Side) -> tuple[Int64Array, npt.NDArray[np.uint8], Int64Array]:
    """(row, buffer, offset) of the regions in INPUT and OUTPUT."""
    rows, buffer, offset = side.regions(steps)
    here = buffer <= Buffer.OUTPUT
    return rows[here], buffer[here], offset[here]


def _moved(
    indptr: Int64Array, indices: Int64Array, first: Int64Array, last: Int64Array
) -> tuple[Int64Array, Int64Array]:
    return last[indices], np.repeat(first, np.diff(indptr))
