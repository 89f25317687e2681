"""Resolve ids in dependencies to positions of nodes; refuse repeated and missing ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.chakra.records import Batch, Dependencies, NodeColumns
from hub_core.columns import BoolArray, Int64Array, UInt64Array, distinct, group_of_entry, rows_of


@dataclass(frozen=True, slots=True)
class Edges:
    """Dependencies between nodes by position, ordered by child, then as listed in the file."""

    parents: Int64Array
    children: Int64Array

    def only(self, is_selected: BoolArray) -> Edges:
        """Return the edges for which `kept` is True."""
        return (
            self
            if is_selected.all()
            else Edges(self.parents[is_selected], self.children[is_selected])
        )


@dataclass(frozen=True, slots=True)
class ResolvedLinks:
    """Dependencies of a batch, the number of dropped ones, and files with an irregular form.

    `irregular`: bool per file; the ids are not 0..k-1 in file order, a dependency points forward,
    or a list of dependencies is not ascending.
    """

    data: Edges
    control: Edges
    dropped: int
    irregular: BoolArray


def link(nodes: NodeColumns, drop_dangling: bool) -> ResolvedLinks:
    """Resolve the dependencies of a batch.

    Raises `TraceError` for repeated ids and, unless `drop_dangling`, for dependencies on missing
    nodes.
    """
    index = _Index(nodes.batch, nodes.id)
    data, lost_data = index.resolve(nodes.data, drop_dangling)
    control, lost_control = index.resolve(nodes.control, drop_dangling)
    irregular = ~index.is_plain
    for edges in (data, control):
        is_odd = edges.parents >= edges.children
        # Also irregular: a repeated parent, and a later parent before an earlier one.
        same_child = edges.children[1:] == edges.children[:-1]
        is_odd[1:] |= same_child & (edges.parents[1:] <= edges.parents[:-1])
        irregular[nodes.batch.file_of_node[edges.children[is_odd]]] = True
    return ResolvedLinks(data, control, lost_data + lost_control, irregular)


class _Index:
    """Positions of nodes by file and id; `is_plain`: bool per file, ids are 0..k-1 in order."""

    def __init__(self, batch: Batch, ids: UInt64Array) -> None:
        self._batch, self._ids = batch, ids
        self._first = batch.file_indptr[:-1]
        self._sizes = np.diff(batch.file_indptr)
        plain_ids = np.arange(len(batch)) - self._first[batch.file_of_node]
        self.is_plain = np.ones(len(self._first), np.bool_)
        self.is_plain[batch.file_of_node[ids != plain_ids.astype(np.uint64)]] = False
        if not self.is_plain.all():
            self._sort()

    def _sort(self) -> None:
        """Number the distinct ids, so that (file, id) is one integer to search for."""
        self._distinct = distinct(self._ids)
        keys = self._build_keys(self._batch.file_of_node, self._ids)
        self._order = np.argsort(keys, kind="stable")
        self._sorted_keys = keys[self._order]
        doubled = np.flatnonzero(self._sorted_keys[1:] == self._sorted_keys[:-1])
        if len(doubled):
            node = int(self._order[doubled[0] + 1])
            message = f"a second node has id {self._ids[node]}"
            raise self._batch.error_at(node, message, "duplicate-id")

    def _build_keys(self, file: Int64Array, ids: UInt64Array) -> Int64Array:
        """Combine (file, id) to one number; -1 for an id that no node has."""
        number = rows_of(ids, self._distinct)
        return np.where(number >= 0, file * len(self._distinct) + number, -1)

    def resolve(self, dependencies: Dependencies, drop_dangling: bool) -> tuple[Edges, int]:
        """Return the edges of one kind, and the number of dropped ones."""
        children = group_of_entry(dependencies.indptr)
        file = self._batch.file_of_node[children]
        position, exists = self._find_positions(file, dependencies.ids)
        # The error names the first one and counts the others.
        lost = np.flatnonzero(~exists)
        if len(lost) and not drop_dangling:
            self._refuse(int(children[lost[0]]), int(dependencies.ids[lost[0]]), len(lost))
        return Edges(position, children).only(exists), len(lost)

    def _find_positions(self, file: Int64Array, ids: UInt64Array) -> tuple[Int64Array, BoolArray]:
        """Return the positions of the nodes with these ids, and whether they exist."""
        if self.is_plain.all():
            # The common case needs no search: the id is the position in the file.
            exists: BoolArray = ids < self._sizes[file].astype(np.uint64)
            return self._first[file] + np.where(exists, ids, 0).astype(np.int64), exists
        position = rows_of(self._build_keys(file, ids), self._sorted_keys)
        return self._order[position], position >= 0

    def _refuse(self, child: int, parent_id: int, count: int) -> None:
        count_text = f" ({count} such dependencies here)" if count > 1 else ""
        node = f"node {self._ids[child]} depends on node {parent_id}"
        cure = "read with the option drop_dangling to leave such dependencies out"
        message = f"{node}, which is not in the file{count_text}"
        raise self._batch.error_at(child, message, "dangling-dependency", cure)
