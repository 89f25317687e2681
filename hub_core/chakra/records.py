"""Decode the node records of several files at once into columns, whatever dialect they are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.chakra.shapes import AttributeColumns, ShapeBook
from hub_core.chakra.wire import WireError, decode_varints, ranges, varints_at
from hub_core.model.diagnostics import InputError, Location

Bytes = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

_SPARE_BYTES = 16
_ID, _NAME, _TYPE, _CONTROL, _DATA, _START, _MICROS, _INPUTS, _OUTPUTS = range(1, 10)
_VARINT_TAGS = {_ID << 3: "id", _TYPE << 3: "type", _MICROS << 3: "micros", _START << 3: ""}
_SKIPPED_TAGS = {_NAME << 3 | 2, _INPUTS << 3 | 2, _OUTPUTS << 3 | 2}
_PACKED_TAGS = {_CONTROL << 3 | 2: "control", _DATA << 3 | 2: "data"}
_UNPACKED_TAGS = {_CONTROL << 3: "control", _DATA << 3: "data"}


@dataclass(frozen=True, slots=True)
class RankFile:
    """One file: name, rank, bytes, and where its node records start and end."""

    name: str
    rank: int
    content: bytes
    starts: Int64Array
    stops: Int64Array


def located(error: WireError, file: str, offset: int = 0) -> InputError:
    """The error of a file; `offset`: where the buffer that the error speaks of starts in the file."""
    return InputError(
        error.reason, location=Location(file, byte=error.position + offset), code=error.code
    )


class Batch:
    """The node records of consecutive ranks in one buffer.

    `data`: the bytes with spare ones behind; `starts`, `stops`: int64 per node; `file_indptr`: int64[files + 1],
    the nodes of each file.
    """

    def __init__(self, files: Sequence[RankFile]) -> None:
        self._names = [file.name for file in files]
        self.ranks = [file.rank for file in files]
        self.data = np.frombuffer(
            b"".join([*(file.content for file in files), bytes(_SPARE_BYTES)]), np.uint8
        )
        sizes = [len(file.content) for file in files]
        self._bases = np.cumsum([0, *sizes])
        self.starts = np.concatenate(
            [file.starts + base for file, base in zip(files, self._bases, strict=False)]
        )
        self.stops = np.concatenate(
            [file.stops + base for file, base in zip(files, self._bases, strict=False)]
        )
        self.file_indptr = np.cumsum([0, *(len(file.starts) for file in files)]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def file_of_node(self) -> Int64Array:
        """Index of the file of every node."""
        return np.repeat(np.arange(len(self._names)), np.diff(self.file_indptr))

    def fail(self, error: WireError) -> InputError:
        """The error with its file and byte."""
        file = int(np.searchsorted(self._bases, error.position, side="right")) - 1
        return located(error, self._names[min(file, len(self._names) - 1)], -int(self._bases[file]))

    def bytes_of(self, file: int) -> tuple[str, Int64Array]:
        """Name of a file, and where its nodes start in it."""
        start, stop = self.file_indptr[file : file + 2].tolist()
        return self._names[file], self.starts[start:stop] - self._bases[file]

    def place(self, node: int) -> Location:
        """File, byte and rank of a node."""
        file = int(np.searchsorted(self.file_indptr, node, side="right")) - 1
        return Location(
            self._names[file],
            byte=int(self.starts[node] - self._bases[file]),
            rank=self.ranks[file],
        )


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Ids that each node waits for, in the order of the file: `ids[indptr[i]:indptr[i + 1]]`."""

    indptr: Int64Array
    ids: UInt64Array


@dataclass(frozen=True, slots=True)
class NodeColumns:
    """Decoded nodes of a batch, one entry a node; `micros`: the field duration_micros, 0 where absent."""

    batch: Batch
    id: UInt64Array
    type: Int64Array
    micros: Int64Array
    control: Dependencies
    data: Dependencies
    attributes: AttributeColumns


def decode_nodes(batch: Batch, book: ShapeBook) -> NodeColumns:
    """Decode a batch. Raises `InputError` with file and byte for anything malformed."""
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
    """The fields of nodes before their attributes, read for all nodes in step; the rest is left to the shapes."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.scalars = {name: np.zeros(len(batch), np.uint64) for name in ("id", "type", "micros")}
        # Per kind: (nodes, first bytes, stops) of runs of dependency varints, in order of appearance.
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
        found = np.flatnonzero(np.bincount(tags, minlength=1))
        going_on = []
        for tag in found.tolist():
            rows = nodes if len(found) == 1 else nodes[tags == tag]
            if self._read_tag(tag, rows):
                going_on.append(rows)
        return np.concatenate(going_on) if going_on else nodes[:0]

    def _read_tag(self, tag: int, nodes: Int64Array) -> bool:
        if tag not in _HEADER_TAGS:
            return False
        at, stops = self.rest[nodes] + 1, self._batch.stops[nodes]
        value, after = varints_at(self._batch.data, at, stops)
        if tag in _SKIPPED_TAGS or tag in _PACKED_TAGS:
            too_long = np.flatnonzero(value > (stops - after).astype(np.uint64))
            if len(too_long):
                raise WireError(
                    "a field reaches beyond the end of its record", int(at[too_long[0]])
                )
            start, after = after, after + value.astype(np.int64)
            if tag in _PACKED_TAGS:
                self._runs[_PACKED_TAGS[tag]].append((nodes, start, after))
        elif tag in _UNPACKED_TAGS:
            self._runs[_UNPACKED_TAGS[tag]].append((nodes, at, after))
        elif _VARINT_TAGS[tag]:
            self.scalars[_VARINT_TAGS[tag]][nodes] = value
        self.rest[nodes] = after
        return True

    def add_late_fields(self, attributes: AttributeColumns) -> None:
        """Take over the header fields that stood behind attributes."""
        for name, source in (
            ("id", "node.id"),
            ("type", "node.type"),
            ("micros", "node.duration_micros"),
        ):
            late = attributes.kind[source] != 0
            self.scalars[name][late] = attributes.values[source][late].view(np.uint64)
        for shape, nodes in attributes.groups:
            for kind, first, length in shape.segments:
                start = self.rest[nodes] + first
                self._runs[kind].append((nodes, start, start + length))

    def dependencies(self, kind: str) -> Dependencies:
        """Decode all runs of one kind."""
        count = len(self._batch)
        runs = self._runs[kind]
        if not runs:
            return Dependencies(np.zeros(count + 1, np.int64), np.zeros(0, np.uint64))
        nodes, starts, stops = (np.concatenate(column) for column in zip(*runs, strict=True))
        order = np.argsort(nodes, kind="stable")
        order = order[stops[order] > starts[order]]
        nodes, starts, stops = nodes[order], starts[order], stops[order]
        open_ended = np.flatnonzero(self._batch.data[stops - 1] >= 128)
        if len(open_ended):
            raise WireError("a dependency list ends inside a number", int(starts[open_ended[0]]))
        lengths = stops - starts
        try:
            ids, first = decode_varints(self._batch.data[ranges(starts, lengths)])
        except WireError as error:
            run = int(np.searchsorted(np.cumsum(lengths), error.position, side="right"))
            raise WireError("a dependency of more than 10 bytes", int(starts[run])) from None
        owner = nodes[np.searchsorted(np.cumsum(lengths), first, side="right")]
        indptr = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(owner, minlength=count), out=indptr[1:])
        return Dependencies(indptr, ids)


_HEADER_TAGS = {*_VARINT_TAGS, *_SKIPPED_TAGS, *_PACKED_TAGS, *_UNPACKED_TAGS}
