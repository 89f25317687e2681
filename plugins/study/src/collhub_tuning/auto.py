"""A portfolio: every synthesizer that fits makes its algorithm, and the fastest is handed over.

All are judged by the simulator of the request; without one, by each synthesizer's own account. The
search is limited by counted work, never by the clock unless the user sets a time limit: the same
request gives the same answer on every machine and under every load. Work goes first to those whose
estimated time is least. One that is at work when the limit is reached ends with its best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import hub_core
from collhub_tuning.options import AutoOptions
from collhub_tuning.stopwatch import Stopwatch
from hub_core import (
    Diagnostic,
    HubError,
    InputError,
    Registry,
    Severity,
    UsageError,
    run_registry,
)
from hub_core.model import JsonValue, PluginError, format_time
from hub_core.network import lower_bound_ns
from hub_core.plugin_api import (
    ONE_SIZE,
    BudgetReached,
    SearchBudget,
    SynthesisRequest,
    SynthesisResult,
    Synthesizer,
)
from hub_core.verification import VerificationInput, verify_input

NAME = "auto"
# The option of synthesizers that do less work if a time has been reached already.
_WITHIN = "within"
# Reasons of those that do not fit: so many are named in one line.
_MOST_REASONS, _MOST_NAMED = 4, 3
# (NPU, link) pairs above which a synthesizer with the option `within` may take minutes.
_MOST_PAIRS = 100_000


@dataclass(frozen=True, slots=True)
class _Candidate:
    """What one synthesizer made.

    `time_ns`: by the simulator that judges, else by the synthesizer's own account.
    """

    name: str
    result: SynthesisResult
    time_ns: int


@dataclass(slots=True)
class _Search:
    """What is found while the synthesizers are tried one after another.

    `names`: all synthesizers in the order of the registry; `found`: what they made; `failures`: why
    others do not fit; `not_tried`: why others were not begun; `warnings`: of those that crashed.
    """

    names: list[str]
    budget: SearchBudget
    found: list[_Candidate] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    not_tried: dict[str, str] = field(default_factory=dict)
    warnings: list[Diagnostic] = field(default_factory=list)
    is_interrupted: bool = False

    def by_time(self) -> list[_Candidate]:
        """The candidates, fastest first; of equal ones by their place among all names."""
        return sorted(self.found, key=lambda one: (one.time_ns, self.names.index(one.name)))


def synthesize(request: SynthesisRequest, options: AutoOptions) -> SynthesisResult:
    """The fastest algorithm of all synthesizers that fit, and whose contents are correct.

    Ctrl-C and limits end the search with the best so far. Raises `InputError` if none fits or none
    ended in time, `UsageError` for candidates that are not there.
    """
    registry = request.hub or run_registry()
    search = _Search(_names(options.candidates, registry), request.budget.part(options.work))
    try:
        _try_all(request, registry, search)
    except KeyboardInterrupt:
        if not search.found:
            raise
        # The best so far is an answer, and the report says that the search was interrupted.
        search.is_interrupted = True
    if not search.found:
        if search.not_tried:
            reason = next(iter(search.not_tried.values()))
            raise InputError(
                f"no synthesizer finished an algorithm: {reason}",
                cure="allow more time",
                code="limit-reached",
            )
        reasons = _listed(search.failures)
        raise InputError(f"no synthesizer fits: {reasons}", code="nothing-fits")
    best = _best(search)
    return replace(
        best.result,
        time_ns=best.time_ns,
        statistics=_statistics(best, search),
        bounds_ns=_bounds_ns(best, search.found),
        not_tried=search.not_tried | dict(best.result.not_tried),
        diagnostics=(*search.warnings, *best.result.diagnostics),
    )


def _best(search: _Search) -> _Candidate:
    """The fastest candidate that verification accepts; a warning for each faster one.

    If it accepts none, the fastest.
    """
    candidates = search.by_time()
    for one in candidates:
        # Steps of some ranks alone cannot be verified.
        if one.result.is_partial:
            return one
        report = verify_input(VerificationInput(one.result.algorithm), claimed_only=True)
        if report.ok:
            return one
        cause = next(each for each in report.diagnostics if each.severity is Severity.ERROR)
        is_too_large = cause.code == "too-large"
        what = "could not be checked" if is_too_large else "is wrong"
        message = f"the algorithm of {one.name} ({format_time(one.time_ns)}) {what}: "
        code = "not-checked" if is_too_large else "wrong-candidate"
        search.warnings.append(Diagnostic(code, message + cause.message, Severity.WARNING))
    return candidates[0]


def _bounds_ns(best: _Candidate, found: Sequence[_Candidate]) -> dict[str, int]:
    """Of each name the largest bound.

    Those for messages of one size are the winner's only. All others hold for every algorithm: one
    above the winner's time is a bug, which whoever asked finds and reports.
    """
    bounds: dict[str, int] = {}
    for one in found:
        for name, bound_ns in one.result.bounds_ns.items():
            if one is best or not name.endswith(ONE_SIZE):
                bounds[name] = max(bound_ns, bounds.get(name, 0))
    return bounds


def _listed(failures: dict[str, str]) -> str:
    """Reasons, the most frequent first, each with some of the synthesizers that gave it."""
    alike: dict[str, list[str]] = {}
    for name, reason in failures.items():
        # Most name themselves first.
        alike.setdefault(reason.removeprefix(f"{name} "), []).append(name)
    said = []
    for reason, names in sorted(alike.items(), key=lambda pair: -len(pair[1])):
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        said.append(f"{', '.join(names[:_MOST_NAMED])}{more}: {reason}")
    hidden = len(said) - _MOST_REASONS
    others = [f"and {hidden} other reasons"] if hidden > 0 else []
    return "; ".join([*said[:_MOST_REASONS], *others])


def _names(text: str, registry: Registry) -> list[str]:
    """The candidates, in the order in which they are tried. Raises `UsageError`."""
    known = [provided.name for provided in registry.all(Synthesizer) if provided.name != NAME]
    if text == "all":
        return known
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name == NAME:
            raise UsageError(f"option candidates: {NAME} cannot be a candidate of itself")
        # Says what is closest.
        registry.find(Synthesizer, name)
    return names


def _try_all(request: SynthesisRequest, registry: Registry, search: _Search) -> None:
    """Try each synthesizer, best first, while the limits allow."""
    order = _best_first(search.names, registry, request)
    for place, name in enumerate(order):
        reason = search.budget.reason
        # Without an answer, the limit of work leaves every synthesizer one simulation.
        if reason and (search.found or search.budget.left_s == 0.0):
            search.not_tried |= dict.fromkeys(order[place:], reason)
            return
        try:
            request.progress(place / len(order), name)
            _try(request, name, registry, search)
        except BudgetReached:
            search.not_tried |= dict.fromkeys(order[place:], request.budget.reason)
            return
        except PluginError as error:
            search.failures[name] = _first_message(error)
            search.warnings += [
                replace(found, severity=Severity.WARNING) for found in error.diagnostics
            ]
        except HubError as error:
            search.failures[name] = _first_message(error)


def _first_message(error: HubError) -> str:
    return error.diagnostics[0].message if error.diagnostics else str(error)


def _try(request: SynthesisRequest, name: str, registry: Registry, search: _Search) -> None:
    """Add what a synthesizer makes to the candidates. Raises `HubError`."""
    # What a candidate has asked for is known.
    stopwatch = Stopwatch(request.simulate)
    least_ns = min((one.time_ns for one in search.found), default=None)
    is_told = least_ns is not None and _takes_a_time(name, registry)
    budget = search.budget.part()
    result = hub_core.synthesize(
        request.collective,
        request.topology,
        request.collective_bytes,
        name=name,
        options={_WITHIN: f"{least_ns}ns"} if is_told else None,
        npus=request.npus,
        occupancy=request.occupancy,
        wanted=request.wanted,
        judge=stopwatch.time_ns,
        progress=lambda fraction, what: None,
        registry=registry,
        budget=budget,
    )
    judged = None
    if not result.is_partial:
        algorithm = result.algorithm
        judged = budget.simulated(
            len(algorithm.steps), lambda: stopwatch.time_ns(algorithm), is_checked=False
        )
    search.found.append(_Candidate(name, result, judged or result.time_ns))


def _best_first(names: list[str], registry: Registry, request: SynthesisRequest) -> list[str]:
    """The names in the order in which they are tried: by estimated time.

    The estimate of fixed patterns is that of their offer, by the alpha-beta model on the links of
    the topology. Those that adapt to the links are expected at the core's lower bound of the
    network; of equals those that take a time that has been reached come later. A pattern without an
    estimate is tried behind all others, and those that never state one come last. On large
    networks, those that take a time may need minutes and are tried last of all.
    """
    topology = request.topology
    is_large = topology.num_npus * topology.num_links > _MOST_PAIRS
    size = request.collective_bytes
    bound_ns = lower_bound_ns(request.collective, topology, size, request.npus) or 0.0

    def rank(name: str) -> tuple[bool, float, bool, bool]:
        takes_a_time, offer = _takes_a_time(name, registry), registry.find(Synthesizer, name).offer
        has_estimate = offer.adapts or bool(offer.estimate)
        time_ns = bound_ns if offer.adapts else _estimated_ns(name, registry, request)
        return takes_a_time and is_large, time_ns, not has_estimate, takes_a_time

    return sorted(names, key=rank)


def _estimated_ns(name: str, registry: Registry, request: SynthesisRequest) -> float:
    """Expected time of a fixed pattern in nanoseconds; infinite if none is known."""
    try:
        estimate = hub_core.estimate_synthesis(name, request, registry)
    except HubError:
        # Why it does not fit, or fails, is reported when it is tried.
        return math.inf
    return math.inf if estimate is None else float(estimate)


def _takes_a_time(name: str, registry: Registry) -> bool:
    options = registry.find(Synthesizer, name).offer.options
    return _WITHIN in {one.name for one in fields(options)}


def _statistics(best: _Candidate, search: _Search) -> dict[str, JsonValue]:
    """Who won, by how much, what was not tried, and what the winner reports of its choice."""
    others = [one for one in search.by_time() if one is not best and one.time_ns >= best.time_ns]
    told: dict[str, JsonValue] = {"winner": best.name}
    if others:
        ahead = 100 * (others[0].time_ns / best.time_ns - 1)
        told["ahead of"] = f"{others[0].name} by {ahead:.1f} %"
    told["candidates"] = f"{len(search.found)} of {len(search.names)} fit and were made"
    if search.is_interrupted:
        told["interrupted"] = True
    return {**told, **best.result.statistics}
