"""Forms that an algorithm can take: per collective, from the chunks of a share to the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

import numpy as np

from collhub_tacos.candidates import Nodes, Prospects, SynthesisCandidate, Trials, Variant
from collhub_tacos.networks.link_network import (
    CAPPED,
    FREE,
    SLOW_START,
    SUMS_IN_TURN,
    UNCAPPED,
    LinkNetwork,
    LinkTimes,
    WindowRule,
)
from collhub_tacos.networks.switches import PathNetwork
from collhub_tacos.networks.symmetry import is_duplex, transpose_network
from collhub_tacos.routing.routes import RoutePlan
from collhub_tacos.schedules.link_schedule import LinkSchedule, reversed_schedule, windows_of_links
from collhub_tacos.seed_search import Progress
from collhub_tacos.setting import Setting
from collhub_tacos.spreading.spread_out import SpreadResult, SpreadTask, spread_freely, spread_out
from hub_core.columns import Int64Array
from hub_core.model import Collective, CollectiveKind, JsonValue
from hub_core.schedules import Chunks, Transfers

_SPREAD_LADDER = (1, 2, 3, 4, 6, 8)
# Behind switches a chunk is stored on its way: finer ones fill the links sooner.
_STAGED_LADDER = (1, 2, 4, 8, 16)
# Where even so many times the pieces take a link so many times its latency, fewer are left out.
_FINER, _LONG = 8, 32
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
    """Chunks of a share that are tried."""
    kind = setting.collective.kind
    ladder, is_switched = LADDERS[kind], isinstance(setting.network, PathNetwork)
    if ladder is _SPREAD_LADDER:
        # The parts of an all-reduce are shares of all ranks.
        parts = setting.collective.num_ranks if kind is CollectiveKind.ALL_REDUCE else 1
        return setting.choose_piece_counts(_STAGED_LADDER if is_switched else ladder, parts)
    if ladder is not _PIPELINE_LADDER:
        return setting.choose_piece_counts(ladder)
    if is_switched:
        ladder = _with_multiples(ladder, setting)
    found = setting.choose_piece_counts(ladder)
    return [pieces for pieces in found if _may_fill(setting, pieces)] or found[-1:]


def _with_multiples(ladder: Sequence[int], setting: Setting) -> list[int]:
    """Also multiples of the others, for what leaves a root: as each sends on as many."""
    # At least one: a network of one NPU has nobody else.
    others = max(1, setting.network.num_npus - 1)
    rounds = (ladder[-1] // others).bit_length()
    multiples = [others << power for power in range(rounds)]
    return sorted({*ladder, *multiples})


def _may_fill(setting: Setting, pieces: int) -> bool:
    """Whether so many pieces fill a pipeline no later than many times as many."""
    topology = setting.network.topology
    fastest = float(topology.bandwidth_bytes_per_s.max(initial=1.0))
    finer_s = setting.collective_bytes / (_FINER * pieces * fastest)
    # Between two NPUs there is nothing to fill.
    is_pipeline = topology.num_npus > 2
    return not is_pipeline or finer_s <= _LONG * float(topology.latency_s.max(initial=0.0))


_Way = TypeVar("_Way")


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
        # Then windows matter.
        return bool(np.any(self.times.busy < self.times.arrival))

    def transfers(self, nodes: Nodes) -> Transfers:
        """All transfers, as early as can be; or those that touch some nodes, as planned."""
        schedule = self._planned(nodes)
        # Reversed, a schedule is as late as can be; elsewhere a link may be free earlier than in
        # steps of equal length. A part alone cannot be retimed, nor what keeps no order.
        is_whole = nodes is None and self.times.rule.keeps_order
        if is_whole and (self.is_first_reversed or self.is_free_early):
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
        self, form: str, pieces: int, parts: tuple[Collective, Chunks], place: int
    ) -> list[SynthesisCandidate]:
        """What is offered for synthesis: with the window of the plan, and with the others.

        `place`: of these spreadings among those that are made alike.
        """
        found = []
        for rule in self._rules():
            phases = replace(self, times=replace(self.times, rule=rule))
            candidate = phases._candidate(form, pieces, parts)
            found.append(replace(candidate, variant=Variant(form, place, rule)))
        return found

    def _rules(self) -> tuple[WindowRule, ...]:
        """Windows that differ on this network, those of the plan first."""
        has_sums = self.is_first_reversed and len(self.spreads) > 1
        if self.times.rule is FREE and has_sums and self.network.topology.reduction:
            return (FREE, SUMS_IN_TURN)
        if self.times.rule in (SLOW_START, FREE) or not self.is_free_early:
            return (self.times.rule,)
        widest = int(windows_of_links(self.network, self.times).max(initial=1))
        # Where messages of others come between at switches, no turns may serve better than few.
        last = FREE if isinstance(self.network, PathNetwork) else SLOW_START
        return (UNCAPPED, last) if widest <= CAPPED.most else (UNCAPPED, CAPPED, last)

    def _candidate(
        self, form: str, pieces: int, parts: tuple[Collective, Chunks]
    ) -> SynthesisCandidate:
        collective, chunks = parts
        last = self.spreads[-1]
        details: dict[str, JsonValue] = {"kernel": last.kernel, "seed": last.seed}
        reasons = [spread.exact_search for spread in self.spreads if spread.exact_search]
        if reasons:
            details["exact search"] = reasons[0]
        return SynthesisCandidate(
            form=form,
            pieces=pieces,
            collective=collective,
            chunks=chunks,
            num_transfers=sum(spread.num_transfers for spread in self.spreads),
            time_ps=sum(spread.time_ps for spread in self.spreads),
            transfers=self.transfers,
            replay=self.replay,
            details=details,
            is_interrupted=any(spread.is_interrupted for spread in self.spreads),
            is_timed=self.times.rule.keeps_order,
        )


Form = Callable[[Setting, int, Progress, Prospects], list[SynthesisCandidate]]
"""`form(setting, pieces, progress, prospects)`: the algorithms with so many chunks of a share.

Those that have good prospects with so many; what is planned comes first.
"""


def _numbered(planned: Sequence[_Way], free: Sequence[_Way]) -> Iterator[tuple[int, _Way]]:
    """Ways with their places: 0 for what is planned, if it is made, and 1 and more for others."""
    return chain(enumerate(planned), enumerate(free, 1))


def _spread(
    setting: Setting, pieces: int, progress: Progress, prospects: Prospects
) -> list[SynthesisCandidate]:
    """All-gather and broadcast."""
    parts = setting.cut(pieces)
    trials = Trials(prospects.of_part("forwards"), pieces)
    task = _gathering(setting, parts[0].unit_count, setting.members[parts[1].origin], trials)
    is_planned = prospects.has_place("spread", 0, pieces)
    planned = [spread_out(task, progress)] if is_planned else []
    return [
        candidate
        for place, way in _numbered(planned, spread_freely(task))
        for candidate in _Phases(setting.network, way.times, (way,)).candidates(
            "spread", pieces, parts, place
        )
    ]


def _collect(
    setting: Setting, pieces: int, progress: Progress, prospects: Prospects
) -> list[SynthesisCandidate]:
    """Reduce-scatter and reduce: the opposite collective on the transposed network, reversed."""
    parts = setting.cut(pieces)
    unit_count, target = parts[0].unit_count, setting.members[parts[1].target]
    trials = Trials(prospects.of_part("backwards"), pieces)
    task = _on_transpose(setting, unit_count, target, trials)
    times = setting.link_times(unit_count)
    is_planned = prospects.has_place("reversed", 0, pieces)
    planned = [_collecting(task, times, progress)] if is_planned else []
    return [
        candidate
        for place, way in _numbered(planned, spread_freely(task))
        for candidate in _Phases(
            setting.network, replace(times, rule=way.times.rule), (way,), is_first_reversed=True
        ).candidates("reversed", pieces, parts, place)
    ]


def _two_phase(
    setting: Setting, pieces: int, progress: Progress, prospects: Prospects
) -> list[SynthesisCandidate]:
    """All-reduce as a reduce-scatter and then an all-gather, without a barrier.

    One synthesis where all links are duplex.
    """
    n = setting.collective.num_ranks
    parts = setting.cut(pieces * n)
    unit_count, origin = parts[0].unit_count, setting.members[np.repeat(np.arange(n), pieces)]
    trials = Trials(prospects.of_part("forwards"), pieces)
    task = _gathering(setting, unit_count, origin, trials)
    times = task.times
    is_planned = prospects.has_place("two-phase", 0, pieces)
    gathered = [spread_out(task, progress)] if is_planned else []
    freely = spread_freely(task)
    # Reversed, the same spreading collects.
    pairs = [(one, one) for one in gathered], [(one, one) for one in freely]
    if not is_duplex(setting.network, times):
        trials = Trials(prospects.of_part("backwards"), pieces)
        back = _on_transpose(setting, unit_count, origin, trials)
        scattered = [_collecting(back, times, progress)] if is_planned else []
        # One direction may have fewer free spreadings: switches need not be alike in both.
        pairs = (
            list(zip(scattered, gathered, strict=True)),
            list(zip(spread_freely(back), freely, strict=False)),
        )
    return [
        candidate
        for place, pair in _numbered(*pairs)
        for candidate in _Phases(
            setting.network, pair[1].times, pair, is_first_reversed=True
        ).candidates("two-phase", pieces, parts, place)
    ]


def _route(
    setting: Setting, pieces: int, progress: Progress, prospects: Prospects
) -> list[SynthesisCandidate]:
    """All-to-all, scatter and gather: every chunk has one origin and one target."""
    # Imported here: numba takes a second.
    from collhub_tacos.routing.routes import route_all

    collective, chunks = setting.cut(pieces)
    times = setting.link_times(collective.unit_count)
    origin, target = setting.members[chunks.origin], setting.members[chunks.target]
    routed = []
    if prospects.has_place("routed", 0, pieces):
        schedule = route_all(setting.network, times, origin, target, setting.seed)
        routed = [SpreadResult(schedule, times, origin, None, "routing", setting.seed)]
    progress(1.0, "routing")
    return [
        candidate
        for place, way in _numbered(routed, _straight(setting, times, origin, target))
        for candidate in _Phases(setting.network, way.times, (way,)).candidates(
            "routed", pieces, (collective, chunks), place
        )
    ]


def _straight(
    setting: Setting, times: LinkTimes, origin: Int64Array, target: Int64Array
) -> list[SpreadResult]:
    """All-to-all behind switches: all at once to all others, the next one first; or no way."""
    network, size = setting.network, setting.network.num_nodes
    is_small = setting.requested_ranks is None and times.rule is not SLOW_START
    is_all = setting.collective.kind is CollectiveKind.ALL_TO_ALL
    if not (is_small and is_all and isinstance(network, PathNetwork)):
        return []
    chunk = np.flatnonzero(origin != target)
    chunk = chunk[np.argsort((target - origin)[chunk] % size, kind="stable")]
    # Arcs stand by destination, then by source, so that these keys ascend.
    key, wanted = network.destination * size + network.source, target * size + origin
    arc = np.minimum(np.searchsorted(key, wanted[chunk]), len(key) - 1)
    if not np.array_equal(key[arc], wanted[chunk]):
        return []
    free = replace(times, rule=FREE)
    plan = RoutePlan(network, chunk, arc, np.full(len(chunk), -1))
    return [
        SpreadResult(
            plan.schedule_without_contention(free), free, origin, None, "straight", setting.seed
        )
    ]


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


def _gathering(setting: Setting, unit_count: int, origin: Int64Array, trials: Trials) -> SpreadTask:
    """Spreading on the network itself."""
    return SpreadTask(setting, setting.network, setting.link_times(unit_count), origin, trials)


def _on_transpose(
    setting: Setting, unit_count: int, origin: Int64Array, trials: Trials
) -> SpreadTask:
    """Spreading on the transposed network, to be reversed."""
    network, times = setting.network, setting.link_times(unit_count)
    # Of a network that is its own transpose the times hold as they are.
    if not is_duplex(network, times):
        network = transpose_network(network)
        times = setting.link_times_on(network, unit_count)
    return SpreadTask(setting, network, times, origin, trials)


def _collecting(task: SpreadTask, times: LinkTimes, progress: Progress) -> SpreadResult:
    """Spreading that is fast as a reduction; `times`: on the network itself."""
    if not isinstance(task.network, PathNetwork):
        return spread_out(task, progress)
    return spread_out(task, progress, lambda found: _time_reversed_ps(task.setting, found, times))


def _time_reversed_ps(setting: Setting, found: SpreadResult, times: LinkTimes) -> int:
    """What a spreading takes as a reduction: at switches messages meet otherwise then."""
    # Imported here: numba takes a second.
    from collhub_tacos.schedules.retiming import retimed

    return retimed(reversed_schedule(found.schedule(), setting.network), times).time_ps
