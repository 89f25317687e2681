"""A workload: the nodes of all ranks of a job as read-only numpy columns, one row per node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, Int64Array, RankTable, csr, group_pointer, inverse
from hub_core.model.algorithm import Algorithm, JsonValue, Provenance
from hub_core.model.collectives import Collective
from hub_core.model.counts import UnitCounts
from hub_core.model.diagnostics import InputError, Location
from hub_core.model.kinds import CollectiveKind, JobCollective, NodeKind, uneven_kind
from hub_core.model.notebook_display import NotebookDisplay
from hub_core.model.steps import Array, ColumnRules, typed_column

NODE_DTYPES: Mapping[str, type[np.generic]] = {
    "rank": np.int32,
    "kind": np.uint8,
    "identity": np.uint64,
    "name": np.int32,
    "duration_ns": np.int64,
    "operations": np.int64,
    "bytes": np.int64,
    "collective": np.int8,
    "root": np.int32,
    "group": np.int32,
    "peer": np.int32,
    "tag": np.int32,
    "dimensions": np.int32,
    "on_host": np.bool_,
    "algorithm": np.int32,
    "counts": np.int32,
    "extra": np.int32,
}
NODE_DEFAULTS: Mapping[str, int] = dict.fromkeys(NODE_DTYPES, -1) | dict.fromkeys(
    ("identity", "tag", "on_host"), 0
)
_INTEGERS: Mapping[str, Any] = {
    name: dtype for name, dtype in NODE_DTYPES.items() if dtype is not np.bool_
}
_HIGHEST = {"kind": int(max(NodeKind)), "collective": int(max(JobCollective))}
_COLUMNS = ColumnRules(
    NODE_DTYPES,
    NODE_DEFAULTS,
    {
        name: (min(0, NODE_DEFAULTS[name]), _HIGHEST.get(name, int(np.iinfo(dtype).max)))
        for name, dtype in _INTEGERS.items()
    }
    | {"kind": (0, int(max(NodeKind)))},
)

# Equal values of these columns need one check of the counts.
_KEYS_OF_COUNTS = ("counts", "kind", "collective", "group", "bytes")


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Ranks that communicate with each other, in the order of their positions in the group.

    Raises `InputError` if a rank is listed twice.
    """

    name: str
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.ranks)) < len(self.ranks):
            message = f"process group {self.name!r} names a rank twice"
            raise InputError(message, code="group")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NodeColumns(RankTable):
    """Nodes of all ranks, grouped by rank, in the order of their source.

    Build it with `from_columns`. One entry per node, dtypes as in `NODE_DTYPES`, -1 if unknown:
    rank; kind (`NodeKind`); identity: unique within a rank, by default the position there; name:
    index of `Workload.names`; duration_ns; operations: of a COMPUTE; bytes: of a message, of a
    collective as defined by `JobCollective`, or accessed by a COMPUTE, LOAD or STORE; collective
    (`JobCollective`); root: a rank; group: index of `Workload.groups`, -1: all ranks; peer: SEND:
    destination, RECV: source; tag: messages of one (source, destination, tag, bytes) match in
    order; dimensions: bit d says that the collective uses dimension d of the network, -1: all of
    them; on_host: runs on the CPU; algorithm: index of `Workload.algorithms`; counts: index of
    `Workload.counts`, which makes the collective an uneven one; extra: index of `Workload.extras`.

    `rank_indptr` int64[num_ranks + 1]. `data_indptr`, `control_indptr` int64[nodes + 1] with
    `data_indices`, `control_indices` int64: the rows of the same rank that a node waits for, in the
    order in which the source lists them; they may point forward.
    """

    rank: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]
    identity: npt.NDArray[np.uint64]
    name: npt.NDArray[np.int32]
    duration_ns: Int64Array
    operations: Int64Array
    bytes: Int64Array
    collective: npt.NDArray[np.int8]
    root: npt.NDArray[np.int32]
    group: npt.NDArray[np.int32]
    peer: npt.NDArray[np.int32]
    tag: npt.NDArray[np.int32]
    dimensions: npt.NDArray[np.int32]
    on_host: BoolArray
    algorithm: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    extra: npt.NDArray[np.int32]
    rank_indptr: Int64Array
    data_indptr: Int64Array
    data_indices: Int64Array
    control_indptr: Int64Array
    control_indices: Int64Array

    def is_kind(self, *kinds: NodeKind) -> BoolArray:
        """Return the mask of the nodes with one of these kinds: bool[nodes]."""
        return self.rows_of_kind(kinds)

    def location(self, row: int, file: str | None = None) -> Location:
        """Return the location of a node for messages: file, rank, and its position within the rank.

        `row`: row of the node. `file`: None if unknown. The position counts the nodes of the rank
        from 0.
        """
        rank = int(self.rank[row])
        return Location(file, rank=rank, step=int(row - self.rank_indptr[rank]))

    @classmethod
    def from_columns(
        cls,
        num_ranks: int,
        columns: Mapping[str, npt.ArrayLike],
        data: tuple[npt.ArrayLike, npt.ArrayLike] = ((), ()),
        control: tuple[npt.ArrayLike, npt.ArrayLike] = ((), ()),
        file: str | None = None,
    ) -> NodeColumns:
        """Build the table of nodes from columns whose rows may be in any order.

        Rows are grouped by rank and keep their order within it. `rank` and `kind` are required
        (else `KeyError`). A missing `identity` becomes the position of the row within its rank,
        from 0. Other missing columns get `NODE_DEFAULTS`: 0 for `tag` and `on_host`, -1 for all
        others.

        `data`, `control`: pairs (parent rows, child rows) of dependencies, as indices of the given
        rows; the parents of a node keep the given order, also repeated ones. A parent may be after
        its child, and cycles are not checked. Takes linear time, plus a sort if rows or children
        are not in order.

        Raises `InputError`, which names `file`, in this order: for a column of another length than
        `rank` or with values out of range, for ranks outside of 0..num_ranks - 1 (`rank-range`),
        then for data and after that control dependencies on missing nodes (`dangling`) or between
        ranks (`crossing-dependency`).
        """
        rows = len(np.asarray(columns["rank"]))
        order = np.argsort(np.asarray(columns["rank"]), kind="stable")
        table = {
            name: typed_column(_COLUMNS, name, columns, rows, file)[order] for name in NODE_DTYPES
        }
        rank = table["rank"]
        if rows and not 0 <= int(rank[0]) <= int(rank[-1]) < num_ranks:
            outside = 0 if rank[0] < 0 else int(np.searchsorted(rank, num_ranks))
            row = f"row {order[outside]} names rank {rank[outside]}"
            message = f"{row}, which is not in 0..{num_ranks - 1}"
            raise InputError(message, location=Location(file), code="rank-range")
        indptr = group_pointer(rank, num_ranks)
        if "identity" not in columns:
            table["identity"] = (np.arange(rows) - indptr[rank]).astype(np.uint64)
        position = inverse(order)
        edges = [_edges(pair, position, rank, file) for pair in (data, control)]
        (data_indptr, data_indices), (control_indptr, control_indices) = edges
        return cls(
            **table,
            rank_indptr=indptr,
            data_indptr=data_indptr,
            data_indices=data_indices,
            control_indptr=control_indptr,
            control_indices=control_indices,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Workload(NotebookDisplay):
    """The nodes of a job, its process groups and its provenance.

    `algorithms`: algorithms of COLLECTIVE nodes. `extras`: further data of nodes, preserved
    verbatim by the reader of a format for its writer. `extensions`: the same for the entire
    workload, keyed by format or plugin name. `counts`: bytes of uneven exchanges, per pair of ranks
    (all-to-all) or per rank (all-gather, reduce-scatter), by positions in the group; the `bytes` of
    their nodes are the sum. Raises `InputError` for indices of columns, and ranks of groups, that
    do not exist, and for counts that do not fit their node.
    """

    nodes: NodeColumns
    names: tuple[str, ...] = ()
    groups: tuple[ProcessGroup, ...] = ()
    algorithms: tuple[Algorithm, ...] = ()
    extras: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    extensions: Mapping[str, JsonValue] = field(default_factory=dict)
    counts: tuple[UnitCounts, ...] = ()

    def __post_init__(self) -> None:
        for column, table in (
            ("name", self.names), ("group", self.groups),
            ("algorithm", self.algorithms), ("extra", self.extras), ("counts", self.counts),
        ):  # fmt: skip
            indices = getattr(self.nodes, column)
            if indices.max(initial=-1) >= len(table):
                row = int(np.argmax(indices >= len(table)))
                rank = int(self.nodes.rank[row])
                node = f"node {row - int(self.nodes.rank_indptr[rank])} of rank {rank}"
                message = f"{node} names {column} {indices[row]}: there are {len(table)}, from 0 on"
                raise InputError(message, code="dangling")
        for group in self.groups:
            if min(group.ranks, default=0) < 0 or max(group.ranks, default=-1) >= self.num_ranks:
                message = f"process group {group.name!r} has a rank outside 0..{self.num_ranks - 1}"
                raise InputError(message, code="group")
        self._check_counts()

    def _check_counts(self) -> None:
        """Raise `InputError` (`invalid-counts`) for the first node whose counts do not fit it.

        Nodes without counts (-1) are correct. For a node with counts these rules are checked in
        this order; the first node, by row, that violates one is named in the error:

        - It is a collective all-to-all, all-gather or reduce-scatter.
        - All-to-all has counts per pair of ranks, the others have counts per rank.
        - The counts are for as many ranks as the node's group has (group -1: all ranks of the job).
        - The sum of the counts is the node's bytes.
        """
        nodes = self.nodes
        rows = np.flatnonzero(nodes.counts >= 0)
        keys = np.stack([getattr(nodes, name)[rows] for name in _KEYS_OF_COUNTS])
        _, first = np.unique(keys, axis=1, return_index=True)
        for row in rows[np.sort(first)].tolist():
            counts, ranks = self.counts[nodes.counts[row]], len(self.members(nodes.group[row]))
            kind = self.kind_of(row) if nodes.kind[row] == NodeKind.COLLECTIVE else None
            if kind is None or not kind.traits.is_uneven:
                reason = "only all-to-all, all-gather and reduce-scatter have counts"
            elif counts.is_per_pair != kind.traits.has_counts_per_pair:
                expected = "pair of ranks" if kind.traits.has_counts_per_pair else "rank"
                reason = f"{kind} needs one count per {expected}"
            elif counts.num_ranks != ranks:
                reason = f"the counts are for {counts.num_ranks} ranks, its group has {ranks}"
            elif counts.total != nodes.bytes[row]:
                reason = f"the counts sum to {counts.total} bytes, the node has {nodes.bytes[row]}"
            else:
                continue
            location = nodes.location(row, self.provenance.source_name or None)
            message = f"node {nodes.identity[row]}: {reason}"
            raise InputError(message, location=location, code="invalid-counts")

    def kind_of(self, row: int) -> CollectiveKind | None:
        """Return the kind of algorithm that the collective of node `row` needs.

        For a node with counts it is the uneven kind, such as `all-to-all-v`, if there is one.
        Return None for a barrier, an unknown collective, and a node that is no collective.
        """
        kind = JobCollective(self.nodes.collective[row]).kind
        uneven = kind is not None and self.nodes.counts[row] >= 0 and uneven_kind(f"{kind}-v")
        return uneven or kind

    def __repr__(self) -> str:
        sizes = f"{self.num_ranks} ranks, {len(self.nodes)} nodes, {len(self.groups)} groups"
        return f"<Workload: {sizes}, by {self.provenance.producer}>"

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the job."""
        return self.nodes.num_ranks

    def members(self, group: int) -> tuple[int, ...]:
        """Return the ranks of a group by its index; for -1 all ranks of the job."""
        return self.groups[group].ranks if group >= 0 else tuple(range(self.num_ranks))

    def differences(self, other: Workload) -> list[str]:
        """Return the names of all parts that differ; [] if both workloads are equal.

        First columns of the nodes, then names, groups, extras, provenance, extensions, counts
        and algorithms. Values are compared exactly; algorithms differ if their number differs or
        any pair in order does.
        """
        differing = self.nodes.differences(other.nodes)
        names = ("names", "groups", "extras", "provenance", "extensions", "counts")
        differing += [name for name in names if getattr(self, name) != getattr(other, name)]
        pairs = list(zip(self.algorithms, other.algorithms, strict=False))
        is_longer = len(self.algorithms) != len(other.algorithms)
        if is_longer or any(first.differences(second) for first, second in pairs):
            differing.append("algorithms")
        return differing


def collective_of_call(
    kind: CollectiveKind, num_ranks: int, root: int = 0, counts: UnitCounts | None = None
) -> Collective:
    """Return the collective of a node, divided into as few units as possible.

    Without `counts`, there is one unit, or one per rank if the kind divides its buffer
    among the ranks; the collective is both in place and out of place. `root`: position in
    the group, used for rooted kinds only; a negative one counts as 0. `counts`: bytes of an
    uneven kind; a unit is their greatest common divisor, and the collective is out of place
    only. Raises `InputError` if root or counts do not fit the kind.
    """
    if counts is not None:
        blocks = counts.in_blocks(counts.common_divisor)
        return Collective(kind, num_ranks, blocks.total, counts=blocks)
    return Collective(
        kind,
        num_ranks,
        kind.traits.parts(num_ranks),
        root=max(root, 0) if kind.traits.is_rooted else None,
        in_place=True,
    )


def full_buffer_bytes(kind: CollectiveKind, node_bytes: int, num_ranks: int) -> int:
    """Return the bytes of the full buffer of a collective, from the bytes of its node.

    A node counts the input of a rank: if that is one part of the buffer (as in an all-gather), the
    bytes are multiplied by the ranks. Nodes of uneven kinds have the sum of their counts, which is
    the result.
    """
    # Nodes count the input of a rank, except that nodes with counts have their sum.
    is_part = kind.traits.input_is_part and not kind.traits.is_uneven
    return node_bytes * num_ranks if is_part else node_bytes


def _edges(
    edges: tuple[npt.ArrayLike, npt.ArrayLike], position: Int64Array, rank: Array, file: str | None
) -> tuple[Int64Array, Int64Array]:
    """Return the parents of every row as a CSR table (indptr, indices): int64 arrays.

    `edges`: (parents, children) of equal length, as numbers of the rows that the caller gave.
    `position`: the row of the table for each of these numbers. `rank`: by row of the table. The
    parents of a row, as rows of the table, keep the order of `edges`; repeated ones stay. Without
    edges all lists are empty.

    Raises `InputError` (`dangling`) for the first edge with a row that does not exist. If there is
    none, raises `InputError` (`crossing-dependency`) for the first edge between ranks.
    """
    sides = [np.asarray(side, np.int64) for side in edges]
    is_missing = [(side < 0) | (side >= len(rank)) for side in sides]
    if any(bool(np.any(missing)) for missing in is_missing):
        first = int(np.argmax(is_missing[0] | is_missing[1]))
        parent, child = (int(side[first]) for side in sides)
        message = f"row {child} depends on row {parent}: the rows are 0..{len(rank) - 1}"
        raise InputError(message, location=Location(file), code="dangling")
    parents, children = (position[side] for side in sides)
    crossing = np.flatnonzero(rank[parents] != rank[children])
    if len(crossing):
        location = Location(file, rank=int(rank[children[crossing[0]]]))
        parent, child = (int(side[crossing[0]]) for side in sides)
        message = f"row {child} depends on row {parent}, a node of another rank"
        raise InputError(message, location=location, code="crossing-dependency")
    return csr(children, parents, len(rank))
