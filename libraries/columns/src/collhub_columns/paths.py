"""Searches for paths on directed graphs that are given as columns.

They go over all arcs in rounds, as many as the longest path has arcs: on networks of thousands of
links numpy does that faster than Python goes through a heap as Dijkstra's algorithm needs it.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collhub_columns.groups import BoolArray, Float64Array, Int64Array


class ArcGroups(NamedTuple):
    """Arcs grouped by head, in arc order within a group.

    `rows`: int64[arcs], the arcs. `heads`: int64[groups], ascending. `first`: int64[groups], where
    each group begins in `rows`.
    """

    rows: Int64Array
    heads: Int64Array
    first: Int64Array


class Arcs:
    """Directed arcs `tail[i]` -> `head[i]`, int64, among nodes 0..num_nodes-1, for many searches.

    The columns are sorted once, when a search first needs it.
    """

    def __init__(self, num_nodes: int, tail: Int64Array, head: Int64Array) -> None:
        self.num_nodes = num_nodes
        self.tail = tail
        self.head = head

    @cached_property
    def entering(self) -> ArcGroups:
        """The arcs by head, in arc order within a group: the first of a tie stands first."""
        rows = np.argsort(self.head, kind="stable")
        return ArcGroups(rows, *np.unique(self.head[rows], return_index=True))

    def hops(self, starts: Int64Array) -> npt.NDArray[np.int32]:
        """Arcs from each start to every node: int32[starts, nodes], -1 without a path."""
        rows, heads, first = self.entering
        tail = self.tail[rows]
        hops = np.full((len(starts), self.num_nodes), -1, np.int32)
        hops[np.arange(len(starts)), starts] = 0
        frontier = hops == 0
        distance = 0
        # Every node enters the frontier of a start once, so that this ends.
        while len(rows) and frontier.any():
            distance += 1
            reached = np.zeros_like(frontier)
            reached[:, heads] = np.logical_or.reduceat(frontier[:, tail], first, axis=1)
            frontier = reached & (hops < 0)
            hops[frontier] = distance
        return hops

    def lengths_from(self, starts: BoolArray, weight: Float64Array) -> Float64Array:
        """Least sum of `weight` (float64[arcs]) to every node from the nearest of `starts`.

        `starts`: bool[nodes]. Infinite without a path.
        """
        length = np.where(starts, 0.0, np.inf)
        rows, heads, first = self.entering
        tail, weight = self.tail[rows], weight[rows]
        # In rounds over all arcs (Bellman 1958, Ford 1956), until none leads to a node faster.
        while len(rows):
            offered = np.minimum.reduceat(length[tail] + weight, first)
            shorter = np.minimum(length[heads], offered)
            if np.array_equal(shorter, length[heads]):
                break
            length[heads] = shorter
        return length
