"""The synthesis request and its options, checked once, with its network as a capacity graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from collhub_packing import CapacityGraph, are_duplex, transposed

from collhub_blink.packing.weight_search import Budget
from collhub_blink.plugin import BlinkOptions
from hub_core.columns import Int64Array, inverse
from hub_core.model import Collective, CollectiveKind, InputError, UsageError, parse_whole
from hub_core.network import Occupancy, Topology, check_paths
from hub_core.plugin_api import SynthesisRequest, UnitLimits


@dataclass(frozen=True, slots=True, eq=False)
class RankNetwork:
    """A topology as a capacity graph over ranks.

    Node v of `graph` is node `nodes[v]` of `topology`; node r is rank r. Idle NPUs forward as
    switches do and follow the ranks. `is_reversed`: all links are reversed.
    """

    topology: Topology
    graph: CapacityGraph
    nodes: Int64Array
    is_reversed: bool = False

    @classmethod
    def of(cls, topology: Topology, npus: Sequence[int]) -> RankNetwork:
        """Build the network of an algorithm in which rank r runs on NPU `npus[r]`.

        Node r of the graph is rank r. The other NPUs and the switches follow, both in ascending
        order of their numbers in the topology; they only forward data. Capacities are integers:
        bandwidths in their largest common unit. Of parallel links in one plane only the first
        counts. Links of different planes between the same nodes are added. Raises `InputError`
        (`capacities`) if a capacity in this unit would be too large (`_MAX_CAPACITY` of
        `CapacityGraph`).
        """
        ranks = np.asarray(npus, np.int64)
        forwarders = np.setdiff1d(np.arange(topology.num_nodes), ranks)
        # The first nodes of a capacity graph are the computing ones.
        nodes = np.concatenate([ranks, forwarders])
        number = inverse(nodes)
        renumbered = Topology(
            topology.name,
            len(ranks),
            topology.num_nodes,
            number[topology.source],
            number[topology.destination],
            topology.bandwidth_bytes_per_s.copy(),
            topology.latency_s.copy(),
            plane=topology.plane.copy(),
        )
        return cls(topology, CapacityGraph.of(renumbered), nodes)

    @property
    def reversed(self) -> RankNetwork:
        """Return a copy of the network in which all links, of topology and graph, are reversed.

        Ranks and nodes keep their numbers. `is_reversed` of the copy is the opposite of that of
        this network.
        """
        reversed_topology = _reverse_links(self.topology)
        return RankNetwork(
            reversed_topology, transposed(self.graph), self.nodes, not self.is_reversed
        )

    def find_routes(self, parents: Int64Array, children: Int64Array) -> list[tuple[int, ...]]:
        """Return the nodes on the route from each parent to its child, in the order of the pairs.

        `parents`, `children`: nodes of the topology, int64[pairs]. A route has the fewest
        links, chosen as simulators do (`Topology.routes`), and includes both ends; equal ends
        give one node. In a reversed network, the route is that of a message from child to
        parent over the original links, but is listed from parent to child. Raises `InputError`
        (`disconnected`) for a pair without a path.
        """
        topology, senders, receivers = self.topology, parents, children
        if self.is_reversed:
            topology, senders, receivers = _reverse_links(topology), children, parents
        routes = topology.routes(senders, receivers)
        node_routes = []
        for index, sender in enumerate(senders.tolist()):
            rows = routes.links[routes.indptr[index] : routes.indptr[index + 1]]
            route = (sender, *topology.destination[rows].tolist())
            node_routes.append(route[::-1] if self.is_reversed else route)
        return node_routes

    @property
    def is_direct(self) -> bool:
        """Whether all nodes of the topology are ranks."""
        return not self.graph.has_switches

    @property
    def is_duplex(self) -> bool:
        """Whether every link has a reverse link of the same bandwidth."""
        return are_duplex(self.graph)

    @property
    def is_switchless(self) -> bool:
        """Whether all nodes are NPUs, so that messages queue only at their sender."""
        return self.topology.num_npus == self.topology.num_nodes

    @property
    def is_multiplied(self) -> bool:
        """Whether switches multicast or reduce, so that a link carries one message for several."""
        return bool(self.topology.multicast or self.topology.reduction)

    def to_topology_nodes(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Convert nodes of the graph to nodes of the topology, ascending."""
        return tuple(sorted(int(self.nodes[node]) for node in nodes))


def _reverse_links(topology: Topology) -> Topology:
    """Return the topology with all links reversed, in the same order."""
    return replace(topology, source=topology.destination, destination=topology.source)


STEPS_PER_SECOND = 1_000_000
"""Search steps that count as one second of `time_limit`: about the speed of one server core."""

_MAX_CHUNKS = 1 << 20
# Above this number of ranks only one of this many random orders is tried for trees that are chosen
# by time and not by their number: more orders gain little.
_ORDER_DIVISOR = 4
_MAX_RANKS_FOR_ALL_ORDERS = 24

_UNSUITABLE_KINDS = (CollectiveKind.ALL_TO_ALL, CollectiveKind.CUSTOM)
_REVERSED_KINDS = (CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.REDUCE_SCATTER)


# Ratios of simulated to planned time of a simulator with lower rates than the nominal ones: below,
# it is contention; above, most of the time is latency.
_MIN_SLOWDOWN, _MAX_SLOWDOWN = 1.25, 2.0


@dataclass(slots=True)
class SimulatorPace:
    """How much longer the simulator takes than planned, by the fastest schedule so far.

    A plan has the nominal rates of links. A simulator of a measured machine has lower rates, which
    no schedule can exceed. `ratio`: the least simulated time relative to its planned time.
    """

    ratio: float = math.inf

    def observe(self, time_ns: float, planned_ns: float) -> None:
        """Record the simulated and the planned time of a schedule."""
        if planned_ns > 0:
            self.ratio = min(self.ratio, time_ns / planned_ns)

    def to_simulated_ns(self, planned_ns: float) -> float:
        """Return the expected simulated time in ns of a schedule with a planned time in ns.

        It is `planned_ns` times `ratio` if `ratio` is from `_MIN_SLOWDOWN` (1.25) to
        `_MAX_SLOWDOWN` (2). Otherwise, and before the first observation, it is `planned_ns`,
        because a smaller ratio is due to contention and a larger one to latencies, not to lower
        rates of links.
        """
        is_slower = _MIN_SLOWDOWN <= self.ratio <= _MAX_SLOWDOWN
        return planned_ns * self.ratio if is_slower else planned_ns


@dataclass(frozen=True, slots=True, eq=False)
class PackingTask:
    """A synthesis request as packings and schedules use it.

    `depth`: maximum hops of a tree, None for any. `chunks`: requested number of chunks, None to
    choose. `trees`: value of the option. `budget`: remaining search steps for proofs of fewest
    trees. `within_ns`: known achievable time; candidates that cannot beat it are not refined; None
    if unknown. `progress(fraction, text)`: reports progress. `pace`: of the simulator, updated by
    each simulation. `units`: allowed numbers of units, None for any.
    """

    collective: Collective
    collective_bytes: int
    network: RankNetwork
    npus: tuple[int, ...]
    occupancy: Occupancy
    seed: int
    seeds: int
    chunks: int | None
    depth: int | None
    trees: str
    budget: Budget
    within_ns: float | None = None
    progress: Callable[[float, str], None] = field(default=lambda fraction, text: None)
    pace: SimulatorPace = field(default_factory=SimulatorPace)
    units: UnitLimits | None = None

    @classmethod
    def of(cls, request: SynthesisRequest, options: BlinkOptions) -> PackingTask:
        """Build the packing task of a request and its options, after checking both.

        - The collective gets the smallest unit count: that of the request divided by its units per
          rank.
        - `depth` (hops) and `within` (s) of 0 become None, no limit. Other values of `within`
          become ns.
        - `chunks` becomes a number, or None for `auto`.
        - `time_limit` (s) becomes a budget of 1 000 000 search steps per second, rounded down.
          Steps taken from the budget are also taken from `request.budget`.

        All other values are unchanged. Raises, in this order: `InputError` (`trees-unsuitable`) for
        all-to-all and custom collectives, `UsageError` (`one-rank`) for one rank, `InputError`
        (`disconnected`) if data cannot reach a rank, `InputError` (`capacities`) if bandwidths have
        no usable common unit, `UsageError` if `chunks` is neither `auto` nor 1 to 2^20.
        """
        collective = request.collective
        if collective.kind in _UNSUITABLE_KINDS:
            raise InputError(
                f"{collective.kind} does not run on spanning trees: "
                "every pair of ranks has separate data",
                cure="choose a synthesizer for any collective",
                code="trees-unsuitable",
            )
        if collective.num_ranks == 1:
            raise UsageError(
                "one rank has nothing to send",
                cure="let at least two ranks take part",
                code="one-rank",
            )
        # The network may be one plane of the request that the pipeline has checked.
        check_paths(collective, request.topology, request.npus)
        network = RankNetwork.of(request.topology, request.npus)
        # The minimum number of units; schedules choose their own multiple of it.
        units = collective.unit_count // collective.units_per_rank
        return cls(
            collective=replace(collective, unit_count=units),
            collective_bytes=request.collective_bytes,
            network=network,
            npus=request.npus,
            occupancy=request.occupancy,
            seed=options.seed,
            seeds=options.seeds,
            chunks=_parse_chunks(options.chunks),
            depth=options.depth or None,
            trees=options.trees,
            budget=Budget(int(options.time_limit * STEPS_PER_SECOND), request.budget.spend),
            within_ns=options.within * 1e9 or None,
            progress=request.progress,
            units=request.chunk_limits,
        )

    @property
    def topology(self) -> Topology:
        """The network as the user described it."""
        return self.network.topology

    @property
    def oriented_network(self) -> RankNetwork:
        """Return the network in which data are sent away from the roots of the trees.

        For reduce, gather and reduce-scatter, whose data are sent to the roots, it is a copy
        with all links reversed. For all other collectives it is the network itself.
        """
        is_inward = self.collective.kind in _REVERSED_KINDS
        return self.network.reversed if is_inward else self.network

    @property
    def seeds_of_flat_trees(self) -> int:
        """Return the number of random orders in which flat trees (those of low depth) are grown.

        It is the option `seeds`. With more than `_MAX_RANKS_FOR_ALL_ORDERS` (24) ranks it is
        divided by `_ORDER_DIVISOR` (4) and rounded up.
        """
        if self.network.graph.num_compute <= _MAX_RANKS_FOR_ALL_ORDERS:
            return self.seeds
        return -(-self.seeds // _ORDER_DIVISOR)

    @property
    def root(self) -> int:
        """Return the rank (not the NPU) of the collective's root.

        Raise `AssertionError` if the collective has no root.
        """
        assert self.collective.root is not None
        return self.collective.root


def _parse_chunks(text: str) -> int | None:
    """Parse the option `chunks`: a number from 1 to 2^20, None for `auto`.

    A number is 1 to 7 ASCII digits, so leading zeros are allowed. Raises `UsageError` for any
    other text, also for 0, a sign, blanks and other spellings of `auto`.
    """
    if text == "auto":
        return None
    chunks = parse_whole(text, _MAX_CHUNKS)
    if not chunks:
        raise UsageError(
            f"option chunks: {text!r:.40} is neither auto nor a number from 1 to 2^20",
            cure="give for example 16",
        )
    return chunks
