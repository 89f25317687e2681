"""Find the fewest out-trees of one root that carry a broadcast at its optimal rate.

Optionally within a maximum depth. For every way to write the rate as a sum of integer weights, a
depth-first search assigns every node its parents in all trees at once (`directed_search`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from collhub_packing import CapacityGraph, SpanningTree

from collhub_blink.packing.weight_search import (
    Budget,
    TreeSearchResult,
    compute_twin_bits,
    generate_weight_vectors,
    run_searches,
    search_counts,
    search_directed,
)
from hub_core.columns import Arcs, BoolArray, Int64Array, csr, row_pointer

_MAX_PATTERNS = 1 << 16
_UNREACHED = 1 << 30


def bound_tree_count(graph: CapacityGraph, root: int, total: int) -> tuple[int, str]:
    """Return a lower bound on the number of trees with total weight `total`, and why.

    The bound is the maximum of these numbers; of equal ones, the reason (a text) is that of
    the first:

    - `total` divided by the weight of the widest spanning tree from `root`, rounded up,
      because no tree can have more weight.
    - For each node other than the root whose arcs into it have the total capacity `total`:
      the number of these arcs, because every one is filled and a tree uses only one of
      them.

    Both hold for any real weights.
    """
    bound, reason = -(-total // find_widest_tree_weight(graph, root)), "no tree can be wider"
    for node in range(graph.num_nodes):
        arcs = graph.capacity[graph.destination == node]
        is_full = node != root and int(arcs.sum()) == total
        if is_full and len(arcs) > bound:
            bound = len(arcs)
            reason = f"node {node} needs all its in-arcs, and a tree uses one"
    return bound, reason


def find_widest_tree_weight(graph: CapacityGraph, root: int) -> int:
    """Return the largest weight of a single tree from `root` to all nodes.

    It is the largest capacity c for which the arcs of capacity c or more reach all nodes.
    It is 1 if the root cannot reach all nodes, or the graph has no arcs.
    """
    # The largest width at which the arcs of at least that width reach all nodes.
    for width in np.unique(graph.capacity)[::-1]:
        wide = graph.capacity >= width
        distance = _count_hops(graph, wide, root)
        if int(distance.max()) < _UNREACHED:
            return int(width)
    return 1


def find_fewest_broadcast_trees(
    graph: CapacityGraph,
    root: int,
    total: int,
    known: Sequence[SpanningTree],
    budget: Budget,
    max_depth: int | None = None,
) -> TreeSearchResult:
    """Find the fewest trees from `root` to all nodes with integer weights of sum `total`.

    `known`: available trees, possibly none. New trees have at most `max_depth` arcs from the root
    to a node; None is no limit. The numbers of trees are tried in ascending order from
    `bound_tree_count` to `total`, but only below the number of `known` trees if there are any. The
    trees of the first number with a packing are returned, by descending weight. `known`, also if
    empty, is returned if:

    - no number has a packing
    - a search stops early: the steps of `budget` are used up, or there are too many weight vectors
      (4096) or choices of parents
    - Ctrl-C is pressed, which sets `budget.is_interrupted`; without `known` it is raised

    The lower bound in the result is n + 1 (for such weights and depths) if searches excluded all
    numbers up to n.
    """
    bound, reason = bound_tree_count(graph, root, total)
    depth = graph.num_nodes - 1 if max_depth is None else max_depth
    widest = find_widest_tree_weight(graph, root)

    def attempt(count: int) -> tuple[tuple[SpanningTree, ...] | None, bool]:
        """Search for a packing of exactly `count` trees; return (trees, whether it is proved).

        Without a packing, the trees are None, and True means that no such packing exists for
        integer weights and `max_depth`. False means that the search has stopped early: the
        steps of `budget` are used up, or there are too many weight vectors or choices of
        parents. Steps are subtracted from `budget`.
        """
        vectors = generate_weight_vectors(total, count, widest)
        return run_searches(
            vectors, lambda weights: _build_parent_search(graph, root, weights, depth), budget
        )

    counts = range(bound, total + 1)
    return search_counts(tuple(known), bound, reason, attempt, counts, budget)


@dataclass(slots=True, eq=False)
class _ParentSearch:
    """State of one search: parents of all nodes in trees of given weights.

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

    def resume(self, steps: int) -> int:
        """Continue the search by at most `steps` steps; return how it ended, as an integer.

        A step is one of these: to try one pattern (the parents of one node in all trees), to return
        to the previous node, or to reach the end, where all nodes have a pattern.

        - FOUND (1): `result` returns the trees. A further call with at least one step returns FOUND
          again.
        - EXHAUSTED (2): it is proved that there are no trees. The search must not be resumed.
        - STOPPED (0): the steps are used up, also if `steps` is 0. Another call continues the
          search.

        The arrays `parents`, `choice`, `level` and `twins` are changed in place.
        """
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
        """Return the trees, after `resume` has returned FOUND, in the order of the weights.

        Every tree is built from the parents of its nodes and has its weight. The parent and the arc
        of the root, and of nodes that are not in the tree, are -1. The search's state is copied.
        """
        # There is at most one arc between two nodes.
        ends = zip(self.graph.source.tolist(), self.graph.destination.tolist(), strict=True)
        arc_of = {pair: arc for arc, pair in enumerate(ends)}
        trees = []
        for weight, parents in zip(self.weights, self.parents, strict=True):
            pairs = zip(parents.tolist(), range(len(parents)), strict=True)
            arcs = np.asarray([arc_of.get(pair, -1) for pair in pairs], np.int64)
            trees.append(SpanningTree(self.root, weight, parents.copy(), arcs))
        return tuple(trees)


def _build_parent_search(
    graph: CapacityGraph,
    root: int,
    weights: Sequence[int],
    depth: int,
) -> _ParentSearch | None:
    """Build the search that chooses the parents of every node in all trees, or return None.

    `weights`: one integer per tree, descending. `depth`: maximum number of arcs from the
    root. A pattern of a node is one choice of its parents, one per tree. The weights of
    trees with the same parent must fit on the capacity of its arc. The first rule that
    applies:

    1. A node is unreachable or more than `depth` arcs from the root: None.
    2. A node other than the root has (its in-arcs) ** (number of trees) above 65536:
       `OverflowError`.
    3. A node other than the root has no pattern: None.
    4. Otherwise the search, before its first step. It decides nodes with few patterns
       first; of equal ones, those with fewer arcs from the root, then low numbers.
    """
    distance = _count_hops(graph, np.ones(graph.num_arcs, np.bool_), root)
    if int(distance.max()) > depth:
        return None
    nodes = [node for node in range(graph.num_nodes) if node != root]
    patterns: dict[int, list[tuple[int, ...]]] = {}
    for node in nodes:
        arcs = np.flatnonzero(graph.destination == node)
        tails = graph.source[arcs].tolist()
        # Checked beforehand, because the enumeration would take too long.
        if len(tails) ** len(weights) > _MAX_PATTERNS:
            raise OverflowError
        room = graph.capacity[arcs].tolist()
        patterns[node] = list(_generate_assignments(tails, room, weights))
    # The in-arcs of a node have no room for these weights.
    if not all(patterns.values()):
        return None
    # Nodes with few choices first; ties from the root outwards.
    nodes.sort(key=lambda node: (len(patterns[node]), int(distance[node]), node))
    counts = [len(patterns[node]) for node in nodes]
    rows = [row for node in nodes for row in patterns[node]]
    first, head = csr(graph.source, graph.destination, graph.num_nodes)
    # Build int64[num_levels] with the interchangeable trees in entry 0.
    twins = np.zeros(graph.num_nodes, np.int64)
    twins[0] = compute_twin_bits(weights)
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
        twins=twins,
        choice=np.zeros(graph.num_nodes, np.int64),
        level=np.zeros(1, np.int64),
    )


def _generate_assignments(
    tails: list[int],
    room: list[int],
    weights: Sequence[int],
) -> Iterator[tuple[int, ...]]:
    """Yield all ways to assign one of the `tails` to every weight, as tuples of tails.

    Entry i of a tuple is the tail of `weights[i]`. The weights on `tails[k]` add up to at
    most `room[k]`. Tuples are in lexicographic order of the indices of the tails. Without
    weights there is one empty tuple; if the weights do not fit, no tuple is yielded.
    """
    if not weights:
        yield ()
        return
    weight, *remaining_weights = weights
    for index, tail in enumerate(tails):
        if room[index] >= weight:
            remaining_room = room.copy()
            remaining_room[index] -= weight
            for following in _generate_assignments(tails, remaining_room, remaining_weights):
                yield (tail, *following)


def _count_hops(graph: CapacityGraph, chosen: BoolArray, root: int) -> Int64Array:
    """Return the fewest arcs on a path from the root to every node: int64[nodes].

    Only the arcs in `chosen` (bool[arcs]) are used. A node without such a path has `_UNREACHED`.
    """
    arcs = Arcs(graph.num_nodes, graph.source[chosen], graph.destination[chosen])
    hops = arcs.hops(np.asarray([root]))[0].astype(np.int64)
    return np.where(hops < 0, _UNREACHED, hops)
