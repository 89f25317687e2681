"""Orders of integers are those of numpy, whatever is equal."""

from __future__ import annotations

import numpy as np
import pytest

from hub_core.columns import distinct, labels, stable_order, stable_order_by


@pytest.mark.parametrize("count", [0, 1, 7, 4095, 4096, 50_000])
@pytest.mark.parametrize("distinct", [1, 3, 1 << 40])
def test_equal_keys_keep_their_order(count: int, distinct: int) -> None:
    keys = np.random.default_rng(count).integers(-2, distinct, count)
    assert np.array_equal(stable_order(keys), np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("count", [0, 1, 7, 4096, 50_000])
@pytest.mark.parametrize("least", [0, -5])
@pytest.mark.parametrize("first", [1, 1 << 50])
def test_two_keys_are_in_the_order_of_lexsort(count: int, least: int, first: int) -> None:
    generator = np.random.default_rng(count)
    one, two = generator.integers(0, 9, count) * first, generator.integers(least, 1 << 20, count)
    assert np.array_equal(stable_order_by(one, two), np.lexsort((two, one)))


def test_the_lowest_integer_is_ordered_as_by_lexsort() -> None:
    one, two = np.array([-(1 << 63), -1]), np.array([0, 1])
    assert np.array_equal(stable_order_by(one, two), np.lexsort((two, one)))


@pytest.mark.parametrize("bits", [44, 45, 62])
def test_long_keys_keep_their_order_with_and_without_room_for_positions(bits: int) -> None:
    # 2^18 keys have positions of 18 bits, so that keys of 45 bits are the longest that join them.
    keys = np.random.default_rng(bits).integers(-9, (1 << bits) - 9, 1 << 18)
    keys[::2] = keys[0]
    assert np.array_equal(stable_order(keys), np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("bits", [16, 32, 40])
def test_keys_above_int64_are_sorted_by_their_differences(bits: int) -> None:
    offsets = np.random.default_rng(bits).integers(0, 1 << bits, 1 << 18).astype(np.uint64)
    keys = offsets + np.uint64(1 << 63)
    assert np.array_equal(stable_order(keys), np.argsort(keys, kind="stable"))


# Ranges below and above the limit up to which values are marked instead of sorted.
@pytest.mark.parametrize("values_range", [3, 1 << 14, 1 << 40])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_distinct_values_and_their_numbers_are_those_of_numpy(values_range, dtype) -> None:
    limit = min(values_range, np.iinfo(dtype).max)
    values = np.random.default_rng(1).integers(-limit, limit, 2000).astype(dtype)
    expected, numbers = np.unique(values, return_inverse=True)
    once = distinct(values)
    assert once.dtype == dtype
    assert np.array_equal(once, expected)
    assert np.array_equal(labels(values), numbers)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint8, np.uint64])
def test_numbers_of_values_at_the_ends_of_their_type(dtype) -> None:
    ends = np.iinfo(dtype)
    span = min(ends.max - ends.min, 1500)
    offsets = np.random.default_rng(1).integers(0, span, 1000).astype(np.uint64)
    for low in (ends.min, ends.max - span):
        values = np.array([low + offset for offset in offsets.tolist()], dtype)
        expected, numbers = np.unique(values, return_inverse=True)
        assert np.array_equal(labels(values), numbers)
        assert np.array_equal(distinct(values), expected)


def test_rows_of_several_columns_are_numbered_in_their_order() -> None:
    columns = np.random.default_rng(1).integers(0, 20, (3, 2000))
    columns[1] *= 1 << 40
    _, numbers = np.unique(columns, axis=1, return_inverse=True)
    assert np.array_equal(labels(*columns), numbers.reshape(-1))
