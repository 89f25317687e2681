"""Search over random seeds in several threads, and progress reports of long searches.

Exceptions raised by a progress function end the search.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

Progress = Callable[[float, str], None]
"""`progress(fraction, activity)`: the completed fraction, 0..1, of an activity."""

FractionReport = Callable[[float], None]
"""`report(fraction)`: the completed fraction, 0..1."""


AfterTrial = Callable[[], None]
"""Called after the trial of a seed to count its work; it may raise an exception."""


def ignore_trial() -> None:
    """Do nothing: for searches whose work is not counted."""


def ignore_progress(fraction: float, activity: str) -> None:
    """Ignore a progress report."""


def ignore_fraction(fraction: float) -> None:
    """Ignore a reported fraction."""


def report_part(progress: Progress, part: int, num_parts: int) -> Progress:
    """Return a progress function for part number `part` (from 0) of `num_parts` equal parts.

    The function reports fraction f of the part to `progress` as (part + f) / num_parts,
    with the same activity.
    """

    def report(fraction: float, activity: str) -> None:
        """Report a fraction of the part, 0..1, as a fraction of the whole."""
        progress((part + fraction) / num_parts, activity)

    return report


def drop_activity(report: FractionReport) -> Progress:
    """Convert a fraction report to a progress function that ignores the activity."""
    return lambda fraction, activity: report(fraction)


def report_activity(progress: Progress, activity: str) -> FractionReport:
    """Return a function of a fraction done, 0..1, that reports it with the name `activity`.

    Each call is passed to `progress` unchanged.
    """

    def report(fraction: float) -> None:
        progress(fraction, activity)

    return report


T = TypeVar("T")

_REPORT_PERIOD_S = 0.2


@dataclass(frozen=True, slots=True)
class Best(Generic[T]):
    """Result with the lowest cost, its seed, and the number of seeds tried.

    `is_interrupted`: whether Ctrl-C ended the search early.
    """

    result: T
    seed: int
    tried: int
    is_interrupted: bool = False


def find_best_of_seeds(
    attempt: Callable[[int, FractionReport], T],
    cost: Callable[[T], int],
    seeds: Sequence[int],
    *,
    goal: int,
    threads: int,
    progress: FractionReport,
    after_trial: AfterTrial = ignore_trial,
) -> Best[T]:
    """Find the result with the lowest cost over some seeds; of equal costs, that of the first seed.

    The search ends with the first seed, in the order of `seeds`, whose cost is at most
    `goal`; otherwise all seeds are tried. The first seed is tried in isolation, because it
    often reaches the goal; then `threads` seeds are tried in parallel. Seeds after the one
    that reached the goal are ignored, so the result does not depend on `threads`.

    `attempt(seed, report)` must call `report(fraction)` regularly; that call raises an
    exception if the result is no longer needed. `progress` gets the fraction of all seeds.
    `after_trial()` is called once for every seed that is not ignored, in order, after its
    result is recorded.

    A `KeyboardInterrupt` (Ctrl-C, or a limit that `progress` or `after_trial` raises) ends
    the search: the best result so far is returned with `is_interrupted`; without a result
    it is raised again. Other exceptions are raised. `seeds` must not be empty
    (`ValueError`).
    """
    search = _SeedSearch(attempt, cost, goal, progress, len(seeds), after_trial)
    return search.run(seeds, threads)


class _AbandonedError(Exception):
    """Raised in worker threads after the search has ended."""


class _SeedSearch(Generic[T]):
    """State of a search: the best result and the progress of each attempt."""

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

    def run(self, seeds: Sequence[int], threads: int) -> Best[T]:
        """Try the seeds until a result costs at most the goal; return the best result.

        The best result is the one with the lowest cost, of equal ones that of the first seed. If no
        result reaches the goal, all seeds are tried. Seeds are tried in waves, in their order:
        first one seed, then `threads` seeds in parallel. Within the last wave, seeds after the
        first one that reaches the goal are ignored, also in the number of tried seeds. So the
        result does not depend on `threads`.

        Ctrl-C (`KeyboardInterrupt`) ends the search: the best result so far is returned with
        `is_interrupted`, and without a result the exception is raised again. Other exceptions are
        raised. `seeds` must not be empty (`ValueError`).
        """
        is_interrupted = False
        later_waves = [seeds[first : first + threads] for first in range(1, len(seeds), threads)]
        try:
            for wave in (seeds[:1], *later_waves):
                # If one seed reaches the goal, the later results of the wave are ignored, because
                # their number depends on the number of threads.
                results = self._run_wave(wave)
                if any(
                    self._record_result(result, seed)
                    for seed, result in zip(wave, results, strict=True)
                ):
                    break
        except KeyboardInterrupt:
            if self._best is None:
                raise
            is_interrupted = True
        assert self._best is not None
        result, seed = self._best
        return Best(result, seed, self._tried, is_interrupted)

    def _run_wave(self, wave: Sequence[int]) -> list[T]:
        """Return the results of the seeds in their order; `wave` must not be empty.

        A single seed runs in this thread, and an exception of its attempt is raised at once.
        Several seeds run in parallel, one thread each, while this thread reports the progress:

        - If an attempt raises an exception, the other attempts still run to their ends. Of
          several exceptions, that of the first seed in `wave` is raised.
        - Ctrl-C and an exception of the progress report end each attempt at its next report. This
          exception is raised after all threads have ended.
        """
        if len(wave) == 1:
            seed = wave[0]
            return [self._attempt(seed, lambda fraction: self._report(seed, fraction))]
        with ThreadPoolExecutor(len(wave)) as pool:
            futures = [pool.submit(self._attempt, seed, self._build_report(seed)) for seed in wave]
            try:
                while wait(futures, _REPORT_PERIOD_S).not_done:
                    self._report_progress()
            # Ctrl-C reaches only this thread; the others stop at their next report.
            except BaseException:
                self._is_over.set()
                raise
        return [future.result() for future in futures]

    def _build_report(self, seed: int) -> FractionReport:
        """Return a function by which a worker thread reports the fraction done of its seed.

        It only stores the fraction, which the main thread reports to the user. It raises
        `_AbandonedError`, which ends the attempt, if the search is over.
        """

        def report(fraction: float) -> None:
            if self._is_over.is_set():
                raise _AbandonedError
            self._fractions[seed] = fraction

        return report

    def _report(self, seed: int, fraction: float) -> None:
        """Record the fraction done of a seed's attempt, and report the progress of all seeds.

        Only for the main thread, because the user's function may raise an exception, which
        passes through.
        """
        # This is the main thread, so the user's function may raise an exception.
        self._fractions[seed] = fraction
        self._report_progress()

    def _report_progress(self) -> None:
        """Report the progress of all seeds: the sum of their fractions divided by their number.

        Seeds that have not been started count as 0, finished ones as 1. Exceptions of the
        user's function pass through.
        """
        # Copied in one operation because other threads write to the dictionary.
        fractions = list(self._fractions.values())
        self._progress(sum(fractions) / self._total)

    def _record_result(self, result: T, seed: int) -> bool:
        """Record the result of a seed; return whether its cost is at most the goal of the search.

        The number of tried seeds increases by 1, and the progress of the seed becomes 1.0. The
        result becomes the best one if there is none yet, or if its cost is lower; on a tie the
        earlier one stays. Then `after_trial` is called; its exceptions are raised, with the result
        recorded.
        """
        self._tried += 1
        self._fractions[seed] = 1.0
        cost = self._cost(result)
        # Results are recorded in the order of seeds, so the first of equal results does not depend
        # on the threads.
        if self._best is None or cost < self._cost(self._best[0]):
            self._best = (result, seed)
        # Counted in the order of seeds, so a limit ends the search at the same seed for any number
        # of threads.
        self._after_trial()
        return cost <= self._goal
