"""A search keeps its fastest result, also where Ctrl-C ends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from hub_core.schedules import fastest_of


@dataclass(frozen=True)
class Result:
    time_ns: int
    name: str = ""
    is_interrupted: bool = False


def time_of(result: Result) -> int:
    return result.time_ns


def until_ctrl_c(*results: Result) -> Iterator[Result]:
    yield from results
    raise KeyboardInterrupt


def test_the_first_of_equally_fast_results_is_kept() -> None:
    results = [Result(3), Result(2, "first"), Result(2, "second")]
    assert fastest_of(results, time_of) == Result(2, "first")


def test_nothing_is_found_among_nothing() -> None:
    assert fastest_of([], time_of) is None


def test_ctrl_c_ends_the_search_with_the_best_so_far() -> None:
    found = fastest_of(until_ctrl_c(Result(2), Result(3)), time_of)
    assert found == Result(2, is_interrupted=True)


def test_an_interrupted_result_ends_the_search() -> None:
    results = iter([Result(2), Result(3, is_interrupted=True), Result(1)])
    assert fastest_of(results, time_of) == Result(2, is_interrupted=True)
    assert next(results) == Result(1)


def test_ctrl_c_passes_where_there_is_nothing_yet() -> None:
    with pytest.raises(KeyboardInterrupt):
        fastest_of(until_ctrl_c(), time_of)
