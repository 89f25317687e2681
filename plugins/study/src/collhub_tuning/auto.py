"""A portfolio: run every suitable synthesizer and return the best algorithm.

Of the results within 1 % of the best time, the one with the fewest messages wins (`choose_best`).
Algorithms are compared by the simulator of the request; without one, by the times that the
synthesizers report. The search is limited by counted work, and by time only if the user sets a
limit, so that equal requests give equal results on every host. Synthesizers with the lowest
estimated time run first. At the limit, the running synthesizer returns its best algorithm.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

import hub_core
from collhub_tuning.measuring import Stopwatch
from collhub_tuning.plugin import AutoOptions
from hub_core import (
    Diagnostic,
    HubError,
    InputError,
    Registry,
    Severity,
    UsageError,
    run_registry,
)
from hub_core.model import CollectiveKind, JsonValue, PluginError, format_count, format_time
from hub_core.network import Topology, lower_bound_ns
from hub_core.plugin_api import (
    ONE_SIZE,
    TIE,
    BudgetReached,
    LimitError,
    Merit,
    SearchBudget,
    SynthesisRequest,
    SynthesisResult,
    Synthesizer,
    choose_best,
    find_tolerance,
)
from hub_core.verification import VerificationInput, verify_input

if TYPE_CHECKING:
    from collhub_tuning.variations import FailureTimes

NAME = "auto"
# Name of the option that gives synthesizers the best time so far, to prune their search.
_WITHIN = "within"
# Maximum numbers of reasons, and of synthesizers per reason, in the error if none fits.
_MAX_REASONS, _MAX_NAMES = 4, 3
# Code of findings on requests beyond the limits of a synthesizer.
_TOO_LARGE = "too-large"
# Maximum number of candidates of equal time that are fitted to a runtime.
_MAX_FITTED = 3
# (NPU, link) pairs above which a synthesizer with the option `within` may take minutes.
_MAX_PAIRS = 100_000
# (NPU, link) pairs above which a search that adapts to the links may take more than a minute, and
# (NPU, NPU) pairs above which it does so if each has a route or data of its own.
_MAX_SEARCHED_PAIRS, _MAX_SEARCHED_ROUTES = 4_000_000, 1 << 18
# Such a search is tried after the fixed patterns only on a network without switches and with at
# most so many pairs, and only if the best pattern exceeds this ratio to the lower bound.
_MAX_DIRECT_PAIRS, _SEARCHED_FROM_RATIO = 64_000_000, 1.25
# On large networks, the search ends at this ratio to the lower bound.
_NEAR_BOUND = 1.01
# Beyond the reach of searches, patterns without an estimate, of up to n^2 messages, are tried only
# if the best time is above this ratio to the lower bound, up to `_MAX_DIRECT_PAIRS`.
_FAR_FROM_BOUND = 2.0


@dataclass(frozen=True, slots=True)
class _SynthesizerResult:
    """The result of one synthesizer.

    `time_ns`: the time by the simulator of the request, else the time that the result reports.
    `attempt`: the request of the synthesizer.
    """

    name: str
    result: SynthesisResult
    time_ns: int
    attempt: SynthesisRequest

    @property
    def merit(self) -> Merit:
        """Time, messages, and on a runtime the excess of its preferred limits."""
        return self.result.merit or Merit(self.time_ns, self.messages)

    @property
    def messages(self) -> int:
        """Number of messages of the algorithm; of a partial result, those of the written ranks."""
        return self.result.algorithm.steps.num_messages


@dataclass(slots=True)
class _SynthesizerSearch:
    """State of the search, which tries the synthesizers one after another.

    `names`: all synthesizers in the order of the registry; `candidates`: their results; `failures`:
    reasons of synthesizers that do not fit; `unsupporting`: those of them that do not support the
    collective; `cures`: cures of those that were called;
    `too_large`: findings of those for which the request is too large; `not_tried`: reasons of
    synthesizers that did not run; `warnings`: findings of synthesizers that crashed. `fitted`: the
    candidate that wins on the runtime of the request, None without a runtime.
    """

    names: list[str]
    budget: SearchBudget
    candidates: list[_SynthesizerResult] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    unsupporting: set[str] = field(default_factory=set)
    cures: list[str] = field(default_factory=list)
    too_large: dict[str, Diagnostic] = field(default_factory=dict)
    not_tried: dict[str, str] = field(default_factory=dict)
    warnings: list[Diagnostic] = field(default_factory=list)
    is_interrupted: bool = False
    fitted: _SynthesizerResult | None = None

    @property
    def best_ns(self) -> int | None:
        """The shortest time of the candidates in ns, None without one."""
        return min((candidate.time_ns for candidate in self.candidates), default=None)

    def list_in_order(self, objective: str) -> list[_SynthesizerResult]:
        """Return the candidates, the winner first, then the other candidates by ascending time.

        With the objective `time`, the winner is the fastest candidate. Otherwise it is the
        candidate that was fitted to the runtime, if there is one. Without one, it is the candidate
        with the fewest messages (`choose_best`) of those within 1 % of the shortest time; if any of
        these is a partial result, whose number of messages is unknown, it is the fastest one.
        """
        rows = self.sort_by_time()
        if objective == "time":
            return rows
        best = self.fitted
        if best is None:
            ties = [row for row in rows if row.time_ns <= (1 + TIE) * rows[0].time_ns]
            is_partial = any(row.result.is_partial for row in ties)
            best = rows[0] if is_partial else ties[choose_best([row.merit for row in ties])]
        return [best, *(row for row in rows if row is not best)]

    def sort_by_time(self) -> list[_SynthesizerResult]:
        """Return the candidates by ascending time; of equally fast ones, the first in the registry
        comes first.
        """
        return sorted(self.candidates, key=lambda row: (row.time_ns, self.names.index(row.name)))


def synthesize(request: SynthesisRequest, options: AutoOptions) -> SynthesisResult:
    """Return the best algorithm of all suitable synthesizers that verification accepts.

    With a target, the fastest ones are converted for its runtime. All are ordered by the
    objective (with `robust=links` by the worst failure of a link). The first accepted one is
    the result. A single one is not verified. If none is accepted, the first is the result,
    with warnings. Of each lower bound, the largest one of all algorithms is returned; bounds that
    hold for messages of one size only (`ONE_SIZE`) are those of the result.

    A limit or Ctrl-C stops the search with the algorithms so far. Ctrl-C is raised before the
    first one, and after the search. Raises `UsageError` for unknown candidates. Raises `InputError`
    if none fits the runtime. Without algorithms it has the first code that applies:
    `too-large` (a synthesizer refused the size, and no limit was reached), `limit-reached` (a
    synthesizer was skipped or not reached), `nothing-fits`.
    """
    registry = request.hub or run_registry()
    search = _SynthesizerSearch(
        _parse_candidates(options.candidates, registry), request.budget.part(options.work)
    )
    try:
        _try_all(request, registry, search)
    except KeyboardInterrupt:
        if not search.candidates:
            raise
        # The best result so far is returned, and the statistics report the interruption.
        search.is_interrupted = True
    if not search.candidates:
        raise _create_error(request, search)
    if request.target is not None:
        _fit_candidates(search)
    failures: dict[str, FailureTimes] = {}
    candidates = search.list_in_order(options.objective)
    if options.robust == "links":
        candidates = _sort_by_worst_failure(request, registry, search, failures)
    best = _select_best(search, candidates)
    bounds_ns: dict[str, int] = {}
    for candidate in search.candidates:
        for name, bound_ns in candidate.result.bounds_ns.items():
            # Bounds for messages of one size hold for the winner only, the others for all.
            if candidate is best or not name.endswith(ONE_SIZE):
                bounds_ns[name] = max(bound_ns, bounds_ns.get(name, 0))
    statistics = _collect_statistics(best, search)
    if best.name in failures:
        statistics["worst failure"] = failures[best.name].describe()
    return replace(
        best.result,
        time_ns=best.time_ns,
        statistics=statistics,
        bounds_ns=bounds_ns,
        not_tried=search.not_tried | dict(best.result.not_tried),
        diagnostics=(*search.warnings, *best.result.diagnostics),
    )


def _fit_candidates(search: _SynthesizerSearch) -> None:
    """Convert the candidates to algorithms that the runtime of the request executes.

    Candidates are converted by ascending time; of equal times the first in the registry is
    first. This ends when 3 are accepted, or when the next one is too slow. Too slow is more
    than 1 % slower than the fastest accepted one, or more than 5 % if every accepted one
    exceeds the preferred limits of the runtime. Partial results (steps of some ranks only) are
    accepted unchanged. A candidate with an `InputError` is refused and gets a reason in
    `search.failures`.

    `search.candidates` becomes the list of accepted ones, in this order, with the times of the
    converted algorithms. Candidates that were not reached are dropped. `search.fitted` becomes
    the best by `choose_best`: smallest excess of preferred limits, then fewest messages, among
    those of about equal time.

    If none is accepted, raises the first `LimitError`, to which the smallest limits are added
    with which a candidate can be executed. Without a `LimitError`, raises the first
    `InputError`. All other errors pass through.
    """
    fitted: list[_SynthesizerResult] = []
    reason: InputError | None = None
    for candidate in search.sort_by_time():
        if fitted:
            fastest_ns = min(one.time_ns for one in fitted)
            tolerance = find_tolerance([one.merit for one in fitted])
            if candidate.time_ns > (1 + tolerance) * fastest_ns or len(fitted) == _MAX_FITTED:
                break
        if candidate.result.is_partial:
            fitted.append(candidate)
            continue
        try:
            result = hub_core.fit_to_runtime(
                candidate.attempt, candidate.name, candidate.result, finds_limits=False
            )
        except InputError as error:
            # The error of an exceeded limit can be extended by a limit that suffices.
            is_limit = isinstance(error, LimitError) and not isinstance(reason, LimitError)
            reason = error if reason is None or is_limit else reason
            search.failures[candidate.name] = _get_first_message(error)
            continue
        fitted.append(replace(candidate, result=result, time_ns=result.time_ns))
    if not fitted:
        assert reason is not None
        if isinstance(reason, LimitError):
            rows = [(one.attempt, one.name, one.result) for one in search.sort_by_time()]
            raise hub_core.add_sufficient_limits(reason, rows) from None
        raise reason
    search.fitted = fitted[choose_best([one.merit for one in fitted])]
    search.candidates = fitted


def _sort_by_worst_failure(
    request: SynthesisRequest,
    registry: Registry,
    search: _SynthesizerSearch,
    failures: dict[str, FailureTimes],
) -> list[_SynthesizerResult]:
    """Return the candidates sorted by their worst time over failures of single links.

    The candidates are evaluated by ascending time on the complete network. Some of them get
    no worst time:

    - those with steps of some ranks only, or whose evaluation raised `HubError`; the latter
      adds a warning to `search.warnings`
    - those that are on the complete network at least as slow as the lowest worst time so far
    - those of which a failure exceeds the lowest worst time so far; evaluation stops there

    Candidates with a worst time come first, by it, and are added to `failures` by name. The
    rest follow by time on the complete network, which also decides between equal worst times.
    """
    # Imported here: only this objective needs routes and repairs.
    from collhub_tuning.variations import evaluate_failures

    best_ns: int | None = None
    for candidate in search.sort_by_time():
        if candidate.result.is_partial or (best_ns is not None and candidate.time_ns >= best_ns):
            continue
        algorithm = candidate.result.algorithm
        try:
            times = evaluate_failures(algorithm, request, registry, candidate.time_ns, best_ns)
        except HubError as error:
            message = f"failures of {candidate.name} were not evaluated: "
            message += _get_first_message(error)
            code = error.diagnostics[0].code
            search.warnings.append(Diagnostic(code, message, Severity.WARNING))
            continue
        if times.is_complete:
            failures[candidate.name] = times
            best_ns = times.worst_ns if best_ns is None else min(best_ns, times.worst_ns)

    def rank(candidate: _SynthesizerResult) -> tuple[bool, int]:
        times = failures.get(candidate.name)
        return times is None, candidate.time_ns if times is None else times.worst_ns

    return sorted(search.sort_by_time(), key=rank)


def _select_best(
    search: _SynthesizerSearch, candidates: Sequence[_SynthesizerResult]
) -> _SynthesizerResult:
    """Return the first candidate that verification accepts; if none is accepted, the first one.

    There must be a candidate. A single one is returned without verification, because the caller
    verifies it. A partial result (only the steps of some ranks) cannot be verified and is accepted.
    Other candidates are verified in the modes that their algorithms claim (in place, out of place).

    Each rejected candidate adds a warning to `search.warnings`, also if it is returned in the end.
    The code is `not-checked` if the algorithm is too large for verification, otherwise
    `wrong-candidate`. The text has its name, its time, and the first error.
    """
    if len(candidates) == 1:
        return candidates[0]
    for candidate in candidates:
        # Partial results contain only the steps of some ranks, which cannot be verified.
        if candidate.result.is_partial:
            return candidate
        report = verify_input(VerificationInput(candidate.result.algorithm), claimed_only=True)
        if report.ok:
            return candidate
        cause = next(each for each in report.diagnostics if each.severity is Severity.ERROR)
        is_too_large = cause.code == "too-large"
        defect = "could not be checked" if is_too_large else "is wrong"
        message = f"the algorithm of {candidate.name} ({format_time(candidate.time_ns)}) {defect}: "
        # Without the file, which is the name of the topology.
        place = cause.location and str(replace(cause.location, file=None))
        message += f"{place}: {cause.message}" if place else cause.message
        code = "not-checked" if is_too_large else "wrong-candidate"
        search.warnings.append(Diagnostic(code, message, Severity.WARNING))
    return candidates[0]


def _create_error(request: SynthesisRequest, search: _SynthesizerSearch) -> InputError:
    """Return the error of a search that has no candidates; the first code that applies:

    1. `too-large`, if `search.too_large` has a finding and no limit was reached: its most frequent
       message (of equal ones the first), the first 3 synthesizers with it, the first one's cure.
    2. `limit-reached`, if synthesizers were not tried: the first reason of `search.not_tried`.
    3. `nothing-fits`: `NAMES: REASON; ...` of `search.failures`, and the most frequent cure.

    In 3, texts that differ only in the leading name of the synthesizer are one reason. Failures
    come before unsupported collectives (`search.unsupporting`), and frequent reasons before rare
    ones; otherwise the order of `search.failures` is kept. The first `_MAX_REASONS` reasons and
    `_MAX_NAMES` names of each are shown, then `and N other reasons`, ` and N more`.
    """
    if search.too_large and not search.budget.reason:
        counts = Counter(finding.message for finding in search.too_large.values())
        ((message, _),) = counts.most_common(1)
        names = [name for name, finding in search.too_large.items() if finding.message == message]
        collective = request.collective
        return InputError(
            f"{collective.kind} of {collective.num_ranks} ranks is too large: {message} "
            f"({', '.join(names[:_MAX_NAMES])})",
            cure=search.too_large[names[0]].cure,
            code=_TOO_LARGE,
        )
    if search.not_tried:
        reason = next(iter(search.not_tried.values()))
        return InputError(
            f"no synthesizer finished an algorithm: {reason}",
            cure="allow more time",
            code="limit-reached",
        )
    groups: dict[tuple[bool, str], list[str]] = {}
    for name, reason in search.failures.items():
        # Most reasons begin with the name of the synthesizer.
        key = (name in search.unsupporting, reason.removeprefix(f"{name} "))
        groups.setdefault(key, []).append(name)
    reasons = []
    for (_, reason), names in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))):
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        reasons.append(f"{', '.join(names[:_MAX_NAMES])}{more}: {reason}")
    hidden = len(reasons) - _MAX_REASONS
    if hidden > 0:
        reasons[_MAX_REASONS:] = [f"and {format_count(hidden, 'other reason')}"]
    cures = Counter(search.cures).most_common(1)
    return InputError(
        f"no synthesizer fits: {'; '.join(reasons)}",
        cure=cures[0][0] if cures else "",
        code="nothing-fits",
    )


def _parse_candidates(text: str, registry: Registry) -> list[str]:
    """Return the names of the candidate synthesizers in `text`, separated by commas.

    White space around names is dropped; order and repetitions are kept. The text `all` gives
    all synthesizers in the order of the registry, except this portfolio and those that are used
    only by name. There is no other special word: `all,x` refers to a synthesizer `all`.

    Raises `UsageError` for the portfolio itself and for unknown names, also an empty one.
    Raises `PluginError` if a plugin with such a synthesizer is not loaded or several
    synthesizers have the name. The first bad name is reported.
    """
    if text == "all":
        return [
            provided.name
            for provided in registry.all(Synthesizer)
            if provided.name != NAME and not provided.offer.only_by_name
        ]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name == NAME:
            raise UsageError(f"option candidates: {NAME} cannot be a candidate of itself")
        # Raises an error with the closest name.
        registry.find(Synthesizer, name)
    return names


def _try_all(request: SynthesisRequest, registry: Registry, search: _SynthesizerSearch) -> None:
    """Call the synthesizers that support the collective, lowest estimate first, until a limit.

    All results and reasons are stored in `search`; nothing is returned. Names that do not support
    the collective are added to `failures` and `unsupporting`. Before each call, the first rule that
    applies (3: `_find_reason_to_skip`):

    1. The network has over 100 000 pairs of an NPU and a link, and the best time is within 1 % of
       the lower bound: the search stops.
    2. A limit is reached: it stops. Without a candidate, only the limit of time counts.
    3. The synthesizer would search for minutes on this network, or its time cannot be estimated: it
       is skipped.

    Results are added to `candidates`, skipped and unreached names with their reason to `not_tried`.
    The message of a `HubError` is added to `failures`. A `PluginError` also adds its findings to
    `warnings`; other ones add their first cure to `cures`, and to `too_large` if their first code
    is `too-large`. Other exceptions pass through.
    """
    kind = request.collective.kind
    supporting = []
    for name in search.names:
        if registry.find(Synthesizer, name).offer.supports(kind):
            supporting.append(name)
        else:
            search.failures[name] = f"{name} does not support {kind}"
            search.unsupporting.add(name)
    order = _sort_by_estimate(supporting, registry, request)
    bound_ns = None
    if _is_large(request.topology):
        size = request.collective_bytes
        bound_ns = lower_bound_ns(request.collective, request.topology, size, request.npus)
    for index, name in enumerate(order):
        best_ns = search.best_ns
        # Without a candidate, every synthesizer may use one simulation beyond the work limit.
        has_ended = best_ns is not None or search.budget.left_s == 0.0
        reason = search.budget.reason if has_ended else ""
        if bound_ns is not None and best_ns is not None and best_ns <= _NEAR_BOUND * bound_ns:
            percent = 100 * (best_ns / bound_ns - 1)
            reason = f"large network: the best time is {percent:.1f} % above the lower bound"
        if reason:
            search.not_tried |= dict.fromkeys(order[index:], reason)
            return
        if reason := _find_reason_to_skip(name, request, registry, search, bound_ns):
            search.not_tried[name] = reason
            continue
        try:
            request.progress(index / len(order), name)
            _try(request, name, registry, search)
        except BudgetReached:
            search.not_tried |= dict.fromkeys(order[index:], request.budget.reason)
            return
        except PluginError as error:
            search.failures[name] = _get_first_message(error)
            search.warnings += [
                replace(finding, severity=Severity.WARNING) for finding in error.diagnostics
            ]
        except HubError as error:
            search.failures[name] = _get_first_message(error)
            search.cures += [finding.cure for finding in error.diagnostics[:1] if finding.cure]
            if error.diagnostics and error.diagnostics[0].code == _TOO_LARGE:
                search.too_large[name] = error.diagnostics[0]


def _find_reason_to_skip(
    name: str,
    request: SynthesisRequest,
    registry: Registry,
    search: _SynthesizerSearch,
    bound_ns: float | None,
) -> str:
    """Return the reason to skip a synthesizer, as a text; "" if it is to be tried.

    The result is "" unless `_is_beyond_search` holds for the request. A candidate is an algorithm
    that was synthesized before in this search. The ratio is the best time of the candidates divided
    by `bound_ns`; it is infinite without a candidate, and if `bound_ns` is None or 0. A network is
    small if NPUs times links are at most 64 000 000 (`_MAX_DIRECT_PAIRS`), direct if it has no
    switches.

    - A synthesizer that adapts to links (`offer.adapts`), without a candidate: skipped if the
      network is not small and direct, and `search.too_large` is not empty.
    - An adapting synthesizer, with a candidate: skipped unless the network is small and direct, the
      ratio is above 1.25, and the synthesizer has no option `within`.
    - Any other synthesizer: skipped if all of these hold: there is a candidate; the synthesizer
      cannot estimate the time of its result (`_estimate_ns`); the ratio is at most 2 or the network
      is not small.
    """
    topology, best_ns = request.topology, search.best_ns
    if not _is_beyond_search(request):
        return ""
    ratio = best_ns / bound_ns if best_ns is not None and bound_ns else math.inf
    if registry.find(Synthesizer, name).offer.adapts:
        is_tried = _is_searched_if_far(topology) or not search.too_large
        if best_ns is not None:
            is_tried = _is_searched_if_far(topology) and ratio > _SEARCHED_FROM_RATIO
            is_tried &= not _has_within_option(name, registry)
        return "" if is_tried else "large network: its search would take minutes"
    is_tried = ratio > _FAR_FROM_BOUND and _count_pairs(topology) <= _MAX_DIRECT_PAIRS
    if best_ns is None or is_tried or not math.isinf(_estimate_ns(name, registry, request)):
        return ""
    return "large network: its time cannot be estimated"


def _get_first_message(error: HubError) -> str:
    return error.diagnostics[0].message if error.diagnostics else str(error)


def _try(
    request: SynthesisRequest, name: str, registry: Registry, search: _SynthesizerSearch
) -> None:
    """Run one synthesizer, and append its result with its time in ns to `search.candidates`.

    If there is a candidate and the synthesizer has the option `within`, the value of this option is
    the best time so far. The budget is a part of `search.budget`. Progress is not reported. The
    result is not yet fitted to the runtime of the request.

    A complete result is simulated with `request.simulate`. This counts as work, but no limit is
    checked before it. If its schedule equals the fastest one that the synthesizer simulated, the
    time of that simulation is used instead. A partial result (steps of some ranks only) is not
    simulated. Without a simulated time, or if it is 0, the candidate has the time in the result.

    Errors of the synthesizer (`HubError`) and of the simulator pass through, and nothing is
    appended.
    """
    # Reuses the simulation if the synthesizer has simulated its result itself.
    stopwatch = Stopwatch(request.simulate)
    best_ns = search.best_ns
    has_limit = best_ns is not None and _has_within_option(name, registry)
    budget = search.budget.part()
    attempt = replace(
        request,
        simulate=stopwatch.time_ns,
        progress=lambda fraction, label: None,
        hub=registry,
        budget=budget,
        backend="",
        # Only the best candidates are fitted to the runtime, which may take seconds each.
        target=request.target and replace(request.target, is_fitted_later=True),
    )
    options = {_WITHIN: f"{best_ns}ns"} if has_limit else None
    result = hub_core.run_synthesizer(attempt, name, options)
    simulated_ns = None
    if not result.is_partial:
        algorithm = result.algorithm
        simulated_ns = budget.simulated(
            len(algorithm.steps), lambda: stopwatch.time_ns(algorithm), is_checked=False
        )
    search.candidates.append(
        _SynthesizerResult(name, result, simulated_ns or result.time_ns, attempt)
    )


def _sort_by_estimate(names: list[str], registry: Registry, request: SynthesisRequest) -> list[str]:
    """Return the names in the order in which the synthesizers are tried: by estimated time.

    An adaptive synthesizer adapts to the links; any other has a fixed pattern. The option `within`
    limits the time of the result of a synthesizer. The sort keys are, in this order (at equal keys
    the order of `names` is kept):

    1. Deferred ones last.
    2. Time in ns. Adaptive: the lower bound of `lower_bound_ns`, or 0 if unknown. Fixed pattern:
       the estimate of its offer, or infinite if unknown.
    3. Fixed patterns without an estimator last.
    4. Synthesizers with the option `within` last.

    Let `pairs` be the number of NPUs times the number of links. A synthesizer is deferred if one of
    these holds:

    - It has the option `within`, and `pairs` is above 100 000.
    - It is adaptive, and a search may take minutes (`_is_beyond_search`).
    - It is a fixed pattern whose estimate is above twice the bound or infinite, a search may take
      minutes, the network has no switches, and `pairs` is at most 64 000 000.
    """
    topology = request.topology
    is_large = _is_large(topology)
    is_beyond_search = _is_beyond_search(request)
    is_searched_if_far = _is_searched_if_far(topology)
    size = request.collective_bytes
    bound_ns = lower_bound_ns(request.collective, topology, size, request.npus) or 0.0

    def rank(name: str) -> tuple[bool, float, bool, bool]:
        takes_a_time = _has_within_option(name, registry)
        offer = registry.find(Synthesizer, name).offer
        has_estimate = offer.adapts or bool(offer.estimate)
        time_ns = bound_ns if offer.adapts else _estimate_ns(name, registry, request)
        is_far = is_searched_if_far and time_ns > _FAR_FROM_BOUND * bound_ns
        is_late = (takes_a_time and is_large) or (is_beyond_search and (offer.adapts or is_far))
        return is_late, time_ns, not has_estimate, takes_a_time

    return sorted(names, key=rank)


def _is_large(topology: Topology) -> bool:
    """Return whether NPUs times links exceed `_MAX_PAIRS`, so that some synthesizers may take
    minutes.
    """
    return _count_pairs(topology) > _MAX_PAIRS


def _count_pairs(topology: Topology) -> int:
    return topology.num_npus * topology.num_links


def _is_beyond_search(request: SynthesisRequest) -> bool:
    """Return whether searches that adapt to the links may take minutes on this network.

    They may if NPUs times links exceed `_MAX_SEARCHED_PAIRS`. If the network has switches,
    or for an all-to-all, they also may if the square of the number of NPUs exceeds
    `_MAX_SEARCHED_ROUTES`.
    """
    topology = request.topology
    has_routes = topology.num_nodes > topology.num_npus
    has_routes |= request.collective.kind is CollectiveKind.ALL_TO_ALL
    if has_routes and topology.num_npus**2 > _MAX_SEARCHED_ROUTES:
        return True
    return _count_pairs(topology) > _MAX_SEARCHED_PAIRS


def _is_searched_if_far(topology: Topology) -> bool:
    """Return whether synthesizers that search are tried if fixed patterns are far from the bound.

    True on a network without switches in which NPUs times links are at most
    `_MAX_DIRECT_PAIRS`.
    """
    is_direct = topology.num_nodes == topology.num_npus
    return is_direct and _count_pairs(topology) <= _MAX_DIRECT_PAIRS


def _estimate_ns(name: str, registry: Registry, request: SynthesisRequest) -> float:
    """Return the time in ns that the synthesizer `name` estimates for a request.

    The result is infinite if the synthesizer has no estimator, if it cannot estimate this
    request, and for any `HubError`, such as an unknown name or an unsupported collective. The
    error is dropped here: it appears again when the synthesizer is tried.
    """
    try:
        estimate = hub_core.estimate_synthesis(name, request, registry)
    except HubError:
        # The reason is reported when the synthesizer is tried.
        return math.inf
    return math.inf if estimate is None else float(estimate)


def _has_within_option(name: str, registry: Registry) -> bool:
    options = registry.find(Synthesizer, name).offer.options
    return _WITHIN in {option.name for option in fields(options)}


def _collect_statistics(
    best: _SynthesizerResult, search: _SynthesizerSearch
) -> dict[str, JsonValue]:
    """Return the statistics of the search and those of the winner `best`, as one dict.

    - `winner`: name of its synthesizer
    - `ahead of`: name of the fastest other candidate that is at least as slow as the winner,
      and its lead in percent of the winner's time (`ring by 3.1 %`); missing without such a
      candidate, and if the winner takes 0 ns
    - `fewer messages`: only if the fastest candidate is faster than the winner and has more
      messages; both numbers and the difference in percent
    - `candidates`: how many of the synthesizers in `search.names` gave a candidate, as text
    - `interrupted`: True, only after Ctrl-C

    Then come the winner's own statistics; they replace entries of the same name. Nothing is
    changed.
    """
    slower = [
        row for row in search.sort_by_time() if row is not best and row.time_ns >= best.time_ns
    ]
    statistics: dict[str, JsonValue] = {"winner": best.name}
    if slower and best.time_ns > 0:
        lead_percent = 100 * (slower[0].time_ns / best.time_ns - 1)
        statistics["ahead of"] = f"{slower[0].name} by {lead_percent:.1f} %"
    fastest = search.sort_by_time()[0]
    if fastest.time_ns < best.time_ns and fastest.messages > best.messages:
        behind_percent = 100 * (1 - fastest.time_ns / best.time_ns)
        statistics["fewer messages"] = (
            f"{best.messages} instead of {fastest.messages} of {fastest.name}, which is "
            f"{behind_percent:.2f} % faster (-O objective=time)"
        )
    statistics["candidates"] = f"{len(search.candidates)} of {len(search.names)} fit and were made"
    if search.is_interrupted:
        statistics["interrupted"] = True
    return {**statistics, **best.result.statistics}
