"""Compiled events of an all-gather: a delivering link takes the chunk with the lowest supply.

Algorithm: TACOS (Won et al., MICRO 2024) matches chunks to links when a link becomes free, in
continuous time if links differ, and replaces a message that has become useless when it arrives.
Here the chunk of a message is chosen only at its arrival, among the chunks that its source had at
its start: the one with the lowest total rate of in-links that could bring it otherwise. This is
valid because the entire schedule is planned in advance.

Invariant: a message carries a chunk that its source had at its start (`known`), so every schedule
is causal. A present chunk has an infinite supply, so no chunk is sent twice.

Cost: per delivery one examination of the chunks that the source had and the destination lacks, at
most links x chunks^2 in total, and O(log links) for the heap of links by delivery time.

`advance` allocates no arrays, so no references are counted. Import this module inside functions:
numba takes a second to import.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from collhub_packing.compiling import inlined, lean_kernel, lean_part

from hub_core.columns import BoolArray, Int64Array

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

_PRESENT = np.float32(np.inf)
# Work of an event in addition to the examined chunks, in the same unit.
_WORK_PER_EVENT = 32
# Results of `_find_later_start` that are not times.
_UNCHANGED, _NEVER = -1, -2


class DeliveryLinks(NamedTuple):
    """Network: per link `source`, `destination`, `busy`, `arrival` (ps) and `rate` (relative).

    `tie_rank`: order in ties. `patience`: ps by which a message may start later for a rarer chunk.
    The out-links of node v are `out_links[out_indptr[v]:out_indptr[v + 1]]`.
    """

    source: Int64Array
    destination: Int64Array
    busy: Int64Array
    arrival: Int64Array
    rate: Float32Array
    tie_rank: Int64Array
    patience: Int64Array
    out_indptr: Int64Array
    out_links: Int64Array


class DeliveryState(NamedTuple):
    """State of the kernel between two calls; all arrays are modified in place.

    `supply`: float32[nodes, chunks], total rate of in-neighbours that could send a chunk, infinite
    if it is present. `log`, `via`, `when`: [nodes, chunks], chunks in order of arrival, their link
    and time. `filled`: int64[nodes], number of log entries. Per link: `start`, `finish` of its next
    message; `first`, `known`: log entries of the source before `first` are present at the
    destination, those before `known` were present at the start; `is_idle`; `has_waited` for a rarer
    chunk. `heap`: links with a message, by finish.
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
    """Process arrivals in the order of time until no chunk is missing or `budget` is used up.

    The link whose message arrives first (ties by `tie_rank`) delivers the chunk with the lowest
    supply among those that its source had at the start of the message and its destination lacks. If
    there is none, or if a chunk with lower supply arrives at the source within `patience` (once per
    message), the message starts later instead. If its source has no useful chunk, the link is idle
    until it gets one. In the first call, when all logs are empty, every chunk is first put at its
    origin at time 0. `state` is modified.

    `origin`: int64[chunks]. `needed`: bool[nodes], whether a node must get every chunk. `waiting`:
    number of links in the heap, 0 in the first call. `missing`: outstanding deliveries to needed
    nodes. `budget`: number of examined chunks plus 32 per arrival; the last arrival may exceed it.
    Returns (`waiting`, `missing`) for the next call. Processing also stops if no link is in the
    heap, because then no further delivery is possible.
    """
    source, destination, busy, arrival, _, tie_rank, patience, _, _ = links
    supply, log, _, when, filled, start, finish, first, known, is_idle, has_waited, heap = state
    # Every chunk first arrives at its origin, at time 0 and without a link.
    remaining_origins = len(origin) if not filled.any() else 0
    while remaining_origins > 0 or (waiting > 0 and missing > 0 and budget > 0):
        if remaining_origins > 0:
            remaining_origins -= 1
            chunk = len(origin) - 1 - remaining_origins
            node, now, link = origin[chunk], np.int64(0), -1
        else:
            # Links are processed in the order of delivery, ties by seed.
            link = _pop(heap, waiting, finish, tie_rank)
            waiting -= 1
            sender, node, now = source[link], destination[link], finish[link]
            end = filled[sender]
            offers, chunks, times = supply[node], log[sender], when[sender]
            # Skip entries that are present at the destination; they stay present.
            entry = _skip_present(offers, chunks, first[link], end)
            first[link] = entry
            # Causality: only entries that the source had at the start of the message.
            latest = _skip_until(times, max(entry, known[link]), end, start[link])
            known[link] = latest
            budget -= latest - entry + _WORK_PER_EVENT
            best = _find_rarest(offers, chunks, entry, latest)
            start_time = _find_later_start(
                link, best, latest, end, offers, chunks, times, start, first, patience, has_waited
            )
            # `first` is now the end of the log: all earlier entries are `_PRESENT`.
            if start_time == _NEVER:
                is_idle[link] = True
                continue
            if start_time == _UNCHANGED:
                # Delivered; the link starts its next message as soon as it is free.
                chunk = int(chunks[best])
                missing -= int(needed[node])
                start[link] += busy[link]
            else:
                start[link] = start_time
            finish[link] = start[link] + arrival[link]
            waiting = _push(heap, waiting, finish, tie_rank, link)
            if start_time != _UNCHANGED:
                continue
        waiting = _record_arrival(links, state, node, chunk, link, int(now), waiting)
    return waiting, missing


@inlined
def _record_arrival(
    links: DeliveryLinks,
    state: DeliveryState,
    node: int,
    chunk: int,
    link: int,
    now: int,
    waiting: int,
) -> int:
    """Log that `link` delivered a chunk to a node at `now` (ps), and update the supply.

    `link` is -1 for the origin of the chunk. `supply[node, chunk]` is the total rate of the
    links that could bring the chunk; it becomes infinite for `node`, which has the chunk now.
    For each neighbour it grows by the rate of the link to it, whether or not that link is idle.
    An idle link to a neighbour that lacks the chunk becomes busy: its next message starts at
    `now`, or later if the link is busy until then, and the link is pushed to the heap. Returns
    the number of links in the heap, which was `waiting` before. `state` is modified.
    """
    position = state.filled[node]
    state.log[node, position] = chunk
    state.via[node, position] = link
    state.when[node, position] = now
    state.filled[node] = position + 1
    # No other link may bring it from now on.
    state.supply[node, chunk] = _PRESENT
    # Every out-neighbour can get it from here, at the rate of the link.
    for position in range(links.out_indptr[node], links.out_indptr[node + 1]):
        onward = int(links.out_links[position])
        neighbour = links.destination[onward]
        # Infinity plus a rate is infinity, so present chunks stay present.
        state.supply[neighbour, chunk] += links.rate[onward]
        # An idle link has a useful chunk now.
        if state.is_idle[onward] and state.supply[neighbour, chunk] < _PRESENT:
            state.is_idle[onward] = False
            state.start[onward] = max(state.start[onward], now)
            state.finish[onward] = state.start[onward] + links.arrival[onward]
            waiting = _push(state.heap, waiting, state.finish, links.tie_rank, onward)
    return waiting


@inlined
def _find_later_start(
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
    """Decide whether the message of a link should start later; return the new start in ps.

    Returns `_UNCHANGED` if entry `best` of the source's log is to be delivered now, and `_NEVER` if
    the source has no chunk that the destination lacks. `best`: -1 if it has none so far. `latest`:
    number of log entries at the start of the message; `end`: number of all. `supply`: total rate of
    the links that can bring each chunk to the destination.

    A message starts later, once and by at most `patience`, if a chunk with a lower supply than
    `best` arrives at the source by then. Otherwise, if `best` is -1, it starts with the next useful
    entry, however late it arrives, and `first` of the link advances to it. `has_waited` is updated.
    """
    start_time = _UNCHANGED
    rarest = best
    # A message waits only once, so that it is sent eventually.
    if patience[link] > 0 and not has_waited[link]:
        soon = _skip_until(when, latest, end, start[link] + patience[link])
        later = _find_rarest(supply, log, latest, soon)
        if later >= 0 and _is_rarer(supply, log, later, best):
            rarest = later
            start_time = when[later]
    has_waited[link] = start_time >= 0
    if rarest < 0:
        # No entry of that time is useful: start later, with the first useful one.
        following = _skip_present(supply, log, latest, end)
        first[link] = following
        start_time = when[following] if following < end else _NEVER
    return start_time


@lean_part
def _skip_present(supply: Float32Array, log: Int32Array, entry: int, end: int) -> int:
    """Return the first log entry in `entry..end - 1` whose chunk the receiver lacks, else `end`.

    The receiver has a chunk if its `supply` is `_PRESENT`.
    """
    # Chunks stay present, so no cursor moves backwards.
    while entry < end and supply[log[entry]] == _PRESENT:
        entry += 1
    return entry


@lean_part
def _skip_until(when: Int64Array, entry: int, end: int, time: int) -> int:
    """Return the first log entry from `entry` on that arrived after `time`, or `end`."""
    # Log entries are in order of arrival.
    while entry < end and when[entry] <= time:
        entry += 1
    return entry


@lean_part
def _find_rarest(supply: Float32Array, log: Int32Array, first: int, end: int) -> int:
    """Return the log entry in `first..end - 1` whose chunk has the lowest supply.

    The supply is the total rate of the links that could bring the chunk. Of equal ones the first is
    returned; -1 if the receiver has all chunks.
    """
    best, min_supply = -1, _PRESENT
    for entry in range(first, end):
        entry_supply = supply[log[entry]]
        if entry_supply < min_supply:
            best, min_supply = entry, entry_supply
    return best


@lean_part
def _is_rarer(supply: Float32Array, log: Int32Array, one: int, other: int) -> bool:
    """Whether the chunk of entry `one` has a lower supply than that of `other`, -1 for none."""
    return bool(other < 0 or supply[log[one]] < supply[log[other]])


@lean_part
def _push(heap: Int64Array, size: int, finish: Int64Array, tie_rank: Int64Array, link: int) -> int:
    """Insert a link into the heap, which is ordered by finish time, then by tie rank.

    `size`: number of links in the heap. Returns the new size. `finish` and `tie_rank` have one
    entry per link.
    """
    # The hole moves up while its parent is later.
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if not _is_sooner(finish, tie_rank, link, heap[parent]):
            break
        heap[hole] = heap[parent]
        hole = parent
    heap[hole] = link
    return size + 1


@lean_part
def _pop(heap: Int64Array, size: int, finish: Int64Array, tie_rank: Int64Array) -> int:
    """Remove and return the link with the earliest finish; ties go to the smaller tie rank.

    `size`: number of links in the heap, at least one; the caller must decrease it.
    """
    end = size - 1
    top, link, hole = heap[0], heap[end], 0
    while 2 * hole + 1 < end:
        child = 2 * hole + 1
        if child + 1 < end and _is_sooner(finish, tie_rank, heap[child + 1], heap[child]):
            child += 1
        if not _is_sooner(finish, tie_rank, heap[child], link):
            break
        heap[hole] = heap[child]
        hole = child
    heap[hole] = link
    return int(top)


@lean_part
def _is_sooner(finish: Int64Array, tie_rank: Int64Array, one: int, other: int) -> bool:
    """Return whether link `one` precedes link `other`: by finish, then by smaller tie rank."""
    if finish[one] != finish[other]:
        return bool(finish[one] < finish[other])
    return bool(tie_rank[one] < tie_rank[other])
