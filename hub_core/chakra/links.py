"""Turn the ids that nodes wait for into positions, and refuse ids that are doubled or not there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.chakra.records import Batch, Dependencies, NodeColumns
from hub_core.model.diagnostics import InputError

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Edges:
    """Dependencies between nodes of a batch by position, ordered by child and as the file lists them."""

    parents: Int64Array
    children: Int64Array

    def only(self, kept: npt.NDArray[np.bool_]) -> Edges:
        """The edges where `kept` holds."""
        return self if bool(kept.all()) else Edges(self.parents[kept], self.children[kept])


@dataclass(frozen=True, slots=True)
class Links:
    """All dependencies of a batch, the number of dropped ones, and the files whose order must be remembered.

    `irregular`: bool per file; ids are not 0..k-1 in file order, a dependency points forward, or a list of
    dependencies is not ascending.
    """

    data: Edges
    control: Edges
    dropped: int
    irregular: npt.NDArray[np.bool_]


def link(nodes: NodeColumns, drop_dangling: bool) -> Links:
    """Resolve the dependencies of a batch. Raises `InputError` for double ids and, unless told to drop, dangling ones."""
    index = _Index(nodes.batch, nodes.id)
    data, lost_data = index.resolve(nodes.data, drop_dangling)
    control, lost_control = index.resolve(nodes.control, drop_dangling)
    irregular = ~index.is_plain
    for edges in (data, control):
        is_forward = edges.parents >= edges.children
        falls = (edges.children[1:] == edges.children[:-1]) & (
            edges.parents[1:] <= edges.parents[:-1]
        )
        odd = np.concatenate([edges.children[is_forward], edges.children[1:][falls]])
        irregular[index.file_of_node[odd]] = True
    return Links(data, control, lost_data + lost_control, irregular)


class _Index:
    """Positions of nodes by file and id; `is_plain`: bool per file, ids are 0..k-1 in file order."""

    def __init__(self, batch: Batch, ids: UInt64Array) -> None:
        self._batch, self._ids = batch, ids
        self.file_of_node = batch.file_of_node
        self._first = batch.file_indptr[:-1]
        self._sizes = np.diff(batch.file_indptr)
        local = np.arange(len(batch)) - self._first[self.file_of_node]
        self.is_plain = np.ones(len(self._first), np.bool_)
        self.is_plain[self.file_of_node[ids != local.astype(np.uint64)]] = False
        self._order = self._sorted() if not self.is_plain.all() else None

    def _sorted(self) -> Int64Array:
        order = np.lexsort((self._ids, self.file_of_node))
        ids, files = self._ids[order], self.file_of_node[order]
        doubled = np.flatnonzero((ids[1:] == ids[:-1]) & (files[1:] == files[:-1]))
        if len(doubled):
            node = int(order[doubled[0] + 1])
            raise InputError(
                f"a second node has id {self._ids[node]}",
                location=self._batch.place(node),
                code="duplicate-id",
            )
        return order

    def resolve(self, dependencies: Dependencies, drop_dangling: bool) -> tuple[Edges, int]:
        """Edges of one kind, and how many were dropped."""
        children = np.repeat(np.arange(len(self._batch)), np.diff(dependencies.indptr))
        file = self.file_of_node[children]
        place = np.zeros(len(children), np.int64)
        is_there = np.zeros(len(children), np.bool_)
        plain = self.is_plain[file]
        is_there[plain] = dependencies.ids[plain] < self._sizes[file[plain]].astype(np.uint64)
        known = plain & is_there
        place[known] = self._first[file[known]] + dependencies.ids[known].astype(np.int64)
        if self._order is not None:
            for number in np.unique(file[~plain]).tolist():
                wanted = np.flatnonzero(file == number)
                place[wanted], is_there[wanted] = self._look_up(
                    number, dependencies.ids[wanted], self._order
                )
        lost = np.flatnonzero(~is_there)
        if len(lost) and not drop_dangling:
            self._refuse(int(children[lost[0]]), int(dependencies.ids[lost[0]]), len(lost))
        return Edges(place, children).only(is_there), len(lost)

    def _look_up(
        self, file: int, wanted: UInt64Array, order: Int64Array
    ) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
        nodes = order[self._batch.file_indptr[file] : self._batch.file_indptr[file + 1]]
        ids = self._ids[nodes]
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return nodes[at], ids[at] == wanted

    def _refuse(self, child: int, parent_id: int, count: int) -> None:
        others = f" ({count} such dependencies here)" if count > 1 else ""
        raise InputError(
            f"node {self._ids[child]} depends on node {parent_id}, which is not in the file{others}",
            location=self._batch.place(child),
            code="dangling-dependency",
            cure="read with the option drop_dangling to leave such dependencies out",
        )
