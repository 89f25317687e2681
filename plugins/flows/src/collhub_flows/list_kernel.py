"""List scheduling of messages over several links, compiled. Import it late: numba takes a second.

Every job occupies one link. Whenever a link is free, the job of least rank of those that are ready
there starts (Graham, SIAM J. Appl. Math. 17, 1969). A job is ready when the one before it in its
chain has arrived. A switch has no say: what it forwards goes in the order of arrival. Invariant:
events are taken in the order of time, so that at each choice all that is ready by then is known.
Cost: two heap operations a job.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_columns import BoolArray, Int64Array
from collhub_packing.compiling import kernel, part


class _Heaps(NamedTuple):
    """Binary heaps of (key, item), each in a part of two arrays; items are distinct."""

    keys: Int64Array
    items: Int64Array


@part
def _precedes(heaps: _Heaps, place: int, other: int) -> bool:
    """Whether the entry at a place goes before another one."""
    if heaps.keys[place] != heaps.keys[other]:
        return bool(heaps.keys[place] < heaps.keys[other])
    return bool(heaps.items[place] < heaps.items[other])


@part
def _swap(heaps: _Heaps, place: int, other: int) -> None:
    key, item = heaps.keys[place], heaps.items[place]
    heaps.keys[place] = heaps.keys[other]
    heaps.items[place] = heaps.items[other]
    heaps.keys[other] = key
    heaps.items[other] = item


@part
def _push(heaps: _Heaps, base: int, size: int, key: int, item: int) -> None:
    """Add an entry to the heap of `size` entries from `base` on."""
    heaps.keys[base + size] = key
    heaps.items[base + size] = item
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if _precedes(heaps, base + above, base + place):
            break
        _swap(heaps, base + above, base + place)
        place = above


@part
def _popped(heaps: _Heaps, base: int, size: int) -> int:
    """Take the item of the first entry out of the heap from `base` on, of `size` entries."""
    top = heaps.items[base]
    last = size - 1
    heaps.keys[base] = heaps.keys[base + last]
    heaps.items[base] = heaps.items[base + last]
    place, below = 0, 1
    while below < last:
        # The smaller one of the two below moves up.
        if below + 1 < last and _precedes(heaps, base + below + 1, base + below):
            below += 1
        if _precedes(heaps, base + place, base + below):
            break
        _swap(heaps, base + place, base + below)
        place = below
        below = 2 * place + 1
    return int(top)


@kernel
def list_starts(
    link: Int64Array,
    following: Int64Array,
    is_first: Int64Array,
    busy: Int64Array,
    arrival: Int64Array,
    rank: Int64Array,
    is_forwarded: BoolArray,
    num_links: int,
) -> Int64Array:
    """Start of every job in the unit of `busy` and `arrival`, int64.

    `following`: the next job of the chain, -1 behind the last. `rank`: smaller goes first, where
    the job is not `is_forwarded` by a switch.
    """
    count = len(link)
    start = np.full(count, -1, np.int64)
    # Lines of the links one behind the other: `begin` is where each lies.
    begin = np.zeros(num_links + 1, np.int64)
    for job in range(count):
        begin[link[job] + 1] += 1
    for place in range(num_links):
        begin[place + 1] += begin[place]
    lines = _Heaps(np.empty(count, np.int64), np.empty(count, np.int64))
    size = np.zeros(num_links, np.int64)
    free = np.zeros(num_links, np.int64)
    # A job becomes ready, or a link free: what has a number from `count` on.
    events = _Heaps(np.empty(count + num_links, np.int64), np.empty(count + num_links, np.int64))
    num_events, num_forwarded = 0, 0
    by_rank = np.empty(count, np.int64)
    for job in range(count):
        by_rank[rank[job]] = job
    # Sorted entries stay where a heap takes them in.
    for place in range(count):
        job = by_rank[place]
        if is_first[job] == 1:
            used = link[job]
            _push(lines, begin[used], size[used], rank[job], job)
            size[used] += 1
    for used in range(num_links):
        _push(events, 0, num_events, 0, used + count)
        num_events += 1
    touched = np.empty(num_links, np.int64)
    is_touched = np.zeros(num_links, np.bool_)
    while num_events > 0:
        now = events.keys[0]
        num_touched = 0
        # The choice waits until all of this instant is known.
        while num_events > 0 and events.keys[0] == now:
            what = _popped(events, 0, num_events)
            num_events -= 1
            used = what - count
            if what < count:
                used = link[what]
                key = rank[what]
                if is_forwarded[what]:
                    key = num_forwarded
                    num_forwarded += 1
                _push(lines, begin[used], size[used], key, what)
                size[used] += 1
            if not is_touched[used]:
                is_touched[used] = True
                touched[num_touched] = used
                num_touched += 1
        for place in range(num_touched):
            used = touched[place]
            is_touched[used] = False
            if free[used] > now or size[used] == 0:
                continue
            job = _popped(lines, begin[used], size[used])
            size[used] -= 1
            start[job] = now
            free[used] = now + busy[job]
            _push(events, 0, num_events, free[used], used + count)
            num_events += 1
            if following[job] >= 0:
                _push(events, 0, num_events, now + arrival[job], following[job])
                num_events += 1
    return start
