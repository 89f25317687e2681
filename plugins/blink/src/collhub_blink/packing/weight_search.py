"""Search for the fewest trees: try increasing numbers of trees, and for each all weights.

Also the kernels of the exhaustive searches for given weights. Both are depth-first searches with
backtracking, without recursion, that can stop and resume. They are longer than other functions for
this reason. A result FOUND is a packing, EXHAUSTED a proof that there is none.

`search_directed` chooses parents in all trees of given weights, so that every tree reaches all
nodes. At a node, one pattern after the other is tried: its parents in all trees at once, such that
the in-arcs have room for the weights. A branch is left as soon as a tree, in which undecided nodes
may still have any parent, cannot reach all nodes within the depth. Trees of equal weight whose
parents are equal so far are interchangeable; of two such twins the first takes the smaller parent,
which leaves one of every set of packings that differ only in names. Invariant: below `level` every
single tree can be completed; all patterns before the chosen one are exhausted. Cost: exponential in
the nodes at worst; one breadth-first search per tree and step.

`search_undirected` chooses for every link the trees that use it, so that each tree spans without a
cycle. At a link, one set of trees that may share it is tried after the other. A branch is left as
soon as a link joins two nodes of a tree that are already joined, or the remaining links cannot join
all components of a tree. Trees of equal weight that use the same links so far are interchangeable;
of two such twins the first takes a link first. Invariant: `parts[level]` are the components of
every tree after the links below `level` are decided; all sets before the chosen one are exhausted.
Cost: exponential in the links at worst; a step takes at most links times nodes for each tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from collhub_packing import SpanningTree
from collhub_packing.compiling import kernel, part

from hub_core.columns import Int64Array

Found = TypeVar("Found", covariant=True)

# Searches run round robin, in short slices first, so that easy weights are decided before hard ones
# take long.
_FIRST_SLICE_STEPS = 4096
# About half a second, the time until Ctrl-C takes effect.
_MAX_SLICE_STEPS = 1 << 19
_MAX_VECTORS = 4096


class ResumableSearch(Protocol[Found]):
    """A search that stops after a number of steps and resumes where it stopped."""

    def resume(self, steps: int) -> int:
        """Run at most `steps` steps; return FOUND, EXHAUSTED or STOPPED."""
        ...

    def result(self) -> Found:
        """The solution, after `resume` has returned FOUND."""
        ...


@dataclass(slots=True)
class Budget:
    """Remaining search steps for proofs. `is_interrupted`: Ctrl-C or a limit ended the search.

    Steps, not seconds, so that a request has the same result on any machine. `spend(steps)` counts
    the steps for the entire synthesis and may raise an exception.
    """

    steps: int
    spend: Callable[[int], None] = field(default=lambda steps: None, compare=False)
    is_interrupted: bool = False

    def take(self, requested: int) -> int:
        """Take up to `requested` of the remaining steps and report them to `spend`.

        Return the number of steps taken.
        """
        taken = min(requested, self.steps)
        self.steps -= taken
        self.spend(taken)
        return taken


def generate_weight_vectors(total: int, count: int, maximum: int) -> Iterator[tuple[int, ...]]:
    """Yield the non-increasing sequences of `count` integers from 1 to `maximum` with sum `total`.

    They are in lexicographically decreasing order; integers may repeat. Nothing is yielded if there
    are none. `count` must be at least 1.
    """
    if count == 1:
        if 1 <= total <= maximum:
            yield (total,)
        return
    # The largest is at least the mean, and leaves 1 for each remaining one.
    minimum_largest = -(-total // count)
    maximum_largest = min(maximum, total - count + 1)
    for largest in range(maximum_largest, minimum_largest - 1, -1):
        for remaining in generate_weight_vectors(total - largest, count - 1, largest):
            yield (largest, *remaining)


def run_searches(
    vectors: Iterator[tuple[int, ...]],
    build_search: Callable[[Sequence[int]], ResumableSearch[Found] | None],
    budget: Budget,
) -> tuple[Found | None, bool]:
    """Search for a packing with one of several weight vectors; return (solution, is proved).

    At most the first `_MAX_VECTORS` vectors are searched, each by its own search
    `build_search(weights)`. It is None for weights that no packing can have. The searches take
    turns in the order of the vectors, in slices of steps that grow in every round, because one
    vector may take long while another is easy. The result is:

    - (solution, True) for the first solution.
    - (None, True) without vectors, and if all searches end without a solution.
    - (None, False) if the budget is used up before, or if there are more vectors. Also, and then
      nothing is searched, if `build_search` raises `OverflowError`: a search would be too large.
    """
    chosen = list(islice(vectors, _MAX_VECTORS + 1))
    try:
        searches = [build_search(weights) for weights in chosen[:_MAX_VECTORS]]
    except OverflowError:
        return None, False
    waiting = [search for search in searches if search is not None]
    slice_steps = _FIRST_SLICE_STEPS
    while waiting:
        unfinished = []
        for search in waiting:
            steps = budget.take(slice_steps)
            if not steps:
                return None, False
            outcome = search.resume(steps)
            if outcome == FOUND:
                return search.result(), True
            if outcome != EXHAUSTED:
                unfinished.append(search)
        # A long search is likely to take much longer: growing slices cost few calls.
        waiting = unfinished
        slice_steps = min(4 * slice_steps, _MAX_SLICE_STEPS)
    # Vectors beyond the limit might have a packing.
    return None, len(chosen) <= _MAX_VECTORS


def compute_twin_bits(weights: Sequence[int]) -> int:
    """Return an integer whose bit t is set if tree t has the weight of tree t - 1.

    Such trees are interchangeable. Bit 0 is never set.
    """
    bits = 0
    for tree in range(1, len(weights)):
        if weights[tree] == weights[tree - 1]:
            bits |= 1 << tree
    return bits


@dataclass(frozen=True, slots=True)
class TreeSearchResult:
    """The fewest trees that a search found, with a lower bound of their number.

    No packing with fewer than `lower_bound` trees exists; `reason`: the proof in words. `trees` is
    empty if no packing was found.
    """

    trees: tuple[SpanningTree, ...]
    lower_bound: int
    reason: str

    @property
    def is_proved(self) -> bool:
        """Whether the number of trees equals the lower bound, so that no packing has fewer."""
        return len(self.trees) == self.lower_bound

    @property
    def status(self) -> str:
        """`optimal` if the number of trees is proved to be minimal, else `feasible`."""
        return "optimal" if self.is_proved else "feasible"


def search_counts(
    known: tuple[SpanningTree, ...],
    bound: int,
    reason: str,
    attempt: Callable[[int], tuple[tuple[SpanningTree, ...] | None, bool]],
    counts: Iterable[int],
    budget: Budget,
) -> TreeSearchResult:
    """Find a packing with few trees: try the numbers of trees in `counts` until one works.

    `counts` ascend. `attempt(count)` returns (trees, is_proved). Trees are None if the attempt has
    no packing; `is_proved` then says whether this number is proved to be impossible. The first
    attempt with trees gives the result. In these cases the result has the trees `known` (perhaps
    none):

    - An attempt has no trees, and nothing is proved.
    - There are known trees, and a count is not below their number.
    - `counts` is exhausted.
    - Ctrl-C, which sets `budget.is_interrupted`. Without known trees, `KeyboardInterrupt` is
      raised.

    The result also has a lower bound of the number of trees, with its reason: at first `bound` and
    `reason`. Each proof raises it to count + 1, with the exhaustive search as reason.
    """
    try:
        for count in counts:
            # All smaller numbers are ruled out: the known trees are minimal.
            if known and count >= len(known):
                break
            trees, is_proved = attempt(count)
            if trees is not None:
                return TreeSearchResult(trees, bound, reason)
            if not is_proved:
                break
            bound = count + 1
            reason = f"no packing of {count} trees, by exhaustive search"
    except KeyboardInterrupt:
        if not known:
            raise
        budget.is_interrupted = True
    return TreeSearchResult(known, bound, reason)


STOPPED, FOUND, EXHAUSTED = 0, 1, 2


@part
def _reaches_all(
    parent: Int64Array,
    first: Int64Array,
    head: Int64Array,
    root: int,
    max_depth: int,
    queue: Int64Array,
    depth: Int64Array,
) -> bool:
    """Return whether every node can be at most `max_depth` arcs from the root, given some parents.

    A node whose parent is decided (`parent[v] >= 0`) can be reached only from it, all other nodes
    over any arc. `head[first[v]:first[v + 1]]`: ends of the arcs of node v. `queue` and `depth` are
    work arrays with one entry per node.
    """
    depth[:] = -1
    depth[root] = 0
    queue[0] = root
    begin, end = 0, 1
    while begin < end:
        node = queue[begin]
        begin += 1
        # All later nodes of the queue are at least as deep.
        if depth[node] == max_depth:
            break
        for arc in range(first[node], first[node + 1]):
            child = head[arc]
            if depth[child] < 0 and (parent[child] < 0 or parent[child] == node):
                depth[child] = depth[node] + 1
                queue[end] = child
                end += 1
    return end == len(parent)


@kernel
def search_directed(
    first: Int64Array,
    head: Int64Array,
    order: Int64Array,
    indptr: Int64Array,
    patterns: Int64Array,
    root: int,
    max_depth: int,
    parents: Int64Array,
    twins: Int64Array,
    choice: Int64Array,
    state: Int64Array,
    steps: int,
) -> int:
    """Search for the parents of all nodes in several trees, for at most `steps` steps.

    Returns FOUND if every tree spans all nodes within `max_depth` levels, EXHAUSTED if there are no
    such trees, and STOPPED if the steps are used up; the next call continues.

    `head[first[v]:first[v + 1]]` are the ends of the arcs of node v. `order`: all nodes except the
    root. `patterns[indptr[i]:indptr[i + 1]]`: allowed parents of `order[i]`, one column per tree.

    The state is modified in place: `parents[tree, node]` (-1 if undecided, at first all),
    `choice[level]` (next pattern, at first 0), `state[0]` (level, at first 0) and `twins[level]`.
    Bit t of `twins[level]` means that trees t and t - 1 have equal weights, and equal parents at
    all levels below. All arrays are int64.
    """
    trees = parents.shape[0]
    queue = np.empty(parents.shape[1], np.int64)
    depth = np.empty(parents.shape[1], np.int64)
    level = state[0]
    for _ in range(steps):
        if level == len(order):
            state[0] = level
            return FOUND
        node = order[level]
        if indptr[level] + choice[level] == indptr[level + 1]:
            # All patterns of this node are exhausted: next pattern of the previous node.
            choice[level] = 0
            parents[:, node] = -1
            level -= 1
            if level < 0:
                return EXHAUSTED
            choice[level] += 1
            continue
        row = indptr[level] + choice[level]
        fits = True
        active_twins = twins[level]
        for tree in range(trees):
            parents[tree, node] = patterns[row, tree]
            # The twins differ from here on.
            if active_twins >> tree & 1 and patterns[row, tree] != patterns[row, tree - 1]:
                active_twins ^= 1 << tree
                fits = fits and patterns[row, tree] > patterns[row, tree - 1]
        for tree in range(trees):
            fits = fits and _reaches_all(parents[tree], first, head, root, max_depth, queue, depth)
        if fits:
            twins[level + 1] = active_twins
            level += 1
        else:
            parents[:, node] = -1
            choice[level] += 1
    state[0] = level
    return STOPPED


Int8Array = npt.NDArray[np.int8]


@part
def _join_components(part_of: Int8Array, first_node: int, second_node: int) -> bool:
    """Join the components of two nodes in place; return False if they already are in the same one.

    `part_of`: component of every node. The component of `second_node` gets the label of that of
    `first_node`. For few nodes this is faster than a union-find forest, and labels can be copied.
    """
    label, old_label = part_of[first_node], part_of[second_node]
    if label == old_label:
        return False
    for node in range(len(part_of)):
        if part_of[node] == old_label:
            part_of[node] = label
    return True


@part
def _can_span(
    part_of: Int8Array,
    scratch: Int8Array,
    first: Int64Array,
    second: Int64Array,
    level: int,
) -> bool:
    """Return whether the links from number `level` on can connect all nodes of a tree.

    `part_of`: component of every node after the earlier links. `first`, `second`: ends of every
    link. Overwrites `scratch`.
    """
    scratch[:] = part_of
    for link in range(level, len(first)):
        _join_components(scratch, first[link], second[link])
    return bool(np.all(scratch == scratch[0]))


@kernel
def search_undirected(
    first: Int64Array,
    second: Int64Array,
    indptr: Int64Array,
    masks: Int64Array,
    parts: Int8Array,
    scratch: Int8Array,
    twins: Int64Array,
    choice: Int64Array,
    state: Int64Array,
    steps: int,
) -> int:
    """Search for sets of trees on all links such that each tree spans all nodes, for `steps` steps.

    Returns FOUND, EXHAUSTED (there are none) or STOPPED (the steps are used up; the next call
    continues). `first`, `second`: ends of every link. `masks[indptr[i]:indptr[i + 1]]`: sets of
    trees that may share link i, one bit per tree.

    The state is modified in place. `parts[level, tree, node]`: component of a node in a tree after
    the links below `level` are decided; at first `parts[0]` contains the numbers of the nodes.
    `choice[level]` (next set) and `state[0]` (level): at first 0. `twins[level]`: bit t means that
    trees t and t - 1 have equal weights, and equal links below `level`. `scratch`: one entry per
    node. All arrays are int64, except `parts` and `scratch` (int8).
    """
    trees = parts.shape[1]
    links = len(first)
    level = state[0]
    for _ in range(steps):
        if level == links:
            state[0] = level
            return FOUND
        if indptr[level] + choice[level] == indptr[level + 1]:
            # All sets of this link are exhausted: next set of the previous link.
            choice[level] = 0
            level -= 1
            if level < 0:
                return EXHAUSTED
            choice[level] += 1
            continue
        mask = masks[indptr[level] + choice[level]]
        parts[level + 1] = parts[level]
        # The second of two twins does not take a link without the first.
        fits = mask & twins[level] & ~(mask << 1) == 0
        for tree in range(trees):
            if not fits:
                break
            if mask >> tree & 1:
                fits = _join_components(parts[level + 1, tree], first[level], second[level])
            elif parts[level, tree, first[level]] != parts[level, tree, second[level]]:
                # Only a link that would have joined two components can be missed.
                fits = _can_span(parts[level, tree], scratch, first, second, level + 1)
        if fits:
            # Twins differ from here on if only one of them takes the link.
            twins[level + 1] = twins[level] & ~(mask ^ (mask << 1))
            level += 1
        else:
            choice[level] += 1
    state[0] = level
    return STOPPED
