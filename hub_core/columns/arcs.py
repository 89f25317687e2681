"""Searches of paths in directed graphs: hops and lengths, for many starts at once."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hub_core.columns.groups import csr, expanded_ranges
from hub_core.columns.orders import BoolArray, Float64Array, Int64Array, distinct

# With fewer changed nodes than one in so many, relaxing the arcs of these nodes is faster than
# relaxing all arcs.
_NODES_PER_CHANGE = 16


class ArcGroups(NamedTuple):
    """Arcs grouped by head, in arc order within a group.

    `rows`: int64[arcs], the arcs. `heads`: int64[groups], ascending. `first`: int64[groups], start
    of each group in `rows`.
    """

    rows: Int64Array
    heads: Int64Array
    first: Int64Array


class Arcs:
    """Directed arcs `tail[i]` -> `head[i]`, int64, between nodes 0..num_nodes-1, for many searches.

    The columns are sorted once, when a search first needs it.
    """

    def __init__(self, num_nodes: int, tail: Int64Array, head: Int64Array) -> None:
        self.num_nodes = num_nodes
        self.tail = tail
        self.head = head

    @cached_property
    def entering(self) -> ArcGroups:
        """Return the arcs grouped by head: (rows, heads that have arcs, start of each group).

        Within a group rows are in arc order, so that the first arc wins ties.
        """
        rows = np.argsort(self.head, kind="stable")
        return ArcGroups(rows, *np.unique(self.head[rows], return_index=True))

    @cached_property
    def leaving(self) -> tuple[Int64Array, Int64Array]:
        """Arcs grouped by tail as CSR: (indptr int64[nodes + 1], rows int64[arcs])."""
        return csr(self.tail, np.arange(len(self.tail)), self.num_nodes)

    def hops(self, starts: Int64Array) -> npt.NDArray[np.int32]:
        """Return the minimum number of arcs from each start to every node: int32[starts, nodes].

        0 for the start itself, -1 for nodes without a path from it. A start may occur several
        times. Breadth-first search of all starts at the same time. An arc is visited once per
        start: O(starts * (arcs + nodes)) time and memory.
        """
        indptr, rows = self.leaving
        heads = self.head[rows]
        nodes = self.num_nodes
        hops = np.full(len(starts) * nodes, -1, np.int32)
        # A cell is a pair (start, node), numbered start by start.
        frontier = np.arange(len(starts), dtype=np.int64) * nodes + starts
        hops[frontier] = 0
        last_entry = np.empty(len(hops), np.int64)
        distance = 0
        while len(frontier):
            distance += 1
            node = frontier % nodes
            degree = indptr[node + 1] - indptr[node]
            head = heads[expanded_ranges(indptr[node], degree)]
            cells = np.repeat(frontier - node, degree) + head
            cells = cells[hops[cells] < 0]
            hops[cells] = distance
            # Several arcs may lead to one cell.
            frontier = keep_last_entries(cells, last_entry)
        return hops.reshape(len(starts), nodes)

    def lengths_from(self, starts: BoolArray, weight: Float64Array) -> Float64Array:
        """Return the length of the shortest path to every node from the nearest node of `starts`.

        `starts`: bool[nodes]. `weight`: float64[arcs]; see `shorten`. The result is float64[nodes]:
        the smallest sum of `weight` over a path that follows the arcs' directions. It is 0 for the
        nodes of `starts`, and infinite without a path.
        """
        return self.shorten(np.where(starts, 0.0, np.inf), weight)

    def shorten(self, length: Float64Array, weight: Float64Array) -> Float64Array:
        """Reduce `length` to the shortest path lengths of the nodes, in place, and return it.

        `length`: float64[nodes], or [nodes, searches] for several searches at once; the initial
        lengths, infinite if unknown. `weight`: float64[arcs], infinite for an arc that must not be
        used. Negative weights are permitted, but with a cycle of negative length this does not end.

        Arcs are relaxed in rounds until no length changes (Bellman 1958, Ford 1956): in one search,
        the arcs of nodes whose length was reduced, if these are few; otherwise all arcs. O(arcs *
        arcs of the longest shortest path). With numpy this is faster than a heap in Python.
        """
        rows = self.entering.rows
        if not len(rows):
            return length
        if length.ndim > 1 and length.shape[1] != 1:
            sorted_weight = weight[rows][:, None]
            while self._relax_all(length, sorted_weight).any():
                pass
            return length
        # A view: the given array is changed.
        one = length if length.ndim == 1 else length[:, 0]
        sorted_weight = weight[rows]
        changed = np.flatnonzero(np.isfinite(one))
        while len(changed):
            # On a ring few nodes change in each of many rounds.
            if len(changed) <= self.num_nodes // _NODES_PER_CHANGE:
                changed = self._relax_from(changed, one, weight)
            else:
                changed = self.entering.heads[self._relax_all(one, sorted_weight)]
        return length

    @cached_property
    def _sorted_tails(self) -> Int64Array:
        """Tails of the arcs in the order of `entering.rows`."""
        return self.tail[self.entering.rows]

    def _relax_all(self, length: Float64Array, sorted_weight: Float64Array) -> BoolArray:
        """Relax all arcs once, in place; return which lengths of `entering.heads` were reduced.

        `length`: float64[nodes], or [nodes, searches], which the result then has too.
        `sorted_weight`: weights of the arcs in the order of `entering.rows`.
        """
        heads, first = self.entering.heads, self.entering.first
        offered = np.minimum.reduceat(length[self._sorted_tails] + sorted_weight, first, axis=0)
        before = length[heads]
        length[heads] = np.minimum(before, offered)
        is_shorter: BoolArray = offered < before
        return is_shorter

    def _relax_from(
        self, nodes: Int64Array, length: Float64Array, weight: Float64Array
    ) -> Int64Array:
        """Relax the arcs of `nodes` once, in place; return the nodes whose length was reduced.

        `length`: float64[nodes]; `weight`: float64[arcs]. The result is ascending.
        """
        indptr, leaving = self.leaving
        rows = leaving[expanded_ranges(indptr[nodes], indptr[nodes + 1] - indptr[nodes])]
        heads = self.head[rows]
        before = length[heads]
        np.minimum.at(length, heads, length[self.tail[rows]] + weight[rows])
        return distinct(heads[length[heads] < before])


def keep_last_entries(cells: Int64Array, last_entry: Int64Array) -> Int64Array:
    """Return every value of `cells` once, ordered by the last position of the value in `cells`.

    `last_entry`: int64 scratch array, longer than the largest value; its content is
    overwritten. `cells` [3, 1, 3] gives [1, 3].
    """
    numbers = np.arange(len(cells))
    last_entry[cells] = numbers
    last: Int64Array = cells[last_entry[cells] == numbers]
    return last
