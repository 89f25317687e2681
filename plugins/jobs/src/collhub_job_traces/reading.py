"""Read Chakra execution traces of jobs, preserving every record for the writer.

Cost: linear in the bytes. Equal records, which are frequent, are decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import numpy as np
import numpy.typing as npt

from collhub_job_traces.embedded import algorithms_of, counts_of
from collhub_job_traces.groups import (
    ATTRIBUTE,
    build_groups,
    choose_stand_ins,
    parsed_groups,
    report,
    translate_groups,
    translate_peers,
)
from collhub_job_traces.node import DecodedNode, DecodedParts, NodeDecoder
from collhub_job_traces.options import JobReadOptions
from hub_core import Diagnostic, HubError, InputError, Location, Provenance
from hub_core.chakra import (
    Batch,
    Metadata,
    NodeType,
    RankFile,
    ShapeBook,
    TraceError,
    decode_nodes,
    find_rank_in_name,
    open_rank_file,
    varint,
)
from hub_core.columns import Int64Array, expanded_ranges, row_pointer
from hub_core.model import JsonValue, NodeColumns, Workload
from hub_core.plugin_api import Source, SourcePart

_NUMBERS = (
    *("kind", "duration_ns", "operations", "bytes", "collective", "root", "peer"),
    *("tag", "dimensions", "on_host", "algorithm", "counts"),
)
_TEXTS = ("name", "extra", "group")
_Edges = tuple[Int64Array, Int64Array]


class RecordTable:
    """Columns of the nodes of all files.

    `columns`: by name, one entry per node; `texts`: texts that `name`, `extra` and `group` index,
    in the order of first use; `data`, `control`: (parent rows, child rows).
    """

    def __init__(self, decoded: Sequence[DecodedNode], which: Sequence[Int64Array]) -> None:
        """Build the columns and edges of all nodes, file after file, from their decoded records.

        `decoded`: records that all files share. `which`: for each file the record index of every
        node, int64. Columns have one entry per node, in the order of `which`. They are int64, but
        `identity` (the id of a node, unique in its file) is uint64. `rank` is the position of the
        file in `which`.

        - `name`, `extra` and `group` are indices in `texts[column]`, -1 for an empty text. Texts
          are distinct, in the order of the first record with the text. Records without nodes do
          not count.
        - `data` and `control` are int64 pairs (parent rows, child rows), ordered by child row. A
          parent must be in the file of its child, which is not checked.

        Without files or nodes everything is empty.
        """
        all_records = np.concatenate([np.zeros(0, np.int64), *which])
        # Replaced records have no nodes.
        used, index = np.unique(all_records, return_inverse=True)
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
            known: dict[str, int] = {}
            texts = [getattr(node, name) for node in records]
            indices = [known.setdefault(text, len(known)) if text else -1 for text in texts]
            self.texts[name] = tuple(known)
            self.columns[name] = np.asarray(indices, np.int64)[index]
        rows = row_pointer([len(part) for part in which])
        self.data = _edges([node.data for node in records], identities[index], index, rows)
        self.control = _edges([node.control for node in records], identities[index], index, rows)


def _edges(
    parents: Sequence[Sequence[int]],
    identities: npt.NDArray[np.uint64],
    index: Int64Array,
    file_rows: Int64Array,
) -> _Edges:
    """Return the dependencies of all nodes as (parent rows, child rows), ordered by child row.

    Rows are nodes, numbered through all files; a record may belong to many rows. `parents`: ids of
    the parents by record. The edges of a child are in the order of these ids, and repeated ids give
    repeated edges. `index`: record of every row; `identities`: id of every row, unique in a file;
    `file_rows`: first row of each file, then the number of rows.

    An id is looked up in the file of its child. It must be present there, which is not checked: a
    missing id gives a wrong row or `IndexError`. The result is two int64 arrays of equal length;
    empty without dependencies.
    """
    indptr = row_pointer([len(ids) for ids in parents])
    ids = np.asarray([identity for node_parents in parents for identity in node_parents], np.uint64)
    # A record has equal parent ids in every file.
    counts = np.diff(indptr)[index]
    children = np.repeat(np.arange(len(index)), counts)
    parent_ids = ids[expanded_ranges(indptr[:-1][index], counts)]
    edge_rows = np.searchsorted(children, file_rows)
    parent_rows = [np.zeros(0, np.int64)]
    for file, first in enumerate(file_rows[:-1].tolist()):
        file_ids = identities[first : file_rows[file + 1]]
        # Ids are unique only within a file: search each file separately.
        order = np.argsort(file_ids, kind="stable")
        file_parent_ids = parent_ids[edge_rows[file] : edge_rows[file + 1]]
        parent_rows.append(first + order[np.searchsorted(file_ids[order], file_parent_ids)])
    return np.concatenate(parent_rows), children


EXTENSION = "chakra-workload"
"""Key of `Workload.extensions` for the metadata records of the files, in hexadecimal."""


def read(
    source: Source, options: JobReadOptions, *, foreign: frozenset[str] = frozenset()
) -> Workload:
    """Read the rank files of a job.

    `foreign`: names of attributes that are preserved but not interpreted, such as attributes that
    the target simulator does not read. Groups are those of the metadata; otherwise a group has the
    ranks whose nodes name it. Raises `InputError` with file, byte and rank for invalid traces and
    for values out of range.
    """
    try:
        return _Reader(source, options, foreign).read()
    except TraceError as error:
        location = Location(error.file, byte=error.byte, rank=error.rank)
        raise InputError(
            error.reason, location=location, code=error.code, cure=error.cure
        ) from None
    except InputError as error:
        raise InputError([_name_file(found, source) for found in error.diagnostics]) from None


def _name_file(finding: Diagnostic, source: Source) -> Diagnostic:
    """Return a finding on a rank of the source with the file of this rank as its location.

    Checks of the entire job know only the name of the source. The rank of a part is that
    of `_find_rank`. A finding is returned unchanged if its file is neither the name of
    the source nor the last component of this name, if it has no rank, and if its rank has no
    file.
    """
    location = finding.location
    files = {_find_rank(part, source): part.name for part in source.parts}
    names = (source.name, source.name.rsplit("/", 1)[-1])
    if location.file not in names or location.rank not in files:
        return finding
    return replace(finding, location=replace(location, file=files[location.rank]))


class _Reader:
    """State of one reading: distinct records, and the record index of each node."""

    def __init__(self, source: Source, options: JobReadOptions, foreign: frozenset[str]) -> None:
        self._source = source
        self._options = options
        # Equal records share one entry.
        self._records: dict[bytes, int] = {}
        self._decoded: list[DecodedNode] = []
        self._parts = DecodedParts(foreign)
        self._dropped = 0

    def read(self) -> Workload:
        """Read all files of the source as one workload, with nodes by rank, then in file order.

        Of several files, the rank of one without it is that in its name; a single file without a
        rank is that of rank 0. Ranks must be 0, 1, 2, ... without a gap. Only with the
        option `ranks_missing=assume-same` may ranks be missing: each is a copy of the next lower
        rank with a file (of the first file if there is none), with shifted peers and groups, and
        the source gets a warning `ranks-assumed`. Groups are those of the option `groups`, else
        of the first file's metadata, else those of the nodes.

        Raises `TraceError` for an invalid file or node. Raises `InputError` for repeated, missing
        or too many ranks (`rank-files`), for a too small option `ranks` (`rank-range`), for
        groups that are invalid or missing (`group`), for a shifted peer outside of the job
        (`peer`), and for invalid algorithms, counts or nodes.
        """
        by_file_rank = _order_by_rank(self._source, can_lack=self._assumes)
        ranks, parts = [*by_file_rank], [*by_file_rank.values()]
        heads: list[str] = []
        metadata: list[Metadata] = []
        which: list[Int64Array] = []
        for rank, part in zip(ranks, parts, strict=True):
            file, file_metadata = open_rank_file(part.name, rank, part.load())
            metadata.append(file_metadata)
            # The bytes before the first node are the metadata record with its length.
            start, stop = int(file.starts[0]), int(file.stops[0])
            heads.append(file.content[: start - len(varint(stop - start))].hex())
            which.append(self._nodes(file))
        text = self._options.groups or metadata[0].text(ATTRIBUTE)
        groups_file = self._source.name if self._options.groups else parts[0].name
        stand = choose_stand_ins(ranks, self._num_ranks(ranks, text, groups_file))
        report(stand, self._source)
        by_rank = dict(zip(ranks, which, strict=True))
        table = RecordTable(self._decoded, [by_rank[rank] for rank in stand.of])
        # Copied nodes still have the groups of the rank that they are copied from.
        columns, name = table.columns, self._source.name
        peers = translate_peers(stand, columns["rank"], columns["peer"], name)
        nodes = NodeColumns.from_columns(
            len(stand.of), {**columns, "peer": peers}, table.data, table.control, name
        )
        groups = build_groups(text, table.texts["group"], nodes, table.texts["extra"], self._source)
        if stand.assumed:
            group = translate_groups(stand, nodes.rank, nodes.group, groups, name)
            columns = {**columns, "peer": nodes.peer, "group": group}
            nodes = NodeColumns.from_columns(
                len(stand.of), columns, table.data, table.control, name
            )
            heads = [heads[ranks.index(rank)] for rank in stand.of]
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
            counts=counts_of(metadata, self._source.name),
        )

    @property
    def _assumes(self) -> bool:
        return self._options.ranks_missing == "assume-same"

    def _num_ranks(self, file_ranks: Sequence[int], groups: str, groups_file: str) -> int:
        """Return the number of ranks of the job, and check that no group names a rank beyond them.

        `file_ranks`: ranks with a file, ascending, at least one; `groups`: JSON of the groups, `""`
        for none; `groups_file`: its origin, for errors. The rules are applied in this order:

        - The groups are parsed; `InputError` (`group`) if they are no JSON object of lists of
          ranks.
        - If missing ranks are not assumed (`ranks_missing`), the result is the number of files.
          `InputError` (`rank-files`) if a group has a rank above the last entry of `file_ranks`.
        - Otherwise the result is the option `ranks`. If it is missing or 0, the result is one more
          than the largest rank of files and groups. `InputError` (`rank-range`) if the option is
          smaller than that.

        Example: files of ranks (0, 4) with a group `[4, 7]` give 8 if missing ranks are assumed.
        """
        members = parsed_groups(groups.encode(), groups_file).values() if groups else ()
        named = max((max(ranks, default=0) for ranks in members), default=0)
        if not self._assumes:
            if named > file_ranks[-1]:
                lacking = (
                    f"a group names rank {named}, the last file is that of rank {file_ranks[-1]}"
                )
                raise _missing_file_error(lacking, self._source.name)
            return len(file_ranks)
        needed = 1 + max(file_ranks[-1], named)
        ranks = self._options.ranks or needed
        if ranks < needed:
            message = f"rank {needed - 1} is named, but the job is to have {ranks} ranks"
            location = Location(self._source.name)
            raise InputError(message, location=location, code="rank-range", cure="change -O ranks")
        return ranks

    def _extension(self, heads: list[str]) -> JsonValue:
        extension: dict[str, JsonValue] = {"metadata": [*heads]}
        if len(set(heads)) == 1:
            extension = {"metadata": heads[0]}
        if self._dropped:
            extension["dangling dependencies dropped"] = self._dropped
        return extension

    def _nodes(self, file: RankFile) -> Int64Array:
        """Return the index in `self._decoded` of every node of a file, in file order: int64[nodes].

        All files share `self._decoded`. A record whose bytes occurred before, in this or an earlier
        file, has the same index; a new one is decoded and appended.

        A node may depend on ids that the file lacks. With the option `drop_dangling`, another
        record without these dependencies is appended for this node only. Its `extra` has the
        original bytes, and `self._dropped` grows by the number of removed dependencies.

        Raises `TraceError` (`node`), with byte and rank, in this order: for a malformed record, for
        an id that occurs twice in the file, and, without `drop_dangling`, for the first node with a
        missing id. Records of the file that were appended before an error remain.
        """
        decoder = NodeDecoder(file, self._parts)
        content, known = file.content, self._records
        bounds = zip(file.starts.tolist(), file.stops.tolist(), strict=True)
        records = [content[start:stop] for start, stop in bounds]
        # The bytes determine everything except the position of the node.
        record_indices = list(map(known.get, records))
        for index, at in enumerate(record_indices):
            if at is None:
                at = known.get(records[index])
                if at is None:
                    at = known[records[index]] = len(self._decoded)
                    self._decoded.append(decoder.node(index))
                record_indices[index] = at
        which = cast("list[int]", record_indices)
        nodes = [self._decoded[at] for at in which]
        ids = {node.identity for node in nodes}
        if len(ids) < len(nodes):
            identities = np.asarray([node.identity for node in nodes], np.uint64)
            _, first = np.unique(identities, return_index=True)
            repeated = np.setdiff1d(np.arange(len(nodes)), first)
            raise decoder.error(int(repeated[0]), "its id occurs twice")
        named = set().union(*[node.data for node in nodes], *[node.control for node in nodes])
        for index, node in enumerate(nodes) if not named <= ids else ():
            if not ids.issuperset(node.data) or not ids.issuperset(node.control):
                which[index] = len(self._decoded)
                self._decoded.append(self._drop_dangling(decoder, index, node, ids))
        return np.asarray(which, np.int64)

    def _drop_dangling(
        self, decoder: NodeDecoder, index: int, node: DecodedNode, ids: set[int]
    ) -> DecodedNode:
        """Return a node without its dependencies on ids outside of `ids`, the ids of its file.

        The bytes of its record are preserved completely, so that they can be written again. The
        number of removed dependencies is added to the count of the job. Without the option
        `drop_dangling`, raises `TraceError` with the first such id, data dependencies first; there
        must be one.
        """
        lost = [identity for identity in (*node.data, *node.control) if identity not in ids]
        if not self._options.drop_dangling:
            cure = "-O drop_dangling=true drops such dependencies"
            raise decoder.error(index, f"it waits for node {lost[0]}, which is not there", cure)
        self._dropped += len(lost)
        data = [identity for identity in node.data if identity in ids]
        control = [identity for identity in node.control if identity in ids]
        return replace(node, data=data, control=control, extra=decoder.whole(index))


def _find_rank(part: SourcePart, source: Source) -> int | None:
    """Return the rank of a file of the source; None if it has none.

    It is the rank of the part. Without one, it is the rank in the name if there are several files,
    and 0 for a single file, whose number may be a version or a date.
    """
    if part.rank is None and len(source.parts) > 1:
        return find_rank_in_name(part.name)
    return part.rank or 0


def _order_by_rank(source: Source, *, can_lack: bool) -> dict[int, SourcePart]:
    """Return the files by rank, in ascending order.

    Raises `InputError` (`rank-files`) for the first file that has no rank (`_find_rank`), or has
    the rank of an earlier file. Without `can_lack`, raises it then for the lowest rank without a
    file below the highest rank.
    """
    by_rank: dict[int, SourcePart] = {}
    for part in source.parts:
        rank = _find_rank(part, source)
        if rank is not None and rank not in by_rank:
            by_rank[rank] = part
            continue
        message, cure = "the file name does not contain the rank", "name the files PREFIX.RANK.et"
        if rank is not None:
            message = f"the file of rank {rank} is there already: {by_rank[rank].name}"
            cure = "name one file per rank"
        raise InputError(message, location=Location(part.name), code="rank-files", cure=cure)
    for before, rank in () if can_lack else pairwise([-1, *sorted(by_rank)]):
        if rank != before + 1:
            message = f"the file of rank {rank} is there, that of rank {before + 1} not"
            raise _missing_file_error(message, source.name)
    return dict(sorted(by_rank.items()))


def _missing_file_error(message: str, name: str) -> InputError:
    """Create (not raise) the error `rank-files`, whose cure is the option `ranks_missing`.

    `name`: of the source.
    """
    cure = "-O ranks_missing=assume-same takes such ranks to do the same as others"
    return InputError(message, location=Location(name), code="rank-files", cure=cure)


_OF_WORKLOADS = (NodeType.METADATA, NodeType.MEM_LOAD, NodeType.MEM_STORE, NodeType.COMM_COLL)
_PROFILE = "workload/"


def claims(source: Source) -> bool:
    """Return whether the first file has the profile of workloads, or nodes that algorithms lack.

    False for files that cannot be read; other readers report the reason.
    """
    try:
        return has_job_nodes(source.parts[0])
    except (TraceError, HubError):
        return False


def has_job_nodes(part: SourcePart) -> bool:
    """Check whether a trace file belongs to a job, and not to a single algorithm.

    If the metadata have a text `profile` that is not empty, it is a job if the profile begins
    with `workload/`. Otherwise it is a job if it has a node of a type that only jobs have:
    METADATA, MEM_LOAD, MEM_STORE or COMM_COLL. The complete file is read. Raises `TraceError`
    for invalid traces.
    """
    file, metadata = open_rank_file(part.name, 0, part.load())
    if profile := metadata.text("profile"):
        return profile.startswith(_PROFILE)
    nodes = decode_nodes(Batch([file]), ShapeBook((), ()))
    return bool(np.isin(nodes.type, _OF_WORKLOADS).any())
