"""Layout of the copies of a program that runs in several instances.

Each instance has separate chunks, thread blocks and channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collhub_msccl.language.trace import FIRST_SCRATCH, Trace
from hub_core.columns import Int64Array, counted_positions

Columns = dict[str, Int64Array]
"""Columns of operations, by the names in `OPERATION_FIELDS`."""

_SPLIT_BY_RANK = ("all-gather", "reduce-scatter", "all-to-all")
_SIDES = ("src", "dst")


class Instances:
    """Location of chunk k of a buffer in instance i of `number`.

    A buffer is divided into cells of several chunks, and the instances' copies of a cell are
    adjacent: chunk k of instance i is chunk (k // cell * number + i) * cell + k % cell.

    Interleaved programs: the cells of input and output are the largest that no reference crosses,
    so that all references agree on the location of a chunk. (The public compiler uses the size of
    each reference, so that overlapping references of different sizes read other instances' data.)
    Other programs: cells are the part of each rank (for collectives with parts) or the full buffer.
    Each scratch buffer is one cell; they follow each other. `scratch_units`: int64 per rank.
    """

    def __init__(self, trace: Trace, columns: Columns, number: int) -> None:
        self.trace = trace
        self.number = number
        self._columns = columns
        # Chunks per cell of every rank and buffer, numbered as in the trace.
        self._cell = self._compute_cells()
        self._base, self.scratch_units = self._lay_out_scratch()

    def compute_offsets(
        self, rank: Int64Array, buffer: Int64Array, index: Int64Array, copy: int
    ) -> Int64Array:
        """Offset in the hub's INPUT, OUTPUT or SCRATCH of chunks of instance `copy`."""
        cell = self._cell[rank, buffer]
        first_of_cell = (index // cell * self.number + copy) * cell
        offset: Int64Array = self._base[rank, buffer] + first_of_cell + index % cell
        return offset

    def replicate(self, columns: Columns) -> Columns:
        """Operations of all instances in the hub's buffers.

        They keep the given order, with the instances of an operation in a row.
        """
        # A single instance has only one copy of each cell, so no operation must be cut.
        parts = columns if self.number == 1 else self._cut_operations(columns)
        channels = int(parts["channel"].max(initial=0)) + 1
        copies = [self._build_instance(parts, copy, channels) for copy in range(self.number)]
        return {name: np.stack([copy[name] for copy in copies], axis=1).ravel() for name in parts}

    def _build_instance(self, columns: Columns, copy: int, channels: int) -> Columns:
        """Operations as executed by instance `copy` of a program with `channels` channels."""
        moved = dict(columns)
        for side in _SIDES:
            rank = columns[f"{side}_rank"]
            buffer = columns[f"{side}_buffer"]
            index = columns[f"{side}_index"]
            moved[f"{side}_index"] = self.compute_offsets(rank, buffer, index, copy)
            # The hub has one scratch buffer per rank.
            moved[f"{side}_buffer"] = np.minimum(buffer, FIRST_SCRATCH)
        # Copies of a thread block, and of a channel, are separate.
        for name in ("send_block", "receive_block"):
            block = columns[name]
            moved[name] = np.where(block < 0, -1, block * self.number + copy)
        moved["channel"] = columns["channel"] + copy * channels
        return moved

    def _cut_operations(self, columns: Columns) -> Columns:
        """Cut operations where a cell ends on either side.

        The chunks of each part then stay contiguous in every instance.
        """
        size = columns["size"]
        part_size = self._compute_part_sizes(columns)
        # The size of a part divides that of its operation.
        part_count = size // part_size
        part = counted_positions(part_count)
        cut = {name: np.repeat(column, part_count) for name, column in columns.items()}
        cut["size"] = np.repeat(part_size, part_count)
        for side in _SIDES:
            cut[f"{side}_index"] = cut[f"{side}_index"] + part * cut["size"]
        return cut

    def _compute_part_sizes(self, columns: Columns) -> Int64Array:
        """Chunks per part of every operation."""
        size = columns["size"]
        part_size = size.copy()
        for side in _SIDES:
            index = columns[f"{side}_index"]
            cell = self._cell[columns[f"{side}_rank"], columns[f"{side}_buffer"]]
            crosses = index % cell + size > cell
            # Parts of this size begin and end at cell borders.
            fitting = np.gcd(np.gcd(part_size, cell), index)
            part_size = np.where(crosses, fitting, part_size)
        return part_size

    def _compute_cells(self) -> Int64Array:
        """Chunks per cell, int64[ranks, buffers]."""
        trace = self.trace
        cells = np.maximum(_list_buffer_sizes(trace), 1)
        if trace.kind in _SPLIT_BY_RANK and trace.chunk_factor:
            cells[:, :FIRST_SCRATCH] = trace.chunk_factor
        if trace.is_interleaved or self._has_uneven_aliases():
            cells[:, :FIRST_SCRATCH] = self._compute_common_cell(cells[:, :FIRST_SCRATCH].ravel())
        return cells

    def _compute_common_cell(self, sizes: Int64Array) -> int:
        """Largest cell that divides all of `sizes` and that no reference to input or output
        crosses."""
        numbers = [sizes]
        for side in _SIDES:
            is_chunk = self._columns[f"{side}_buffer"] < FIRST_SCRATCH
            numbers.append(self._columns[f"{side}_index"][is_chunk])
            numbers.append(self._columns["size"][is_chunk])
        return int(np.gcd.reduce(np.concatenate(numbers)))

    def _has_uneven_aliases(self) -> bool:
        """Whether input and output are one memory with different lengths.

        Cells of the full buffers would then divide it differently.
        """
        trace = self.trace
        is_aliased = trace.kind == "custom" and trace.is_in_place
        return is_aliased and trace.input_sizes != trace.output_sizes

    def _lay_out_scratch(self) -> tuple[Int64Array, Int64Array]:
        """Start of every buffer in the hub's buffer (int64[ranks, buffers]), and scratch of
        every rank."""
        base = np.zeros_like(self._cell)
        total = np.zeros(self.trace.num_ranks, np.int64)
        for rank, sizes in enumerate(self.trace.scratch_sizes):
            stops = np.cumsum(np.asarray(sizes, np.int64)) * self.number
            total[rank] = stops[-1] if len(stops) else 0
            base[rank, FIRST_SCRATCH : FIRST_SCRATCH + len(sizes)] = _compute_starts(stops.tolist())
        return base, total


def _list_buffer_sizes(trace: Trace) -> Int64Array:
    """Chunks of every buffer: int64[ranks, buffers]; 1 for scratch buffers that a rank lacks."""
    max_scratch_buffers = max(map(len, trace.scratch_sizes), default=0)
    rows = []
    for rank, scratch in enumerate(trace.scratch_sizes):
        padding = [1] * (max_scratch_buffers - len(scratch))
        rows.append([trace.input_sizes[rank], trace.output_sizes[rank], *scratch, *padding])
    return np.asarray(rows, np.int64)


def _compute_starts(stops: Sequence[int]) -> list[int]:
    """Starts of consecutive ranges, from their ends."""
    return [0, *stops[:-1]][: len(stops)]
