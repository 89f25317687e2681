from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from collhub_tacos.search.seeds import Best, find_best_of_seeds
from hypothesis import given
from hypothesis import strategies as st

COSTS = [7, 5, 9, 4, 4, 8, 3]


def search(
    costs: list[int],
    *,
    goal: int = 0,
    threads: int = 1,
    interrupt_at: int | None = None,
    progress: Callable[[float], None] = lambda fraction: None,
) -> Best[int]:
    """Seed s costs `costs[s]`; Ctrl-C comes while the user is told of seed `interrupt_at`."""

    def attempt(seed: int, report: Callable[[float], None]) -> int:
        report(0.5)
        if seed == interrupt_at:
            raise KeyboardInterrupt
        return costs[seed]

    return find_best_of_seeds(
        attempt, int, range(len(costs)), goal=goal, threads=threads, progress=progress
    )


def test_the_first_of_the_cheapest_is_kept() -> None:
    assert search([7, 5, 4, 4]) == Best(4, 2, 4)


def test_the_goal_ends_the_search() -> None:
    assert search(COSTS, goal=5) == Best(5, 1, 2)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(0, 9), st.integers(2, 4))
def test_threads_do_not_change_the_answer(costs: list[int], goal: int, threads: int) -> None:
    assert search(costs, goal=goal, threads=threads) == search(costs, goal=goal)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_interrupted_search_returns_the_best_so_far(threads: int) -> None:
    assert search(COSTS, threads=threads, interrupt_at=1) == Best(7, 0, 1, is_interrupted=True)


def test_an_interrupt_before_the_first_result_is_passed_on() -> None:
    with pytest.raises(KeyboardInterrupt):
        search(COSTS, interrupt_at=0)


def test_an_interrupt_while_threads_work_ends_them() -> None:
    def interrupt(calls: Iterable[float]) -> Callable[[float], None]:
        remaining = iter(calls)

        def progress(fraction: float) -> None:
            if next(remaining, None) is None:
                raise KeyboardInterrupt

        return progress

    def attempt(seed: int, report: Callable[[float], None]) -> int:
        report(0.0)
        while seed > 0:
            report(0.5)
        return 1

    best = find_best_of_seeds(attempt, int, range(4), goal=0, threads=3, progress=interrupt([0.0]))
    assert best == Best(1, 0, 1, is_interrupted=True)


def test_what_an_attempt_raises_is_raised() -> None:
    def attempt(seed: int, report: Callable[[float], None]) -> int:
        if seed == 2:
            raise ValueError("broken")
        return 5

    with pytest.raises(ValueError, match="broken"):
        find_best_of_seeds(
            attempt, int, range(4), goal=0, threads=3, progress=lambda fraction: None
        )


def test_progress_never_falls_and_counts_all_seeds() -> None:
    told: list[float] = []
    search(COSTS, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == pytest.approx((len(COSTS) - 0.5) / len(COSTS))
