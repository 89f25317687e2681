"""Orders of the NPUs: rings on direct links if available, otherwise short routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from hub_core.columns import Float64Array, Int64Array, group_of_entry
from hub_core.network import Topology

# Steps of the search for one ring after which it is given up, and number of random starts.
_MAX_STEPS = 20_000
_NUM_STARTS = 8
_ROUNDING_TOLERANCE = 1e-6
# Above this number of ranks, the search for rings costs more than it gains.
_MAX_RANKS = 256


def find_ring_order(topology: Topology, npus: Sequence[int]) -> Int64Array:
    """Return the ring order of the ranks in which a round between neighbours is fastest.

    The result is int64[ranks], the rank at each position. `npus`: NPU of each rank. The candidates
    are:

    1. the order of numbers; with at most 2 or more than `_MAX_RANKS` ranks it is the only one
    2. the first ring of `find_disjoint_rings`
    3. the path from rank 0 that always continues at the unvisited rank with the least route
       latency, of equal ones the lowest

    The time of a candidate is that in which all ranks send 1 MB (10^6 bytes) to their next rank at
    once: the largest sum, over a route, of the latency and 1 MB x the messages on the link / the
    bandwidth. Of equal times the first candidate is returned. Raises `InputError` (`disconnected`)
    if a rank cannot reach another one.
    """
    ranks = len(npus)
    npu_of = np.asarray(npus)
    candidates = [np.arange(ranks)]
    if 2 < ranks <= _MAX_RANKS:
        candidates += find_disjoint_rings(topology, npus, 1)
        # Compute the latency of the route between all ranks in s: float64[ranks, ranks].
        source, destination = np.divmod(np.arange(ranks * ranks), ranks)
        routes = topology.routes(npu_of[source], npu_of[destination])
        pair = group_of_entry(routes.indptr)
        total: Float64Array = np.zeros(ranks * ranks)
        np.add.at(total, pair, topology.latency_s[routes.links])
        latency = total.reshape(ranks, ranks)
        path = [0]
        is_unvisited = np.ones(ranks, np.bool_)
        for _ in range(ranks - 1):
            is_unvisited[path[-1]] = False
            path.append(int(np.where(is_unvisited, latency[path[-1]], np.inf).argmin()))
        candidates.append(np.asarray(path))
    times_s = []
    for order in candidates:
        # On each link of its route, a message takes the latency and the time of all its messages.
        routes = topology.routes(npu_of[order], np.roll(npu_of[order], -1))
        load = np.bincount(routes.links, minlength=topology.num_links)
        link_s = load * 1e6 / topology.bandwidth_bytes_per_s + topology.latency_s
        route_s = np.bincount(group_of_entry(routes.indptr), link_s[routes.links], ranks)
        times_s.append(float(route_s.max(initial=0.0)))
    return candidates[int(np.argmin(times_s))]


def find_disjoint_rings(
    topology: Topology, npus: Sequence[int], max_rings: int
) -> list[Int64Array]:
    """Return up to `max_rings` rings through all ranks, at least one, disjoint if possible.

    Disjoint rings share no link. `npus`: NPU of each rank. A ring is int64[ranks], the ranks in
    their order. Links are directed; only links between NPUs with a rank count. The first rule that
    applies:

    1. There are at least 3 ranks, and each is linked to each other: for each stride s that has no
       common divisor with n, the ranks 0, s, 2 s and so on (modulo n), the smallest strides first.
    2. More than `_MAX_RANKS` (256) ranks: one ring in the order of numbers.
    3. The rings of a search on the links (`_find_ring_set_cached`), if it finds any. A link that is
       k times as fast as the slowest one serves k rings. These arrays are read-only.
    4. A single group (`find_equal_groups`): one ring in the order of numbers.
    5. Ring m, for each position m in a group, passes the groups in order. It begins in each group
       with member m, continues cyclically, and ends with member m - 1. NCCL's rings use one network
       card each in the same way. These rings may share links.
    """
    ranks = len(npus)
    # Count the rings that fit on the links between ranks: int64[ranks, ranks].
    rank_of = np.full(topology.num_nodes, -1)
    rank_of[np.asarray(npus)] = np.arange(len(npus))
    source, destination = rank_of[topology.source], rank_of[topology.destination]
    between = (source >= 0) & (destination >= 0)
    rates = topology.bandwidth_bytes_per_s[between]
    fitting = np.floor(rates / rates.min(initial=np.inf) + _ROUNDING_TOLERANCE).astype(np.int64)
    free = np.zeros((len(npus), len(npus)), np.int64)
    np.add.at(free, (source[between], destination[between]), fitting)
    if ranks > 2 and bool((free + np.eye(ranks, dtype=np.int64) > 0).all()):
        strides = [s for s in range(1, ranks) if np.gcd(s, ranks) == 1]
        return [np.arange(ranks) * stride % ranks for stride in strides[:max_rings]]
    if ranks > _MAX_RANKS:
        return [np.arange(ranks)]
    rings = _find_ring_set_cached(free.tobytes(), ranks, max_rings)
    if rings:
        return list(rings)
    groups = find_equal_groups(topology, npus)
    if len(groups) == 1:
        return [np.arange(ranks)]
    members = range(groups.shape[1])[:max_rings]
    return [np.roll(groups, -member, axis=1).ravel() for member in members]


# Cached, since comparisons use one network at many sizes.
@lru_cache(maxsize=16)
def _find_ring_set_cached(free: bytes, ranks: int, max_rings: int) -> tuple[Int64Array, ...]:
    """Return the largest set of link-disjoint rings that several searches find.

    A ring is int64[ranks], the ranks in their order, beginning with 0. `free`: the bytes of
    int64[ranks, ranks], the number of rings that fit on each link. There are at most
    `max_rings` rings, and at most the links into or out of any rank. A search adds rings on the
    remaining capacity until none is found; its number is the seed of the order of equal choices,
    which is rotated for every ring. Up to `_NUM_STARTS` searches run, until one has found this
    maximum; the first of equally large sets is returned, () if no search finds a ring. The arrays
    are read-only because results are cached.
    """
    links = np.frombuffer(free, np.int64).reshape(ranks, ranks)
    # Every ring uses a link out of and into each rank.
    max_rings = min(max_rings, int(links.sum(axis=0).min()), int(links.sum(axis=1).min()))
    best: list[Int64Array] = []
    for start in range(_NUM_STARTS):
        if len(best) >= max_rings:
            break
        remaining = links.copy()
        noise = np.random.default_rng(start).permutation(ranks)
        rings: list[Int64Array] = []
        while len(rings) < max_rings:
            path = next(_search_ring(remaining, np.roll(noise, len(rings))), None)
            if path is None:
                break
            ring = np.asarray(path)
            remaining[ring, np.roll(ring, -1)] -= 1
            rings.append(ring)
        best = max(best, rings, key=len)
    for ring in best:
        ring.setflags(write=False)
    return tuple(best)


def find_group_orders(topology: Topology, npus: Sequence[int]) -> list[Int64Array]:
    """Return up to two orders of the ranks: by group, and by the number of a rank in its
    group.

    Groups are those of `find_equal_groups` (one group of all ranks if they are unequal or
    missing). The first order has all members of one group after the other. The second has
    the first member of every group, then the second ones, and so on. Each is
    int64[ranks]. An order equal to 0, 1, 2, ... is left out, so the list may be empty;
    the two may be equal.
    """
    groups = find_equal_groups(topology, npus)
    orders = [groups.ravel(), groups.T.ravel()]
    numbered = np.arange(len(npus))
    return [order for order in orders if not np.array_equal(order, numbered)]


def find_equal_groups(topology: Topology, npus: Sequence[int]) -> Int64Array:
    """Return the ranks of the groups of the topology: int64[groups, ranks per group].

    `npus`: NPU of each rank. Ranks in a group ascend, and groups are sorted by their ranks.
    NPUs without a rank are ignored. All ranks are one group, in their order, if the groups
    have different numbers of ranks (one may have none), if they do not contain every rank
    exactly once, or if there are no groups.
    """
    rank_of = {npu: rank for rank, npu in enumerate(npus)}
    groups = sorted(
        sorted(rank_of[npu] for npu in members if npu in rank_of)
        for members in topology.groups.values()
    )
    sizes = {len(members) for members in groups}
    grouped = [rank for members in groups for rank in members]
    if len(sizes) == 1 and sorted(grouped) == list(range(len(npus))):
        return np.asarray(groups, np.int64)
    return np.arange(len(npus))[None, :]


def _search_ring(free: Int64Array, noise: Int64Array) -> Iterator[list[int]]:
    """Search for a ring through all ranks by depth-first search; yield it, or nothing.

    The list starts with 0. `free`: int64[ranks, ranks], remaining capacity between ranks. The ring
    uses only pairs above 0, including the pair from the last rank to rank 0. The successor with the
    fewest unvisited successors is tried first; of equal ones the one with the largest entry of
    `noise` (int64[ranks]), then the highest rank.

    Branches after which some rank cannot be visited any more are cut off. The search ends without
    a result after `_MAX_STEPS` (20000) steps forward or back. A single rank gives no ring.
    """
    ranks = len(free)
    # Sets of ranks are the bits of an integer, so that counting them is one instruction.
    following = [_to_bit_set(np.flatnonzero(row).tolist()) for row in free > 0]
    preceding = [_to_bit_set(np.flatnonzero(column).tolist()) for column in free.T > 0]
    ties: list[int] = noise.tolist()
    path, unvisited = [0], (1 << ranks) - 2
    # The untried successors of every rank of the path.
    choices = [_sort_successors(following, unvisited, 0, ties)]
    for _ in range(_MAX_STEPS):
        if not choices:
            return
        if not choices[-1]:
            choices.pop()
            unvisited |= 1 << path.pop()
            continue
        rank = choices[-1].pop()
        path.append(rank)
        unvisited &= ~(1 << rank)
        if len(path) == ranks and following[rank] & 1:
            yield list(path)
            return
        is_open = _can_visit_all(following, preceding, unvisited, rank, following[path[-2]])
        choices.append(_sort_successors(following, unvisited, rank, ties) if is_open else [])


def _can_visit_all(
    following: Sequence[int],
    preceding: Sequence[int],
    unvisited: int,
    end: int,
    candidates: int,
) -> bool:
    """Return whether each unvisited candidate can still be passed by a path that ends at rank 0.

    Each needs a predecessor and a different successor. Predecessors are unvisited ranks and the
    present end of the path, `end`; successors are unvisited ranks and rank 0. All sets are integers
    in which bit r represents rank r: `candidates`, `unvisited`, and the entries of `following` and
    `preceding`. A necessary condition only. True without candidates.
    """
    candidates &= unvisited
    while candidates:
        rank = (candidates & -candidates).bit_length() - 1
        candidates &= candidates - 1
        predecessors = preceding[rank] & (unvisited | 1 << end)
        successors = following[rank] & (unvisited | 1)
        # Predecessor and successor must differ.
        if not predecessors or not successors or (predecessors | successors).bit_count() < 2:
            return False
    return True


def _to_bit_set(ranks: Sequence[int]) -> int:
    """Convert ranks to an integer in which bit r is set if rank r occurs; 0 for no ranks."""
    bits = 0
    for rank in ranks:
        bits |= 1 << rank
    return bits


def _sort_successors(
    following: Sequence[int],
    unvisited: int,
    rank: int,
    ties: Sequence[int],
) -> list[int]:
    """Return the unvisited successors of a rank, the best one last.

    The best has the fewest unvisited successors itself; of equal ones it has the largest entry of
    `ties`. `following[r]` (successors of rank r) and `unvisited` are integers in which bit r
    represents rank r. Empty without unvisited successors.
    """
    successors = following[rank] & unvisited
    keys: list[tuple[int, int, int]] = []
    while successors:
        lowest = successors & -successors
        successors ^= lowest
        successor = lowest.bit_length() - 1
        onward = (following[successor] & unvisited).bit_count()
        keys.append((-onward, ties[successor], successor))
    keys.sort()
    return [successor for _, _, successor in keys]
