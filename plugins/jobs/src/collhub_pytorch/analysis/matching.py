"""Which nodes of different ranks are one communication, and where the ranks disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_pytorch.job import file_of, has_device
from collhub_pytorch.options import KINETO
from hub_core.columns import Int64Array, csr
from hub_core.model import (
    InputError,
    JobCollective,
    NodeKind,
    Workload,
    format_bytes,
)

_UNEVEN = "in_split"


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Communications of the job: collectives, and messages from one rank to another.

    `of_node`: int64[nodes], the number of the communication, -1 for other nodes. `indptr`, `rows`:
    the nodes of each.
    """

    of_node: Int64Array
    indptr: Int64Array
    rows: Int64Array

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def members(self, meeting: int) -> Int64Array:
        """The nodes of one communication, by rank."""
        return self.rows[self.indptr[meeting] : self.indptr[meeting + 1]]


def matched(workload: Workload) -> Meetings:
    """Put the k-th collective of a group on every rank of it together, and messages in order.

    Raises `InputError` at the first that differs in kind, size or type, or that a rank lacks, with
    both files and nodes.
    """
    of_node = np.full(len(workload.nodes), -1, np.int64)
    count = 0
    for group, rows in _collectives(workload).items():
        members = workload.members(group)
        columns = [rows.get(rank, np.empty(0, np.int64)) for rank in members]
        _check_alike(workload, group, members, columns)
        for own in columns:
            of_node[own] = count + np.arange(len(own))
        count += len(columns[0])
    count = _match_messages(workload, of_node, count)
    joined = np.flatnonzero(of_node >= 0)
    indptr, rows_of = csr(of_node[joined], joined, count)
    return Meetings(of_node, indptr, rows_of)


def _collectives(workload: Workload) -> dict[int, dict[int, Int64Array]]:
    """The collectives of every group and rank, in order."""
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE))
    key = (nodes.group[rows].astype(np.int64) + 1) * workload.num_ranks + nodes.rank[rows]
    found: dict[int, dict[int, Int64Array]] = {}
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    for own in np.split(rows[order], starts[1:]):
        if len(own):
            group, rank = int(nodes.group[own[0]]), int(nodes.rank[own[0]])
            found.setdefault(group, {})[rank] = own
    return dict(sorted(found.items()))


def _check_alike(
    workload: Workload, group: int, members: Sequence[int], columns: Sequence[Int64Array]
) -> None:
    """Raise `InputError` at the first place where a rank differs from the first member."""
    first = columns[0]
    for rank, own in zip(members[1:], columns[1:], strict=True):
        shared = min(len(first), len(own))
        differs = _differences(workload, first[:shared], own[:shared])
        if len(differs):
            place = int(differs[0])
            message = f"collective {place + 1} of {_group_name(workload, group)}"
            raise _disagreement(workload, message, int(own[place]), int(first[place]))
        if len(first) != len(own):
            longer = int((first if len(first) > len(own) else own)[shared])
            lacking = rank if len(first) > len(own) else members[0]
            raise _lack(workload, group, longer, lacking, shared)


def _differences(workload: Workload, one: Int64Array, two: Int64Array) -> Int64Array:
    """Places at which two ranks' collectives differ in kind, size or type, as far as both say."""
    nodes = workload.nodes
    differs = nodes.collective[one] != nodes.collective[two]
    size, other = nodes.bytes[one], nodes.bytes[two]
    # All-to-alls may be uneven: each rank has as much as it has.
    is_free = nodes.collective[one] == JobCollective.ALL_TO_ALL
    differs |= (size != other) & (size >= 0) & (other >= 0) & ~is_free
    types = np.array([*map(_dtype, workload.extras), ""])
    mine, theirs = types[nodes.extra[one]], types[nodes.extra[two]]
    differs |= (mine != theirs) & (mine != "") & (theirs != "")
    return np.flatnonzero(differs)


def _dtype(extra: str) -> str:
    import json

    return str(json.loads(extra).get("dtype", ""))


def _disagreement(workload: Workload, what: str, row: int, first: int) -> InputError:
    other_rank = int(workload.nodes.rank[first])
    file = file_of(workload, other_rank)
    other = workload.nodes.location(first, file)
    message = f"{what} is {_described(workload, row)}, at {other} {_described(workload, first)}"
    rank = int(workload.nodes.rank[row])
    place = workload.nodes.location(row, file_of(workload, rank))
    cure = "profile the same iterations on all ranks" + _group_hint(workload, row)
    return InputError(message, location=place, cure=cure, code="collective-mismatch")


def _group_hint(workload: Workload, row: int) -> str:
    """What else may explain that collectives of the host differ; empty for those of devices."""
    nodes = workload.nodes
    if nodes.group[row] >= 0 or has_device(workload, int(nodes.rank[row])):
        return ""
    return (
        "; profiles of gloo, mpi and ucc do not state process groups, so that collectives among"
        " fewer ranks cannot be told from those of all"
    )


def _lack(workload: Workload, group: int, row: int, lacking: int, count: int) -> InputError:
    rank = int(workload.nodes.rank[row])
    message = (
        f"collective {count + 1} of {_group_name(workload, group)} is "
        f"{_described(workload, row)}, but rank {lacking} "
        f"({file_of(workload, lacking)}) has only {count}"
    )
    place = workload.nodes.location(row, file_of(workload, rank))
    cure = "profile the same iterations on all ranks"
    # Execution traces do not mark iterations, and their reader has no such option.
    if workload.provenance.producer == KINETO:
        cure += ", or read one of them with -O step=N" + _group_hint(workload, row)
    return InputError(message, location=place, cure=cure, code="collective-missing")


def _described(workload: Workload, row: int) -> str:
    nodes = workload.nodes
    kind = JobCollective(int(nodes.collective[row])).name.lower().replace("_", "-")
    size = int(nodes.bytes[row])
    dtype = _dtype(workload.extras[nodes.extra[row]]) if nodes.extra[row] >= 0 else ""
    article = "an" if kind.startswith("a") else "a"
    amount = f" of {format_bytes(size)}" if size >= 0 else ""
    return f"{article} {kind}{amount}{f' ({dtype})' if dtype else ''}"


def _group_name(workload: Workload, group: int) -> str:
    return "all ranks" if group < 0 else f"process group {workload.groups[group].name!r}"


def _match_messages(workload: Workload, of_node: Int64Array, count: int) -> int:
    """Number the messages of two ranks from `count` on; those without a partner stay alone."""
    nodes = workload.nodes
    waiting: dict[tuple[int, int, int], list[int]] = {}
    for row in np.flatnonzero(nodes.is_kind(NodeKind.SEND)).tolist():
        key = (int(nodes.rank[row]), int(nodes.peer[row]), int(nodes.tag[row]))
        waiting.setdefault(key, []).append(row)
    for rows in waiting.values():
        rows.reverse()
    for row in np.flatnonzero(nodes.is_kind(NodeKind.RECV)).tolist():
        key = (int(nodes.peer[row]), int(nodes.rank[row]), int(nodes.tag[row]))
        if waiting.get(key):
            of_node[[row, waiting[key].pop()]] = count
            count += 1
    return count
