"""Columns: operations on grouped integer arrays, with the names that `hub_core.model` gives them.

A group is a number 0..n-1; `indptr` is the row pointer of a CSR table: the entries of group g are
`indptr[g]:indptr[g + 1]`. Everything is linear in its input, apart from one stable sort in `csr`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def row_pointer(counts: npt.ArrayLike) -> Int64Array:
    """Turn the sizes of n groups into the row pointer: int64[n + 1]."""
    sizes = np.asarray(counts, np.int64)
    indptr = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=indptr[1:])
    return indptr


def group_pointer(groups: Int64Array, count: int) -> Int64Array:
    """Row pointer, int64[count + 1], of rows that are sorted by these group numbers."""
    sizes = np.bincount(groups, minlength=count)
    return row_pointer(sizes)


def counted_positions(counts: npt.ArrayLike) -> Int64Array:
    """Count 0, 1, ... within each of the groups of these sizes: int64[sum of counts]."""
    return expanded_ranges(0, counts)


def expanded_ranges(starts: npt.ArrayLike, counts: npt.ArrayLike) -> Int64Array:
    """Ranges `starts[i]..starts[i] + counts[i] - 1`, one behind the other: int64[sum of counts]."""
    sizes = np.asarray(counts, np.int64)
    # Each range counts on from its own start, not from the entries before it.
    shift = np.asarray(starts, np.int64) - row_pointer(sizes)[:-1]
    total = int(sizes.sum())
    return np.repeat(shift, sizes) + np.arange(total, dtype=np.int64)


def inverse(permutation: Int64Array) -> Int64Array:
    """Permutation that undoes this one: `inverse(p)[p[i]] == i`."""
    # Linear, where a second argsort would not be.
    position = np.empty(len(permutation), np.int64)
    position[permutation] = np.arange(len(permutation))
    return position


def csr(keys: Int64Array, values: Int64Array, count: int) -> tuple[Int64Array, Int64Array]:
    """Group `values` by `keys`: (indptr, values), in the given order within a group."""
    # Stable, so that the values of a group keep their order.
    order = np.argsort(keys, kind="stable")
    return group_pointer(keys, count), values[order]
