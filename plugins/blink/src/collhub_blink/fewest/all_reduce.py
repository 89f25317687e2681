"""Fewest undirected trees that carry an all-reduce at the optimal rate.

Split along tight partitions: across one, every tree has just as many links as it needs and all
links are full, so the quotient and the blocks are problems of their own with the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from collhub_columns import Int64Array, row_pointer
from collhub_packing import CapacityGraph, DuplexLinks, SpanningTree, induced, strength

from collhub_blink.fewest.counting import Fewest, search_counts
from collhub_blink.fewest.directed_search import EXHAUSTED, FOUND
from collhub_blink.fewest.undirected_search import search_undirected
from collhub_blink.fewest.weights import Budget, first_found, twin_bits, weight_vectors

# Sets of trees are tried by the thousand for every link.
_MOST_TREES = 12
# The kernel's parts are int8.
_MOST_NODES = 127


@dataclass(frozen=True, slots=True, eq=False)
class _SpanningProblem:
    """A network that every tree must span by links of its own.

    `link` says which links of the whole they are. `is_full`: the trees fill every link to its
    capacity, as across a tight partition. int64 columns.
    """

    num_nodes: int
    first: Int64Array
    second: Int64Array
    capacity: Int64Array
    link: Int64Array
    is_full: bool


def fewest_all_reduce_trees(
    graph: CapacityGraph,
    total: int,
    known: Sequence[SpanningTree],
    budget: Budget,
) -> Fewest:
    """Fewest trees with whole weights of sum `total`, the strength of a network of duplex links.

    `known`, `budget`: as in `fewest_broadcast_trees`. Trees are rooted at their centres.
    """
    links = DuplexLinks.of(graph)
    widest = _widest_tree(links)
    bound, reason = -(-total // widest), "no tree can be wider"

    def attempt(count: int) -> tuple[tuple[SpanningTree, ...] | None, bool]:
        if count > _MOST_TREES or links.num_nodes > _MOST_NODES:
            return None, False
        vectors = weight_vectors(total, count, widest)
        return _first_trees(graph, links, total, vectors, budget)

    counts = range(bound, total + 1)
    return search_counts(tuple(known), bound, reason, attempt, counts, budget)


def _first_trees(
    graph: CapacityGraph,
    links: DuplexLinks,
    total: int,
    vectors: Iterator[tuple[int, ...]],
    budget: Budget,
) -> tuple[tuple[SpanningTree, ...] | None, bool]:
    """Trees of one of the weight vectors, or None and whether there are none for sure."""
    problems = tuple(_problems(graph, np.arange(len(links.low)), total))

    def search_of(weights: Sequence[int]) -> _JointSearch | None:
        """The joint search for trees of these weights, None where a problem rules them out."""
        return _joint_search(problems, weights)

    found, is_proved = first_found(vectors, search_of, budget)
    if found is None:
        return None, is_proved
    return tuple(_tree(graph, links, chosen, weight) for chosen, weight in found), is_proved


def _tree(
    graph: CapacityGraph,
    links: DuplexLinks,
    chosen: Int64Array,
    weight: int,
) -> SpanningTree:
    """The tree of these links, rooted at its centre."""
    parent = np.full(graph.num_nodes, -1, np.int64)
    arc = np.full(graph.num_nodes, -1, np.int64)
    arcs = np.concatenate([links.up[chosen], links.down[chosen]])
    waiting = [0]
    # The list grows while it is read: breadth first from node 0.
    for node in waiting:
        for out in arcs[graph.source[arcs] == node].tolist():
            head = int(graph.destination[out])
            if head not in waiting:
                parent[head], arc[head] = node, out
                waiting.append(head)
    opposite = links.opposite(graph.num_arcs)
    tree = SpanningTree(0, weight, parent, arc)
    return tree.rerooted(tree.centre(opposite), opposite)


def _widest_tree(links: DuplexLinks) -> int:
    """The largest capacity at which the links that have it still join all nodes."""
    part = np.arange(links.num_nodes)
    for link in np.argsort(-links.capacity, kind="stable"):
        kept, gone = part[links.low[link]], part[links.high[link]]
        part[part == gone] = kept
        if np.all(part == part[0]):
            return int(links.capacity[link])
    return 1


def _problems(
    graph: CapacityGraph,
    numbers: Int64Array,
    total: int,
) -> Iterator[_SpanningProblem]:
    """The quotient by a tight partition, and its blocks in the same way.

    The network as it is where nothing is tight. `numbers`: those of its links in the whole.
    """
    links = DuplexLinks.of(graph)
    found = strength(graph)
    # Below the strength links may have room left, and nothing can be told apart.
    if found.value != total:
        columns = links.low, links.high, links.capacity
        yield _SpanningProblem(graph.num_nodes, *columns, numbers, False)
        return
    block_of = np.empty(graph.num_nodes, np.int64)
    for number, block in enumerate(found.blocks):
        block_of[list(block)] = number
    low, high = block_of[links.low], block_of[links.high]
    across = np.flatnonzero(low != high)
    columns = low[across], high[across], links.capacity[across]
    yield _SpanningProblem(len(found.blocks), *columns, numbers[across], True)
    for number, block in enumerate(found.blocks):
        if len(block) > 1:
            inner = np.flatnonzero((low == number) & (high == number))
            yield from _problems(induced(graph, sorted(block)), numbers[inner], total)


def _joint_search(
    problems: Sequence[_SpanningProblem],
    weights: Sequence[int],
) -> _JointSearch | None:
    """A search for all problems at once; None where one of them rules the weights out."""
    searches = [_link_search(problem, weights) for problem in problems]
    found = [search for search in searches if search is not None]
    if len(found) < len(problems):
        return None
    return _JointSearch(tuple(weights), found, [])


def _link_search(problem: _SpanningProblem, weights: Sequence[int]) -> _LinkSearch | None:
    """The search before its first step; None where a link cannot be shared as it must be."""
    # Links among the first nodes first: trees then close cycles early.
    nearer = np.minimum(problem.first, problem.second)
    farther = np.maximum(problem.first, problem.second)
    order = np.lexsort((nearer, farther))
    capacities = problem.capacity[order].tolist()
    # Links of a network have few capacities, and there are thousands of weight vectors.
    family_of = {
        capacity: _sharers(capacity, weights, problem.is_full) for capacity in set(capacities)
    }
    families = [family_of[capacity] for capacity in capacities]
    # A link that no set of trees fills, or fits on.
    if not all(families):
        return None
    depth = len(order) + 1
    parts = np.zeros((depth, len(weights), problem.num_nodes), np.int8)
    parts[0] = np.arange(problem.num_nodes)
    twins = np.zeros(depth, np.int64)
    twins[0] = twin_bits(weights)
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


def _sharers(capacity: int, weights: Sequence[int], is_full: bool) -> list[int]:
    """Sets of trees, one bit each, that fit on a link, or fill it; the fullest first."""
    load = [0]
    for weight in weights:
        load += [other + weight for other in load]
    # Set m has the load `load[m]`.
    least = capacity if is_full else 0
    fitting = [mask for mask in range(len(load)) if least <= load[mask] <= capacity]
    return sorted(fitting, key=lambda mask: (-load[mask], mask))


@dataclass(slots=True, eq=False)
class _LinkSearch:
    """The state of one search: which trees use which links of one problem.

    The columns are those of `search_undirected`; `link`: numbers of the links in the whole.
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

    def go_on(self, steps: int) -> int:
        """FOUND, EXHAUSTED or STOPPED after at most `steps` steps."""
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

    def links_of(self, tree: int) -> Int64Array:
        """Numbers of the links that a tree uses."""
        # The set of trees that was taken for every link.
        chosen = self.masks[self.indptr[:-1] + self.choice[: len(self.link)]]
        is_used = chosen >> tree & 1 == 1
        numbers: Int64Array = self.link[is_used]
        return numbers


@dataclass(slots=True, eq=False)
class _JointSearch:
    """Searches of all problems for one weight vector; all must find something."""

    weights: tuple[int, ...]
    waiting: list[_LinkSearch]
    done: list[_LinkSearch]

    def go_on(self, steps: int) -> int:
        """FOUND once all have found something, EXHAUSTED as soon as one cannot, else STOPPED."""
        outcomes = [search.go_on(steps) for search in self.waiting]
        # The problems share nothing but the weights, so that one without solution is enough.
        if EXHAUSTED in outcomes:
            return EXHAUSTED
        searches, self.waiting = self.waiting, []
        for search, outcome in zip(searches, outcomes, strict=True):
            kept = self.done if outcome == FOUND else self.waiting
            kept.append(search)
        return min(outcomes) if self.waiting else FOUND

    def result(self) -> list[tuple[Int64Array, int]]:
        """Per tree, its links and its weight."""
        found = []
        for tree, weight in enumerate(self.weights):
            links = [search.links_of(tree) for search in self.done]
            found.append((np.concatenate(links), weight))
        return found
