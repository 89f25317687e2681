"""Match the communication nodes of different ranks, and report mismatches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collhub_pytorch.formats import KINETO
from collhub_pytorch.job import EXTENSION, file_of, has_device
from hub_core.columns import Int64Array, csr, run_starts, stable_order
from hub_core.model import (
    InputError,
    JobCollective,
    NodeKind,
    Workload,
    format_bytes,
)


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Communications of the job: collectives, and messages from one rank to another.

    `of_node`: int64[nodes], number of the communication, -1 for other nodes. `indptr`, `rows`:
    nodes of every communication in CSR form.
    """

    of_node: Int64Array
    indptr: Int64Array
    rows: Int64Array

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def members(self, meeting: int) -> Int64Array:
        """Return the nodes of one communication, sorted by rank."""
        return self.rows[self.indptr[meeting] : self.indptr[meeting + 1]]


def match_communications(workload: Workload) -> Meetings:
    """Number the communications of a job, i.e. nodes of different ranks that belong together.

    One communication is the k-th collective of a group on each of its ranks, or the k-th send and
    the k-th receive with equal source, destination and tag. Numbers ascend from 0. Collectives
    come first, by ascending group (group -1, all ranks, is first), then in the order of the nodes.
    Then follow messages, in the order of the receives. Unmatched messages and other nodes have the
    number -1.

    In each group, every rank is compared with the first rank. Raises `InputError`, which locates
    both nodes, for the first rank of the first group with a difference:

    - `collective-mismatch`: a collective differs in kind, size or dtype. Unknown sizes, unknown
      dtypes and sizes of all-to-alls are not compared.
    - `collective-missing`: there is no mismatch, but one of the two ranks has more collectives.
    """
    of_node = np.full(len(workload.nodes), -1, np.int64)
    # A node without an extra, which has the index -1, selects the last entry.
    dtypes = np.array([*(_dtype(workload, extra) for extra in workload.extras), ""])
    count = 0
    for group, rows in _split_collectives(workload).items():
        members = workload.members(group)
        columns = [rows.get(rank, np.empty(0, np.int64)) for rank in members]
        _check_equal(workload, group, members, columns, dtypes)
        for column in columns:
            of_node[column] = count + np.arange(len(column))
        count += len(columns[0])
    count = _match_messages(workload, of_node, count)
    communicating = np.flatnonzero(of_node >= 0)
    indptr, rows_of = csr(of_node[communicating], communicating, count)
    return Meetings(of_node, indptr, rows_of)


def _split_collectives(workload: Workload) -> dict[int, dict[int, Int64Array]]:
    """Return the rows of the collectives by group and rank, in the order of the nodes.

    Group -1 has all ranks. Groups and the ranks of a group ascend; a rank without a collective
    of a group is missing there, and so is a group without collectives.
    """
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE))
    key = (nodes.group[rows].astype(np.int64) + 1) * workload.num_ranks + nodes.rank[rows]
    by_group: dict[int, dict[int, Int64Array]] = {}
    order = stable_order(key)
    starts = run_starts(key[order])
    for segment in np.split(rows[order], starts[1:]):
        if len(segment):
            group, rank = int(nodes.group[segment[0]]), int(nodes.rank[segment[0]])
            by_group.setdefault(group, {})[rank] = segment
    return dict(sorted(by_group.items()))


def _check_equal(
    workload: Workload,
    group: int,
    members: Sequence[int],
    columns: Sequence[Int64Array],
    dtypes: NDArray[np.str_],
) -> None:
    """Raise `InputError` unless all members of a group have equal collectives in the same order.

    `columns`: rows of the collectives of each of `members`, at least one member. `dtypes`: by
    extra, "" if unknown. Each other member is compared with the first, position by position, in
    kind, size and dtype. Sizes of all-to-alls are not compared, nor sizes or dtypes that one of the
    two does not record.

    The error is about the first member that differs:

    - `collective-mismatch` at the first position at which both have a collective and these differ
    - otherwise `collective-missing` at the first collective that only one of the two has
    """
    nodes, first = workload.nodes, columns[0]
    for rank, column in zip(members[1:], columns[1:], strict=True):
        shared = min(len(first), len(column))
        left, right = first[:shared], column[:shared]
        differs = nodes.collective[left] != nodes.collective[right]
        # All-to-alls may be uneven: sizes may differ between ranks.
        is_free = nodes.collective[left] == JobCollective.ALL_TO_ALL
        are_known = (nodes.bytes[left] >= 0) & (nodes.bytes[right] >= 0)
        differs |= (nodes.bytes[left] != nodes.bytes[right]) & are_known & ~is_free
        left_dtype, right_dtype = dtypes[nodes.extra[left]], dtypes[nodes.extra[right]]
        are_known = (left_dtype != "") & (right_dtype != "")
        differs |= (left_dtype != right_dtype) & are_known
        if differs.any():
            position = int(np.argmax(differs))
            row, first_row = int(column[position]), int(first[position])
            subject = f"collective {position + 1} of {_group_name(workload, group)}"
            other_location = nodes.location(first_row, file_of(workload, members[0]))
            message = (
                f"{subject} is {_describe(workload, row)}, "
                f"at {other_location} {_describe(workload, first_row)}"
            )
            location = nodes.location(row, file_of(workload, rank))
            cure = "profile the same iterations on all ranks" + _group_hint(workload, row)
            raise InputError(message, location=location, cure=cure, code="collective-mismatch")
        if len(first) != len(column):
            is_first_longer = len(first) > len(column)
            holder, lacking = (members[0], rank) if is_first_longer else (rank, members[0])
            row = int((first if is_first_longer else column)[shared])
            message = (
                f"collective {shared + 1} of {_group_name(workload, group)} is "
                f"{_describe(workload, row)}, but rank {lacking} "
                f"({file_of(workload, lacking)}) has only {shared}"
            )
            location = nodes.location(row, file_of(workload, holder))
            cure = "profile the same iterations on all ranks"
            # Execution traces do not mark iterations, and their reader has no such option.
            if workload.provenance.producer == KINETO:
                cure += ", or read one of them with -O step=N" + _group_hint(workload, row)
            raise InputError(message, location=location, cure=cure, code="collective-missing")


def _dtype(workload: Workload, extra: str) -> str:
    """Return the data type that a reader of profiles kept for a node, as text.

    `extra`: the preserved data of the node. Its value `dtype` is returned. The result is ""
    if the workload is not of a reader of profiles, if `extra` is no JSON object, and if the
    object has no `dtype`.
    """
    if EXTENSION not in workload.extensions:
        return ""
    try:
        record = json.loads(extra)
    except (ValueError, RecursionError):
        return ""
    return str(record.get("dtype", "")) if isinstance(record, dict) else ""


def _group_hint(workload: Workload, row: int) -> str:
    """Return an additional explanation of a mismatch, to append to the message.

    The text begins with `; `. It explains that host libraries (gloo, mpi, ucc) do not record
    groups, so that collectives of fewer ranks look like those of all ranks. The result is "" if
    the node in `row` has a group, or if the file of its rank records the work of a device. Raises
    `InputError` (`invalid-json`) as `has_device` if the node has no group.
    """
    nodes = workload.nodes
    if nodes.group[row] >= 0 or has_device(workload, int(nodes.rank[row])):
        return ""
    return (
        "; profiles of gloo, mpi and ucc do not state process groups, so that collectives among"
        " fewer ranks cannot be told from those of all"
    )


def _describe(workload: Workload, row: int) -> str:
    nodes = workload.nodes
    kind = JobCollective(nodes.collective[row]).noun
    size = int(nodes.bytes[row])
    dtype = _dtype(workload, workload.extras[nodes.extra[row]]) if nodes.extra[row] >= 0 else ""
    article = "an" if kind[0] in "au" else "a"
    amount = f" of {format_bytes(size)}" if size >= 0 else ""
    return f"{article} {kind}{amount}{f' ({dtype})' if dtype else ''}"


def _group_name(workload: Workload, group: int) -> str:
    return "all ranks" if group < 0 else f"process group {workload.groups[group].name!r}"


def _match_messages(workload: Workload, of_node: Int64Array, count: int) -> int:
    """Number the pairs of sends and receives from `count` on; return the next free number.

    The n-th send and the n-th receive from rank a to rank b with the same tag are a pair, in the
    order of the nodes; bytes are not compared. Pairs are numbered in the order of their receives.
    The number is written to `of_node` for both nodes. Entries of unmatched messages are not
    changed. Raises nothing.
    """
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
