"""The synthesis request and its options, checked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from collhub_blink.fewest.weight_search import Budget
from collhub_blink.options import BlinkOptions
from collhub_blink.packing.rank_network import RankNetwork
from hub_core.model import Collective, CollectiveKind, InputError, UsageError
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import SynthesisRequest

STEPS_PER_SECOND = 1_000_000
"""Search steps that count as one second of `time_limit`: about the speed of one server core."""

_MAX_CHUNKS = 1 << 20
# Above this number of ranks only one of this many random orders is tried for trees that are chosen
# by time and not by their number: more orders gain little.
_ORDER_DIVISOR = 4
_MAX_RANKS_FOR_ALL_ORDERS = 24

_UNSUITABLE_KINDS = (CollectiveKind.ALL_TO_ALL, CollectiveKind.CUSTOM)
_KINDS_FROM_THE_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
_KINDS_TO_THE_ROOT = (CollectiveKind.REDUCE, CollectiveKind.GATHER)
_REVERSED_KINDS = (*_KINDS_TO_THE_ROOT, CollectiveKind.REDUCE_SCATTER)


@dataclass(frozen=True, slots=True, eq=False)
class PackingTask:
    """A synthesis request as packings and schedules use it.

    `depth`: maximum hops of a tree, None for any. `chunks`: requested number of chunks, None to
    choose. `trees`: value of the option. `budget`: remaining search steps for proofs of fewest
    trees. `within_ns`: known achievable time; candidates that cannot beat it are not refined; None
    if unknown. `progress(fraction, text)`: reports progress.
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

    @classmethod
    def of(cls, request: SynthesisRequest, options: BlinkOptions) -> PackingTask:
        """Build the task from a request and its options.

        Raises `UsageError` for a single rank and wrong options, and `InputError` for collectives
        that do not run on trees and for ranks that data cannot reach.
        """
        collective = request.collective
        _check_suitable(collective)
        network = RankNetwork.of(request.topology, request.npus)
        _check_reach(network, collective)
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
        )

    @property
    def topology(self) -> Topology:
        """The network as the user described it."""
        return self.network.topology

    @property
    def oriented_network(self) -> RankNetwork:
        """The network in which data flows away from the roots.

        Reversed for reduce, gather and reduce-scatter.
        """
        is_inward = self.collective.kind in _REVERSED_KINDS
        return self.network.reversed if is_inward else self.network

    @property
    def seeds_of_flat_trees(self) -> int:
        """Number of random orders for growing trees that are chosen for their depth."""
        if self.network.graph.num_compute <= _MAX_RANKS_FOR_ALL_ORDERS:
            return self.seeds
        return -(-self.seeds // _ORDER_DIVISOR)

    @property
    def root(self) -> int:
        """Rank of the root. The collective must have one."""
        assert self.collective.root is not None
        return self.collective.root


def _check_suitable(collective: Collective) -> None:
    """Raise an error for collectives that trees cannot serve and for a single rank."""
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


def _check_reach(network: RankNetwork, collective: Collective) -> None:
    """Raise `InputError` for ranks that data must reach or leave and cannot."""
    # Without a root, it suffices to check rank 0 in both directions.
    start = collective.root or 0
    if collective.kind not in _KINDS_TO_THE_ROOT:
        network.check_reach(start, is_forward=True)
    if collective.kind not in _KINDS_FROM_THE_ROOT:
        network.check_reach(start, is_forward=False)


def _parse_chunks(text: str) -> int | None:
    """Parse the option `chunks`: a number from 1 to 2^20, None for `auto`. Raises `UsageError`."""
    if text == "auto":
        return None
    is_number = text.isascii() and text.isdecimal()
    # Nine digits suffice for the range check: Python refuses to convert very long numbers.
    if not is_number or not 1 <= int(text[:9]) <= _MAX_CHUNKS:
        raise UsageError(
            f"option chunks: {text!r} is neither auto nor a number from 1 to 2^20",
            cure="give for example 16",
        )
    return int(text)
