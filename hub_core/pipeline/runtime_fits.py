"""Constrain a synthesis to the limits of runtimes, and fit its results into these limits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd, lcm

import numpy as np

from hub_core.model import Algorithm, HubError, InputError
from hub_core.network import Topology
from hub_core.pipeline.calls import blame, misfit
from hub_core.pipeline.runtimes import ChosenRuntime, Variants
from hub_core.plugin_api import (
    PREFERENCE_TOLERANCE,
    TIE,
    TOO_LARGE,
    UNSERVED,
    FittedAlgorithm,
    LimitError,
    Merit,
    RuntimeFit,
    SynthesisRequest,
    SynthesisResult,
    SynthesisTarget,
    UnitLimits,
    choose_best,
    describe_multiple,
    find_tolerance,
    format_size,
    resolve,
)
from hub_core.verification import in_largest_units

# A retry at least halves the number of units, so that few are needed.
_MAX_RETRIES = 12


@dataclass(frozen=True, slots=True)
class _SizedCalls:
    """Calls that a program must serve: sizes in bytes, of which the time of the first counts.

    `unit_bytes`: smallest part that all runtimes address, 0 for any; `granules`: number of these
    parts that the numbers of chunks must divide. `is_quick`: resources may be those of any program
    that a runtime executes.
    """

    topology: Topology
    sizes: tuple[int, ...]
    unit_bytes: int
    granules: int
    is_quick: bool


def create_target(
    chosen: Sequence[ChosenRuntime],
    topology: Topology,
    sizes: Sequence[int],
    variants: Variants,
    *,
    is_quick: bool = False,
) -> SynthesisTarget:
    """Return the target of a synthesis for runtimes: search limits and the function `fit`.

    `chosen`: at least one runtime. `sizes`: bytes that the algorithm must serve; times are computed
    for the first one. `variants`: lists the forms of an algorithm. `is_quick`: `fit` may report the
    resources of any program that the runtime executes, not of the best one.

    - The size of a chunk is a multiple of the least common multiple of all `unit_bytes`; any size
      if no runtime has `unit_bytes`. Raises `InputError` (`size-not-served`) for the first of
      `sizes` that is no such multiple.
    - The maximum number of units is the smallest `max_units`, None if no runtime has one.
    - `max_chunks`, the messages that a rank may receive, is the largest limit of a runtime
      (`_count_messages`), None if a runtime has no limit.
    - `fit` uses the first runtime that executes the algorithm. If none does, it raises the
      `InputError` of the first runtime.
    - `limits` and `replace_limits` are None for several runtimes.
    """
    names = " and ".join(one.runtime.name for one in chosen)
    unit_bytes = lcm(*(one.runtime.limits.unit_bytes or 1 for one in chosen))
    if not any(one.runtime.limits.unit_bytes for one in chosen):
        unit_bytes = 0
    for size in sizes:
        if reason := describe_multiple(unit_bytes, names, size):
            raise InputError(reason, cure="choose one of these sizes", code=UNSERVED)
    granules = gcd(*(size // unit_bytes for size in sizes)) if unit_bytes else 0
    max_units = [one.runtime.limits.max_units for one in chosen]
    max_messages = [_count_messages(one) for one in chosen]
    calls = _SizedCalls(topology, tuple(sizes), unit_bytes, granules, is_quick)
    vary = partial(_replace_limits, chosen[0], calls, variants)
    return SynthesisTarget(
        names,
        UnitLimits(
            granules,
            min((one for one in max_units if one is not None), default=None),
            unit_bytes,
            sizes[0],
            names,
        ),
        None if None in max_messages else max(one for one in max_messages if one is not None),
        partial(_fit, tuple(chosen), calls, variants),
        limits=chosen[0].runtime.limits if len(chosen) == 1 else None,
        replace_limits=vary if len(chosen) == 1 else None,
        text=" and ".join(one.text for one in chosen),
    )


def _replace_limits(
    chosen: ChosenRuntime, calls: _SizedCalls, variants: Variants, limits: Mapping[str, int | None]
) -> SynthesisTarget:
    """Create the target of `chosen` in which `limits` replace its limits of these resources.

    A limit of None means that the resource is unlimited. The limits of other resources, the
    network and the sizes of `calls`, and `variants` remain. Raise `InputError`
    (`size-not-served`) if a size is not served.
    """
    limited = [chosen.with_limits(limits)]
    return create_target(limited, calls.topology, calls.sizes, variants, is_quick=calls.is_quick)


def _count_messages(chosen: ChosenRuntime) -> int | None:
    """Return the maximum number of messages that a rank may receive in a search, or None.

    None means no limit. The number is a quarter of the limit of operations of a rank,
    rounded down, at least 1. The reason: a rank receives every chunk and usually sends it
    too, and two copies of the algorithm are often faster than one. If the runtime limits no
    operations of a rank, blocks times operations of a block is used instead; the result is
    None if one of these two has no limit either.
    """
    limits = chosen.runtime.limits
    operations = limits.max_operations
    if operations is None and limits.max_blocks and limits.max_block_operations:
        operations = limits.max_blocks * limits.max_block_operations
    return None if operations is None else max(1, operations // 4)


def _fit(
    chosen: tuple[ChosenRuntime, ...], calls: _SizedCalls, variants: Variants, algorithm: Algorithm
) -> FittedAlgorithm:
    """Return the best form of an algorithm that one of the runtimes executes.

    `variants` is called with the algorithm in its largest units, and yields (form, time in
    ns, text) for each form. Forms are considered by ascending time, then number of steps.

    The runtimes in `chosen` (at least one) are tried in order. The first one that executes
    any form is used, even if a later one executes a faster form. `_choose_variant` chooses
    among its forms. If no runtime executes any, the `InputError` of the first runtime is
    raised. Any other error is passed on at once, without trying further runtimes.
    """
    rows = sorted(
        variants(in_largest_units(algorithm)), key=lambda row: (row[1], len(row[0].steps))
    )
    reason: InputError | None = None
    for one in chosen:
        try:
            return _choose_variant(one, calls, rows)
        except InputError as error:
            reason = reason or error
    assert reason is not None
    raise reason


def _choose_variant(
    chosen: ChosenRuntime, calls: _SizedCalls, rows: Sequence[tuple[Algorithm, int, str]]
) -> FittedAlgorithm:
    """Return the best form of an algorithm that the runtime executes, in its largest units.

    `rows`: (form, time in ns, text) by ascending time. They are examined in order:

    - The first form that the runtime executes is a candidate. So is each later one with fewer steps
      than all candidates before it.
    - The search ends at a form more than 1 % slower than the first candidate, or more than 5 % if
      all candidates exceed the limits that the runtime prefers.
    - After a form that is too large, forms with as many or more steps are skipped.

    The candidate with the least excess of the preferred limits wins, then the one with the fewest
    steps, then with the least time (`choose_best`). Without a candidate, raises the `InputError` of
    the first refused form; without `rows`, `InputError` (`runtime-limit`). Other errors pass
    through.
    """
    fitted: list[FittedAlgorithm] = []
    reason: InputError | None = None
    fewest_refused: int | None = None
    for variant, time_ns, text in rows:
        if fitted:
            tolerance = find_tolerance([one.merit for one in fitted])
            if time_ns > (1 + tolerance) * fitted[0].time_ns:
                break
            if len(variant.steps) >= min(one.merit.messages for one in fitted):
                continue
        # A variant with more steps than a refused one would be refused too.
        if fewest_refused is not None and len(variant.steps) >= fewest_refused:
            continue
        variant = in_largest_units(variant)
        try:
            fit = _check_fit(chosen, calls, variant)
        except InputError as error:
            reason = reason or error
            if error.diagnostics[0].code == TOO_LARGE:
                fewest_refused = len(variant.steps)
            continue
        excess = fit.compute_excess(chosen.runtime.limits)
        merit = Merit(time_ns, len(variant.steps), excess)
        fitted.append(FittedAlgorithm(variant, time_ns, fit, text, merit))
    if not fitted:
        raise reason or InputError("the algorithm has no time", code=TOO_LARGE)
    return fitted[choose_best([one.merit for one in fitted])]


def _check_fit(chosen: ChosenRuntime, calls: _SizedCalls, algorithm: Algorithm) -> RuntimeFit:
    """Return the resources that an algorithm needs on a runtime, which must execute it.

    The checks are made in this order:

    1. The number of units divides every size, else `InputError` (`size-not-served`).
    2. A lower bound of the operations of a rank is within the limit, else `LimitError`.
    3. The writer computes the resources for the largest size; its `HubError` passes through, and
       other exceptions become `PluginError`. So does a result that is no `RuntimeFit`.
    4. The resources are within the limits, else `LimitError` for the first exceeded one.
    5. The units of the result divide every size, else `InputError` (`size-not-served`).
    6. The largest size is at most the `max_bytes` of the result, above which connections fill up,
       else `LimitError` with an empty `resource`.

    `LimitError` is an `InputError` (`runtime-limit`) that names the exceeded `resource`.
    """
    runtime, limits = chosen.runtime, chosen.runtime.limits
    _check_units(runtime.name, calls, algorithm.collective.unit_count)
    if limits.max_operations is not None:
        operations = count_least_operations(algorithm)
        if operations > limits.max_operations:
            excess = f"at least {operations} operations of a rank, limit {limits.max_operations}"
            excess += " (the least for these messages; other algorithms may need fewer)"
            raise _build_excess(runtime.name, excess, "operations")
    largest = max(calls.sizes)
    with blame(chosen.writer):
        # A runtime without such options measures its program without regard to limits.
        given = (limits,) if runtime.limit_options else ()
        how = {"is_quick": True} if calls.is_quick and runtime.fits_quickly else {}
        fit = resolve(runtime.fit)(algorithm, largest, calls.topology, *given, **how)
    if not isinstance(fit, RuntimeFit):
        raise misfit(chosen.writer, f"fitted an algorithm by {type(fit).__name__}")
    resource = fit.find_excess(limits)
    if resource:
        raise _build_excess(runtime.name, fit.describe_excess(limits), resource)
    _check_units(runtime.name, calls, fit.units)
    if fit.max_bytes is not None and fit.max_bytes < largest:
        excess = f"sizes up to {format_size(fit.max_bytes)}, above which connections fill up"
        raise _build_excess(runtime.name, excess, "")
    return fit


def count_least_operations(algorithm: Algorithm) -> int:
    """Return a lower bound on the operations of the rank that needs the most; 0 without steps.

    A rank needs its sends plus its receives minus x: the smaller one of the number of sends with a
    data dependency on a receive and the number of receives that such a send depends on.
    """
    steps = algorithm.steps
    ranks = algorithm.num_ranks
    awaited, waiting = steps.data_edges
    is_forwarded = steps.sends[waiting] & steps.receives[awaited]
    messages = np.bincount(steps.rank[steps.sends | steps.receives], minlength=ranks)
    fused = [
        np.bincount(steps.rank[np.unique(rows[is_forwarded])], minlength=ranks)
        for rows in (waiting, awaited)
    ]
    return int((messages - np.minimum(*fused)).max(initial=0))


def _check_units(name: str, calls: _SizedCalls, units: int) -> None:
    """Raise `InputError` unless the units divide every size, with the nearest served sizes."""
    if calls.granules % units:
        limits = UnitLimits(calls.granules, None, calls.unit_bytes, calls.sizes[0], name)
        raise limits.build_error(units)


def _build_excess(runtime: str, excess: str, resource: str) -> LimitError:
    return LimitError(f"{runtime} cannot run the algorithm: {excess}").about(resource)


def fit_result(
    request: SynthesisRequest,
    result: SynthesisResult,
    search_again: Callable[[SynthesisRequest], SynthesisResult],
) -> SynthesisResult:
    """Return the best result that a runtime executes, with its resources and statistics.

    `request` must have a target. Candidates are `result`, then results with fewer and fewer units
    from `search_again` (`list_tries`).

    1. The start is `result`. A candidate replaces it if it has fewer steps and at most 1.01 times
       the lowest time, itself included. The first candidate that does not ends this step.
    2. The start, this candidate and all later ones are fitted in order. Those with an `InputError`
       are skipped. The step ends after one within the preferred limits, or one more than 5 % slower
       than the fastest fitted one.
    3. `choose_best` chooses from the fitted ones.

    If none fits, the last `runtime-limit` error is raised, or the first error without one.
    """
    target = request.target
    assert target is not None
    tries = list_tries(request, result, search_again)
    best, following, fastest_ns = next(tries), None, result.time_ns
    for following in tries:
        fastest_ns = min(fastest_ns, following.time_ns)
        is_fast = following.time_ns <= (1 + TIE) * fastest_ns
        if not (is_fast and len(following.algorithm.steps) < len(best.algorithm.steps)):
            break
        best, following = following, None
    reason: InputError | None = None
    fits: list[tuple[SynthesisResult, FittedAlgorithm]] = []
    started = [best] if following is None else [best, following]
    for each in itertools.chain(started, tries):
        try:
            fitted = target.fit(each.algorithm)
        except InputError as error:
            # The error of the try with the fewest units states the least resources.
            is_limit = error.diagnostics[0].code == TOO_LARGE
            reason = error if reason is None or is_limit else reason
            continue
        fits.append((each, fitted))
        fastest_ns = min(one.time_ns for _, one in fits)
        is_slow = fitted.time_ns > (1 + PREFERENCE_TOLERANCE) * fastest_ns
        if is_slow or fitted.merit.excess <= 1:
            break
    if not fits:
        assert reason is not None
        raise reason
    return _apply_fit(*fits[choose_best([one.merit for _, one in fits])], target)


def list_tries(
    request: SynthesisRequest,
    result: SynthesisResult,
    search_again: Callable[[SynthesisRequest], SynthesisResult],
) -> Iterator[SynthesisResult]:
    """Yield `result`, then up to 12 results of repeated searches with fewer units each.

    `search_again` runs when the next result is requested. Its request has a target that permits at
    most half of the units (and chunks) of the previous result, rounded down. Units of a result are
    the largest possible ones (`in_largest_units`). `request` must have a target. The iteration ends
    without an error if the search raises a `HubError`, or if its result has no fewer units.
    """
    target = request.target
    assert target is not None
    yield result
    units = in_largest_units(result.algorithm).collective.unit_count
    for _ in range(_MAX_RETRIES):
        try:
            fewer = search_again(replace(request, target=target.with_fewer(units // 2)))
        except HubError:
            return
        before, units = units, in_largest_units(fewer.algorithm).collective.unit_count
        if units >= before:
            return
        yield fewer


def _apply_fit(
    result: SynthesisResult, fitted: FittedAlgorithm, target: SynthesisTarget
) -> SynthesisResult:
    """Return a copy of `result` with the algorithm, time, resources (`fit`) and merit of `fitted`.

    - The time is `fitted.time_ns`, or that of `result` if it is 0. The merit is a copy of
      `fitted.merit` with this time.
    - The statistics are a copy of those of `result`. The entry `runtime` becomes the `text` of the
      target, or the name of its runtime if `text` is empty, with blocks and operations of a rank,
      channels and chunks. The entry `variant` becomes `fitted.variant`, unless that is empty.
    - All other fields, such as bounds, are those of `result`.
    """
    fit = fitted.fit
    text = (
        f"{target.text or target.runtime}: {fit.blocks} thread blocks and {fit.operations} "
        f"operations of a rank, {fit.channels} channels, {fit.units} chunks"
    )
    statistics = {**result.statistics, "runtime": text}
    if fitted.variant:
        statistics["variant"] = fitted.variant
    return replace(
        result,
        algorithm=fitted.algorithm,
        time_ns=fitted.time_ns or result.time_ns,
        statistics=statistics,
        fit=fit,
        merit=replace(fitted.merit, time_ns=fitted.time_ns or result.time_ns),
    )
