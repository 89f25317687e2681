"""The iteration order of libstdc++'s hash sets of integers, as parts of kernels.

ASTRA-sim issues nodes in the order of `std::unordered_set`, which is part of its timing model.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from collhub_astra_sim.compiling import compiled
from collhub_astra_sim.simulating.event_queue import Integer, Records
from hub_core.columns import Int64Array, IntArray, UInt64Array

# One element of the hash set in work.
ELEMENT = np.dtype(
    [("row", np.int64), ("identity", np.uint64), ("bucket", np.int64), ("after", np.int64)],
    align=True,
)


class SetRoom(Protocol):
    """The part of a state in which sets are ordered, as in `SimulatedWorld`."""

    @property
    def identity(self) -> UInt64Array: ...
    @property
    def element(self) -> Records: ...
    @property
    def before(self) -> Int64Array: ...


# Bucket counts of libstdc++'s hash sets as they grow one by one from empty
# (`_Prime_rehash_policy`): the next prime of its table above twice the last one.
BUCKET_COUNTS = (
    13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061,
    712697, 1447153, 2938679, 5967347, 12117689,
)  # fmt: skip
# Typed, since numba compiles a function once more for a literal argument.
EMPTY_SET = np.int64(1)


@compiled
def set_order(rows: IntArray, count: Integer, buckets: Integer, world: SetRoom) -> Integer:
    """Put the first `count` rows, given as inserted, in the order of libstdc++'s unordered_set.

    Keys are the ids of the nodes, hashed to themselves. The set is empty before and has `buckets`
    buckets; the number that it has afterwards is returned. Cost: linear.
    """
    # Nearly all sets are this small. Each new element goes to the front, unless its bucket is
    # taken; then it goes before the first one of the bucket, which is the front as well.
    if count < 3:
        if count == 2:
            rows[0], rows[1] = rows[1], rows[0]
        return buckets if count == 0 else max(buckets, BUCKET_COUNTS[0])
    return _long_set_order(rows[:count], buckets, world.identity, world.element, world.before)


@compiled
def _long_set_order(
    rows: IntArray,
    buckets: Integer,
    identity: UInt64Array,
    element: Records,
    before: Int64Array,
) -> Integer:
    """As `set_order`, by a linked list of positions, as libstdc++ has one.

    `before`: the position before a bucket's first element. `element[len(rows)]` is the head of the
    list, which stands before its first element.
    """
    head = len(rows)
    element[head]["after"] = -1
    for position in range(head):
        entry = element[position]
        entry["row"] = rows[position]
        entry["identity"] = identity[rows[position]]
        # libstdc++ grows before the element that would exceed one a bucket.
        if buckets == EMPTY_SET or position == buckets:
            buckets = _grow(head, buckets, element, before)
        _place(position, head, buckets, element, before)
    _write_order(rows, element, before)
    return buckets


@compiled
def _write_order(rows: IntArray, element: Records, before: Int64Array) -> None:
    """Write the rows as the list has them, and leave `before` all -1 for the next set.

    Only buckets that hold an element are reset, so the cost is that of the rows.
    """
    position = element[len(rows)]["after"]
    for index in range(len(rows)):
        entry = element[position]
        rows[index] = entry["row"]
        before[entry["bucket"]] = -1
        position = entry["after"]


@compiled
def _place(
    position: Integer, head: Integer, buckets: Integer, element: Records, before: Int64Array
) -> None:
    """Link an element in before the first one of its bucket, or at the front of the list."""
    entry = element[position]
    bucket = np.int64(entry["identity"] % np.uint64(buckets))
    entry["bucket"] = bucket
    previous = before[bucket]
    if previous < 0:
        # The bucket is empty: the element comes to the front, before what has been there.
        previous = head
        front = element[head]["after"]
        if front >= 0:
            before[element[front]["bucket"]] = position
        before[bucket] = head
    entry["after"] = element[previous]["after"]
    element[previous]["after"] = position


@compiled
def _grow(head: Integer, buckets: Integer, element: Records, before: Int64Array) -> Integer:
    """Take the next number of buckets and place all elements anew, as they stand in the list."""
    for bucket in range(buckets):
        before[bucket] = -1
    for larger in BUCKET_COUNTS:
        if larger > buckets:
            buckets = larger
            break
    position = element[head]["after"]
    element[head]["after"] = -1
    while position >= 0:
        # Read first: placing the element overwrites it.
        following = element[position]["after"]
        _place(position, head, buckets, element, before)
        position = following
    return buckets
