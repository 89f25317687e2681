"""Which blocks the rows of a workload become, in which order, and how those of a row depend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from collhub_templates import Edges, Lists

from collhub_expansion.blocks import Catalogue
from hub_core import InputError
from hub_core.columns import (
    BoolArray,
    Int64Array,
    csr,
    expanded_ranges,
    inverse,
    ordinals,
    row_pointer,
)
from hub_core.model import CollectiveKind, JobCollective, NodeColumns, Workload


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


# Where more nodes than this would wait for as many others, a MARKER stands between them.
_MOST_ENDS = 16
_FRONT, _PIECE, _BACK = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Parts in which collectives run: int64 by piece, ascending in `instance`, then in order.

    `template`: number of its nodes. `waits`: (earlier, later) pieces of one collective, ascending
    in collectives.
    """

    instance: Int64Array
    template: Int64Array
    waits: Edges


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The blocks of all rows, in the order of their nodes.

    By block, int64: `row`, `entry` of the catalogue, `piece` (-1: of none). `exits`, `entrances`:
    blocks by row, behind and before all that depends on it. `chains`: dependencies between blocks
    of one row.
    """

    row: Int64Array
    entry: Int64Array
    piece: Int64Array
    exits: Lists
    entrances: Lists
    chains: Edges


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Pieces of all calls, one call after the other: int64 by part.

    `call`: which one. `is_first`: whether a part waits for no other one of its call; `is_last`:
    whether no other one waits for it. `waits`: (earlier, later) parts.
    """

    call: Int64Array
    piece: Int64Array
    entry: Int64Array
    is_first: BoolArray
    is_last: BoolArray
    waits: Edges


def plan_of(nodes: NodeColumns, calls: Calls, pieces: Pieces, entries: Catalogue) -> Plan:
    """Plan the blocks; the last template of the catalogue is a MARKER.

    Rows are in the order of their ids, of which the smallest goes first where several may go.
    """
    called = np.zeros(len(nodes), np.bool_)
    called[calls.row] = True
    plain, parts = np.flatnonzero(~called), _parts(calls, pieces, entries)
    fronts = _crowded(parts, parts.is_first, entries.starts, len(calls.row))
    backs = _crowded(parts, parts.is_last, entries.ends, len(calls.row))
    groups = plain, calls.row[parts.call], calls.row[fronts], calls.row[backs]
    kinds = _PIECE, _PIECE, _FRONT, _BACK
    row = np.concatenate(groups)
    kind = np.repeat(kinds, [len(group) for group in groups])
    order = np.lexsort((kind, nodes.identity[row], nodes.rank[row]))
    markers = np.full(len(fronts) + len(backs), entries.entry[-2])
    entry = np.concatenate([plain, parts.entry, markers])
    piece = np.full(len(row), -1)
    piece[len(plain) : len(plain) + len(parts.piece)] = parts.piece
    cuts = np.cumsum([len(group) for group in groups])[:-1]
    whole, inner, front, back = np.split(inverse(order), cuts)
    doors = _Doors(len(nodes), plain, whole, calls.row, parts, inner)
    return Plan(
        row[order],
        entry[order],
        piece[order],
        doors.lists(parts.is_last, backs, back),
        doors.lists(parts.is_first, fronts, front),
        _joined(
            (inner[parts.waits[0]], inner[parts.waits[1]]),
            doors.between(parts.is_first, fronts, front),
            doors.between(parts.is_last, backs, back)[::-1],
        ),
    )


def _parts(calls: Calls, pieces: Pieces, entries: Catalogue) -> _Parts:
    pointer = row_pointer(np.bincount(pieces.instance, minlength=len(calls.group)))
    counts = np.diff(pointer)[calls.instance]
    call = np.repeat(np.arange(len(calls.row)), counts)
    piece = expanded_ranges(pointer[calls.instance], counts)
    entry = entries.entry[pieces.template[piece]] + calls.position[call]
    earlier, later = pieces.waits
    size = len(pieces.instance)
    is_first = np.bincount(later, minlength=size) == 0
    is_last = np.bincount(earlier, minlength=size) == 0
    # Every call of a collective has the waits of its pieces.
    edges = np.bincount(pieces.instance[earlier], minlength=len(calls.group))
    times = edges[calls.instance]
    edge = expanded_ranges(row_pointer(edges)[calls.instance], times)
    shift = np.repeat(row_pointer(counts)[:-1] - pointer[calls.instance], times)
    waits = earlier[edge] + shift, later[edge] + shift
    return _Parts(call, piece, entry, is_first[piece], is_last[piece], waits)


def _crowded(parts: _Parts, is_outer: BoolArray, listed: Lists, calls: int) -> Int64Array:
    """Calls with too many starts, or ends, for dependencies of each on each."""
    counts = np.diff(listed[0])[parts.entry[is_outer]]
    return np.flatnonzero(np.bincount(parts.call[is_outer], counts, calls) > _MOST_ENDS)


def _joined(*edges: Edges) -> Edges:
    parents, children = (np.concatenate(side) for side in zip(*edges, strict=True))
    return parents, children


@dataclass(frozen=True, slots=True, eq=False)
class _Doors:
    """Blocks by which rows are entered and left.

    `plain` rows are the blocks `whole`; the parts of calls, of the rows `row_of`, are `inner`.
    """

    nodes: int
    plain: Int64Array
    whole: Int64Array
    row_of: Int64Array
    parts: _Parts
    inner: Int64Array

    def lists(self, is_outer: BoolArray, marked: Int64Array, marker: Int64Array) -> Lists:
        """Of every row the marker of its call, or else the outer parts."""
        has_marker = np.zeros(len(self.row_of), np.bool_)
        has_marker[marked] = True
        chosen = is_outer & ~has_marker[self.parts.call]
        rows = self.plain, self.row_of[self.parts.call[chosen]], self.row_of[marked]
        blocks = self.whole, self.inner[chosen], marker
        return csr(np.concatenate(rows), np.concatenate(blocks), self.nodes)

    def between(self, is_outer: BoolArray, marked: Int64Array, marker: Int64Array) -> Edges:
        """(marker, outer part) of the calls that have one."""
        place = np.full(len(self.row_of), -1, np.int64)
        place[marked] = marker
        chosen = is_outer & (place[self.parts.call] >= 0)
        return place[self.parts.call[chosen]], self.inner[chosen]
