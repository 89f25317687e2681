"""Searches for paths on directed graphs that are given as columns.

Searches from one set of nodes go breadth first along the arcs of the frontier, in time linear in
nodes and arcs. Searches from many nodes at once, one row of a matrix each, go over all arcs in
rounds (Bellman and Ford), as many as the longest path has arcs: on networks of thousands of links
numpy does that faster than Python goes through a heap as Dijkstra's algorithm needs it.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hub_core.model.columns import BoolArray, Float64Array, Int64Array, csr, gather, ordinals

_Number = TypeVar("_Number", np.int64, np.float64)

FAR = 1 << 61
"""Integer length of a path that does not exist; sums of two stay within int64."""


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

    The order of the arcs decides ties. The columns are sorted once, when a search first needs it.
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

    @cached_property
    def _leaving(self) -> tuple[Int64Array, Int64Array]:
        """(indptr, rows) of the arcs by tail, in arc order within a node."""
        return csr(self.tail, np.arange(len(self.tail)), self.num_nodes)

    def hops_from(self, starts: Int64Array) -> Int64Array:
        """Arcs from the nearest of `starts` to every node, -1 without a path: int64[nodes]."""
        return self._breadth_first(starts)[0]

    def shortest_path(self, start: int, goal: int) -> Int64Array | None:
        """The arcs, in order, of a path with as few of them as possible; None without a path.

        Of several arcs that reach a node first, the first in arc order is taken.
        """
        hops, arc_to = self._breadth_first(np.asarray([start]))
        if hops[goal] < 0:
            return None
        path = np.empty(int(hops[goal]), np.int64)
        node = goal
        # From the goal back, each time over the arc that came first.
        for place in reversed(range(len(path))):
            path[place] = arc_to[node]
            node = int(self.tail[path[place]])
        return path

    def _breadth_first(self, starts: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Hops of every node, and the arc over which it was reached (-1: none)."""
        indptr, rows = self._leaving
        hops = np.full(self.num_nodes, -1, np.int64)
        arc_to = np.full(self.num_nodes, -1, np.int64)
        hops[starts] = 0
        frontier = np.unique(starts)
        distance = 0
        while len(frontier):
            distance += 1
            arcs = np.sort(gather(indptr, rows, frontier))
            # A node that was reached before is as near already.
            outward = arcs[hops[self.head[arcs]] < 0]
            frontier, first = np.unique(self.head[outward], return_index=True)
            hops[frontier] = distance
            arc_to[frontier] = outward[first]
        return hops, arc_to

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

    def lengths(self, starts: Int64Array, weight: Int64Array) -> Int64Array:
        """Least sum of `weight` (int64[arcs]) from each start to every node: [starts, nodes].

        `FAR` or more without a path.
        """
        length = np.full((len(starts), self.num_nodes), FAR, np.int64)
        length[np.arange(len(starts)), starts] = 0
        return self._relaxed(length, weight)

    def lengths_from(self, starts: BoolArray, weight: Float64Array) -> Float64Array:
        """Least sum of `weight` (float64[arcs]) to every node from the nearest of `starts`.

        `starts`: bool[nodes]. Infinite without a path.
        """
        length = np.where(starts, 0.0, np.inf)
        found: Float64Array = self._relaxed(length[None], weight)[0]
        return found

    def farthest(self, starts: Int64Array, goals: int, work: int) -> tuple[int, int] | None:
        """Arcs on the longest of the shortest paths from any of `starts` to nodes 0..goals-1.

        With the bytes that the search went through. None where some goal is not reached from some
        start, or where that would take more than `work` bytes. Starts are bits, 8 a byte, and a
        round hands the bits of every tail to its heads: rounds times arcs times starts / 8 bytes.
        """
        turns = self._turns()
        # Big-endian within a byte, as packbits does it.
        place = np.arange(len(starts))
        everyone = np.packbits(np.ones(len(starts), np.bool_))
        reach = np.zeros((self.num_nodes, len(everyone)), np.uint8)
        reach[starts, place // 8] = 128 >> (place % 8)
        hops = done = 0
        while not np.all(reach[:goals] == everyone):
            done += len(self.tail) * len(everyone)
            if done > work:
                return None
            # All arcs hand on what there was before the round, or a round would count several hops.
            before = reach.copy()
            for tails, heads in turns:
                reach[heads] |= before[tails]
            # Nothing moves any more, and a goal is not reached from all.
            if np.array_equal(before, reach):
                return None
            hops += 1
        return hops, done

    def _relaxed(
        self, length: npt.NDArray[_Number], weight: npt.NDArray[_Number]
    ) -> npt.NDArray[_Number]:
        """Lower the lengths, one row a search, until no arc leads to a node faster."""
        rows, heads, first = self.entering
        tail, weight = self.tail[rows], weight[rows]
        while len(rows):
            offered = np.minimum.reduceat(length[:, tail] + weight, first, axis=1)
            shorter = np.minimum(length[:, heads], offered)
            if np.array_equal(shorter, length[:, heads]):
                break
            length[:, heads] = shorter
        return length

    def _turns(self) -> list[tuple[Int64Array, Int64Array]]:
        """The arcs as (tails, heads) in parts, each head at most once in a part.

        An assignment to rows of which one stands twice would keep the last value alone.
        """
        turn = ordinals(self.head)
        indptr, arcs = csr(turn, np.arange(len(turn)), int(turn.max(initial=-1)) + 1)
        parts = np.split(arcs, indptr[1:-1]) if len(arcs) else []
        return [(self.tail[part], self.head[part]) for part in parts]
