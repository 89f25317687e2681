"""Parts of kernels: the event queue of ASTRA-sim.

Events with equal time form a FIFO queue (a bucket); buckets are in a binary heap ordered by (time,
creation order). Events are returned in the order in which ASTRA-sim calls its callbacks, also
within one nanosecond. Cost: O(1) for an event if a bucket of its time exists, else O(log n).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from collhub_kernels import compiled
from hub_core.columns import Int64Array

Records = npt.NDArray[np.void]
Integer = int | np.int64
HEAP = np.dtype([("first", np.int64), ("size", np.int64)], align=True)
# An entry of a heap.
ENTRY = np.dtype([("time", np.int64), ("sequence", np.int64), ("item", np.int64)], align=True)
# FIFO queue of the events of one time: indices of the first and the last event.
BUCKET = np.dtype([("time", np.int64), ("first", np.int64), ("last", np.int64)], align=True)
EVENT = np.dtype([("item", np.int64), ("next", np.int64)], align=True)
# Free list of events or buckets: the last one returned, and the first one never used. Both are
# reused last in, first out, so that few of them occupy the cache.
STORE = np.dtype([("returned", np.int64), ("fresh", np.int64)], align=True)


class EventQueue(Protocol):
    """The fields of a state that represent the event queue, as in `SimulatedWorld`."""

    @property
    def heap(self) -> Records: ...
    @property
    def entry(self) -> Records: ...
    @property
    def bucket(self) -> Records: ...
    @property
    def event(self) -> Records: ...
    @property
    def recent(self) -> Int64Array: ...
    @property
    def store(self) -> Records: ...
    @property
    def counter(self) -> Int64Array: ...


BUCKETS = np.int64(0)
RECENT_TIMES = 1 << 10


# --- events of one time ---


@compiled
def push(world: EventQueue, time: Integer, item: Integer) -> None:
    """Append an event at `time` (ns) to the queue of events with the same time (bucket).

    A new bucket is created if `world.recent`, indexed by the time modulo `RECENT_TIMES`, has none
    of this time. So a time may have several buckets, in the order of their events. The lowest two
    bits of `item` are the kind of the event. The capacity of the pools is not checked.
    """
    event = _take_event_record(world)
    world.event[event]["item"] = item
    world.event[event]["next"] = -1
    recent_index = time & (RECENT_TIMES - 1)
    bucket_index = world.recent[recent_index]
    if bucket_index < 0 or world.bucket[bucket_index]["time"] != time:
        # A bucket of this time may exist that another time has displaced from `recent`. All events
        # of the new bucket come after those of the old one, which receives no more events.
        bucket_index = _take_bucket_record(world)
        world.recent[recent_index] = bucket_index
        bucket = world.bucket[bucket_index]
        bucket["time"], bucket["first"], bucket["last"] = time, event, event
        insert(world, BUCKETS, time, bucket_index)
        return
    bucket = world.bucket[bucket_index]
    # A bucket may become empty while its events are processed.
    if bucket["first"] < 0:
        bucket["first"] = event
    else:
        world.event[bucket["last"]]["next"] = event
    bucket["last"] = event


@compiled
def take_event(bucket_index: Integer, world: EventQueue) -> Integer:
    """Remove the first event of a bucket, which must not be empty, and return its item.

    The bucket remains in the queue, even if it is empty now. The record of the event is freed; it
    is the first one that `push` reuses.
    """
    index = world.bucket[bucket_index]["first"]
    event = world.event[index]
    item: Integer = event["item"]
    world.bucket[bucket_index]["first"] = event["next"]
    event["next"] = world.store[0]["returned"]
    world.store[0]["returned"] = index
    return item


@compiled
def remove_bucket(bucket_index: Integer, now: Integer, world: EventQueue) -> None:
    """Remove the bucket on top of the heap, which must be empty and of time `now`, and free it.

    Events of the same time that are added later get a new bucket. The conditions are not checked.
    """
    pop(world.entry, world.heap, BUCKETS)
    recent_index = now & (RECENT_TIMES - 1)
    if world.recent[recent_index] == bucket_index:
        world.recent[recent_index] = -1
    world.bucket[bucket_index]["first"] = world.store[1]["returned"]
    world.store[1]["returned"] = bucket_index


@compiled
def _take_event_record(world: EventQueue) -> Integer:
    """Allocate an event and return its index: the one returned last, if any, else a fresh one.

    The record is not initialized, and the capacity of the pool is not checked.
    """
    store = world.store[0]
    index: Integer = store["returned"]
    if index >= 0:
        store["returned"] = world.event[index]["next"]
        return index
    index = store["fresh"]
    store["fresh"] = index + 1
    return index


@compiled
def _take_bucket_record(world: EventQueue) -> Integer:
    """Allocate a bucket and return its index: the one returned last, if any, else a fresh one.

    The record is not initialized, and the capacity of the pool is not checked.
    """
    store = world.store[1]
    index: Integer = store["returned"]
    if index >= 0:
        store["returned"] = world.bucket[index]["first"]
        return index
    index = store["fresh"]
    store["fresh"] = index + 1
    return index


# --- binary heaps by (time, order of making) ---


@compiled
def insert(world: EventQueue, heap: Integer, time: Integer, item: Integer) -> None:
    """Insert an item into a heap, ordered by `time`, after all entries of equal time.

    `heap`: number of the heap. Its range of `world.entry` must have space for one more entry; this
    is not checked. The entry gets the next number of `world.counter`, which orders equal times.
    """
    sequence = world.counter[0]
    world.counter[0] = sequence + 1
    entries, heaps = world.entry, world.heap
    first = heaps[heap]["first"]
    hole = heaps[heap]["size"]
    heaps[heap]["size"] = hole + 1
    # A new entry has the largest sequence number, so among equal times it stays below.
    while hole > 0:
        parent = (hole - 1) >> 1
        if entries[first + parent]["time"] <= time:
            break
        _copy_entry(entries, first + parent, first + hole)
        hole = parent
    entry = entries[first + hole]
    entry["time"] = time
    entry["sequence"] = sequence
    entry["item"] = item


@compiled
def pop(entries: Records, heaps: Records, heap: Integer) -> None:
    """Remove the first entry of the heap with index `heap`, which must not be empty (not checked).

    The first entry is the one with the earliest time, then the earliest insertion. The entry is not
    returned, so the caller reads the entry before. The remaining entries are rearranged in place in
    `entries`, and the size of the heap decreases by 1; its range in `entries` stays the same.
    """
    first = heaps[heap]["first"]
    size = heaps[heap]["size"] - 1
    heaps[heap]["size"] = size
    hole, child = 0, 1
    while child < size:
        if child + 1 < size and _is_before(entries, first + child + 1, first + child):
            child += 1
        if _is_before(entries, first + size, first + child):
            break
        _copy_entry(entries, first + child, first + hole)
        hole = child
        child = 2 * child + 1
    _copy_entry(entries, first + size, first + hole)


@compiled
def _is_before(entries: Records, index: Integer, other_index: Integer) -> bool:
    """Return whether entry `index` of a heap precedes entry `other_index`: the smaller time first.

    Of equal times, the smaller `sequence`, which is the order of insertion.
    """
    first, second = entries[index], entries[other_index]
    if first["time"] != second["time"]:
        return bool(first["time"] < second["time"])
    return bool(first["sequence"] < second["sequence"])


@compiled
def _copy_entry(entries: Records, origin: Integer, destination: Integer) -> None:
    """Copy one entry of a heap (time, sequence, item) to another position of the same array.

    The entry at `destination` is overwritten.
    """
    # Field by field, because numba does not support the assignment of records.
    source, target = entries[origin], entries[destination]
    target["time"] = source["time"]
    target["sequence"] = source["sequence"]
    target["item"] = source["item"]
