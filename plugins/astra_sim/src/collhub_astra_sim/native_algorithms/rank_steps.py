"""Steps of all ranks at once: one call adds a step of every rank, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, Int64Array
from hub_core.model import COLUMN_DEFAULTS, COLUMN_DTYPES, Buffer, StepKind, StepTable

Value = int | npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Region:
    """Units of a buffer, by rank: `offset` and `count` are one number or int64[ranks]."""

    buffer: Buffer
    offset: Value
    count: Value = 1


class RankSteps:
    """Collects steps of ranks 0..num_ranks-1; a handle is int64[ranks], -1 where there is none."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        # Ranks of every call, and what it states of their steps.
        self._added: list[tuple[Int64Array, dict[str, Value]]] = []
        self._parents: list[Int64Array] = []
        self._children: list[Int64Array] = []
        self._rows = 0

    def wait(self, duration_ns: Value, after: Sequence[Int64Array], on: BoolArray | None = None
    ) -> Int64Array:  # fmt: skip
        """A delay."""
        # The endpoint, which is all that ASTRA-sim has between messages.
        return self._add(StepKind.COMPUTE, after, on, duration_ns=duration_ns)

    def send(
        self, to: Int64Array, source: Region, after: Sequence[Int64Array],
        on: BoolArray | None = None,
    ) -> Int64Array:  # fmt: skip
        """A message to rank `to`."""
        read = {"src_buffer": source.buffer, "src_offset": source.offset, "count": source.count}
        return self._add(StepKind.SEND, after, on, peer=to, **read)

    def receive(
        self, origin: Int64Array, target: Region, after: Sequence[Int64Array],
        on: BoolArray | None = None,
    ) -> Int64Array:  # fmt: skip
        """A message from rank `origin`."""
        # As much arrives as there is room for.
        written = {"dst_buffer": target.buffer, "dst_offset": target.offset}
        return self._add(StepKind.RECV, after, on, peer=origin, count=target.count, **written)

    def receive_reduced(
        self, origin: Int64Array, operand: Region, target: Region, duration_ns: Value,
        after: Sequence[Int64Array],
    ) -> Int64Array:  # fmt: skip
        """A message to which the operand is added, for some time."""
        read = {"src_buffer": operand.buffer, "src_offset": operand.offset}
        written = {"dst_buffer": target.buffer, "dst_offset": target.offset}
        return self._add(
            StepKind.RECV_REDUCE, after, None, peer=origin, count=target.count,
            duration_ns=duration_ns, **read, **written,
        )  # fmt: skip

    def copy(self, source: Region, target: Region, after: Sequence[Int64Array],
             on: BoolArray | None = None) -> Int64Array:  # fmt: skip
        """A copy that takes no time."""
        # ASTRA-sim moves no data: this only says where they are.
        return self._local(StepKind.COPY, source, target, after, on)

    def reduce(self, source: Region, target: Region, after: Sequence[Int64Array],
               on: BoolArray | None = None) -> Int64Array:  # fmt: skip
        """A reduction that takes no time."""
        # Its time is that of a delay before.
        return self._local(StepKind.REDUCE, source, target, after, on)

    def table(self, npus: Sequence[int], total: int) -> StepTable:
        """The steps, those of rank r on NPU `npus[r]` of so many."""
        columns = {name: self._column(name) for name in COLUMN_DTYPES}
        place = np.asarray(npus, np.int64)
        columns["rank"] = place[columns["rank"]]
        columns["peer"] = np.where(columns["peer"] < 0, -1, place[columns["peer"]])
        none = [np.zeros(0, np.int64)]
        edges = np.concatenate(none + self._parents), np.concatenate(none + self._children)
        return StepTable.from_columns(total, columns, edges)

    def _local(
        self, kind: StepKind, source: Region, target: Region, after: Sequence[Int64Array],
        on: BoolArray | None,
    ) -> Int64Array:  # fmt: skip
        read = {"src_buffer": source.buffer, "src_offset": source.offset}
        written = {"dst_buffer": target.buffer, "dst_offset": target.offset}
        return self._add(kind, after, on, count=source.count, duration_ns=0, **read, **written)

    def _add(
        self, kind: StepKind, after: Sequence[Int64Array], on: BoolArray | None, **values: Value
    ) -> Int64Array:
        ranks = np.arange(self.num_ranks) if on is None else np.flatnonzero(on)
        self._added.append((ranks, {"kind": int(kind), **values}))
        handle = np.full(self.num_ranks, -1, np.int64)
        handle[ranks] = self._rows + np.arange(len(ranks))
        self._rows += len(ranks)
        for parents in after:
            both = ranks[parents[ranks] >= 0]
            self._parents.append(parents[both])
            self._children.append(handle[both])
        return handle

    def _column(self, name: str) -> Int64Array:
        """A column of all steps: numbers are repeated at once, since most calls state no more."""
        if name == "rank":
            return np.concatenate([ranks for ranks, _ in self._added])
        default = COLUMN_DEFAULTS.get(name, 0)
        values = [stated.get(name, default) for _, stated in self._added]
        counts = [len(ranks) for ranks, _ in self._added]
        numbers = [value if isinstance(value, int) else 0 for value in values]
        column = np.repeat(np.asarray(numbers, np.int64), counts)
        begin = 0
        for (ranks, _), value, count in zip(self._added, values, counts, strict=True):
            if not isinstance(value, int):
                column[begin : begin + count] = value[ranks] if value.ndim else value
            begin += count
        return column
