"""One node's part of an all-gather on a network that looks alike everywhere. Import it late: numba takes a second."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collhub_tacos.compiling import kernel, part

Int64Array = npt.NDArray[np.int64]

NEVER = 1 << 60
# A chunk that a faster in-link could bring as well is left to it; of others, the more neighbours still need it the better.
_FASTER, _NEEDED = 10.0, 0.5


@kernel
def deliver_cells(
    shift: Int64Array,
    busy: Int64Array,
    arrival: Int64Array,
    tier: Int64Array,
    own: int,
    urgency: npt.NDArray[np.float64],
    latest: int,
) -> tuple[Int64Array, Int64Array]:
    """Which chunk comes over which in-link, and when it starts: int64[chunks] each, start `NEVER` where it does not come.

    `shift[j, x]`: what chunk x of the source of in-link j is at this node; x comes to the source when it comes here.
    Chunks 0..own-1 are there before. `busy`, `arrival`: picoseconds per in-link, the fastest first; `tier`: number of
    faster ones. A free in-link takes what suits it best of what its source has (ties: the least `urgency`), unless it
    would arrive after `latest`: then the others must bring it.
    """
    degree, num_chunks = shift.shape
    start, link = np.full(num_chunks, NEVER), np.full(num_chunks, -1)
    start[:own] = 0
    fastest = np.full(num_chunks, degree)
    waiting, num_waiting = np.empty((degree, num_chunks), np.int64), np.zeros(degree, np.int64)
    flying, first, end = (
        np.empty((degree, num_chunks), np.int64),
        np.zeros(degree, np.int64),
        np.zeros(degree, np.int64),
    )
    free = np.zeros(degree, np.int64)
    for chunk in range(own):
        _plan(shift, chunk, tier, fastest)
        _arrive(shift, chunk, start, waiting, num_waiting)
    now = np.int64(0)
    while now < NEVER:
        for slot in range(degree):
            while (
                first[slot] < end[slot] and start[flying[slot, first[slot]]] + arrival[slot] <= now
            ):
                _arrive(shift, flying[slot, first[slot]], start, waiting, num_waiting)
                first[slot] += 1
        for slot in range(degree):
            if free[slot] <= now and now + arrival[slot] <= latest:
                chunk = _choose(
                    shift, slot, tier[slot], start, waiting, num_waiting, fastest, urgency
                )
                if chunk >= 0:
                    start[chunk], link[chunk] = now, slot
                    free[slot] = now + busy[slot]
                    flying[slot, end[slot]] = chunk
                    end[slot] += 1
                    _plan(shift, chunk, tier, fastest)
        following = np.int64(NEVER)
        for slot in range(degree):
            if first[slot] < end[slot]:
                following = min(following, start[flying[slot, first[slot]]] + arrival[slot])
            if free[slot] > now:
                following = min(following, free[slot])
        now = following
    return start, link


@part
def _plan(shift: Int64Array, chunk: int, tier: Int64Array, fastest: Int64Array) -> None:
    """The chunk will be here, and at all sources alike: there is a way for what it becomes."""
    for slot in range(shift.shape[0]):
        fastest[shift[slot, chunk]] = min(fastest[shift[slot, chunk]], tier[slot])


@part
def _arrive(
    shift: Int64Array, chunk: int, start: Int64Array, waiting: Int64Array, num_waiting: Int64Array
) -> None:
    """The chunk is here, and at all sources alike: each in-link can bring what it becomes."""
    for slot in range(shift.shape[0]):
        if start[shift[slot, chunk]] == NEVER:
            waiting[slot, num_waiting[slot]] = shift[slot, chunk]
            num_waiting[slot] += 1


@part
def _choose(
    shift: Int64Array,
    slot: int,
    tier: int,
    start: Int64Array,
    waiting: Int64Array,
    num_waiting: Int64Array,
    fastest: Int64Array,
    urgency: npt.NDArray[np.float64],
) -> int:
    """The chunk that suits an in-link best, -1 for none; what has come by another one is dropped from its list."""
    kept, chosen, least = 0, -1, np.inf
    for place in range(num_waiting[slot]):
        chunk = waiting[slot, place]
        if start[chunk] != NEVER:
            continue
        waiting[slot, kept] = chunk
        kept += 1
        score = urgency[chunk] + (_FASTER if fastest[chunk] < tier else 0.0)
        for other in range(shift.shape[0]):
            score -= _NEEDED if start[shift[other, chunk]] == NEVER else 0.0
        if score < least:
            least, chosen = score, chunk
    num_waiting[slot] = kept
    return chosen


@kernel
def retime_cells(
    shift: Int64Array, busy: Int64Array, arrival: Int64Array, start: Int64Array, link: Int64Array
) -> Int64Array:
    """Starts as early as the order on every in-link allows: int64[chunks]; `link` is -1 for chunks that are there before."""
    degree, num_chunks = shift.shape
    came_from = np.full(num_chunks, -1)
    for slot in range(degree):
        for chunk in range(num_chunks):
            if link[shift[slot, chunk]] == slot:
                came_from[shift[slot, chunk]] = chunk
    free, earliest = np.zeros(degree, np.int64), np.zeros(num_chunks, np.int64)
    for chunk in np.argsort(start, kind="mergesort"):
        slot = link[chunk]
        if slot >= 0:
            other = came_from[chunk]
            there = earliest[other] + arrival[link[other]] if link[other] >= 0 else 0
            earliest[chunk] = max(free[slot], there)
            free[slot] = earliest[chunk] + busy[slot]
    return earliest
