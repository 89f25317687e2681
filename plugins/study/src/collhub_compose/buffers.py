"""Regions of buffers: move them, divide steps that a move would tear, and measure their use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    first_positions,
    group_of_entry,
    row_pointer,
)
from hub_core.model import (
    COLUMN_DTYPES,
    READING,
    WRITING,
    Algorithm,
    Buffer,
    Collective,
    CustomContract,
    InputError,
    Messages,
    StepKind,
    StepTable,
)

BufferRegions = tuple[Int64Array, npt.NDArray[np.uint8], Int64Array]
"""Rows of steps, their buffers, and the units at which the regions start."""


@dataclass(frozen=True, slots=True)
class RegionSide:
    """The columns of one side of steps (source or destination), and the kinds of steps that
    use it.
    """

    buffer: str
    offset: str
    kinds: tuple[StepKind, ...]

    def regions(self, steps: StepTable) -> BufferRegions:
        """Return (rows, buffers, offsets) of all regions that steps access as this operand.

        An operand is the source or the destination of a step; only steps of a kind that has this
        operand are listed, by ascending row.
        """
        rows = np.flatnonzero(steps.is_kind(*self.kinds))
        buffer = getattr(steps, self.buffer)
        offset = getattr(steps, self.offset)
        return rows, buffer[rows], offset[rows]

    def outer_regions(self, steps: StepTable) -> BufferRegions:
        """Return (rows, buffers, offsets) of the regions in INPUT or OUTPUT of this operand.

        An operand is the source or the destination of a step. Regions in SCRATCH are omitted. Rows
        are ascending.
        """
        rows, buffer, offset = self.regions(steps)
        is_outer = buffer <= Buffer.OUTPUT
        return rows[is_outer], buffer[is_outer], offset[is_outer]


SIDES = (
    RegionSide("src_buffer", "src_offset", READING),
    RegionSide("dst_buffer", "dst_offset", WRITING),
)


# If an algorithm becomes a part of another one, its steps stay the same; only the memory of their
# buffers changes. A table of three entries per rank describes the change.


@dataclass(frozen=True, slots=True)
class Relocation:
    """New positions of entire buffers: unit k of a rank's buffer becomes unit `shift + k` of
    `buffer`.

    `buffer` uint8 and `shift` int64: [num_ranks, 3], indexed by rank and old `Buffer`. They may be
    changed before use.
    """

    buffer: npt.NDArray[np.uint8]
    shift: Int64Array

    @classmethod
    def none(cls, num_ranks: int) -> Relocation:
        """Build a relocation that leaves all buffers of every rank unchanged."""
        buffers = np.arange(3, dtype=np.uint8)
        return cls(
            np.tile(buffers, (num_ranks, 1)),
            np.zeros((num_ranks, 3), np.int64),
        )

    def move(self, old: Buffer, where: BoolArray, new: Buffer, shift: Int64Array) -> None:
        """Let a buffer of some ranks start at unit `shift[rank]` of another buffer.

        `old`: the buffer to move. `where`: bool[num_ranks], the ranks on which it is moved. `new`:
        the buffer that then contains it. `shift`: int64[num_ranks]. This relocation is changed;
        steps change only by `apply`.
        """
        self.buffer[where, old] = new
        self.shift[where, old] = shift[where]

    def apply(self, steps: StepTable) -> StepTable:
        """Return a copy of the steps in which every region is moved by this relocation.

        A region is the source of a step that reads or the destination of a step that writes.
        For old buffer b on rank r, the new buffer is `buffer[r, b]`, and `shift[r, b]` units
        are added to the offset. All three buffers are moved in this way. Unused operands, and
        all other columns, are unchanged.
        """
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


# Every copy has a table of block positions.
MAX_BLOCKS = 1 << 25


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """New positions of blocks of `size` units.

    Block k of INPUT becomes block `place[0, k]`, of OUTPUT block `place[1, k]`; int64[2, blocks].
    """

    size: int
    place: Int64Array

    def apply(self, steps: StepTable) -> StepTable:
        """Return a copy of the steps with all regions in INPUT and OUTPUT moved with their blocks.

        A region is a step's source or destination. It starts at the new position of its first unit
        and keeps its length, so it must remain contiguous (`find_torn_rows` is False for its step);
        this is not checked. Regions in SCRATCH are unchanged. Raises `InputError` for a region that
        begins outside all blocks.
        """
        moved = {}
        for side in SIDES:
            rows, buffer, offset = side.outer_regions(steps)
            offsets = getattr(steps, side.offset).copy()
            offsets[rows] = self.move_units(buffer, offset)
            moved[side.offset] = offsets
        return replace(steps, **moved)

    def move_units(
        self, buffer: npt.NDArray[np.integer[Any]] | int, offset: Int64Array
    ) -> Int64Array:
        """Return the offsets of units of INPUT or OUTPUT after the moves of their blocks: int64.

        `offset`: old offsets; the result has one entry per offset. `buffer`: buffer of every unit,
        or one buffer for all. A unit keeps its position within its block of `size` units. Raises
        `InputError` for an offset outside all blocks, which an incorrect contract can contain; the
        message names the first one.
        """
        block, offset_in_block = np.divmod(offset, self.size)
        outside = np.flatnonzero((block < 0) | (block >= self.place.shape[1]))
        if len(outside):
            unit, count = int(offset[outside[0]]), self.place.shape[1] * self.size
            message = f"the algorithm refers to unit {unit} of a buffer of {count} units"
            raise InputError(message, cure="correct the algorithm, see collhub verify")
        first = self.place[buffer, block] * self.size
        new: Int64Array = first + offset_in_block
        return new

    def find_torn_rows(self, steps: StepTable) -> BoolArray:
        """Return the steps that access a region that these moves would tear apart: bool[rows].

        A region is the source or destination of a step. It is torn if it is in INPUT or OUTPUT and
        covers two neighbouring blocks k and k + 1 whose new positions are not p and p + 1. A region
        inside one block, and a region in SCRATCH, is never torn. All regions in INPUT and OUTPUT
        must be inside the blocks.
        """
        # A region is torn if there is a gap between two of its blocks: then the numbers of gaps
        # before its first and its last block differ.
        gaps = np.diff(self.place, axis=1) != 1
        gaps_before = np.stack([row_pointer(buffer_gaps) for buffer_gaps in gaps])
        is_torn = np.zeros(len(steps), np.bool_)
        for side in SIDES:
            rows, buffer, offset = side.outer_regions(steps)
            last_unit = offset + steps.count[rows] - 1
            first = gaps_before[buffer, offset // self.size]
            last = gaps_before[buffer, last_unit // self.size]
            is_torn[rows] |= first != last
        return is_torn


# A step takes about a hundred bytes in the table.
MAX_STEPS = 1 << 28

StepPairs = tuple[Int64Array, Int64Array]


def divide_torn_steps(steps: StepTable, moves: BlockMoves, messages: Messages) -> StepTable:
    """Return steps in which those that `moves` would not keep contiguous are divided into pieces.

    A step is divided if `find_torn_rows` marks it, or marks its partner in `messages` (a send and
    its receive). The same table is returned if there is none.

    All pieces have the same number of units. It is the greatest common divisor of the block size,
    of the counts of all divided steps, and of their offsets in INPUT and OUTPUT. So no piece
    crosses the border of a block. The pieces of a step replace its row, in ascending offsets. Each
    piece has a data dependency on the previous one. The first piece has the parents of the step,
    and children of the step depend on the last one. A known duration is divided by the number of
    pieces and rounded up. Raises `InputError` (`too-large`) if the result has more than 2^28 steps.
    """
    torn = moves.find_torn_rows(steps)
    torn[messages.receive] |= torn[messages.send]
    torn[messages.send] |= torn[messages.receive]
    if not torn.any():
        return steps
    # All pieces have one size, so that both ends of a message have equally many. It divides the
    # size of a block and all offsets, so that no piece crosses the border of a block.
    multiples = [np.asarray([moves.size]), steps.count[torn]]
    for side in SIDES:
        rows, _, offset = side.outer_regions(steps)
        multiples.append(offset[torn[rows]])
    piece = int(np.gcd.reduce(np.concatenate(multiples)))
    pieces = np.where(torn, steps.count // piece, 1)
    piece_count = int(pieces.sum())
    if piece_count > MAX_STEPS:
        raise InputError(
            f"too large: the moved blocks divide the steps into {piece_count} pieces",
            code="too-large",
        )
    first = first_positions(pieces)
    last = first + pieces - 1
    piece_number = counted_positions(pieces)
    columns = _build_piece_columns(steps, torn, pieces, piece)
    later_pieces = np.flatnonzero(piece_number > 0)
    data = _renumber_edges(steps.data_indptr, steps.data_indices, first, last)
    control = _renumber_edges(steps.control_indptr, steps.control_indices, first, last)
    return StepTable.from_columns(
        steps.num_ranks,
        columns,
        (
            np.concatenate([data[0], later_pieces - 1]),
            np.concatenate([data[1], later_pieces]),
        ),
        control,
    )


def _build_piece_columns(
    steps: StepTable, torn: BoolArray, pieces: Int64Array, piece: int
) -> dict[str, npt.NDArray[np.generic]]:
    """Return the columns of a step table in which torn steps are replaced by their pieces.

    `torn`: bool[rows]. `pieces`: number of rows that replace each step, 1 if it is not torn.
    `piece`: units of a piece. The rows keep the order of their steps. Piece i (from 0) of a torn
    step has the count `piece`, and its offset in each used region (source, destination) is i *
    `piece` higher. A duration above 0 is divided by the number of pieces and rounded up; 0 and
    unknown (-1) remain. All other columns are copied from the step, and steps that are not torn are
    unchanged. Dependencies are not part of the columns.
    """
    row = np.repeat(np.arange(len(steps)), pieces)
    piece_number = counted_positions(pieces)
    columns = {name: getattr(steps, name)[row] for name in COLUMN_DTYPES}
    columns["count"] = np.where(torn[row], piece, columns["count"])
    for side in SIDES:
        # Unused sides keep the offset 0.
        is_used = np.isin(columns["kind"], side.kinds)
        columns[side.offset] += np.where(is_used, piece_number * piece, 0)
    duration = columns["duration_ns"]
    # Rounded up: a piece takes at least its share of the time.
    share = -(-duration // pieces[row])
    columns["duration_ns"] = np.where(duration > 0, share, duration)
    return columns


def _renumber_edges(
    indptr: Int64Array, indices: Int64Array, first: Int64Array, last: Int64Array
) -> StepPairs:
    """Convert dependencies between steps to dependencies between pieces: (parent rows, child rows).

    The first piece of a step waits for the last piece of each step on which it depends. `indptr`,
    `indices`: the old dependencies. `first`, `last`: first and last new row of the pieces of each
    step.
    """
    children = group_of_entry(indptr)
    return last[indices], first[children]


# A table of contents takes some hundred bytes per unit: gigabytes beyond this limit.
MAX_UNITS_IN_TABLE = 1 << 25


@dataclass(frozen=True, slots=True)
class BufferUsage:
    """Number of units used in each rank's INPUT and OUTPUT, from unit 0 on; int64[num_ranks] each.

    `input`, `output`: by required data and by steps. `reached_input`, `reached_output`: by steps
    only.
    """

    input: Int64Array
    output: Int64Array
    reached_input: Int64Array
    reached_output: Int64Array


def build_contract(collective: Collective) -> CustomContract:
    """Return the contract (buffer sizes, ranks with data, expected results) of any collective.

    A custom collective has a contract, which is returned itself; its `expected` is None if it
    defines no results. Any other collective gets a new contract with the sizes of INPUT and OUTPUT
    in units, the ranks that have data (such as only the root for a broadcast), and the results of
    `postcondition`. Raises `InputError` (`too-large`) if its number of ranks times `unit_count` is
    above 2^25 (`MAX_UNITS_IN_TABLE`).
    """
    if collective.contract is not None:
        return collective.contract
    # As floats, so that the product of two large numbers does not overflow.
    if float(collective.num_ranks) * collective.unit_count > MAX_UNITS_IN_TABLE:
        size = f"{collective.num_ranks} ranks with {collective.unit_count} units"
        raise InputError(
            f"too large to compose: {size} (limit {MAX_UNITS_IN_TABLE} in all)",
            cure="compose a smaller instance",
            code="too-large",
        )
    return CustomContract(
        collective.input_units(),
        collective.output_units(),
        collective.defined_inputs(),
        collective.postcondition(),
    )


def measure_usage(algorithm: Algorithm, contract: CustomContract) -> BufferUsage:
    """Measure how many units of INPUT and OUTPUT each rank of an algorithm uses, from unit 0 on.

    `contract`: contract of the algorithm's collective. INPUT: its size in the contract on ranks
    with data; up to the last unit that a step accesses on other ranks. OUTPUT: up to the last unit
    that a step accesses or that has an expected result; without expected results (None), at least
    its size in the contract. `reached_input` and `reached_output` of the result count only the
    accesses of steps. All are int64[num_ranks].
    """
    inputs = _find_touched_ends(algorithm.steps, Buffer.INPUT)
    outputs = _find_touched_ends(algorithm.steps, Buffer.OUTPUT)
    needed_inputs = np.where(contract.defined, contract.input_units, inputs)
    needed_outputs = np.maximum(outputs, count_required_units(contract))
    return BufferUsage(needed_inputs, needed_outputs, inputs, outputs)


def count_required_units(contract: CustomContract) -> Int64Array:
    """Return how many units of OUTPUT each rank needs for its expected results, from unit 0 on.

    It is the offset of the last result plus 1, and 0 on ranks without results. If the contract has
    no expected results (None), it is the size of OUTPUT. The result is int64[num_ranks].
    """
    expected = contract.expected
    if expected is None:
        return contract.output_units
    unit_counts = np.zeros_like(contract.output_units)
    np.maximum.at(unit_counts, expected.rank, expected.offset + 1)
    return unit_counts


def _find_touched_ends(steps: StepTable, buffer: Buffer) -> Int64Array:
    """Return the end of the last unit of a buffer that steps access: int64[num_ranks].

    The end on a rank is the maximum of offset + count over all sources that its steps read and
    all destinations that its steps write in this buffer. It is 0 on ranks without an access.
    """
    touched_ends = np.zeros(steps.num_ranks, np.int64)
    for side in SIDES:
        rows, buffers, offset = side.regions(steps)
        is_in_buffer = buffers == buffer
        touching = rows[is_in_buffer]
        region_ends = offset[is_in_buffer] + steps.count[touching]
        np.maximum.at(touched_ends, steps.rank[touching], region_ends)
    return touched_ends
