"""Forms that an algorithm can take: per collective, from the chunks of a share to the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from collhub_columns import Int64Array
from collhub_schedules import Chunks, Transfers

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.path_network import PathNetwork
from collhub_tacos.networks.transposition import is_duplex, transposed
from collhub_tacos.networks.window_rules import CAPPED, SLOW_START, UNCAPPED, WindowRule
from collhub_tacos.phases.candidate import Nodes, SynthesisCandidate
from collhub_tacos.phases.reversal import reversed_schedule
from collhub_tacos.progress import Progress
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.windows import windows_of_links
from collhub_tacos.setting import Setting
from collhub_tacos.spreading.spread_out import SpreadResult, SpreadTask, spread_out
from hub_core.model import Collective, CollectiveKind

_SPREAD_LADDER = (1, 2, 3, 4, 6, 8)
# Behind switches a chunk is stored on its way: finer ones fill the links sooner.
_STAGED_LADDER = (1, 2, 4, 8, 16)
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


def ladder_of(setting: Setting) -> list[int]:
    """Chunks of a share that are tried.

    For what leaves a root through switches, also multiples of the others: as each sends on as many.
    """
    ladder = LADDERS[setting.collective.kind]
    if not isinstance(setting.network, PathNetwork):
        return setting.candidates(ladder)
    if ladder is _SPREAD_LADDER:
        return setting.candidates(_STAGED_LADDER)
    if ladder is not _PIPELINE_LADDER:
        return setting.candidates(ladder)
    # At least one: a network of one NPU has nobody else.
    others = max(1, setting.network.num_npus - 1)
    rounds = (ladder[-1] // others).bit_length()
    multiples = [others << power for power in range(rounds)]
    return setting.candidates(sorted({*ladder, *multiples}))


@dataclass(frozen=True, slots=True, eq=False)
class _Phases:
    """Spreadings one after the other, the first one reversed in time where it is to collect."""

    network: LinkNetwork
    times: LinkTimes
    spreads: tuple[SpreadResult, ...]
    is_first_reversed: bool = False

    @property
    def is_free_early(self) -> bool:
        """Whether a link can take a message before the one before it has arrived."""
        return bool(np.any(self.times.busy < self.times.arrival))

    def transfers(self, nodes: Nodes) -> Transfers:
        """All transfers, as early as can be; or those that touch some nodes, as planned."""
        schedule = self._planned(nodes)
        # Reversed, a schedule is as late as can be; elsewhere a link may be free earlier than in
        # steps of equal length. A part alone cannot be retimed.
        if nodes is None and (self.is_first_reversed or self.is_free_early):
            # Imported here: numba takes a second.
            from collhub_tacos.schedules.retiming import retimed

            schedule = retimed(schedule, self.times)
        return schedule.transfers(self.times)

    def _planned(self, nodes: Nodes) -> LinkSchedule:
        """Phase after phase, each as long as it takes as a whole."""
        # A part does not tell when the whole ends: times are those of the wholes.
        first, *others = self.spreads
        schedule, end = first.schedule(nodes), first.time_ps
        if self.is_first_reversed:
            schedule = reversed_schedule(schedule, self.network, end)
        for spread in others:
            schedule = spread.schedule(nodes).after(schedule, end)
            end += spread.time_ps
        return schedule

    def replay(self, progress: Progress) -> bool:
        """Check every spreading; reversed, it is right where it is right forwards."""
        # One that serves both phases of an all-reduce is checked once.
        each_once = dict.fromkeys(self.spreads)
        return all(spread.replay(progress) for spread in each_once)

    def candidates(
        self, form: str, pieces: int, parts: tuple[Collective, Chunks]
    ) -> list[SynthesisCandidate]:
        """What is offered for synthesis: with the window of the plan, and with the others."""
        found = []
        for rule in self._rules():
            phases = replace(self, times=replace(self.times, rule=rule))
            found.append(phases._candidate(form, pieces, parts))
        return found

    def _rules(self) -> tuple[WindowRule, ...]:
        """Windows that differ on this network, those of the plan first."""
        if self.times.rule is SLOW_START or not self.is_free_early:
            return (self.times.rule,)
        widest = int(windows_of_links(self.network, self.times).max(initial=1))
        return (UNCAPPED, SLOW_START) if widest <= CAPPED.most else (UNCAPPED, CAPPED, SLOW_START)

    def _candidate(
        self, form: str, pieces: int, parts: tuple[Collective, Chunks]
    ) -> SynthesisCandidate:
        collective, chunks = parts
        last = self.spreads[-1]
        return SynthesisCandidate(
            form=form,
            pieces=pieces,
            collective=collective,
            chunks=chunks,
            num_transfers=sum(spread.num_transfers for spread in self.spreads),
            time_ps=sum(spread.time_ps for spread in self.spreads),
            transfers=self.transfers,
            replay=self.replay,
            details={"kernel": last.kernel, "seed": last.seed},
            is_interrupted=any(spread.is_interrupted for spread in self.spreads),
        )


Form = Callable[[Setting, int, Progress], list[SynthesisCandidate]]
"""`form(setting, pieces, progress)`: the algorithms with so many chunks of a share."""


def _spread(setting: Setting, pieces: int, progress: Progress) -> list[SynthesisCandidate]:
    """All-gather and broadcast."""
    collective, chunks = setting.cut(pieces)
    times = setting.link_times(collective.unit_count)
    origin = setting.members[chunks.origin]
    found = spread_out(SpreadTask(setting, setting.network, times, origin), progress)
    phases = _Phases(setting.network, times, (found,))
    return phases.candidates("spread", pieces, (collective, chunks))


def _collect(setting: Setting, pieces: int, progress: Progress) -> list[SynthesisCandidate]:
    """Reduce-scatter and reduce: the opposite collective on the transposed network, reversed."""
    collective, chunks = setting.cut(pieces)
    times = setting.link_times(collective.unit_count)
    target = setting.members[chunks.target]
    found = _on_transpose(setting, times, collective.unit_count, target, progress)
    phases = _Phases(setting.network, times, (found,), is_first_reversed=True)
    return phases.candidates("reversed", pieces, (collective, chunks))


def _two_phase(setting: Setting, pieces: int, progress: Progress) -> list[SynthesisCandidate]:
    """All-reduce as a reduce-scatter and then an all-gather, without a barrier.

    One synthesis where all links are duplex.
    """
    n = setting.collective.num_ranks
    collective, chunks = setting.cut(pieces * n)
    times = setting.link_times(collective.unit_count)
    origin = setting.members[np.repeat(np.arange(n), pieces)]
    gathered = spread_out(SpreadTask(setting, setting.network, times, origin), progress)
    # Reversed, the same spreading collects.
    scattered = gathered
    if not is_duplex(setting.network, times):
        scattered = _on_transpose(setting, times, collective.unit_count, origin, progress)
    phases = _Phases(setting.network, times, (scattered, gathered), is_first_reversed=True)
    return phases.candidates("two-phase", pieces, (collective, chunks))


def _route(setting: Setting, pieces: int, progress: Progress) -> list[SynthesisCandidate]:
    """All-to-all, scatter and gather: every chunk has one origin and one target."""
    # Imported here: numba takes a second.
    from collhub_tacos.routing.routes import route_all

    collective, chunks = setting.cut(pieces)
    times = setting.link_times(collective.unit_count)
    origin, target = setting.members[chunks.origin], setting.members[chunks.target]
    schedule = route_all(setting.network, times, origin, target, setting.seed)
    progress(1.0, "routing")
    made = SpreadResult(schedule, times, origin, None, "routing", setting.seed)
    phases = _Phases(setting.network, times, (made,))
    return phases.candidates("routed", pieces, (collective, chunks))


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
    """Spreading on the transposed network, not yet reversed."""
    network = setting.network
    # Of a network that is its own transpose the times hold as they are.
    if not is_duplex(network, times):
        network = transposed(network)
        times = setting.times_on(network, unit_count)
    task = SpreadTask(setting, network, times, origin)
    if not isinstance(setting.network, PathNetwork):
        return spread_out(task, progress)
    back = setting.link_times(unit_count)
    return spread_out(task, progress, lambda found: _time_reversed_ps(setting, found, back))


def _time_reversed_ps(setting: Setting, found: SpreadResult, times: LinkTimes) -> int:
    """What a spreading takes as a reduction: at switches messages meet otherwise then."""
    # Imported here: numba takes a second.
    from collhub_tacos.schedules.retiming import retimed

    return retimed(reversed_schedule(found.schedule(), setting.network), times).time_ps
