"""Fewest undirected trees that carry an all-reduce at the optimal rate, split along tight partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from collhub_packing import CapacityGraph, DuplexLinks, SpanningTree, strength

from collhub_blink.fewest.counting import Fewest, search_counts
from collhub_blink.fewest.directed_search import EXHAUSTED, FOUND
from collhub_blink.fewest.undirected_search import search_undirected
from collhub_blink.fewest.weights import Budget, first_found, weight_vectors
from collhub_blink.packing.rank_network import induced

Int64Array = npt.NDArray[np.int64]

_MOST_TREES = 12
_MOST_NODES = 127


@dataclass(frozen=True, slots=True, eq=False)
class _SpanningProblem:
    """A network that every tree must span by links of its own: `link` says which links of the whole they are.

    `is_full`: the trees fill every link to its capacity, as across a tight partition.
    """

    num_nodes: int
    first: Int64Array
    second: Int64Array
    capacity: Int64Array
    link: Int64Array
    is_full: bool


def fewest_all_reduce_trees(
    graph: CapacityGraph, total: int, known: Sequence[SpanningTree], budget: Budget
) -> Fewest:
    """Fewest trees with whole weights of sum `total`, the strength of a network of duplex links.

    Across a tight partition every tree has just as many links as it needs and all links are full, so the quotient and
    the blocks are problems of their own with the same weights. `known`, `budget`: as in `fewest_broadcast_trees`.
    Trees are rooted at their centres.
    """
    links = DuplexLinks.of(graph)
    widest = _widest_tree(links)
    bound, reason = -(-total // widest), "no tree can be wider"

    def attempt(count: int) -> tuple[tuple[SpanningTree, ...] | None, bool]:
        if count > _MOST_TREES or links.num_nodes > _MOST_NODES:
            return None, False
        parts = tuple(_parts(graph, np.arange(len(links.low)), total))
        found, is_proved = first_found(
            weight_vectors(total, count, widest), partial(_search, parts), budget
        )
        return None if found is None else tuple(
            _tree(graph, links, *chosen) for chosen in found
        ), is_proved

    return search_counts(tuple(known), bound, reason, attempt, range(bound, total + 1), budget)


def _tree(
    graph: CapacityGraph, links: DuplexLinks, chosen: Int64Array, weight: int
) -> SpanningTree:
    """The tree of these links, rooted at its centre."""
    parent, arc = np.full(graph.num_nodes, -1, np.int64), np.full(graph.num_nodes, -1, np.int64)
    waiting = [0]
    arcs = np.concatenate([links.up[chosen], links.down[chosen]])
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
        part[part == part[links.high[link]]] = part[links.low[link]]
        if np.all(part == part[0]):
            return int(links.capacity[link])
    return 1


def _parts(graph: CapacityGraph, numbers: Int64Array, total: int) -> Iterator[_SpanningProblem]:
    """The quotient by a tight partition, and its blocks in the same way; the network as it is where nothing is tight."""
    links = DuplexLinks.of(graph)
    found = strength(graph)
    if found.value != total:
        yield _SpanningProblem(
            graph.num_nodes, links.low, links.high, links.capacity, numbers, False
        )
        return
    block_of = np.empty(graph.num_nodes, np.int64)
    for number, block in enumerate(found.blocks):
        block_of[list(block)] = number
    low, high = block_of[links.low], block_of[links.high]
    across = np.flatnonzero(low != high)
    yield _SpanningProblem(
        len(found.blocks), low[across], high[across], links.capacity[across], numbers[across], True
    )
    for number, block in enumerate(found.blocks):
        if len(block) > 1:
            inner = np.flatnonzero((low == number) & (high == number))
            yield from _parts(induced(graph, sorted(block)), numbers[inner], total)


def _search(parts: Sequence[_SpanningProblem], weights: Sequence[int]) -> _JointSearch | None:
    searches = [_part_search(part, weights) for part in parts]
    found = [search for search in searches if search is not None]
    return _JointSearch(tuple(weights), found) if len(found) == len(parts) else None


def _part_search(part: _SpanningProblem, weights: Sequence[int]) -> _LinkSearch | None:
    # Links among the first nodes first: trees then close cycles early.
    order = np.lexsort((np.minimum(part.first, part.second), np.maximum(part.first, part.second)))
    families = [_sharers(int(part.capacity[link]), weights, part.is_full) for link in order]
    if not all(families):
        return None
    depth = len(order) + 1
    parts = np.zeros((depth, len(weights), part.num_nodes), np.int8)
    parts[0] = np.arange(part.num_nodes)
    twins = np.zeros(depth, np.int64)
    twins[0] = sum(
        1 << tree for tree in range(1, len(weights)) if weights[tree] == weights[tree - 1]
    )
    return _LinkSearch(
        part.link[order],
        part.first[order],
        part.second[order],
        np.cumsum([0, *map(len, families)]),
        np.asarray([mask for family in families for mask in family], np.int64),
        parts,
        twins,
        np.zeros(depth, np.int64),
        np.zeros(1, np.int64),
    )


def _sharers(capacity: int, weights: Sequence[int], is_full: bool) -> list[int]:
    """Sets of trees, one bit each, that fit on a link, or fill it; the fullest first."""
    load = [0]
    for weight in weights:
        load += [other + weight for other in load]
    fitting = [
        mask
        for mask in range(len(load))
        if (load[mask] == capacity if is_full else load[mask] <= capacity)
    ]
    return sorted(fitting, key=lambda mask: (-load[mask], mask))


@dataclass(slots=True, eq=False)
class _LinkSearch:
    """The state of one search: which trees use which links of one part."""

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
        scratch = np.zeros(self.parts.shape[2], np.int8)
        state = (self.parts, scratch, self.twins, self.choice, self.level)
        return int(
            search_undirected(self.first, self.second, self.indptr, self.masks, *state, steps)
        )

    def links_of(self, tree: int) -> Int64Array:
        chosen = self.masks[self.indptr[:-1] + self.choice[: len(self.link)]]
        numbers: Int64Array = self.link[chosen >> tree & 1 == 1]
        return numbers


@dataclass(slots=True, eq=False)
class _JointSearch:
    """Searches of all parts for one weight vector; all must find something."""

    weights: tuple[int, ...]
    waiting: list[_LinkSearch]
    done: list[_LinkSearch]

    def __init__(self, weights: tuple[int, ...], searches: list[_LinkSearch]) -> None:
        self.weights, self.waiting, self.done = weights, searches, []

    def go_on(self, steps: int) -> int:
        outcomes = [search.go_on(steps) for search in self.waiting]
        if EXHAUSTED in outcomes:
            return EXHAUSTED
        self.done += [
            search
            for search, outcome in zip(self.waiting, outcomes, strict=True)
            if outcome == FOUND
        ]
        self.waiting = [
            search
            for search, outcome in zip(self.waiting, outcomes, strict=True)
            if outcome != FOUND
        ]
        return min(outcomes) if self.waiting else FOUND

    def result(self) -> list[tuple[Int64Array, int]]:
        """Per tree, its links and its weight."""
        return [
            (np.concatenate([search.links_of(tree) for search in self.done]), weight)
            for tree, weight in enumerate(self.weights)
        ]
