"""How a long search says how far it is; what the receiver raises ends the search."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

Progress = Callable[[float, str], None]
"""`progress(fraction, what)`: the fraction 0..1 that is done, and of what."""

FractionReport = Callable[[float], None]
"""`report(fraction)`: the fraction 0..1 that is done."""


AfterTrial = Callable[[], None]
"""Called when a seed was tried, to count its work; it may raise."""


def uncounted() -> None:
    """Count nothing."""


def silent(fraction: float, what: str) -> None:
    """Report to nobody."""


def unreported(fraction: float) -> None:
    """Report no fraction to anybody."""


def part_of(progress: Progress, place: int, places: int) -> Progress:
    """Report of part `place` of `places` equal parts of a work."""

    def report(fraction: float, what: str) -> None:
        """Report a fraction of the part, 0..1, as a fraction of the whole."""
        progress((place + fraction) / places, what)

    return report


def unnamed(report: FractionReport) -> Progress:
    """Report whatever is done by its fraction alone."""
    return lambda fraction, what: report(fraction)


def named(progress: Progress, what: str) -> FractionReport:
    """Report of fractions alone, all of them of `what`."""

    def report(fraction: float) -> None:
        progress(fraction, what)

    return report


T = TypeVar("T")

_PERIOD_S = 0.2


@dataclass(frozen=True, slots=True)
class Best(Generic[T]):
    """Result of least cost, its seed, and how many seeds were tried until the goal.

    `is_interrupted`: whether Ctrl-C cut the search.
    """

    result: T
    seed: int
    tried: int
    is_interrupted: bool = False


def best_of_seeds(
    attempt: Callable[[int, FractionReport], T],
    cost: Callable[[T], int],
    seeds: Sequence[int],
    *,
    goal: int,
    threads: int,
    progress: FractionReport,
    after_trial: AfterTrial = uncounted,
) -> Best[T]:
    """Result of least cost, of equal ones the first; a cost of at most `goal` ends the search.

    `attempt(seed, report)` calls `report(fraction)` now and then, which raises where the result is
    no longer needed. The first seed is tried alone, because it is often enough, then `threads`
    seeds at once. `after_trial()` is called for every seed that counts, in their order. Ctrl-C or a
    limit, raised anywhere, ends the search; without a result it is raised again. What else an
    attempt raises is raised.
    """
    search = _SeedSearch(attempt, cost, goal, progress, len(seeds), after_trial)
    return search.over(seeds, threads)


class _AbandonedError(Exception):
    """The search has ended; what still runs is not needed."""


class _SeedSearch(Generic[T]):
    """Attempts so far: the best, and how far each is."""

    def __init__(
        self,
        attempt: Callable[[int, FractionReport], T],
        cost: Callable[[T], int],
        goal: int,
        progress: FractionReport,
        total: int,
        after_trial: AfterTrial,
    ) -> None:
        self._attempt = attempt
        self._cost = cost
        self._goal = goal
        self._progress = progress
        self._total = total
        self._after_trial = after_trial
        self._best: tuple[T, int] | None = None
        self._tried = 0
        self._fractions: dict[int, float] = {}
        self._is_over = threading.Event()

    def over(self, seeds: Sequence[int], threads: int) -> Best[T]:
        is_interrupted = False
        try:
            for wave in _waves(seeds, threads):
                if self._reaches_goal(wave):
                    break
        except KeyboardInterrupt:
            if self._best is None:
                raise
            is_interrupted = True
        assert self._best is not None
        result, seed = self._best
        return Best(result, seed, self._tried, is_interrupted)

    def _reaches_goal(self, wave: Sequence[int]) -> bool:
        """Try some seeds at once.

        Later results of a wave do not count once the goal is reached: how many there are is a
        matter of threads.
        """
        results = self._results(wave)
        return any(self._keep(result, seed) for seed, result in zip(wave, results, strict=True))

    def _results(self, wave: Sequence[int]) -> list[T]:
        if len(wave) == 1:
            seed = wave[0]
            return [self._attempt(seed, lambda fraction: self._report(seed, fraction))]
        with ThreadPoolExecutor(len(wave)) as pool:
            futures = [pool.submit(self._attempt, seed, self._reporter(seed)) for seed in wave]
            try:
                while wait(futures, _PERIOD_S).not_done:
                    self._tell()
            # Ctrl-C reaches this thread alone: the others learn of it when they report next.
            except BaseException:
                self._is_over.set()
                raise
        return [future.result() for future in futures]

    def _reporter(self, seed: int) -> FractionReport:
        """For another thread: only the first one calls the user's function."""

        def report(fraction: float) -> None:
            if self._is_over.is_set():
                raise _AbandonedError
            self._fractions[seed] = fraction

        return report

    def _report(self, seed: int, fraction: float) -> None:
        # In the caller's own thread: it may raise at once.
        self._fractions[seed] = fraction
        self._tell()

    def _tell(self) -> None:
        # Copied at once: other threads write into it.
        fractions = list(self._fractions.values())
        self._progress(sum(fractions) / self._total)

    def _keep(self, result: T, seed: int) -> bool:
        """Count a result; whether the goal is reached."""
        self._tried += 1
        self._fractions[seed] = 1.0
        cost = self._cost(result)
        # Of equal ones the first: seeds are kept in order, not as threads end.
        if self._best is None or cost < self._cost(self._best[0]):
            self._best = (result, seed)
        # Counted in the order of seeds, so that a limit cuts at the same seed for any threads.
        self._after_trial()
        return cost <= self._goal


def _waves(seeds: Sequence[int], threads: int) -> Iterator[Sequence[int]]:
    """The first seed alone, then `threads` at a time."""
    yield seeds[:1]
    for first in range(1, len(seeds), threads):
        yield seeds[first : first + threads]
