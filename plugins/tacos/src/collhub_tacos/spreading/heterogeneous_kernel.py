"""Compiled events of an all-gather: a link that delivers takes what its destination can least well get elsewhere.

What a message carries is decided when it arrives, among the chunks that its source had when it left. This is legal because
all is planned beforehand, and nothing is sent twice or in vain. `advance` is longer than other functions, because numba
counts references at every call that takes many arrays. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collhub_tacos.compiling import kernel, part

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

_HELD = np.float32(np.inf)
# Work of an event beside the chunks that are looked at, in the same unit.
_EVENT = 32


class DeliveryLinks(NamedTuple):
    """The network: per link `source`, `destination`, `busy`, `arrival` (ps), `rate` (relative) and `turn` (rank in ties).

    `patience`: ps by which a message may leave later for a rarer chunk. The out-links of node v are
    `out_links[out_indptr[v]:out_indptr[v + 1]]`.
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

    `supply`: float32[nodes, chunks], the rate at which in-neighbours could give a chunk, infinite where it is there;
    `log`, `via`, `when`: [nodes, chunks], chunks in order of arrival, the link and the time; `filled`: int64[nodes].
    Per link: `start`, `finish` of its next message; `first`, `known`: entries of the source's log before `first` are at
    the destination, those before `known` left the source in time; `is_idle`; `has_waited` for a rarer chunk. `heap`: links
    with a message, by finish.
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
    is_idle: npt.NDArray[np.bool_]
    has_waited: npt.NDArray[np.bool_]
    heap: Int64Array


@kernel
def advance(
    links: DeliveryLinks,
    state: DeliveryState,
    origin: Int64Array,
    needed: npt.NDArray[np.bool_],
    waiting: int,
    missing: int,
    budget: int,
) -> tuple[int, int]:
    """Deliver until nothing is `missing`, no link is `waiting` or `budget` chunks were looked at; returns `waiting`, `missing`.

    `missing`: chunks to deliver, over all nodes that are `needed`; `waiting`: links in the heap. Where `state.filled` is 0
    everywhere, every chunk is put at its origin first.
    """
    source, destination, busy, arrival, rate, turn, patience, out_indptr, out_links = links
    supply, log, via, when, filled, start, finish, first, known, is_idle, has_waited, heap = state
    to_place = len(origin) if not filled.any() else 0
    while to_place > 0 or (waiting > 0 and missing > 0 and budget > 0):
        if to_place > 0:
            to_place -= 1
            chunk = len(origin) - 1 - to_place
            node, now, link = origin[chunk], np.int64(0), -1
        else:
            link = _pop(heap, waiting, finish, turn)
            waiting -= 1
            origin_node, node, now = source[link], destination[link], finish[link]
            entry, end = first[link], filled[origin_node]
            while entry < end and supply[node, log[origin_node, entry]] == _HELD:
                entry += 1
            first[link] = entry
            latest = max(entry, known[link])
            while latest < end and when[origin_node, latest] <= start[link]:
                latest += 1
            known[link] = latest
            budget -= latest - entry + _EVENT
            best = _rarest(supply[node], log[origin_node], entry, latest)
            if patience[link] > 0 and not has_waited[link]:
                soon = latest
                while soon < end and when[origin_node, soon] <= start[link] + patience[link]:
                    soon += 1
                later = _rarest(supply[node], log[origin_node], latest, soon)
                if later >= 0 and (
                    best < 0
                    or supply[node, log[origin_node, later]] < supply[node, log[origin_node, best]]
                ):
                    has_waited[link] = True
                    start[link] = when[origin_node, later]
                    finish[link] = start[link] + arrival[link]
                    waiting = _push(heap, waiting, finish, turn, link)
                    continue
            has_waited[link] = False
            if best < 0:
                # Nothing that left in time is of use: leave later, with the first chunk that is.
                while latest < end and supply[node, log[origin_node, latest]] == _HELD:
                    latest += 1
                first[link] = latest
                is_idle[link] = latest == end
                if latest < end:
                    start[link] = when[origin_node, latest]
                    finish[link] = start[link] + arrival[link]
                    waiting = _push(heap, waiting, finish, turn, link)
                continue
            chunk = int(log[origin_node, best])
            if needed[node]:
                missing -= 1
            start[link] += busy[link]
            finish[link] = start[link] + arrival[link]
            waiting = _push(heap, waiting, finish, turn, link)
        place = filled[node]
        log[node, place], via[node, place], when[node, place] = chunk, link, now
        filled[node] = place + 1
        supply[node, chunk] = _HELD
        for place in range(out_indptr[node], out_indptr[node + 1]):
            onward = int(out_links[place])
            neighbour = destination[onward]
            supply[neighbour, chunk] += rate[onward]
            if is_idle[onward] and supply[neighbour, chunk] < _HELD:
                is_idle[onward] = False
                start[onward] = max(start[onward], now)
                finish[onward] = start[onward] + arrival[onward]
                waiting = _push(heap, waiting, finish, turn, onward)
    return waiting, missing


@part
def _rarest(supply: Float32Array, log: Int32Array, first: int, end: int) -> int:
    """The entry of a part of a log whose chunk has the least supply, the first of several; -1 where all are held."""
    best, least = -1, _HELD
    for entry in range(first, end):
        offered = supply[log[entry]]
        if offered < least:
            best, least = entry, offered
    return best


@part
def _push(heap: Int64Array, size: int, finish: Int64Array, turn: Int64Array, link: int) -> int:
    """Put a link into a heap by finish and turn; returns the new size."""
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if not _is_sooner(finish, turn, link, heap[above]):
            break
        heap[place] = heap[above]
        place = above
    heap[place] = link
    return size + 1


@part
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


@part
def _is_sooner(finish: Int64Array, turn: Int64Array, one: int, other: int) -> bool:
    """Whether a link comes before another in the heap."""
    return bool(
        finish[one] < finish[other] or (finish[one] == finish[other] and turn[one] < turn[other])
    )
