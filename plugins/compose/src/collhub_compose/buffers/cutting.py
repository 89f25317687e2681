"""Cut steps that a move of blocks would tear apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from collhub_columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    first_positions,
    group_of_entry,
)

from collhub_compose.buffers.blocks import BlockMoves
from collhub_compose.buffers.regions import SIDES
from hub_core.model import COLUMN_DTYPES, InputError, Messages, StepTable

# A step takes about a hundred bytes in the table.
MOST_STEPS = 1 << 28

StepPairs = tuple[Int64Array, Int64Array]


def cut_torn_steps(steps: StepTable, moves: BlockMoves, messages: Messages) -> StepTable:
    """Cut rows that `moves` would tear apart, and the other ends of their messages.

    They are cut in equal pieces that stay whole. The pieces of a step run one after another, and
    who waited for it waits for the last.
    """
    torn = moves.torn(steps)
    torn[messages.receive] |= torn[messages.send]
    torn[messages.send] |= torn[messages.receive]
    if not torn.any():
        return steps
    # One size of pieces for all: both ends of a message then have equally many.
    piece = _units_of_a_piece(steps, torn, moves.size)
    pieces = np.where(torn, steps.count // piece, 1)
    _refuse_too_many(int(pieces.sum()))
    first = first_positions(pieces)
    last = first + pieces - 1
    within = counted_positions(pieces)
    columns = _columns_of_pieces(steps, torn, pieces, piece)
    follows = np.flatnonzero(within > 0)
    data = _moved_edges(steps.data_indptr, steps.data_indices, first, last)
    control = _moved_edges(steps.control_indptr, steps.control_indices, first, last)
    return StepTable.from_columns(
        steps.num_ranks,
        columns,
        (
            np.concatenate([data[0], follows - 1]),
            np.concatenate([data[1], follows]),
        ),
        control,
    )


def _units_of_a_piece(steps: StepTable, torn: BoolArray, size: int) -> int:
    """The largest piece of which blocks, torn rows and their places in buffers are multiples."""
    found = [np.asarray([size]), steps.count[torn]]
    for side in SIDES:
        rows, _, offset = side.outer_regions(steps)
        found.append(offset[torn[rows]])
    # No piece of such a size reaches over the border of a block.
    multiples = np.concatenate(found)
    return int(np.gcd.reduce(multiples))


def _refuse_too_many(pieces: int) -> None:
    """Raise `InputError` for more steps than memory may hold."""
    if pieces > MOST_STEPS:
        raise InputError(
            f"too large: the blocks that move cut the steps in {pieces} pieces",
            code="too-large",
        )


def _columns_of_pieces(
    steps: StepTable, torn: BoolArray, pieces: Int64Array, piece: int
) -> dict[str, npt.NDArray[np.generic]]:
    """The columns of the table, every row as often as it has `pieces`, of `piece` units each."""
    row = np.repeat(np.arange(len(steps)), pieces)
    within = counted_positions(pieces)
    columns = {name: getattr(steps, name)[row] for name in COLUMN_DTYPES}
    columns["count"] = np.where(torn[row], piece, columns["count"])
    for side in SIDES:
        # On a side that the step does not use, the offset stays 0.
        is_used = np.isin(columns["kind"], side.kinds)
        columns[side.offset] += np.where(is_used, within * piece, 0)
    duration = columns["duration_ns"]
    # Rounded up: a piece of a step takes no less than its share.
    share = -(-duration // pieces[row])
    columns["duration_ns"] = np.where(duration > 0, share, duration)
    return columns


def _moved_edges(
    indptr: Int64Array, indices: Int64Array, first: Int64Array, last: Int64Array
) -> StepPairs:
    """Dependencies of first pieces on last ones; a row of the CSR table waits for its `indices`."""
    children = group_of_entry(indptr)
    return last[indices], first[children]
