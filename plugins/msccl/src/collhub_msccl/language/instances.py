"""Lay out the copies of a program that runs in several instances.

Each works on its own chunks, thread blocks and channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from collhub_columns import Int64Array, counted_positions

from collhub_msccl.language.trace import FIRST_SCRATCH, Trace

Columns = dict[str, Int64Array]
"""Columns of operations, by `OPERATION_FIELDS`."""

_SPLIT_BY_RANK = ("all-gather", "reduce-scatter", "all-to-all")
_SIDES = ("src", "dst")


class Instances:
    """Where chunk k of a buffer lies in instance i of `number`.

    A buffer is cut in cells of some chunks, and the instances' copies of a cell lie side by side:
    chunk k of instance i is chunk (k // cell * number + i) * cell + k % cell. Interleaved, the
    cells of input and output are the largest that no reference cuts, so that two references never
    disagree on where a chunk lies; the public compiler takes the reference's own size, by which
    overlapping references of different sizes read each other's instances. Else cells are each
    rank's part (of collectives that have parts) or the whole buffer. Scratch buffers are one cell
    each, one behind the other. `scratch_units`: int64 per rank.
    """

    def __init__(self, trace: Trace, columns: Columns, number: int) -> None:
        self.trace = trace
        self.number = number
        self._columns = columns
        # Of every rank and buffer, numbered as in the trace.
        self._cell = self._cells()
        self._base, self.scratch_units = self._scratch()

    def place(
        self, rank: Int64Array, buffer: Int64Array, index: Int64Array, copy: int
    ) -> Int64Array:
        """Offset, in the hub's INPUT, OUTPUT or SCRATCH, of chunks of instance `copy`."""
        cell = self._cell[rank, buffer]
        first_of_cell = (index // cell * self.number + copy) * cell
        place: Int64Array = self._base[rank, buffer] + first_of_cell + index % cell
        return place

    def replicated(self, columns: Columns) -> Columns:
        """Operations of all instances in the hub's buffers.

        They keep the given order, with the instances of an operation in a row.
        """
        # A single instance has nothing beside a cell, so no operation need be cut.
        pieces = columns if self.number == 1 else self._cut(columns)
        channels = int(pieces["channel"].max(initial=0)) + 1
        copies = [self._instance(pieces, copy, channels) for copy in range(self.number)]
        return {name: np.stack([copy[name] for copy in copies], axis=1).ravel() for name in pieces}

    def _instance(self, columns: Columns, copy: int, channels: int) -> Columns:
        """The operations as instance `copy` does them, by a program of `channels` channels."""
        moved = dict(columns)
        for side in _SIDES:
            rank = columns[f"{side}_rank"]
            buffer = columns[f"{side}_buffer"]
            index = columns[f"{side}_index"]
            moved[f"{side}_index"] = self.place(rank, buffer, index, copy)
            # The hub has one scratch buffer a rank.
            moved[f"{side}_buffer"] = np.minimum(buffer, FIRST_SCRATCH)
        # Copies of a thread block, and of a channel, never meet.
        for name in ("send_block", "receive_block"):
            block = columns[name]
            moved[name] = np.where(block < 0, -1, block * self.number + copy)
        moved["channel"] = columns["channel"] + copy * channels
        return moved

    def _cut(self, columns: Columns) -> Columns:
        """Cut operations where a cell ends on either side.

        Each piece then stays in one piece in every instance.
        """
        size = columns["size"]
        piece = self._piece_sizes(columns)
        # Sizes of pieces divide those of their operations.
        number = size // piece
        part = counted_positions(number)
        cut = {name: np.repeat(column, number) for name, column in columns.items()}
        cut["size"] = np.repeat(piece, number)
        for side in _SIDES:
            cut[f"{side}_index"] = cut[f"{side}_index"] + part * cut["size"]
        return cut

    def _piece_sizes(self, columns: Columns) -> Int64Array:
        """Chunks of the pieces of every operation."""
        size = columns["size"]
        piece = size.copy()
        for side in _SIDES:
            index = columns[f"{side}_index"]
            cell = self._cell[columns[f"{side}_rank"], columns[f"{side}_buffer"]]
            crosses = index % cell + size > cell
            # Pieces of this size begin and end where cells do.
            fitting = np.gcd(np.gcd(piece, cell), index)
            piece = np.where(crosses, fitting, piece)
        return piece

    def _cells(self) -> Int64Array:
        """Cells: int64[ranks, buffers]."""
        trace = self.trace
        cells = np.maximum(_buffer_sizes(trace), 1)
        if trace.kind in _SPLIT_BY_RANK and trace.chunk_factor:
            cells[:, :FIRST_SCRATCH] = trace.chunk_factor
        if trace.is_interleaved or self._has_uneven_aliases():
            cells[:, :FIRST_SCRATCH] = self._common_cell(cells[:, :FIRST_SCRATCH].ravel())
        return cells

    def _common_cell(self, sizes: Int64Array) -> int:
        """The largest cell that divides all of `sizes` and that no reference cuts.

        References to input and output, that is: scratch buffers have cells of their own.
        """
        numbers = [sizes]
        for side in _SIDES:
            is_chunk = self._columns[f"{side}_buffer"] < FIRST_SCRATCH
            numbers.append(self._columns[f"{side}_index"][is_chunk])
            numbers.append(self._columns["size"][is_chunk])
        return int(np.gcd.reduce(np.concatenate(numbers)))

    def _has_uneven_aliases(self) -> bool:
        """Whether input and output are one memory, but not equally long.

        Whole buffers would then part it differently.
        """
        trace = self.trace
        is_aliased = trace.kind == "custom" and trace.is_in_place
        return is_aliased and trace.input_sizes != trace.output_sizes

    def _scratch(self) -> tuple[Int64Array, Int64Array]:
        """Where every buffer begins in the hub's buffer, and the scratch of every rank.

        int64[ranks, buffers] and int64[ranks].
        """
        base = np.zeros_like(self._cell)
        total = np.zeros(self.trace.num_ranks, np.int64)
        for rank, sizes in enumerate(self.trace.scratch_sizes):
            ends = np.cumsum(np.asarray(sizes, np.int64)) * self.number
            total[rank] = ends[-1] if len(ends) else 0
            base[rank, FIRST_SCRATCH : FIRST_SCRATCH + len(sizes)] = _starts(ends.tolist())
        return base, total


def _buffer_sizes(trace: Trace) -> Int64Array:
    """Chunks of every buffer: int64[ranks, buffers]; ranks with fewer scratch buffers get ones."""
    most = max(map(len, trace.scratch_sizes), default=0)
    rows = []
    for rank, scratch in enumerate(trace.scratch_sizes):
        padding = [1] * (most - len(scratch))
        rows.append([trace.input_sizes[rank], trace.output_sizes[rank], *scratch, *padding])
    return np.asarray(rows, np.int64)


def _starts(ends: Sequence[int]) -> list[int]:
    """Where each of several things begins that lie one behind the other."""
    return [0, *ends[:-1]][: len(ends)]
