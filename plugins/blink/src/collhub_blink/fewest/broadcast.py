"""Fewest out-trees of one root that carry a broadcast at its optimal rate, also within a depth.

Weights first, then structure: for every way to write the rate as a sum of so many whole weights, a
depth-first search gives every node its parents in all trees at once (`directed_search`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from collhub_columns import Arcs, BoolArray, Int64Array, csr, row_pointer
from collhub_packing import CapacityGraph, SpanningTree

from collhub_blink.fewest.counting import Fewest, search_counts
from collhub_blink.fewest.directed_search import search_directed
from collhub_blink.fewest.weights import Budget, first_found, twin_bits, weight_vectors

_MOST_PATTERNS = 1 << 16
_UNREACHED = 1 << 30


def least_tree_count(graph: CapacityGraph, root: int, total: int) -> tuple[int, str]:
    """A number of trees below which no packing of this total exists, for any real weights, and why.

    No tree is wider than the widest path to the node that is hardest to reach; and a node whose
    in-capacity is just the total has all its in-arcs filled, each by another tree.
    """
    best, reason = -(-total // widest_tree(graph, root)), "no tree can be wider"
    for node in range(graph.num_nodes):
        arcs = graph.capacity[graph.destination == node]
        is_full = node != root and int(arcs.sum()) == total
        if is_full and len(arcs) > best:
            best = len(arcs)
            reason = f"node {node} needs all its in-arcs, and a tree uses one"
    return best, reason


def widest_tree(graph: CapacityGraph, root: int) -> int:
    """The largest weight that one tree can have."""
    # The first width, from wide to narrow, whose arcs reach everybody.
    for width in np.unique(graph.capacity)[::-1]:
        wide = graph.capacity >= width
        distance = _distances(graph, wide, root)
        if int(distance.max()) < _UNREACHED:
            return int(width)
    return 1


def fewest_broadcast_trees(
    graph: CapacityGraph,
    root: int,
    total: int,
    known: Sequence[SpanningTree],
    budget: Budget,
    max_depth: int | None = None,
) -> Fewest:
    """Fewest trees with whole weights of sum `total`, none deeper than `max_depth`.

    All nodes of `graph` compute. `known`: a packing at hand, which stands where nothing smaller
    is found within the budget (in steps of search).
    """
    bound, reason = least_tree_count(graph, root, total)
    depth = graph.num_nodes - 1 if max_depth is None else max_depth
    widest = widest_tree(graph, root)

    def search_of(weights: Sequence[int]) -> _ParentSearch | None:
        """Search for trees of these weights, None where they cannot fit."""
        return _parent_search(graph, root, weights, depth)

    def attempt(count: int) -> tuple[tuple[SpanningTree, ...] | None, bool]:
        vectors = weight_vectors(total, count, widest)
        return first_found(vectors, search_of, budget)

    counts = range(bound, total + 1)
    return search_counts(tuple(known), bound, reason, attempt, counts, budget)


@dataclass(slots=True, eq=False)
class _ParentSearch:
    """The state of one search: parents of all nodes in trees of given weights.

    The columns are those of `search_directed`.
    """

    graph: CapacityGraph
    root: int
    weights: tuple[int, ...]
    depth: int
    first: Int64Array
    head: Int64Array
    order: Int64Array
    indptr: Int64Array
    patterns: Int64Array
    parents: Int64Array
    twins: Int64Array
    choice: Int64Array
    level: Int64Array

    def go_on(self, steps: int) -> int:
        """FOUND, EXHAUSTED or STOPPED after at most `steps` steps."""
        outcome = search_directed(
            self.first,
            self.head,
            self.order,
            self.indptr,
            self.patterns,
            self.root,
            self.depth,
            self.parents,
            self.twins,
            self.choice,
            self.level,
            steps,
        )
        return int(outcome)

    def result(self) -> tuple[SpanningTree, ...]:
        """The trees that were found."""
        # There is at most one arc between two nodes.
        ends = zip(self.graph.source.tolist(), self.graph.destination.tolist(), strict=True)
        arc_of = {pair: arc for arc, pair in enumerate(ends)}
        found = zip(self.weights, self.parents, strict=True)
        return tuple(self._tree(weight, parents.copy(), arc_of) for weight, parents in found)

    def _tree(
        self,
        weight: int,
        parents: Int64Array,
        arc_of: dict[tuple[int, int], int],
    ) -> SpanningTree:
        """A tree with its arcs."""
        pairs = zip(parents.tolist(), range(len(parents)), strict=True)
        arcs = [arc_of.get(pair, -1) for pair in pairs]
        return SpanningTree(self.root, weight, parents, np.asarray(arcs, np.int64))


def _parent_search(
    graph: CapacityGraph,
    root: int,
    weights: Sequence[int],
    depth: int,
) -> _ParentSearch | None:
    """The search before its first step; None where the weights or the depth rule it out."""
    distance = _distances(graph, np.ones(graph.num_arcs, np.bool_), root)
    if int(distance.max()) > depth:
        return None
    nodes = [node for node in range(graph.num_nodes) if node != root]
    patterns = {node: list(_patterns(graph, node, weights)) for node in nodes}
    # A node whose in-arcs have no room for these weights.
    if not all(patterns.values()):
        return None
    # Nodes with few choices first; ties from the root outwards.
    nodes.sort(key=lambda node: (len(patterns[node]), int(distance[node]), node))
    counts = [len(patterns[node]) for node in nodes]
    rows = [row for node in nodes for row in patterns[node]]
    first, head = csr(graph.source, graph.destination, graph.num_nodes)
    return _ParentSearch(
        graph=graph,
        root=root,
        weights=tuple(weights),
        depth=depth,
        first=first,
        head=head,
        order=np.asarray(nodes, np.int64),
        indptr=row_pointer(counts),
        patterns=np.asarray(rows, np.int64),
        parents=np.full((len(weights), graph.num_nodes), -1, np.int64),
        twins=_first_twins(weights, graph.num_nodes),
        choice=np.zeros(graph.num_nodes, np.int64),
        level=np.zeros(1, np.int64),
    )


def _first_twins(weights: Sequence[int], num_levels: int) -> Int64Array:
    """Trees that are interchangeable before the first choice; the levels above are written."""
    twins = np.zeros(num_levels, np.int64)
    twins[0] = twin_bits(weights)
    return twins


def _patterns(graph: CapacityGraph, node: int, weights: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Parents of a node in all trees for which its in-arcs have room.

    Raises `OverflowError` if there are too many.
    """
    arcs = np.flatnonzero(graph.destination == node)
    tails = graph.source[arcs].tolist()
    # Before any is listed, since listing them is what would take too long.
    if len(tails) ** len(weights) > _MOST_PATTERNS:
        raise OverflowError
    return _assignments(tails, graph.capacity[arcs].tolist(), weights)


def _assignments(
    tails: list[int],
    room: list[int],
    weights: Sequence[int],
) -> Iterator[tuple[int, ...]]:
    """Ways to give every weight one of the tails, within the room of each."""
    if not weights:
        yield ()
        return
    weight, *others = weights
    for place, tail in enumerate(tails):
        if room[place] >= weight:
            left = room.copy()
            left[place] -= weight
            for following in _assignments(tails, left, others):
                yield (tail, *following)


def _distances(graph: CapacityGraph, chosen: BoolArray, root: int) -> Int64Array:
    """Minimum number of chosen arcs from the root to every node; `_UNREACHED` without a path."""
    arcs = Arcs(graph.num_nodes, graph.source[chosen], graph.destination[chosen])
    hops = arcs.hops(np.asarray([root]))[0].astype(np.int64)
    return np.where(hops < 0, _UNREACHED, hops)
