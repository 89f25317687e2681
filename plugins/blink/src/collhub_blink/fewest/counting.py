"""What a search for the fewest trees answers: the trees, a lower bound, and how that is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from collhub_packing import SpanningTree

from collhub_blink.fewest.weights import Budget


@dataclass(frozen=True, slots=True)
class Fewest:
    """A packing of few trees.

    No packing of less than `lower_bound` trees exists; `reason`: how that is known. `trees`:
    empty where none was found.
    """

    trees: tuple[SpanningTree, ...]
    lower_bound: int
    reason: str

    @property
    def is_proved(self) -> bool:
        """Whether no packing of fewer trees exists."""
        return len(self.trees) == self.lower_bound

    @property
    def status(self) -> str:
        """`optimal`, or `feasible` where fewer trees may do."""
        return "optimal" if self.is_proved else "feasible"


def search_counts(
    known: tuple[SpanningTree, ...],
    bound: int,
    reason: str,
    attempt: Callable[[int], tuple[tuple[SpanningTree, ...] | None, bool]],
    counts: Iterable[int],
    budget: Budget,
) -> Fewest:
    """Try numbers of trees upwards from `bound` until one is found, or the known trees stand.

    `attempt(count)`: the trees, or None and whether there are none for sure. Without proof the
    search gives up, since a larger number would not be the least. Ctrl-C is giving up; without
    known trees it is raised again.
    """
    try:
        for count in counts:
            # All lesser numbers are ruled out: the known trees are the fewest.
            if known and count >= len(known):
                break
            found, is_proved = attempt(count)
            if found is not None:
                return Fewest(found, bound, reason)
            if not is_proved:
                break
            bound = count + 1
            reason = f"no packing of {count} trees, by exhaustive search"
    except KeyboardInterrupt:
        if not known:
            raise
        budget.is_interrupted = True
    return Fewest(known, bound, reason)
