"""List scheduling of messages over several links, compiled. Import it late: numba takes a second.

Every job occupies one link. Whenever a link is free, the job of least rank of those that are ready
there starts (Graham, SIAM J. Appl. Math. 17, 1969). A job is ready when all that it waits for have
arrived. A switch has no say: what it forwards goes in the order of arrival. Invariant: events are
taken in the order of time, so that at each choice all that is ready by then is known. Cost: two
heap operations a job.
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


class _Lines(NamedTuple):
    """What waits for every link: a heap each, from `begin` on, of `size`; int64 by link.

    `free`: when the link is free.
    """

    heaps: _Heaps
    begin: Int64Array
    size: Int64Array
    free: Int64Array


@part
def _empty_lines(link: Int64Array, num_links: int) -> _Lines:
    """Lines with room for all jobs of each link."""
    count = len(link)
    begin = np.zeros(num_links + 1, np.int64)
    for job in range(count):
        begin[link[job] + 1] += 1
    for place in range(num_links):
        begin[place + 1] += begin[place]
    heaps = _Heaps(np.empty(count, np.int64), np.empty(count, np.int64))
    size = np.zeros(num_links, np.int64)
    free = np.zeros(num_links, np.int64)
    return _Lines(heaps, begin, size, free)


@part
def _line_up(lines: _Lines, used: int, key: int, job: int) -> None:
    """Let a job wait for a link."""
    begin = lines.begin[used]
    size = lines.size[used]
    _push(lines.heaps, begin, size, key, job)
    lines.size[used] += 1


@part
def _line_up_first(lines: _Lines, link: Int64Array, waits: Int64Array, rank: Int64Array) -> None:
    """Let all jobs wait that are ready at the beginning."""
    count = len(link)
    by_rank = np.empty(count, np.int64)
    for job in range(count):
        by_rank[rank[job]] = job
    # Sorted entries stay where a heap takes them in.
    for place in range(count):
        job = by_rank[place]
        if waits[job] == 0:
            _line_up(lines, link[job], place, job)


@part
def _next_job(lines: _Lines, used: int, now: int) -> int:
    """Take the job that a link begins now out of its line; -1 for none."""
    if lines.free[used] > now:
        return -1
    if lines.size[used] == 0:
        return -1
    begin = lines.begin[used]
    size = lines.size[used]
    job = _popped(lines.heaps, begin, size)
    lines.size[used] -= 1
    return job


@part
def _counts_of(following: Int64Array, count: int) -> Int64Array:
    """How often each job is named."""
    counts = np.zeros(count, np.int64)
    for job in following:
        counts[job] += 1
    return counts


@part
def _arrive(
    behind: Int64Array,
    then: int,
    ready: Int64Array,
    waits: Int64Array,
    events: _Heaps,
    num_events: int,
) -> int:
    """Number of events after jobs have been told of an arrival: those that wait no more are one."""
    for after in behind:
        # The last one that it waits for need not be the last to arrive.
        ready[after] = max(ready[after], then)
        waits[after] -= 1
        if waits[after] == 0:
            _push(events, 0, num_events, ready[after], after)
            num_events += 1
    return num_events


@kernel
def list_starts(
    link: Int64Array,
    indptr: Int64Array,
    following: Int64Array,
    busy: Int64Array,
    arrival: Int64Array,
    rank: Int64Array,
    is_forwarded: BoolArray,
    num_links: int,
) -> Int64Array:
    """Start of every job in the unit of `busy` and `arrival`, int64.

    `following[indptr[j]:indptr[j + 1]]`: the jobs that wait for job j; without cycles. `rank`:
    smaller goes first, where the job is not `is_forwarded` by a switch.
    """
    count = len(link)
    start = np.full(count, -1, np.int64)
    lines = _empty_lines(link, num_links)
    waits = _counts_of(following, count)
    ready = np.zeros(count, np.int64)
    _line_up_first(lines, link, waits, rank)
    # A job becomes ready, or a link free: what has a number from `count` on.
    room = count + num_links
    events = _Heaps(np.empty(room, np.int64), np.empty(room, np.int64))
    num_events = 0
    # At time 0 every link may begin.
    touched = np.arange(num_links)
    is_touched = np.ones(num_links, np.bool_)
    num_touched = num_links
    now = 0
    while True:
        for place in range(num_touched):
            used = touched[place]
            is_touched[used] = False
            job = _next_job(lines, used, now)
            if job < 0:
                continue
            start[job] = now
            free = now + busy[job]
            lines.free[used] = free
            _push(events, 0, num_events, free, used + count)
            num_events += 1
            behind = following[indptr[job] : indptr[job + 1]]
            num_events = _arrive(behind, now + arrival[job], ready, waits, events, num_events)
        if num_events == 0:
            return start
        now = events.keys[0]
        num_touched = 0
        # The choice waits until all of this instant is known.
        while num_events > 0 and events.keys[0] == now:
            what = _popped(events, 0, num_events)
            num_events -= 1
            used = what - count
            if what < count:
                used = link[what]
                key = now if is_forwarded[what] else rank[what]
                _line_up(lines, used, key, what)
            if not is_touched[used]:
                is_touched[used] = True
                touched[num_touched] = used
                num_touched += 1
