"""One node's part of an all-gather on a network that looks alike everywhere, links of any times.

Algorithm: TACOS's greedy matching (Won et al., MICRO 2024) at one node in continuous time: whenever
an in-link is free, it takes the chunk that suits it best of those that its source has. What the
node gets, every other node gets at the same instant, moved; so the source has a chunk exactly when
this node has what the chunk is from the source's place.

Invariant: a chunk has a start as soon as it is on its way, and is in the list of an in-link from
when its source has it until it is taken. Cost: per message one look at what waits for its in-link,
and one at all in-links for each of these.

Import it late: numba takes a second.
"""

from __future__ import annotations

import numpy as np
from collhub_packing.compiling import kernel, part

from hub_core.columns import Float64Array, Int64Array

NEVER = 1 << 60
# A chunk that a faster in-link could bring as well is left to it; of others, the more neighbours
# still need it the better.
_FASTER, _NEEDED = 10.0, 0.5


@kernel
def deliver_cells(
    shift: Int64Array,
    busy: Int64Array,
    arrival: Int64Array,
    tier: Int64Array,
    own: int,
    urgency: Float64Array,
    latest: int,
) -> tuple[Int64Array, Int64Array]:
    """Which chunk comes over which in-link, and when it starts: int64[chunks] each.

    The start is `NEVER` where a chunk does not come. `shift[j, x]`: what chunk x of the source of
    in-link j is at this node; x comes to the source when it comes here. Chunks 0..own-1 are there
    before. `busy`, `arrival`: picoseconds per in-link, the fastest first; `tier`: number of faster
    ones. A free in-link takes what suits it best of what its source has (ties: the least
    `urgency`), unless it would arrive after `latest`: then the others must bring it.
    """
    degree, num_chunks = shift.shape
    start, link = np.full(num_chunks, NEVER), np.full(num_chunks, -1)
    start[:own] = 0
    fastest = np.full(num_chunks, degree)
    waiting, num_waiting = np.empty((degree, num_chunks), np.int64), np.zeros(degree, np.int64)
    # Per in-link a queue of what is on its way: entries `first[j]..end[j] - 1` of its row.
    flying = np.empty((degree, num_chunks), np.int64)
    first, end = np.zeros(degree, np.int64), np.zeros(degree, np.int64)
    free = np.zeros(degree, np.int64)
    # Chunks of the node itself, and of all others at once.
    for chunk in range(own):
        _plan(shift, chunk, tier, fastest)
        _arrive(shift, chunk, start, waiting, num_waiting)
    now = np.int64(0)
    while now < NEVER:
        # What arrives now can be sent on now: arrivals before departures.
        for slot in range(degree):
            while (
                first[slot] < end[slot] and start[flying[slot, first[slot]]] + arrival[slot] <= now
            ):
                _arrive(shift, flying[slot, first[slot]], start, waiting, num_waiting)
                first[slot] += 1
        for slot in range(degree):
            # Too late here: a faster in-link has to bring what is left.
            if free[slot] > now or now + arrival[slot] > latest:
                continue
            chunk = _choose(shift, slot, tier[slot], start, waiting, num_waiting, fastest, urgency)
            if chunk >= 0:
                start[chunk], link[chunk] = now, slot
                free[slot] = now + busy[slot]
                flying[slot, end[slot]] = chunk
                end[slot] += 1
                _plan(shift, chunk, tier, fastest)
        # Between two events no link gets free and no chunk arrives.
        now = _next_event(now, start, flying, first, end, arrival, free)
    return start, link


@part
def _plan(shift: Int64Array, chunk: int, tier: Int64Array, fastest: Int64Array) -> None:
    """The chunk will be here, and at all sources alike: there is a way for what it becomes."""
    for slot in range(shift.shape[0]):
        moved = shift[slot, chunk]
        fastest[moved] = min(fastest[moved], tier[slot])


@part
def _arrive(
    shift: Int64Array,
    chunk: int,
    start: Int64Array,
    waiting: Int64Array,
    num_waiting: Int64Array,
) -> None:
    """The chunk is here, and at all sources alike: each in-link can bring what it becomes."""
    for slot in range(shift.shape[0]):
        moved = shift[slot, chunk]
        if start[moved] == NEVER:
            waiting[slot, num_waiting[slot]] = moved
            num_waiting[slot] += 1


@part
def _next_event(
    now: np.int64,
    start: Int64Array,
    flying: Int64Array,
    first: Int64Array,
    end: Int64Array,
    arrival: Int64Array,
    free: Int64Array,
) -> np.int64:
    """When the next chunk arrives or the next in-link gets free, `NEVER` for neither."""
    following = np.int64(NEVER)
    for slot in range(len(free)):
        if first[slot] < end[slot]:
            lands = start[flying[slot, first[slot]]] + arrival[slot]
            following = min(following, lands)
        if free[slot] > now:
            following = min(following, free[slot])
    return following


@part
def _choose(
    shift: Int64Array,
    slot: int,
    tier: int,
    start: Int64Array,
    waiting: Int64Array,
    num_waiting: Int64Array,
    fastest: Int64Array,
    urgency: Float64Array,
) -> int:
    """The chunk that suits an in-link best, -1 for none.

    What has come by another one is dropped from its list.
    """
    kept, chosen, least = 0, -1, np.inf
    for place in range(num_waiting[slot]):
        chunk = waiting[slot, place]
        if start[chunk] != NEVER:
            continue
        waiting[slot, kept] = chunk
        kept += 1
        score = urgency[chunk]
        # A faster in-link has it, or will.
        if fastest[chunk] < tier:
            score += _FASTER
        for other in range(shift.shape[0]):
            # To others it is a chunk that they lack: it serves them when it is here.
            if start[shift[other, chunk]] == NEVER:
                score -= _NEEDED
        if score < least:
            least, chosen = score, chunk
    num_waiting[slot] = kept
    return chosen


@kernel
def retime_cells(
    shift: Int64Array,
    busy: Int64Array,
    arrival: Int64Array,
    start: Int64Array,
    link: Int64Array,
) -> Int64Array:
    """Starts as early as the order on every in-link allows: int64[chunks].

    `link` is -1 for chunks that are there before. One pass in the order of the given starts, in
    which causes stand before effects.
    """
    degree, num_chunks = shift.shape
    came_from = np.full(num_chunks, -1)
    for slot in range(degree):
        for chunk in range(num_chunks):
            if link[shift[slot, chunk]] == slot:
                came_from[shift[slot, chunk]] = chunk
    free, earliest = np.zeros(degree, np.int64), np.zeros(num_chunks, np.int64)
    for chunk in np.argsort(start, kind="mergesort"):
        slot = link[chunk]
        if slot < 0:
            continue
        # The chunk is at the source when what it is from there has come here.
        other = came_from[chunk]
        there = earliest[other] + arrival[link[other]] if link[other] >= 0 else 0
        earliest[chunk] = max(free[slot], there)
        free[slot] = earliest[chunk] + busy[slot]
    return earliest
