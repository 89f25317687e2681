"""Columns: the few operations on grouped integer arrays from which tables and graphs are made.

Everything here is linear in its input, apart from one stable sort where an order is not there yet.
A group is a number 0..n-1; `indptr` is the row pointer of a CSR table: the entries of group g are
`indptr[g]:indptr[g + 1]`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hub_core.columns.sorting import stable_order

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
UInt8Array = npt.NDArray[np.uint8]
UInt64Array = npt.NDArray[np.uint64]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.integer]
AnyNumber = TypeVar("AnyNumber", bound=np.integer | np.floating)
_Csr = tuple[Int64Array, Int64Array]


def row_pointer(counts: npt.ArrayLike) -> Int64Array:
    """Where each of n groups of these sizes begins, and where the last ends: int64[n + 1]."""
    sizes = np.asarray(counts, np.int64)
    indptr = np.zeros(len(sizes) + 1, np.int64)
    # The first group begins at 0, whatever its size.
    np.cumsum(sizes, out=indptr[1:])
    return indptr


def first_positions(counts: npt.ArrayLike) -> Int64Array:
    """Where each of n groups begins, int64[n], when they lie one behind the other."""
    return row_pointer(counts)[:-1]


def group_pointer(groups: IntArray, count: int) -> Int64Array:
    """The row pointer, int64[count + 1], of rows that are sorted by these group numbers."""
    return row_pointer(np.bincount(groups, minlength=count))


def group_of_entry(indptr: IntArray) -> Int64Array:
    """The group of every entry of a CSR table, int64[entries]: the opposite of `group_pointer`."""
    return np.repeat(np.arange(len(indptr) - 1, dtype=np.int64), np.diff(indptr))


def counted_positions(counts: npt.ArrayLike) -> Int64Array:
    """0, 1, ... within each of the groups of these sizes: `[2, 3]` gives `[0, 1, 0, 1, 2]`."""
    return expanded_ranges(0, counts)


def expanded_ranges(starts: npt.ArrayLike, counts: npt.ArrayLike) -> Int64Array:
    """The ranges `starts[i]..starts[i] + counts[i] - 1` one behind the other."""
    sizes = np.asarray(counts, np.int64)
    # What to add to a running number so that each group begins at its start.
    shift = np.asarray(starts, np.int64) - first_positions(sizes)
    return np.repeat(shift, sizes) + np.arange(int(sizes.sum()), dtype=np.int64)


def is_sorted(keys: npt.NDArray[Any]) -> bool:
    """Whether no key is less than the one before it."""
    return bool(np.all(keys[1:] >= keys[:-1]))


def run_mask(*columns: npt.NDArray[np.generic]) -> BoolArray:
    """Which rows differ from the row before in one of the columns, bool[rows]; the first does."""
    # Without a concatenation, which would copy each column once more.
    is_new = np.ones(len(columns[0]), np.bool_)
    if len(is_new) > 1:
        # A single row is a run of its own.
        is_new[1:] = False
        for column in columns:
            is_new[1:] |= column[1:] != column[:-1]
    return is_new


def run_starts(*columns: npt.NDArray[np.generic]) -> Int64Array:
    """The first row of every run of equal rows, ascending; the columns are of equal length."""
    # Rows that differ from the one before.
    return np.flatnonzero(run_mask(*columns))


def run_lengths(starts: IntArray, rows: int) -> Int64Array:
    """How many of `rows` rows each run has; `starts`: the first rows of all runs."""
    return np.diff(np.append(starts, rows))


def distinct(values: npt.NDArray[AnyNumber]) -> npt.NDArray[AnyNumber]:
    """The values that occur, ascending, each once; not for arrays with NaN."""
    # As `np.unique`, which imports `numpy.ma` at its first call, a tenth of a short run.
    ordered = values if is_sorted(values) else np.sort(values)
    # In order, equal values are runs.
    found: npt.NDArray[AnyNumber] = ordered[run_mask(ordered)]
    return found


def labels(*columns: IntArray) -> Int64Array:
    """A number for every row, int64[rows]: equal where all columns are, ascending with them."""
    table = np.stack([column.astype(np.int64) for column in columns])
    # Some versions of numpy return it as a row of a matrix.
    found: Int64Array = np.unique(table, axis=1, return_inverse=True)[1].reshape(-1)
    return found


def sorted_ordinals(keys: IntArray) -> Int64Array:
    """For every row of sorted keys, how many rows of the same key stand before it."""
    return counted_positions(run_lengths(run_starts(keys), len(keys)))


def ordinals(keys: IntArray) -> Int64Array:
    """For every row, how many rows of the same key stand before it; keys in any order."""
    if is_sorted(keys):
        return sorted_ordinals(keys)
    order = stable_order(keys)
    # Numbered where keys stand together, then put back to where each row came from.
    found = np.empty(len(keys), np.int64)
    found[order] = sorted_ordinals(keys[order])
    return found


def inverse(permutation: IntArray) -> Int64Array:
    """The permutation that undoes this one: `inverse(p)[p[i]] == i`."""
    return positions_in(permutation, len(permutation))


def positions_in(rows: IntArray, count: int) -> Int64Array:
    """Where each of 0..count-1 stands in `rows`: int64[count], -1 for what does not."""
    position = np.full(count, -1, np.int64)
    # Where a value stands twice, its last place holds.
    position[rows] = np.arange(len(rows))
    return position


def rows_of(wanted: IntArray, keys: IntArray) -> Int64Array:
    """Where values stand among sorted keys: int64, -1 for those that are not there."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    # Behind the last key there is none to compare with.
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, place, -1)


def csr(keys: IntArray, values: Int64Array, count: int) -> tuple[Int64Array, Int64Array]:
    """(indptr, values in group order) by `keys`; within a group the given order is kept."""
    if not is_sorted(keys):
        # Stable, so that the given order stays within a group.
        order = stable_order(keys)
        values = values[order]
    return group_pointer(keys, count), values


def gather(indptr: Int64Array, indices: Int64Array, groups: IntArray) -> Int64Array:
    """The entries of these groups of a CSR table, one group behind the other."""
    # Groups may come in any order, and more than once.
    starts = indptr[groups]
    found: Int64Array = indices[expanded_ranges(starts, indptr[groups + 1] - starts)]
    return found


def csr_of_pairs(parents: Int64Array, children: Int64Array, count: int) -> _Csr:
    """(indptr, parents of every child), ascending and without repetition."""
    width = np.int64(max(count, 1))
    # Sorted by (child, parent); a pair that is given twice is one.
    groups, values = np.divmod(distinct(children * width + parents), width)
    return group_pointer(groups, count), values


def csr_within(indptr: Int64Array, indices: Int64Array, part: Int64Array) -> _Csr:
    """The entries of a CSR table of a graph whose two ends are in one part; `part`: of nodes."""
    groups = group_of_entry(indptr)
    is_inside = part[indices] == part[groups]
    # What is kept stays in its order.
    return group_pointer(groups[is_inside], len(indptr) - 1), indices[is_inside]


def suffix_least(values: Int64Array) -> Int64Array:
    """The least of each value and all behind it: int64, as long as `values`."""
    # From the last one on, and turned round again.
    return np.minimum.accumulate(values[::-1])[::-1]
