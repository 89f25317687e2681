"""Read Chakra execution traces of whole jobs, every record so that it can be written back.

Cost: linear in the bytes. Records of equal bytes, of which a job has many, are decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from collhub_chakra import Metadata, RankFile, TraceError, open_rank_file, varint
from collhub_columns import Int64Array

from collhub_job_traces.groups import ATTRIBUTE, job_groups
from collhub_job_traces.node import DecodedNode, NodeDecoder
from collhub_job_traces.options import JobReadOptions
from collhub_job_traces.record_table import RecordTable
from hub_core import InputError, Location, Provenance
from hub_core.model import JsonValue, NodeColumns, Workload
from hub_core.plugin_api import Source

EXTENSION = "chakra-workload"
"""Key of `Workload.extensions` for the metadata records of the files, in hexadecimal."""


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
    """One reading: the different records so far, and which of them each node is."""

    def __init__(self, source: Source, options: JobReadOptions) -> None:
        self._source = source
        self._options = options
        self._records: dict[bytes, int] = {}
        self._decoded: list[DecodedNode] = []
        self._dropped = 0

    def read(self) -> Workload:
        """Read all files."""
        parts = sorted(self._source.parts, key=lambda part: part.rank or 0)
        _check_ranks([part.rank or 0 for part in parts], self._source.name)
        heads, metadata = [], Metadata()
        which: list[Int64Array] = []
        for rank, part in enumerate(parts):
            file, found = open_rank_file(part.name, rank, part.load())
            metadata = metadata if rank else found
            heads.append(_head(file).hex())
            which.append(self._nodes(file))
        table = RecordTable(self._decoded, which)
        nodes = NodeColumns.from_columns(
            len(parts), table.columns, table.data, table.control, self._source.name
        )
        text = self._options.groups or metadata.text(ATTRIBUTE)
        groups = job_groups(text, table.texts["group"], nodes, self._source)
        return Workload(
            nodes,
            table.texts["name"],
            groups,
            extras=table.texts["extra"],
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

    def _nodes(self, file: RankFile) -> Int64Array:
        """For every node of a file, the index of its record among the decoded ones."""
        decoder = NodeDecoder(file)
        which: list[int] = []
        content, known = file.content, self._records
        bounds = zip(file.starts.tolist(), file.stops.tolist(), strict=True)
        for index, (start, stop) in enumerate(bounds):
            record = content[start:stop]
            # The bytes decide all but where the node stands.
            at = known.get(record)
            if at is None:
                at = known[record] = len(self._decoded)
                self._decoded.append(decoder.node(index))
            which.append(at)
        nodes = [self._decoded[at] for at in which]
        ids = {node.identity for node in nodes}
        if len(ids) < len(nodes):
            raise decoder.error(_second([node.identity for node in nodes]), "its id stands twice")
        for index, node in enumerate(nodes):
            if not ids.issuperset(node.data) or not ids.issuperset(node.control):
                which[index] = len(self._decoded)
                self._decoded.append(self._without_dangling(decoder, index, node, ids))
        return np.asarray(which, np.int64)

    def _without_dangling(
        self, decoder: NodeDecoder, index: int, node: DecodedNode, ids: set[int]
    ) -> DecodedNode:
        """The node without dependencies on nodes that are not there; its record stays as it is."""
        lost = [one for one in (*node.data, *node.control) if one not in ids]
        if not self._options.drop_dangling:
            cure = "-O drop_dangling=true drops such dependencies"
            raise decoder.error(index, f"it waits for node {lost[0]}, which is not there", cure)
        self._dropped += len(lost)
        data = [one for one in node.data if one in ids]
        control = [one for one in node.control if one in ids]
        return replace(node, data=data, control=control, extra=decoder.whole(index))


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
