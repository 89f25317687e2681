"""Decode the node records of several files at once into columns, for all dialects.

The header fields (id, name, type, dependencies, duration) precede the attributes in all known
files. They are read for all nodes together, one field per round, so that the number of rounds is
that of the longest record. The remaining bytes are decoded by shapes. Cost: linear in the bytes.
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

# Shapes compare 8 bytes at a time, also beyond the end of the last record.
_SPARE_BYTES = 16
_PACKED = 2
# By tag byte (field number and wire type); unused fields have no column.
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
    """A file: name, rank, bytes, and the start and end of its node records."""

    name: str
    rank: int
    content: bytes
    starts: Int64Array
    stops: Int64Array


def located(error: WireError, file: str, offset: int = 0) -> TraceError:
    """Convert a `WireError` (position in a buffer) to a `TraceError` (byte in `file`).

    `offset`: position of the start of the buffer in the file; it is added to the position.
    Reason and code are kept; the rank is None. The cure is to copy the file again if the
    code is `truncated`, else "".
    """
    cure = "copy the file again; it must be a Chakra trace" if error.code == "truncated" else ""
    byte = error.position + offset
    return TraceError(error.reason, file, code=error.code, byte=byte, cure=cure)


class Batch:
    """Node records of consecutive ranks in one buffer.

    `data`: the bytes, followed by spare bytes; `starts`, `stops`: int64 per node; `file_indptr`:
    int64[files + 1], the nodes of each file; `file_of_node`: int64 per node.
    """

    def __init__(self, files: Sequence[RankFile]) -> None:
        """Concatenate the contents of `files`, and locate all nodes in the common buffer.

        Files and nodes are in the given order. The attributes are:

        - `data`: uint8, read-only: the contents, then 16 bytes 0. Readers may compare 8 bytes at a
          time beyond the last record.
        - `starts`, `stops`: int64 per node, position in `data` of its first byte, and the position
          after its last byte. In a `RankFile` they count from the start of the file.
        - `file_of_node`: int64 per node, index in `files`.
        - `file_indptr`: int64[files + 1]; nodes `file_indptr[i]` to `file_indptr[i + 1]` - 1 are
          those of file i.
        - `ranks`: the rank of each file, as a list.

        Contents are not checked. Raises `ValueError` if `files` is empty.
        """
        self._names = [file.name for file in files]
        self.ranks = [file.rank for file in files]
        contents = [file.content for file in files]
        # One buffer, so that all nodes have positions in the same array.
        self.data: Bytes = np.frombuffer(b"".join([*contents, bytes(_SPARE_BYTES)]), np.uint8)
        self._bases = row_pointer([len(content) for content in contents])
        self.file_indptr = row_pointer([len(file.starts) for file in files])
        # Arrays per node are in the order of the files.
        self.file_of_node = group_of_entry(self.file_indptr)
        base = self._bases[self.file_of_node]
        self.starts = np.concatenate([file.starts for file in files]) + base
        self.stops = np.concatenate([file.stops for file in files]) + base

    def __len__(self) -> int:
        return len(self.starts)

    def fail(self, error: WireError) -> TraceError:
        """Convert an error at a position of the common buffer to a `TraceError` with file and byte.

        A position on the boundary of two files is the end of the first one. A position in the
        spare bytes after the last file counts as part of the last file.
        """
        # No node starts at the first byte of a file, because the metadata precede the nodes.
        file = max(int(np.searchsorted(self._bases[:-1], error.position, side="left")) - 1, 0)
        return located(error, self._names[file], -int(self._bases[file]))

    def bytes_of(self, file: int) -> tuple[str, Int64Array]:
        """Return the name of a file, and the first byte of each of its nodes (int64).

        `file`: index of the file in the batch. Positions count in bytes from the start of the
        file, in the order of the file; the length before a node is not part of the node.
        """
        start, stop = self.file_indptr[file : file + 2].tolist()
        return self._names[file], self.starts[start:stop] - self._bases[file]

    def error_at(self, node: int, message: str, code: str, cure: str = "") -> TraceError:
        """Return an error about a node with its file, rank, and the position of its first byte.

        `node`: row of the node in the batch. The position counts from the start of the file.
        The caller raises the error.
        """
        file = int(self.file_of_node[node])
        byte = int(self.starts[node] - self._bases[file])
        rank = self.ranks[file]
        return TraceError(message, self._names[file], code=code, cure=cure, byte=byte, rank=rank)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Ids on which each node depends, as a CSR table over the nodes of a batch.

    `indptr`: int64[nodes + 1]; `ids`: uint64. Node i depends on `ids[indptr[i]:indptr[i + 1]]`, in
    the order of the file.
    """

    indptr: Int64Array
    ids: UInt64Array


@dataclass(frozen=True, slots=True)
class DecodedNodes:
    """Decoded nodes of a batch, one entry per node; `micros`: duration_micros, 0 if absent."""

    batch: Batch
    id: UInt64Array
    type: Int64Array
    micros: Int64Array
    control: Dependencies
    data: Dependencies
    attributes: AttributeColumns


def decode_nodes(batch: Batch, book: ShapeBook) -> DecodedNodes:
    """Decode a batch of rank files to columns, one entry per node in the order of the files.

    `book`: shapes of records that were decoded before, to which new ones are added; it states which
    attributes are decoded. A field of the header may be absent (0), or follow the attributes.
    Raises `TraceError` with file and byte for malformed records.
    """
    try:
        header = _NodeHeaders(batch)
        attributes = book.decode(batch.data, header.rest, batch.stops)
        header.add_late_fields(attributes)
        return DecodedNodes(
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


class _NodeHeaders:
    """Fields of nodes before their attributes; `rest`: start of the attributes, int64 per node."""

    def __init__(self, batch: Batch) -> None:
        """Read the header of every node: its fields before the first tag outside `_HEADER_TAGS`.

        The header usually ends at the first attribute or at the end of the node. `add_late_fields`
        later adds header fields that follow an attribute.

        - Numbers (id, type, duration in us): 0 if absent; the last value if repeated.
        - Dependencies: all of them, in order. The name and unused fields are skipped.
        - `rest`: int64 per node, the position of the first unread field, or the end of the node.

        Raises `WireError` for a malformed header field.
        """
        self._batch = batch
        self.scalars = {name: np.zeros(len(batch), np.uint64) for name, _ in _LATE_SCALARS}
        # Dependency varints as (nodes, first bytes, ends), in order of appearance.
        self._runs: dict[str, list[tuple[Int64Array, Int64Array, Int64Array]]] = {
            "control": [],
            "data": [],
        }
        self.rest = batch.starts.copy()
        pending = np.arange(len(batch))
        while len(pending):
            pending = self._read_field(pending)

    def _read_field(self, nodes: Int64Array) -> Int64Array:
        """Read the next header field of each of `nodes`; return the nodes that had one.

        A header field has a tag of `_HEADER_TAGS`. Its value is stored, except for unused
        fields such as the name, and `rest` is moved to the end of the field. Nodes whose `rest`
        is at their end or at another field are unchanged and not returned. The result is
        ordered by tag, then as `nodes`; it is empty if no node had a header field. Raise
        `WireError` for a malformed field.
        """
        nodes = nodes[self.rest[nodes] < self._batch.stops[nodes]]
        tags = self._batch.data[self.rest[nodes]]
        # By ascending tag; the order of the nodes does not matter.
        going_on = [nodes[:0]]
        for tag in np.flatnonzero(np.bincount(tags)).tolist():
            # Any other tag ends the header of its node.
            if tag not in _HEADER_TAGS:
                continue
            rows = nodes[tags == tag]
            start, stops = self.rest[rows] + 1, self._batch.stops[rows]
            value, after = varints_at(self._batch.data, start, stops)
            if tag & 7 == _PACKED:
                too_long = np.flatnonzero(value > (stops - after).astype(np.uint64))
                if len(too_long):
                    reason = "a field reaches beyond the end of its record"
                    raise WireError(reason, int(start[too_long[0]]))
                start, after = after, after + value.astype(np.int64)
            column = _HEADER_TAGS[tag]
            if column in self._runs:
                self._runs[column].append((rows, start, after))
            elif column:
                self.scalars[column][rows] = value
            self.rest[rows] = after
            going_on.append(rows)
        return np.concatenate(going_on)

    def add_late_fields(self, attributes: AttributeColumns) -> None:
        """Add the header fields of nodes that appear only after their first attribute.

        The fields of a node may come in any order in a file, and the constructor reads only
        those before the first attribute; the decoder of attributes found the later ones.
        A late scalar replaces the value of the header, as the last value of a field counts in
        protobuf. Late dependencies are appended to those of the header. This object is changed.
        Call this once, before `dependencies`: a second call would add the dependencies again.
        """
        for name, source in _LATE_SCALARS:
            # The last value of a field counts, as in every message.
            late = attributes.kind[source] != 0
            self.scalars[name][late] = attributes.values[source][late].view(np.uint64)
        for shape, nodes in attributes.groups:
            for column, first, length in shape.segments:
                start = self.rest[nodes] + first
                self._runs[column].append((nodes, start, start + length))

    def dependencies(self, column: str) -> Dependencies:
        """Decode the dependencies of one kind for all nodes, as a table of ids by node.

        `column`: "data" or "control"; anything else raises `KeyError`. The ids are uint64, as in
        the file, and may be repeated. Bits of an id beyond 64 are dropped. The ids of a node are in
        the order of its record, but fields after the first attribute come after all others. A node
        without dependencies has an empty range.

        Raises `WireError` at the position in the batch of a number, or of the first byte of a
        list's content. The first defect that occurs is reported:

        1. A list ends inside a number; the first such list by node.
        2. A number has more than 10 bytes; it need not be the first such number.
        """
        # Byte ranges of the encoded dependencies, by node, without empty ones.
        empty = np.zeros(0, np.int64)
        runs = [(empty, empty, empty), *self._runs[column]]
        nodes, starts, stops = (np.concatenate(part) for part in zip(*runs, strict=True))
        # Stable, because several runs of a node keep their order.
        order = np.argsort(nodes, kind="stable")
        order = order[stops[order] > starts[order]]
        nodes, starts, stops = nodes[order], starts[order], stops[order]
        data = self._batch.data
        open_ended = np.flatnonzero(data[stops - 1] >= 128)
        if len(open_ended):
            reason = "a dependency list ends inside a number"
            raise WireError(reason, int(starts[open_ended[0]]))
        lengths = stops - starts
        # All lists are decoded together; their ends assign the numbers to nodes.
        ends = np.cumsum(lengths)
        try:
            ids, first = decode_varints(data[expanded_ranges(starts, lengths)])
        except WireError as error:
            run = int(np.searchsorted(ends, error.position, side="right"))
            raise WireError("a dependency of more than 10 bytes", int(starts[run])) from None
        owner = nodes[np.searchsorted(ends, first, side="right")]
        return Dependencies(group_pointer(owner, len(self._batch)), ids)
