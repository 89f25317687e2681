"""Lay out the copies of a program that runs in several instances, each on its own chunks, thread blocks and channels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from collhub_msccl.language.trace import FIRST_SCRATCH, Trace

__all__ = ["Instances"]

Int64Array = npt.NDArray[np.int64]
Columns = dict[str, Int64Array]

_SPLIT_BY_RANK = ("all-gather", "reduce-scatter", "all-to-all")


class Instances:
    """Where chunk k of a buffer lies in instance i of `number`.

    A buffer is cut in cells of some chunks, and the instances' copies of a cell lie side by side: chunk k of instance i
    is chunk (k // cell * number + i) * cell + k % cell. Interleaved, the cells of input and output are the largest that
    no reference cuts, so that two references never disagree on where a chunk lies; else they are each rank's part (of
    collectives that have parts) or the whole buffer. Scratch buffers are one cell each, one behind the other.
    `scratch_units`: int64 per rank.
    """

    def __init__(self, trace: Trace, columns: Columns, number: int) -> None:
        self.trace = trace
        self.number = number
        self._columns = columns
        self._cell = self._cells()
        self._base, self.scratch_units = self._scratch()

    def place(
        self, rank: Int64Array, buffer: Int64Array, index: Int64Array, copy: int
    ) -> Int64Array:
        """Offset, in the hub's INPUT, OUTPUT or SCRATCH, of chunks of instance `copy`."""
        cell = self._cell[rank, buffer]
        place: Int64Array = (
            self._base[rank, buffer] + (index // cell * self.number + copy) * cell + index % cell
        )
        return place

    def replicated(self, columns: Columns) -> Columns:
        """Operations of all instances in the hub's buffers, in the given order, instances of an operation in a row."""
        pieces = columns if self.number == 1 else self._cut(columns)
        channels = int(pieces["channel"].max(initial=0)) + 1
        copies = [self._instance(pieces, copy, channels) for copy in range(self.number)]
        return {name: np.stack([copy[name] for copy in copies], axis=1).ravel() for name in pieces}

    def _instance(self, columns: Columns, copy: int, channels: int) -> Columns:
        moved = dict(columns)
        for side in ("src", "dst"):
            rank, buffer = columns[f"{side}_rank"], columns[f"{side}_buffer"]
            moved[f"{side}_index"] = self.place(rank, buffer, columns[f"{side}_index"], copy)
            moved[f"{side}_buffer"] = np.minimum(buffer, FIRST_SCRATCH)
        for name in ("send_block", "receive_block"):
            moved[name] = np.where(columns[name] < 0, -1, columns[name] * self.number + copy)
        moved["channel"] = columns["channel"] + copy * channels
        return moved

    def _cut(self, columns: Columns) -> Columns:
        """Cut operations where a cell ends on either side, so that each piece stays in one piece in every instance."""
        size = columns["size"]
        piece = size.copy()
        for side in ("src", "dst"):
            index = columns[f"{side}_index"]
            cell = self._cell[columns[f"{side}_rank"], columns[f"{side}_buffer"]]
            crosses = index % cell + size > cell
            piece = np.where(crosses, np.gcd(np.gcd(piece, cell), index), piece)
        number = size // piece
        part = np.arange(int(number.sum())) - np.repeat(np.cumsum(number) - number, number)
        cut = {name: np.repeat(column, number) for name, column in columns.items()}
        cut["size"] = np.repeat(piece, number)
        for side in ("src", "dst"):
            cut[f"{side}_index"] = cut[f"{side}_index"] + part * cut["size"]
        return cut

    def _cells(self) -> Int64Array:
        """Cells: int64[ranks, buffers]."""
        trace = self.trace
        most = max(map(len, trace.scratch_sizes), default=0)
        sizes = [
            [data, result, *scratch, *[1] * (most - len(scratch))]
            for data, result, scratch in zip(
                trace.input_sizes, trace.output_sizes, trace.scratch_sizes, strict=True
            )
        ]
        cells = np.maximum(np.asarray(sizes, np.int64), 1)
        part = trace.chunk_factor if trace.kind in _SPLIT_BY_RANK else 0
        if part:
            cells[:, :FIRST_SCRATCH] = part
        if trace.is_interleaved or self._has_uneven_aliases():
            cells[:, :FIRST_SCRATCH] = self._common_cell(cells[:, :FIRST_SCRATCH].ravel())
        return cells

    def _common_cell(self, sizes: Int64Array) -> int:
        """The largest cell that divides all of `sizes` and that no reference to input or output cuts."""
        numbers = [sizes]
        for side in ("src", "dst"):
            is_chunk = self._columns[f"{side}_buffer"] < FIRST_SCRATCH
            numbers += [self._columns[f"{side}_index"][is_chunk], self._columns["size"][is_chunk]]
        return int(np.gcd.reduce(np.concatenate(numbers)))

    def _has_uneven_aliases(self) -> bool:
        """Whether input and output are one memory, but not equally long: whole buffers would then part it differently."""
        trace = self.trace
        return (
            trace.kind == "custom" and trace.is_in_place and trace.input_sizes != trace.output_sizes
        )

    def _scratch(self) -> tuple[Int64Array, Int64Array]:
        """Where every buffer begins in the hub's buffer: int64[ranks, buffers], and the scratch of every rank."""
        base = np.zeros_like(self._cell)
        total = np.zeros(self.trace.num_ranks, np.int64)
        for rank, sizes in enumerate(self.trace.scratch_sizes):
            ends = np.cumsum(np.asarray(sizes, np.int64)) * self.number
            total[rank] = ends[-1] if len(ends) else 0
            base[rank, FIRST_SCRATCH : FIRST_SCRATCH + len(sizes)] = _starts(ends.tolist())
        return base, total


def _starts(ends: Sequence[int]) -> list[int]:
    return [0, *ends[:-1]][: len(ends)]
