"""The collectives of a workload: which calls of its ranks are one collective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core import InputError
from hub_core.columns import Int64Array, ordinals
from hub_core.model import CollectiveKind, JobCollective, Workload


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Collectives, and the rows of the workload that call them.

    By call, int64: `row`, `position` of its rank in the group, `instance`: which collective. By
    collective, int64: `group`, `collective` (`JobCollective`), `bytes`, `root`: a position, -1
    where none is stated; `dimensions`: a mask, -1 for all.
    """

    row: Int64Array
    position: Int64Array
    instance: Int64Array
    group: Int64Array
    collective: Int64Array
    bytes: Int64Array
    root: Int64Array
    dimensions: Int64Array


def calls_of(workload: Workload, rows: Int64Array) -> Calls:
    """Match the calls `rows`, of each rank in the order in which it issues them.

    The k-th call of every rank in a group is its k-th collective. Raises `InputError` where the
    ranks of a group differ in number, kind or bytes of their collectives, or a rank is no member.
    """
    nodes = workload.nodes
    rank, group = nodes.rank[rows].astype(np.int64), nodes.group[rows].astype(np.int64)
    turn = ordinals((group + 1) * nodes.num_ranks + rank)
    keys = (group + 1) * (len(nodes) + 1) + turn
    _, first, instance = np.unique(keys, return_index=True, return_inverse=True)
    model = rows[first]
    position = _positions(workload, rows, rank, group)
    columns = (nodes.collective, nodes.bytes, nodes.dimensions)
    for column in columns:
        _check(workload, rows, column[rows] != column[model][instance], "is another one")
    sizes = np.array([len(workload.members(one)) for one in group[first].tolist()], np.int64)
    lacking = np.bincount(instance, minlength=len(first)) != sizes
    _check(workload, rows, lacking[instance], "is missing")
    root = _roots(workload, nodes.root[model], group[first])
    size = np.maximum(nodes.bytes[model], 0)
    kinds = nodes.collective[model].astype(np.int64)
    masks = nodes.dimensions[model].astype(np.int64)
    return Calls(rows, position, instance, group[first], kinds, size, root, masks)


def kind_of(collective: int) -> CollectiveKind | None:
    """The kind of algorithms of a collective; None for a barrier, and where none is stated."""
    return JobCollective(collective).kind if collective >= 0 else None


def _check(
    workload: Workload, rows: Int64Array, is_wrong: npt.NDArray[np.bool_], what: str
) -> None:
    if is_wrong.any():
        row = int(rows[np.argmax(is_wrong)])
        message = f"node {workload.nodes.identity[row]}: on a rank of its group this collective "
        cure = "all ranks of a group issue the same collectives in the same order"
        place = workload.nodes.location(row, workload.provenance.source_name or None)
        raise InputError(message + what, location=place, cure=cure, code="collectives-differ")


def _positions(
    workload: Workload, rows: Int64Array, rank: Int64Array, group: Int64Array
) -> Int64Array:
    """The place of every call's rank in its group."""
    position = np.zeros(len(rows), np.int64)
    for number in np.unique(group).tolist():
        place = np.full(workload.num_ranks, -1, np.int64)
        members = workload.members(number)
        place[list(members)] = np.arange(len(members))
        chosen = group == number
        position[chosen] = place[rank[chosen]]
    _check(workload, rows, position < 0, "is none of this rank, which is no member")
    return position


def _roots(workload: Workload, root: npt.NDArray[np.int32], group: Int64Array) -> Int64Array:
    """Roots as positions; where none is stated, or it is no member, -1."""
    found = np.full(len(root), -1, np.int64)
    for index in np.flatnonzero(root >= 0).tolist():
        members = workload.members(int(group[index]))
        if int(root[index]) in members:
            found[index] = members.index(int(root[index]))
    return found
