"""A portfolio: every synthesizer that fits makes its algorithm, and the fastest is handed over.

The judge is the simulator of the request, for all alike; where there is none, each synthesizer's
own account.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import hub_core
from collhub_tuning.options import AutoOptions
from collhub_tuning.stopwatch import Stopwatch
from hub_core import HubError, InputError, Registry, UsageError
from hub_core.model import JsonValue
from hub_core.plugin_api import SynthesisRequest, SynthesisResult, Synthesizer

NAME = "auto"
# The option of those who spend less where a time is reached already. They come last.
_WITHIN = "within"
# Of what does not fit, so much is told in one line.
_MOST_REASONS, _MOST_NAMED = 4, 3


@dataclass(frozen=True, slots=True)
class _Candidate:
    """What one synthesizer made.

    `time_ns`: by the simulator that judges, else by the synthesizer's own account.
    """

    name: str
    result: SynthesisResult
    time_ns: int


def synthesize(request: SynthesisRequest, options: AutoOptions) -> SynthesisResult:
    """The fastest algorithm of all synthesizers that fit.

    Ctrl-C ends the search with the best so far. Raises `InputError` where none fits, `UsageError`
    for candidates that are not there.
    """
    registry = hub_core.discover()
    names = _names(options.candidates, registry)
    failures: dict[str, str] = {}
    found: list[_Candidate] = []
    is_interrupted = False
    try:
        found.extend(_candidates(request, names, registry, options.budget, failures))
    except KeyboardInterrupt:
        if not found:
            raise
        # The best so far is an answer, and is said to be cut short.
        is_interrupted = True
    if not found:
        raise InputError(f"no synthesizer fits: {_listed(failures)}", code="nothing-fits")
    # Of equal ones the first by its place among all, which is the same on every run.
    best = min(found, key=lambda one: (one.time_ns, names.index(one.name)))
    statistics = _statistics(best, found, len(names), is_interrupted)
    bounds = _bounds_ns(best, found)
    return replace(best.result, time_ns=best.time_ns, statistics=statistics, bounds_ns=bounds)


def _bounds_ns(best: _Candidate, found: Sequence[_Candidate]) -> dict[str, int]:
    """Of each kind the latest bound: all that the winner proves, and what fits of the others'.

    What others prove may hold for messages of their sizes alone.
    """
    bounds: dict[str, int] = {}
    for one in found:
        for kind, bound_ns in one.result.bounds_ns.items():
            if one is best or bound_ns <= best.time_ns:
                bounds[kind] = max(bound_ns, bounds.get(kind, 0))
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


def _candidates(
    request: SynthesisRequest,
    names: list[str],
    registry: Registry,
    budget_s: float,
    failures: dict[str, str],
) -> Iterator[_Candidate]:
    """Each candidate as it is made; the reason of those that do not fit is noted."""
    start = time.perf_counter()
    least_ns: int | None = None
    for place, name in enumerate(_in_turn(names, registry)):
        if place and time.perf_counter() - start > budget_s:
            return
        request.progress(place / len(names), name)
        # What a candidate has asked for is known.
        stopwatch = Stopwatch(request.simulate)
        try:
            result = _made(request, name, registry, stopwatch, least_ns)
        except HubError as error:
            failures[name] = error.diagnostics[0].message if error.diagnostics else str(error)
            continue
        judged = None if result.is_partial else stopwatch.time_ns(result.algorithm)
        time_ns = judged or result.time_ns
        least_ns = time_ns if least_ns is None else min(least_ns, time_ns)
        yield _Candidate(name, result, time_ns)


def _in_turn(names: list[str], registry: Registry) -> list[str]:
    """The candidates with those last that take a time that is reached already."""
    return sorted(names, key=lambda name: _takes_a_time(name, registry))


def _takes_a_time(name: str, registry: Registry) -> bool:
    options = registry.find(Synthesizer, name).offer.options
    return _WITHIN in {field.name for field in fields(options)}


def _made(
    request: SynthesisRequest,
    name: str,
    registry: Registry,
    stopwatch: Stopwatch,
    least_ns: int | None,
) -> SynthesisResult:
    """What a synthesizer makes; `least_ns`: the fastest of those before it."""
    is_told = least_ns is not None and _takes_a_time(name, registry)
    return hub_core.synthesize(
        request.collective,
        request.topology,
        request.collective_bytes,
        name=name,
        options={_WITHIN: f"{least_ns}ns"} if is_told else None,
        npus=request.npus,
        occupancy=request.occupancy,
        wanted=request.wanted,
        judge=stopwatch.time_ns,
        registry=registry,
    )


def _statistics(
    best: _Candidate, found: list[_Candidate], total: int, is_interrupted: bool
) -> dict[str, JsonValue]:
    """Who won, by how much, and what the winner says of its choice."""
    others = sorted((one for one in found if one is not best), key=lambda one: one.time_ns)
    told: dict[str, JsonValue] = {"winner": best.name}
    if others:
        ahead = 100 * (others[0].time_ns / best.time_ns - 1)
        told["ahead of"] = f"{others[0].name} by {ahead:.1f} %"
    told["candidates"] = f"{len(found)} of {total} fit and were made"
    if is_interrupted:
        told["interrupted"] = True
    return {**told, **best.result.statistics}
