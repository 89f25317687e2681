"""Steps of all ranks at once: one call adds a step to every rank, in columns."""

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
    """Collects steps of ranks 0..num_ranks-1.

    Every method returns a handle: the row of each rank's new step, int64[ranks], -1 for ranks
    without a step. `after`: handles of the steps on which the new one depends. `on`: the ranks that
    get the step, by default all.
    """

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        # For each call: the ranks, and the values of their steps.
        self._added: list[tuple[Int64Array, dict[str, Value]]] = []
        self._parents: list[Int64Array] = []
        self._children: list[Int64Array] = []
        self._rows = 0

    def wait(self, duration_ns: Value, after: Sequence[Int64Array], on: BoolArray | None = None
    ) -> Int64Array:  # fmt: skip
        """Add a delay."""
        # The delay of the endpoint is the only work between messages in ASTRA-sim.
        return self._add_step(StepKind.COMPUTE, after, on, duration_ns=duration_ns)

    def send(
        self, to: Int64Array, source: Region, after: Sequence[Int64Array],
        on: BoolArray | None = None,
    ) -> Int64Array:  # fmt: skip
        """Add a message to rank `to`."""
        read = {"src_buffer": source.buffer, "src_offset": source.offset, "count": source.count}
        return self._add_step(StepKind.SEND, after, on, peer=to, **read)

    def receive(
        self, origin: Int64Array, target: Region, after: Sequence[Int64Array],
        on: BoolArray | None = None,
    ) -> Int64Array:  # fmt: skip
        """Add the receive of a message from rank `origin`."""
        # The message has the size of the target.
        written = {"dst_buffer": target.buffer, "dst_offset": target.offset}
        return self._add_step(StepKind.RECV, after, on, peer=origin, count=target.count, **written)

    def receive_reduced(
        self, origin: Int64Array, operand: Region, target: Region, duration_ns: Value,
        after: Sequence[Int64Array],
    ) -> Int64Array:  # fmt: skip
        """Add a receive that reduces the message with the operand into the target."""
        read = {"src_buffer": operand.buffer, "src_offset": operand.offset}
        written = {"dst_buffer": target.buffer, "dst_offset": target.offset}
        return self._add_step(
            StepKind.RECV_REDUCE, after, None, peer=origin, count=target.count,
            duration_ns=duration_ns, **read, **written,
        )  # fmt: skip

    def copy(self, source: Region, target: Region, after: Sequence[Int64Array],
             on: BoolArray | None = None) -> Int64Array:  # fmt: skip
        """Add a copy that takes no time."""
        # ASTRA-sim moves no data: the copy only defines the position of data.
        return self._add_local(StepKind.COPY, source, target, after, on)

    def reduce(self, source: Region, target: Region, after: Sequence[Int64Array],
               on: BoolArray | None = None) -> Int64Array:  # fmt: skip
        """Add a reduction that takes no time."""
        # Its time is part of a preceding delay.
        return self._add_local(StepKind.REDUCE, source, target, after, on)

    def table(self, npus: Sequence[int], total: int) -> StepTable:
        """Return the step table; the steps of rank r are on NPU `npus[r]` of `total`."""
        columns = {name: self._build_column(name) for name in COLUMN_DTYPES}
        npu_of_rank = np.asarray(npus, np.int64)
        columns["rank"] = npu_of_rank[columns["rank"]]
        columns["peer"] = np.where(columns["peer"] < 0, -1, npu_of_rank[columns["peer"]])
        empty = [np.zeros(0, np.int64)]
        edges = np.concatenate(empty + self._parents), np.concatenate(empty + self._children)
        return StepTable.from_columns(total, columns, edges)

    def _add_local(
        self, kind: StepKind, source: Region, target: Region, after: Sequence[Int64Array],
        on: BoolArray | None,
    ) -> Int64Array:  # fmt: skip
        """Add a copy or reduction without duration."""
        read = {"src_buffer": source.buffer, "src_offset": source.offset}
        written = {"dst_buffer": target.buffer, "dst_offset": target.offset}
        return self._add_step(kind, after, on, count=source.count, duration_ns=0, **read, **written)

    def _add_step(
        self, kind: StepKind, after: Sequence[Int64Array], on: BoolArray | None, **values: Value
    ) -> Int64Array:
        """Add a step of this kind with these column values and return its handle."""
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

    def _build_column(self, name: str) -> Int64Array:
        """Return one column of all steps, in the order in which they were added.

        An added value is a scalar for all its ranks, or an array by rank, of which the ranks of the
        step are taken. Steps without the value get the default of `COLUMN_DEFAULTS`, or 0. Scalars
        are repeated by one vectorized call, because most calls pass only scalars.
        """
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
