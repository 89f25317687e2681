"""Lower bounds on the time of a collective on a topology, for comparison with simulated times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from hub_core.columns import BoolArray, Float64Array, Int64Array
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import CollectiveKind
from hub_core.network.cuts import (
    EXAMINED_SETS,
    beginnings_rate,
    leaving_rate,
    orders,
    partitions,
    slowest_blocks,
)
from hub_core.network.links import whole_ps
from hub_core.network.pair_bounds import Filling, PairBounds
from hub_core.network.topology import Topology
from hub_core.network.traffic import Traffic, dependent_pairs

# Ranks times links up to which distances between all ranks are computed (below 0.1 CPU s).
_MAX_DISTANCE_WORK = 1 << 19
# Sending ranks of an uneven collective from which latencies are examined.
_EXAMINED_SENDERS = 64
UNICAST = (
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
    CollectiveKind.ALL_TO_ALL_V,
)
"""Kinds in which every byte is sent from one rank to one other rank."""


def lower_bound_ns(
    collective: Collective,
    topology: Topology,
    collective_bytes: int,
    npus: Sequence[int] | None = None,
) -> float | None:
    """Return a lower bound on the time of any algorithm for one size, rounded down to ns.

    `lower_bounds_ps` documents the bound, the arguments and the errors. Infinite if the network
    lacks a necessary path, 0 for a single rank, None for custom collectives.
    """
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
    """Compute lower bounds on the time of any algorithm in integer ps, one per size in bytes.

    Rank r runs on NPU `npus[r]`, by default on NPU r; all other NPUs only forward. Raises
    `InputError` (`topology-too-small`) for fewer NPUs than ranks. Otherwise None for custom
    collectives, 0 for a single rank. The bound, infinite without the necessary paths, is the
    largest of these:

    - bytes that must leave a set of nodes (one rank, a machine, half of a network: see `cuts`),
      divided by the bandwidth of the links out of the set
    - bytes that all blocks of a partition must send (receive), divided by the bandwidth of all
      links out of (into) them (all-reduce: 2 (blocks - 1) S, Patarasuk and Yuan, JPDC 2009)
    - if every byte has one destination and the network is small (`_plain_distances`): the sum of
      bytes times distance over all pairs of ranks, divided by the bandwidth of all links
    - the minimum latency of a path from a rank to one that depends on it (`_latency_ns`)
    - all-reduce, broadcast, reduce: latency and bandwidth together, by pairs of ranks and by the
      data that a message can unite or inform on its way (`pair_bounds`)

    A link counts only while data from a rank (the root, if only it has data) can have arrived at it
    and can still reach a rank (the root, if only it needs data). Switches multicast and reduce if
    the topology declares it. The bound holds if messages share links. A simulator that truncates
    message times to integer ns, such as ASTRA-sim, may be faster by 1 ns per message and link.
    Takes about 20 passes over the links, and one per hop to the NPU farthest from the root.
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
    return tuple(links.bound_ps(size) for size in sizes)


def cut_bounds_ps(
    collective: Collective,
    topology: Topology,
    sizes: Sequence[int],
    npus: Sequence[int] | None,
    label: Int64Array,
) -> tuple[float, ...]:
    """Compute lower bounds from one given partition of the nodes: integers in ps, one per size.

    For callers that know better sets of nodes than those of `cuts`. A bound is the largest of the
    bounds of single blocks and of all blocks together (`_Links.partition_ns`). It is infinite if
    bytes must leave or enter blocks over links that do not exist. `npus`: as in `lower_bounds_ps`.
    `label`: by node, int64, the block 0, 1, ..., or `cuts.NO_BLOCK` for a switch in no block. The
    collective must not be custom.
    """
    links = _links(collective, topology, npus)
    traffics = (Traffic(collective, size) for size in sizes)
    return tuple(whole_ps(max(links.partition_ns(label, traffic))) for traffic in traffics)


def distance_bounds_ps(
    collective: Collective,
    topology: Topology,
    sizes: Sequence[int],
    npus: Sequence[int] | None,
    length: Float64Array,
) -> tuple[float, ...]:
    """Compute lower bounds from given lengths of the links: whole ps, rounded down, one per size.

    The bound is the sum of bytes times shortest distance over all (sender, receiver), divided by
    the sum of bandwidth times length over all links; by weak duality, no algorithm carries the
    bytes faster. It is infinite if a receiver cannot be reached. `collective`: an all-to-all (also
    uneven), gather or scatter. `npus`: as in `lower_bounds_ps`. `length`: float64[links], in any
    unit, not negative, such as prices of a flow divided by bandwidths.
    """
    links = _links(collective, topology, npus)
    distance, capacity = links.distances(length)
    traffics = (Traffic(collective, size) for size in sizes)
    return tuple(whole_ps(_byte_lengths(distance, traffic) / capacity) for traffic in traffics)


def _links(collective: Collective, topology: Topology, npus: Sequence[int] | None) -> _Links:
    """Return the links of a network for a collective whose rank r runs on NPU `npus[r]`.

    With `npus` None, rank r runs on NPU r. The results of the last four different calls are cached.
    """
    ranks = range(collective.num_ranks) if npus is None else npus
    return _create_links(collective, topology, tuple(ranks))


@lru_cache(maxsize=4)
def _create_links(collective: Collective, topology: Topology, npus: tuple[int, ...]) -> _Links:
    """Create the links; the last four are cached, because many algorithms need the same bounds."""
    return _Links(topology, np.asarray(npus, np.int64), collective, {})


def _byte_lengths(lengths: Float64Array, traffic: Traffic) -> float:
    """Return the sum over all ranks of the bytes of the rank's part times its length.

    `lengths`: float64[ranks]; the bytes are `traffic.share`. Ranks without bytes are
    skipped, because their length may be infinite.
    """
    has_bytes = traffic.share > 0
    return float(lengths[has_bytes] @ traffic.share[has_bytes])


@dataclass(frozen=True)
class _Links:
    """The links of a topology for a collective whose rank r is NPU `members[r]`, int64[ranks].

    `bounds_ps`: the bounds in ps computed so far, by size in bytes.
    """

    topology: Topology
    members: Int64Array
    collective: Collective
    bounds_ps: dict[int, float]

    def bound_ps(self, size: int) -> float:
        """Return the largest of all bounds (`bound_ns`) for a size in bytes, in ps.

        It is rounded down by `whole_ps`, and infinite without the necessary paths. The result
        is stored in `bounds_ps`, so that each size is computed once.
        """
        if size not in self.bounds_ps:
            self.bounds_ps[size] = whole_ps(self.bound_ns(Traffic(self.collective, size)))
        return self.bounds_ps[size]

    def bound_ns(self, traffic: Traffic) -> float:
        """Return the largest lower bound in ns on the time of any algorithm for this traffic.

        The bounds are those by latency, by distances, by all partitions and all orders of the
        nodes, and by pairs of ranks (`_pairs`). The result is not rounded, and infinite if a
        necessary path is missing.
        """
        bounds = [self._latency_ns]
        for distance, capacity in self._plain_distances:
            # Every byte travels its distance, and the links have this capacity in total.
            bounds.append(_byte_lengths(distance, traffic) / capacity)
        for label in self._partitions:
            bounds += self.partition_ns(label, traffic)
        for position in self._orders:
            bounds += self._order_ns(position, traffic)
        known_ns = max(bounds)
        return self._pairs.bound_ns(traffic.size, known_ns) if self._pairs else known_ns

    @cached_property
    def _pairs(self) -> PairBounds | None:
        sets = self._partitions, self._orders
        return PairBounds.of(self.collective, self.topology, self.members, *sets)

    @cached_property
    def _partitions(self) -> list[Int64Array]:
        """The partitions of `cuts.partitions`, computed once."""
        return list(partitions(self.topology))

    @cached_property
    def _orders(self) -> list[Int64Array]:
        # Switches without a position are last.
        found = orders(self.topology)
        candidates = (np.where(each >= 0, each, each.max() + 1) for each in found)
        return [position for position in candidates if position.max() > 0]

    def _mark(self, ranks: slice) -> BoolArray:
        """Return the mask of the nodes on which some ranks run, bool[nodes]."""
        return np.isin(np.arange(self.topology.num_nodes), self.members[ranks])

    @cached_property
    def _delay_ns(self) -> Float64Array:
        """Return the least latency in ns of a path over each link from a sender to a receiver.

        float64[links]. The link is included; the result is infinite without a path. Sender and
        receiver may be the same rank. All ranks send and receive, except that only the root
        sends in a broadcast or scatter, or receives in a reduce or gather.
        """
        topology, latency = self.topology, self.topology.latency_ns
        traits, root = self.collective.kind.traits, self.collective.root or 0
        sources = self._mark(slice(root, root + 1) if traits.from_root else slice(None))
        targets = self._mark(slice(root, root + 1) if traits.to_root else slice(None))
        before = topology.arcs().lengths_from(sources, latency)[topology.source]
        remaining = topology.arcs(backwards=True).lengths_from(targets, latency)
        return before + latency + remaining[topology.destination]

    def partition_ns(self, label: Int64Array, traffic: Traffic) -> Iterator[float]:
        """Yield lower bounds in ns for a partition of the nodes: of single blocks, then of all.

        `label`: block of every node from 0; `NO_BLOCK` (negative) for a switch in no block. A bound
        is the least time in which links together carry some bytes, each at its bandwidth from its
        delay (`_delay_ns`) on. It is 0 without bytes, otherwise infinite without links.

        1. Single blocks, as chosen by `slowest_blocks`: first for each block the bytes that must
           leave it over the links that leave it; then for each block the bytes that must enter it
           over the links that enter it.
        2. All blocks: the minimum bytes between blocks over the links that leave a block with
           ranks; then the same bytes over the links that enter a block with ranks. If switches
           multicast (in the first bound) or reduce (in the second), the bytes are instead the sum
           of those that must leave (enter) each block.
        """
        topology, count = self.topology, int(label.max()) + 1
        sets = traffic.sets_of(label[self.members], count)
        complements = traffic.complements(sets)
        begins, last = label[topology.source], label[topology.destination]
        rate = topology.bandwidth_bytes_per_s
        leaving = leaving_rate(begins, last, rate, count)
        entering = leaving_rate(last, begins, rate, count)
        crosses = begins != last
        needs = traffic.leaving(sets), traffic.leaving(complements)
        delay_ns = np.where(crosses, self._delay_ns, np.inf)
        for block in slowest_blocks(needs[0], leaving, begins, delay_ns):
            yield self._fill_ns(crosses & (begins == block), needs[0][block])
        for block in slowest_blocks(needs[1], entering, last, delay_ns):
            yield self._fill_ns(crosses & (last == block), needs[1][block])
        between = traffic.between(sets)
        sent = float(needs[0].sum()) if topology.multicast else between
        received = float(needs[1].sum()) if topology.reduction else between
        # Blocks without a rank only forward: messages neither start nor finish there.
        has_rank = np.append(sets.ranks > 0, False)
        yield self._fill_ns(crosses & has_rank[begins], sent)
        yield self._fill_ns(crosses & has_rank[last], received)

    def _order_ns(self, position: Int64Array, traffic: Traffic) -> Iterator[float]:
        """Yield lower bounds in ns for the slowest prefixes of an order of nodes, then complements.

        The traffic of such a set must leave it over the links to the other nodes. `position`:
        position of every node, from 0; a prefix has all nodes up to a position. Sets are compared
        by their time without latencies. Only the `_EXAMINED_SETS` slowest prefixes, and as many
        complements, get a bound, the slowest first; of equally slow ones those of shorter prefixes.
        """
        topology, count = self.topology, int(position.max()) + 1
        sets = traffic.prefixes_of(position[self.members], count)
        last = position[topology.source], position[topology.destination]
        for side, (low, high) in ((sets, last), (traffic.complements(sets), last[::-1])):
            needs = traffic.leaving(side)
            rates = beginnings_rate(low, high, topology.bandwidth_bytes_per_s, count)
            with np.errstate(divide="ignore", invalid="ignore"):
                times = np.where(needs > 0, needs / rates, 0.0)
            for end in np.argsort(-times, kind="stable")[:EXAMINED_SETS].tolist():
                yield self._fill_ns((low <= end) & (high > end), float(needs[end]))

    def _fill_ns(self, mask: BoolArray, need: float) -> float:
        """Return the minimum time in ns for the links of `mask` to carry `need` bytes together.

        Each link is available from its delay (`_delay_ns`) on, and then carries its bandwidth. The
        result is 0 for a need of 0 or less, and infinite if no link can be used (links with an
        infinite delay cannot).
        """
        if need <= 0:
            return 0.0
        rates = self.topology.bandwidth_bytes_per_s[mask] / 1e9
        return float(Filling.of(self._delay_ns[mask], rates).times_ns(need))

    @cached_property
    def _latency_ns(self) -> float:
        """Return the largest latency in ns between dependent ranks; infinite without a path.

        The pairs are: with a root, (root, every rank), or (every rank, root) if data go to it;
        without a root, (rank 0, every rank) and (F, every rank). F is the first rank with the
        largest latency from rank 0. With uneven counts, even with a root: (sender, every rank that
        needs its data) for the first 64 such senders (`_EXAMINED_SENDERS`); 0 without any.
        """
        collective = self.collective
        if collective.counts is not None:
            return self._uneven_latency_ns()
        arcs = self.topology.arcs(backwards=collective.kind.traits.to_root)
        nodes, latency = np.arange(self.topology.num_nodes), self.topology.latency_ns
        # Without a root, any rank is a valid start.
        start = self.members[collective.root or 0]
        latencies = arcs.lengths_from(nodes == start, latency)[self.members]
        if collective.root is None:
            # All ranks depend on all others: the most distant rank is a better start.
            farthest = self.members[int(np.argmax(latencies))]
            farther = arcs.lengths_from(nodes == farthest, latency)[self.members]
            latencies = np.maximum(latencies, farther)
        return float(latencies.max())

    def _uneven_latency_ns(self) -> float:
        """Return the longest latency (ns) of the fastest paths from senders to their receivers.

        A rank is a receiver of another rank whose data it needs. A sender has at least one
        receiver; only the 64 senders with the lowest ranks count. The result is 0 without
        senders, and infinite if a receiver cannot be reached.
        """
        sends = dependent_pairs(self.collective)
        arcs, nodes = self.topology.arcs(), np.arange(self.topology.num_nodes)
        farthest = 0.0
        for rank in np.flatnonzero(sends.any(axis=1))[:_EXAMINED_SENDERS].tolist():
            start = nodes == self.members[rank]
            latencies = arcs.lengths_from(start, self.topology.latency_ns)[self.members]
            farthest = max(farthest, float(latencies[sends[rank]].max()))
        return farthest

    @cached_property
    def _plain_distances(self) -> list[tuple[Float64Array, float]]:
        """Total distances and capacity (see `distances`), by hops and by transfer time.

        The first pair is for links of length 1, the second for length 1e9 / bandwidth (s/GB).
        Empty if `UNICAST` lacks the kind, or if ranks x links exceed `_MAX_DISTANCE_WORK`.
        """
        topology = self.topology
        is_small = len(self.members) * topology.num_links <= _MAX_DISTANCE_WORK
        if self.collective.kind not in UNICAST or not is_small:
            return []
        lengths = np.ones(topology.num_links), 1e9 / topology.bandwidth_bytes_per_s
        return [self.distances(length) for length in lengths]

    def distances(self, length: Float64Array) -> tuple[Float64Array, float]:
        """Return the total distance from the senders to each rank, and the capacity of all links.

        Distances: float64[ranks] in units of `length` (float64[links]), infinite without a path,
        summed over the senders: the root, or all ranks without one. If data go to the root, links
        are reversed. With counts, they are means over the bytes received (0 if none). The capacity
        is the sum of bandwidth (bytes per ns) times length, or 1.0 if this is 0.
        """
        topology = self.topology
        nodes = np.arange(topology.num_nodes)
        arcs = topology.arcs(backwards=self.collective.kind.traits.to_root)
        root = self.collective.root
        total = np.zeros(len(self.members))
        weights = None
        if self.collective.counts is not None:
            pairs = Traffic(self.collective, 1).pair_bytes
            weights = pairs / np.maximum(pairs.sum(axis=0), np.finfo(np.float64).tiny)
        senders = self.members if root is None else self.members[[root]]
        for rank, start in enumerate(senders.tolist()):
            lengths = arcs.lengths_from(nodes == start, length)[self.members]
            if weights is not None:
                # Ranks without data from this one may be unreachable.
                lengths = np.where(weights[rank] > 0, lengths, 0.0) * weights[rank]
            total += lengths
        # Without links the capacity is 0 and distances are infinite.
        return total, float(topology.bandwidth_bytes_per_s / 1e9 @ length) or 1.0
