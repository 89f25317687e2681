"""The steps of an algorithm as read-only numpy columns, one row a step, and the way to build them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.model.collectives import Buffer
from hub_core.model.diagnostics import InputError, Location

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]


class StepKind(IntEnum):
    """What a step does. COMPUTE is opaque work between messages."""

    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    COPY = 3
    REDUCE = 4
    COMPUTE = 5


COLUMN_DTYPES: Mapping[str, type[np.generic]] = {
    "rank": np.int32,
    "kind": np.uint8,
    "peer": np.int32,
    "channel": np.int32,
    "src_buffer": np.uint8,
    "src_offset": np.int64,
    "dst_buffer": np.uint8,
    "dst_offset": np.int64,
    "count": np.int64,
    "lane": np.int32,
    "duration_ns": np.int64,
    "source_line": np.int32,
}
COLUMN_DEFAULTS: Mapping[str, int] = {
    "peer": -1,
    "channel": 0,
    "src_buffer": Buffer.UNKNOWN,
    "src_offset": 0,
    "dst_buffer": Buffer.UNKNOWN,
    "dst_offset": 0,
    "count": 0,
    "lane": -1,
    "duration_ns": -1,
    "source_line": -1,
}
_LAST_VALUES: Mapping[str, int] = {
    "kind": StepKind.COMPUTE,
    "src_buffer": Buffer.UNKNOWN,
    "dst_buffer": Buffer.UNKNOWN,
}


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """Steps of all ranks, grouped by rank in program order. Build it with `from_columns` or `StepTableBuilder`.

    Columns have one entry a row, dtypes as in `COLUMN_DTYPES`:
    rank; kind (`StepKind`); peer (SEND: destination, RECV*: source, local steps: -1); channel: messages of
    one (source, destination, channel) match in row order; src_buffer, src_offset: what SEND, COPY, REDUCE
    read, the local operand of RECV_REDUCE; dst_buffer, dst_offset: what RECV*, COPY, REDUCE write (REDUCE:
    dst = dst op src; RECV_REDUCE: dst = received op src); count: units; lane: thread block or stream, -1 for
    no opinion; duration_ns: stated time of a local step or -1; source_line: place in the imported file, from
    1, or -1. The unused side of a step is (UNKNOWN, 0).

    `rank_indptr` int64[num_ranks + 1]: rows of rank r are `rank_indptr[r]:rank_indptr[r + 1]`.
    `data_indptr`, `control_indptr` int64[rows + 1] and `data_indices`, `control_indices` int64: the rows that
    a row waits for, ascending and without repetition. They always are earlier rows of the same rank, so row
    order is a valid order of execution within a rank. `data`: must hold; `control`: program order that the
    producer kept.
    """

    rank: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]
    peer: npt.NDArray[np.int32]
    channel: npt.NDArray[np.int32]
    src_buffer: npt.NDArray[np.uint8]
    src_offset: npt.NDArray[np.int64]
    dst_buffer: npt.NDArray[np.uint8]
    dst_offset: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    lane: npt.NDArray[np.int32]
    duration_ns: npt.NDArray[np.int64]
    source_line: npt.NDArray[np.int32]
    rank_indptr: npt.NDArray[np.int64]
    data_indptr: npt.NDArray[np.int64]
    data_indices: npt.NDArray[np.int64]
    control_indptr: npt.NDArray[np.int64]
    control_indices: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        for field in fields(self):
            getattr(self, field.name).flags.writeable = False

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def num_ranks(self) -> int:
        """Number of ranks, those without steps included."""
        return len(self.rank_indptr) - 1

    def is_kind(self, *kinds: StepKind) -> npt.NDArray[np.bool_]:
        """Mask of the rows of one of these kinds."""
        return np.isin(self.kind, np.asarray([int(kind) for kind in kinds], np.uint8))

    @property
    def receives(self) -> npt.NDArray[np.bool_]:
        """Mask of RECV and RECV_REDUCE rows."""
        return self.is_kind(StepKind.RECV, StepKind.RECV_REDUCE)

    @property
    def sends(self) -> npt.NDArray[np.bool_]:
        """Mask of SEND rows."""
        return self.is_kind(StepKind.SEND)

    def step_of(self, row: int) -> int:
        """Position of a row among the rows of its rank."""
        return int(row - self.rank_indptr[self.rank[row]])

    def location(self, row: int, file: str | None = None) -> Location:
        """Where a row stands, for messages."""
        line = int(self.source_line[row])
        return Location(
            file, line if line >= 0 else None, None, int(self.rank[row]), self.step_of(row)
        )

    def edges(self) -> tuple[Int64Array, Int64Array]:
        """All dependencies, data and control together, as (parent row, child row), without repetition."""
        keys = [
            np.repeat(np.arange(len(self)), np.diff(indptr)) * len(self) + indices
            for indptr, indices in (
                (self.data_indptr, self.data_indices),
                (self.control_indptr, self.control_indices),
            )
        ]
        merged = (
            keys[0]
            if not len(keys[1])
            else keys[1]
            if not len(keys[0])
            else np.union1d(keys[0], keys[1])
        )
        return merged % max(len(self), 1), merged // max(len(self), 1)

    def differences(self, other: StepTable) -> list[str]:
        """Names of the columns that differ; empty for equal tables."""
        return [
            f.name
            for f in fields(self)
            if not np.array_equal(getattr(self, f.name), getattr(other, f.name))
        ]

    @classmethod
    def from_columns(
        cls,
        num_ranks: int,
        columns: Mapping[str, npt.ArrayLike],
        data: tuple[npt.ArrayLike, npt.ArrayLike] = ((), ()),
        control: tuple[npt.ArrayLike, npt.ArrayLike] = ((), ()),
        file: str | None = None,
    ) -> StepTable:
        """Build a table from columns in any order of rows.

        `rank` and `kind` are required, other columns default. `data` and `control` are (parent rows, child
        rows) pairs that index the given rows. Rows are grouped by rank, keeping their order; ranks where a
        dependency points forward are put in topological order, ties by the given order. Cost: linear, plus a
        sort where the rows are not in order. Raises `InputError` for dependencies that cross ranks, form a
        cycle, or values outside a column's range; `file` is named in it.
        """
        table = _typed_columns(columns, file)
        rank = table["rank"]
        rows = len(rank)
        if rows and not (int(rank.min()) >= 0 and int(rank.max()) < num_ranks):
            raise InputError(
                f"a step names a rank outside 0..{num_ranks - 1}",
                location=Location(file),
                code="rank-range",
            )
        edges = [(np.asarray(p, np.int64), np.asarray(c, np.int64)) for p, c in (data, control)]
        _check_edges(rank, table["source_line"], edges, file)
        order = None if bool(np.all(rank[1:] >= rank[:-1])) else np.argsort(rank, kind="stable")
        if order is not None:
            table, edges = _reordered(table, edges, order)
        indptr = np.searchsorted(table["rank"], np.arange(num_ranks + 1)).astype(np.int64)
        if any(bool(np.any(p >= c)) for p, c in edges):
            table, edges = _reordered(table, edges, _topological_order(table, edges, indptr, file))
        (data_indptr, data_indices), (control_indptr, control_indices) = (
            _csr(p, c, rows) for p, c in edges
        )
        return cls(
            **table,
            rank_indptr=indptr,
            data_indptr=data_indptr,
            data_indices=data_indices,
            control_indptr=control_indptr,
            control_indices=control_indices,
        )


class StepTableBuilder:
    """Collect steps one by one; each call returns a handle that later steps may name as a dependency."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._columns: dict[str, list[int]] = {name: [] for name in COLUMN_DTYPES}
        self._edges: dict[str, tuple[list[int], list[int]]] = {
            "data": ([], []),
            "control": ([], []),
        }

    def add(
        self,
        rank: int,
        kind: StepKind,
        *,
        data: Iterable[int] = (),
        control: Iterable[int] = (),
        **values: int,
    ) -> int:
        """Append a step; `values` are columns of `StepTable`, missing ones take their defaults."""
        handle = len(self._columns["rank"])
        row = {**COLUMN_DEFAULTS, **values, "rank": rank, "kind": kind}
        for name, column in self._columns.items():
            column.append(row.pop(name))
        if row:
            raise TypeError(f"no such column: {', '.join(sorted(row))}")
        for name, parents in (("data", data), ("control", control)):
            for parent in parents:
                self._edges[name][0].append(parent)
                self._edges[name][1].append(handle)
        return handle

    def build(self, file: str | None = None) -> StepTable:
        """Return the table. Raises `InputError` as `StepTable.from_columns`, with `file` in it."""
        return StepTable.from_columns(
            self._num_ranks, self._columns, self._edges["data"], self._edges["control"], file
        )


def _typed_columns(columns: Mapping[str, npt.ArrayLike], file: str | None) -> dict[str, Array]:
    rows = len(np.asarray(columns["rank"]))
    table: dict[str, Array] = {}
    for name, dtype in COLUMN_DTYPES.items():
        given = columns.get(name)
        if given is None:
            table[name] = np.full(rows, COLUMN_DEFAULTS[name], dtype)
            continue
        wide = np.asarray(given)
        wide = wide.astype(np.int64) if not wide.size else wide
        if len(wide) != rows:
            raise InputError(
                f"column {name} has {len(wide)} rows, rank has {rows}", location=Location(file)
            )
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        low, high = (0, _LAST_VALUES[name]) if name in _LAST_VALUES else (limits.min, limits.max)
        is_checked = wide.dtype != dtype or name in _LAST_VALUES
        if wide.size and is_checked and not (low <= int(wide.min()) and int(wide.max()) <= high):
            raise InputError(
                f"column {name} holds a value outside {low}..{high}", location=Location(file)
            )
        # A copy of what is not already ours, so that later changes by the caller cannot reach the table.
        table[name] = wide.astype(dtype, copy=wide.flags.writeable or wide.dtype != dtype)
    return table


def _check_edges(
    rank: Array,
    source_line: Array,
    edges: Sequence[tuple[Int64Array, Int64Array]],
    file: str | None,
) -> None:
    for parents, children in edges:
        if not len(parents):
            continue
        low, high = (
            min(int(parents.min()), int(children.min())),
            max(int(parents.max()), int(children.max())),
        )
        if low < 0 or high >= len(rank):
            raise InputError(
                "a dependency names a step that does not exist",
                location=Location(file),
                code="dangling",
            )
        crossing = np.flatnonzero(rank[parents] != rank[children])
        if len(crossing):
            child = int(children[crossing[0]])
            place = Location(file, int(source_line[child]), None, int(rank[child]))
            raise InputError(
                "a dependency names a step of another rank",
                location=place,
                code="crossing-dependency",
            )


def _reordered(
    table: dict[str, Array], edges: Sequence[tuple[Int64Array, Int64Array]], order: Int64Array
) -> tuple[dict[str, Array], list[tuple[Int64Array, Int64Array]]]:
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    moved = {name: column[order] for name, column in table.items()}
    return moved, [(position[parents], position[children]) for parents, children in edges]


def _topological_order(
    table: dict[str, Array],
    edges: Sequence[tuple[Int64Array, Int64Array]],
    indptr: Int64Array,
    file: str | None,
) -> Int64Array:
    """Order the rows of every rank with a forward dependency; the earliest ready row of the given order goes first."""
    parents = np.concatenate([p for p, _ in edges])
    children = np.concatenate([c for _, c in edges])
    order = np.arange(len(table["rank"]), dtype=np.int64)
    by_child = np.argsort(children, kind="stable")
    parents, children = parents[by_child], children[by_child]
    for rank in np.unique(table["rank"][children[parents >= children]]).tolist():
        start, stop = int(indptr[rank]), int(indptr[rank + 1])
        low, high = np.searchsorted(children, [start, stop])
        local = _rank_order(
            stop - start,
            (parents[low:high] - start).tolist(),
            (children[low:high] - start).tolist(),
        )
        if len(local) < stop - start:
            stuck = start + min(set(range(stop - start)) - set(local))
            place = Location(file, int(table["source_line"][stuck]), None, int(rank), stuck - start)
            raise InputError(
                "the dependencies form a cycle, so this step can never run",
                location=place,
                cure="remove one dependency of the cycle",
                code="cyclic-dependencies",
            )
        order[start:stop] = start + np.asarray(local, np.int64)
    return order


def _rank_order(rows: int, parents: list[int], children: list[int]) -> list[int]:
    waiting = [0] * rows
    successors: list[list[int]] = [[] for _ in range(rows)]
    for parent, child in zip(parents, children, strict=True):
        waiting[child] += 1
        successors[parent].append(child)
    ready = [row for row in range(rows) if not waiting[row]]
    order: list[int] = []
    while ready:
        row = heapq.heappop(ready)
        order.append(row)
        for child in successors[row]:
            waiting[child] -= 1
            if not waiting[child]:
                heapq.heappush(ready, child)
    return order


def _csr(parents: Int64Array, children: Int64Array, rows: int) -> tuple[Int64Array, Int64Array]:
    keys = children * np.int64(max(rows, 1)) + parents
    if len(keys) > 1 and not bool(np.all(keys[1:] > keys[:-1])):
        keys = np.sort(keys)
        keys = keys[np.append(True, keys[1:] != keys[:-1])]
    children, indices = np.divmod(keys, np.int64(max(rows, 1)))
    indptr = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(children, minlength=rows), out=indptr[1:])
    return indptr, indices
