"""What is to be packed: a request and its options, checked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from collhub_blink.fewest.weights import Budget
from collhub_blink.options import BlinkOptions
from collhub_blink.packing.rank_network import RankNetwork
from hub_core.model import Collective, CollectiveKind, InputError, UsageError
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import SynthesisRequest

STEPS_PER_SECOND = 1_000_000
"""Search steps that count as a second of `time_limit`: about what one core of a server does."""

_MOST_CHUNKS = 1 << 20
# One of so many random orders is tried beyond so many ranks where the time decides, not the fewest
# trees: more orders are worth little.
_ORDERS_A_TRY = 4
_RANKS_FOR_ALL_ORDERS = 24

_UNSUITABLE = (CollectiveKind.ALL_TO_ALL, CollectiveKind.CUSTOM)
_FROM_THE_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
_TO_THE_ROOT = (CollectiveKind.REDUCE, CollectiveKind.GATHER)
_INWARD = (*_TO_THE_ROOT, CollectiveKind.REDUCE_SCATTER)


@dataclass(frozen=True, slots=True, eq=False)
class PackingTask:
    """A synthesis request as packings and schedules take it.

    `depth`: the most hops of a tree, None for any. `chunks`: None to choose. `trees`: value of
    the option. `budget`: what is left for proofs of fewest trees. `within_ns`: a time that is
    reached already, None for none. `progress(fraction, what)`.
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
    progress: Callable[[float, str], None] = field(default=lambda fraction, what: None)

    @classmethod
    def of(cls, request: SynthesisRequest, options: BlinkOptions) -> PackingTask:
        """Check a request. Raises `UsageError` and `InputError` naming what no trees can serve."""
        collective = request.collective
        _check_suitable(collective)
        network = RankNetwork.of(request.topology, request.npus)
        _check_reach(network, collective)
        # The least number of units: schedules choose their own multiple of it.
        units = collective.unit_count // collective.units_per_rank
        return cls(
            collective=replace(collective, unit_count=units),
            collective_bytes=request.collective_bytes,
            network=network,
            npus=request.npus,
            occupancy=request.occupancy,
            seed=options.seed,
            seeds=options.seeds,
            chunks=_chunks(options.chunks),
            # 0 stands for any depth.
            depth=options.depth or None,
            trees=options.trees,
            budget=Budget(int(options.time_limit * STEPS_PER_SECOND), request.budget.spend),
            # 0 stands for none.
            within_ns=options.within * 1e9 or None,
            progress=request.progress,
        )

    @property
    def topology(self) -> Topology:
        """The network as the user knows it."""
        return self.network.topology

    @property
    def oriented_network(self) -> RankNetwork:
        """The network in which data flows away from the roots.

        Turned round where the collective reduces or collects.
        """
        is_inward = self.collective.kind in _INWARD
        return self.network.reversed if is_inward else self.network

    @property
    def orders_of_flat_trees(self) -> int:
        """Random orders to grow trees in, where flat ones are asked for and not few."""
        if self.network.graph.num_compute <= _RANKS_FOR_ALL_ORDERS:
            return self.seeds
        return -(-self.seeds // _ORDERS_A_TRY)

    @property
    def root(self) -> int:
        """Rank of the root."""
        assert self.collective.root is not None
        return self.collective.root


def _check_suitable(collective: Collective) -> None:
    """Refuse what trees cannot serve."""
    if collective.kind in _UNSUITABLE:
        raise InputError(
            f"{collective.kind} does not run on spanning trees: "
            "every pair of ranks has data of its own",
            cure="take a synthesizer for any collective",
            code="trees-unsuitable",
        )
    if collective.num_ranks == 1:
        raise UsageError(
            "one rank has nothing to send",
            cure="let at least two ranks take part",
            code="one-rank",
        )


def _check_reach(network: RankNetwork, collective: Collective) -> None:
    """Refuse ranks that data cannot reach, or cannot leave, where it must."""
    # Without a root, one rank tells for all: each reaches it, and it reaches each.
    start = collective.root or 0
    if collective.kind not in _TO_THE_ROOT:
        network.check_reach(start, is_forward=True)
    if collective.kind not in _FROM_THE_ROOT:
        network.check_reach(start, is_forward=False)


def _chunks(text: str) -> int | None:
    """The stated number of chunks, None for auto."""
    if text == "auto":
        return None
    is_number = text.isascii() and text.isdecimal()
    # Nine digits are enough to tell: Python refuses to read very long numbers.
    if not is_number or not 1 <= int(text[:9]) <= _MOST_CHUNKS:
        raise UsageError(
            f"option chunks: {text!r} is neither auto nor a number from 1 to 2^20",
            cure="give for example 16",
        )
    return int(text)
