"""Read Chakra execution traces of whole jobs, every record so that it can be written back.

Cost: linear in the bytes. Records of equal bytes, of which a job has many, are decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import numpy as np
import numpy.typing as npt

from collhub_job_traces.embedded import algorithms_of
from collhub_job_traces.groups import (
    ATTRIBUTE,
    Stand,
    job_groups,
    own_groups,
    own_peers,
    parsed_groups,
    report,
    stand_ins,
)
from collhub_job_traces.node import DecodedNode, DecodedParts, NodeDecoder
from collhub_job_traces.options import JobReadOptions
from hub_core import HubError, InputError, Location, Provenance
from hub_core.chakra import (
    Batch,
    Metadata,
    NodeType,
    RankFile,
    ShapeBook,
    TraceError,
    decode_nodes,
    open_rank_file,
    varint,
)
from hub_core.columns import Int64Array, expanded_ranges, row_pointer
from hub_core.model import JsonValue, NodeColumns, ProcessGroup, Workload
from hub_core.plugin_api import Source, SourcePart

_NUMBERS = (
    *("kind", "duration_ns", "operations", "bytes", "collective", "root", "peer"),
    *("tag", "dimensions", "on_host", "algorithm"),
)
_TEXTS = ("name", "extra", "group")
_Edges = tuple[Int64Array, Int64Array]


class RecordTable:
    """Columns of the nodes of all files.

    `columns`: by name, one entry a node; `texts`: the texts that `name`, `extra` and `group` index,
    in the order of their first nodes; `data`, `control`: (parent rows, child rows).
    """

    def __init__(self, decoded: Sequence[DecodedNode], which: Sequence[Int64Array]) -> None:
        """`which`: for every file, the record of each of its nodes; ids are unique in a file."""
        whole = np.concatenate([np.zeros(0, np.int64), *which])
        # Those that were replaced stand for no node.
        used, index = np.unique(whole, return_inverse=True)
        records = [decoded[at] for at in used.tolist()]
        self.columns: dict[str, npt.NDArray[np.generic]] = {
            name: np.asarray([getattr(node, name) for node in records], np.int64)[index]
            for name in _NUMBERS
        }
        identities = np.asarray([node.identity for node in records], np.uint64)
        self.columns["identity"] = identities[index]
        self.columns["rank"] = np.repeat(np.arange(len(which)), [len(rows) for rows in which])
        self.texts: dict[str, tuple[str, ...]] = {}
        for name in _TEXTS:
            indices, self.texts[name] = _numbered([getattr(node, name) for node in records])
            self.columns[name] = indices[index]
        rows = row_pointer([len(part) for part in which])
        self.data = _edges([node.data for node in records], identities[index], index, rows)
        self.control = _edges([node.control for node in records], identities[index], index, rows)


def _numbered(texts: Sequence[str]) -> tuple[Int64Array, tuple[str, ...]]:
    """The index of every text, -1 for none, and the texts."""
    known: dict[str, int] = {}
    indices = [known.setdefault(text, len(known)) if text else -1 for text in texts]
    return np.asarray(indices, np.int64), tuple(known)


def _edges(
    parents: Sequence[Sequence[int]],
    identities: npt.NDArray[np.uint64],
    index: Int64Array,
    file_rows: Int64Array,
) -> _Edges:
    """(parent rows, child rows); `parents`: ids by record, `file_rows`: first rows of the files."""
    indptr = row_pointer([len(ids) for ids in parents])
    ids = np.asarray([one for some in parents for one in some], np.uint64)
    # A record has the same parents, by id, in every file.
    counts = np.diff(indptr)[index]
    children = np.repeat(np.arange(len(index)), counts)
    wanted = ids[expanded_ranges(indptr[:-1][index], counts)]
    edge_rows = np.searchsorted(children, file_rows)
    found = [np.zeros(0, np.int64)]
    for file, first in enumerate(file_rows[:-1].tolist()):
        own = identities[first : file_rows[file + 1]]
        # Ids are those of one file: each is searched by itself.
        order = np.argsort(own, kind="stable")
        asked = wanted[edge_rows[file] : edge_rows[file + 1]]
        found.append(first + order[np.searchsorted(own[order], asked)])
    return np.concatenate(found), children


EXTENSION = "chakra-workload"
"""Key of `Workload.extensions` for the metadata records of the files, in hexadecimal."""


def read(
    source: Source, options: JobReadOptions, *, foreign: frozenset[str] = frozenset()
) -> Workload:
    """Read the rank files of a job.

    `foreign`: names of attributes that are preserved but have no meaning here, such as those that
    the simulator for which the files are meant does not read. Groups are those of the metadata,
    else every group has the ranks whose nodes name it. Raises `InputError` with file, byte and rank
    for files that are no traces, and for values out of range.
    """
    try:
        return _Reader(source, options, foreign).read()
    except TraceError as error:
        place = Location(error.file, byte=error.byte, rank=error.rank)
        raise InputError(error.reason, location=place, code=error.code, cure=error.cure) from None


class _Reader:
    """One reading: the different records so far, and which of them each node is."""

    def __init__(self, source: Source, options: JobReadOptions, foreign: frozenset[str]) -> None:
        self._source = source
        self._options = options
        # Records of equal bytes have one entry.
        self._records: dict[bytes, int] = {}
        self._decoded: list[DecodedNode] = []
        self._parts = DecodedParts(foreign)
        self._dropped = 0

    def read(self) -> Workload:
        """Read all files."""
        parts = sorted(self._source.parts, key=lambda part: part.rank or 0)
        given = [part.rank or 0 for part in parts]
        _check_ranks(given, self._source.name, is_whole=not self._assumes)
        heads: list[str] = []
        metadata: list[Metadata] = []
        which: list[Int64Array] = []
        for rank, part in zip(given, parts, strict=True):
            file, found = open_rank_file(part.name, rank, part.load())
            metadata.append(found)
            heads.append(_head(file).hex())
            which.append(self._nodes(file))
        text = self._options.groups or metadata[0].text(ATTRIBUTE)
        stand = stand_ins(given, self._num_ranks(given, text))
        report(stand, self._source)
        by_rank = dict(zip(given, which, strict=True))
        table = RecordTable(self._decoded, [by_rank[rank] for rank in stand.of])
        nodes = self._columns(table, stand)
        groups = job_groups(text, table.texts["group"], nodes, table.texts["extra"], self._source)
        if stand.assumed:
            nodes = self._with_own_groups(nodes, table, stand, groups)
            heads = [heads[given.index(rank)] for rank in stand.of]
        return Workload(
            nodes,
            table.texts["name"],
            groups,
            algorithms_of(metadata, self._source.name),
            extras=table.texts["extra"],
            provenance=Provenance(
                source_name=self._source.name.rsplit("/", 1)[-1],
                source_sha256=self._source.sha256(),
            ),
            extensions={EXTENSION: self._extension(heads)},
        )

    @property
    def _assumes(self) -> bool:
        return self._options.ranks_missing == "assume-same"

    def _num_ranks(self, given: Sequence[int], groups: str) -> int:
        """Ranks of the job: as stated, or those of the groups where some have no file."""
        members = parsed_groups(groups.encode(), self._source.name).values() if groups else ()
        named = max((max(ranks, default=0) for ranks in members), default=0)
        if not self._assumes:
            if named > given[-1]:
                lacking = f"a group names rank {named}, the last file is that of rank {given[-1]}"
                raise _lacking(lacking, self._source.name)
            return len(given)
        needed = 1 + max(given[-1], named)
        ranks = self._options.ranks or needed
        if ranks < needed:
            message = f"rank {needed - 1} is named, but the job is to have {ranks} ranks"
            place = Location(self._source.name)
            raise InputError(message, location=place, code="rank-range", cure="change -O ranks")
        return ranks

    def _columns(self, table: RecordTable, stand: Stand) -> NodeColumns:
        """The nodes of all ranks, those of stand-ins with groups of the rank that they copy."""
        columns, name = table.columns, self._source.name
        peers = own_peers(stand, columns["rank"], columns["peer"], name)
        return NodeColumns.from_columns(
            len(stand.of), {**columns, "peer": peers}, table.data, table.control, name
        )

    def _with_own_groups(
        self,
        nodes: NodeColumns,
        table: RecordTable,
        stand: Stand,
        groups: Sequence[ProcessGroup],
    ) -> NodeColumns:
        group = own_groups(stand, nodes.rank, nodes.group, groups, self._source.name)
        columns = {**table.columns, "peer": nodes.peer, "group": group}
        return NodeColumns.from_columns(
            len(stand.of), columns, table.data, table.control, self._source.name
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
        decoder = NodeDecoder(file, self._parts)
        content, known = file.content, self._records
        bounds = zip(file.starts.tolist(), file.stops.tolist(), strict=True)
        records = [content[start:stop] for start, stop in bounds]
        # The bytes decide all but where the node stands.
        found = list(map(known.get, records))
        for index, at in enumerate(found):
            if at is None:
                at = known.get(records[index])
                if at is None:
                    at = known[records[index]] = len(self._decoded)
                    self._decoded.append(decoder.node(index))
                found[index] = at
        which = cast("list[int]", found)
        nodes = [self._decoded[at] for at in which]
        ids = {node.identity for node in nodes}
        if len(ids) < len(nodes):
            raise decoder.error(_second([node.identity for node in nodes]), "its id stands twice")
        named = set().union(*[node.data for node in nodes], *[node.control for node in nodes])
        for index, node in enumerate(nodes) if not named <= ids else ():
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


def _check_ranks(ranks: Sequence[int], name: str, *, is_whole: bool) -> None:
    for before, rank in pairwise([-1, *ranks]):
        if rank == before:
            message = f"the file of rank {rank} stands twice"
            raise InputError(message, location=Location(name), code="rank-files")
        if is_whole and rank != before + 1:
            raise _lacking(f"the file of rank {rank} is there, that of rank {before + 1} not", name)


def _lacking(message: str, name: str) -> InputError:
    """The error for files of ranks that are not there."""
    cure = "-O ranks_missing=assume-same takes such ranks to do the same as others"
    return InputError(message, location=Location(name), code="rank-files", cure=cure)


def _second(values: Sequence[int]) -> int:
    """The position of the first value that stood before."""
    _, first = np.unique(np.asarray(values, np.uint64), return_index=True)
    return int(np.setdiff1d(np.arange(len(values)), first)[0])


_OF_WORKLOADS = (NodeType.METADATA, NodeType.MEM_LOAD, NodeType.MEM_STORE, NodeType.COMM_COLL)
_PROFILE = "workload/"


def claims(source: Source) -> bool:
    """Whether the first file states the profile of workloads, or has nodes that no algorithm has.

    What cannot be read is left to others, who say why.
    """
    try:
        return has_job_nodes(source.parts[0])
    except (TraceError, HubError):
        return False


def has_job_nodes(part: SourcePart) -> bool:
    """Whether one file is that of a job. Raises `TraceError` for what is no trace."""
    file, metadata = open_rank_file(part.name, 0, part.load())
    if profile := metadata.text("profile"):
        return profile.startswith(_PROFILE)
    nodes = decode_nodes(Batch([file]), ShapeBook((), ()))
    return bool(np.isin(nodes.type, _OF_WORKLOADS).any())
