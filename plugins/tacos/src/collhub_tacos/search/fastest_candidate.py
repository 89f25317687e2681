"""Search over algorithm forms and chunk counts for the fastest candidate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.lower_bounds import compute_lower_bounds_ps
from collhub_tacos.phases.forms import FORMS, choose_ladder
from collhub_tacos.search.candidates import (
    Prospects,
    SynthesisCandidate,
    evaluate_candidate,
    evaluate_form,
    is_simulator_decisive,
)
from collhub_tacos.search.seeds import Progress, report_part
from collhub_tacos.search.setting import (
    MAX_COMPARED_TRANSFERS,
    Setting,
    bound_one_tree_ps,
    bound_two_phases_ps,
)
from collhub_tacos.symmetry import hops_from
from hub_core.model import CollectiveKind, InputError, UsageError
from hub_core.network import lower_bound_ns
from hub_core.plugin_api import SynthesisRequest

# Minimum relative gain of a candidate with more messages: every consumer of the algorithm pays for
# them.
_MIN_RELATIVE_GAIN = 1e-3
# Chunk counts within this factor form a pair. After the first pair, later pairs are tried only with
# the kind that was faster.
_PAIR_FACTOR = 1.25
# Candidates slower than the best by this factor do not become fastest with more chunks.
_PRUNING_FACTOR = 1.1
_FormSearch = Callable[[Progress], Iterator[SynthesisCandidate]]


def find_fastest_candidate(setting: Setting, request: SynthesisRequest) -> SynthesisCandidate:
    """Return the fastest candidate over all forms (methods) and chunk counts.

    The forms are searched in the order of `_list_searches`. These candidates compete over all forms
    by simulated time: those that already have an algorithm, and those of at most 200 000 messages
    if `is_simulator_decisive` holds. One with more messages than the best must be faster by more
    than 0.1 %. All others compete by planned time within their form. At the end all winners are
    timed (`evaluate_form`). On a tie the first is kept.

    After Ctrl-C the best candidate so far is returned with `is_interrupted`; without one,
    `KeyboardInterrupt` is raised. If a candidate is interrupted itself, the search ends after its
    form, and the result has `is_interrupted`. Raises `UsageError` (`option-range`) for a method of
    another collective, `InputError` if `setting.units` allows no candidate, and the errors of
    forms.
    """
    best = _BestCandidate(setting, request)
    is_interrupted = False
    searches = _list_searches(setting, best)
    try:
        for index, search in enumerate(searches):
            progress = report_part(setting.progress, index, len(searches))
            for candidate in search(progress):
                best.keep(candidate)
                is_interrupted |= candidate.is_interrupted
            if is_interrupted:
                break
    except KeyboardInterrupt:
        if best.is_empty:
            raise
        is_interrupted = True
    if best.is_empty and setting.units is not None:
        raise setting.units.build_error(setting.collective.unit_count)
    return replace(best.fastest(), is_interrupted=is_interrupted)


class _BestCandidate:
    """Fastest candidate so far.

    Candidates with few messages are compared by simulated time if the simulator is decisive for the
    request, and candidates with many messages by planned time within each form. Planned times do
    not include the order of events within one instant, so four chunks may seem faster than one and
    be slower.
    """

    def __init__(self, setting: Setting, request: SynthesisRequest) -> None:
        self._setting = setting
        self._request = request
        self._is_simulated = is_simulator_decisive(setting, request)
        self._compared: tuple[int, SynthesisCandidate] | None = None
        self._by_form: dict[str, SynthesisCandidate] = {}
        self.prospects = Prospects()

    @property
    def is_empty(self) -> bool:
        """Whether there is no candidate yet."""
        return self._compared is None and not self._by_form

    def limit_ps(self) -> int | None:
        """Return the smallest time in ps of all kept candidates, None if there is none.

        For the best compared candidate it is the evaluated time, for the best one of each form
        the planned time.
        """
        times = [candidate.time_ps for candidate in self._by_form.values()]
        if self._compared is not None:
            times.append(self._compared[0])
        return min(times, default=None)

    def is_within(self, limit_ps: int) -> bool:
        """Whether the fastest simulated candidate takes at most `limit_ps` picoseconds."""
        return self._compared is not None and self._compared[0] <= limit_ps

    def keep(self, candidate: SynthesisCandidate) -> None:
        """Record a candidate if it is better than the best one with which it competes.

        A candidate without an algorithm competes only with those of its own form, by planned time
        `time_ps`, if times are not simulated or it has more than `MAX_COMPARED_TRANSFERS` (200 000)
        transfers. Of equal times the earlier candidate is kept. All others compete with those of
        all forms, by the time of `evaluate_candidate`, in these steps:

        1. A candidate whose variant is not promising (`prospects`) is dropped.
        2. It is evaluated, and `prospects` records the time of its variant, if it has one. The time
           is None, and the candidate is dropped, if it cannot be timed, or if it has no algorithm
           and its planned time is above 1.3 times the best time. Errors propagate.
        3. It is recorded if it is faster than the best one, by more than 0.1 % of the best time if
           it has more transfers.
        """
        is_small = candidate.num_transfers <= MAX_COMPARED_TRANSFERS
        if candidate.algorithm is None and not (self._is_simulated and is_small):
            previous = self._by_form.get(candidate.form)
            if previous is None or candidate.time_ps < previous.time_ps:
                self._by_form[candidate.form] = candidate
            return
        limit = None if self._compared is None else self._compared[0]
        variant, pieces = candidate.variant, candidate.pieces
        if variant is not None and not self.prospects.is_promising(variant, pieces):
            return
        time_ps, judged = evaluate_candidate(self._setting, self._request, candidate, limit)
        if variant is not None:
            self.prospects.note(variant, pieces, time_ps)
        if time_ps is None:
            return
        if self._compared is not None:
            best_ps, best = self._compared
            has_more = candidate.num_transfers > best.num_transfers
            if best_ps - time_ps <= (_MIN_RELATIVE_GAIN * best_ps if has_more else 0):
                return
        self._compared = time_ps, judged

    def fastest(self) -> SynthesisCandidate:
        """Return the fastest of the kept candidates; at least one must have been added.

        Kept are the best of the candidates that are compared by time at once, and the best
        candidate of each form. If only one is kept, it is returned unchanged. Otherwise each one
        is timed by `evaluate_form`: by simulation, or by its plan if it has more than 1,000,000
        transfers. Times are rounded to ns. Of equal times the compared candidate is preferred,
        then the form that was added first. The result may be a copy with the algorithm and time
        of `evaluate_form`. Raises `InputError` (`schedule-acausal`) if an algorithm built for this
        sends a chunk before its source has it.
        """
        candidates = list(self._by_form.values())
        if self._compared is not None:
            candidates.insert(0, self._compared[1])
        if len(candidates) == 1:
            return candidates[0]
        best_time_ns, fastest = evaluate_form(self._setting, self._request, candidates[0])
        for candidate in candidates[1:]:
            time_ns, judged = evaluate_form(self._setting, self._request, candidate)
            if time_ns < best_time_ns:
                best_time_ns, fastest = time_ns, judged
        return fastest


def _list_searches(setting: Setting, best: _BestCandidate) -> list[_FormSearch]:
    """Return the searches to run, one per form, in the order in which they shall run.

    Collectives other than all-reduce have one search, over chunk counts. They raise `UsageError`
    (`option-range`) for any method except `auto`. For an all-reduce:

    - A method that names a form (`fused`, `two-phase`, `latency`, `one-shot`): only the search of
      this form. Whether it suits is not checked here, and no bound skips two-phase or latency.
    - `auto`: the four forms in this order. Fused and latency, which run on trees, are kept only if
      there are no switches, every link has an equal link in the opposite direction, all NPUs take
      part as rank r on NPU r, and node 0 reaches all nodes. Fused is also omitted if it cannot be
      faster than two phases (`fused.is_promising`). Two-phase and latency yield nothing if, when
      they start, their lower bound exceeds the time of `best`.
    """
    kind, method = setting.collective.kind, setting.method
    climb = partial(_search_chunk_counts, setting, best)
    if kind is not CollectiveKind.ALL_REDUCE:
        if method != "auto":
            raise UsageError(
                f"the method {method} is a form of an all-reduce, not of {kind}",
                cure="leave -O method away",
                code="option-range",
            )
        return [climb]
    forms: dict[str, _FormSearch] = {
        "fused": partial(_search_fused, setting),
        "two-phase": climb,
        "latency": partial(_search_latency, setting, None),
        "one-shot": partial(_search_one_shot, setting, best),
    }
    if method != "auto":
        return [forms[method]]
    forms["two-phase"] = partial(_search_two_phases, setting, best)
    forms["latency"] = partial(_search_latency, setting, best)
    # Imported here: numba takes a second.
    from collhub_tacos.phases.fused import find_unsuitability, is_promising

    has_trees = find_unsuitability(setting.network) is None and not setting.has_relays
    # If the network is disconnected, the spreading kernels report an unreachable pair.
    if not has_trees or np.any(hops_from(setting.network, 0) < 0):
        del forms["latency"], forms["fused"]
    elif not is_promising(setting):
        del forms["fused"]
    # Forms with the highest bandwidth come first and those for the smallest sizes last: the earlier
    # results limit the sizes for which the later forms are tried.
    return list(forms.values())


def _search_fused(setting: Setting, progress: Progress) -> Iterator[SynthesisCandidate]:
    """Yield one candidate: the fastest all-reduce on trees packed at the network's strength.

    The strength is the highest total rate of packed spanning trees. Raises `InputError`
    when the candidate is requested, if the network does not suit trees or if a chunk would
    have less than one byte (`build_fused`).
    """
    from collhub_tacos.phases.fused import build_fused

    yield build_fused(setting, progress)


def _search_two_phases(
    setting: Setting, best: _BestCandidate, progress: Progress
) -> Iterator[SynthesisCandidate]:
    """Yield all-reduces in two phases, reduce-scatter and all-gather, by increasing chunk count.

    `_search_chunk_counts` decides when the search stops. There is no search, and the iterator is
    empty, if the lower bound `bound_two_phases_ps` exceeds the time of the best candidate so far.
    The search runs if both are equal, and if there is no candidate yet.
    """
    limit = best.limit_ps()
    if limit is None or bound_two_phases_ps(setting) <= limit:
        yield from _search_chunk_counts(setting, best, progress)


def _search_latency(
    setting: Setting, best: _BestCandidate | None, progress: Progress
) -> Iterator[SynthesisCandidate]:
    """Yield one candidate: the all-reduce up and down one shallow tree.

    Yields nothing if the lower bound `bound_one_tree_ps` (all data on the fastest link)
    exceeds the time of the best candidate so far. With `best` None, or without a candidate,
    the bound is not used. Raises `InputError` if the network does not suit trees
    (`fused.latency`).
    """
    from collhub_tacos.phases.fused import latency

    limit = None if best is None else best.limit_ps()
    if limit is None or bound_one_tree_ps(setting) <= limit:
        yield latency(setting, progress)


def _search_one_shot(
    setting: Setting, best: _BestCandidate, progress: Progress
) -> Iterator[SynthesisCandidate]:
    """Yield the all-reduces in one phase, by increasing number of pieces.

    The numbers are those of 1, 2, 4, 8 that fit the size, or only a requested one. The consumer
    updates the best time between candidates. The iteration stops before a candidate whose lower
    bound is above the best time so far. It also stops after a candidate that did not improve a best
    time that existed before it. No candidate results if an NPU cannot reach another one.

    If the network is not suitable, there are two cases: `InputError` (`not-one-shot`) at the first
    step of the iteration if the method is `one-shot`, otherwise no candidate.
    """
    from collhub_tacos.phases.one_shot import build_one_shot_candidates, find_unsuitability

    reason = find_unsuitability(setting)
    if reason is None:
        yield from build_one_shot_candidates(setting, best.limit_ps, progress)
    elif setting.method == "one-shot":
        raise InputError(
            f"no all-reduce in one phase: {reason}",
            cure="choose the method two-phase",
            code="not-one-shot",
        )


def _search_chunk_counts(
    setting: Setting, best: _BestCandidate, progress: Progress
) -> Iterator[SynthesisCandidate]:
    """Yield candidates for the chunk counts of `choose_ladder`, ascending.

    The caller must add each candidate to `best` before it takes the next one. A pair is two
    neighbouring counts whose second is less than 1.25 times the first. After both counts of a
    pair were tried, one count of each later pair is skipped: the smaller one if the larger
    count was at least as fast, otherwise the larger one (`_find_redundant_counts`).

    The search stops after a count if one of these holds. The time of a count is the planned
    time of its first candidate.

    - It gave no candidates.
    - Candidates are compared by simulation, and the best takes at most 1.001 times the lower
      bound.
    - Three or more counts were tried, and neither of the last two took less than f times the
      shortest earlier time. f is 1.1 with comparison by simulation, otherwise 1.
    """
    kind = setting.collective.kind
    ladder = choose_ladder(setting)
    times: list[int] = []
    limit_ps = 0
    skipped: set[int] = set()
    for index, pieces in enumerate(ladder):
        if index in skipped:
            continue
        part_progress = report_part(progress, index, len(ladder))
        candidates = FORMS[kind](setting, pieces, part_progress, best.prospects)
        yield from candidates
        if not candidates:
            return
        times.append(candidates[0].time_ps)
        skipped.update(_find_redundant_counts(ladder, index, best.prospects))
        is_compared = setting.is_compared(candidates[0].collective.unit_count)
        if is_compared and not index:
            # Computed after the first candidates because these report faults of the network.
            limit_ps = int((1 + _MIN_RELATIVE_GAIN) * _compute_bound_ps(setting))
        if is_compared and best.is_within(limit_ps):
            return
        # One chunk count may be worse by chance; two in a row show that more chunks cost more. If
        # few of the windows and counts are compared, the factor allows for their differences.
        slowdown = _PRUNING_FACTOR if is_compared else 1.0
        if len(times) > 2 and min(times[-2:]) >= slowdown * min(times[:-2]):
            return


def _find_redundant_counts(
    ladder: Sequence[int], index: int, prospects: Prospects
) -> Iterator[int]:
    """Yield the indices of chunk counts to skip, after both counts of one pair were tried.

    A pair is two neighbours in `ladder`, of which the second is less than 1.25
    (`_PAIR_FACTOR`) times the first: one is a multiple of the number of other NPUs, the other a
    power of two. `index`: index of the second count of a pair that was tried. If its fastest
    time is at most that of the first count, the first count of every later pair is skipped,
    otherwise the second one: usually the same kind is always faster. None is skipped if the
    counts at `index` - 1 and `index` are no pair, or one of them has no time.
    """
    first, second = ladder[max(0, index - 1)], ladder[index]
    first_ps, second_ps = prospects.minimum_ps(first), prospects.minimum_ps(second)
    if not first < second < _PAIR_FACTOR * first or math.inf in (first_ps, second_ps):
        return
    for later in range(index + 1, len(ladder) - 1):
        if ladder[later + 1] < _PAIR_FACTOR * ladder[later]:
            yield later if second_ps <= first_ps else later + 1


def _compute_bound_ps(setting: Setting) -> int:
    """Return a lower bound in ps on the time of any algorithm for the request; 0 if none is known.

    Returns 0 if the members are not all NPUs in ascending order. Otherwise the result is the larger
    of two bounds, which hold for every chunk count:

    - `lower_bound_ns` in ns, times 1000 (0 if it returns None)
    - the bound `fluid` of `compute_lower_bounds_ps`: the bytes that links must carry, without
      latency. It is left out if the bytes are no multiple of the collective's `unit_count`.

    Every NPU must reach every other one.
    """
    topology, collective = setting.network.topology, setting.collective
    all_npus = np.arange(topology.num_npus)
    if not np.array_equal(setting.members, all_npus):
        return 0
    ports_ns = lower_bound_ns(collective, topology, setting.collective_bytes)
    unit = setting.chunk_bytes(collective.unit_count)
    # Switches are ordinary nodes here: exchanged data must cross the links between groups.
    network = LinkNetwork.of(topology)
    bounds = compute_lower_bounds_ps(collective, network, setting.members, unit, setting.occupancy)
    # If the bytes do not divide evenly, messages are larger than the data that they must carry.
    is_even = setting.collective_bytes % collective.unit_count == 0
    return max(int(1000 * (ports_ns or 0)), bounds["fluid"] if is_even else 0)
