"""Find the fewest undirected trees that carry an all-reduce at the optimal rate.

The network is split along tight partitions: across such a partition, every tree uses the minimum
number of links and all links are full, so the quotient and the blocks are separate problems with
the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from collhub_packing import CapacityGraph, DuplexLinks, SpanningTree, induced, strength

from collhub_blink.packing.weight_search import (
    EXHAUSTED,
    FOUND,
    Budget,
    TreeSearchResult,
    compute_twin_bits,
    generate_weight_vectors,
    run_searches,
    search_counts,
    search_undirected,
)
from hub_core.columns import Int64Array, connected_parts, row_pointer

# Every link tries up to 2^trees sets of trees.
_MAX_TREES = 12
# The kernel's component labels are int8.
_MAX_NODES = 127


@dataclass(frozen=True, slots=True, eq=False)
class _SpanningProblem:
    """A network that every tree must span with links of this network only.

    `link`: numbers of the links in the original network. `is_full`: the trees fill every link to
    its capacity, as across a tight partition. Columns: int64[links].
    """

    num_nodes: int
    first: Int64Array
    second: Int64Array
    capacity: Int64Array
    link: Int64Array
    is_full: bool


def find_fewest_all_reduce_trees(
    graph: CapacityGraph,
    total: int,
    known: Sequence[SpanningTree],
    budget: Budget,
) -> TreeSearchResult:
    """Find the fewest spanning trees that carry an all-reduce at the best rate.

    The integer weights of the trees sum to `total`, the network's strength. `known` is a packing,
    or empty. Numbers of trees are tried ascending: from `total` / (largest weight of a tree),
    rounded up, to `len(known)` - 1 (without `known` to `total`). The first packing is the result;
    its trees are rooted at their centres. Otherwise the result has the trees `known`:

    - No tried number has a packing.
    - An attempt is not complete: `budget` used up, more than 127 nodes, or a number above 12 or
      with more than 4096 vectors of weights.
    - Ctrl-C sets `budget.is_interrupted`; without `known`, `KeyboardInterrupt` is raised.

    The result has a lower bound of the number and its reason: the first number, or one more than
    the last number that is proved to be impossible.
    """
    links = DuplexLinks.of(graph)
    # The largest weight of a single tree: links of at least this capacity connect all nodes.
    widest = 1
    for capacity in np.unique(links.capacity).tolist():
        is_wide = links.capacity >= capacity
        if connected_parts(links.low[is_wide], links.high[is_wide], links.num_nodes).any():
            break
        widest = capacity
    bound, reason = -(-total // widest), "no tree can be wider"

    counts = range(bound, total + 1)
    return search_counts(
        tuple(known),
        bound,
        reason,
        lambda count: _find_trees(graph, links, total, count, widest, budget),
        counts,
        budget,
    )


def _find_trees(
    graph: CapacityGraph,
    links: DuplexLinks,
    total: int,
    count: int,
    widest: int,
    budget: Budget,
) -> tuple[tuple[SpanningTree, ...] | None, bool]:
    """Search for a packing of exactly `count` spanning trees within the remaining budget.

    The integer weights of the trees sum to `total`; none is above `widest`. Each vector of weights
    has its own search, at most the first 4096. The searches take turns, and each turn takes growing
    numbers of steps from `budget`.

    Returns (trees, True) for the vector that is solved first; the trees are sorted by descending
    weight and rooted at their centres. Returns (None, True) without vectors, and if all searches
    end without a solution. Returns (None, False) in these cases: `budget` is used up, there are
    more than 4096 vectors and none of those searched is solved, `count` is above `_MAX_TREES` (12),
    or there are more than `_MAX_NODES` (127) nodes.
    """
    if count > _MAX_TREES or links.num_nodes > _MAX_NODES:
        return None, False
    vectors = generate_weight_vectors(total, count, widest)
    problems = tuple(_generate_problems(graph, np.arange(len(links.low)), total))

    def build_search(weights: Sequence[int]) -> _JointSearch | None:
        """Build one search for trees of these weights in all parts of the network.

        The parts are the problems of `_generate_problems`: the network divided along the
        partitions that limit its rate, or the whole network if it cannot be divided. The trees
        have the same weights in every part.

        Returns None if some link of a part fits no set of these trees, so that there is no
        solution. A set fits if its total weight is at most the capacity of the link. If the trees
        must fill the links of the part (`is_full`), the total must equal the capacity.
        """
        searches = [_build_link_search(problem, weights) for problem in problems]
        possible = [search for search in searches if search is not None]
        if len(possible) < len(problems):
            return None
        return _JointSearch(tuple(weights), possible, [])

    link_sets, is_proved = run_searches(vectors, build_search, budget)
    if link_sets is None:
        return None, is_proved
    return tuple(
        _build_tree(graph, links, chosen, weight) for chosen, weight in link_sets
    ), is_proved


def _build_tree(
    graph: CapacityGraph,
    links: DuplexLinks,
    chosen: Int64Array,
    weight: int,
) -> SpanningTree:
    """Build the tree with the chosen links, rooted at the node that gives the smallest depth.

    `chosen`: indices of `links`; they must connect all nodes without a cycle, which is not checked.
    `weight`: stored as the weight of the tree. Each link contributes its arc that leads away from
    the root. Of two possible roots, the one of `SpanningTree.centre` is chosen.
    """
    parent = np.full(graph.num_nodes, -1, np.int64)
    arc = np.full(graph.num_nodes, -1, np.int64)
    arcs = np.concatenate([links.up[chosen], links.down[chosen]])
    waiting = [0]
    # The list grows during iteration: breadth first from node 0.
    for node in waiting:
        for out in arcs[graph.source[arcs] == node].tolist():
            head = int(graph.destination[out])
            if head not in waiting:
                parent[head], arc[head] = node, out
                waiting.append(head)
    opposite = links.opposite(graph.num_arcs)
    tree = SpanningTree(0, weight, parent, arc)
    return tree.rerooted(tree.centre(opposite), opposite)


def _generate_problems(
    graph: CapacityGraph,
    numbers: Int64Array,
    total: int,
) -> Iterator[_SpanningProblem]:
    """Divide the search for spanning trees of a network into independent problems.

    `total`: sum of the weights of the trees. `numbers`: number in the original network of
    each link of the graph, which problems keep.

    - If the strength of the graph (the largest possible total) is not `total`, the graph is
      one problem. Its links may keep some capacity.
    - Otherwise the blocks of the partition that proves the strength become nodes of the first
      problem, in their order. Its links are those between blocks, which must be used up. Then
      follow the problems of each block of several nodes, found in the same manner, with the
      nodes numbered from 0 in ascending order.
    """
    links = DuplexLinks.of(graph)
    network_strength = strength(graph)
    # Below the strength links may have room left, and the network cannot be split.
    if network_strength.value != total:
        columns = links.low, links.high, links.capacity
        yield _SpanningProblem(graph.num_nodes, *columns, numbers, False)
        return
    block_of = np.empty(graph.num_nodes, np.int64)
    for number, block in enumerate(network_strength.blocks):
        block_of[list(block)] = number
    low, high = block_of[links.low], block_of[links.high]
    across = np.flatnonzero(low != high)
    columns = low[across], high[across], links.capacity[across]
    yield _SpanningProblem(len(network_strength.blocks), *columns, numbers[across], True)
    for number, block in enumerate(network_strength.blocks):
        if len(block) > 1:
            inner = np.flatnonzero((low == number) & (high == number))
            yield from _generate_problems(induced(graph, sorted(block)), numbers[inner], total)


def _build_link_search(problem: _SpanningProblem, weights: Sequence[int]) -> _LinkSearch | None:
    """Build the search that decides for each link of a problem which trees use it, or None.

    The trees on a link must fit on its capacity, or fill it exactly if `problem.is_full`. None if a
    link has no such set of trees; without `is_full` the empty set always fits. For each link, sets
    with a larger total weight are tried first, of equal ones the lower bit mask. Links are in order
    of their higher node, then the lower one, so that cycles are found early.
    """
    # Links among the first nodes first, so that trees close cycles early.
    lower = np.minimum(problem.first, problem.second)
    higher = np.maximum(problem.first, problem.second)
    order = np.lexsort((lower, higher))
    capacities = problem.capacity[order].tolist()
    # There are few different capacities and thousands of weight vectors: compute each family once.
    family_of = {
        capacity: _find_sharing_sets(capacity, weights, problem.is_full)
        for capacity in set(capacities)
    }
    families = [family_of[capacity] for capacity in capacities]
    # No set of trees fits on (or fills) a link.
    if not all(families):
        return None
    depth = len(order) + 1
    parts = np.zeros((depth, len(weights), problem.num_nodes), np.int8)
    parts[0] = np.arange(problem.num_nodes)
    twins = np.zeros(depth, np.int64)
    twins[0] = compute_twin_bits(weights)
    masks = [mask for family in families for mask in family]
    return _LinkSearch(
        link=problem.link[order],
        first=problem.first[order],
        second=problem.second[order],
        indptr=row_pointer([len(family) for family in families]),
        masks=np.asarray(masks, np.int64),
        parts=parts,
        twins=twins,
        choice=np.zeros(depth, np.int64),
        level=np.zeros(1, np.int64),
    )


def _find_sharing_sets(capacity: int, weights: Sequence[int], is_full: bool) -> list[int]:
    """Return the sets of trees that can share a link; bit t of a set is tree t.

    The sum of their weights is at most `capacity`, or with `is_full` exactly `capacity`. Sets are
    sorted by decreasing sum, then by number. The empty set is included if it fits; the list is
    empty if no set does.
    """
    load = [0]
    for weight in weights:
        load += [subset_load + weight for subset_load in load]
    # `load[m]` is the load of set m.
    minimum = capacity if is_full else 0
    fitting = [mask for mask in range(len(load)) if minimum <= load[mask] <= capacity]
    return sorted(fitting, key=lambda mask: (-load[mask], mask))


@dataclass(slots=True, eq=False)
class _LinkSearch:
    """State of one search: which trees use which links of one problem.

    The columns are those of `search_undirected`; `link`: numbers of the links in the original
    network.
    """

    link: Int64Array
    first: Int64Array
    second: Int64Array
    indptr: Int64Array
    masks: Int64Array
    parts: npt.NDArray[np.int8]
    twins: Int64Array
    choice: Int64Array
    level: Int64Array

    def resume(self, steps: int) -> int:
        """Continue the search for at most `steps` steps; return FOUND, EXHAUSTED or STOPPED.

        A step tries one set of trees for one link, or goes back to the previous link.

        - FOUND: `result` returns the trees.
        - EXHAUSTED: there are no such trees.
        - STOPPED: the steps are used up, also if `steps` is 0. Another call continues.

        The state of the search (`parts`, `choice`, `level`) is changed in place.
        """
        outcome = search_undirected(
            self.first,
            self.second,
            self.indptr,
            self.masks,
            self.parts,
            np.zeros(self.parts.shape[2], np.int8),
            self.twins,
            self.choice,
            self.level,
            steps,
        )
        return int(outcome)

    def find_links(self, tree: int) -> Int64Array:
        """Return the numbers of the links that a tree uses, in the original network: int64.

        They are in the order of the search (by higher node, then lower node of the problem),
        which need not be ascending. `tree`: index of the tree's weight. Valid only after
        `resume` has returned FOUND.
        """
        # The chosen set of trees of every link.
        chosen = self.masks[self.indptr[:-1] + self.choice[: len(self.link)]]
        is_used = chosen >> tree & 1 == 1
        numbers: Int64Array = self.link[is_used]
        return numbers


@dataclass(slots=True, eq=False)
class _JointSearch:
    """Searches of all problems for one weight vector; all of them must succeed."""

    weights: tuple[int, ...]
    waiting: list[_LinkSearch]
    done: list[_LinkSearch]

    def resume(self, steps: int) -> int:
        """Continue all open searches, each for at most `steps` steps; return the joint outcome.

        EXHAUSTED: one of them proves that it has no trees, so there are none together. FOUND: all
        have succeeded. STOPPED: otherwise; another call continues. Searches that succeed move from
        `waiting` to `done`.
        """
        outcomes = [search.resume(steps) for search in self.waiting]
        # The problems share only the weights: one without a solution rules them out.
        if EXHAUSTED in outcomes:
            return EXHAUSTED
        searches, self.waiting = self.waiting, []
        for search, outcome in zip(searches, outcomes, strict=True):
            (self.done if outcome == FOUND else self.waiting).append(search)
        return min(outcomes) if self.waiting else FOUND

    def result(self) -> list[tuple[Int64Array, int]]:
        """Return (numbers of links, weight) of every tree, in the order of the field `weights`.

        In this order no weight is larger than the previous one. Links are numbered as in the
        original network, in no particular order. Valid only after `resume` has returned FOUND.
        """
        trees = []
        for tree, weight in enumerate(self.weights):
            links = [search.find_links(tree) for search in self.done]
            trees.append((np.concatenate(links), weight))
        return trees
