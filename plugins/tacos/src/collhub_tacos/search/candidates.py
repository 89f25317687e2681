"""Candidates of a search: their construction, comparison and pruning."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from collhub_tacos.link_network import PathNetwork
from collhub_tacos.search.seeds import Progress
from collhub_tacos.search.setting import Setting
from hub_core.columns import Int64Array, expanded_ranges, run_starts
from hub_core.model import Algorithm, Collective, JsonValue, StepKind, message_bytes
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest
from hub_core.schedules import Chunks, Transfers, algorithm_of

# A variant is dropped if it is slower than the fastest one by this factor in `_MIN_TRIALS`
# consecutive trials: by simulated times, and by planned times of plans.
_MAX_SLOWDOWN, _MAX_SLOWDOWN_OF_PLANS = 1.4, 1.12
_MIN_TRIALS = 2
# A variant whose time falls by less than this factor with twice the pieces has a full pipeline.
_PIPELINE_GAIN = 0.9
# Piece counts that differ by less than this factor are not compared to determine a gain.
_MIN_COUNT_RATIO = 1.5
# While a pipeline fills, each doubling of the pieces gains half as much as the one before. So a
# variant can still gain about `_REMAINING_GAINS` times its last gain, and is dropped if it is then
# slower than the fastest variant by more than `_MAX_FINAL_SLOWDOWN`.
_MAX_FINAL_SLOWDOWN, _REMAINING_GAINS = 1.02, 2.0


@dataclass(frozen=True, slots=True)
class Variant:
    """Variant of a candidate, independent of the number of pieces.

    `form`: of the algorithm. `index`: number of its spreading among those of the form. `rule`:
    window rule.
    """

    form: str
    index: int
    rule: Hashable


class Prospects:
    """Times of variants by number of pieces; predicts which may still become the fastest.

    A variant is dropped if it was much slower than the fastest in several consecutive trials and
    gained little, or if its remaining gain is too small. The fastest variant of a piece count is
    never dropped.
    """

    def __init__(self, max_slowdown: float = _MAX_SLOWDOWN) -> None:
        self._max_slowdown = max_slowdown
        self._times: dict[int, dict[Variant, float]] = {}
        self._parts: dict[str, Prospects] = {}

    def of_part(self, name: str) -> Prospects:
        """Return the prospects of a part of the work, whose times are recorded separately."""
        return self._parts.setdefault(name, Prospects(_MAX_SLOWDOWN_OF_PLANS))

    def note(self, variant: Variant, pieces: int, time_ps: int | None) -> None:
        """Record the time of a variant; None if it is too slow to be compared."""
        self._times.setdefault(pieces, {})[variant] = math.inf if time_ps is None else time_ps

    def minimum_ps(self, pieces: int) -> float:
        """Return the smallest recorded time in ps of the variants with `pieces` pieces.

        Infinite if no variant has been recorded, or if all of them were too slow to be
        compared.
        """
        times = self._times.get(pieces, {})
        return min(times.values(), default=math.inf)

    def is_promising(self, variant: Variant, pieces: int) -> bool:
        """Return whether to try a variant with `pieces` chunks per part, given its earlier times.

        A variant is a form of algorithm with a spreading and a window rule. Its trials are its
        recorded times with fewer than `pieces` chunks. With fewer than two trials the result is
        True. Otherwise the two trials with the most chunks are judged, and both rules must hold:

        1. In one of them the variant may still reach the fastest one (`_may_catch_up`).
        2. In one of them its time is at most 1.4 times (1.12 for a part of the work) the fastest
           time with as many chunks, or the last trial was much faster than one with fewer chunks
           (`_gains`).
        """
        # Piece counts without a trial of the variant are ignored.
        tried = [
            rung for rung in sorted(self._times) if rung < pieces and variant in self._times[rung]
        ]
        if len(tried) < _MIN_TRIALS:
            return True
        if not any(self._may_catch_up(variant, tried, rung) for rung in tried[-_MIN_TRIALS:]):
            return False
        slowdowns = []
        for rung in tried[-_MIN_TRIALS:]:
            times = self._times[rung]
            # The quotient of two infinite times (too slow to be compared) would be NaN.
            is_timed = math.isfinite(times[variant])
            slowdowns.append(times[variant] / min(times.values()) if is_timed else math.inf)
        return min(slowdowns) <= self._max_slowdown or self._gains(variant, tried)

    def _may_catch_up(self, variant: Variant, tried: Sequence[int], rung: int) -> bool:
        """Return whether a variant may still reach the fastest one, judged with `rung` chunks.

        `tried`: the numbers of chunks for which the variant has a time, ascending. Let t be its
        time with `rung` chunks, and u that with the largest tried number of at most `rung` / 1.5.
        The gain g is u - t, or 0 if t is larger. It is assumed that more chunks gain at most 2 g.
        The first rule that applies decides:

        - True if there is no such number of chunks, or if t is infinite.
        - True if t - 2 g is at most 1.02 times the smallest time of a variant with `rung` chunks.
        - Otherwise False.
        """
        time_ps, fewer = (
            self._times[rung][variant],
            [count for count in tried if count <= rung / _MIN_COUNT_RATIO],
        )
        if not fewer or math.isinf(time_ps):
            return True
        gained_ps = max(0.0, self._times[fewer[-1]][variant] - time_ps)
        fastest_ps = min(self._times[rung].values())
        return time_ps - _REMAINING_GAINS * gained_ps <= _MAX_FINAL_SLOWDOWN * fastest_ps

    def _gains(self, variant: Variant, tried: Sequence[int]) -> bool:
        """Return whether a variant became clearly faster with the last large increase of pieces.

        `tried`: numbers of pieces for which the variant has a time, ascending, at least one.
        The last one, m, is compared with k, the largest one that is at most m / 1.5
        (`_MIN_COUNT_RATIO`): the time with m must be less than the time with k times 0.9
        (`_PIPELINE_GAIN`) per doubling, that is, to the power of log2(m / k). True if there is
        no such k.
        """
        most_pieces = tried[-1]
        fewer = [rung for rung in tried if rung <= most_pieces / _MIN_COUNT_RATIO]
        if not fewer:
            return True
        required_gain: float = _PIPELINE_GAIN ** math.log2(most_pieces / fewer[-1])
        return self._times[most_pieces][variant] < required_gain * self._times[fewer[-1]][variant]

    def is_worth_building(self, form: str, index: int, pieces: int) -> bool:
        """Return whether to build number `index` of a form's spreadings with this number of pieces.

        A spreading is a schedule that brings chunks to all NPUs; its variants differ by the
        window rule (limit of messages in flight). True if none of its variants has a time with
        any number of pieces, or if one that has is promising with `pieces` (`is_promising`).
        """
        variants = {variant for times in self._times.values() for variant in times}
        known = [variant for variant in variants if (variant.form, variant.index) == (form, index)]
        return not known or any(self.is_promising(variant, pieces) for variant in known)


@dataclass(frozen=True, slots=True)
class Trials:
    """Trials of plans with one number of pieces; a plan is identified by its index."""

    prospects: Prospects = field(default_factory=Prospects)
    pieces: int = 1

    def is_promising(self, index: int) -> bool:
        """Whether a plan is promising, given its times with fewer pieces."""
        return self.prospects.is_promising(Variant("plan", index, None), self.pieces)

    def note(self, index: int, time_ps: int) -> None:
        """Record the time of a plan in picoseconds."""
        self.prospects.note(Variant("plan", index, None), self.pieces, time_ps)


Nodes = Sequence[int] | None
"""NPUs whose transfers are requested, None for all."""


@dataclass(frozen=True, slots=True, eq=False)
class SynthesisCandidate:
    """Possible answer to a request.

    `pieces`: chunks of a share. `time_ps`: planned time in picoseconds. `details`: statistics for
    users. `transfers(nodes)`: all transfers, or those that touch the nodes. `replay(progress)`:
    verify the entire schedule on the synthesizer's arrays, for requests of a subset of the ranks;
    False if that is impossible. `algorithm`: the algorithm itself, if it does not follow from
    transfers or is already known; `algorithm_time_ns`: its time in nanoseconds if known.
    `is_timed`: whether `time_ps` includes contention; otherwise a simulator is needed. `way`: its
    variant, if several numbers of pieces are tried.
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
    algorithm: Algorithm | None = None
    algorithm_time_ns: int | None = None
    is_timed: bool = True
    variant: Variant | None = None


MAX_SIMULATED_TRANSFERS = 1_000_000
"""Maximum number of transfers for simulation, and for the timing of an entire algorithm if only the
steps of some ranks are requested."""
# Candidates whose planned time exceeds the best time by this factor are not simulated.
_MAX_PLANNED_SLOWDOWN = 1.3


def build_algorithm(
    setting: Setting,
    candidate: SynthesisCandidate,
    transfers: Transfers,
    requested_ranks: tuple[int, ...] | None,
) -> Algorithm:
    """Build the algorithm of some transfers, with the steps of the requested ranks (None: of all).

    Collective and chunks are those of the candidate; ranks run on the members of `setting`.
    There is no provenance yet. Raises `InputError` (`schedule-acausal`) for a chunk that is
    sent before its source has it.
    """
    return algorithm_of(
        candidate.collective,
        candidate.chunks,
        transfers,
        npus=setting.members.tolist(),
        num_npus=setting.network.num_npus,
        wanted=requested_ranks,
        collective_bytes=setting.collective_bytes,
    )


def build_timed_algorithm(
    setting: Setting, request: SynthesisRequest, candidate: SynthesisCandidate
) -> tuple[Algorithm, int]:
    """Return the complete algorithm of a candidate and its time in ns.

    - If the candidate already has an algorithm, this one is returned. Its time is the
      recorded one, otherwise the simulated one.
    - Otherwise the algorithm is built. It is simulated only if candidates are compared by
      simulation.

    In both cases, the time is the planned one, rounded up to ns, if no time is recorded
    or simulated. Raises `InputError` (`schedule-acausal`) if a built algorithm sends a
    chunk before its source has it.
    """
    if candidate.algorithm is not None:
        # Its planned time is only a bound, so it is simulated in any case.
        time_ns = candidate.algorithm_time_ns or request.simulate(candidate.algorithm)
        return candidate.algorithm, time_ns or round_up_to_ns(candidate.time_ps)
    transfers = candidate.transfers(None)
    algorithm = build_algorithm(setting, candidate, transfers, None)
    simulated_ns = simulate_if_decisive(setting, request, algorithm)
    return algorithm, simulated_ns or round_up_to_ns(get_finish_ps(transfers))


def evaluate_form(
    setting: Setting, request: SynthesisRequest, candidate: SynthesisCandidate
) -> tuple[int, SynthesisCandidate]:
    """Return the time of a candidate in ns, and the candidate.

    - With more than 1,000,000 transfers (`MAX_SIMULATED_TRANSFERS`): the planned time, rounded up,
      and the candidate unchanged.
    - Otherwise: the time of `build_timed_algorithm`, and a copy of the candidate with this time and
      the algorithm. An algorithm that the candidate has is kept; its time is the recorded one, else
      the simulated one. Without an algorithm, one is built, and simulated only if candidates are
      compared by simulation. Without a recorded or simulated time, it is the planned one, rounded
      up.

    Raises `InputError` (`schedule-acausal`) if a built algorithm sends a chunk before its source
    has it.
    """
    if candidate.num_transfers > MAX_SIMULATED_TRANSFERS:
        return round_up_to_ns(candidate.time_ps), candidate
    algorithm, time_ns = build_timed_algorithm(setting, request, candidate)
    return time_ns, replace(candidate, algorithm=algorithm, algorithm_time_ns=time_ns)


def evaluate_candidate(
    setting: Setting, request: SynthesisRequest, candidate: SynthesisCandidate, limit_ps: int | None
) -> tuple[int | None, SynthesisCandidate]:
    """Return the time in ps by which a candidate is compared, and the candidate.

    The first case that applies:

    - A candidate without an algorithm whose planned time exceeds `_MAX_PLANNED_SLOWDOWN` (1.3)
      times `limit_ps` (None: no limit): None and the candidate, without simulation.
    - The candidate is simulated and the simulator gives a time. A candidate with an algorithm
      always is; another one if simulated times decide (`simulate_if_decisive`). The result is
      the simulated time plus the fractions of ns that the simulator drops
      (`_compute_dropped_ps`), since otherwise tiny chunks would seem to take no time. The
      second result is a copy with the algorithm and the simulated time.
    - A candidate without an algorithm whose planned time is valid (`is_timed`): the planned
      time and the candidate.
    - Otherwise: None and the candidate.

    Errors of building the algorithm (`build_algorithm`) and of the simulator pass through.
    """
    algorithm, planned_ps = candidate.algorithm, None
    if algorithm is None:
        transfers = candidate.transfers(None)
        planned_ps = get_finish_ps(transfers)
        if limit_ps is not None and planned_ps > _MAX_PLANNED_SLOWDOWN * limit_ps:
            return None, candidate
        algorithm = build_algorithm(setting, candidate, transfers, None)
        simulated_ns = simulate_if_decisive(setting, request, algorithm)
    else:
        simulated_ns = request.simulate(algorithm)
    if simulated_ns is not None:
        evaluated = replace(candidate, algorithm=algorithm, algorithm_time_ns=simulated_ns)
        return 1000 * simulated_ns + _compute_dropped_ps(setting, algorithm), evaluated
    return (planned_ps if candidate.is_timed else None), candidate


def _compute_dropped_ps(setting: Setting, algorithm: Algorithm) -> int:
    """Return the largest sum of dropped fractions of ns on a link, in ps, rounded down.

    A message is busy on a link for bytes / bandwidth and drops the fraction of this time below
    1 ns. Per link, the fractions of all its messages are added; a message over switches counts
    on each link of its route. 0 without messages.

    If switches multicast, a second sum counts messages of the same source buffer and offset
    from one sender only once per link. If switches reduce, another sum counts them once per
    receiver. The smallest of these sums is used for each link. Raises `InputError`
    (`size-range`) if all messages together have 2^63 bytes or more.
    """
    network, steps = setting.network, algorithm.steps
    sends = np.flatnonzero(steps.is_kind(StepKind.SEND))
    pair = steps.peer[sends].astype(np.int64) * network.num_nodes + steps.rank[sends]
    # Links are sorted by destination, then by source, so these keys ascend.
    arc = np.searchsorted(network.destination * network.num_nodes + network.source, pair)
    size = message_bytes(
        setting.collective_bytes, algorithm.collective.unit_count, steps.count[sends]
    )
    links = network
    if isinstance(network, PathNetwork):
        first, lengths = network.paths.indptr[arc], np.diff(network.paths.indptr)[arc]
        arc = network.paths.links[expanded_ranges(first, lengths)]
        size, links = np.repeat(size, lengths), network.links
        sends = np.repeat(sends, lengths)
    busy_ns = 1e9 * size / links.topology.bandwidth_bytes_per_s[links.row[arc]]
    dropped = np.bincount(arc, busy_ns % 1.0, minlength=links.num_links)
    topology = network.topology
    for is_able, end in ((topology.multicast, steps.rank), (topology.reduction, steps.peer)):
        if is_able:
            data = (arc, end[sends], steps.src_buffer[sends], steps.src_offset[sends])
            # One row number for each distinct row.
            order = np.lexsort(data)
            once: Int64Array = order[run_starts(*(column[order] for column in data))]
            combined = np.bincount(arc[once], busy_ns[once] % 1.0, minlength=links.num_links)
            dropped = np.minimum(dropped, combined)
    return int(1000 * dropped.max(initial=0.0))


def is_simulator_decisive(setting: Setting, request: SynthesisRequest) -> bool:
    """Return whether candidates are compared by simulated instead of planned times.

    They are if the link model is any but ALPHA_BETA, that is, if links become free before
    messages arrive, or if the network is a `PathNetwork`, whose messages share switches. Then
    the order of events within one instant matters. They are not if the network of the setting
    has another name than the topology of the request.
    """
    is_pipelined = setting.occupancy is not Occupancy.ALPHA_BETA
    meets_at_switches = isinstance(setting.network, PathNetwork)
    is_other_network = setting.network.topology.name != request.topology.name
    return (is_pipelined or meets_at_switches) and not is_other_network


def simulate_if_decisive(
    setting: Setting, request: SynthesisRequest, algorithm: Algorithm
) -> int | None:
    """Return the simulated time of an algorithm in ns, or None if planned times decide.

    None is returned in these cases:

    - The link model is ALPHA_BETA, and the network is no `PathNetwork`.
    - The network of the setting has another name than the topology of the request.
    - The algorithm has more than 2 * `MAX_SIMULATED_TRANSFERS` (2 million) steps.
    - The simulation gives no time.
    """
    # A transfer has at least a send and a receive.
    if (
        not is_simulator_decisive(setting, request)
        or len(algorithm.steps) > 2 * MAX_SIMULATED_TRANSFERS
    ):
        return None
    return request.simulate(algorithm)


def get_finish_ps(transfers: Transfers) -> int:
    """Return the arrival time of the last transfer in picoseconds, 0 without transfers."""
    return int(transfers.finish.max(initial=0))


def round_up_to_ns(time_ps: int) -> int:
    """Convert picoseconds to nanoseconds, rounded up."""
    return -(-time_ps // 1000)
