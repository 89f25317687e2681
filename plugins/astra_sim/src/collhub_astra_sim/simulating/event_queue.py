"""Parts of kernels: the event queue of ASTRA-sim.

Events of one time stand in line in a bucket, buckets in a binary heap by (time, order of making).
Events come out in the order in which ASTRA-sim calls its callbacks, also within one nanosecond.
Cost: O(1) for an event whose time has a bucket, else O(log n).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.compiling import compiled
from hub_core.columns import Int64Array

Records = npt.NDArray[np.void]
Integer = int | np.int64
HEAP = np.dtype([("first", np.int64), ("size", np.int64)], align=True)
# An entry of a heap.
ENTRY = np.dtype([("time", np.int64), ("sequence", np.int64), ("item", np.int64)], align=True)
# Events of one time, first come, first served: indices of events.
BUCKET = np.dtype([("time", np.int64), ("first", np.int64), ("last", np.int64)], align=True)
EVENT = np.dtype([("item", np.int64), ("next", np.int64)], align=True)
# What is free of events and buckets: the last one given back, and the first one never used. Both
# are used again last in, first out, so that few of them stay in the cache.
STORE = np.dtype([("returned", np.int64), ("fresh", np.int64)], align=True)


class EventQueue(Protocol):
    """The part of a state that holds its events, as in `SimulatedWorld`."""

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
    """Put an event behind all others of the same time.

    `time` is in ns; the lowest two bits of `item` are the kind of the event.
    """
    event = _taken_event(world)
    world.event[event]["item"] = item
    world.event[event]["next"] = -1
    kept = time & (RECENT_TIMES - 1)
    place = world.recent[kept]
    if place < 0 or world.bucket[place]["time"] != time:
        # There may be a bucket of this time that another time has driven out. Whatever goes into
        # the new one comes after all that is in the old one, into which nothing goes any more.
        place = _taken_bucket(world)
        world.recent[kept] = place
        bucket = world.bucket[place]
        bucket["time"], bucket["first"], bucket["last"] = time, event, event
        insert(world, BUCKETS, time, place)
        return
    bucket = world.bucket[place]
    # A bucket may have run empty while its own events happen.
    if bucket["first"] < 0:
        bucket["first"] = event
    else:
        world.event[bucket["last"]]["next"] = event
    bucket["last"] = event


@compiled
def next_event(place: Integer, world: EventQueue) -> Integer:
    """Take the first event of a bucket that has one.

    Its item is returned, and its record is the first that `push` uses again.
    """
    index = world.bucket[place]["first"]
    event = world.event[index]
    item: Integer = event["item"]
    world.bucket[place]["first"] = event["next"]
    event["next"] = world.store[0]["returned"]
    world.store[0]["returned"] = index
    return item


@compiled
def end_bucket(place: Integer, now: Integer, world: EventQueue) -> None:
    """Take the bucket on top of the heap, which is empty, away."""
    pop(world.entry, world.heap, BUCKETS)
    kept = now & (RECENT_TIMES - 1)
    if world.recent[kept] == place:
        world.recent[kept] = -1
    world.bucket[place]["first"] = world.store[1]["returned"]
    world.store[1]["returned"] = place


@compiled
def _taken_event(world: EventQueue) -> Integer:
    """An event that is free."""
    store = world.store[0]
    index: Integer = store["returned"]
    if index >= 0:
        store["returned"] = world.event[index]["next"]
        return index
    index = store["fresh"]
    store["fresh"] = index + 1
    return index


@compiled
def _taken_bucket(world: EventQueue) -> Integer:
    """A bucket that is free."""
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
    """Put an item in a heap: sift it up from the end, moving parents down into the hole."""
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
        _copy(entries, first + parent, first + hole)
        hole = parent
    entry = entries[first + hole]
    entry["time"] = time
    entry["sequence"] = sequence
    entry["item"] = item


@compiled
def pop(entries: Records, heaps: Records, heap: Integer) -> None:
    """Take the first entry of a heap away. The last entry sifts down from the top."""
    first = heaps[heap]["first"]
    size = heaps[heap]["size"] - 1
    heaps[heap]["size"] = size
    hole, child = 0, 1
    while child < size:
        if child + 1 < size and _is_before(entries, first + child + 1, first + child):
            child += 1
        if _is_before(entries, first + size, first + child):
            break
        _copy(entries, first + child, first + hole)
        hole = child
        child = 2 * child + 1
    _copy(entries, first + size, first + hole)


@compiled
def _is_before(entries: Records, one: Integer, other: Integer) -> bool:
    """Whether an entry comes out before another: the earlier one, then the one scheduled first."""
    first, second = entries[one], entries[other]
    if first["time"] != second["time"]:
        return bool(first["time"] < second["time"])
    return bool(first["sequence"] < second["sequence"])


@compiled
def _copy(entries: Records, origin: Integer, destination: Integer) -> None:
    # Field by field, as numba has no assignment of records.
    source, target = entries[origin], entries[destination]
    target["time"] = source["time"]
    target["sequence"] = source["sequence"]
    target["item"] = source["item"]
