"""Steps of an algorithm, added in the order of execution, and the memory ranges they access.

A step belongs to the rank whose memory it accesses, even if another rank executes the operation: a
transfer between ranks is a SEND of the source rank and a RECV of the destination rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_mscclpp.checking.lowering import Ranges
from collhub_mscclpp.checking.memory import PlanMemory
from hub_core.columns import Int64Array
from hub_core.model import COLUMN_DEFAULTS, COLUMN_DTYPES, Buffer, StepKind, StepTable


@dataclass(frozen=True, slots=True)
class Place:
    """The start of a range: rank, buffer, offset in units, and the number of its first cell."""

    rank: int
    buffer: int
    offset: int
    cell: int


@dataclass(frozen=True, slots=True, eq=False)
class PlaceTable:
    """Starts of all ranges, by row. `scratch_units`: int64[ranks], scratch of each rank."""

    places: tuple[Place, ...]
    scratch_units: Int64Array


def places_of(memory: PlanMemory, ranges: Ranges) -> PlaceTable:
    """Return the position of every range in the buffers of the algorithm, and the scratch sizes.

    The scratch of a rank consists of up to two regions of `memory.half` cells each: first plain
    data, then packets (data with flags). A region exists only if a scratch range of the rank has
    this kind of data.

    - `places` has one entry per row of `ranges`: rank, buffer, offset in the buffer in cells, and
      number of the first cell in `memory` (`ranges.base`). Only scratch of the first launch is
      used, also if launches alternate between two halves of the scratch.
    - `scratch_units` is int64[ranks]: cells of the existing regions, 0 without scratch ranges.
    """
    is_scratch = ranges.buffer == Buffer.SCRATCH
    is_packet = ranges.is_packet == 1
    ranks = len(memory.half)
    plain = np.zeros(ranks, np.int64)
    packets = np.zeros(ranks, np.int64)
    plain_ranks = ranges.rank[is_scratch & ~is_packet]
    packet_ranks = ranges.rank[is_scratch & is_packet]
    plain[plain_ranks] = memory.half[plain_ranks]
    packets[packet_ranks] = memory.half[packet_ranks]
    offset = ranges.base - memory.layout.base[ranges.rank, ranges.buffer]
    # In `PlanMemory` the packet form follows all halves of the plain form.
    moved = plain[ranges.rank] - memory.halves * memory.half[ranges.rank]
    offset = offset + np.where(is_packet & is_scratch, moved, 0)
    columns = (ranges.rank, ranges.buffer, offset, ranges.base)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return PlaceTable(tuple(Place(*row) for row in rows), plain + packets)


# A plan has no durations.
_COLUMNS = tuple(name for name in COLUMN_DTYPES if name != "duration_ns")


class StepList:
    """Steps of all ranks in the order of one launch, and the steps for which each one waits.

    `line`: source line of the steps that are added next, -1 if unknown.
    """

    def __init__(
        self,
        num_ranks: int,
        total_cells: int,
    ) -> None:
        self.line = -1
        self._num_ranks = num_ranks
        self._total_cells = total_cells
        self._columns: dict[str, list[int]] = {name: [] for name in _COLUMNS}
        self._read_base: list[int] = []
        self._write_base: list[int] = []
        self._control: tuple[list[int], list[int]] = ([], [])

    def copy(
        self,
        source: Place,
        target: Place,
        cells: int,
        lane: int,
    ) -> list[int]:
        """Add a copy of `cells` cells on the rank of `target`; return a list with its row.

        If source and target begin at the same memory cell, no step is added and the list is empty.
        Whether `source` is on the same rank is not checked. `lane`: the thread block.
        """
        # In place, input and output may share memory, so a copy may be one to itself.
        if source.cell == target.cell:
            return []
        return [self._add(StepKind.COPY, target.rank, source, target, cells, lane=lane)]

    def reduce(
        self,
        source: Place,
        target: Place,
        cells: int,
        lane: int,
    ) -> list[int]:
        """Add a step that adds `source` to `target`, on the same rank, and return its row."""
        return [self._add(StepKind.REDUCE, target.rank, source, target, cells, lane=lane)]

    def message(
        self,
        source: Place,
        target: Place,
        cells: int,
        channel: int,
        lanes: tuple[int, int],
        operand: Place | None = None,
    ) -> tuple[int, int]:
        """Append a send and its receive of `cells` cells; return the rows of both, counted from 0.

        `source`, `target`: ranges on the sending and the receiving rank, whose ranks are the peers
        of each other. The receive is a RECV that stores the data in `target`. With `operand`, a
        range of the receiving rank, it is a RECV_REDUCE that stores the sum of operand and data in
        `target`. `lanes`: thread blocks of the send and of the receive, -1 for none. The two rows
        are consecutive and have the same channel and the source line `self.line`. Dependencies are
        not added.
        """
        sent = self._add(
            StepKind.SEND,
            source.rank,
            source,
            None,
            cells,
            peer=target.rank,
            channel=channel,
            lane=lanes[0],
        )
        received = self._add(
            # A reduction is executed on the rank of the operand.
            StepKind.RECV if operand is None else StepKind.RECV_REDUCE,
            target.rank,
            operand,
            target,
            cells,
            peer=source.rank,
            channel=channel,
            lane=lanes[1],
        )
        return sent, received

    def order(self, parents: Sequence[int], child: int) -> None:
        """Add control dependencies: the step `child` waits for all steps in `parents`.

        Steps are given by row, counted from 0. Pairs may be repeated. Rows are not checked here;
        `table` refuses rows that do not exist and steps of different ranks.
        """
        self._control[0].extend(parents)
        self._control[1].extend([child] * len(parents))

    def rank_of(self, step: int) -> int:
        """Return the rank of a step."""
        return self._columns["rank"][step]

    def take_lane(self, step: int, lane: int) -> None:
        """Set the lane of a step if it has none: the thread block that waits for its message."""
        if self._columns["lane"][step] < 0:
            self._columns["lane"][step] = lane

    def table(self, file: str) -> StepTable:
        """Build the step table of all steps added so far.

        Data dependencies follow from the memory cells (smallest addressed parts of memory) of the
        steps. A step that reads or writes a cell depends on the last earlier step that writes it.
        If it writes the cell, it also depends on all steps that read it since then. Control
        dependencies are those added by `order`.

        The table groups the steps by rank, so its rows can differ from the order of the calls.
        `file`: name of the source file. Raises `InputError` for values out of range, control
        dependencies on missing rows or between ranks, and cycles.
        """
        columns = {name: np.asarray(values, np.int64) for name, values in self._columns.items()}
        # Imported here: it loads numba, which takes a second.
        from collhub_mscclpp.reading.true_dependencies import dependencies

        read_base = np.asarray(self._read_base, np.int64)
        write_base = np.asarray(self._write_base, np.int64)
        # The number of pairs is known only after the first attempt if the room does not suffice.
        room = 4 * len(read_base) + 1
        while True:
            parents, children = np.zeros(room, np.int64), np.zeros(room, np.int64)
            count = dependencies(
                read_base,
                write_base,
                columns["count"],
                self._total_cells,
                parents,
                children,
            )
            if count <= room:
                break
            room = count
        data = parents[:count], children[:count]
        return StepTable.from_columns(self._num_ranks, columns, data, self._control, file)

    def _add(
        self,
        kind: StepKind,
        rank: int,
        source: Place | None,
        target: Place | None,
        cells: int,
        **values: int,
    ) -> int:
        """Append a step and return its row, counted from 0.

        `source`, `target`: ranges that the step reads and writes. For None the buffer is UNKNOWN,
        the offset 0 and the first cell -1. The first cells of both are recorded for the
        dependencies. `cells`: count of the step. The source line is the current
        `self.line`.

        `values` override any of these columns; names that are no columns are ignored. All
        remaining columns have the defaults of `COLUMN_DEFAULTS`.
        """
        row = {
            **COLUMN_DEFAULTS,
            "rank": rank,
            "kind": int(kind),
            "count": cells,
            "source_line": self.line,
            "src_buffer": source.buffer if source else Buffer.UNKNOWN,
            "src_offset": source.offset if source else 0,
            "dst_buffer": target.buffer if target else Buffer.UNKNOWN,
            "dst_offset": target.offset if target else 0,
            **values,
        }
        for name in _COLUMNS:
            self._columns[name].append(row[name])
        self._read_base.append(source.cell if source else -1)
        self._write_base.append(target.cell if target else -1)
        return len(self._read_base) - 1
