"""Which NPU takes which place: rings on direct links where there are some, short ways elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from collhub_columns import Float64Array, Int64Array

from hub_core.network import Topology

# Steps of a search for one ring, and random starts, before it counts as not to be found.
_MOST_STEPS = 20_000
_STARTS = 8
_ROUNDING = 1e-6
# Beyond, the search for rings costs more than it can find.
_MOST_RANKS = 256


def ring_order(topology: Topology, npus: Sequence[int]) -> Int64Array:
    """Ranks in an order in which the messages between neighbours share links the least.

    Candidates: as numbered, a ring on direct links, and from each rank to the nearest one that is
    left. Of equal ones the first.
    """
    ranks = len(npus)
    given = np.arange(ranks)
    candidates = [given]
    if 2 < ranks <= _MOST_RANKS:
        candidates += disjoint_rings(topology, npus, 1)
        candidates.append(_nearest(_latencies(topology, npus)))
    times = [_round_time(topology, np.asarray(npus)[order]) for order in candidates]
    return candidates[int(np.argmin(times))]


def disjoint_rings(topology: Topology, npus: Sequence[int], most: int) -> list[Int64Array]:
    """Rings through all ranks without a common link; where there is none, one as numbered.

    Where all ranks are joined directly, strides without a common divisor with their number; else a
    depth-first search that goes first to the ranks with the fewest ways on, over the direct links
    that the rings before left. Where there are none, but groups alike, a ring for every member: it
    enters each group there and leaves it one member before, as NCCL's rings use one network card
    each.
    """
    ranks = len(npus)
    free = _direct_links(topology, npus)
    if ranks > 2 and bool((free + np.eye(ranks, dtype=np.int64) > 0).all()):
        strides = [s for s in range(1, ranks) if np.gcd(s, ranks) == 1]
        return [np.arange(ranks) * stride % ranks for stride in strides[:most]]
    if ranks > _MOST_RANKS:
        return [np.arange(ranks)]
    found = _most_rings(free.tobytes(), ranks, most)
    return list(found) or _rotated_rings(topology, npus)[:most]


# Kept, since comparisons ask for one network at many sizes.
@lru_cache(maxsize=16)
def _most_rings(free: bytes, ranks: int, most: int) -> tuple[Int64Array, ...]:
    """The most rings of several searches on these links, int64[ranks, ranks]; read-only."""
    links = np.frombuffer(free, np.int64).reshape(ranks, ranks)
    # Every ring takes a link from each rank, and one to it.
    most = min(most, int(links.sum(axis=0).min()), int(links.sum(axis=1).min()))
    best: list[Int64Array] = []
    for start in range(_STARTS):
        if len(best) < most:
            best = max(best, _ring_set(links, most, start), key=len)
    for ring in best:
        ring.setflags(write=False)
    return tuple(best)


def group_orders(topology: Topology, npus: Sequence[int]) -> list[Int64Array]:
    """Orders in which groups of one size stay together, and in which their members take turns."""
    groups = alike_groups(topology, npus)
    orders = [groups.ravel(), groups.T.ravel()]
    given = np.arange(len(npus))
    return [order for order in orders if not np.array_equal(order, given)]


def alike_groups(topology: Topology, npus: Sequence[int]) -> Int64Array:
    """The ranks of each group, int64[groups, ranks], where groups of one size hold all ranks.

    Else all ranks as one group.
    """
    rank_of = {npu: rank for rank, npu in enumerate(npus)}
    groups = sorted(
        sorted(rank_of[npu] for npu in members if npu in rank_of)
        for members in topology.groups.values()
    )
    sizes = {len(members) for members in groups}
    held = [rank for members in groups for rank in members]
    if len(sizes) == 1 and sorted(held) == list(range(len(npus))):
        return np.asarray(groups, np.int64)
    return np.arange(len(npus))[None, :]


def _rotated_rings(topology: Topology, npus: Sequence[int]) -> list[Int64Array]:
    """A ring for every member of a group, where there are several groups."""
    groups = alike_groups(topology, npus)
    if len(groups) == 1:
        return [np.arange(len(npus))]
    return [np.roll(groups, -member, axis=1).ravel() for member in range(groups.shape[1])]


def _ring_set(free: Int64Array, most: int, start: int) -> list[Int64Array]:
    """Rings one after another, each over what the ones before left, by one order of ties."""
    left, ranks = free.copy(), len(free)
    noise = np.random.default_rng(start).permutation(ranks)
    found: list[Int64Array] = []
    while len(found) < most:
        path = next(_paths(left, np.roll(noise, len(found))), None)
        if path is None:
            break
        ring = np.asarray(path)
        left[ring, np.roll(ring, -1)] -= 1
        found.append(ring)
    return found


def _direct_links(topology: Topology, npus: Sequence[int]) -> Int64Array:
    """How many rings fit on the links from each rank to each other one: int64[ranks, ranks].

    One on the slowest of all links, more on faster ones.
    """
    place = np.full(topology.num_nodes, -1)
    place[np.asarray(npus)] = np.arange(len(npus))
    source, destination = place[topology.source], place[topology.destination]
    between = (source >= 0) & (destination >= 0)
    rates = topology.bandwidth_bytes_per_s[between]
    fitting = np.floor(rates / rates.min(initial=np.inf) + _ROUNDING).astype(np.int64)
    found = np.zeros((len(npus), len(npus)), np.int64)
    np.add.at(found, (source[between], destination[between]), fitting)
    return found


def _paths(free: Int64Array, noise: Int64Array) -> Iterator[list[int]]:
    """Rings from rank 0 on, by depth-first search; ends after so many steps."""
    ranks = len(free)
    # Sets of ranks as the bits of a number: counting those that are left is one instruction.
    following = [_bits(np.flatnonzero(row).tolist()) for row in free > 0]
    preceding = [_bits(np.flatnonzero(column).tolist()) for column in free.T > 0]
    ties: list[int] = noise.tolist()
    path, left = [0], (1 << ranks) - 2
    # The ways that were not tried yet, for every rank of the path.
    choices = [_ways(following, left, 0, ties)]
    for _ in range(_MOST_STEPS):
        if not choices:
            return
        if not choices[-1]:
            choices.pop()
            left |= 1 << path.pop()
            continue
        rank = choices[-1].pop()
        path.append(rank)
        left &= ~(1 << rank)
        if len(path) == ranks and following[rank] & 1:
            yield list(path)
            return
        is_open = _can_be_passed(following, preceding, left, rank, following[path[-2]])
        choices.append(_ways(following, left, rank, ties) if is_open else [])


def _can_be_passed(
    following: Sequence[int],
    preceding: Sequence[int],
    left: int,
    end: int,
    near: int,
) -> bool:
    """Whether a ring that ends at `end` so far can come to each of the ranks `near` and go on."""
    near &= left
    while near:
        rank = (near & -near).bit_length() - 1
        near &= near - 1
        before = preceding[rank] & (left | 1 << end)
        behind = following[rank] & (left | 1)
        # Not back to where it came from.
        if not before or not behind or (before | behind).bit_count() < 2:
            return False
    return True


def _bits(ranks: Sequence[int]) -> int:
    """A set of ranks as a number."""
    found = 0
    for rank in ranks:
        found |= 1 << rank
    return found


def _ways(
    following: Sequence[int],
    left: int,
    rank: int,
    ties: Sequence[int],
) -> list[int]:
    """Ranks to go to next, the one with the fewest ways on last, which is tried first."""
    ways = following[rank] & left
    found: list[tuple[int, int, int]] = []
    while ways:
        lowest = ways & -ways
        ways ^= lowest
        way = lowest.bit_length() - 1
        onward = (following[way] & left).bit_count()
        found.append((-onward, ties[way], way))
    found.sort()
    return [way for _, _, way in found]


def _nearest(latency: Float64Array) -> Int64Array:
    """From rank 0 always on to the nearest rank that is left."""
    ranks = len(latency)
    order = [0]
    is_left = np.ones(ranks, np.bool_)
    for _ in range(ranks - 1):
        is_left[order[-1]] = False
        order.append(int(np.where(is_left, latency[order[-1]], np.inf).argmin()))
    return np.asarray(order)


def _latencies(topology: Topology, npus: Sequence[int]) -> Float64Array:
    """Latency of the way from each rank to each other one, float64[ranks, ranks] in seconds."""
    ranks = len(npus)
    here, there = np.divmod(np.arange(ranks * ranks), ranks)
    place = np.asarray(npus)
    routes = topology.routes(place[here], place[there])
    pair = np.repeat(np.arange(ranks * ranks), np.diff(routes.indptr))
    total: Float64Array = np.zeros(ranks * ranks)
    np.add.at(total, pair, topology.latency_s[routes.links])
    return total.reshape(ranks, ranks)


def _round_time(topology: Topology, ring: Int64Array) -> float:
    """Seconds of a megabyte from every rank to the next: the fullest link, and the longest way."""
    routes = topology.routes(ring, np.roll(ring, -1))
    load = np.bincount(routes.links, minlength=topology.num_links)
    busy = load * 1e6 / topology.bandwidth_bytes_per_s
    pair = np.repeat(np.arange(len(ring)), np.diff(routes.indptr))
    way = np.bincount(pair, (busy + topology.latency_s)[routes.links], len(ring))
    return float(way.max(initial=0.0))
