"""The steps of an algorithm as read-only numpy columns, one row per step, and their builder.

To add a column: its field, dtype and default here, its attribute in the Chakra files
(`trace_profile`), and its array in
`schemas/algorithm-1.json`. The other code uses `COLUMN_DTYPES`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.columns import (
    BoolArray,
    Int64Array,
    IntArray,
    RankTable,
    csr_of_pairs,
    distinct,
    group_pointer,
    inverse,
    is_sorted,
)
from hub_core.model.diagnostics import InputError, Location
from hub_core.model.kinds import Buffer, StepKind

Array = npt.NDArray[Any]

_Edges = tuple[Int64Array, Int64Array]

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

# Columns of enumerations.
_BOUNDS = {
    "kind": (0, int(StepKind.COMPUTE)),
    "src_buffer": (0, int(Buffer.UNKNOWN)),
    "dst_buffer": (0, int(Buffer.UNKNOWN)),
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StepTable(RankTable):
    """Steps of all ranks, grouped by rank in program order.

    Build it with `from_columns` or `StepTableBuilder`. Columns have one entry per row, dtypes as in
    `COLUMN_DTYPES`: rank; kind (`StepKind`); peer (SEND: destination, RECV*: source, local steps:
    -1); channel: messages of one (source, destination, channel) match in row order; src_buffer,
    src_offset: region read by SEND, COPY, REDUCE, the local operand of RECV_REDUCE; dst_buffer,
    dst_offset: region written by RECV*, COPY, REDUCE (REDUCE: dst = dst op src; RECV_REDUCE: dst =
    received op src); count: units; lane: thread block or stream, -1 if not specified; duration_ns:
    given time of a local step or -1; source_line: line of the imported file, from 1, or -1. The
    unused operand of a step is (UNKNOWN, 0).

    `rank_indptr` int64[num_ranks + 1]: rows of rank r are `rank_indptr[r]:rank_indptr[r + 1]`.
    `data_indptr`, `control_indptr` int64[rows + 1] and `data_indices`, `control_indices` int64:
    the rows that a row waits for, ascending and without repetition. They are always earlier rows of
    the same rank, so row order is a valid order of execution within a rank. `data`: required for
    correctness; `control`: program order of the producer.
    """

    rank: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]
    peer: npt.NDArray[np.int32]
    channel: npt.NDArray[np.int32]
    src_buffer: npt.NDArray[np.uint8]
    src_offset: Int64Array
    dst_buffer: npt.NDArray[np.uint8]
    dst_offset: Int64Array
    count: Int64Array
    lane: npt.NDArray[np.int32]
    duration_ns: Int64Array
    source_line: npt.NDArray[np.int32]
    rank_indptr: Int64Array
    data_indptr: Int64Array
    data_indices: Int64Array
    control_indptr: Int64Array
    control_indices: Int64Array

    def is_kind(self, *kinds: StepKind) -> BoolArray:
        """Return the mask of the rows with one of these kinds: bool[rows]."""
        return self.rows_of_kind(kinds)

    @property
    def receives(self) -> BoolArray:
        """Mask of RECV and RECV_REDUCE rows."""
        return self.is_kind(StepKind.RECV, StepKind.RECV_REDUCE)

    @property
    def sends(self) -> BoolArray:
        """Mask of SEND rows."""
        return self.is_kind(StepKind.SEND)

    @property
    def num_messages(self) -> int:
        """Number of messages, that is, of SEND rows."""
        return int(np.count_nonzero(self.sends))

    def step_of(self, row: int) -> int:
        """Return the position of a row among the rows of its rank, from 0.

        `row`: number of a row of this table; it is not checked.
        """
        first = self.rank_indptr[self.rank[row]]
        return int(row - first)

    def location(self, row: int, file: str | None = None) -> Location:
        """Return the location of a row for messages: file, line, rank, and step of the rank.

        The line is omitted if it is unknown.
        """
        line = int(self.source_line[row])
        stated = line if line >= 0 else None
        return Location(file, stated, None, int(self.rank[row]), self.step_of(row))

    def ends(self, rows: Int64Array) -> tuple[IntArray, IntArray]:
        """Return (source ranks, destination ranks) of messages, one entry per given row.

        `rows`: rows that send or receive; other kinds are not allowed, which is not checked. The
        source is the row's rank for a send, and the peer for a receive.
        """
        is_send, rank_of_row, peer = self.sends[rows], self.rank[rows], self.peer[rows]
        return np.where(is_send, rank_of_row, peer), np.where(is_send, peer, rank_of_row)

    @classmethod
    def from_columns(
        cls,
        num_ranks: int,
        columns: Mapping[str, npt.ArrayLike],
        data: tuple[npt.ArrayLike, npt.ArrayLike] = ((), ()),
        control: tuple[npt.ArrayLike, npt.ArrayLike] = ((), ()),
        file: str | None = None,
    ) -> StepTable:
        """Build a table from columns whose rows may be in any order.

        `rank` and `kind` are required; other missing columns get their defaults, unknown ones are
        ignored. `data`, `control`: pairs (parent rows, child rows) of dependencies, as indices of
        the given rows; repeated ones count once. Rows are grouped by rank and keep their order
        within it. In a rank where a dependency leads to an earlier row, rows are put in topological
        order; among ready rows the first given one is next.

        Raises `InputError`, which names `file`, for columns of unequal length, values out of range
        (`rank-range` for ranks), dependencies on missing rows (`dangling`) or between ranks
        (`crossing-dependency`), and cycles (`cyclic-dependencies`). A missing required column
        raises `KeyError`.
        """
        rows = len(np.asarray(columns["rank"]))
        table = {name: typed_column(_COLUMNS, name, columns, rows, file) for name in COLUMN_DTYPES}
        rank = table["rank"]
        if rows and (int(rank.min()) < 0 or int(rank.max()) >= num_ranks):
            row = int(np.flatnonzero((rank < 0) | (rank >= num_ranks))[0])
            message = f"row {row} names rank {rank[row]}, which is not in 0..{num_ranks - 1}"
            raise InputError(message, location=Location(file), code="rank-range")
        edge_tables = [
            (np.asarray(p, np.int64), np.asarray(c, np.int64)) for p, c in (data, control)
        ]
        for edges in edge_tables:
            _check_edges(table, edges, file)
        if not is_sorted(rank):
            table, edge_tables = _reordered(table, edge_tables, np.argsort(rank, kind="stable"))
        indptr = group_pointer(table["rank"], num_ranks)
        # Most tables are in order and need no search for one.
        if any(bool(np.any(parents >= children)) for parents, children in edge_tables):
            order = ordered_rows(table["rank"], indptr, edge_tables, table["source_line"], file)
            table, edge_tables = _reordered(table, edge_tables, order)
        data_csr, control_csr = (csr_of_pairs(*edges, rows) for edges in edge_tables)
        return cls(
            **table,
            rank_indptr=indptr,
            data_indptr=data_csr[0],
            data_indices=data_csr[1],
            control_indptr=control_csr[0],
            control_indices=control_csr[1],
        )


class StepTableBuilder:
    """Collects steps one by one. `add` returns a handle on which later steps may depend."""

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
        """Append a step and return its handle, the number of steps that were added before.

        `values`: columns by name; missing ones get `COLUMN_DEFAULTS`. `data`, `control`: handles of
        the steps to wait for; only the building of the table checks them. Raises `InputError`
        (`rank-range`), without a change, for a rank outside 0..n-1 or a peer outside -1..n-1 of n
        ranks. Raises `TypeError` for an unknown column; the builder must not be used afterwards.
        """
        handle = len(self._columns["rank"])
        row = {**COLUMN_DEFAULTS, **values, "rank": rank, "kind": kind}
        for name, minimum in (("rank", 0), ("peer", -1)):
            if not minimum <= row[name] < self._num_ranks:
                wrong = (
                    f"step {handle}: {name} {row[name]} is not in {minimum}..{self._num_ranks - 1}"
                )
                raise InputError(wrong, code="rank-range")
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
        """Build the table.

        Raises `InputError` like `StepTable.from_columns`; `file` is named in it.
        """
        return StepTable.from_columns(
            self._num_ranks, self._columns, self._edges["data"], self._edges["control"], file
        )


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """Dtypes and defaults of the columns of a table, and (minimum, maximum) of some."""

    dtypes: Mapping[str, type[np.generic]]
    defaults: Mapping[str, int]
    bounds: Mapping[str, tuple[int, int]]


_COLUMNS = ColumnRules(COLUMN_DTYPES, COLUMN_DEFAULTS, _BOUNDS)


def typed_column(
    rules: ColumnRules, name: str, columns: Mapping[str, npt.ArrayLike], rows: int, file: str | None
) -> Array:
    """Return a column in its dtype; a missing column is filled with its default.

    The given array itself is returned if it has the dtype and is read-only; otherwise a copy.
    Raises `InputError`, which names `file`, if the column has another number of rows than `rows`,
    and for values outside the bounds of the column (`rules.bounds`), or outside its dtype if it has
    no bounds. A boolean column is converted without a check of its values.
    """
    dtype, column = rules.dtypes[name], columns.get(name)
    if column is None:
        return np.full(rows, rules.defaults[name], dtype)
    values = np.asarray(column)
    if len(values) != rows:
        message = f"column {name} has {len(values)} rows, rank has {rows}"
        raise InputError(message, location=Location(file))
    is_given_as_stored = values.dtype == dtype
    if rows and not (is_given_as_stored and name not in rules.bounds) and dtype is not np.bool_:
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        low, high = rules.bounds.get(name, (int(limits.min), int(limits.max)))
        if int(values.min()) < low or int(values.max()) > high:
            message = f"column {name} holds a value outside {low}..{high}"
            raise InputError(message, location=Location(file))
    # Writeable arrays are copied, so that later changes by the caller have no effect.
    return values.astype(dtype, copy=values.flags.writeable or not is_given_as_stored)


def ordered_rows(
    rank: npt.NDArray[np.int32],
    rank_indptr: Int64Array,
    edges: Sequence[tuple[Int64Array, Int64Array]],
    source_line: npt.NDArray[np.int32],
    file: str | None,
) -> Int64Array:
    """Return the rows as int64[rows] in an order in which every parent precedes its child.

    `edges`: at least one pair (parents, children). Rows must be grouped by rank, dependencies stay
    within a rank. Only ranks with a dependency on the same or a later row are reordered: the lowest
    row without a waiting parent is next. Raises `InputError` (`cyclic-dependencies`) for the first
    rank with a cycle, at its lowest row that can never run.
    """
    parents = np.concatenate([parents for parents, _ in edges])
    children = np.concatenate([children for _, children in edges])
    # Sorted by child, the edges of a rank are one slice, because rows are grouped by rank.
    by_child = np.argsort(children, kind="stable")
    parents, children = parents[by_child], children[by_child]
    order = np.arange(len(rank), dtype=np.int64)
    # Ranks in which all parents precede their children keep their order.
    for touched in distinct(rank[children[parents >= children]]).tolist():
        start, stop = int(rank_indptr[touched]), int(rank_indptr[touched + 1])
        low, high = np.searchsorted(children, [start, stop])
        local_parents = (parents[low:high] - start).tolist()
        local_children = (children[low:high] - start).tolist()
        local = _earliest_first(stop - start, local_parents, local_children)
        if len(local) < stop - start:
            stuck = min(set(range(stop - start)) - set(local))
            line = int(source_line[start + stuck])
            raise InputError(
                "the dependencies form a cycle, so this step can never run",
                location=Location(file, line, None, touched, stuck),
                cure="remove one dependency of the cycle",
                code="cyclic-dependencies",
            )
        order[start:stop] = start + np.asarray(local, np.int64)
    return order


def _check_edges(table: Mapping[str, Array], edges: _Edges, file: str | None) -> None:
    """Raise `InputError` for dependencies on missing rows or on rows of another rank.

    `edges`: (parents, children) as row numbers. First, any row that does not exist is `dangling`,
    without a line. Then the first dependency between ranks is `crossing-dependency`, with the line
    and rank of its child.
    """
    rank = table["rank"]
    parents, children = edges
    if not len(parents):
        return
    endpoints = np.concatenate(edges)
    if int(endpoints.min()) < 0 or int(endpoints.max()) >= len(rank):
        message = "a dependency names a step that does not exist"
        raise InputError(message, location=Location(file), code="dangling")
    # Between ranks only messages can order steps.
    crossing = np.flatnonzero(rank[parents] != rank[children])
    if len(crossing):
        child = int(children[crossing[0]])
        location = Location(file, int(table["source_line"][child]), None, int(rank[child]))
        message = "a dependency names a step of another rank"
        raise InputError(message, location=location, code="crossing-dependency")


def _reordered(
    table: dict[str, Array], edges: list[_Edges], order: Int64Array
) -> tuple[dict[str, Array], list[_Edges]]:
    """Permute the rows of a table, and return it with its edges in the new row numbers.

    `order` is a permutation of the rows: row i of the result is row `order[i]` of `table`.
    Every element of `edges` is (parent rows, child rows); edges keep their order.
    """
    position = inverse(order)
    moved = {name: column[order] for name, column in table.items()}
    return moved, [(position[parents], position[children]) for parents, children in edges]


def _earliest_first(rows: int, parents: list[int], children: list[int]) -> list[int]:
    """Return a topological order of the rows 0..rows-1; among ready rows the lowest one is next.

    `parents`, `children`: the rows of every edge; repeated edges are allowed. Rows in a cycle, and
    rows that depend on them, are omitted, so the result is shorter if there is a cycle.
    """
    waiting = [0] * rows
    successors: list[list[int]] = [[] for _ in range(rows)]
    for parent, child in zip(parents, children, strict=True):
        waiting[child] += 1
        successors[parent].append(child)
    # An ascending list is a heap.
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
