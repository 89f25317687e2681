"""Search over forms and numbers of chunks: every candidate that is tried, the fastest kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from collhub_tacos.judging import candidate_time_ns
from collhub_tacos.phases.candidate import SynthesisCandidate
from collhub_tacos.phases.forms import FORMS, LADDERS
from collhub_tacos.progress import Progress, part_of
from collhub_tacos.setting import Setting
from hub_core.model import CollectiveKind, UsageError
from hub_core.plugin_api import SynthesisRequest

_FormSearch = Callable[[Progress], Iterator[SynthesisCandidate]]


def fastest_candidate(setting: Setting, request: SynthesisRequest) -> SynthesisCandidate:
    """Fastest over forms and numbers of chunks.

    Ctrl-C ends the search; without a result it is raised again. Raises `UsageError` for a method
    that belongs to another collective.
    """
    best = _BestOfForms()
    is_interrupted = False
    searches = _searches(setting)
    try:
        for place, search in enumerate(searches):
            progress = part_of(setting.progress, place, len(searches))
            for candidate in search(progress):
                best.keep(candidate)
                is_interrupted |= candidate.is_interrupted
            if is_interrupted:
                break
    except KeyboardInterrupt:
        if not best.by_form:
            raise
        is_interrupted = True
    return replace(best.fastest(setting, request), is_interrupted=is_interrupted)


class _BestOfForms:
    """Fastest candidate of every form, by its own account."""

    def __init__(self) -> None:
        self.by_form: dict[str, SynthesisCandidate] = {}

    def keep(self, candidate: SynthesisCandidate) -> None:
        before = self.by_form.get(candidate.form)
        if before is None or candidate.time_ps < before.time_ps:
            self.by_form[candidate.form] = candidate

    def fastest(self, setting: Setting, request: SynthesisRequest) -> SynthesisCandidate:
        """Fastest of all; forms are compared by the simulator where its word counts more."""
        candidates = list(self.by_form.values())
        is_alone = len(candidates) == 1
        return min(
            candidates,
            key=lambda candidate: candidate_time_ns(setting, request, candidate, is_alone=is_alone),
        )


def _searches(setting: Setting) -> list[_FormSearch]:
    """Forms to try. Raises `UsageError` for a method that belongs to another collective."""
    kind, method = setting.collective.kind, setting.method
    climb = partial(_climb, setting)
    if kind is not CollectiveKind.ALL_REDUCE:
        if method != "auto":
            raise UsageError(
                f"the method {method} is a form of an all-reduce, not of {kind}",
                cure="leave -O method away",
                code="option-range",
            )
        return [climb]
    forms: dict[str, _FormSearch] = {
        "two-phase": climb,
        "latency": partial(_on_one_tree, setting),
        "fused": partial(_on_many_trees, setting),
    }
    if method != "auto":
        return [forms[method]]
    return list(forms.values()) if _has_trees(setting) else [climb]


def _has_trees(setting: Setting) -> bool:
    """Whether an all-reduce on trees can be made."""
    # Imported here and below: numba takes a second.
    from collhub_tacos.phases.fused import unsuitability

    return unsuitability(setting.network) is None and not setting.has_relays


def _on_one_tree(setting: Setting, progress: Progress) -> Iterator[SynthesisCandidate]:
    from collhub_tacos.phases.fused import latency

    yield latency(setting, progress)


def _on_many_trees(setting: Setting, progress: Progress) -> Iterator[SynthesisCandidate]:
    from collhub_tacos.phases.fused import fused, is_promising

    if setting.method == "fused" or is_promising(setting):
        yield fused(setting, progress)


def _climb(setting: Setting, progress: Progress) -> Iterator[SynthesisCandidate]:
    """Candidates by growing number of chunks, until two in a row do not help."""
    kind = setting.collective.kind
    ladder = setting.candidates(LADDERS[kind])
    times: list[int] = []
    for place, pieces in enumerate(ladder):
        candidate = FORMS[kind](setting, pieces, part_of(progress, place, len(ladder)))
        yield candidate
        times.append(candidate.time_ps)
        # One step may be worse by chance, two in a row say that more chunks cost more.
        if len(times) > 2 and min(times[-2:]) >= min(times[:-2]):
            return
