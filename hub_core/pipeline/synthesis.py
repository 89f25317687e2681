"""Make an algorithm for a collective on a topology with a synthesizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hub_core.model import (
    Algorithm,
    Collective,
    Diagnostic,
    InputError,
    Severity,
    UsageError,
    format_time,
)
from hub_core.network import Occupancy, Topology
from hub_core.pipeline.calls import blame, bound_options, call, misfit
from hub_core.pipeline.simulation import DEFAULT_SIMULATOR, check_size, simulate
from hub_core.pipeline.topology_input import as_topology
from hub_core.plugin_api import (
    ONE_SIZE,
    BudgetReached,
    SearchBudget,
    Simulator,
    SynthesisRequest,
    SynthesisResult,
    Synthesizer,
    resolve,
)
from hub_core.registry.bind_options import OptionText
from hub_core.registry.descriptions import options_of
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
    progress: Callable[[float, str], None] = lambda fraction, what: None,
    registry: Registry | None = None,
    budget: SearchBudget | None = None,
) -> SynthesisResult:
    """Make an algorithm for a collective on a topology with the synthesizer `name`.

    `npus`: the NPU of each rank, default NPU r for rank r; all other NPUs may relay. `wanted`: the
    NPUs whose steps are needed (default: all). `backend`: the simulator by which a synthesizer may
    judge; where it is not installed, it judges by its own account. `judge`: nanoseconds of an
    algorithm in place of `backend`. A time below a bound, as simulators drop fractions of a
    nanosecond, is computed again in picoseconds and rounded up. If a bound for messages of any
    sizes is still later, that is a bug: it is removed, with a warning among the diagnostics. A text
    such as `ring:4`, or a file, is read as a topology. `budget`: limits of the search, by default
    none; the result lists what they have cut. Raises `HubError`, of the code `limit-reached` if a
    limit has ended the search without a result.
    """
    registry = registry or run_registry()
    topology = as_topology(topology, registry)
    chosen = tuple(range(collective.num_ranks)) if npus is None else tuple(npus)
    check_size(collective_bytes)
    _check_npus(collective, topology, chosen, tuple(wanted or ()))
    synthesizer = registry.find(Synthesizer, name)
    budget = budget or SearchBudget()
    simulated = judge or _judge(topology, collective_bytes, occupancy, backend, registry)
    request = SynthesisRequest(
        collective,
        topology,
        collective_bytes,
        chosen,
        occupancy,
        None if wanted is None else tuple(wanted),
        _counted(simulated, budget),
        budget.checked(progress),
        registry,
        budget,
    )
    made = _within(synthesizer, request, bound_options(synthesizer, options))
    if (
        judge is not None
        or made.is_partial
        or made.time_ns >= max(made.bounds_ns.values(), default=0)
    ):
        return made
    bandwidth, latency_s = topology.bandwidth_bytes_per_s, topology.latency_s
    try:
        slow = replace(topology, bandwidth_bytes_per_s=bandwidth / 1000, latency_s=latency_s * 1000)
        time_ps = _judge(slow, collective_bytes, occupancy, backend, registry)(made.algorithm)
    except InputError:
        # The time does not fit into 64 bits, or a link is too slow to be slowed down.
        return made
    if time_ps is None:
        return made
    return _without_beaten_bounds(replace(made, time_ns=-(-time_ps // 1000)))


def estimate_synthesis(name: str, request: SynthesisRequest, registry: Registry) -> int | None:
    """Nanoseconds that the synthesizer `name` expects of its algorithm; None if it cannot tell.

    The estimate is for the default options. Raises `HubError` for a request that does not fit.
    """
    found = registry.find(Synthesizer, name)
    if not found.offer.estimate:
        return None
    options = bound_options(found, None)
    with blame(found):
        estimate = resolve(found.offer.estimate)(request, options)
    if not isinstance(estimate, int | None):
        raise misfit(found, f"estimated {type(estimate).__name__}, expected int or None")
    return estimate


def _counted(
    simulate: Callable[[Algorithm], int | None], budget: SearchBudget
) -> Callable[[Algorithm], int | None]:
    """The simulator, each use of which is counted; it checks the limits first."""

    def time_ns(algorithm: Algorithm) -> int | None:
        return budget.simulated(len(algorithm.steps), lambda: simulate(algorithm))

    return time_ns


def _within(
    synthesizer: Provided[Synthesizer], request: SynthesisRequest, options: object
) -> SynthesisResult:
    """The result of a synthesizer, with what the limits have cut. Raises `InputError`."""
    budget = request.budget
    try:
        made = call(synthesizer, SynthesisResult, request, options)
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
    return replace(made, cuts=tuple(budget.cuts)) if budget.cuts else made


def _without_beaten_bounds(made: SynthesisResult) -> SynthesisResult:
    """The result without bounds above its time, and a warning for each that is a bug."""
    bounds = {name: bound for name, bound in made.bounds_ns.items() if bound <= made.time_ns}
    beaten = [
        Diagnostic(
            "bound-beaten",
            f"the lower bound {name}, {format_time(bound)}, is wrong: the algorithm takes "
            f"{format_time(made.time_ns)}",
            Severity.WARNING,
            cure="report this as a bug of the synthesizer that states the bound",
        )
        for name, bound in made.bounds_ns.items()
        # Messages of other sizes may be faster than those for one size.
        if name not in bounds and not name.endswith(ONE_SIZE)
    ]
    return replace(made, bounds_ns=bounds, diagnostics=(*made.diagnostics, *beaten))


def _check_npus(
    collective: Collective, topology: Topology, npus: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    if len(npus) != collective.num_ranks:
        message = f"{len(npus)} NPUs are named for {collective.num_ranks} ranks"
        raise UsageError(message, cure="name one NPU a rank")
    for npu in (*npus, *wanted):
        if not 0 <= npu < topology.num_npus:
            message = f"topology {topology.name} has no NPU {npu}"
            cure = f"name NPUs of 0..{topology.num_npus - 1}"
            raise UsageError(message, cure=cure, code="npu-range")
    if len(set(npus)) < len(npus):
        message = "an NPU is named for two ranks"
        raise UsageError(message, cure="name each NPU once", code="npu-range")


def _judge(
    topology: Topology, size: int, occupancy: Occupancy, backend: str, registry: Registry
) -> Callable[[Algorithm], int | None]:
    """The simulator for a synthesizer; None where it is missing or knows another link model."""
    found = [provided.offer for provided in registry.all(Simulator) if provided.name == backend]
    names = {option.name for offer in found for option in options_of(offer)}
    if not found or ("occupancy" not in names and occupancy is not Occupancy.SERIALIZATION):
        return lambda algorithm: None
    options = {"occupancy": str(occupancy)} if "occupancy" in names else {}

    def time_ns(algorithm: Algorithm) -> int | None:
        judge = partial(simulate, backend=backend, options=options, registry=registry)
        return judge(algorithm, topology, size).time_ns

    return time_ns
