"""Synthesize for a runtime: find it, constrain the search, and fit results into its limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import gcd

from hub_core.model import (
    Algorithm,
    CollectiveKind,
    HubError,
    InputError,
    UsageError,
    format_bytes,
)
from hub_core.network import Topology
from hub_core.pipeline.calls import blame, misfit, transform
from hub_core.pipeline.simulation import TimingSource, simulate
from hub_core.plugin_api import (
    IDEAL,
    TIE,
    FittedAlgorithm,
    FormatWriter,
    Runtime,
    RuntimeFit,
    SynthesisRequest,
    SynthesisResult,
    SynthesisTarget,
    UnitLimits,
    resolve,
)
from hub_core.plugin_api.offers import Offer
from hub_core.registry.plugins import Provided, Registry
from hub_core.verification import in_largest_units

# A retry at least halves the number of units, so that few are needed.
_MAX_RETRIES = 12
# Copies of an algorithm, of which the runtime may execute fewer than the fastest number.
_INSTANCES = (16, 8, 4, 2, 1)
_TOO_LARGE, _UNSERVED = "runtime-limit", "size-not-served"


@dataclass(frozen=True, slots=True)
class ChosenRuntime:
    """A runtime and the writer whose files it loads."""

    runtime: Runtime
    writer: Provided[FormatWriter]


def list_runtimes(registry: Registry) -> list[ChosenRuntime]:
    """List the runtimes of all writers, sorted by writer, in the order of each writer."""
    return [
        ChosenRuntime(runtime, writer)
        for writer in registry.all(FormatWriter)
        for runtime in writer.offer.runtimes
    ]


def find_runtime(name: str, registry: Registry) -> ChosenRuntime | None:
    """Return the runtime of this name; None for `ideal`. Raises `UsageError` for another name."""
    if name == IDEAL:
        return None
    chosen = {one.runtime.name: one for one in list_runtimes(registry)}
    if name not in chosen:
        raise UsageError(
            f"no runtime {name!r} is known",
            cure=f"choose one of {', '.join([*chosen, IDEAL])}",
            code="unknown-runtime",
        )
    return chosen[name]


def name_runtime(
    writer: Provided[Offer] | None, options: Mapping[str, str], kind: CollectiveKind
) -> str:
    """Return the name of the runtime that loads the files of a writer with these options.

    It is the first runtime of the writer that can express the collective and whose selecting
    options do not contradict the given ones; `ideal` without one, and without a writer.
    """
    offer = None if writer is None else writer.offer
    for runtime in offer.runtimes if isinstance(offer, FormatWriter) else ():
        selecting = runtime.writer_options
        is_expressible = kind in runtime.collectives
        if is_expressible and all(
            options.get(name, value) == value for name, value in selecting.items()
        ):
            return runtime.name
    return IDEAL


def select_runtime(name: str, writer: Provided[Offer], registry: Registry) -> dict[str, str]:
    """Return the options of a writer that select the runtime `name`; empty if it has no such one.

    Raises `UsageError` for an unknown name.
    """
    chosen = find_runtime(name, registry)
    is_own = chosen is not None and chosen.writer.offer is writer.offer
    return dict(chosen.runtime.writer_options) if chosen is not None and is_own else {}


def describe_unserved(algorithm: Algorithm, runtime: Runtime, size: int) -> str:
    """Describe in one clause why a runtime does not serve calls of `size` bytes, with the nearest
    sizes that it serves; empty if it serves them.

    A program serves multiples of its units times the smallest part that the runtime addresses.
    """
    units = in_largest_units(algorithm).collective.unit_count
    return _describe_multiple(runtime.limits.unit_bytes * units, runtime.name, size)


def _describe_multiple(multiple: int, name: str, size: int) -> str:
    if not multiple or size % multiple == 0:
        return ""
    below = size // multiple * multiple
    nearest = [format_size(one) for one in (below, below + multiple) if one]
    return (
        f"{name} does not serve {format_size(size)}: the algorithm serves multiples of "
        f"{format_size(multiple)}, the nearest are {' and '.join(nearest)}"
    )


def format_size(size: int) -> str:
    """Format a size exactly: with a unit if that divides it, else in bytes."""
    return format_bytes(size) if size % 1024 == 0 else f"{size} bytes"


Variants = Callable[[Algorithm], Iterable[tuple[Algorithm, int, str]]]
"""Function that returns forms of an algorithm with their times in ns and descriptions."""


def create_target(
    chosen: ChosenRuntime,
    topology: Topology,
    sizes: Sequence[int],
    variants: Variants,
) -> SynthesisTarget:
    """Create the target of a synthesis for a runtime and calls of all `sizes` in bytes.

    The first size is the one whose time counts. Raises `InputError` (`size-not-served`) for a size
    that is no multiple of the smallest part that the runtime addresses.
    """
    runtime = chosen.runtime
    unit_bytes = runtime.limits.unit_bytes
    for size in sizes:
        if reason := _describe_multiple(unit_bytes, runtime.name, size):
            raise InputError(reason, cure="choose one of these sizes", code=_UNSERVED)
    granules = gcd(*(size // unit_bytes for size in sizes)) if unit_bytes else 0
    limits = runtime.limits
    operations = limits.max_operations
    if operations is None and limits.max_blocks and limits.max_block_operations:
        operations = limits.max_blocks * limits.max_block_operations
    return SynthesisTarget(
        runtime.name,
        UnitLimits(granules, limits.max_units),
        # A rank receives every chunk, and usually sends it too.
        None if operations is None else max(1, operations // 2),
        partial(_fit, chosen, topology, sizes[0], granules, variants),
    )


def _fit(
    chosen: ChosenRuntime,
    topology: Topology,
    size: int,
    granules: int,
    variants: Variants,
    algorithm: Algorithm,
) -> FittedAlgorithm:
    """Return the fastest variant that the runtime executes; of equally fast ones (within 1 %) the
    one with the fewest steps. Raises `InputError` with the first reason if there is none.
    """
    best: FittedAlgorithm | None = None
    reason: InputError | None = None
    fewest_refused: int | None = None
    for variant, time_ns, text in sorted(
        variants(in_largest_units(algorithm)), key=lambda row: (row[1], len(row[0].steps))
    ):
        if best is not None:
            if time_ns > (1 + TIE) * best.time_ns:
                break
            if len(variant.steps) >= len(best.algorithm.steps):
                continue
        # A variant with more steps than a refused one would be refused too.
        if fewest_refused is not None and len(variant.steps) >= fewest_refused:
            continue
        variant = in_largest_units(variant)
        try:
            fit = _check_fit(chosen, topology, size, granules, variant)
        except InputError as error:
            reason = reason or error
            if error.diagnostics[0].code == _TOO_LARGE:
                fewest_refused = len(variant.steps)
            continue
        best = FittedAlgorithm(variant, time_ns, fit, text)
    if best is None:
        raise reason or InputError("the algorithm has no time", code=_TOO_LARGE)
    return best


def _check_fit(
    chosen: ChosenRuntime, topology: Topology, size: int, granules: int, algorithm: Algorithm
) -> RuntimeFit:
    """Return the resources of an algorithm on a runtime. Raises `InputError` if it does not run.

    The reasons, in this order: a size that it does not serve, more messages of a rank than
    operations are allowed, a refusal by the writer, an exceeded limit, a larger size than it serves
    without a deadlock.
    """
    runtime, limits = chosen.runtime, chosen.runtime.limits
    reason = ""
    if granules % algorithm.collective.unit_count:
        reason = _describe_multiple(
            limits.unit_bytes * algorithm.collective.unit_count, runtime.name, size
        )
        # The first size may be served, but not all sizes of the window.
        reason = reason or f"{runtime.name} does not serve all sizes of the window"
        raise InputError(reason, code=_UNSERVED)
    if limits.max_operations is not None:
        steps = algorithm.steps
        sends = max(Counter(steps.rank[steps.sends].tolist()).values(), default=0)
        if sends > limits.max_operations:
            excess = f"{sends} messages of a rank, at most {limits.max_operations} operations run"
            raise _build_excess(runtime, excess)
    with blame(chosen.writer):
        fit = resolve(runtime.fit)(algorithm, size, topology)
    if not isinstance(fit, RuntimeFit):
        raise misfit(chosen.writer, f"fitted an algorithm by {type(fit).__name__}")
    excess = fit.find_excess(limits)
    if excess:
        raise _build_excess(runtime, excess)
    if granules % fit.units:
        reason = _describe_multiple(limits.unit_bytes * fit.units, runtime.name, size)
        raise InputError(reason or f"{runtime.name} does not serve all sizes", code=_UNSERVED)
    if fit.max_bytes is not None and fit.max_bytes < size:
        excess = f"sizes up to {format_size(fit.max_bytes)}, above which connections fill up"
        raise _build_excess(runtime, excess)
    return fit


def _build_excess(runtime: Runtime, excess: str) -> InputError:
    return InputError(f"{runtime.name} cannot run the algorithm: {excess}", code=_TOO_LARGE)


def fit_result(
    request: SynthesisRequest,
    result: SynthesisResult,
    search_again: Callable[[SynthesisRequest], SynthesisResult],
) -> SynthesisResult:
    """Return a result that the runtime of the request executes, with its resources.

    The search is repeated with at most half of the units, first as long as this costs at most 1 %
    of the best time (fewer messages win), then as long as the runtime cannot execute the algorithm:
    a deterministic sequence of at most 12 retries. Raises `InputError` if no number of units is
    small enough; the error names the exceeded limit of the try with the fewest units.
    """
    target = request.target
    assert target is not None
    smaller = _list_smaller(request, result, search_again)
    best, fastest_ns = result, result.time_ns
    reason: InputError | None = None
    for each in smaller:
        fastest_ns = min(fastest_ns, each.time_ns)
        if _is_preferable(each, best, fastest_ns):
            best = each
            continue
        smaller = chain([each], smaller)
        break
    for each in chain([best], smaller):
        try:
            return _apply_fit(each, target.fit(each.algorithm), target.runtime)
        except InputError as error:
            # The error of the try with the fewest units states the least resources.
            is_limit = error.diagnostics[0].code == _TOO_LARGE
            reason = error if reason is None or is_limit else reason
    assert reason is not None
    raise reason


def _list_smaller(
    request: SynthesisRequest,
    result: SynthesisResult,
    search_again: Callable[[SynthesisRequest], SynthesisResult],
) -> Iterator[SynthesisResult]:
    """Yield results of the same search with at most half of the units of the previous one.

    Ends after 12 results, or if the search has no result with fewer units.
    """
    target = request.target
    assert target is not None
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


def _is_preferable(result: SynthesisResult, best: SynthesisResult, fastest_ns: int) -> bool:
    """Whether a result is as fast as the fastest one, within 1 %, and has fewer messages."""
    is_fast = result.time_ns <= (1 + TIE) * fastest_ns
    return is_fast and len(result.algorithm.steps) < len(best.algorithm.steps)


def _apply_fit(result: SynthesisResult, fitted: FittedAlgorithm, runtime: str) -> SynthesisResult:
    """Return the result with the form of its algorithm that the runtime executes."""
    fit = fitted.fit
    text = (
        f"{runtime}: {fit.blocks} thread blocks and {fit.operations} operations of a rank, "
        f"{fit.channels} channels, {fit.units} chunks"
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
    )


def build_variant(
    algorithm: Algorithm, passes: Sequence[tuple[str, Mapping[str, str]]], registry: Registry
) -> tuple[Algorithm, str]:
    """Apply the passes of a simulation, each with its options; also return their description."""
    texts = []
    for name, options in passes:
        algorithm, _ = transform(algorithm, name, options=options, registry=registry)
        texts.append(" ".join([name, *(f"{key}={value}" for key, value in options.items())]))
    return algorithm, ", ".join(texts)


def time_on_runtime(timing: TimingSource, name: str, registry: Registry) -> TimingSource:
    """Return the timing with the kernel of a runtime, if it is that of a machine.

    Raises `UsageError` for an unknown name.
    """
    chosen = find_runtime(name, registry)
    if timing.machine is None or chosen is None or not chosen.runtime.kernel:
        return timing
    return replace(timing, options={**timing.options, "kernel": chosen.runtime.kernel})


def list_variants(
    timing: TimingSource, topology: Topology, size: int, registry: Registry
) -> Variants:
    """Return a function that lists forms of an algorithm with their simulated times.

    On nominal links the only form is the algorithm itself. On a machine, they are the fastest form,
    and 16, 8, 4, 2, 1 copies of the algorithm, each in one piece. A form without a time is left
    out.
    """

    def simulate_with(
        algorithm: Algorithm, options: Mapping[str, str]
    ) -> Iterable[tuple[Algorithm, int, str]]:
        result = simulate(
            algorithm,
            topology,
            size,
            backend=timing.backend,
            options={**timing.options, **options},
            registry=registry,
        )
        if result.time_ns is None:
            return
        variant, text = build_variant(algorithm, result.passes, registry)
        yield variant, result.time_ns, text

    def variants(algorithm: Algorithm) -> Iterable[tuple[Algorithm, int, str]]:
        yield from simulate_with(algorithm, {})
        if timing.machine is None:
            return
        for instances in _INSTANCES:
            try:
                yield from simulate_with(algorithm, {"instances": str(instances)})
            except HubError:
                # More copies than the machine has channels or thread blocks.
                continue

    return variants
