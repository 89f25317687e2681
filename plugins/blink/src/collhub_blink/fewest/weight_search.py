"""Search for the fewest trees: try increasing numbers of trees, and for each all weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeVar

from collhub_packing import SpanningTree

from collhub_blink.fewest.search_kernels import EXHAUSTED, FOUND

Found = TypeVar("Found", covariant=True)

# Searches run round robin, in short slices first, so that easy weights are decided before hard ones
# take long.
_FIRST_SLICE_STEPS = 4096
# About half a second, the time until Ctrl-C takes effect.
_MAX_SLICE_STEPS = 1 << 19
_MAX_VECTORS = 4096


class ResumableSearch(Protocol[Found]):
    """A search that can stop and resume."""

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
    """Yield the descending sequences of `count` positive integers up to `maximum` with sum `total`.

    In lexicographically decreasing order.
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
    """Search all weight vectors and return (solution of the first success, True).

    Without a solution: None, and whether that is proved. The searches run round robin in growing
    slices, since one vector may take long while another is easy. `build_search(weights)` returns
    None for weights that no packing can have, and raises `OverflowError` if a search would be too
    large: then (None, False). Nothing is proved if the budget runs out or there are more than 4096
    vectors.
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
    """Compute the bits t for which tree t has the weight of tree t - 1.

    Such trees are interchangeable.
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
        """Whether no packing with fewer trees exists."""
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
    """Try numbers of trees upwards from `bound` until a packing is found.

    `attempt(count)` returns the trees, or None and whether that number is proved to be impossible.
    The search stops with the `known` trees if an attempt ends without proof (a larger number would
    not be minimal), if `count` reaches their number, and on Ctrl-C (then `budget.is_interrupted` is
    set). Without known trees Ctrl-C is raised again, and the result may have no trees.
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
