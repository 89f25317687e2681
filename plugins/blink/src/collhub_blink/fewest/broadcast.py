"""Fewest out-trees of one root that carry a broadcast at its optimal rate, and fewest within a depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from collhub_packing import CapacityGraph, SpanningTree

from collhub_blink.fewest.counting import Fewest, search_counts
from collhub_blink.fewest.directed_search import search_directed
from collhub_blink.fewest.weights import Budget, first_found, weight_vectors

Int64Array = npt.NDArray[np.int64]

_MOST_PATTERNS = 1 << 16
_UNREACHED = 1 << 30


def least_tree_count(graph: CapacityGraph, root: int, total: int) -> tuple[int, str]:
    """A number of trees below which no packing of this total exists, for any real weights, and why.

    No tree is wider than the widest path to the node that is hardest to reach; and a node whose in-capacity is just the
    total has all its in-arcs filled, each by another tree.
    """
    best, reason = -(-total // widest_tree(graph, root)), "no tree can be wider"
    for node in range(graph.num_nodes):
        arcs = graph.capacity[graph.destination == node]
        if node != root and int(arcs.sum()) == total and len(arcs) > best:
            best, reason = len(arcs), f"node {node} needs all its in-arcs, and a tree uses one"
    return best, reason


def widest_tree(graph: CapacityGraph, root: int) -> int:
    """The largest weight that one tree can have."""
    for width in np.unique(graph.capacity)[::-1]:
        wide = graph.capacity >= width
        if (
            int(
                _distances(graph.num_nodes, graph.source[wide], graph.destination[wide], root).max()
            )
            < _UNREACHED
        ):
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
    """Fewest trees with whole weights of sum `total`, none deeper than `max_depth`; all nodes of `graph` compute.

    `known`: a packing at hand, which stands where nothing smaller is found within the budget (in steps of search).
    """
    bound, reason = least_tree_count(graph, root, total)
    depth = graph.num_nodes - 1 if max_depth is None else max_depth

    def attempt(count: int) -> tuple[tuple[SpanningTree, ...] | None, bool]:
        vectors = weight_vectors(total, count, widest_tree(graph, root))
        return first_found(vectors, lambda weights: _search(graph, root, weights, depth), budget)

    return search_counts(tuple(known), bound, reason, attempt, range(bound, total + 1), budget)


@dataclass(slots=True, eq=False)
class _ParentSearch:
    """The state of one search: parents of all nodes in trees of given weights."""

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
        return int(
            search_directed(
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
        )

    def result(self) -> tuple[SpanningTree, ...]:
        arc_of = {
            (int(tail), int(head)): arc
            for arc, (tail, head) in enumerate(
                zip(self.graph.source, self.graph.destination, strict=True)
            )
        }
        return tuple(
            SpanningTree(
                self.root,
                weight,
                parents.copy(),
                np.asarray(
                    [arc_of.get((int(tail), head), -1) for head, tail in enumerate(parents)],
                    np.int64,
                ),
            )
            for weight, parents in zip(self.weights, self.parents, strict=True)
        )


def _search(
    graph: CapacityGraph, root: int, weights: Sequence[int], depth: int
) -> _ParentSearch | None:
    distance = _distances(graph.num_nodes, graph.source, graph.destination, root)
    if int(distance.max()) > depth:
        return None
    nodes = [node for node in range(graph.num_nodes) if node != root]
    patterns = {node: list(_patterns(graph, node, weights)) for node in nodes}
    if not all(patterns.values()):
        return None
    # Nodes with few choices first; ties from the root outwards.
    nodes.sort(key=lambda node: (len(patterns[node]), int(distance[node]), node))
    twins = np.zeros(graph.num_nodes, np.int64)
    twins[0] = sum(
        1 << tree for tree in range(1, len(weights)) if weights[tree] == weights[tree - 1]
    )
    arcs = np.argsort(graph.source, kind="stable")
    return _ParentSearch(
        graph,
        root,
        tuple(weights),
        depth,
        np.searchsorted(graph.source[arcs], np.arange(graph.num_nodes + 1)),
        graph.destination[arcs],
        np.asarray(nodes, np.int64),
        np.cumsum([0, *(len(patterns[node]) for node in nodes)]),
        np.asarray([row for node in nodes for row in patterns[node]], np.int64),
        np.full((len(weights), graph.num_nodes), -1, np.int64),
        twins,
        np.zeros(graph.num_nodes, np.int64),
        np.zeros(1, np.int64),
    )


def _patterns(graph: CapacityGraph, node: int, weights: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Parents of a node in all trees for which its in-arcs have room. Raises `OverflowError` if there are too many."""
    arcs = np.flatnonzero(graph.destination == node)
    tails = graph.source[arcs].tolist()
    if len(tails) ** len(weights) > _MOST_PATTERNS:
        raise OverflowError
    return _assignments(tails, graph.capacity[arcs].tolist(), weights)


def _assignments(
    tails: list[int], room: list[int], weights: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    if not weights:
        yield ()
        return
    for arc, tail in enumerate(tails):
        if room[arc] >= weights[0]:
            left = [*room[:arc], room[arc] - weights[0], *room[arc + 1 :]]
            for others in _assignments(tails, left, weights[1:]):
                yield (tail, *others)


def _distances(
    num_nodes: int, source: Int64Array, destination: Int64Array, root: int
) -> Int64Array:
    """Arcs from the root to every node, `_UNREACHED` where there is no path."""
    distance = np.full(num_nodes, _UNREACHED, np.int64)
    distance[root] = 0
    for _ in range(num_nodes):
        nearer = distance.copy()
        np.minimum.at(nearer, destination, np.minimum(distance[source] + 1, _UNREACHED))
        if np.array_equal(nearer, distance):
            break
        distance = nearer
    return distance
