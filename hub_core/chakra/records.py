"""Decode the node records of several files at once into columns, whatever dialect they are in.

The header fields (id, name, type, dependencies, duration) stand before the attributes in all known
files. They are read for all nodes in step, one field a round, so that records of different length
cost no more than the longest one; what follows is left to the shapes. Cost: linear in the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hub_core.chakra.nodes import TraceError
from hub_core.chakra.shapes import AttributeColumns, ShapeBook
from hub_core.chakra.wire import Bytes, WireError, decode_varints, varints_at
from hub_core.columns import (
    Int64Array,
    UInt64Array,
    expanded_ranges,
    group_of_entry,
    group_pointer,
    row_pointer,
)

# The shapes compare 8 bytes at a time, beyond the end of the last record too.
_SPARE_BYTES = 16
_PACKED = 2
# By tag byte (field number and wire type); fields that no one reads have no column.
_HEADER_TAGS: Mapping[int, str] = {
    0x08: "id",
    0x12: "",  # name
    0x18: "type",
    0x20: "control",
    0x22: "control",
    0x28: "data",
    0x2A: "data",
    0x30: "",  # start_time_micros
    0x38: "micros",
    0x42: "",  # inputs
    0x4A: "",  # outputs
}
_LATE_SCALARS = (("id", "node.id"), ("type", "node.type"), ("micros", "node.duration_micros"))


@dataclass(frozen=True, slots=True)
class RankFile:
    """One file: name, rank, bytes, and where its node records start and end."""

    name: str
    rank: int
    content: bytes
    starts: Int64Array
    stops: Int64Array


def located(error: WireError, file: str, offset: int = 0) -> TraceError:
    """The error of a file; `offset`: where the buffer that it speaks of starts in the file."""
    return TraceError(error.reason, file, code=error.code, byte=error.position + offset)


class Batch:
    """The node records of consecutive ranks in one buffer.

    `data`: the bytes with spare ones behind; `starts`, `stops`: int64 per node; `file_indptr`:
    int64[files + 1], the nodes of each file; `file_of_node`: int64 per node.
    """

    def __init__(self, files: Sequence[RankFile]) -> None:
        """`files`: of consecutive ranks, each with at least one node."""
        self._names = [file.name for file in files]
        self.ranks = [file.rank for file in files]
        contents = [file.content for file in files]
        # One buffer, so that all nodes of the batch are addressed alike.
        self.data: Bytes = np.frombuffer(b"".join([*contents, bytes(_SPARE_BYTES)]), np.uint8)
        self._bases = row_pointer([len(content) for content in contents])
        self.file_indptr = row_pointer([len(file.starts) for file in files])
        # Everything per node is in the order of the files.
        self.file_of_node = group_of_entry(self.file_indptr)
        base = self._bases[self.file_of_node]
        self.starts = np.concatenate([file.starts for file in files]) + base
        self.stops = np.concatenate([file.stops for file in files]) + base

    def __len__(self) -> int:
        return len(self.starts)

    def fail(self, error: WireError) -> TraceError:
        """The error with its file and byte."""
        # The spare bytes behind the last file are counted to it.
        file = int(np.searchsorted(self._bases, error.position, side="right")) - 1
        return located(error, self._names[min(file, len(self._names) - 1)], -int(self._bases[file]))

    def bytes_of(self, file: int) -> tuple[str, Int64Array]:
        """Name of a file, and where its nodes start in it."""
        start, stop = self.file_indptr[file : file + 2].tolist()
        return self._names[file], self.starts[start:stop] - self._bases[file]

    def error_at(self, node: int, message: str, code: str, cure: str = "") -> TraceError:
        """An error about a node, with its file, byte and rank."""
        file = int(self.file_of_node[node])
        byte = int(self.starts[node] - self._bases[file])
        place = {"byte": byte, "rank": self.ranks[file]}
        return TraceError(message, self._names[file], code=code, cure=cure, **place)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Ids that each node waits for, as a CSR table over the nodes of a batch.

    `indptr`: int64[nodes + 1]; `ids`: uint64. Node i waits for `ids[indptr[i]:indptr[i + 1]]`, in
    the order of the file.
    """

    indptr: Int64Array
    ids: UInt64Array


@dataclass(frozen=True, slots=True)
class NodeColumns:
    """Decoded nodes of a batch, one entry a node; `micros`: duration_micros, 0 where absent."""

    batch: Batch
    id: UInt64Array
    type: Int64Array
    micros: Int64Array
    control: Dependencies
    data: Dependencies
    attributes: AttributeColumns


def decode_nodes(batch: Batch, book: ShapeBook) -> NodeColumns:
    """Decode a batch. Raises `TraceError` with file and byte for anything malformed."""
    try:
        header = _Header(batch)
        attributes = book.decode(batch.data, header.rest, batch.stops)
        header.add_late_fields(attributes)
        return NodeColumns(
            batch,
            header.scalars["id"],
            header.scalars["type"].astype(np.int64),
            header.scalars["micros"].view(np.int64),
            header.dependencies("control"),
            header.dependencies("data"),
            attributes,
        )
    except WireError as error:
        raise batch.fail(error) from None


class _Header:
    """The fields of nodes before their attributes; `rest`: where those begin, int64 per node."""

    def __init__(self, batch: Batch) -> None:
        """Reads until all nodes stand at an attribute, or at their end."""
        self._batch = batch
        self.scalars = {name: np.zeros(len(batch), np.uint64) for name, _ in _LATE_SCALARS}
        # Runs of dependency varints as (nodes, first bytes, stops), in order of appearance.
        self._runs: dict[str, list[tuple[Int64Array, Int64Array, Int64Array]]] = {
            "control": [],
            "data": [],
        }
        self.rest = batch.starts.copy()
        pending = np.arange(len(batch))
        while len(pending):
            pending = self._read_field(pending)

    def _read_field(self, nodes: Int64Array) -> Int64Array:
        """Read the next field of these nodes; return those that may have another one."""
        nodes = nodes[self.rest[nodes] < self._batch.stops[nodes]]
        tags = self._batch.data[self.rest[nodes]]
        # By ascending tag; nodes need not stay in order.
        going_on = [nodes[:0]]
        for tag in np.flatnonzero(np.bincount(tags)).tolist():
            # Any other tag ends the header of its node, whether known or not.
            if tag in _HEADER_TAGS:
                rows = nodes[tags == tag]
                self._read_value(tag, rows)
                going_on.append(rows)
        return np.concatenate(going_on)

    def _read_value(self, tag: int, nodes: Int64Array) -> None:
        start, stops = self.rest[nodes] + 1, self._batch.stops[nodes]
        value, after = varints_at(self._batch.data, start, stops)
        if tag & 7 == _PACKED:
            too_long = np.flatnonzero(value > (stops - after).astype(np.uint64))
            if len(too_long):
                reason = "a field reaches beyond the end of its record"
                raise WireError(reason, int(start[too_long[0]]))
            start, after = after, after + value.astype(np.int64)
        column = _HEADER_TAGS[tag]
        if column in self._runs:
            self._runs[column].append((nodes, start, after))
        elif column:
            self.scalars[column][nodes] = value
        self.rest[nodes] = after

    def add_late_fields(self, attributes: AttributeColumns) -> None:
        """Take over the header fields that stood behind attributes."""
        for name, source in _LATE_SCALARS:
            # As in every message, the last value of a field counts.
            late = attributes.kind[source] != 0
            self.scalars[name][late] = attributes.values[source][late].view(np.uint64)
        for shape, nodes in attributes.groups:
            for column, first, length in shape.segments:
                start = self.rest[nodes] + first
                self._runs[column].append((nodes, start, start + length))

    def dependencies(self, column: str) -> Dependencies:
        """Decode all runs of one kind of dependency."""
        nodes, starts, stops = self._ordered_runs(column)
        data = self._batch.data
        open_ended = np.flatnonzero(data[stops - 1] >= 128)
        if len(open_ended):
            reason = "a dependency list ends inside a number"
            raise WireError(reason, int(starts[open_ended[0]]))
        lengths = stops - starts
        # All lists are decoded as one; the ends tell which numbers are whose.
        ends = np.cumsum(lengths)
        try:
            ids, first = decode_varints(data[expanded_ranges(starts, lengths)])
        except WireError as error:
            run = int(np.searchsorted(ends, error.position, side="right"))
            raise WireError("a dependency of more than 10 bytes", int(starts[run])) from None
        owner = nodes[np.searchsorted(ends, first, side="right")]
        return Dependencies(group_pointer(owner, len(self._batch)), ids)

    def _ordered_runs(self, column: str) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Nodes, first bytes and stops of the runs that are not empty, by node."""
        nothing = np.zeros(0, np.int64)
        runs = [(nothing, nothing, nothing), *self._runs[column]]
        nodes, starts, stops = (np.concatenate(part) for part in zip(*runs, strict=True))
        # Stable: one node may have several runs, which keep their order.
        order = np.argsort(nodes, kind="stable")
        order = order[stops[order] > starts[order]]
        return nodes[order], starts[order], stops[order]
