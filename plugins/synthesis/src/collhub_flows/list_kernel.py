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
from collhub_packing.compiling import lean_kernel, lean_part

from hub_core.columns import BoolArray, Int64Array, first_positions


class _Heaps(NamedTuple):
    """Binary heaps of (key, item), each in a part of two arrays; items are distinct."""

    keys: Int64Array
    items: Int64Array


@lean_part
def _precedes(key: int, item: int, other_key: int, other_item: int) -> bool:
    """Whether an entry goes before another one."""
    return key < other_key or (key == other_key and item < other_item)


@lean_part
def _push(heaps: _Heaps, base: int, size: int, key: int, item: int) -> None:
    """Add an entry to the heap of `size` entries from `base` on: those above it move down."""
    keys, items = heaps.keys, heaps.items
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if _precedes(keys[base + above], items[base + above], key, item):
            break
        keys[base + place] = keys[base + above]
        items[base + place] = items[base + above]
        place = above
    keys[base + place] = key
    items[base + place] = item


@lean_part
def _popped(heaps: _Heaps, base: int, size: int) -> int:
    """Take the item of the first entry out of the heap from `base` on, of `size` entries."""
    keys, items = heaps.keys, heaps.items
    top = items[base]
    last = size - 1
    key, item = keys[base + last], items[base + last]
    place, below = 0, 1
    while below < last:
        # The smaller one of the two below moves up, until the last entry fits.
        one, other = base + below, base + below + 1
        if below + 1 < last and _precedes(keys[other], items[other], keys[one], items[one]):
            below += 1
        if _precedes(key, item, keys[base + below], items[base + below]):
            break
        keys[base + place] = keys[base + below]
        items[base + place] = items[base + below]
        place = below
        below = 2 * place + 1
    keys[base + place] = key
    items[base + place] = item
    return int(top)


class _Jobs(NamedTuple):
    """What is to be done; int64 and bool arrays that are only read: see `list_starts`."""

    link: Int64Array
    indptr: Int64Array
    following: Int64Array
    busy: Int64Array
    arrival: Int64Array
    rank: Int64Array
    is_forwarded: BoolArray


class _State(NamedTuple):
    """How far the schedule is.

    `start`: of every job, -1: not yet. `waits`: how many others a job still waits for; `ready`:
    the last arrival of those that it waited for. What waits for link l is a heap of `lines` at
    `line_begin[l]`, `line_size[l]` long; `free`: when the link is free. An event is a job that
    becomes ready, or a link that becomes free: what has a number behind those of all jobs.
    `touched`: links to look at in this instant.
    """

    start: Int64Array
    waits: Int64Array
    ready: Int64Array
    lines: _Heaps
    line_begin: Int64Array
    line_size: Int64Array
    free: Int64Array
    events: _Heaps
    touched: Int64Array
    is_touched: BoolArray


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
    by_rank = np.empty(count, np.int64)
    by_rank[rank] = np.arange(count)
    state = _State(
        start=np.full(count, -1, np.int64),
        waits=np.bincount(following, minlength=count).astype(np.int64),
        ready=np.zeros(count, np.int64),
        lines=_Heaps(np.empty(count, np.int64), np.empty(count, np.int64)),
        line_begin=first_positions(np.bincount(link, minlength=num_links)),
        line_size=np.zeros(num_links, np.int64),
        free=np.zeros(num_links, np.int64),
        events=_Heaps(np.empty(count + num_links, np.int64), np.empty(count + num_links, np.int64)),
        # At time 0 every link may begin.
        touched=np.arange(num_links),
        is_touched=np.ones(num_links, np.bool_),
    )
    _run(_Jobs(link, indptr, following, busy, arrival, rank, is_forwarded), state, by_rank)
    return state.start


@lean_kernel
def _run(jobs: _Jobs, state: _State, by_rank: Int64Array) -> None:
    """Let all jobs happen; `by_rank`: the jobs in the order of their ranks."""
    count, num_touched = len(jobs.link), len(state.touched)
    # Sorted entries stay where a heap takes them in.
    for place in range(count):
        job = by_rank[place]
        if state.waits[job] == 0:
            _line_up(state, jobs.link[job], place, job)
    now, num_events = 0, 0
    while True:
        for place in range(num_touched):
            used = state.touched[place]
            state.is_touched[used] = False
            num_events = _begin_next(jobs, state, used, now, num_events)
        if num_events == 0:
            return
        now = state.events.keys[0]
        num_touched = 0
        # The choice waits until all of this instant is known.
        while num_events > 0 and state.events.keys[0] == now:
            what = _popped(state.events, 0, num_events)
            num_events -= 1
            used = what - count
            if what < count:
                used = jobs.link[what]
                key = now if jobs.is_forwarded[what] else jobs.rank[what]
                _line_up(state, used, key, what)
            if not state.is_touched[used]:
                state.is_touched[used] = True
                state.touched[num_touched] = used
                num_touched += 1


@lean_part
def _line_up(state: _State, used: int, key: int, job: int) -> None:
    """Let a job wait for a link."""
    _push(state.lines, state.line_begin[used], state.line_size[used], key, job)
    state.line_size[used] += 1


@lean_part
def _begin_next(jobs: _Jobs, state: _State, used: int, now: int, num_events: int) -> int:
    """Let a link that is free begin the first job of its line; the number of events then."""
    if state.free[used] > now or state.line_size[used] == 0:
        return num_events
    job = _popped(state.lines, state.line_begin[used], state.line_size[used])
    state.line_size[used] -= 1
    state.start[job] = now
    state.free[used] = now + jobs.busy[job]
    _push(state.events, 0, num_events, state.free[used], used + len(jobs.link))
    num_events += 1
    then = now + jobs.arrival[job]
    for place in range(jobs.indptr[job], jobs.indptr[job + 1]):
        after = jobs.following[place]
        # The last one that it waits for need not be the last to arrive.
        state.ready[after] = max(state.ready[after], then)
        state.waits[after] -= 1
        if state.waits[after] == 0:
            _push(state.events, 0, num_events, state.ready[after], after)
            num_events += 1
    return num_events
