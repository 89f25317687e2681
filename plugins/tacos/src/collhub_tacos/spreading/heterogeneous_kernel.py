"""Compiled events of an all-gather: a link that delivers takes what is least easily had elsewhere.

Algorithm: TACOS (Won et al., MICRO 2024) matches chunks to links when a link gets free, by events
in continuous time where links differ, and exchanges a message that came to be in vain when it
arrives. Here what a message carries is decided only when it arrives, among the chunks that its
source had when it left: the one that the in-neighbours of the destination could give least fast
otherwise, by the rates of their links. This is legal because all is planned beforehand.

Invariant: a message carries what its source had at its start (`known`), so every schedule is
causal; a chunk gets an infinite supply where it is held, so nothing is sent twice or in vain.

Cost: per delivery one look at what the source had and the destination lacks, at most links x
chunks^2 in all, and O(log links) in the heap of links by the time at which they deliver.

`advance` makes no array, so that no references are counted. Import it late: importing numba takes a
second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from collhub_packing.compiling import inlined, lean_kernel, lean_part

from hub_core.columns import BoolArray, Int64Array

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

_HELD = np.float32(np.inf)
# Work of an event beside the chunks that are looked at, in the same unit.
_EVENT = 32
# In place of the time at which a message leaves.
_AS_IT_DID, _NEVER = -1, -2


class DeliveryLinks(NamedTuple):
    """Network: per link `source`, `destination`, `busy`, `arrival` (ps), `rate` (relative).

    `turn`: rank in ties; `patience`: ps by which a message may leave later for a rarer chunk. The
    out-links of node v are `out_links[out_indptr[v]:out_indptr[v + 1]]`.
    """

    source: Int64Array
    destination: Int64Array
    busy: Int64Array
    arrival: Int64Array
    rate: Float32Array
    turn: Int64Array
    patience: Int64Array
    out_indptr: Int64Array
    out_links: Int64Array


class DeliveryState(NamedTuple):
    """State of the kernel between two slices: all arrays change in place.

    `supply`: float32[nodes, chunks], the rate at which in-neighbours could give a chunk, infinite
    where it is there; `log`, `via`, `when`: [nodes, chunks], chunks in order of arrival, the link
    and the time; `filled`: int64[nodes]. Per link: `start`, `finish` of its next message; `first`,
    `known`: entries of the source's log before `first` are at the destination, those before `known`
    left the source in time; `is_idle`; `has_waited` for a rarer chunk. `heap`: links with a
    message, by finish.
    """

    supply: Float32Array
    log: Int32Array
    via: Int32Array
    when: Int64Array
    filled: Int64Array
    start: Int64Array
    finish: Int64Array
    first: Int64Array
    known: Int64Array
    is_idle: BoolArray
    has_waited: BoolArray
    heap: Int64Array


@lean_kernel
def advance(
    links: DeliveryLinks,
    state: DeliveryState,
    origin: Int64Array,
    needed: BoolArray,
    waiting: int,
    missing: int,
    budget: int,
) -> tuple[int, int]:
    """Deliver until nothing is `missing`, no link is `waiting` or `budget` chunks were looked at.

    Returns `waiting` and `missing`. `missing`: chunks to deliver, over all nodes that are `needed`;
    `waiting`: links in the heap. Where `state.filled` is 0 everywhere, every chunk is put at its
    origin first.
    """
    source, destination, busy, arrival, rate, turn, patience, out_indptr, out_links = links
    supply, log, via, when, filled, start, finish, first, known, is_idle, has_waited, heap = state
    # Every chunk first arrives at its origin, at time 0 and over no link.
    to_place = len(origin) if not filled.any() else 0
    while to_place > 0 or (waiting > 0 and missing > 0 and budget > 0):
        if to_place > 0:
            to_place -= 1
            chunk = len(origin) - 1 - to_place
            node, now, link = origin[chunk], np.int64(0), -1
        else:
            # Links take turns in the order in which they deliver, equal ones by seed.
            link = _pop(heap, waiting, finish, turn)
            waiting -= 1
            giver, node, now = source[link], destination[link], finish[link]
            end = filled[giver]
            offers, chunks, times = supply[node], log[giver], when[giver]
            # What the destination holds is passed for good.
            entry = _skip_held(offers, chunks, first[link], end)
            first[link] = entry
            # Only what the source had when the message left may be in it: causality.
            latest = _skip_until(times, max(entry, known[link]), end, start[link])
            known[link] = latest
            budget -= latest - entry + _EVENT
            best = _rarest(offers, chunks, entry, latest)
            leaves = _later_start(
                link, best, latest, end, offers, chunks, times, start, first, patience, has_waited
            )
            # `first` now stands at the end of the log: `_HELD` chunks alone lie before it.
            if leaves == _NEVER:
                is_idle[link] = True
                continue
            if leaves == _AS_IT_DID:
                # Delivered now; the link starts its next message as soon as it is free.
                chunk = int(chunks[best])
                missing -= int(needed[node])
                start[link] += busy[link]
            else:
                start[link] = leaves
            finish[link] = start[link] + arrival[link]
            waiting = _push(heap, waiting, finish, turn, link)
            if leaves != _AS_IT_DID:
                continue
        place = filled[node]
        log[node, place], via[node, place], when[node, place] = chunk, link, now
        filled[node] = place + 1
        # From here on no other link may bring it.
        supply[node, chunk] = _HELD
        # Every out-neighbour could get it from here, by the rate of the link.
        for place in range(out_indptr[node], out_indptr[node + 1]):
            onward = int(out_links[place])
            neighbour = destination[onward]
            # What is held stays held: infinity and a rate are infinity.
            supply[neighbour, chunk] += rate[onward]
            # A link that had nothing to carry has something now.
            if is_idle[onward] and supply[neighbour, chunk] < _HELD:
                is_idle[onward] = False
                start[onward] = max(start[onward], now)
                finish[onward] = start[onward] + arrival[onward]
                waiting = _push(heap, waiting, finish, turn, onward)
    return waiting, missing


@inlined
def _later_start(
    link: int,
    best: int,
    latest: int,
    end: int,
    supply: Float32Array,
    log: Int32Array,
    when: Int64Array,
    start: Int64Array,
    first: Int64Array,
    patience: Int64Array,
    has_waited: BoolArray,
) -> int:
    """When the message of a link leaves that would better have left later.

    `_AS_IT_DID` where it delivers the entry `best` now, `_NEVER` where its source has nothing for
    it. `latest`: entries of the log of the source that left in time, `end`: all of them.
    """
    leaves = _AS_IT_DID
    rarest = best
    # A message waits once, lest it wait for ever.
    if patience[link] > 0 and not has_waited[link]:
        soon = _skip_until(when, latest, end, start[link] + patience[link])
        later = _rarest(supply, log, latest, soon)
        if later >= 0 and _is_rarer(supply, log, later, best):
            rarest = later
            leaves = when[later]
    has_waited[link] = leaves >= 0
    if rarest < 0:
        # Nothing that left in time is of use: leave later, with the first that is.
        following = _skip_held(supply, log, latest, end)
        first[link] = following
        leaves = when[following] if following < end else _NEVER
    return leaves


@lean_part
def _skip_held(supply: Float32Array, log: Int32Array, entry: int, end: int) -> int:
    """The first entry of a log from `entry` on whose chunk is not held, `end` for none."""
    # What is held stays so: no cursor ever goes back.
    while entry < end and supply[log[entry]] == _HELD:
        entry += 1
    return entry


@lean_part
def _skip_until(when: Int64Array, entry: int, end: int, time: int) -> int:
    """The first entry of a log from `entry` on that arrived after `time`, `end` for none."""
    # Entries of a log stand in order of arrival.
    while entry < end and when[entry] <= time:
        entry += 1
    return entry


@lean_part
def _rarest(supply: Float32Array, log: Int32Array, first: int, end: int) -> int:
    """The entry of a part of a log whose chunk has the least supply, the first of several.

    -1 where all are held.
    """
    best, least = -1, _HELD
    for entry in range(first, end):
        offered = supply[log[entry]]
        if offered < least:
            best, least = entry, offered
    return best


@lean_part
def _is_rarer(supply: Float32Array, log: Int32Array, one: int, other: int) -> bool:
    """Whether the chunk of one entry has less supply than that of another, -1 for none."""
    return bool(other < 0 or supply[log[one]] < supply[log[other]])


@lean_part
def _push(heap: Int64Array, size: int, finish: Int64Array, turn: Int64Array, link: int) -> int:
    """Put a link into a heap by finish and turn; returns the new size."""
    # The hole moves up until what is above it is sooner.
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if not _is_sooner(finish, turn, link, heap[above]):
            break
        heap[place] = heap[above]
        place = above
    heap[place] = link
    return size + 1


@lean_part
def _pop(heap: Int64Array, size: int, finish: Int64Array, turn: Int64Array) -> int:
    """Take the first link out of a heap of `size` links."""
    end = size - 1
    top, link, place = heap[0], heap[end], 0
    while 2 * place + 1 < end:
        below = 2 * place + 1
        if below + 1 < end and _is_sooner(finish, turn, heap[below + 1], heap[below]):
            below += 1
        if not _is_sooner(finish, turn, heap[below], link):
            break
        heap[place] = heap[below]
        place = below
    heap[place] = link
    return int(top)


@lean_part
def _is_sooner(finish: Int64Array, turn: Int64Array, one: int, other: int) -> bool:
    """Whether a link comes before another in the heap."""
    if finish[one] != finish[other]:
        return bool(finish[one] < finish[other])
    return bool(turn[one] < turn[other])
