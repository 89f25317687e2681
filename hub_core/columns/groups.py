"""Operations on grouped integer arrays, from which tables and graphs are built.

All operations are linear in their input, except for one stable sort if the input is not sorted. A
group is a number 0..n-1. `indptr` is the row pointer of a CSR table: the entries of group g are
`indptr[g]:indptr[g + 1]`. `RankIntervals` is the union of intervals of time per rank.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hub_core.columns.orders import (
    Int64Array,
    IntArray,
    distinct,
    is_sorted,
    run_lengths,
    run_starts,
    stable_order,
)

_Csr = tuple[Int64Array, Int64Array]


def row_pointer(counts: npt.ArrayLike) -> Int64Array:
    """Return the row pointer of n consecutive groups of these sizes: int64[n + 1].

    Entry i is the start of group i, and the last entry is the end of the last group.
    """
    sizes = np.asarray(counts, np.int64)
    indptr = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=indptr[1:])
    return indptr


def first_positions(counts: npt.ArrayLike) -> Int64Array:
    """Return the start of each of n consecutive groups of these sizes: int64[n]."""
    return row_pointer(counts)[:-1]


def group_pointer(groups: IntArray, count: int) -> Int64Array:
    """Return the row pointer, int64[count + 1], of rows that are sorted by these group numbers."""
    return row_pointer(np.bincount(groups, minlength=count))


def group_of_entry(indptr: IntArray) -> Int64Array:
    """Return the group of every entry of a CSR table, int64[entries]:

    inverse of `group_pointer`.
    """
    return np.repeat(np.arange(len(indptr) - 1, dtype=np.int64), np.diff(indptr))


def counted_positions(counts: npt.ArrayLike) -> Int64Array:
    """Return the position of every row in its group: `[2, 3]` gives `[0, 1, 0, 1, 2]`."""
    return expanded_ranges(0, counts)


def expanded_ranges(starts: npt.ArrayLike, counts: npt.ArrayLike) -> Int64Array:
    """Concatenate the ranges `starts[i]..starts[i] + counts[i] - 1` in their order: int64.

    Ranges of count 0 add nothing. Counts must not be negative.
    """
    sizes = np.asarray(counts, np.int64)
    # Difference between the entries of a group and a consecutive numbering of all entries.
    shift = np.asarray(starts, np.int64) - first_positions(sizes)
    return np.repeat(shift, sizes) + np.arange(int(sizes.sum()), dtype=np.int64)


def sorted_ordinals(keys: IntArray) -> Int64Array:
    """Count, for every row of sorted keys, the earlier rows with the same key."""
    return counted_positions(run_lengths(run_starts(keys), len(keys)))


def ordinals(keys: IntArray) -> Int64Array:
    """Return, for every row, the number of earlier rows with the same key: int64[rows].

    Keys may be in any order; the first row of a key has 0.
    """
    if is_sorted(keys):
        return sorted_ordinals(keys)
    order = stable_order(keys)
    # Counted in sorted order, then moved back to the original rows.
    counts = np.empty(len(keys), np.int64)
    counts[order] = sorted_ordinals(keys[order])
    return counts


def inverse(permutation: IntArray) -> Int64Array:
    """Return the inverse of a permutation of 0..n-1: `inverse(p)[p[i]] == i`, int64."""
    return positions_in(permutation, len(permutation))


def positions_in(rows: IntArray, count: int) -> Int64Array:
    """Return the position of each number 0..count-1 in `rows`: int64[count], -1 if missing.

    The last position counts if a number is repeated. All `rows` must be in 0..count-1.
    """
    position = np.full(count, -1, np.int64)
    # The last position of a repeated value counts.
    position[rows] = np.arange(len(rows))
    return position


def rows_of(values: IntArray, keys: IntArray) -> Int64Array:
    """Return the position of each of `values` in `keys`: int64, -1 for values that are no key.

    `keys` must be ascending and without repetition.
    """
    if not len(keys):
        return np.full(len(values), -1, np.int64)
    # Values above the last key are compared with it.
    position = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    return np.where(keys[position] == values, position, -1)


def csr(keys: IntArray, values: Int64Array, count: int) -> tuple[Int64Array, Int64Array]:
    """Group values by key as a CSR table: (indptr int64[count + 1], grouped values).

    The keys are in 0..count-1; a key without values is an empty group. Values of a group keep their
    order.
    """
    if not is_sorted(keys):
        order = stable_order(keys)
        values = values[order]
    return group_pointer(keys, count), values


def gather(indptr: Int64Array, indices: Int64Array, groups: IntArray) -> Int64Array:
    """Return the entries of the given groups of a CSR table, group after group.

    `groups` may be in any order and contain repetitions. A repeated group adds its entries each
    time, an empty one adds no entries.
    """
    # Groups may be in any order and repeated.
    starts = indptr[groups]
    entries: Int64Array = indices[expanded_ranges(starts, indptr[groups + 1] - starts)]
    return entries


def csr_of_pairs(parents: Int64Array, children: Int64Array, count: int) -> _Csr:
    """Return the parents of every child as a CSR table: (indptr int64[count + 1], parents).

    Parents and children must be in 0..count-1; this is not checked. The parents of a child are
    ascending; a repeated pair is listed once.
    """
    width = np.int64(max(count, 1))
    # Sorted by (child, parent); repeated pairs count once.
    groups, values = np.divmod(distinct(children * width + parents), width)
    return group_pointer(groups, count), values


def csr_within(indptr: Int64Array, indices: Int64Array, part: Int64Array) -> _Csr:
    """Return the CSR table of a graph without the edges that connect different parts.

    `part`: int64[nodes], the number of the part of each node. The result has the same nodes;
    its entries keep their order.
    """
    groups = group_of_entry(indptr)
    is_inside = part[indices] == part[groups]
    return group_pointer(groups[is_inside], len(indptr) - 1), indices[is_inside]


def suffix_least(values: Int64Array) -> Int64Array:
    """Return the minimum of each value and all later values: int64, as long as `values`."""
    # Accumulated from the end.
    return np.minimum.accumulate(values[::-1])[::-1]


class RankIntervals:
    """Union of intervals of every rank. All ranks are placed on one time axis."""

    def __init__(self, rank: IntArray, start: Int64Array, end: Int64Array, num_ranks: int) -> None:
        """Prepare queries of covered time; interval i is `start[i]` to `end[i]` on rank `rank[i]`.

        `start`, `end`: int64 in any unit of time, 0 <= start <= end. Every rank must be in
        0..num_ranks-1. None of this is checked. Time that several intervals of a rank cover counts
        once; an interval with start = end has no effect. There may be no intervals, and a rank may
        have none. The arguments are copied. Cost: one sort of the starts and ends.
        """
        self._count = num_ranks
        self._last = int(end.max(initial=0))
        self._span = self._last + 1
        # The interval of a rank on the axis begins after the last possible end on the previous
        # rank.
        base = rank.astype(np.int64) * self._span
        moments = np.concatenate([base + start, base + end])
        steps = np.repeat(np.array([1, -1]), len(start))
        # At equal times, ends come first: only lengths count.
        order = np.lexsort((steps, moments))
        self._moments = np.concatenate([[0], moments[order]])
        depth = np.cumsum(steps[order])
        lengths = np.diff(self._moments, append=self._moments[-1])
        busy = np.concatenate([[0], depth > 0]) * lengths
        self._busy = busy
        self._before = first_positions(busy)

    def within(self, rank: IntArray, start: Int64Array, end: Int64Array) -> Int64Array:
        """Return how much of the time from `start[i]` to `end[i]` the intervals of `rank[i]` cover.

        The result is int64, one entry per query i, in the unit of the intervals. Overlapping
        intervals count once. Each query needs 0 <= start <= end; this is not checked.
        """
        base = rank.astype(np.int64) * self._span
        start, end = np.minimum(start, self._last), np.minimum(end, self._last)
        return self._cover_before(base + end) - self._cover_before(base + start)

    def by_rank(self) -> tuple[int, ...]:
        """Return the total time of every rank that its intervals cover, in their unit.

        Overlapping intervals count once; a rank without intervals has 0.
        """
        edges = self._cover_before(np.arange(self._count + 1) * self._span)
        return tuple(np.diff(edges).tolist())

    def _cover_before(self, moment: Int64Array) -> Int64Array:
        """Return the covered time before each of the points `moment`: int64, one per point.

        The points are on the common time axis, where times of rank r are shifted by r times
        `_span`, which is longer than all times. The covered time of lower ranks is included, so
        that the difference of two points of one rank is the covered time of this rank between
        them.
        """
        at = np.searchsorted(self._moments, moment, side="right") - 1
        # Within a busy interval, only the part before the point counts.
        since = np.minimum(moment - self._moments[at], self._busy[at])
        covered: Int64Array = self._before[at] + since
        return covered
