"""Columns: grouped integer arrays, against the same written out."""

from __future__ import annotations

import numpy as np
from collhub_tacos.columns import (
    counted_positions,
    csr,
    expanded_ranges,
    group_pointer,
    inverse,
    row_pointer,
)
from hypothesis import given
from hypothesis import strategies as st

SIZES = st.lists(st.integers(0, 4), max_size=8)


@given(SIZES)
def test_row_pointer_begins_at_zero_and_adds_up(sizes: list[int]) -> None:
    assert row_pointer(sizes).tolist() == [sum(sizes[:end]) for end in range(len(sizes) + 1)]


@given(SIZES)
def test_positions_count_from_zero_in_every_group(sizes: list[int]) -> None:
    assert counted_positions(sizes).tolist() == [k for size in sizes for k in range(size)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=8))
def test_ranges_stand_one_behind_the_other(ranges: list[tuple[int, int]]) -> None:
    starts = np.asarray([start for start, _ in ranges], np.int64)
    sizes = np.asarray([size for _, size in ranges], np.int64)
    expected = [start + k for start, size in ranges for k in range(size)]
    assert expanded_ranges(starts, sizes).tolist() == expected


@given(st.permutations(range(7)))
def test_inverse_undoes_a_permutation(order: list[int]) -> None:
    permutation = np.asarray(order)
    assert inverse(permutation)[permutation].tolist() == list(range(7))


@given(st.lists(st.integers(0, 4), max_size=12))
def test_values_are_grouped_in_their_order(keys: list[int]) -> None:
    values = np.arange(len(keys))
    indptr, grouped = csr(np.asarray(keys, np.int64), values, 5)
    expected = [place for key in range(5) for place, found in enumerate(keys) if found == key]
    assert grouped.tolist() == expected
    assert np.array_equal(indptr, group_pointer(np.sort(np.asarray(keys, np.int64)), 5))
