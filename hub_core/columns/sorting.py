"""Stable orders of integers, faster than numpy's own where keys are far from sorted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
_IntArray = npt.NDArray[np.integer[Any]]

# A stable sort of digits of so many bits takes linear time in numpy.
_DIGIT_BITS = 16
_MOST_DIGITS = 2
# Of fewer keys other ways take longer than they spare: digits, and a second sort.
_FEW, _FEW_PLACES = 1 << 9, 1 << 12
_MOST = np.iinfo(np.int64).max


def stable_order(keys: _IntArray) -> Int64Array:
    """`np.argsort(keys, kind="stable")`, int64.

    Linear where the keys lie within 32 bits of each other.
    """
    if len(keys) >= _FEW:
        low = int(keys.min())
        digits = (int(keys.max()) - low).bit_length() / _DIGIT_BITS
        if digits <= _MOST_DIGITS:
            return _by_digits(keys.astype(np.int64) - low, is_long=digits > 1)
        if len(keys) >= _FEW_PLACES:
            return _by_places(keys)
    return np.argsort(keys, kind="stable")


def _by_digits(keys: Int64Array, *, is_long: bool) -> Int64Array:
    """The order of keys of one digit, or of two, the lower one first."""
    order: Int64Array = np.argsort(keys.astype(np.uint16), kind="stable")
    if is_long:
        upper = (keys >> _DIGIT_BITS).astype(np.uint16)
        order = order[np.argsort(upper[order], kind="stable")]
    return order


def _by_places(keys: _IntArray) -> Int64Array:
    """The order of many keys of any size.

    Numpy sorts with vector instructions only where equal keys may change places. So these are
    found, and a second sort puts their places in order.
    """
    count = len(keys)
    order: Int64Array = np.argsort(keys)
    in_order = keys[order]
    is_new = in_order[1:] != in_order[:-1]
    if np.all(is_new):
        return order
    # The number of the key, then the place, as one number: below 2^63 for less than 2^31 keys.
    place = np.zeros(count, np.int64)
    np.cumsum(is_new, out=place[1:])
    place *= count
    place += order
    place.sort()
    place %= count
    return place


def stable_order_by(first: Int64Array, second: Int64Array) -> Int64Array:
    """`np.lexsort((second, first))`, int64; both keys in one number where they fit."""
    span = int(second.max(initial=0)) + 1
    fits = int(second.min(initial=0)) >= 0 and int(np.abs(first).max(initial=0)) < _MOST // span
    if not fits:
        return np.lexsort((second, first))
    return stable_order(first * span + second)
