"""What is to be packed: a request and its options, checked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from collhub_blink.fewest.weights import Budget
from collhub_blink.packing.rank_network import RankNetwork
from hub_core.collectives import Collective, CollectiveKind
from hub_core.diagnostics import InputError, UsageError
from hub_core.plugins.contract import Options, SynthesisRequest
from hub_core.topology import Occupancy, Topology

STEPS_PER_SECOND = 1_000_000
"""Search steps that count as a second of `time_limit`: about what one core of a server does."""

_FROM_THE_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
_TO_THE_ROOT = (CollectiveKind.REDUCE, CollectiveKind.GATHER)
_INWARD = (*_TO_THE_ROOT, CollectiveKind.REDUCE_SCATTER)


@dataclass(frozen=True, slots=True, eq=False)
class PackingTask:
    """`root`: the rank of the root, or None. `depth`: the most hops of a tree, None for any. `chunks`: None to choose.

    `budget`: what is left for proofs of fewest trees.
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
    progress: Callable[[float, str], None] = field(default=lambda fraction, what: None)

    @classmethod
    def of(cls, request: SynthesisRequest, options: Options) -> PackingTask:
        """Check a request. Raises `UsageError` and `InputError` naming what no trees can serve."""
        kind = request.collective.kind
        if kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.CUSTOM):
            message = (
                f"{kind} does not run on spanning trees: every pair of ranks has data of its own"
            )
            raise InputError(
                message, cure="take a synthesizer for any collective", code="trees-unsuitable"
            )
        if request.collective.num_ranks == 1:
            raise UsageError(
                "one rank has nothing to send",
                cure="let at least two ranks take part",
                code="one-rank",
            )
        network = RankNetwork.of(request.topology, request.npus)
        root = request.collective.root
        if kind not in _TO_THE_ROOT:
            network.check_reach([root or 0], True)
        if kind not in _FROM_THE_ROOT:
            network.check_reach([root or 0], False)
        collective = replace(request.collective, unit_count=_least_units(request.collective))
        return cls(
            collective,
            request.collective_bytes,
            network,
            request.npus,
            request.occupancy,
            _whole(options, "seed", 0),
            _whole(options, "seeds", 1),
            _chunks(options),
            _whole(options, "depth", 0) or None,
            str(options["trees"]),
            Budget(_steps(options)),
            request.progress,
        )

    @property
    def topology(self) -> Topology:
        """The network as the user knows it."""
        return self.network.topology

    @property
    def oriented_network(self) -> RankNetwork:
        """The network in which data flows away from the roots: turned round where the collective reduces or collects."""
        return self.network.reversed if self.collective.kind in _INWARD else self.network

    @property
    def root(self) -> int:
        """Rank of the root."""
        assert self.collective.root is not None
        return self.collective.root


def _least_units(collective: Collective) -> int:
    return collective.unit_count // collective.units_per_rank


def _whole(options: Options, name: str, least: int) -> int:
    value = options[name]
    if not isinstance(value, int) or value < least:
        raise UsageError(
            f"option {name}: {value} is less than {least}", cure=f"give {least} or more"
        )
    return value


def _chunks(options: Options) -> int | None:
    text = str(options["chunks"])
    if text == "auto":
        return None
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= 1 << 20:
        raise UsageError(
            f"option chunks: {text!r} is neither auto nor a number from 1 to 2^20",
            cure="give for example 16",
        )
    return int(text)


def _steps(options: Options) -> int:
    seconds = options["time_limit"]
    if not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        raise UsageError(
            f"option time_limit: {seconds} is no time in seconds",
            cure="give 0 for no proofs, 60, ...",
        )
    return int(seconds * STEPS_PER_SECOND)
