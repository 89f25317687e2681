"""Compiled spreading in which each node takes what brings most near: in equal steps, or by events.

A node takes chunks over its in-links by a matching of most weight, which falling weights with
augmenting paths give, since what can be matched is a transversal matroid (Edmonds and Fulkerson,
1965). The weight of a chunk is by how many links it comes nearer to those who lack it. What a node
takes counts at once for all that choose later in the step: else two heads of a cluster would fetch
the same chunk over two scarce links. Where links differ, a node chooses whenever one of its
in-links gets free or something new could come over one.

All in one file, because numba's cache looks at no other. Import it late: numba takes a second.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from collhub_packing.compiling import kernel, part

from hub_core.columns import BoolArray, Int64Array

Int16Array = npt.NDArray[np.int16]
Integer = int | np.int64


class InLinks(NamedTuple):
    """In-links of node d are `indptr[d]:indptr[d + 1]`, from `source`, int64 columns.

    `far`: [nodes, nodes], how far it is from one node to another, in links (int16) or picoseconds
    (int64); `noise`: differences of that unit, summed over all nodes, that count as none.
    """

    indptr: Int64Array
    source: Int64Array
    far: Int16Array | Int64Array
    noise: float


class EventTimes(NamedTuple):
    """Per link `busy` and `arrival`, int64 ps; out-links of v: `out[out_indptr[v]:...[v + 1]]`."""

    busy: Int64Array
    arrival: Int64Array
    out_indptr: Int64Array
    out: Int64Array


class SpreadState(NamedTuple):
    """What has been sent so far; who has what is bool[chunks, nodes].

    `can_send`: what has arrived; `is_held`: also what is on its way; `near`: [chunks, nodes], how
    far the nearest holder is, 0 for nodes that need no chunk. `chunk`, `link`, `step`: int64
    columns of what was sent, and when, in steps or picoseconds. `counter`: sent, arrived, now,
    missing, looks. `is_free`: bool per link. `random`: uint64[1].
    """

    can_send: BoolArray
    is_held: BoolArray
    near: Int16Array | Int64Array
    chunk: Int64Array
    link: Int64Array
    step: Int64Array
    counter: Int64Array
    is_free: BoolArray
    random: npt.NDArray[np.uint64]


@kernel
def advance(
    links: InLinks,
    state: SpreadState,
    is_needed: BoolArray,
    lag: int,
    last_step: Integer,
    looks: Integer,
) -> bool:
    """Go on for about so many looks; return whether all is done, or `last_step` is reached.

    `lag`: steps from the start of a message until its destination can send it on.

    Invariant at the end of a step: `is_held` and `near` count everything that was sent.
    """
    sent, arrived, steps, missing, looked = 0, 1, 2, 3, 4
    counter = state.counter
    order = np.arange(len(links.indptr) - 1)
    stop = counter[looked] + looks
    while counter[missing] > 0 and counter[looked] < stop:
        now = counter[steps]
        if now >= last_step:
            return True
        while counter[arrived] < counter[sent]:
            transfer = counter[arrived]
            if state.step[transfer] + lag > now:
                break
            end = _destination(links.indptr, state.link[transfer])
            state.can_send[state.chunk[transfer], end] = True
            counter[arrived] += 1
        # A fixed order would let the first nodes choose first in every step.
        _shuffle(order, state.random)
        for node in order:
            _choose(links, state, is_needed, node)
        counter[steps] = now + 1
    return bool(counter[missing] == 0)


@kernel
def spread_by_events(
    links: InLinks, times: EventTimes, state: SpreadState, is_needed: BoolArray, deadline: Integer
) -> bool:
    """Send whatever arrives by the deadline (ps); whether all have then what they need.

    Invariant when a node chooses: its free links can take a message that still arrives in time.
    """
    sent, arrived, clock, missing = 0, 1, 2, 3
    counter = state.counter
    nodes = len(links.indptr) - 1
    order = np.arange(nodes)
    # When a transfer arrives, and its link is free; and that nodes begin with what they have.
    events = [(np.int64(0), np.int64(-1))]
    is_waiting = np.ones(nodes, np.bool_)
    while len(events) > 0 and counter[missing] > 0:
        now = events[0][0]
        counter[clock] = now
        while len(events) > 0 and events[0][0] == now:
            _, event = heappop(events)
            if event >= 0:
                _note_event(links, times, state, event, is_waiting, deadline)
        # A fixed order would let the first nodes choose first every time.
        _shuffle(order, state.random)
        for node in order:
            if is_waiting[node]:
                # A link that had nothing to take may be too late for anything by now.
                for link in range(links.indptr[node], links.indptr[node + 1]):
                    state.is_free[link] &= now + times.arrival[link] <= deadline
                _choose(links, state, is_needed, node)
        is_waiting[:] = False
        while counter[arrived] < counter[sent]:
            transfer = counter[arrived]
            link = state.link[transfer]
            state.is_free[link] = False
            heappush(events, (now + times.arrival[link], np.int64(2 * transfer)))
            heappush(events, (now + times.busy[link], np.int64(2 * transfer + 1)))
            counter[arrived] += 1
    return bool(counter[missing] == 0)


@part
def _note_event(
    links: InLinks,
    times: EventTimes,
    state: SpreadState,
    event: Integer,
    is_waiting: BoolArray,
    deadline: Integer,
) -> None:
    """Transfer `event // 2` has arrived, or, of an odd event, left its link free for another."""
    transfer = event // 2
    link = state.link[transfer]
    node = _destination(links.indptr, link)
    if event % 2 == 1:
        state.is_free[link] = True
        is_waiting[node] = True
        return
    state.can_send[state.chunk[transfer], node] = True
    for place in range(times.out_indptr[node], times.out_indptr[node + 1]):
        is_waiting[_destination(links.indptr, times.out[place])] = True


@part
def _choose(links: InLinks, state: SpreadState, is_needed: BoolArray, node: Integer) -> None:
    """Let a node take what it can over in-links that are free."""
    chunks, degree = len(state.can_send), links.indptr[node + 1] - links.indptr[node]
    place = np.empty(chunks, np.int64)
    weight = np.empty(chunks, np.float64)
    found = _candidates(links, state, is_needed, node, place, weight)
    state.counter[4] += found + 1
    if found:
        by_weight = np.argsort(-weight[:found])
        matched = np.empty(degree, np.int64)
        _match(links, state, node, place[by_weight], matched)
        state.counter[3] -= _send(links, state, is_needed, node, matched)


@part
def _destination(indptr: Int64Array, link: Integer) -> Integer:
    """Node that a link leads to, as links stand by destination."""
    return np.searchsorted(indptr, link, side="right") - 1


@part
def _random(state: npt.NDArray[np.uint64]) -> float:
    """Next number of [0, 1): splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    mixed = state[0]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return float(mixed >> np.uint64(11)) / 9007199254740992.0


@part
def _shuffle(order: Int64Array, random: npt.NDArray[np.uint64]) -> None:
    for last in range(len(order) - 1, 0, -1):
        other = int(_random(random) * (last + 1))
        order[last], order[other] = order[other], order[last]


@part
def _candidates(
    links: InLinks,
    state: SpreadState,
    is_needed: BoolArray,
    node: Integer,
    place: Int64Array,
    weight: npt.NDArray[np.float64],
) -> int:
    """Chunks that a node lacks and some in-neighbour can send, and what each brings near."""
    begin, end = links.indptr[node], links.indptr[node + 1]
    far = links.far[node]
    found = 0
    for chunk in range(len(state.can_send)):
        if state.is_held[chunk, node]:
            continue
        is_there = False
        for link in range(begin, end):
            if state.is_free[link] and state.can_send[chunk, links.source[link]]:
                is_there = True
                break
        if not is_there:
            continue
        near = state.near[chunk]
        nearer = 0
        for other in range(len(far)):
            nearer += max(0, near[other] - far[other])
        # Who needs nothing takes only what helps others.
        if nearer or is_needed[node]:
            place[found] = chunk
            # Noise decides between what is about equal.
            weight[found] = nearer + _random(state.random) * links.noise
            found += 1
    return found


@part
def _match(
    links: InLinks, state: SpreadState, node: Integer, chunks: Int64Array, matched: Int64Array
) -> None:
    """Give in-links to chunks in this order, each by an augmenting path: -1 for links left over."""
    begin, degree = links.indptr[node], len(matched)
    matched[:] = -1
    reached_from = np.empty(degree, np.int64)
    queue = np.empty(degree, np.int64)
    free = int(np.sum(state.is_free[begin : begin + degree]))
    for chunk in chunks:
        if not free:
            return
        reached_from[:] = -2
        first, last = 0, 0
        asking, from_link = chunk, -1
        ending = -1
        while ending < 0:
            for link in range(degree):
                is_new = reached_from[link] == -2 and state.is_free[begin + link]
                if is_new and state.can_send[asking, links.source[begin + link]]:
                    reached_from[link] = from_link
                    if matched[link] < 0:
                        ending = link
                        break
                    queue[last] = link
                    last += 1
            if ending >= 0 or first == last:
                break
            from_link = queue[first]
            asking = matched[from_link]
            first += 1
        # Along the path every chunk moves on to the link behind it.
        while ending >= 0:
            before = reached_from[ending]
            matched[ending] = matched[before] if before >= 0 else chunk
            if before < 0:
                free -= 1
            ending = before


@part
def _send(
    links: InLinks,
    state: SpreadState,
    is_needed: BoolArray,
    node: Integer,
    matched: Int64Array,
) -> int:
    """Send what is matched to a node; it counts as a holder at once. How many it needed."""
    begin = links.indptr[node]
    far = links.far[node]
    brought = 0
    for link in range(len(matched)):
        chunk = matched[link]
        if chunk < 0:
            continue
        number = state.counter[0]
        state.chunk[number] = chunk
        state.link[number] = begin + link
        state.step[number] = state.counter[2]
        state.counter[0] = number + 1
        state.is_held[chunk, node] = True
        near = state.near[chunk]
        for other in range(len(far)):
            near[other] = min(near[other], far[other])
        if is_needed[node]:
            brought += 1
    return brought
