"""Stable orders of integer arrays, their runs of equal rows, and the numbers of distinct values.

Integers in a small range are marked or counted in linear time; other values are sorted.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

Int32Array = npt.NDArray[np.int32]

UInt8Array = npt.NDArray[np.uint8]

UInt64Array = npt.NDArray[np.uint64]

Float64Array = npt.NDArray[np.float64]

BoolArray = npt.NDArray[np.bool_]

IntArray = npt.NDArray[np.integer]

AnyNumber = TypeVar("AnyNumber", bound=np.integer | np.floating)

# numpy sorts digits of this size stably in linear time.
_DIGIT_BITS = 16

_MAX_DIGITS = 2

# Minimum numbers of keys for which digits, and a second sort, are faster.
_MIN_KEYS_OF_DIGITS, _MIN_KEYS_OF_SECOND_SORT = 1 << 9, 1 << 12

# Range of integers, per integer, up to which marking them is faster than sorting them: for their
# distinct values, and for the number of each value, which takes a sum over the range.
_MAX_RANGE_PER_VALUE = 16
_MAX_RANGE_PER_NUMBER = 2

_MAX_INT64 = np.iinfo(np.int64).max
_MAX_KEY_BITS = 63


def is_sorted(keys: npt.NDArray[Any]) -> bool:
    """Whether no key is less than the previous one; True for an empty array."""
    return bool(np.all(keys[1:] >= keys[:-1]))


def run_mask(*columns: npt.NDArray[np.generic]) -> BoolArray:
    """Return which rows differ from the previous row in at least one column: bool[rows].

    The first row is True. NaN differs from NaN. At least one column is required; all columns must
    have equal length.
    """
    # Not by concatenation, which would copy each column.
    is_new = np.ones(len(columns[0]), np.bool_)
    if len(is_new) > 1:
        is_new[1:] = False
        for column in columns:
            is_new[1:] |= column[1:] != column[:-1]
    return is_new


def run_starts(*columns: npt.NDArray[np.generic]) -> Int64Array:
    """Return the first row of every run of equal rows, ascending; all columns have equal length."""
    return np.flatnonzero(run_mask(*columns))


def run_lengths(starts: IntArray, rows: int) -> Int64Array:
    """Return the length of each run of `rows` rows; `starts`: the first rows of all runs."""
    return np.diff(np.append(starts, rows))


def distinct(values: npt.NDArray[AnyNumber]) -> npt.NDArray[AnyNumber]:
    """Return the distinct values in ascending order, as a new array of the same type.

    The array must have one dimension and no NaN. Ordered values, and at least 512 signed integers
    in a range of at most 16 (`_MAX_RANGE_PER_VALUE`) times their number, take linear time; other
    arrays are sorted.
    """
    # Like `np.unique`, which imports `numpy.ma` on its first call: a tenth of a short run.
    if is_sorted(values):
        ordered = values
    else:
        if values.dtype.kind == "i" and len(values) >= _MIN_KEYS_OF_DIGITS:
            occurs = _mark_values(values, _MAX_RANGE_PER_VALUE)
            if occurs is not None:
                numbers = np.flatnonzero(occurs) + int(values.min())
                return numbers.astype(values.dtype)
        ordered = np.sort(values)
    values_once: npt.NDArray[AnyNumber] = ordered[run_mask(ordered)]
    return values_once


def labels(*columns: IntArray) -> Int64Array:
    """Number the distinct rows of the columns: int64[rows], the number of each row.

    Equal rows get equal numbers. The numbers are 0, 1, ... in ascending order of the rows,
    compared by the first column, then the next ones. At least one column is required; all
    columns must have equal length.
    """
    numbers = _number_values(columns[0])
    for column in columns[1:]:
        later = _number_values(column)
        # Below the square of the number of rows.
        numbers = _number_values(numbers * (int(later.max(initial=0)) + 1) + later)
    return numbers


def _number_values(values: IntArray) -> Int64Array:
    """Return, for every value, the number of smaller distinct values: int64, one entry per value.

    Thus equal values have equal numbers from 0, and larger values have larger numbers. Entry i of
    the result belongs to `values[i]`. Takes linear time for at least `_MIN_KEYS_OF_DIGITS` values
    whose range is at most `_MAX_RANGE_PER_NUMBER` (2) times their number, else a sort.
    """
    if len(values) >= _MIN_KEYS_OF_DIGITS:
        occurs = _mark_values(values, _MAX_RANGE_PER_NUMBER)
        if occurs is not None:
            number_of = np.cumsum(occurs, dtype=np.int64)
            number_of -= 1
            return number_of[_subtract(values, int(values.min()))]
    order = stable_order(values)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(run_mask(values[order])) - 1
    return numbers


def _mark_values(values: npt.NDArray[Any], max_range_per_value: int) -> BoolArray | None:
    """Return which integers from the minimum to the maximum value occur: bool[range].

    The range is maximum - minimum + 1; entry i is for the integer minimum + i. `values`:
    integers, not empty (else `ValueError`). Returns None if the range exceeds
    `max_range_per_value` times the number of values.
    """
    low = int(values.min())
    extent = int(values.max()) - low + 1
    if extent > max_range_per_value * len(values):
        return None
    occurs = np.zeros(extent, np.bool_)
    occurs[_subtract(values, low)] = True
    return occurs


def stable_order(keys: IntArray) -> Int64Array:
    """Return the stable sorting order of the keys: int64, equal to `np.argsort(kind="stable")`.

    The method depends on the number of keys and on their range:
    - fewer than `_MIN_KEYS_OF_DIGITS`: numpy's stable sort
    - more, with a range below 2^32: a linear sort by digits of 16 bits
    - at least `_MIN_KEYS_OF_SECOND_SORT` with a larger range: an unstable sort of keys joined with
      their positions if both fit into `_MAX_KEY_BITS` bits, else `_sort_twice`
    - otherwise: numpy's stable sort
    """
    if len(keys) < _MIN_KEYS_OF_DIGITS:
        return np.argsort(keys, kind="stable")
    low = int(keys.min())
    key_bits = (int(keys.max()) - low).bit_length()
    if key_bits <= _MAX_DIGITS * _DIGIT_BITS:
        # By the lower digit first; the sort by the upper one keeps the order of equal keys.
        digits = _subtract(keys, low)
        order: Int64Array = np.argsort(digits.astype(np.uint16), kind="stable")
        if key_bits > _DIGIT_BITS:
            upper = (digits >> _DIGIT_BITS).astype(np.uint16)
            order = order[np.argsort(upper[order], kind="stable")]
        return order
    if len(keys) < _MIN_KEYS_OF_SECOND_SORT:
        return np.argsort(keys, kind="stable")
    position_bits = (len(keys) - 1).bit_length()
    if key_bits + position_bits > _MAX_KEY_BITS:
        return _sort_twice(keys)
    # Takes less than half the time of an indirect sort, which reads keys at random.
    joined = _subtract(keys, low)
    joined <<= position_bits
    joined |= np.arange(len(keys))
    joined.sort()
    joined &= (1 << position_bits) - 1
    return joined


def stable_order_by(first: Int64Array, second: Int64Array) -> Int64Array:
    """Return the rows sorted by `first`, ties by `second`, further ties by row: int64.

    The result is equal to `np.lexsort((second, first))`. The two keys are joined to one integer if
    `second` is not negative and the result fits int64; otherwise `np.lexsort` is used.
    """
    span = int(second.max(initial=0)) + 1
    fits = (
        int(second.min(initial=0)) >= 0
        and max(int(first.max(initial=0)), -int(first.min(initial=0))) < _MAX_INT64 // span
    )
    if not fits:
        return np.lexsort((second, first))
    return stable_order(first * span + second)


def _subtract(keys: IntArray, low: int) -> Int64Array:
    """Return a new array of `keys` minus their minimum `low`; the range must fit into int64."""
    if keys.dtype == np.uint64:
        # The keys may exceed int64, but not their differences.
        return (keys - np.uint64(low)).astype(np.int64)
    return keys.astype(np.int64) - low


def _sort_twice(keys: IntArray) -> Int64Array:
    """Return the stable sorting order of many keys: int64, with equal keys by ascending position.

    An unstable sort finds the equal keys, and a second sort orders their positions. This is faster
    than a stable sort because numpy uses vector instructions only for unstable sorts. The number of
    keys must be below 2^31; this is not checked.
    """
    count = len(keys)
    order: Int64Array = np.argsort(keys)
    in_order = keys[order]
    is_new = in_order[1:] != in_order[:-1]
    if np.all(is_new):
        return order
    # Number of the distinct key, then position, as one number: below 2^63 for less than 2^31 keys.
    key = np.zeros(count, np.int64)
    np.cumsum(is_new, out=key[1:])
    key *= count
    key += order
    key.sort()
    key %= count
    return key
