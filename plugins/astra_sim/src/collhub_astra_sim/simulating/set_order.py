"""Parts of kernels: the iteration order of libstdc++'s hash sets of integers.

ASTRA-sim starts nodes in the order of a `std::unordered_set`, which is part of its timing model.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from collhub_kernels import compiled
from collhub_kernels.event_queue import Integer, Records

from hub_core.columns import Int64Array, IntArray, UInt64Array

# One element of the hash set that is being reordered.
ELEMENT = np.dtype(
    [("row", np.int64), ("identity", np.uint64), ("bucket", np.int64), ("after", np.int64)],
    align=True,
)


class SetState(Protocol):
    """The fields of a state that are needed to reorder sets, as in `SimulatedWorld`."""

    @property
    def identity(self) -> UInt64Array: ...
    @property
    def element(self) -> Records: ...
    @property
    def before(self) -> Int64Array: ...


# Bucket counts of libstdc++'s hash sets that grow element by element from empty
# (`_Prime_rehash_policy`): the next prime of its table above twice the last one.
BUCKET_COUNTS = (
    13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061,
    712697, 1447153, 2938679, 5967347, 12117689,
)  # fmt: skip
# Bucket count of a new set. Typed, because numba compiles a function again for a literal argument.
EMPTY_SET = np.int64(1)


@compiled
def sort_as_set(rows: IntArray, count: Integer, buckets: Integer, world: SetState) -> Integer:
    """Reorder the first `count` rows in place, from insertion order to that of an unordered_set.

    `buckets`: the set's bucket count before (`EMPTY_SET`: a new set). Returns the count afterwards.
    """
    # Nearly all sets are this small. A new element is inserted at the front unless its bucket is
    # occupied; then it is inserted before the first element of the bucket, which here is also the
    # front.
    if count < 3:
        if count == 2:
            rows[0], rows[1] = rows[1], rows[0]
        return buckets if count == 0 else max(buckets, BUCKET_COUNTS[0])
    return _sort_large_set(rows[:count], buckets, world.identity, world.element, world.before)


@compiled
def _sort_large_set(
    rows: IntArray,
    buckets: Integer,
    identity: UInt64Array,
    element: Records,
    before: Int64Array,
) -> Integer:
    """Reorder rows as `sort_as_set` does, with a linked list of positions as in libstdc++.

    `before`: by bucket, the position before its first element, -1 if the bucket is empty; all -1
    before and after the call. `element[len(rows)]` is the head of the list, which precedes its
    first element. Returns the new bucket count.
    """
    head = len(rows)
    element[head]["after"] = -1
    for position in range(head):
        entry = element[position]
        entry["row"] = rows[position]
        entry["identity"] = identity[rows[position]]
        # libstdc++ grows before inserting the element that would exceed one element per bucket.
        if buckets == EMPTY_SET or position == buckets:
            buckets = _expand_buckets(head, buckets, element, before)
        _insert_element(position, head, buckets, element, before)
    _write_order(rows, element, before)
    return buckets


@compiled
def _write_order(rows: IntArray, element: Records, before: Int64Array) -> None:
    """Write the rows in list order, and reset `before` to -1 for the next set.

    Only buckets with elements are reset, so the cost is proportional to the rows.
    """
    position = element[len(rows)]["after"]
    for index in range(len(rows)):
        entry = element[position]
        rows[index] = entry["row"]
        before[entry["bucket"]] = -1
        position = entry["after"]


@compiled
def _insert_element(
    position: Integer, head: Integer, buckets: Integer, element: Records, before: Int64Array
) -> None:
    """Insert an element before the first element of its bucket, or at the front of the list.

    The latter if the bucket is empty. The bucket is the identity modulo `buckets`.
    """
    entry = element[position]
    bucket = np.int64(entry["identity"] % np.uint64(buckets))
    entry["bucket"] = bucket
    previous = before[bucket]
    if previous < 0:
        # The bucket is empty: insert at the front, before the previous front.
        previous = head
        front = element[head]["after"]
        if front >= 0:
            before[element[front]["bucket"]] = position
        before[bucket] = head
    entry["after"] = element[previous]["after"]
    element[previous]["after"] = position


@compiled
def _expand_buckets(
    head: Integer, buckets: Integer, element: Records, before: Int64Array
) -> Integer:
    """Increase the bucket count to the next of `BUCKET_COUNTS` and reinsert all elements.

    They are reinserted in list order. Returns the new count.
    """
    for bucket in range(buckets):
        before[bucket] = -1
    for bucket_count in BUCKET_COUNTS:
        if bucket_count > buckets:
            buckets = bucket_count
            break
    position = element[head]["after"]
    element[head]["after"] = -1
    while position >= 0:
        # Read first: inserting the element overwrites it.
        following = element[position]["after"]
        _insert_element(position, head, buckets, element, before)
        position = following
    return buckets
