"""List scheduling of messages over several links, compiled. Import it late: numba takes a second.

Every job occupies one link. Whenever a link is free, the job of least rank of those that are ready
there starts (Graham, SIAM J. Appl. Math. 17, 1969). A job is ready when all that it waits for have
arrived. Invariant: events are taken in the order of time, so that at each choice all that
is ready by then is known. Cost: two heap operations a job.
"""

from __future__ import annotations

import heapq

import numpy as np
from collhub_columns import Int64Array
from collhub_packing.compiling import kernel, part


@part
def _push(heap: Int64Array, base: int, size: int, key: int) -> None:
    """Add a key to the binary heap of `size` keys from `base` on."""
    place = size
    while place > 0:
        above = (place - 1) >> 1
        there = heap[base + above]
        if there <= key:
            break
        heap[base + place] = there
        place = above
    heap[base + place] = key


@part
def _popped(heap: Int64Array, base: int, size: int) -> int:
    """Take the least key out of the heap from `base` on, in which `size` keys remain."""
    least = heap[base]
    last = heap[base + size]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        # The smaller one of the two below moves up.
        first = base + below
        if below + 1 < size and heap[first + 1] < heap[first]:
            below += 1
            first += 1
        if last <= heap[first]:
            break
        heap[base + place] = heap[first]
        place = below
    heap[base + place] = last
    return int(least)


@kernel
def list_starts(
    link: Int64Array,
    indptr: Int64Array,
    following: Int64Array,
    busy: Int64Array,
    arrival: Int64Array,
    rank: Int64Array,
    num_links: int,
) -> Int64Array:
    """Start of every job in the unit of `busy` and `arrival`, int64.

    `following[indptr[j]:indptr[j + 1]]`: the jobs that wait for job j; without cycles. `rank`:
    smaller goes first.
    """
    count = len(link)
    start = np.full(count, -1, np.int64)
    waits = np.zeros(count, np.int64)
    for job in following:
        waits[job] += 1
    ready = np.zeros(count, np.int64)
    free = np.zeros(num_links, np.int64)
    # A heap per link in one array: `begin` is where it lies, `size` how many are in it.
    begin = np.zeros(num_links + 1, np.int64)
    for job in range(count):
        begin[link[job] + 1] += 1
    for place in range(num_links):
        begin[place + 1] += begin[place]
    size = np.zeros(num_links, np.int64)
    heap = np.empty(count, np.int64)
    by_rank = np.empty(count, np.int64)
    for job in range(count):
        by_rank[rank[job]] = job
    # Jobs that become ready, before links that become free in the same instant.
    events = [(np.int64(0), np.int64(0))]
    events.clear()
    for job in range(count):
        if waits[job] == 0:
            events.append((np.int64(0), np.int64(job)))
    heapq.heapify(events)
    while len(events) > 0:
        now, what = heapq.heappop(events)
        used = what - count
        if what < count:
            used = link[what]
            _push(heap, begin[used], size[used], rank[what])
            size[used] += 1
            # The choice waits until all of this instant is known.
            if free[used] <= now:
                heapq.heappush(events, (now, used + count))
            continue
        if free[used] > now or size[used] == 0:
            continue
        size[used] -= 1
        job = by_rank[_popped(heap, begin[used], size[used])]
        start[job] = now
        free[used] = now + busy[job]
        heapq.heappush(events, (free[used], used + count))
        for place in range(indptr[job], indptr[job + 1]):
            after = following[place]
            ready[after] = max(ready[after], now + arrival[job])
            waits[after] -= 1
            # The last one that it waits for need not be the last to arrive.
            if waits[after] == 0:
                heapq.heappush(events, (ready[after], after))
    return start


@kernel
def overtaking_channels(arc: Int64Array, finish: Int64Array) -> Int64Array:
    """Channel of every message, int64, so that none overtakes another on its arc and channel.

    Messages stand by arc and then by start. Each takes the first channel whose last message ends no
    later. Cost: messages times the channels of their arc, which is one where none overtakes.
    """
    count = len(arc)
    channel = np.zeros(count, np.int64)
    last = np.empty(count, np.int64)
    used = 0
    for row in range(count):
        if row == 0 or arc[row] != arc[row - 1]:
            used = 0
        place = 0
        while place < used and last[place] > finish[row]:
            place += 1
        used = max(used, place + 1)
        last[place] = finish[row]
        channel[row] = place
    return channel
