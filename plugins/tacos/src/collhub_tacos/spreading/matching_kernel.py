"""Compiled matchings: each node takes the chunks that reduce distances most, in steps or by events.

A node takes chunks over its in-links by a matching of maximum weight. Chunks in order of decreasing
weight with augmenting paths give it, because the chunks that can be matched form a transversal
matroid (Edmonds and Fulkerson, 1965). The weight of a chunk is the total decrease of the distances
to the nodes that lack it. Chunks that a node takes count immediately for nodes that choose later in
the step; otherwise two gateways of a cluster would fetch the same chunk over two scarce links. If
links differ, a node chooses whenever one of its in-links becomes free or a new chunk may be
available.

The kernels are in one file because numba's disk cache does not detect changes in other files.
Import this module inside functions: numba takes a second to import.
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
    """In-links of node d are `indptr[d]:indptr[d + 1]`, from `source`; int64 columns.

    `far`: [nodes, nodes], distance between nodes in links (int16) or picoseconds (int64). `noise`:
    differences of the sum of distances over all nodes that are ignored.
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
    """Messages sent so far and the location of chunks, bool[chunks, nodes].

    `can_send`: arrived chunks. `is_held`: also chunks in flight. `near`: [chunks, nodes], distance
    to the nearest holder, 0 for nodes that need no chunk. `chunk`, `link`, `step`: int64 columns of
    the messages and their start in steps or picoseconds. `counter`: sent, arrived, current time,
    missing, examined chunks. `is_free`: bool per link. `random`: uint64[1].
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
    max_examined: Integer,
) -> bool:
    """Compute steps until about `max_examined` more chunks were examined.

    Returns whether the search is over. It is over if all chunks are delivered, or step `last_step`
    is reached. `lag`: steps from the start of a message until its destination can forward it.
    `state` is modified; at the end of a step, `is_held` and `near` include all sent messages.
    """
    sent, arrived, steps, missing, examined = 0, 1, 2, 3, 4
    counter = state.counter
    order = np.arange(len(links.indptr) - 1)
    stop = counter[examined] + max_examined
    while counter[missing] > 0 and counter[examined] < stop:
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
        # With a fixed order the first nodes would always choose first.
        _shuffle(order, state.random)
        for node in order:
            _choose(links, state, is_needed, node)
        counter[steps] = now + 1
    return bool(counter[missing] == 0)


@kernel
def spread_by_events(
    links: InLinks, times: EventTimes, state: SpreadState, is_needed: BoolArray, deadline: Integer
) -> bool:
    """Send chunks over links by events in time, up to `deadline` (ps); return whether all arrive.

    At every event (an arrival, or a link that becomes free), the affected nodes choose chunks over
    their free incoming links, in random order. Equal random states give equal results. A link whose
    message would arrive after the deadline is no longer used. Stops as soon as no chunk is missing
    or no event remains. `is_needed`: which chunks which nodes need. `state` is modified and holds
    the messages, with starts in ps.
    """
    sent, arrived, clock, missing = 0, 1, 2, 3
    counter = state.counter
    nodes = len(links.indptr) - 1
    order = np.arange(nodes)
    # Arrivals and links that become free; the first event lets all nodes choose.
    events = [(np.int64(0), np.int64(-1))]
    is_waiting = np.ones(nodes, np.bool_)
    while len(events) > 0 and counter[missing] > 0:
        now = events[0][0]
        counter[clock] = now
        while len(events) > 0 and events[0][0] == now:
            _, event = heappop(events)
            if event >= 0:
                _process_event(links, times, state, event, is_waiting, deadline)
        # With a fixed order the first nodes would always choose first.
        _shuffle(order, state.random)
        for node in order:
            if is_waiting[node]:
                # A link that was idle may be too late for any message now.
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
def _process_event(
    links: InLinks,
    times: EventTimes,
    state: SpreadState,
    event: Integer,
    is_waiting: BoolArray,
    deadline: Integer,
) -> None:
    """Process the arrival of transfer `event // 2` or, if `event` is odd, the release of its link.

    After an arrival, the destination can send the chunk, and `is_waiting` becomes True for its
    neighbours, which may then choose chunks. After a release, the link is free, and `is_waiting`
    becomes True for its destination. `deadline` is not used.
    """
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
    """Let a node take chunks over its free incoming links, those of the greatest weight first.

    Candidates and weights are those of `_find_candidates`; a link takes at most one chunk
    (`_match`). The messages are recorded in `state`: the number of missing chunks decreases for a
    node in `is_needed`, and the cost counter increases by the number of candidates + 1.
    """
    chunks, degree = len(state.can_send), links.indptr[node + 1] - links.indptr[node]
    place = np.empty(chunks, np.int64)
    weight = np.empty(chunks, np.float64)
    num_candidates = _find_candidates(links, state, is_needed, node, place, weight)
    state.counter[4] += num_candidates + 1
    if num_candidates:
        by_weight = np.argsort(-weight[:num_candidates])
        matched = np.empty(degree, np.int64)
        _match(links, state, node, place[by_weight], matched)
        state.counter[3] -= _send(links, state, is_needed, node, matched)


@part
def _destination(indptr: Int64Array, link: Integer) -> Integer:
    """Return the destination of a link; links are sorted by destination."""
    return np.searchsorted(indptr, link, side="right") - 1


@part
def _random(state: npt.NDArray[np.uint64]) -> float:
    """Return the next random number in [0, 1) and advance `state`, one uint64.

    Method: splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    mixed = state[0]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return float(mixed >> np.uint64(11)) / 9007199254740992.0


@part
def _shuffle(order: Int64Array, random: npt.NDArray[np.uint64]) -> None:
    """Permute an array randomly, in place."""
    for last in range(len(order) - 1, 0, -1):
        other = int(_random(random) * (last + 1))
        order[last], order[other] = order[other], order[last]


@part
def _find_candidates(
    links: InLinks,
    state: SpreadState,
    is_needed: BoolArray,
    node: Integer,
    place: Int64Array,
    weight: npt.NDArray[np.float64],
) -> int:
    """Find the chunks that a node lacks and could receive now; return their number.

    A chunk counts if the source of a free incoming link can send it. Its weight is the sum over all
    nodes of the decrease of their distance to the chunk if this node gets it, plus random noise
    below `links.noise`. A node that needs no chunks takes only those with a decrease. The first
    entries of `place` (chunks, ascending) and `weight` are overwritten.
    """
    begin, end = links.indptr[node], links.indptr[node + 1]
    far = links.far[node]
    num_candidates = 0
    for chunk in range(len(state.can_send)):
        if state.is_held[chunk, node]:
            continue
        is_available = False
        for link in range(begin, end):
            if state.is_free[link] and state.can_send[chunk, links.source[link]]:
                is_available = True
                break
        if not is_available:
            continue
        near = state.near[chunk]
        total_decrease = 0
        for other in range(len(far)):
            total_decrease += max(0, near[other] - far[other])
        # Nodes that need no chunk take it only if that helps others.
        if total_decrease or is_needed[node]:
            place[num_candidates] = chunk
            # Noise decides between nearly equal chunks.
            weight[num_candidates] = total_decrease + _random(state.random) * links.noise
            num_candidates += 1
    return num_candidates


@part
def _match(
    links: InLinks, state: SpreadState, node: Integer, chunks: Int64Array, matched: Int64Array
) -> None:
    """Assign incoming links of a node to chunks, in the order of `chunks`, by augmenting paths.

    Only free links whose source can send the chunk are used. `matched` is overwritten by the chunk
    of every incoming link, -1 for none. A chunk that has a link keeps some link, but a later chunk
    may move it to another one. Chunks for which there is no path get no link. Ends when all free
    links have chunks.
    """
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
        searching_chunk, from_link = chunk, -1
        end_link = -1
        while end_link < 0:
            for link in range(degree):
                is_new = reached_from[link] == -2 and state.is_free[begin + link]
                if is_new and state.can_send[searching_chunk, links.source[begin + link]]:
                    reached_from[link] = from_link
                    if matched[link] < 0:
                        end_link = link
                        break
                    queue[last] = link
                    last += 1
            if end_link >= 0 or first == last:
                break
            from_link = queue[first]
            searching_chunk = matched[from_link]
            first += 1
        # Along the path every chunk moves to the next link.
        while end_link >= 0:
            previous_link = reached_from[end_link]
            matched[end_link] = matched[previous_link] if previous_link >= 0 else chunk
            if previous_link < 0:
                free -= 1
            end_link = previous_link


@part
def _send(
    links: InLinks,
    state: SpreadState,
    is_needed: BoolArray,
    node: Integer,
    matched: Int64Array,
) -> int:
    """Send the matched chunks to a node; return how many of them it needed.

    `matched`: the chunk of every incoming link, -1 for none. Each message is appended to `state`
    with its link and the current time or step, and the distances of all nodes to the chunk are
    reduced to those from this node. The result is 0 for a node that needs no chunks, otherwise the
    number of messages.
    """
    begin = links.indptr[node]
    far = links.far[node]
    num_delivered = 0
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
            num_delivered += 1
    return num_delivered
