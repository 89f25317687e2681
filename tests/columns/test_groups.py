"""Every column function against the plain way of writing it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.columns import (
    counted_positions,
    csr,
    csr_of_pairs,
    csr_within,
    distinct,
    expanded_ranges,
    first_positions,
    gather,
    group_of_entry,
    group_pointer,
    inverse,
    is_sorted,
    labels,
    ordinals,
    positions_in,
    row_pointer,
    rows_of,
    run_lengths,
    run_mask,
    run_starts,
    sorted_ordinals,
    suffix_least,
)

COUNTS = st.lists(st.integers(0, 5), max_size=12)
KEYS = st.lists(st.integers(0, 6), max_size=30)
PAIRS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=30)


def _column(values: list[int]) -> np.ndarray:
    return np.asarray(values, np.int64)


@given(COUNTS)
def test_row_pointer_holds_the_sums_up_to_each_group(counts):
    sums = [sum(counts[:group]) for group in range(len(counts) + 1)]
    assert row_pointer(counts).tolist() == sums
    assert first_positions(counts).tolist() == sums[:-1]


@given(COUNTS)
def test_groups_and_row_pointer_are_two_forms_of_one_thing(counts):
    groups = [group for group, count in enumerate(counts) for _ in range(count)]
    assert group_of_entry(row_pointer(counts)).tolist() == groups
    assert group_pointer(_column(groups), len(counts)).tolist() == row_pointer(counts).tolist()


@given(COUNTS)
def test_positions_are_counted_within_each_group(counts):
    plain = [place for count in counts for place in range(count)]
    assert counted_positions(counts).tolist() == plain


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 5)), max_size=12))
def test_ranges_are_expanded_one_behind_the_other(ranges):
    plain = [value for start, count in ranges for value in range(start, start + count)]
    starts, counts = [start for start, _ in ranges], [count for _, count in ranges]
    assert expanded_ranges(starts, counts).tolist() == plain


@given(KEYS)
def test_sortedness_is_that_of_python(keys):
    assert is_sorted(_column(keys)) == (keys == sorted(keys))


@given(PAIRS)
def test_runs_begin_where_a_column_changes(rows):
    first, second = _column([a for a, _ in rows]), _column([b for _, b in rows])
    starts = [k for k in range(len(rows)) if k == 0 or rows[k] != rows[k - 1]]
    assert run_starts(first, second).tolist() == starts
    assert np.flatnonzero(run_mask(first, second)).tolist() == starts
    lengths = [stop - start for start, stop in pairwise([*starts, len(rows)])]
    assert run_lengths(run_starts(first, second), len(rows)).tolist() == lengths


@given(KEYS)
def test_ordinals_count_equal_keys_before(keys):
    plain = [keys[:row].count(key) for row, key in enumerate(keys)]
    assert ordinals(_column(keys)).tolist() == plain
    in_order = sorted(keys)
    plain = [in_order[:row].count(key) for row, key in enumerate(in_order)]
    assert sorted_ordinals(_column(in_order)).tolist() == plain


@given(st.permutations(range(9)))
def test_inverse_undoes_a_permutation(permutation):
    back = inverse(_column(permutation))
    assert [back[place] for place in permutation] == list(range(9))


@given(st.sets(st.integers(0, 9)))
def test_positions_are_minus_one_for_what_does_not_stand_there(chosen):
    rows = sorted(chosen, reverse=True)
    plain = [rows.index(value) if value in chosen else -1 for value in range(10)]
    assert positions_in(_column(rows), 10).tolist() == plain


@given(KEYS, st.data())
def test_csr_keeps_the_order_within_a_group(keys, data):
    values = [10 * row for row in range(len(keys))]
    indptr, grouped = csr(_column(keys), _column(values), 7)
    table = [[value for key, value in zip(keys, values, strict=True) if key == g] for g in range(7)]
    assert [grouped[indptr[g] : indptr[g + 1]].tolist() for g in range(7)] == table
    wanted = data.draw(st.lists(st.integers(0, 6), max_size=8))
    plain = [value for group in wanted for value in table[group]]
    assert gather(indptr, grouped, _column(wanted)).tolist() == plain


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64])
def test_results_are_wide_whatever_comes_in(dtype):
    keys = np.asarray([0, 0, 1], dtype)
    for found in (ordinals(keys), group_pointer(keys, 2), run_starts(keys), inverse(keys[1:])):
        assert found.dtype == np.int64


@given(st.lists(st.integers(-5, 5)))
def test_distinct_values_are_ascending_and_stand_once(values):
    found = distinct(np.asarray(values, np.int64))
    assert found.tolist() == sorted(set(values))


@given(st.lists(st.integers(-3, 9)), st.lists(st.integers(0, 6), unique=True).map(sorted))
def test_values_are_found_among_sorted_keys(wanted, keys):
    plain = [keys.index(value) if value in keys else -1 for value in wanted]
    assert rows_of(_column(wanted), _column(keys)).tolist() == plain


@given(PAIRS)
def test_labels_are_equal_where_rows_are_and_ascend_with_them(rows):
    table = np.array(rows, np.int64).reshape(-1, 2)
    ordered = sorted(set(rows))
    assert labels(*table.T).tolist() == [ordered.index(row) for row in rows]


def test_pairs_stand_once_and_ascend_in_each_group() -> None:
    parents, children = np.asarray([3, 2, 3, 0]), np.asarray([1, 1, 1, 0])
    indptr, values = csr_of_pairs(parents, children, 4)
    assert (indptr.tolist(), values.tolist()) == ([0, 1, 3, 3, 3], [0, 2, 3])


def test_edges_between_parts_are_left_out() -> None:
    indptr, indices = np.asarray([0, 0, 2, 3]), np.asarray([2, 0, 0])
    found = csr_within(indptr, indices, np.asarray([7, 7, 8]))
    assert [column.tolist() for column in found] == [[0, 0, 1, 1], [0]]


def test_the_least_of_all_behind() -> None:
    assert suffix_least(np.asarray([4, 1, 3, 2])).tolist() == [1, 1, 2, 2]
