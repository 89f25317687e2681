"""Shortest-path searches on directed graphs whose arcs are given as columns."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hub_core.columns.groups import BoolArray, Float64Array, Int64Array, csr, expanded_ranges


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
        """Arcs grouped by head, in arc order within a group, so that the first arc wins ties."""
        rows = np.argsort(self.head, kind="stable")
        return ArcGroups(rows, *np.unique(self.head[rows], return_index=True))

    @cached_property
    def leaving(self) -> tuple[Int64Array, Int64Array]:
        """Heads of the arcs by tail as CSR: (indptr int64[nodes + 1], heads int64[arcs])."""
        return csr(self.tail, self.head, self.num_nodes)

    def hops(self, starts: Int64Array) -> npt.NDArray[np.int32]:
        """Minimum number of arcs from each start to every node; -1 without a path.

        int32[starts, nodes]. Breadth-first search of all starts at the same time. An arc is
        visited once per start: O(starts * (arcs + nodes)) time and memory.
        """
        indptr, heads = self.leaving
        nodes = self.num_nodes
        hops = np.full(len(starts) * nodes, -1, np.int32)
        # A cell is a pair (start, node), numbered start by start.
        frontier = np.arange(len(starts), dtype=np.int64) * nodes + starts
        hops[frontier] = 0
        # Position of a cell in the list of new cells; read only after it was written.
        position = np.empty(len(hops), np.int64)
        distance = 0
        while len(frontier):
            distance += 1
            node = frontier % nodes
            degree = indptr[node + 1] - indptr[node]
            head = heads[expanded_ranges(indptr[node], degree)]
            cells = np.repeat(frontier - node, degree) + head
            cells = cells[hops[cells] < 0]
            hops[cells] = distance
            # Several arcs may lead to one cell; the last entry of each cell is kept.
            numbers = np.arange(len(cells))
            position[cells] = numbers
            frontier = cells[position[cells] == numbers]
        return hops.reshape(len(starts), nodes)

    def lengths_from(self, starts: BoolArray, weight: Float64Array) -> Float64Array:
        """Minimum sum of `weight` (float64[arcs]) to every node from the nearest of `starts`.

        `starts`: bool[nodes]. Infinite without a path. All arcs are relaxed in rounds (Bellman
        1958, Ford 1956): O(arcs * arcs of the longest shortest path). With numpy this is faster
        than a heap in Python on networks of thousands of links.
        """
        length = np.where(starts, 0.0, np.inf)
        rows, heads, first = self.entering
        tail, weight = self.tail[rows], weight[rows]
        while len(rows):
            offered = np.minimum.reduceat(length[tail] + weight, first)
            shorter = np.minimum(length[heads], offered)
            if np.array_equal(shorter, length[heads]):
                break
            length[heads] = shorter
        return length
