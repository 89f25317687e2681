"""Windows of sizes: complete, in order, few, and within the tolerance of the best."""

from __future__ import annotations

from itertools import pairwise

from collhub_tuning.tuned_collectives import MeasuredTimes
from hypothesis import given
from hypothesis import strategies as st

SIZES = (1024, 2048, 4096, 8192)


def _windows(times: dict[str, tuple[int | None, ...]], tolerance: float = 0.0, names=None):
    found = MeasuredTimes(SIZES, times, tolerance).windows(names)
    return [(one.min_bytes, one.max_bytes, one.algorithm) for one in found]


def test_a_window_ends_before_the_first_size_of_the_next() -> None:
    times = {"tree": (1, 2, 9, 9), "ring": (5, 5, 5, 5)}
    assert _windows(times) == [(0, 4095, "tree"), (4096, None, "ring")]


def test_an_algorithm_is_kept_where_the_other_is_not_better_by_the_tolerance() -> None:
    times = {"tree": (100, 101, 100, 200), "ring": (150, 100, 101, 100)}
    assert _windows(times, 0.02) == [(0, 8191, "tree"), (8192, None, "ring")]
    assert [name for _, _, name in _windows(times, 0.0)] == ["tree", "ring", "tree", "ring"]


def test_a_border_lies_where_the_later_algorithm_is_faster() -> None:
    times = {"tree": (100, 100, 101, 200), "ring": (150, 150, 100, 100)}
    assert _windows(times, 0.02) == [(0, 4095, "tree"), (4096, None, "ring")]


def test_of_equal_algorithms_the_first_is_taken() -> None:
    times = {"one": (1, 1, 1, 1), "other": (1, 1, 1, 1)}
    assert _windows(times) == [(0, None, "one")]


def test_within_one_percent_the_fewest_messages_are_taken() -> None:
    times = {"many": (1000, 1000, 1000, 1000), "few": (1010, 1010, 1009, 1000)}
    messages = {"many": (9, 9, 9, 9), "few": (5, 5, 5, 5)}
    found = MeasuredTimes(SIZES, times, 0.02, messages=messages).windows()
    assert [one.algorithm for one in found] == ["few"]
    # Above 1 %, the faster one is taken even if the tolerance of windows is larger.
    times["few"] = (1015, 1015, 1015, 1015)
    found = MeasuredTimes(SIZES, times, 0.02, messages=messages).windows()
    assert [one.algorithm for one in found] == ["many"]


def test_windows_of_some_algorithms_know_no_others() -> None:
    times = {"tree": (1, 2, 9, 9), "ring": (5, 5, 5, 5)}
    assert _windows(times, names=["ring"]) == [(0, None, "ring")]
    assert _windows(times, names=["swing"]) == []


def test_a_size_at_which_nothing_fits_counts_as_not_measured() -> None:
    times = {"tree": (1, None, 9, 9), "ring": (5, None, 5, 5)}
    assert _windows(times) == [(0, 4095, "tree"), (4096, None, "ring")]


def test_slowdowns_are_those_of_algorithms_that_fit_all_sizes() -> None:
    times = {"tree": (10, 20, 30, None), "ring": (20, 20, 20, 20)}
    measured = MeasuredTimes(SIZES, times, 0.0)
    assert measured.slowdowns((1024, 4096)) == {"tree": 1.25, "ring": 1.5}
    assert measured.slowdowns((4096, 8192)) == {"ring": 1.0}


_TIMES = st.lists(st.one_of(st.none(), st.integers(1, 1000)), min_size=4, max_size=4).map(tuple)


@given(
    st.dictionaries(st.sampled_from("abcde"), _TIMES, min_size=1),
    st.floats(0, 1),
)
def test_windows_are_complete_in_order_and_within_the_tolerance(times, tolerance: float) -> None:
    windows = MeasuredTimes(SIZES, times, tolerance).windows()
    best = [
        min((t for t in column if t is not None), default=None)
        for column in zip(*times.values(), strict=True)
    ]
    measured = [size for size, time_ns in zip(SIZES, best, strict=True) if time_ns is not None]
    assert [size for window in windows for size in window.sizes] == measured
    if windows:
        assert (windows[0].min_bytes, windows[-1].max_bytes) == (0, None)
    for window, behind in pairwise(windows):
        assert window.max_bytes is not None
        assert window.max_bytes + 1 == behind.min_bytes
        assert window.algorithm != behind.algorithm
    for window in windows:
        for size in window.sizes:
            time_ns = times[window.algorithm][SIZES.index(size)]
            fastest = best[SIZES.index(size)]
            assert time_ns is not None
            assert fastest is not None
            assert time_ns <= (1 + tolerance) * fastest * (1 + 1e-12)
