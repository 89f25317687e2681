"""Read Chakra execution traces of whole jobs, every record so that it can be written back.

Cost: linear in the bytes; attributes that stand in many records are decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from collhub_chakra import Metadata, RankFile, TraceError, open_rank_file, varint

from collhub_job_traces.groups import ATTRIBUTE, job_groups
from collhub_job_traces.node import DecodedNode, NodeDecoder
from collhub_job_traces.options import JobReadOptions
from hub_core import InputError, Location, Provenance
from hub_core.model import JsonValue, NodeColumns, Workload
from hub_core.plugin_api import Source

EXTENSION = "chakra-workload"
"""Key of `Workload.extensions` for the metadata records of the files, in hexadecimal."""
_COLUMNS = (
    *("kind", "identity", "duration_ns", "operations", "bytes", "collective", "root", "peer"),
    *("tag", "dimensions", "on_host"),
)
_Edges = tuple[list[int], list[int]]


def read(source: Source, options: JobReadOptions) -> Workload:
    """Read the rank files of a job.

    Groups are those of the metadata, else every group has the ranks whose nodes name it. Raises
    `InputError` with file, byte and rank for what is no trace, and for values out of range.
    """
    try:
        return _Reader(source, options).read()
    except TraceError as error:
        place = Location(error.file, byte=error.byte, rank=error.rank)
        raise InputError(error.reason, location=place, code=error.code, cure=error.cure) from None


class _Reader:
    """One reading: the columns of all nodes so far."""

    def __init__(self, source: Source, options: JobReadOptions) -> None:
        self._source = source
        self._options = options
        self._columns: dict[str, list[int]] = {name: [] for name in _COLUMNS}
        self._tables: dict[str, dict[str, int]] = {"name": {}, "extra": {}, "group": {}}
        self._indices: dict[str, list[int]] = {name: [] for name in self._tables}
        self._rank: list[int] = []
        self._edges: dict[str, _Edges] = {"data": ([], []), "control": ([], [])}
        self._dropped = 0

    def read(self) -> Workload:
        """Read all files."""
        parts = sorted(self._source.parts, key=lambda part: part.rank or 0)
        _check_ranks([part.rank or 0 for part in parts], self._source.name)
        heads, metadata = [], Metadata()
        for rank, part in enumerate(parts):
            file, found = open_rank_file(part.name, rank, part.load())
            metadata = metadata if rank else found
            heads.append(_head(file).hex())
            self._add(file)
        ranks = len(parts)
        columns = {**self._columns, **self._indices, "rank": self._rank}
        data, control = self._edges.values()
        nodes = NodeColumns.from_columns(ranks, columns, data, control, self._source.name)
        group_names = tuple(self._tables["group"])
        text = self._options.groups or metadata.text(ATTRIBUTE)
        groups = job_groups(text, group_names, nodes, self._source)
        return Workload(
            nodes,
            tuple(self._tables["name"]),
            groups,
            extras=tuple(self._tables["extra"]),
            provenance=Provenance(
                source_name=self._source.name.rsplit("/", 1)[-1],
                source_sha256=self._source.sha256(),
            ),
            extensions={EXTENSION: self._extension(heads)},
        )

    def _extension(self, heads: list[str]) -> JsonValue:
        said: dict[str, JsonValue] = {"metadata": [*heads]}
        if len(set(heads)) == 1:
            said = {"metadata": heads[0]}
        if self._dropped:
            said["dangling dependencies dropped"] = self._dropped
        return said

    def _add(self, file: RankFile) -> None:
        """The nodes of one file."""
        decoder = NodeDecoder(file)
        first = len(self._rank)
        nodes = [decoder.node(index) for index in range(len(file.starts))]
        rows = {node.identity: first + index for index, node in enumerate(nodes)}
        if len(rows) < len(nodes):
            raise decoder.error(_second([node.identity for node in nodes]), "its id stands twice")
        for index, node in enumerate(nodes):
            self._rank.append(file.rank)
            for name, column in self._columns.items():
                column.append(getattr(node, name))
            if any(one not in rows for one in (*node.data, *node.control)):
                self._drop(decoder, index, node, rows)
            for name, text in (("name", node.name), ("group", node.group), ("extra", node.extra)):
                self._indices[name].append(self._index(name, text))
            for kind, ids in (("data", node.data), ("control", node.control)):
                parents, children = self._edges[kind]
                known = [rows[one] for one in ids if one in rows]
                parents += known
                children += [first + index] * len(known)

    def _index(self, table: str, text: str) -> int:
        """The index of a text in its table, -1 for none."""
        known = self._tables[table]
        return known.setdefault(text, len(known)) if text else -1

    def _drop(
        self, decoder: NodeDecoder, index: int, node: DecodedNode, rows: dict[int, int]
    ) -> None:
        """Leave out dependencies on nodes that are not there; the record is kept as it stands."""
        lost = [one for one in (*node.data, *node.control) if one not in rows]
        if not self._options.drop_dangling:
            cure = "-O drop_dangling=true drops such dependencies"
            raise decoder.error(index, f"it waits for node {lost[0]}, which is not there", cure)
        self._dropped += len(lost)
        node.extra = decoder.whole(index)


def _head(file: RankFile) -> bytes:
    """The metadata record with its length; the length of the first node stands behind it."""
    start, stop = int(file.starts[0]), int(file.stops[0])
    return file.content[: start - len(varint(stop - start))]


def _check_ranks(ranks: Sequence[int], name: str) -> None:
    for before, rank in pairwise([-1, *ranks]):
        if rank != before + 1:
            what = "stands twice" if rank == before else f"is there, that of rank {before + 1} not"
            message = f"the file of rank {rank} {what}"
            raise InputError(message, location=Location(name), code="rank-files")


def _second(values: Sequence[int]) -> int:
    """The position of the first value that stood before."""
    _, first = np.unique(np.asarray(values, np.uint64), return_index=True)
    return int(np.setdiff1d(np.arange(len(values)), first)[0])
