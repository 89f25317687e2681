"""List scheduling of messages over several links (compiled).

Import this module inside functions, because the import of numba takes a second.

Every job occupies one link. When a link is free, the ready job with the smallest rank starts there
(Graham, SIAM J. Appl. Math. 17, 1969). A job is ready when all jobs that it waits for have arrived.
A switch cannot choose: jobs that it forwards start in the order of arrival. Invariant: events are
processed in the order of time, so that all ready jobs are known at each choice. Cost: two heap
operations per job.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_packing.compiling import lean_kernel, lean_part

from hub_core.columns import BoolArray, Int64Array, first_positions


class _Heaps(NamedTuple):
    """Binary heaps of (key, item), each stored in a range of two arrays; items are distinct."""

    keys: Int64Array
    items: Int64Array


@lean_part
def _precedes(key: int, item: int, other_key: int, other_item: int) -> bool:
    """Whether an entry precedes another one: by key, then by item."""
    return key < other_key or (key == other_key and item < other_item)


@lean_part
def _push(heaps: _Heaps, base: int, size: int, key: int, item: int) -> None:
    """Add an entry (key, item) to a heap; the lowest key comes first, then the lowest item.

    The heap has `size` entries of the arrays in `heaps`, from index `base` on. The arrays must have
    room; the caller increases `size`.
    """
    keys, items = heaps.keys, heaps.items
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if _precedes(keys[base + parent], items[base + parent], key, item):
            break
        keys[base + hole] = keys[base + parent]
        items[base + hole] = items[base + parent]
        hole = parent
    keys[base + hole] = key
    items[base + hole] = item


@lean_part
def _pop(heaps: _Heaps, base: int, size: int) -> int:
    """Remove the first entry of a heap, and return its item.

    The heap has `size` entries of the arrays in `heaps`, from index `base` on. The first entry is
    the one with the lowest key, and among equal keys the lowest item. `size` must be at least 1;
    the caller reduces it. Other entries are moved.
    """
    keys, items = heaps.keys, heaps.items
    top = items[base]
    last = size - 1
    key, item = keys[base + last], items[base + last]
    hole, child = 0, 1
    while child < last:
        # The smaller child moves up until the last entry fits.
        left, right = base + child, base + child + 1
        if child + 1 < last and _precedes(keys[right], items[right], keys[left], items[left]):
            child += 1
        if _precedes(key, item, keys[base + child], items[base + child]):
            break
        keys[base + hole] = keys[base + child]
        items[base + hole] = items[base + child]
        hole = child
        child = 2 * hole + 1
    keys[base + hole] = key
    items[base + hole] = item
    return int(top)


class _Jobs(NamedTuple):
    """The jobs, as in `list_starts`; the arrays are only read."""

    link: Int64Array
    indptr: Int64Array
    following: Int64Array
    busy: Int64Array
    arrival: Int64Array
    rank: Int64Array
    is_forwarded: BoolArray


class _State(NamedTuple):
    """State of the schedule.

    `start`: start of every job, -1 if not started. `waits`: number of jobs for which a job still
    waits; `ready`: last arrival of the jobs for which it waited. Jobs that are ready for link l are
    a heap in `lines` that starts at `line_begin[l]` with `line_size[l]` entries; `free`: time at
    which the link is free. An event is a job that becomes ready, or a link that becomes free, with
    the number of jobs plus the number of the link. `touched`: links to process at this time.
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
    """Compute the start of every job by list scheduling: int64[jobs], in the unit of `busy`.

    `link`: link of each job; a link runs one job at a time, for its `busy` time, and never waits
    while a job is ready. `following[indptr[j]:indptr[j + 1]]`: jobs that wait for job j, until
    `arrival[j]` after its start. `rank`: a permutation; of the jobs that are ready for a link, the
    one with the lowest rank starts first. Jobs with `is_forwarded` (sent by a switch) use the time
    at which they became ready as their key instead. A job in a cycle of waits keeps the start -1.
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
        # At time 0 every link may start a job.
        touched=np.arange(num_links),
        is_touched=np.ones(num_links, np.bool_),
    )
    _run(_Jobs(link, indptr, following, busy, arrival, rank, is_forwarded), state, by_rank)
    return state.start


@lean_kernel
def _run(jobs: _Jobs, state: _State, by_rank: Int64Array) -> None:
    """Schedule all jobs by list scheduling; fill `state.start`.

    `by_rank`: the jobs sorted by rank. A job is ready when all jobs that it waits for have arrived.
    A free link starts its ready job with the lowest key: the rank, or the time of readiness for a
    job forwarded by a switch; ties go to the lower job number. Links choose only after all events
    of the same time are processed.
    """
    count, num_touched = len(jobs.link), len(state.touched)
    # Entries that are added in sorted order need no moves in the heap.
    for index in range(count):
        job = by_rank[index]
        if state.waits[job] == 0:
            _enqueue(state, jobs.link[job], index, job)
    now, num_events = 0, 0
    while True:
        for index in range(num_touched):
            used = state.touched[index]
            state.is_touched[used] = False
            num_events = _start_next(jobs, state, used, now, num_events)
        if num_events == 0:
            return
        now = state.events.keys[0]
        num_touched = 0
        # Links choose jobs only after all events of this time are processed.
        while num_events > 0 and state.events.keys[0] == now:
            event = _pop(state.events, 0, num_events)
            num_events -= 1
            used = event - count
            if event < count:
                used = jobs.link[event]
                key = now if jobs.is_forwarded[event] else jobs.rank[event]
                _enqueue(state, used, key, event)
            if not state.is_touched[used]:
                state.is_touched[used] = True
                state.touched[num_touched] = used
                num_touched += 1


@lean_part
def _enqueue(state: _State, used: int, key: int, job: int) -> None:
    """Add a ready job to the heap of link `used`, in place; the lowest (key, job) is first."""
    _push(state.lines, state.line_begin[used], state.line_size[used], key, job)
    state.line_size[used] += 1


@lean_part
def _start_next(jobs: _Jobs, state: _State, used: int, now: int, num_events: int) -> int:
    """Let link `used` start its first ready job, if the link is free at `now`.

    Returns the new number of events; it is unchanged if the link is occupied or no job is ready.
    Otherwise the job leaves the queue of the link and gets its start, and an event is added for the
    time at which the link becomes free. Each job that waited only for this one gets an event at the
    arrival of the last of its predecessors.
    """
    if state.free[used] > now or state.line_size[used] == 0:
        return num_events
    job = _pop(state.lines, state.line_begin[used], state.line_size[used])
    state.line_size[used] -= 1
    state.start[job] = now
    state.free[used] = now + jobs.busy[job]
    _push(state.events, 0, num_events, state.free[used], used + len(jobs.link))
    num_events += 1
    then = now + jobs.arrival[job]
    for index in range(jobs.indptr[job], jobs.indptr[job + 1]):
        after = jobs.following[index]
        # The predecessor that starts last need not arrive last.
        state.ready[after] = max(state.ready[after], then)
        state.waits[after] -= 1
        if state.waits[after] == 0:
            _push(state.events, 0, num_events, state.ready[after], after)
            num_events += 1
    return num_events
