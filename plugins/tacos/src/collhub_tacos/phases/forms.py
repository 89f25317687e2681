"""The forms that an algorithm can take: per collective, from the chunks of a share to a schedule of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.phases.reversal import is_duplex, reversed_schedule, transposed
from collhub_tacos.setting import Setting
from collhub_tacos.spreading.spread_out import SpreadResult, spread_out
from hub_core.algorithm import JsonValue
from hub_core.collectives import Collective, CollectiveKind
from hub_core.transfers import Chunks, Transfers

Int64Array = npt.NDArray[np.int64]
Progress = Callable[[float, str], None]
Nodes = Sequence[int] | None

_SPREAD_LADDER = (1, 2, 3, 4, 6, 8)
_PIPELINE_LADDER = tuple(1 << power for power in range(11))
LADDERS: Mapping[CollectiveKind, Sequence[int]] = {
    CollectiveKind.ALL_GATHER: _SPREAD_LADDER,
    CollectiveKind.REDUCE_SCATTER: _SPREAD_LADDER,
    CollectiveKind.ALL_REDUCE: _SPREAD_LADDER,
    CollectiveKind.BROADCAST: _PIPELINE_LADDER,
    CollectiveKind.REDUCE: _PIPELINE_LADDER,
    CollectiveKind.GATHER: (1, 2, 4, 8),
    CollectiveKind.SCATTER: (1, 2, 4, 8),
    CollectiveKind.ALL_TO_ALL: (1, 2, 4),
}
"""Chunks of a share that are tried in this order, until more of them do not help."""


@dataclass(frozen=True, slots=True, eq=False)
class SynthesisCandidate:
    """A possible answer. `transfers(nodes)`: all of them, or those that touch some nodes; `details`: for the user.

    `replay(progress)`: check the whole on the synthesizer's own arrays, where not all steps are made; False where it cannot.
    """

    form: str
    pieces: int
    collective: Collective
    chunks: Chunks
    num_transfers: int
    time_ps: int
    transfers: Callable[[Nodes], Transfers]
    replay: Callable[[Progress], bool]
    details: Mapping[str, JsonValue] = field(default_factory=dict)
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Phases:
    """Spreadings one after the other on `network`, the first one reversed in time where it is to collect."""

    network: LinkNetwork
    times: LinkTimes
    spreads: tuple[SpreadResult, ...]
    is_first_reversed: bool = False

    def transfers(self, nodes: Nodes) -> Transfers:
        """All transfers, as early as they can be; or those that touch some nodes, as they were planned."""
        schedule = self.spreads[0].schedule(nodes)
        end = self.spreads[0].time_ps
        if self.is_first_reversed:
            schedule = reversed_schedule(schedule, self.network, end)
        for spread in self.spreads[1:]:
            schedule = spread.schedule(nodes).after(schedule, end)
            end += spread.time_ps
        if nodes is None and (
            self.is_first_reversed or np.any(self.times.busy < self.times.arrival)
        ):
            # Imported here: numba takes a second.
            from collhub_tacos.schedules.retiming import retimed

            schedule = retimed(schedule, self.times)
        return schedule.transfers(self.times)

    def replay(self, progress: Progress) -> bool:
        """Check every spreading; reversed, it is right where it is right forwards."""
        return all(spread.replay(progress) for spread in dict.fromkeys(self.spreads))


def _candidate(
    form: str, pieces: int, parts: tuple[Collective, Chunks], phases: _Phases
) -> SynthesisCandidate:
    spreads = phases.spreads
    details: dict[str, JsonValue] = {"kernel": spreads[-1].kernel, "seed": spreads[-1].seed}
    return SynthesisCandidate(
        form,
        pieces,
        *parts,
        sum(spread.num_transfers for spread in spreads),
        sum(spread.time_ps for spread in spreads),
        phases.transfers,
        phases.replay,
        details,
        any(spread.is_interrupted for spread in spreads),
    )


Form = Callable[[Setting, int, Progress], SynthesisCandidate]


def _spread(setting: Setting, pieces: int, progress: Progress) -> SynthesisCandidate:
    """All-gather and broadcast."""
    collective, chunks = setting.cut(pieces)
    times = setting.link_times(collective.unit_count)
    found = spread_out(setting, setting.network, times, setting.members[chunks.origin], progress)
    return _candidate(
        "spread", pieces, (collective, chunks), _Phases(setting.network, times, (found,))
    )


def _collect(setting: Setting, pieces: int, progress: Progress) -> SynthesisCandidate:
    """Reduce-scatter and reduce: the opposite collective on the transposed network, reversed."""
    collective, chunks = setting.cut(pieces)
    times = setting.link_times(collective.unit_count)
    found = _on_transpose(
        setting, times, collective.unit_count, setting.members[chunks.target], progress
    )
    return _candidate(
        "reversed",
        pieces,
        (collective, chunks),
        _Phases(setting.network, times, (found,), is_first_reversed=True),
    )


def _two_phase(setting: Setting, pieces: int, progress: Progress) -> SynthesisCandidate:
    """All-reduce as a reduce-scatter and then an all-gather, without a barrier; one synthesis where all links are duplex."""
    n = setting.collective.num_ranks
    collective, chunks = setting.cut(pieces * n)
    times = setting.link_times(collective.unit_count)
    origin = setting.members[np.repeat(np.arange(n), pieces)]
    gathered = spread_out(setting, setting.network, times, origin, progress)
    scattered = gathered
    if not is_duplex(setting.network, times):
        scattered = _on_transpose(setting, times, collective.unit_count, origin, progress)
    phases = _Phases(setting.network, times, (scattered, gathered), is_first_reversed=True)
    return _candidate("two-phase", pieces, (collective, chunks), phases)


def _route(setting: Setting, pieces: int, progress: Progress) -> SynthesisCandidate:
    """All-to-all, scatter and gather: every chunk has one origin and one target."""
    # Imported here: numba takes a second.
    from collhub_tacos.routing.routes import route_all

    collective, chunks = setting.cut(pieces)
    times = setting.link_times(collective.unit_count)
    origin, target = setting.members[chunks.origin], setting.members[chunks.target]
    schedule = route_all(setting.network, times, origin, target, setting.seed)
    progress(1.0, "routing")
    phases = _Phases(
        setting.network,
        times,
        (SpreadResult(schedule, times, origin, None, "routing", setting.seed),),
    )
    return _candidate("routed", pieces, (collective, chunks), phases)


FORMS: Mapping[CollectiveKind, Form] = {
    CollectiveKind.ALL_GATHER: _spread,
    CollectiveKind.BROADCAST: _spread,
    CollectiveKind.REDUCE_SCATTER: _collect,
    CollectiveKind.REDUCE: _collect,
    CollectiveKind.ALL_REDUCE: _two_phase,
    CollectiveKind.ALL_TO_ALL: _route,
    CollectiveKind.SCATTER: _route,
    CollectiveKind.GATHER: _route,
}


def _on_transpose(
    setting: Setting, times: LinkTimes, unit_count: int, origin: Int64Array, progress: Progress
) -> SpreadResult:
    """The spreading on the transposed network, not yet reversed."""
    if is_duplex(setting.network, times):
        return spread_out(setting, setting.network, times, origin, progress)
    network = transposed(setting.network)
    times = network.link_times(setting.chunk_bytes(unit_count), setting.occupancy)
    return spread_out(setting, network, times, origin, progress)
