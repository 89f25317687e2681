"""Try one seed after the other, several at once, and keep the best; the answer depends on neither cores nor luck."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
Report = Callable[[float], None]

_PERIOD_S = 0.2


@dataclass(frozen=True, slots=True)
class Best(Generic[T]):
    """The result of least cost, its seed, how many seeds were tried until the goal, and whether Ctrl-C cut the search."""

    result: T
    seed: int
    tried: int
    is_interrupted: bool = False


def best_of_seeds(
    attempt: Callable[[int, Report], T],
    cost: Callable[[T], int],
    seeds: Sequence[int],
    *,
    goal: int,
    threads: int,
    progress: Report,
) -> Best[T]:
    """The result of least cost, of equal ones the first; a cost of at most `goal` ends the search.

    `attempt(seed, report)` calls `report(fraction)` now and then, which raises where the result is no longer needed.
    The first seed is tried alone, because it is often enough, then `threads` seeds at once. Ctrl-C ends the search;
    without a result it is raised again. What else an attempt raises is raised.
    """
    return _SeedSearch(attempt, cost, goal, progress, len(seeds)).over(seeds, threads)


class _AbandonedError(Exception):
    """The search has ended; what still runs is not needed."""


class _SeedSearch(Generic[T]):
    def __init__(
        self,
        attempt: Callable[[int, Report], T],
        cost: Callable[[T], int],
        goal: int,
        progress: Report,
        total: int,
    ) -> None:
        self._attempt, self._cost, self._goal, self._progress, self._total = (
            attempt,
            cost,
            goal,
            progress,
            total,
        )
        self._best: tuple[T, int] | None = None
        self._tried = 0
        self._fractions: dict[int, float] = {}
        self._is_over = threading.Event()

    def over(self, seeds: Sequence[int], threads: int) -> Best[T]:
        waves = [
            seeds[:1],
            *(seeds[first : first + threads] for first in range(1, len(seeds), threads)),
        ]
        is_interrupted = False
        try:
            for wave in waves:
                # Later results of a wave do not count once the goal is reached: how many there are is a matter of threads.
                if any(
                    self._keep(result, seed)
                    for seed, result in zip(wave, self._results(wave), strict=True)
                ):
                    break
        except KeyboardInterrupt:
            if self._best is None:
                raise
            is_interrupted = True
        assert self._best is not None
        return Best(*self._best, self._tried, is_interrupted)

    def _results(self, wave: Sequence[int]) -> list[T]:
        if len(wave) == 1:
            return [self._attempt(wave[0], lambda fraction: self._report(wave[0], fraction))]
        with ThreadPoolExecutor(len(wave)) as pool:
            futures = [pool.submit(self._attempt, seed, self._reporter(seed)) for seed in wave]
            try:
                while wait(futures, _PERIOD_S).not_done:
                    self._tell()
            except BaseException:
                self._is_over.set()
                raise
        return [future.result() for future in futures]

    def _reporter(self, seed: int) -> Report:
        """For another thread: only the first one calls the user's function."""

        def report(fraction: float) -> None:
            if self._is_over.is_set():
                raise _AbandonedError
            self._fractions[seed] = fraction

        return report

    def _report(self, seed: int, fraction: float) -> None:
        self._fractions[seed] = fraction
        self._tell()

    def _tell(self) -> None:
        self._progress(sum(list(self._fractions.values())) / self._total)

    def _keep(self, result: T, seed: int) -> bool:
        """Count a result; whether the goal is reached."""
        self._tried += 1
        self._fractions[seed] = 1.0
        cost = self._cost(result)
        if self._best is None or cost < self._cost(self._best[0]):
            self._best = (result, seed)
        return cost <= self._goal
