"""Synthesize algorithms: build requests, call synthesizers, check results against bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hub_core.model import (
    UNEVEN_KINDS,
    Algorithm,
    Collective,
    CollectiveKind,
    InputError,
    UnitCounts,
    UsageError,
)
from hub_core.model.count_sources import SIZE_CURE, parse_counts, read_counts
from hub_core.model.kinds import COUNTS_HELP
from hub_core.network import Occupancy, Topology, check_paths
from hub_core.pipeline.bounded_reads import load_file
from hub_core.pipeline.bounds import apply_simulated_time
from hub_core.pipeline.calls import blame, bound_options, call, misfit
from hub_core.pipeline.inputs import as_topology
from hub_core.pipeline.limit_search import (
    LimitedSearch,
    check_necessary_limits,
    find_sufficient_limits,
)
from hub_core.pipeline.runtime_fits import create_target, fit_result
from hub_core.pipeline.runtimes import find_runtimes, list_variants
from hub_core.pipeline.simulation import (
    DEFAULT_SIMULATOR,
    TimingSource,
    check_size,
    create_timer,
)
from hub_core.plugin_api import (
    IDEAL,
    BudgetReached,
    LimitError,
    SearchBudget,
    SynthesisRequest,
    SynthesisResult,
    Synthesizer,
    resolve,
)
from hub_core.registry.bind_options import OptionText
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Provided, Registry


def synthesize(
    collective: Collective,
    topology: Topology | str,
    collective_bytes: int,
    *,
    name: str,
    options: OptionText | None = None,
    npus: Sequence[int] | None = None,
    occupancy: Occupancy = Occupancy.SERIALIZATION,
    wanted: Sequence[int] | None = None,
    backend: str = DEFAULT_SIMULATOR,
    judge: Callable[[Algorithm], int | None] | None = None,
    progress: Callable[[float, str], None] = lambda fraction, label: None,
    registry: Registry | None = None,
    budget: SearchBudget | None = None,
    runtime: str = IDEAL,
) -> SynthesisResult:
    """Synthesize an algorithm for a collective on a topology with the synthesizer `name`.

    `options`: texts for the synthesizer by name. All other parameters are those of
    `create_synthesis_request`. The result and the errors are those of `run_synthesizer`. Raises the
    code `limit-reached` if a limit of `budget` ended the search without a result.
    """
    request = create_synthesis_request(
        collective,
        topology,
        collective_bytes,
        npus=npus,
        occupancy=occupancy,
        wanted=wanted,
        backend=backend,
        judge=judge,
        progress=progress,
        registry=registry,
        budget=budget,
        runtime=runtime,
    )
    return run_synthesizer(request, name, options)


def resolve_counts(
    text: str | None,
    kind: CollectiveKind,
    num_ranks: int,
    size_cure: str = SIZE_CURE,
    name: str = "--counts",
) -> UnitCounts | None:
    """Return the counts of an uneven collective from a file or a generator form such as `zipf:1.2`.

    A text in a generator form never names a file. Returns None for a collective without counts if
    `text` is None. `name` is the option or field that gave `text`. Errors, in this order:

    - `UsageError`: `text` is given, but the collective has no counts.
    - `UsageError`: the collective has counts, but `text` is None.
    - `InputError` or `UsageError` of `parse_counts` for an invalid generator form.
    - `UsageError`: the text is no generator form, and there is no such file.
    - `InputError`: the file cannot be read or has no table for `num_ranks` ranks. `size_cure` is
      the cure for a table of another number of ranks.
    """
    if not kind.traits.is_uneven:
        if text is None:
            return None
        cure = f"leave it out, or name one of {', '.join(UNEVEN_KINDS)}"
        raise UsageError(f"{name} has no meaning for {kind}", cure=cure)
    if text is None:
        cure = f"give {COUNTS_HELP}"
        raise UsageError(f"{kind} needs the units of each part: {name}", cure=cure)
    counts = parse_counts(text, kind, num_ranks)
    if counts is not None:
        return counts
    if not Path(text).exists():
        message = f"--counts {text[:80]}: neither a file nor a generator of counts"
        raise UsageError(message, cure=f"give {COUNTS_HELP}")
    return read_counts(load_file(Path(text)), text, kind, num_ranks, size_cure)


def create_synthesis_request(
    collective: Collective,
    topology: Topology | str,
    collective_bytes: int,
    *,
    npus: Sequence[int] | None = None,
    occupancy: Occupancy = Occupancy.SERIALIZATION,
    wanted: Sequence[int] | None = None,
    backend: str = DEFAULT_SIMULATOR,
    judge: Callable[[Algorithm], int | None] | None = None,
    progress: Callable[[float, str], None] = lambda fraction, label: None,
    registry: Registry | None = None,
    budget: SearchBudget | None = None,
    runtime: str = IDEAL,
    sizes: Sequence[int] = (),
    timing: TimingSource | None = None,
    needs_time: bool = True,
    is_quick: bool = False,
) -> SynthesisRequest:
    """Create a request with the simulator and the plugins of the run.

    - `topology`: also a text such as `ring:4` or a file, which is read.
    - `npus`: the NPU of each rank, default NPU r for rank r. All other NPUs may relay.
    - `wanted`: NPUs whose steps are needed, default all.
    - `judge`: times a candidate in ns, None if it cannot. By default the simulator `backend` does;
      there is no timer if `backend` is not installed or lacks the link model.
    - `progress`: is called with a fraction and a label. `budget`: default no limits.
    - `runtime`: runtimes separated by commas, such as `executor?blocks=16` (`find_runtimes`).
    - `sizes`, `timing`, `is_quick`: used only with a runtime. Further sizes in bytes to serve; the
      timing of the forms of the algorithm, default `backend`; True if the resources of the result
      are not used (`create_target`).
    - `needs_time`: False if the time of the result is not used.

    Raises `HubError`: invalid size, topology or runtime; a runtime without this kind of collective
    (`collective-unsupported`); a limit below a proven minimum (`check_necessary_limits`).
    """
    registry = registry or run_registry()
    topology = as_topology(topology, registry)
    check_size(collective_bytes)
    chosen = find_runtimes(runtime, registry)
    target = None
    if chosen:
        for one in chosen:
            if collective.kind not in one.runtime.collectives:
                kinds = ", ".join(one.runtime.collectives)
                raise InputError(
                    f"{one.runtime.name} cannot express {collective.kind}",
                    cure=f"it can express {kinds}; or choose --for {IDEAL}",
                    code="collective-unsupported",
                )
            check_necessary_limits(one, collective)
        served, source = (collective_bytes, *sizes), timing or TimingSource(backend)
        variants = list_variants(source, topology, collective_bytes, registry)
        target = create_target(chosen, topology, served, variants, is_quick=is_quick)
    return SynthesisRequest(
        collective,
        topology,
        collective_bytes,
        tuple(range(collective.num_ranks)) if npus is None else tuple(npus),
        occupancy,
        None if wanted is None else tuple(wanted),
        judge or create_timer(topology, collective_bytes, occupancy, backend, registry),
        progress,
        registry,
        budget or SearchBudget(),
        backend if judge is None else "",
        target,
        needs_time,
    )


def run_synthesizer(
    request: SynthesisRequest,
    name: str,
    options: OptionText | None = None,
) -> SynthesisResult:
    """Call the synthesizer `name` with its `options` (texts by name), and check its time.

    1. The result is converted for a target runtime. This is left out if it is partial (steps of
       some ranks only) or already fitted, without a target, or with `target.is_fitted_later`.
    2. If the time is below a bound, a simulation in ps replaces it. Bounds that still exceed the
       time are removed with a warning. This is left out without `request.backend`, for a partial
       result, and if the simulation fails (above 64 bits, a too slow link, an endless algorithm).

    `cuts` of the result lists searches that a limit of `request.budget` ended; the budget gets them
    too. Raises `UsageError` for a size below 1 and wrong NPUs. Raises `InputError` for an
    unsupported collective, unreachable NPUs (`disconnected`), a limit before the first result
    (`limit-reached`), and if no result fits the target. Raises another `HubError` for unknown names
    of synthesizers or options, and if the synthesizer fails.
    """
    check_size(request.collective_bytes)
    _check_npus(request)
    registry = request.hub or run_registry()
    synthesizer = registry.find(Synthesizer, name)
    _check_collective(synthesizer.offer, request.collective.kind)
    check_paths(request.collective, request.topology, request.npus)

    def simulate(algorithm: Algorithm) -> int | None:
        # Counted in the budget, whose limits it checks.
        return request.budget.simulated(len(algorithm.steps), lambda: request.simulate(algorithm))

    limited = replace(
        request,
        simulate=simulate,
        progress=request.budget.checked(request.progress),
        hub=registry,
    )
    bound = bound_options(synthesizer, options)
    result = _call_within_limits(synthesizer, limited, bound)
    target = request.target
    is_fitted = target is None or target.is_fitted_later or result.fit is not None
    if not is_fitted and not result.is_partial:
        result = fit_to_runtime(limited, name, result, options)
    largest_bound_ns = max(result.bounds_ns.values(), default=0)
    if not request.backend or result.is_partial or result.time_ns >= largest_bound_ns:
        return result
    topology, size = request.topology, request.collective_bytes
    bandwidth, latency_s = topology.bandwidth_bytes_per_s, topology.latency_s
    try:
        slow = replace(topology, bandwidth_bytes_per_s=bandwidth / 1000, latency_s=latency_s * 1000)
        time_in_ps = create_timer(slow, size, request.occupancy, request.backend, registry)
        time_ps = time_in_ps(result.algorithm)
    except InputError:
        # The time does not fit into 64 bits, or a link is too slow to be slowed down.
        return result
    if time_ps is None:
        return result
    return apply_simulated_time(result, time_ps)


def fit_to_runtime(
    request: SynthesisRequest,
    name: str,
    result: SynthesisResult,
    options: OptionText | None = None,
    *,
    finds_limits: bool = True,
) -> SynthesisResult:
    """Convert a result of the synthesizer `name` to one that a runtime of the request executes.

    The request must have a target. The synthesizer is called again with fewer units if necessary;
    see `fit_result`. Raises `InputError` if no result can be executed; for an exceeded limit
    (`LimitError`), it has the least limits that suffice, unless `finds_limits` is False.
    """
    try:
        return fit_result(request, result, _search_with(request, name, options))
    except LimitError as error:
        if not finds_limits:
            raise
        raise add_sufficient_limits(error, [(request, name, result)], options) from None


def add_sufficient_limits(
    error: LimitError,
    candidates: Sequence[tuple[SynthesisRequest, str, SynthesisResult]],
    options: OptionText | None = None,
) -> LimitError:
    """Return the error, extended by runtime limits that suffice for a candidate.

    A candidate is a request, the name of the synthesizer and its result for the target of the
    request; at least one, with equal targets. `options`: of the synthesizers. Returns `error`
    itself if no limits are found (see `find_sufficient_limits`). Raises `HubError` for an unknown
    synthesizer or option.
    """
    searches = [
        LimitedSearch(request, result, _search_with(request, name, options))
        for request, name, result in candidates
    ]
    return find_sufficient_limits(error, searches)


def _search_with(
    request: SynthesisRequest, name: str, options: OptionText | None
) -> Callable[[SynthesisRequest], SynthesisResult]:
    """Return a function that calls the synthesizer `name` with these options for a request.

    Raises `HubError` for an unknown synthesizer or option; the function, as `_call_within_limits`.
    """
    synthesizer = (request.hub or run_registry()).find(Synthesizer, name)
    bound = bound_options(synthesizer, options)
    return lambda again: _call_within_limits(synthesizer, again, bound)


def estimate_synthesis(name: str, request: SynthesisRequest, registry: Registry) -> int | None:
    """Return the time in ns that the synthesizer `name` expects with its default options.

    The algorithm is not built. None if it offers no estimates (its collectives are not checked in
    this case), or cannot estimate this request. Raises `HubError` for an unknown synthesizer, for a
    collective that it does not support, and if it raises one. Raises `PluginError` if the estimate
    fails or is neither an integer nor None.
    """
    synthesizer = registry.find(Synthesizer, name)
    if not synthesizer.offer.estimate:
        return None
    _check_collective(synthesizer.offer, request.collective.kind)
    options = bound_options(synthesizer, None)
    with blame(synthesizer):
        estimate = resolve(synthesizer.offer.estimate)(request, options)
    if not isinstance(estimate, int | None):
        raise misfit(synthesizer, f"estimated {type(estimate).__name__}, expected int or None")
    return estimate


def _check_collective(offer: Synthesizer, kind: CollectiveKind) -> None:
    """Raise `InputError` for a kind that the offer does not declare."""
    if not offer.supports(kind):
        raise InputError(
            f"{offer.name} does not support {kind}",
            cure=f"it supports {', '.join(offer.collectives)}",
            code="collective-unsupported",
        )


def _call_within_limits(
    synthesizer: Provided[Synthesizer], request: SynthesisRequest, options: object
) -> SynthesisResult:
    """Call the synthesizer; return its result with the record of the searches that a limit ended.

    `cuts` of the result becomes that of `request.budget`, in the order of the recording. If a limit
    was reached, the synthesizer is appended to both as the last entry. Without any entry, the
    result is returned as it is. Raises `InputError` (`limit-reached`) if a limit was reached before
    the first algorithm was complete; the budget gets the entry in this case, too.
    """
    budget = request.budget
    try:
        result = call(synthesizer, SynthesisResult, request, options)
    except BudgetReached:
        budget.cut(synthesizer.name)
        raise InputError(
            f"{synthesizer.name} finished no algorithm after {budget.done} steps of work: "
            f"{budget.reason}",
            cure="allow more, or choose a synthesizer of less work",
            code="limit-reached",
        ) from None
    if budget.is_reached:
        budget.cut(synthesizer.name)
    return replace(result, cuts=tuple(budget.cuts)) if budget.cuts else result


def _check_npus(request: SynthesisRequest) -> None:
    """Raise `UsageError` unless every rank has its own NPU, and all NPUs exist.

    Only the first defect is reported, in this order:

    1. There is not exactly one NPU per rank (no code).
    2. An NPU of `npus`, then of `wanted`, is not in 0..n-1 for n NPUs of the topology
       (`npu-range`). `wanted` may be None.
    3. Two ranks have the same NPU (`npu-range`). `wanted` may repeat NPUs.
    """
    topology, npus = request.topology, request.npus
    if len(npus) != request.collective.num_ranks:
        message = f"{len(npus)} NPUs are named for {request.collective.num_ranks} ranks"
        raise UsageError(message, cure="name one NPU per rank")
    for npu in (*npus, *(request.wanted or ())):
        if not 0 <= npu < topology.num_npus:
            message = f"topology {topology.name} has no NPU {npu}"
            cure = f"name NPUs of 0..{topology.num_npus - 1}"
            raise UsageError(message, cure=cure, code="npu-range")
    if len(set(npus)) < len(npus):
        message = "an NPU is named for two ranks"
        raise UsageError(message, cure="name each NPU once", code="npu-range")
