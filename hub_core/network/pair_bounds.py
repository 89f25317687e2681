"""Lower bounds from pairs of a source and a destination, with latency and bandwidth together.

They hold for an all-reduce, a broadcast and a reduce: every byte of the destination's result
depends on the same byte of every source. Such a byte gets from the source to the destination by a
chain of messages, which may be copied, and summed with other data, at every NPU. Assumptions, of
both link models: a link carries at most its bandwidth, whatever messages share it; a byte arrives
at least one latency after it starts; only switches that multicast or reduce copy or sum. Messages
may have any size, also of one byte. Times of computations count as 0.

*One pair* (`_QuickestFlow`). Each byte has a way from source s to destination d. These ways are a
flow over time: it delivers S bytes by the end T, within the capacities and latencies of the links.
No such flow is faster than the quickest one, which successive shortest paths of length l_i and rate
r_i give: T = min over k of (S + sum of r_i l_i) / sum of r_i, for i up to k (Ford and Fulkerson,
Operations Research 1958).

*A cut* (`_cuts`). Let the sources of X be inside a set of nodes and the destinations of Y outside.
For each of |X| |Y| pairs, S bytes must cross a link out of the set. A byte that enters the link at
time t is part of one message between two NPUs. It thus holds the data of at most a(t) sources, the
most that can meet by t at one NPU and reach the link through switches only. It serves at most
b(T - t - latency) destinations: those that one NPU, which the byte reaches through switches only,
can still inform. So the sum over the links of rate * integral of a(t) b(T - t - latency) dt is at
least S |X| |Y|. Steps of a at x_i and of b at y_j turn the link into parallel ones, which start at
x_i + latency + y_j. Without switches a cut is no better than its worst pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hub_core.columns import Arcs, BoolArray, Float64Array, Int64Array, ordinals
from hub_core.model.collectives import Collective
from hub_core.model.kinds import CollectiveKind
from hub_core.network.cuts import beginnings_rate, leaving_rate
from hub_core.network.topology import Topology

# Ranks times links up to which all pairs are examined; without switches 0.1 CPU s.
_MAX_WORK = 1 << 23
_MAX_DIRECT_WORK = 1 << 19
# Pairs times links of an NPU up to which all pairs are compared by the links of their ends.
_MAX_PAIR_CELLS = 1 << 21
# Pairs of each size whose quickest flow is computed, those of equal time, and paths of a flow.
_EXAMINED_PAIRS = 6
_EQUAL_PAIRS = 2
_MAX_PATHS = 64
# A remaining rate below this fraction of the rate of a link is a rounding error.
_ROUNDING = 1e-14
# Latencies are multiples of 1 fs, as floats without rounding errors up to this sum.
_FS_PER_NS = 1e6
_MAX_FS = 2.0**52
# Blocks of each partition, and steps of the numbers of sources and destinations at links.
_EXAMINED_BLOCKS = 2
_MAX_STEPS = 16


class Filling(NamedTuple):
    """Parallel links by ascending start, cumulated along the last axis; float64.

    `rates`: bytes per ns; `unused`: bytes that the links would have carried before their starts.
    """

    rates: Float64Array
    unused: Float64Array

    @classmethod
    def of(cls, starts: Float64Array, rates: Float64Array) -> Filling:
        """Sort links that carry `rates` bytes per ns from `starts` on, in ns (infinite: never)."""
        order = np.argsort(starts, axis=-1, kind="stable")
        starts = np.take_along_axis(starts, order, -1)
        rates = np.take_along_axis(np.broadcast_to(rates, starts.shape), order, -1)
        return cls(np.cumsum(rates, -1), np.cumsum(rates * starts, -1))

    def times_ns(self, need: float) -> Float64Array:
        """Return the minimum time in ns for the links to carry `need` bytes; infinite without any.

        With the first k links it is (need + unused bytes) / rates; the minimum over k counts.
        """
        times: Float64Array = ((need + self.unused) / self.rates).min(axis=-1, initial=np.inf)
        return times


@dataclass(frozen=True)
class PairBounds:
    """Bounds of a collective of S bytes in which every destination depends on every source.

    `sources`, `destinations`: int64, different NPUs; one that is in both needs no message to
    itself. `partitions`, `orders`: labels of the nodes from 0, as of `cuts.partitions` and
    `cuts.orders`, but every node has a position. Their sets are examined on networks with switches.
    """

    topology: Topology
    sources: Int64Array
    destinations: Int64Array
    partitions: Sequence[Int64Array] = ()
    orders: Sequence[Int64Array] = ()

    @classmethod
    def of(
        cls,
        collective: Collective,
        topology: Topology,
        members: Int64Array,
        partitions: Sequence[Int64Array],
        orders: Sequence[Int64Array],
    ) -> PairBounds | None:
        """Create bounds for rank r on NPU `members[r]`; None if no all-reduce, broadcast, reduce.

        Without switches and with more than `_MAX_DIRECT_WORK` ranks times links, one pair remains:
        the source farthest from the first destination, and the destination farthest from it (ns).
        """
        kind, root = collective.kind, collective.root or 0
        if kind not in (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.REDUCE):
            return None
        only_root = members[root : root + 1]
        sources = only_root if kind.traits.from_root else members
        destinations = only_root if kind.traits.to_root else members
        is_direct = topology.num_nodes == topology.num_npus
        if is_direct and len(members) * topology.num_links > _MAX_DIRECT_WORK:
            first = _Distances(topology, destinations[:1], is_backwards=True).delay_ns[sources, 0]
            sources = sources[np.argmax(first)][None]
            last = _Distances(topology, sources, is_backwards=False).delay_ns[destinations, 0]
            destinations = destinations[np.argmax(last)][None]
        return cls(topology, sources, destinations, partitions, orders)

    def bound_ns(self, size: int, known_ns: float) -> float:
        """Return a lower bound in ns of the time of the collective for `size` bytes, not rounded.

        The result is never below `known_ns`, a bound that is already known. It is `known_ns`
        without further computation in two cases: `size` is 0, or the work exceeds `_MAX_WORK`.
        The work is the larger of the numbers of sources and destinations, times the links.

        Otherwise it is the largest of `known_ns`, the bounds of the cuts, and the times of the
        source-destination pairs that seem slowest. It is infinite if a destination of such a
        pair cannot be reached. The flows of these pairs are kept for later calls.
        """
        ranks = max(len(self.sources), len(self.destinations))
        if not size or ranks * self.topology.num_links > _MAX_WORK:
            return known_ns
        for need, cut in self._cuts:
            known_ns = max(known_ns, float(cut.times_ns(need * size)))
        for pair in self._find_slow_pairs(size):
            if pair not in self._flows:
                self._flows[pair] = _QuickestFlow(
                    self.topology,
                    int(self.sources[pair // len(self.destinations)]),
                    int(self.destinations[pair % len(self.destinations)]),
                )
            known_ns = max(known_ns, self._flows[pair].time_ns(size, known_ns))
        return known_ns

    @cached_property
    def _flows(self) -> dict[int, _QuickestFlow]:
        """Flows of pairs so far, by pair: source * number of destinations + destination."""
        return {}

    @cached_property
    def _from_sources(self) -> _Distances:
        return _Distances(self.topology, self.sources, is_backwards=False)

    @cached_property
    def _to_destinations(self) -> _Distances:
        return _Distances(self.topology, self.destinations, is_backwards=True)

    def _find_slow_pairs(self, size: int) -> list[int]:
        """Return at most `_EXAMINED_PAIRS` pairs (see `_flows`) that seem slowest for `size` bytes.

        A pair has its latency as time or, if longer, that of the links at one end (`_ends`). Pairs
        are sorted by descending time; ties keep the order. At most `_EQUAL_PAIRS` of times that are
        equal up to 1 ps are listed, and none of 0.
        """
        times = self._from_sources.delay_ns[self.destinations].T.copy()
        for index, filling in enumerate(self._ends[0]):
            times[:, index] = np.maximum(times[:, index], filling.times_ns(size))
        for index, filling in enumerate(self._ends[1]):
            times[index] = np.maximum(times[index], filling.times_ns(size))
        times[self.sources[:, None] == self.destinations] = 0.0
        flat = np.round(times.ravel(), 3)
        order = np.argsort(-flat, kind="stable")
        order = order[flat[order] > 0][: 64 * _EXAMINED_PAIRS]
        is_used = ordinals(np.unique(flat[order], return_inverse=True)[1]) < _EQUAL_PAIRS
        pairs: list[int] = order[is_used][:_EXAMINED_PAIRS].tolist()
        return pairs

    @cached_property
    def _ends(self) -> tuple[list[Filling], list[Filling]]:
        """Return `Filling`s of the links into each destination, and of those out of each source.

        Their rows are all sources, or all destinations. Links start at the latency of the shortest
        path over them. Both lists are empty if pairs * largest degree exceed `_MAX_PAIR_CELLS`.
        """
        topology = self.topology
        degree = max(
            np.bincount(topology.source, minlength=1).max(),
            np.bincount(topology.destination, minlength=1).max(),
        )
        if len(self.sources) * len(self.destinations) * int(degree) > _MAX_PAIR_CELLS:
            return [], []
        return (
            self._from_sources.fill_links_at(self.destinations),
            self._to_destinations.fill_links_at(self.sources),
        )

    @cached_property
    def _cuts(self) -> list[tuple[float, Filling]]:
        """Cuts: numbers of pairs across them, and parallel links (see the module)."""
        if self.topology.num_nodes == self.topology.num_npus:
            return []
        topology = self.topology
        cuts = []
        for inside in self._list_sets():
            rows = np.flatnonzero(inside[topology.source] & ~inside[topology.destination])
            sources, destinations = inside[self.sources], ~inside[self.destinations]
            held_ns, held = self._from_sources.steps(sources)
            served_ns, served = self._to_destinations.steps(destinations)
            latency_ns = topology.latency_ns[rows, None, None]
            starts = held_ns[topology.source[rows]][:, :, None] + latency_ns
            starts = starts + served_ns[topology.destination[rows]][:, None, :]
            rates = topology.bandwidth_bytes_per_s[rows, None, None] / 1e9
            rates = rates * held[:, None] * served
            # The pairs of a source inside and a destination outside must leave the set.
            pairs = float(np.count_nonzero(sources)) * float(np.count_nonzero(destinations))
            cuts.append((pairs, Filling.of(starts.ravel(), rates.ravel())))
        return cuts

    def _list_sets(self) -> Iterator[BoolArray]:
        """Yield slow sets of nodes: blocks of the partitions, prefixes of the orders.

        The complement of each such set is a set, too. The slow ones have the largest products of
        sources inside and destinations outside, divided by the bandwidth of the links out of the
        set. Of equal quotients in one partition or order, only the first counts.
        """
        topology = self.topology
        labels = [(label, False) for label in self.partitions]
        labels += [(position, True) for position in self.orders]
        unique = {(label.tobytes(), is_order): (label, is_order) for label, is_order in labels}
        for label, is_order in unique.values():
            count = int(label.max()) + 1
            numbers = [
                np.bincount(label[ranks], minlength=count)
                for ranks in (self.sources, self.destinations)
            ]
            totals = [len(self.sources), len(self.destinations)]
            if is_order:
                numbers = [np.cumsum(each)[:-1] for each in numbers]
            for is_complement in (False, True):
                begins, ends = label[topology.source], label[topology.destination]
                inside, other = numbers
                if is_complement:
                    begins, ends, inside, other = ends, begins, other, inside
                find_rate = beginnings_rate if is_order else leaving_rate
                rates = find_rate(begins, ends, topology.bandwidth_bytes_per_s, count)
                pairs = inside * (totals[not is_complement] - other)
                with np.errstate(divide="ignore", invalid="ignore"):
                    times = np.where(pairs > 0, pairs / rates, 0.0)
                slow, first = np.unique(-np.round(times * 1e12, 6), return_index=True)
                for index in first[slow < 0][: 1 if is_order else _EXAMINED_BLOCKS].tolist():
                    yield (label <= index if is_order else label == index) != is_complement


@dataclass(frozen=True)
class _Distances:
    """Latencies from each of some NPUs to all nodes; with `is_backwards`, from all nodes to it."""

    topology: Topology
    npus: Int64Array
    is_backwards: bool

    @cached_property
    def _arcs(self) -> Arcs:
        return self.topology.arcs(backwards=self.is_backwards)

    @cached_property
    def delay_ns(self) -> Float64Array:
        """Lowest latencies in ns, directed as the class: float64[nodes, npus], inf without path."""
        # An NPU with a single link has the distances of its neighbour, and its own latency.
        arcs, latency = self._arcs, self.topology.latency_ns
        is_single = np.bincount(arcs.tail, minlength=arcs.num_nodes)[arcs.tail] == 1
        start, added = np.arange(arcs.num_nodes), np.zeros(arcs.num_nodes)
        start[arcs.tail[is_single]] = arcs.head[is_single]
        added[arcs.tail[is_single]] = latency[is_single]
        starts, column = np.unique(start[self.npus], return_inverse=True)
        length = np.full((arcs.num_nodes, len(starts)), np.inf)
        length[starts, np.arange(len(starts))] = 0.0
        # Sums of latencies are multiples of 1 fs: rounded, equal sums are equal.
        delay = np.round(arcs.shorten(length, latency)[:, column] + added[self.npus], 6)
        delay[self.npus, np.arange(len(self.npus))] = 0.0
        return delay

    def fill_links_at(self, nodes: Int64Array) -> list[Filling]:
        """Return the links into each of `nodes` (backwards: out of it) from all NPUs.

        An entry has arrays [npus, links of the node]. A link starts at the latency of the
        shortest path that ends with it (backwards: begins with it).
        """
        latency, rate = self.topology.latency_ns, self.topology.bandwidth_bytes_per_s / 1e9
        fillings = []
        for node in nodes.tolist():
            rows = np.flatnonzero(self._arcs.head == node)
            starts = self.delay_ns[self._arcs.tail[rows]].T + latency[rows]
            fillings.append(Filling.of(starts, rate[rows]))
        return fillings

    def steps(self, chosen: BoolArray) -> tuple[Float64Array, Float64Array]:
        """Return from when on one message at a node can hold the data of several chosen NPUs.

        `chosen`: bool[npus]. Returns (times in ns, float64[nodes, steps], ascending per node; NPUs
        that each step adds, float64[steps]). A message leaves one NPU, which may have data of
        others, and passes only switches. If switches reduce (backwards: multicast), all paths count
        instead. With `is_backwards`: the latency after which so many NPUs can have data of a
        message. At most `_MAX_STEPS` steps; several steps in one have the earliest time.
        """
        topology = self.topology
        is_plain = bool(topology.multicast if self.is_backwards else topology.reduction)
        rows = topology.num_nodes if is_plain else topology.num_npus
        times = np.sort(self.delay_ns[:rows, chosen], axis=1)
        is_new = np.ones(times.shape[1], np.bool_)
        is_new[1:] = (times[:, 1:] != times[:, :-1]).any(axis=0)
        first = np.flatnonzero(is_new)
        if len(first) > _MAX_STEPS:
            first = first[np.linspace(0, len(first) - 1, _MAX_STEPS).astype(np.int64)]
        numbers = np.diff(np.append(first, times.shape[1])).astype(np.float64)
        length = np.full((topology.num_nodes, len(first)), np.inf)
        length[:rows] = times[:, first]
        if not is_plain:
            switched = np.flatnonzero(self._arcs.head >= topology.num_npus)
            arcs = Arcs(topology.num_nodes, self._arcs.tail[switched], self._arcs.head[switched])
            length = arcs.shorten(length, topology.latency_ns[switched])
        return length, numbers


class _QuickestFlow:
    """Quickest flow from one NPU to another one, by successive shortest augmenting paths.

    The paths are computed when a size needs them.
    """

    def __init__(self, topology: Topology, source: int, destination: int) -> None:
        self._source, self._destination = source, destination
        # The second half of the arcs returns flow: the links backwards, with negative lengths.
        tail = np.concatenate([topology.source, topology.destination])
        head = np.concatenate([topology.destination, topology.source])
        self._arcs = Arcs(topology.num_nodes, tail, head)
        length_fs = np.rint(topology.latency_ns * _FS_PER_NS)
        self._length_fs = np.concatenate([length_fs, -length_fs])
        self._rate = np.tile(topology.bandwidth_bytes_per_s / 1e9, 2)
        self._remaining = self._rate.copy()
        self._remaining[topology.num_links :] = 0.0
        self._is_exact = float(length_fs.max(initial=0.0)) * topology.num_nodes < _MAX_FS
        # Of each path: length in ns, cumulated rate (bytes per ns), cumulated rate times length.
        self._paths: list[tuple[float, float, float]] = []

    def time_ns(self, size: int, known_ns: float) -> float:
        """Return the minimum time in ns in which `size` bytes arrive; infinite without a path.

        A search that ends early, because the time is not above `known_ns`, returns another time
        not above it. 0 if the flow has more than `_MAX_PATHS` paths, and if sums of latencies
        would be rounded.
        """
        best_ns = np.inf
        for position in range(_MAX_PATHS if self._is_exact else 0):
            if position == len(self._paths) and not self._add_path():
                return best_ns
            length_ns, rate, unused = self._paths[position]
            # Later paths are at least as long, so they carry nothing before the best time.
            if length_ns >= best_ns or best_ns <= known_ns:
                return best_ns
            best_ns = (size + unused) / rate
        return 0.0

    def _add_path(self) -> bool:
        """Append the augmenting path of least latency to `_paths`; return False without one."""
        is_usable = self._remaining > _ROUNDING * self._rate
        weight = np.where(is_usable, self._length_fs, np.inf)
        start = np.arange(self._arcs.num_nodes) == self._source
        length = self._arcs.lengths_from(start, weight)
        if not np.isfinite(length[self._destination]):
            return False
        # Arcs on shortest paths; hops exclude cycles of length 0.
        tail, head = self._arcs.tail, self._arcs.head
        tight = np.flatnonzero(is_usable & (length[tail] + weight == length[head]))
        hops = Arcs(self._arcs.num_nodes, tail[tight], head[tight]).hops(np.asarray([self._source]))
        tight = tight[hops[0, tail[tight]] + 1 == hops[0, head[tight]]]
        into = dict(zip(head[tight].tolist(), tight.tolist(), strict=True))
        path, node = [], self._destination
        while node != self._source:
            path.append(into[node])
            node = int(tail[into[node]])
        rate = float(self._remaining[path].min())
        self._remaining[path] -= rate
        self._remaining[(np.asarray(path) + len(tail) // 2) % len(tail)] += rate
        length_ns = float(length[self._destination]) / _FS_PER_NS
        _, total, unused = self._paths[-1] if self._paths else (0.0, 0.0, 0.0)
        self._paths.append((length_ns, total + rate, unused + rate * length_ns))
        return True
