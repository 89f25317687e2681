"""Stable orders of integers, faster than numpy's if keys are far from sorted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
_IntArray = npt.NDArray[np.integer[Any]]

# numpy sorts digits of this size stably in linear time.
_DIGIT_BITS = 16
_MAX_DIGITS = 2
# Minimum numbers of keys for which digits, and a second sort, are faster.
_MIN_KEYS_OF_DIGITS, _MIN_KEYS_OF_SECOND_SORT = 1 << 9, 1 << 12
_MAX_INT64 = np.iinfo(np.int64).max


def stable_order(keys: _IntArray) -> Int64Array:
    """Compute `np.argsort(keys, kind="stable")`, int64.

    Linear if the range of the keys is below 2^32.
    """
    if len(keys) >= _MIN_KEYS_OF_DIGITS:
        low = int(keys.min())
        digits = (int(keys.max()) - low).bit_length() / _DIGIT_BITS
        if digits <= _MAX_DIGITS:
            return _sort_by_digits(keys.astype(np.int64) - low, is_long=digits > 1)
        if len(keys) >= _MIN_KEYS_OF_SECOND_SORT:
            return _sort_twice(keys)
    return np.argsort(keys, kind="stable")


def _sort_by_digits(keys: Int64Array, *, is_long: bool) -> Int64Array:
    """Compute the order of keys of one digit, or of two, the lower one first."""
    order: Int64Array = np.argsort(keys.astype(np.uint16), kind="stable")
    if is_long:
        upper = (keys >> _DIGIT_BITS).astype(np.uint16)
        order = order[np.argsort(upper[order], kind="stable")]
    return order


def _sort_twice(keys: _IntArray) -> Int64Array:
    """Compute the order of many keys of any size.

    numpy uses vector instructions only for unstable sorts. So equal keys are found after such a
    sort, and a second sort orders their positions.
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


def stable_order_by(first: Int64Array, second: Int64Array) -> Int64Array:
    """Compute `np.lexsort((second, first))`, int64; with both keys in one number if they fit."""
    span = int(second.max(initial=0)) + 1
    fits = (
        int(second.min(initial=0)) >= 0 and int(np.abs(first).max(initial=0)) < _MAX_INT64 // span
    )
    if not fits:
        return np.lexsort((second, first))
    return stable_order(first * span + second)
