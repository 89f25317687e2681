"""Weights that the trees of a packing may have, and searches over all of them in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeVar

from collhub_blink.fewest.directed_search import EXHAUSTED, FOUND

Found = TypeVar("Found", covariant=True)

# Searches take turns: short ones first, so that easy weights are settled before hard ones begin.
_FIRST_SLICE = 4096
# About half a second, after which Ctrl-C is heard.
_LONGEST_SLICE = 1 << 19
_MOST_VECTORS = 4096


class ResumableSearch(Protocol[Found]):
    """A search that goes on where it stopped."""

    def go_on(self, steps: int) -> int:
        """FOUND, EXHAUSTED or STOPPED after at most `steps` steps."""
        ...

    def result(self) -> Found:
        """What was found."""
        ...


@dataclass(slots=True)
class Budget:
    """Search steps that are left for proofs. `is_interrupted`: Ctrl-C or a limit ended the search.

    Steps, not seconds: the same request then has the same outcome on any machine. `spend(steps)`
    counts them for the whole synthesis, and may raise.
    """

    steps: int
    spend: Callable[[int], None] = field(default=lambda steps: None, compare=False)
    is_interrupted: bool = False

    def take(self, wanted: int) -> int:
        """At most `wanted` of what is left."""
        taken = min(wanted, self.steps)
        self.steps -= taken
        self.spend(taken)
        return taken


def weight_vectors(total: int, count: int, most: int) -> Iterator[tuple[int, ...]]:
    """Ways to write `total` as `count` whole numbers from `most` down to 1, largest first."""
    if count == 1:
        if 1 <= total <= most:
            yield (total,)
        return
    # The largest is at least the mean, and leaves 1 for each of the others.
    least_largest = -(-total // count)
    most_largest = min(most, total - count + 1)
    for largest in range(most_largest, least_largest - 1, -1):
        for others in weight_vectors(total - largest, count - 1, largest):
            yield (largest, *others)


def first_found(
    vectors: Iterator[tuple[int, ...]],
    search_of: Callable[[Sequence[int]], ResumableSearch[Found] | None],
    budget: Budget,
) -> tuple[Found | None, bool]:
    """What a search finds for any of the weight vectors, or None and whether that is proved.

    Searches take turns in slices that grow, as one vector may hold the search for long while
    another is easy. `search_of` is None for weights that no packing can have, and raises
    `OverflowError` where a search would be too large.
    """
    chosen = list(islice(vectors, _MOST_VECTORS + 1))
    try:
        waiting = _searches(chosen[:_MOST_VECTORS], search_of)
    except OverflowError:
        return None, False
    slice_steps = _FIRST_SLICE
    while waiting:
        unfinished = []
        for search in waiting:
            steps = budget.take(slice_steps)
            # The budget is spent: nothing is found and nothing proved.
            if not steps:
                return None, False
            outcome = search.go_on(steps)
            if outcome == FOUND:
                return search.result(), True
            if outcome != EXHAUSTED:
                unfinished.append(search)
        # What has taken long so far is likely to: ever longer slices cost few calls.
        waiting = unfinished
        slice_steps = min(4 * slice_steps, _LONGEST_SLICE)
    # Weights that were left out might have had a packing.
    return None, len(chosen) <= _MOST_VECTORS


def _searches(
    vectors: Sequence[tuple[int, ...]],
    search_of: Callable[[Sequence[int]], ResumableSearch[Found] | None],
) -> list[ResumableSearch[Found]]:
    """A search for every weight vector that a packing can have."""
    searches = [search_of(weights) for weights in vectors]
    return [search for search in searches if search is not None]


def twin_bits(weights: Sequence[int]) -> int:
    """Bit t for every tree t that has the weight of tree t - 1: interchangeable at first."""
    bits = 0
    for tree in range(1, len(weights)):
        if weights[tree] == weights[tree - 1]:
            bits |= 1 << tree
    return bits
