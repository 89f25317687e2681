"""Lower bounds on the time of a collective on a topology, to judge a simulated time against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hub_core.columns import BoolArray, Float64Array, Int64Array
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import CollectiveKind
from hub_core.network.cuts import beginnings_rate, leaving_rate, orders, partitions
from hub_core.network.topology import Topology
from hub_core.network.traffic import RankSets, Traffic

# Of each partition and order so many sets are examined with the latencies of their links.
_EXAMINED_SETS = 2
# Ranks times links up to which distances between all ranks are computed (below 0.1 CPU s).
_MAX_DISTANCE_WORK = 1 << 19
# Bits of a bound that sums of doubles get right.
_EXACT_BITS = 50
UNICAST = (CollectiveKind.ALL_TO_ALL, CollectiveKind.GATHER, CollectiveKind.SCATTER)
"""Kinds of which every byte goes from one rank to one other."""


def lower_bound_ns(
    collective: Collective,
    topology: Topology,
    collective_bytes: int,
    npus: Sequence[int] | None = None,
) -> float | None:
    """The whole nanoseconds of `lower_bounds_ps`: infinite without a path, None if unknown."""
    bounds_ps = lower_bounds_ps(collective, topology, (collective_bytes,), npus)
    if bounds_ps is None or not math.isfinite(bounds_ps[0]):
        return None if bounds_ps is None else bounds_ps[0]
    return float(bounds_ps[0] // 1000)


def lower_bounds_ps(
    collective: Collective,
    topology: Topology,
    sizes: Sequence[int],
    npus: Sequence[int] | None = None,
) -> tuple[float, ...] | None:
    """Whole picoseconds that no algorithm can beat, by size in bytes; None for custom collectives.

    Infinite where ranks cannot reach one another. Rank r runs on NPU `npus[r]`, by default NPU r;
    other NPUs forward. The largest of: the bytes that must leave a set of nodes (one rank, a
    machine, half of a network: `cuts`) through the links out of it; the bytes that all blocks of a
    partition must send (receive) through theirs (all-reduce: 2 (blocks - 1) S, Patarasuk and Yuan,
    JPDC 2009); where every byte has one destination, the bytes of all pairs of ranks times the
    links between them, through all links; and the least latency between two ranks of which one must
    hear of the other. A link carries nothing before the least latency from a rank through it has
    passed, and nothing that could not arrive at a rank in time. Switches multicast and reduce where
    the topology says so.

    It holds for links that are shared (not for the model congestion-unaware) and for exact times: a
    simulator that truncates the time of every message to whole nanoseconds, as ASTRA-sim does,
    gains up to 1 ns a message and link. Cost: some 20 passes over the links. Raises `InputError`
    for too few NPUs.
    """
    n = collective.num_ranks
    if n > topology.num_npus:
        raise InputError(
            f"{n} ranks, but topology {topology.name} has {topology.num_npus} NPUs",
            cure="choose a larger topology",
            code="topology-too-small",
        )
    if not Traffic(collective, 1).is_known:
        return None
    if n < 2:
        return (0.0,) * len(sizes)
    links = _links(collective, topology, npus)
    return tuple(_whole_ps(links.bound_ns(Traffic(collective, size))) for size in sizes)


def cut_bounds_ps(
    collective: Collective,
    topology: Topology,
    sizes: Sequence[int],
    npus: Sequence[int] | None,
    label: Int64Array,
) -> tuple[float, ...]:
    """The bounds by one partition of the nodes, as `lower_bounds_ps` has them.

    `label`: int64[nodes], blocks 0, 1, ..., `cuts.NO_BLOCK` for switches in none. For whoever knows
    a better set of nodes than `cuts` tries.
    """
    links = _links(collective, topology, npus)
    traffics = (Traffic(collective, size) for size in sizes)
    return tuple(_whole_ps(max(links.partition_ns(label, traffic))) for traffic in traffics)


def distance_bounds_ps(
    collective: Collective,
    topology: Topology,
    sizes: Sequence[int],
    npus: Sequence[int] | None,
    length: Float64Array,
) -> tuple[float, ...]:
    """The bounds by one length of every link, of an all-to-all, gather or scatter.

    `length`: float64[links], not negative, for example prices of a flow by bandwidths. Weak duality
    of the flow: what all pairs of ranks need in bytes times distance is at most what the links
    carry in bytes times length.
    """
    links = _links(collective, topology, npus)
    far, capacity = links.distances(length)
    traffics = (Traffic(collective, size) for size in sizes)
    return tuple(_whole_ps(_byte_lengths(far, traffic) / capacity) for traffic in traffics)


def _links(collective: Collective, topology: Topology, npus: Sequence[int] | None) -> _Links:
    ranks = range(collective.num_ranks) if npus is None else npus
    return _Links(topology, np.asarray(ranks, np.int64), collective)


def _byte_lengths(lengths: Float64Array, traffic: Traffic) -> float:
    """Sum of bytes times length over all ranks; a rank without bytes may have no path."""
    has_bytes = traffic.share > 0
    return float(lengths[has_bytes] @ traffic.share[has_bytes])


def _whole_ps(bound_ns: float) -> float:
    if not math.isfinite(bound_ns):
        return bound_ns
    # Sums of doubles err by less than 1e-4 ps, which counts as equal; beyond some 20 minutes by
    # some units in the last of 53 bits, which a bound must not gain.
    bound_ps = math.floor(bound_ns * 1000 + 1e-4)
    return bound_ps - (bound_ps >> _EXACT_BITS)


@dataclass(frozen=True)
class _Links:
    """The links of a topology for a collective whose rank r is NPU `members[r]`, int64[ranks]."""

    topology: Topology
    members: Int64Array
    collective: Collective

    def bound_ns(self, traffic: Traffic) -> float:
        """The largest of all bounds for a size, in nanoseconds."""
        bounds = [self._latency_ns, self._distance_ns(traffic)]
        for label in self._partitions:
            bounds += self.partition_ns(label, traffic)
        for place in self._orders:
            bounds += self._order_ns(place, traffic)
        return max(bounds)

    @cached_property
    def _partitions(self) -> list[Int64Array]:
        return list(partitions(self.topology))

    @cached_property
    def _orders(self) -> list[Int64Array]:
        # Switches without a place of their own come last.
        found = (np.where(place >= 0, place, place.max() + 1) for place in orders(self.topology))
        return [place for place in found if place.max() > 0]

    @cached_property
    def _is_member(self) -> BoolArray:
        is_member = np.zeros(self.topology.num_nodes, np.bool_)
        is_member[self.members] = True
        return is_member

    @cached_property
    def _delay_ns(self) -> Float64Array:
        """Least latency from a rank over each link and on to a rank, float64[links].

        Infinite where no rank can send over the link, or none can be reached behind it.
        """
        topology, latency = self.topology, self.topology.latency_ns
        before = topology.arcs().lengths_from(self._is_member, latency)[topology.source]
        arcs = topology.arcs(backwards=True)
        behind = arcs.lengths_from(self._is_member, latency)[topology.destination]
        return before + latency + behind

    def partition_ns(self, label: Int64Array, traffic: Traffic) -> Iterator[float]:
        """Of every block alone, and of all blocks together, both ways."""
        topology, count = self.topology, int(label.max()) + 1
        sets = traffic.sets_of(label[self.members], count)
        others = traffic.complements(sets)
        begins, ends = label[topology.source], label[topology.destination]
        rate = topology.bandwidth_bytes_per_s
        leaving = leaving_rate(begins, ends, rate, count)
        entering = leaving_rate(ends, begins, rate, count)
        crosses = begins != ends
        needs = traffic.leaving(sets), traffic.leaving(others)
        for block in self._slowest(needs[0], leaving, begins, crosses):
            yield self._fill_ns(crosses & (begins == block), needs[0][block])
        for block in self._slowest(needs[1], entering, ends, crosses):
            yield self._fill_ns(crosses & (ends == block), needs[1][block])
        between = traffic.between(sets)
        sent = float(needs[0].sum()) if topology.multicast else between
        received = float(needs[1].sum()) if topology.reduction else between
        # Blocks without a rank only forward: no message begins or ends there.
        has_rank = np.append(sets.ranks > 0, False)
        yield self._fill_ns(crosses & has_rank[begins], sent)
        yield self._fill_ns(crosses & has_rank[ends], received)

    def _slowest(
        self, needs: Float64Array, rates: Float64Array, near: Int64Array, crosses: BoolArray
    ) -> list[int]:
        """Blocks that take longest, latencies left out; of equal ones, one by their delays."""
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(needs > 0, needs / rates, 0.0)
        # On a regular network all blocks are equal: one is examined in place of thousands.
        usable = crosses & (near >= 0) & np.isfinite(self._delay_ns)
        delays = np.bincount(near[usable], self._delay_ns[usable], len(needs))
        keys = np.stack([np.round(times, 12), np.round(delays, 3)])
        _, first = np.unique(keys, axis=1, return_index=True)
        needed = first[needs[first] > 0]
        by_time = needed[np.argsort(-times[needed], kind="stable")][:_EXAMINED_SETS]
        by_delay = needed[np.argsort(-delays[needed], kind="stable")][:_EXAMINED_SETS]
        return list(dict.fromkeys([*by_time.tolist(), *by_delay.tolist()]))

    def _order_ns(self, place: Int64Array, traffic: Traffic) -> Iterator[float]:
        """Of the nodes up to each place of an order, and of the nodes behind it."""
        topology, count = self.topology, int(place.max()) + 1
        one = traffic.sets_of(place[self.members], count)
        columns = (np.cumsum(column)[:-1] for column in (one.ranks, one.shares, one.has_root))
        sets = RankSets(*columns)
        ends = place[topology.source], place[topology.destination]
        for side, (low, high) in ((sets, ends), (traffic.complements(sets), ends[::-1])):
            needs = traffic.leaving(side)
            rates = beginnings_rate(low, high, topology.bandwidth_bytes_per_s, count)
            with np.errstate(divide="ignore", invalid="ignore"):
                times = np.where(needs > 0, needs / rates, 0.0)
            for end in np.argsort(-times, kind="stable")[:_EXAMINED_SETS].tolist():
                yield self._fill_ns((low <= end) & (high > end), float(needs[end]))

    def _fill_ns(self, mask: BoolArray, need: float) -> float:
        """Least time in which the links of `mask` carry `need` bytes, each from its delay on."""
        if need <= 0:
            return 0.0
        delay = self._delay_ns
        # A link with an infinite delay carries nothing of use.
        usable = mask & np.isfinite(delay)
        order = np.argsort(delay[usable], kind="stable")
        starts = delay[usable][order]
        rates = (self.topology.bandwidth_bytes_per_s[usable] / 1e9)[order]
        # Something is needed, and nothing can bring it.
        if not len(rates):
            return float("inf")
        # With the k first-starting links, T = (need + sum of rate * start) / sum of rate: the least
        times = (need + np.cumsum(rates * starts)) / np.cumsum(rates)
        return float(times.min())

    @cached_property
    def _latency_ns(self) -> float:
        """The largest least latency from (to) the root; without one, from two ranks far apart."""
        collective = self.collective
        arcs = self.topology.arcs(backwards=collective.kind.traits.to_root)
        nodes, latency = np.arange(self.topology.num_nodes), self.topology.latency_ns
        # Where there is no root every rank is as good to start from.
        start = self.members[collective.root or 0]
        latencies = arcs.lengths_from(nodes == start, latency)[self.members]
        if collective.root is None:
            # Everyone must hear of everyone: the rank farthest away is a better start.
            farthest = self.members[int(np.argmax(latencies))]
            farther = arcs.lengths_from(nodes == farthest, latency)[self.members]
            latencies = np.maximum(latencies, farther)
        return float(latencies.max())

    def _distance_ns(self, traffic: Traffic) -> float:
        """The bounds by `distances` that are inexpensive; 0 for collectives without them."""
        times = (_byte_lengths(far, traffic) / capacity for far, capacity in self._plain_distances)
        return max(times, default=0.0)

    @cached_property
    def _plain_distances(self) -> list[tuple[Float64Array, float]]:
        """Of lengths of 1 a link, and of the inverse of the bandwidth."""
        topology = self.topology
        is_small = len(self.members) * topology.num_links <= _MAX_DISTANCE_WORK
        if self.collective.kind not in UNICAST or not is_small:
            return []
        lengths = np.ones(topology.num_links), 1e9 / topology.bandwidth_bytes_per_s
        return [self.distances(length) for length in lengths]

    def distances(self, length: Float64Array) -> tuple[Float64Array, float]:
        """Lengths from all senders to every rank, float64[ranks], and bytes times length per ns.

        A gather is taken backwards: what its root receives of each rank.
        """
        topology = self.topology
        nodes = np.arange(topology.num_nodes)
        arcs = topology.arcs(backwards=self.collective.kind.traits.to_root)
        root = self.collective.root
        total = np.zeros(len(self.members))
        for start in (self.members if root is None else self.members[[root]]).tolist():
            total += arcs.lengths_from(nodes == start, length)[self.members]
        # Without links, distances are infinite.
        return total, float(topology.bandwidth_bytes_per_s / 1e9 @ length) or 1.0
