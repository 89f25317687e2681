"""Search over forms and numbers of chunks: every candidate that is tried, the fastest kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from collhub_tacos.bounds.lower_bounds import lower_bounds_ps
from collhub_tacos.candidates import Prospects, SynthesisCandidate, compared, is_judged, judged_form
from collhub_tacos.networks.distances import hops_from
from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.phases.forms import FORMS, ladder_of
from collhub_tacos.seed_search import Progress, part_of
from collhub_tacos.setting import MOST_COMPARED, Setting, two_phases_ps, whole_vector_ps
from hub_core.model import CollectiveKind, InputError, UsageError
from hub_core.network import lower_bound_ns
from hub_core.plugin_api import SynthesisRequest

# More messages must save so much: all who work on the algorithm pay for them.
_WORTH = 1e-3
# Of numbers of chunks that are nearer one of two is tried: that whose kind was better before.
_NEAR = 1.25
# More chunks that take so many times as long do not catch up, however messages meet.
_FAR = 1.1
_FormSearch = Callable[[Progress], Iterator[SynthesisCandidate]]


def fastest_candidate(setting: Setting, request: SynthesisRequest) -> SynthesisCandidate:
    """Fastest over forms and numbers of chunks.

    Ctrl-C ends the search; without a result it is raised again. Raises `UsageError` for a method
    that belongs to another collective.
    """
    best = _BestCandidate(setting, request)
    is_interrupted = False
    searches = _searches(setting, best)
    try:
        for place, search in enumerate(searches):
            progress = part_of(setting.progress, place, len(searches))
            for candidate in search(progress):
                best.keep(candidate)
                is_interrupted |= candidate.is_interrupted
            if is_interrupted:
                break
    except KeyboardInterrupt:
        if best.is_empty:
            raise
        is_interrupted = True
    return replace(best.fastest(), is_interrupted=is_interrupted)


class _BestCandidate:
    """Fastest candidate: of small ones by the simulator, of others by form and their own account.

    Where the simulator's word counts, chunk counts and windows are compared by it as forms are: by
    the own clock, which knows no order within one instant, four chunks may look better than one
    and be slower.
    """

    def __init__(self, setting: Setting, request: SynthesisRequest) -> None:
        self._setting = setting
        self._request = request
        self._is_judged = is_judged(setting, request)
        self._compared: tuple[int, SynthesisCandidate] | None = None
        self._by_form: dict[str, SynthesisCandidate] = {}
        self.prospects = Prospects()

    @property
    def is_empty(self) -> bool:
        """Whether there is no candidate yet."""
        return self._compared is None and not self._by_form

    def limit_ps(self) -> int | None:
        """Time of the fastest so far in picoseconds, None before there is one."""
        times = [candidate.time_ps for candidate in self._by_form.values()]
        if self._compared is not None:
            times.append(self._compared[0])
        return min(times, default=None)

    def is_within(self, enough_ps: int) -> bool:
        """Whether what was compared by the simulator takes at most so many picoseconds."""
        return self._compared is not None and self._compared[0] <= enough_ps

    def keep(self, candidate: SynthesisCandidate) -> None:
        """Keep a candidate if it is the fastest of its kind so far; of equal ones the first."""
        is_small = candidate.num_transfers <= MOST_COMPARED
        if candidate.whole is not None or (self._is_judged and is_small):
            self._compare(candidate)
            return
        before = self._by_form.get(candidate.form)
        if before is None or candidate.time_ps < before.time_ps:
            self._by_form[candidate.form] = candidate

    def _compare(self, candidate: SynthesisCandidate) -> None:
        limit = None if self._compared is None else self._compared[0]
        way, pieces = candidate.way, candidate.pieces
        if way is not None and not self.prospects.are_good(way, pieces):
            return
        time_ps, judged = compared(self._setting, self._request, candidate, limit)
        if way is not None:
            self.prospects.note(way, pieces, time_ps)
        if time_ps is not None and self._is_worth(candidate, time_ps):
            self._compared = time_ps, judged

    def _is_worth(
        self,
        candidate: SynthesisCandidate,
        time_ps: int,
    ) -> bool:
        """Whether a candidate saves something, and enough for its messages if they are more."""
        if self._compared is None:
            return True
        limit, best = self._compared
        has_more = candidate.num_transfers > best.num_transfers
        return limit - time_ps > (_WORTH * limit if has_more else 0)

    def fastest(self) -> SynthesisCandidate:
        """Fastest of all; forms are compared by the simulator where its word counts more."""
        candidates = list(self._by_form.values())
        if self._compared is not None:
            candidates.insert(0, self._compared[1])
        # Nothing to compare with.
        if len(candidates) == 1:
            return candidates[0]
        least, fastest = judged_form(self._setting, self._request, candidates[0])
        for candidate in candidates[1:]:
            time_ns, judged = judged_form(self._setting, self._request, candidate)
            if time_ns < least:
                least, fastest = time_ns, judged
        return fastest


def _searches(setting: Setting, best: _BestCandidate) -> list[_FormSearch]:
    """Forms to try. Raises `UsageError` for a method that belongs to another collective."""
    kind, method = setting.collective.kind, setting.method
    climb = partial(_climb, setting, best)
    if kind is not CollectiveKind.ALL_REDUCE:
        if method != "auto":
            raise UsageError(
                f"the method {method} is a form of an all-reduce, not of {kind}",
                cure="leave -O method away",
                code="option-range",
            )
        return [climb]
    forms: dict[str, _FormSearch] = {
        "fused": partial(_on_many_trees, setting),
        "two-phase": climb,
        "latency": partial(_on_one_tree, setting, None),
        "one-shot": partial(_in_one_phase, setting, best),
    }
    if method != "auto":
        return [forms[method]]
    forms["two-phase"] = partial(_in_two_phases, setting, best)
    forms["latency"] = partial(_on_one_tree, setting, best)
    if not _has_trees(setting):
        del forms["latency"], forms["fused"]
    elif not _is_promising(setting):
        del forms["fused"]
    # What carries most is first, what serves the smallest sizes last: others tell up to which
    # size it can be the fastest.
    return list(forms.values())


def _has_trees(setting: Setting) -> bool:
    """Whether an all-reduce on trees can be made."""
    # Imported here and below: numba takes a second.
    from collhub_tacos.phases.fused import unsuitability

    if unsuitability(setting.network) is not None or setting.has_relays:
        return False
    # Of a network in pieces, spreading says which pair there is no way for.
    return bool(np.all(hops_from(setting.network, 0) >= 0))


def _is_promising(setting: Setting) -> bool:
    from collhub_tacos.phases.fused import is_promising

    return is_promising(setting)


def _on_many_trees(setting: Setting, progress: Progress) -> Iterator[SynthesisCandidate]:
    from collhub_tacos.phases.fused import fused

    yield fused(setting, progress)


def _in_two_phases(
    setting: Setting, best: _BestCandidate, progress: Progress
) -> Iterator[SynthesisCandidate]:
    """Candidates by growing number of chunks, unless what enters some NPU takes too long."""
    limit = best.limit_ps()
    if limit is None or two_phases_ps(setting) <= limit:
        yield from _climb(setting, best, progress)


def _on_one_tree(
    setting: Setting, best: _BestCandidate | None, progress: Progress
) -> Iterator[SynthesisCandidate]:
    """The algorithm on one tree, unless a link that carries all data takes too long."""
    from collhub_tacos.phases.fused import latency

    limit = None if best is None else best.limit_ps()
    if limit is None or whole_vector_ps(setting) <= limit:
        yield latency(setting, progress)


def _in_one_phase(
    setting: Setting, best: _BestCandidate, progress: Progress
) -> Iterator[SynthesisCandidate]:
    from collhub_tacos.phases.one_shot import one_shot, unsuitability

    reason = unsuitability(setting)
    if reason is None:
        yield from one_shot(setting, best.limit_ps, progress)
    elif setting.method == "one-shot":
        raise InputError(
            f"no all-reduce in one phase: {reason}",
            cure="choose the method two-phase",
            code="not-one-shot",
        )


def _climb(
    setting: Setting, best: _BestCandidate, progress: Progress
) -> Iterator[SynthesisCandidate]:
    """Candidates by growing number of chunks; of large ones until two in a row do not help.

    None that has more messages than the fastest so far where this is so near to the bound that they
    could not be worth it.
    """
    kind = setting.collective.kind
    ladder = ladder_of(setting)
    times: list[int] = []
    enough_ps = 0
    skipped: set[int] = set()
    for place, pieces in enumerate(ladder):
        if place in skipped:
            continue
        part = part_of(progress, place, len(ladder))
        candidates = FORMS[kind](setting, pieces, part, best.prospects)
        yield from candidates
        if not candidates:
            return
        times.append(candidates[0].time_ps)
        skipped.update(_worse_of_pairs(ladder, place, best.prospects))
        is_compared = setting.is_compared(candidates[0].collective.unit_count)
        if is_compared and not place:
            # After the first candidates: they say what is wrong with a network.
            enough_ps = int((1 + _WORTH) * _bound_ps(setting))
        if is_compared and best.is_within(enough_ps):
            return
        # One step may be worse by chance, two in a row say that more chunks cost more. Where few
        # windows and many are compared, they may yet differ by so much.
        far = _FAR if is_compared else 1.0
        if len(times) > 2 and min(times[-2:]) >= far * min(times[:-2]):
            return


def _worse_of_pairs(ladder: Sequence[int], place: int, prospects: Prospects) -> Iterator[int]:
    """Places of later pairs of near numbers that need no trial, after both of one pair.

    Multiples of the others and powers of two fill a pipeline alike: one kind is mostly the better.
    """
    first, second = ladder[max(0, place - 1)], ladder[place]
    least = prospects.least_ps(first), prospects.least_ps(second)
    if not first < second < _NEAR * first or math.inf in least:
        return
    for later in range(place + 1, len(ladder) - 1):
        if ladder[later + 1] < _NEAR * ladder[later]:
            yield later if least[1] <= least[0] else later + 1


def _bound_ps(setting: Setting) -> int:
    """Picoseconds that no algorithm can beat, whatever its messages; 0 where none is known.

    Simulators that drop fractions of nanoseconds may: candidates are compared with what they drop.
    """
    topology, collective = setting.network.topology, setting.collective
    everyone = np.arange(topology.num_npus)
    if not np.array_equal(setting.members, everyone):
        return 0
    ports_ns = lower_bound_ns(collective, topology, setting.collective_bytes)
    unit = setting.chunk_bytes(collective.unit_count)
    # Switches are nodes like others: what groups exchange must cross the links between them.
    network = LinkNetwork.of(topology)
    bounds = lower_bounds_ps(collective, network, setting.members, unit, setting.occupancy)
    # Whole messages are larger than the bytes that they must carry.
    is_even = setting.collective_bytes % collective.unit_count == 0
    return max(int(1000 * (ports_ns or 0)), bounds["fluid"] if is_even else 0)
