"""Forms of algorithms: for each collective, the candidates with a number of chunks per share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

import numpy as np

from collhub_tacos.link_network import (
    CAPPED,
    FREE,
    SLOW_START,
    SUMS_IN_TURN,
    UNCAPPED,
    LinkNetwork,
    LinkTimes,
    PathNetwork,
    WindowRule,
)
from collhub_tacos.routing.routes import RoutePlan
from collhub_tacos.schedules.link_schedule import (
    compute_link_windows,
    reverse_schedule,
)
from collhub_tacos.search.candidates import Nodes, Prospects, SynthesisCandidate, Trials, Variant
from collhub_tacos.search.seeds import Progress
from collhub_tacos.search.setting import Setting
from collhub_tacos.spreading.spread_out import (
    SpreadResult,
    SpreadTask,
    spread_freely,
    spread_out,
)
from collhub_tacos.symmetry import is_duplex, transpose_network
from hub_core.columns import Int64Array
from hub_core.model import Collective, CollectiveKind, JsonValue
from hub_core.schedules import Chunks, Transfers

_SPREAD_LADDER = (1, 2, 3, 4, 6, 8)
# Switches store and forward, so finer chunks fill the links sooner.
_STAGED_LADDER = (1, 2, 4, 8, 16)
# A piece count is skipped if a piece that is smaller by the factor `_FINER_FACTOR` still occupies a
# link for more than `_MAX_LATENCIES` times the latency.
_FINER_FACTOR, _MAX_LATENCIES = 8, 32
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
"""Chunks of a share in the order in which they are tried, until more of them do not help."""


def choose_ladder(setting: Setting) -> list[int]:
    """Return the numbers of chunks per rank's part that are tried, ascending.

    Each collective has a fixed list:

    - all-gather, reduce-scatter and all-reduce: 1, 2, 3, 4, 6, 8; with switches 1, 2, 4, 8, 16
    - broadcast and reduce (pipelines): powers of two from 1 to 1024; with switches also n - 1 (at
      least 1) times powers of two, up to 1024, for n NPUs
    - gather and scatter: 1, 2, 4, 8; all-to-all: 1, 2, 4

    `setting.choose_piece_counts` replaces the list by a requested number. Otherwise it omits
    numbers that do not fit, but keeps the first if none fits. Numbers that the limits of units
    exclude are omitted too, so the result may be empty. A pipeline of more than two NPUs also omits
    numbers that are too small to fill it: even a chunk eight times smaller would occupy the fastest
    link for more than 32 times the largest latency. If all are too small, the largest one remains.
    """
    kind = setting.collective.kind
    ladder, is_switched = LADDERS[kind], isinstance(setting.network, PathNetwork)
    if ladder is _SPREAD_LADDER:
        # In an all-reduce the parts are shares of all ranks.
        parts = setting.collective.num_ranks if kind is CollectiveKind.ALL_REDUCE else 1
        return setting.choose_piece_counts(_STAGED_LADDER if is_switched else ladder, parts)
    if ladder is not _PIPELINE_LADDER:
        return setting.choose_piece_counts(ladder)
    if is_switched:
        # At least 1 because a network may have one NPU.
        other_npus = max(1, setting.network.num_npus - 1)
        rounds = (ladder[-1] // other_npus).bit_length()
        multiples = [other_npus << power for power in range(rounds)]
        ladder = sorted({*ladder, *multiples})
    ladder_counts = setting.choose_piece_counts(ladder)
    topology = setting.network.topology
    # Between two NPUs there is no pipeline.
    if topology.num_npus <= 2:
        return ladder_counts
    fastest = float(topology.bandwidth_bytes_per_s.max(initial=1.0))
    max_finer_s = _MAX_LATENCIES * float(topology.latency_s.max(initial=0.0))
    filling = [
        pieces
        for pieces in ladder_counts
        if setting.collective_bytes / (_FINER_FACTOR * pieces * fastest) <= max_finer_s
    ]
    return filling or ladder_counts[-1:]


_Spreading = TypeVar("_Spreading")


@dataclass(frozen=True, slots=True, eq=False)
class _Phases:
    """Spreadings one after another; the first one may be reversed in time to reduce."""

    network: LinkNetwork
    times: LinkTimes
    spreads: tuple[SpreadResult, ...]
    is_first_reversed: bool = False

    @property
    def is_free_early(self) -> bool:
        """Whether a link accepts a message before the previous one has arrived."""
        # Then windows matter.
        return bool(np.any(self.times.busy < self.times.arrival))

    def transfers(self, nodes: Nodes) -> Transfers:
        """Return the transfers of all phases; with `nodes`, only those that touch these nodes.

        The first phase is reversed in time if `is_first_reversed`. A phase starts after the full
        duration of the previous one, even if the selected transfers end earlier. Transfers keep
        their planned times unless all of the conditions below hold. Then each link keeps its order,
        and transfers start as early as possible:

        - `nodes` is None.
        - The window rule lets links send in the planned order (`keeps_order`).
        - The first phase is reversed in time, or some link accepts a message before the previous
          one has arrived (its busy time is below its arrival time).
        """
        first, *later_spreads = self.spreads
        # Selected transfers do not determine the duration of a phase.
        schedule, end = first.schedule(nodes), first.time_ps
        if self.is_first_reversed:
            schedule = reverse_schedule(schedule, self.network, end)
        for spread in later_spreads:
            schedule = spread.schedule(nodes).append_to(schedule, end)
            end += spread.time_ps
        # A reversed schedule is as late as possible, and other schedules may use steps that are
        # longer than necessary. A part of the transfers cannot be retimed, nor can a schedule
        # without order.
        is_complete = nodes is None and self.times.rule.keeps_order
        if is_complete and (self.is_first_reversed or self.is_free_early):
            # Imported here: numba takes a second.
            from collhub_tacos.schedules.retiming import retime

            schedule = retime(schedule, self.times)
        return schedule.transfers(self.times)

    def replay(self, progress: Progress) -> bool:
        """Verify the schedules of the phases by replays; return whether all could be verified.

        A spreading is a schedule, or a log of arrivals, that brings chunks to NPUs. The spreadings
        are verified in their order and forwards, even if the first phase runs reversed in time. One
        that serves both phases is verified once.

        A schedule cannot be verified if `needed`, the NPUs that need the chunks, is None, or if its
        network has switches. A log can always be verified. The first one that cannot gives False,
        and later ones are not examined. Raises `InputError` (`invalid-schedule`) for the first
        violation. `progress` is called only for logs.
        """
        # A spreading that is used for both phases is verified once.
        distinct_spreads = dict.fromkeys(self.spreads)
        return all(spread.replay(progress) for spread in distinct_spreads)

    def candidates(
        self, form: str, pieces: int, parts: tuple[Collective, Chunks], index: int
    ) -> list[SynthesisCandidate]:
        """Return one candidate per window rule (limit of messages in flight on a link).

        The rules are those of `_list_window_rules`, the planned one first. `form`: name of the
        algorithm form. `pieces`: chunks per part of a rank. `parts`: (collective, chunks). `index`:
        number of this spreading within the form. Each candidate records (form, index, rule) as its
        variant. Its details are kernel and seed of the last spreading and the first reason, if any,
        why an exact search found no schedule. Number of transfers and time are sums over the
        phases. It is interrupted if a phase is, and timed if the rule keeps the order on links.
        """
        collective, chunks = parts
        last = self.spreads[-1]
        details: dict[str, JsonValue] = {"kernel": last.kernel, "seed": last.seed}
        reasons = [spread.exact_search for spread in self.spreads if spread.exact_search]
        if reasons:
            details["exact search"] = reasons[0]
        candidates = []
        for rule in self._list_window_rules():
            phases = replace(self, times=replace(self.times, rule=rule))
            candidate = SynthesisCandidate(
                form=form,
                pieces=pieces,
                collective=collective,
                chunks=chunks,
                num_transfers=sum(spread.num_transfers for spread in self.spreads),
                time_ps=sum(spread.time_ps for spread in self.spreads),
                transfers=phases.transfers,
                replay=phases.replay,
                details=details,
                is_interrupted=any(spread.is_interrupted for spread in self.spreads),
                is_timed=rule.keeps_order,
                variant=Variant(form, index, rule),
            )
            candidates.append(candidate)
        return candidates

    def _list_window_rules(self) -> tuple[WindowRule, ...]:
        """Return the window rules to try on this network, the rule of the plan first.

        A window limits the messages that are in flight on a link. The first matching case applies:

        - the plan has no order on links (FREE), is a reduce-scatter with an all-gather, and
          switches reduce: FREE and SUMS_IN_TURN
        - any other FREE plan, a plan with SLOW_START, and links that are busy until the arrival:
          only the rule of the plan
        - otherwise UNCAPPED; then CAPPED, if the widest window exceeds its limit; finally FREE with
          switches, SLOW_START without
        """
        has_sums = self.is_first_reversed and len(self.spreads) > 1
        if self.times.rule is FREE and has_sums and self.network.topology.reduction:
            return (FREE, SUMS_IN_TURN)
        if self.times.rule in (SLOW_START, FREE) or not self.is_free_early:
            return (self.times.rule,)
        widest = int(compute_link_windows(self.network, self.times).max(initial=1))
        # If messages of other senders share switches, no turns may be better than few in flight.
        last = FREE if isinstance(self.network, PathNetwork) else SLOW_START
        return (UNCAPPED, last) if widest <= CAPPED.max_in_flight else (UNCAPPED, CAPPED, last)


Form = Callable[[Setting, int, Progress, Prospects], list[SynthesisCandidate]]
"""`form(setting, pieces, progress, prospects)`: candidates with `pieces` chunks of a share.

Only those that are promising; the planned one comes first.
"""


def _number_variants(
    planned: Sequence[_Spreading], free: Sequence[_Spreading]
) -> Iterator[tuple[int, _Spreading]]:
    """Yield (index, spreading): 0 for the planned one, if any, then 1, 2, ... for others."""
    return chain(enumerate(planned), enumerate(free, 1))


def _build_spread(
    setting: Setting, pieces: int, progress: Progress, prospects: Prospects
) -> list[SynthesisCandidate]:
    """Build the candidates for an all-gather or broadcast with `pieces` chunks per part of a rank.

    All have the form "spread". A spreading is a schedule that brings the chunks to all NPUs. Each
    spreading gives one candidate per window rule (limit of messages in flight on a link).

    - First comes the planned spreading (`spread_out`), with index 0 in the variant. It is omitted
      if `prospects` (times of earlier candidates) show that it is not worth building.
    - Then come the free spreadings (`spread_freely`), with the indices 1, 2, ... in any case. They
      have no fixed order of messages on links.

    The list may be empty. `progress` is used for the planned spreading only. Raises the errors of
    `_build_collect`.
    """
    parts = setting.cut(pieces)
    trials = Trials(prospects.of_part("forwards"), pieces)
    task = _create_task(setting, parts[0].unit_count, setting.members[parts[1].origin], trials)
    is_planned = prospects.is_worth_building("spread", 0, pieces)
    planned = [spread_out(task, progress)] if is_planned else []
    return [
        candidate
        for index, result in _number_variants(planned, spread_freely(task))
        for candidate in _Phases(setting.network, result.times, (result,)).candidates(
            "spread", pieces, parts, index
        )
    ]


def _build_collect(
    setting: Setting, pieces: int, progress: Progress, prospects: Prospects
) -> list[SynthesisCandidate]:
    """Build the candidates for a reduce-scatter or reduce; a rank's part has `pieces` chunks.

    Each candidate is a spreading in reversed time (form "reversed"). A spreading is a schedule on
    the transposed network that brings chunks to all NPUs. The spreadings are, in this order:

    1. Number 0: the planned one, which has a fixed order on links. It is left out if `prospects`
       (times of earlier candidates) make it hopeless.
    2. Numbers 1, 2, ...: the results of `spread_freely`, without such an order. There is none in
       many cases, for example without switches. They keep these numbers if number 0 is left out.

    Each spreading gives one candidate per window rule (limit of messages in flight on a link). The
    number becomes the index of the candidate's variant. The list may be empty.

    Raises `UsageError` (`size-too-small`) for chunks below one byte, and `InputError`: `too-long`
    if a chunk takes too long on a link; for the planned spreading also `disconnected` if a member
    cannot be reached, and `memory` if an all-gather needs more memory than the limit. Ctrl-C raises
    `KeyboardInterrupt` if the planned spreading has no result yet.
    """
    parts = setting.cut(pieces)
    unit_count, target = parts[0].unit_count, setting.members[parts[1].target]
    trials = Trials(prospects.of_part("backwards"), pieces)
    task = _create_transposed_task(setting, unit_count, target, trials)
    times = setting.link_times(unit_count)
    is_planned = prospects.is_worth_building("reversed", 0, pieces)
    planned = [_spread_for_reduction(task, times, progress)] if is_planned else []
    return [
        candidate
        for index, result in _number_variants(planned, spread_freely(task))
        for candidate in _Phases(
            setting.network,
            replace(times, rule=result.times.rule),
            (result,),
            is_first_reversed=True,
        ).candidates("reversed", pieces, parts, index)
    ]


def _build_two_phase(
    setting: Setting, pieces: int, progress: Progress, prospects: Prospects
) -> list[SynthesisCandidate]:
    """Build candidates of an all-reduce: a reduce-scatter, then an all-gather, without a barrier.

    Each rank is the origin of `pieces` chunks. The reduce-scatter is the same all-gather reversed
    in time if every link has an opposite link with equal times and there are no switches. Otherwise
    it is the reversal of another all-gather, on the transposed network.

    - Index 0: a pair of all-gathers with a planned order on links (`spread_out`). Missing if
      `prospects` show that it is not worth building.
    - Index 1, 2, ...: pairs without an order on links (`spread_freely`), in which messages wait
      only for data. The i-th ones of both directions form a pair; if one direction has more, the
      rest is dropped.

    Each pair gives one candidate per window rule (limit of messages in flight on a link).
    Candidates are sorted by index. The list may be empty. `progress` is updated only for index 0.
    Raises the errors of `_build_collect`.
    """
    n = setting.collective.num_ranks
    parts = setting.cut(pieces * n)
    unit_count, origin = parts[0].unit_count, setting.members[np.repeat(np.arange(n), pieces)]
    trials = Trials(prospects.of_part("forwards"), pieces)
    task = _create_task(setting, unit_count, origin, trials)
    times = task.times
    is_planned = prospects.is_worth_building("two-phase", 0, pieces)
    all_gathers = [spread_out(task, progress)] if is_planned else []
    free_spreadings = spread_freely(task)
    # The same spreading, reversed, collects.
    pairs = (
        [(spreading, spreading) for spreading in all_gathers],
        [(spreading, spreading) for spreading in free_spreadings],
    )
    if not is_duplex(setting.network, times):
        trials = Trials(prospects.of_part("backwards"), pieces)
        back = _create_transposed_task(setting, unit_count, origin, trials)
        reduce_scatters = [_spread_for_reduction(back, times, progress)] if is_planned else []
        # The two directions may have different numbers of free spreadings.
        pairs = (
            list(zip(reduce_scatters, all_gathers, strict=True)),
            list(zip(spread_freely(back), free_spreadings, strict=False)),
        )
    return [
        candidate
        for index, pair in _number_variants(*pairs)
        for candidate in _Phases(
            setting.network, pair[1].times, pair, is_first_reversed=True
        ).candidates("two-phase", pieces, parts, index)
    ]


def _build_routed(
    setting: Setting, pieces: int, progress: Progress, prospects: Prospects
) -> list[SynthesisCandidate]:
    """Build the candidates for an all-to-all, scatter or gather with `pieces` chunks per part.

    All have the form "routed". First come those of the routed schedule, with paths that share the
    load of the links, unless `prospects` (times of earlier candidates) rule it out. Then come those
    of direct sending (`_spread_directly`). The index of a variant is the number of the schedule.
    `progress` gets 1 after routing. The list may be empty. Raises `UsageError` (`size-too-small`)
    for chunks below one byte, and `InputError`: `too-long` if a chunk takes too long on a link,
    `disconnected` if routing finds no path from a chunk's origin to its target.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.routing.routes import route_all

    collective, chunks = setting.cut(pieces)
    times = setting.link_times(collective.unit_count)
    origin, target = setting.members[chunks.origin], setting.members[chunks.target]
    routed = []
    if prospects.is_worth_building("routed", 0, pieces):
        schedule = route_all(setting.network, times, origin, target, setting.seed)
        routed = [SpreadResult(schedule, times, origin, None, "routing", setting.seed)]
    progress(1.0, "routing")
    return [
        candidate
        for index, result in _number_variants(
            routed, _spread_directly(setting, times, origin, target)
        )
        for candidate in _Phases(setting.network, result.times, (result,)).candidates(
            "routed", pieces, (collective, chunks), index
        )
    ]


def _spread_directly(
    setting: Setting, times: LinkTimes, origin: Int64Array, target: Int64Array
) -> list[SpreadResult]:
    """Build an all-to-all in which every NPU sends directly to all others, without contention.

    `origin`, `target`: NPUs of each chunk. A chunk whose origin is its target is not sent. Messages
    are sorted by (target - origin) modulo the number of nodes, then by chunk. They are planned from
    time 0, as if links were never shared. Returns one result with the kernel name `straight`. Its
    window rule is always `FREE` (no order of messages on links), also if `times` has another one.

    Returns [] if one of these conditions holds:

    - The collective is no all-to-all, or the network has no switches (is no `PathNetwork`).
    - The steps of only some ranks are requested (`setting.requested_ranks` is not None).
    - The window rule of `times` is `SLOW_START`.
    - A pair of origin and target has no arc, i.e. no route through switches only.
    """
    network, size = setting.network, setting.network.num_nodes
    is_small = setting.requested_ranks is None and times.rule is not SLOW_START
    is_all = setting.collective.kind is CollectiveKind.ALL_TO_ALL
    if not (is_small and is_all and isinstance(network, PathNetwork)):
        return []
    chunk = np.flatnonzero(origin != target)
    chunk = chunk[np.argsort((target - origin)[chunk] % size, kind="stable")]
    # Arcs are sorted by destination, then by source, so these keys ascend.
    key, requested_key = network.destination * size + network.source, target * size + origin
    arc = np.minimum(np.searchsorted(key, requested_key[chunk]), len(key) - 1)
    if not np.array_equal(key[arc], requested_key[chunk]):
        return []
    free = replace(times, rule=FREE)
    plan = RoutePlan(network, chunk, arc, np.full(len(chunk), -1))
    return [
        SpreadResult(
            plan.schedule_without_contention(free), free, origin, None, "straight", setting.seed
        )
    ]


FORMS: Mapping[CollectiveKind, Form] = {
    CollectiveKind.ALL_GATHER: _build_spread,
    CollectiveKind.BROADCAST: _build_spread,
    CollectiveKind.REDUCE_SCATTER: _build_collect,
    CollectiveKind.REDUCE: _build_collect,
    CollectiveKind.ALL_REDUCE: _build_two_phase,
    CollectiveKind.ALL_TO_ALL: _build_routed,
    CollectiveKind.SCATTER: _build_routed,
    CollectiveKind.GATHER: _build_routed,
}


def _create_task(
    setting: Setting, unit_count: int, origin: Int64Array, trials: Trials
) -> SpreadTask:
    """Create the spreading task on the network itself."""
    return SpreadTask(setting, setting.network, setting.link_times(unit_count), origin, trials)


def _create_transposed_task(
    setting: Setting, unit_count: int, origin: Int64Array, trials: Trials
) -> SpreadTask:
    """Create the task to bring chunks to all NPUs on the transposed network, to be reversed later.

    Reversed in time, the result is a reduction on the network itself. `origin`: node of each chunk.
    `unit_count`: units of the full buffer, which determine the message size. `trials`: times of
    earlier plans. If every link has an equal link in the opposite direction and there are no
    switches, the network itself is used.
    """
    network, times = setting.network, setting.link_times(unit_count)
    # The times of a duplex network are also those of its transpose.
    if not is_duplex(network, times):
        network = transpose_network(network)
        times = setting.link_times_on(network, unit_count)
    return SpreadTask(setting, network, times, origin, trials)


def _spread_for_reduction(task: SpreadTask, times: LinkTimes, progress: Progress) -> SpreadResult:
    """Find the spreading that is the fastest when it is reversed in time into a reduction.

    `task` belongs to the transposed network. With switches, spreadings are compared by the time of
    the reversed and retimed schedule with `times`, the link times of the original network. Without
    switches the reversed schedule takes as long as the spreading, so `times` is not used. Of
    equally fast spreadings the first in the order of `spread_out` is returned.

    Ctrl-C ends the search: the best spreading so far is returned, marked as interrupted. Without
    one, `KeyboardInterrupt` is raised. Raises `InputError` if a member cannot be reached
    (`disconnected`), or if an all-gather needs more memory than the limit (`memory`).
    """
    if not isinstance(task.network, PathNetwork):
        return spread_out(task, progress)
    # Imported here: numba takes a second.
    from collhub_tacos.schedules.retiming import retime

    network = task.setting.network
    return spread_out(
        task,
        progress,
        lambda result: retime(reverse_schedule(result.schedule(), network), times).time_ps,
    )
