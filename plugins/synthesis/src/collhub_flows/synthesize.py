"""Synthesis: a flow, its paths, the fastest order of their pieces, and the bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np

from collhub_flows.certificate import flow_certificate
from collhub_flows.demand import FlowDemand
from collhub_flows.jobs import FlowJobs
from collhub_flows.linear_program import Flow, exact_flow
from collhub_flows.lowering import FlowSchedule, schedule_of
from collhub_flows.network import FlowNetwork
from collhub_flows.options import FlowOptions
from collhub_flows.paths import FlowPaths
from collhub_flows.weights import approximate_flow
from hub_core import installed_version
from hub_core.columns import Float64Array, Int64Array
from hub_core.model import (
    Algorithm,
    Collective,
    CollectiveKind,
    InputError,
    JsonValue,
    Provenance,
    UsageError,
)
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import SynthesisRequest, SynthesisResult
from hub_core.schedules import algorithm_of, fastest_of

_NAME = "collhub-flows"
_LADDER = (1, 2, 4, 8)
# Divisible by every count of the ladder, and fine enough for parts of a percent.
_SHARE_UNITS = 240
# Variables up to which the linear program takes seconds.
_MOST_EXACT = 40_000
# Beyond these the approximate flow takes minutes: about 512 NPUs on a torus.
_MOST_VARIABLES = 4_000_000
_MOST_SHARES = 300_000
# Jobs beyond which further counts of pieces, and the simulator, would take too long.
_MOST_JOBS = 400_000
_MOST_SIMULATED = 1 << 20
# Jobs up to which several orders take a moment.
_FEW_JOBS = 50_000
# What takes so much longer by the own clock is not simulated.
_HOPELESS = 1.05
# So near to what no order of the paths goes below, more pieces are not worth their messages.
_GOOD = 1.01


def synthesize(request: SynthesisRequest, options: FlowOptions) -> SynthesisResult:
    """Fastest algorithm found along the optimal flow of a request.

    Raises `UsageError` for sizes and topologies that do not fit, and `InputError` for collectives
    whose data do not go from one rank to one other, and for targets that cannot be reached.
    """
    # Imports numba, which takes a second.
    from collhub_packing.compiling.compilations import COMPILING, compilations

    # While kernels are compiled, that is reported.
    with compilations(lambda: request.progress(0.0, COMPILING)):
        return _synthesize(request, options)


def _check_size(request: SynthesisRequest) -> None:
    """Raise `InputError` for networks whose flow would take hours or all memory."""
    topology, kind = request.topology, request.collective.kind
    npus, ranks = topology.num_npus, len(request.npus)
    # With switches any two NPUs may have an arc.
    has_switches = topology.num_nodes > npus
    arcs = topology.num_links
    if has_switches:
        arcs = npus * npus
    sources = ranks
    if kind is CollectiveKind.SCATTER:
        sources = 1
    pairs = ranks
    if kind is CollectiveKind.ALL_TO_ALL:
        pairs = ranks * ranks
    if sources * arcs <= _MOST_VARIABLES and pairs <= _MOST_SHARES:
        return
    raise InputError(
        f"topology {topology.name}: a flow from {sources} NPUs on {arcs} arcs is too large",
        cure="use tacos",
        code="too-large",
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """Network and demand of a request, and the bytes of a share."""

    request: SynthesisRequest
    network: FlowNetwork
    demand: FlowDemand
    share_bytes: float

    @classmethod
    def of(cls, request: SynthesisRequest) -> _Problem:
        """Raises `UsageError` and `InputError` for what is not made."""
        topology = request.topology
        if topology.num_planes > 1:
            raise UsageError(
                f"topology {topology.name}: flows takes one plane, not {topology.num_planes}",
                cure="name one of the networks alone",
                code="planes-unsupported",
            )
        _check_size(request)
        demand = FlowDemand.of(request.collective, request.npus, topology.num_npus)
        if not len(demand.sources):
            raise UsageError(
                "one rank has nothing to send",
                cure="let at least two ranks take part",
                code="one-rank",
            )
        if not topology.num_links:
            raise InputError(
                f"topology {topology.name}: there is no link",
                cure="add links, or choose NPUs that reach one another",
                code="disconnected",
            )
        kind, ranks = request.collective.kind, request.collective.num_ranks
        share_bytes = request.collective_bytes / kind.traits.parts(ranks)
        return cls(request, FlowNetwork.of(topology), demand, share_bytes)

    @property
    def fluid_cost_s(self) -> Float64Array:
        """Seconds that the bytes of a share take on every link: float64[links]."""
        return self.share_bytes / self.request.topology.bandwidth_bytes_per_s

    @property
    def cost_s(self) -> Float64Array:
        """Seconds that a share takes on every link, with the latency where that occupies it."""
        if self.request.occupancy is Occupancy.ALPHA_BETA:
            return self.fluid_cost_s + self.request.topology.latency_s
        return self.fluid_cost_s

    def share_units(self) -> int:
        """Units of a share: 240, or a byte each. Raises `UsageError` for shares of no byte."""
        if self.share_bytes < 1:
            raise UsageError(
                f"{self.request.collective_bytes} bytes are too few for a byte a share",
                cure="choose a larger size",
                code="size-too-small",
            )
        return min(_SHARE_UNITS, int(self.share_bytes))


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A schedule with its algorithm and time; `pieces` a path at most."""

    schedule: FlowSchedule
    algorithm: Algorithm
    pieces: int
    time_ns: int
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Tried:
    """Jobs whose first order was judged, with the starts by it."""

    found: _Found
    jobs: FlowJobs
    start: Int64Array


def _synthesize(request: SynthesisRequest, options: FlowOptions) -> SynthesisResult:
    problem = _Problem.of(request)
    share_units = problem.share_units()
    request.progress(0.0, "flow")
    flow, method = _flow(problem, options)
    # Counted as one step a variable, also where the flow was kept from before.
    request.budget.count(len(problem.demand.sources) * problem.network.num_arcs)
    request.progress(0.5, "paths")
    paths = FlowPaths.of(
        problem.network, problem.demand, flow, share_units, options.pieces or _LADDER[-1]
    )
    best = fastest_of(_candidates(problem, paths, options), lambda found: found.time_ns)
    assert best is not None
    certificate = flow_certificate(problem.network, problem.demand, flow, request)
    bounds = {"flow": certificate.bound_ns}
    statistics: dict[str, JsonValue] = {
        "method": method,
        "pieces": best.pieces,
        "paths a share": round(len(paths.share) / len(problem.demand.pairs[0]), 3),
    }
    if best.is_interrupted:
        statistics["interrupted"] = True
    extension = {**statistics, "flow_certificate": certificate.document}
    algorithm = best.algorithm
    if request.wanted is not None:
        algorithm = _algorithm(problem, best.schedule, request.wanted)
    stated = {name: str(value) for name, value in asdict(options).items()}
    # Sources that are imported without being installed have no version.
    version = installed_version("collhub-synthesis") or ""
    algorithm = replace(
        algorithm,
        provenance=Provenance(_NAME, version, request.topology.name, "", stated),
        extensions={_NAME: extension},
    )
    is_partial = request.wanted is not None
    return SynthesisResult(algorithm, best.time_ns, bounds, statistics, is_partial)


def _flow(problem: _Problem, options: FlowOptions) -> tuple[Flow, str]:
    """Flow of the whole demand, and how it was found."""
    request = problem.request
    # Proportions alone decide: where latency does not count, they are those of every size.
    cost = problem.cost_s / problem.cost_s.max()
    collective = replace(request.collective, unit_count=_units_for_flow(request.collective))
    return _flow_at(request.topology, collective, tuple(request.npus), cost.tobytes(), options)


def _units_for_flow(collective: Collective) -> int:
    """Fewest units, so that collectives of any number of them ask for one flow."""
    return collective.kind.traits.parts(collective.num_ranks)


# A comparison asks for many sizes of one network.
@lru_cache(maxsize=4)
def _flow_at(
    topology: Topology,
    collective: Collective,
    npus: tuple[int, ...],
    cost: bytes,
    options: FlowOptions,
) -> tuple[Flow, str]:
    """The flow for costs of links in any unit, float64 as bytes."""
    network = FlowNetwork.of(topology)
    demand = FlowDemand.of(collective, npus, topology.num_npus)
    # Bytes stand for the array in the cache, which takes what can be hashed.
    costs = np.frombuffer(cost)
    variables = len(demand.sources) * network.num_arcs
    is_exact = options.method == "exact"
    if options.method == "auto":
        is_exact = variables <= _MOST_EXACT
    exact = exact_flow(network, demand, costs) if is_exact else None
    if exact is not None:
        return exact, "exact flow"
    # Large networks are smooth: there a gap of a percent needs fewer phases.
    phases = options.phases or int(np.clip(4e8 / variables / 15, 60, 400))
    found = approximate_flow(network, demand, costs, phases)
    return found, f"approximate flow, {phases} phases"


def _candidates(
    problem: _Problem,
    paths: FlowPaths,
    options: FlowOptions,
) -> Iterator[_Found]:
    """Schedules of every count of pieces, and the fastest one with its messages in turn."""
    fastest: _Found | None = None
    for found in _ladder(problem, paths, options):
        if fastest is None or found.time_ns < fastest.time_ns:
            fastest = found
        yield found
    if fastest is not None:
        # What begins at once may meet behind it, and what waits loses a latency.
        yield _judged(problem, fastest.schedule.in_turn(), fastest.pieces)


def _ladder(problem: _Problem, paths: FlowPaths, options: FlowOptions) -> Iterator[_Found]:
    """Schedules of every count of pieces by one order, and of some by the best of several."""
    ladder = (options.pieces,) if options.pieces else _LADDER
    tried: list[_Tried] = []
    for place, pieces in enumerate(ladder):
        problem.request.progress(0.5 + 0.5 * place / len(ladder), "schedules")
        jobs = _jobs(problem, paths, pieces)
        if place and len(jobs.link) > _MOST_JOBS:
            break
        # Finer pieces fill links sooner, and gain nothing where latencies or loads decide.
        fastest_ns = min((one.found.time_ns for one in tried), default=0)
        if fastest_ns and 1000 * fastest_ns <= _GOOD * jobs.least_ps():
            break
        start = jobs.by_pieces()
        found = _judged(problem, _scheduled(problem, paths, jobs, start), pieces)
        tried.append(_Tried(found, jobs, start))
        yield found
    yield from _by_other_orders(problem, paths, tried)


def _by_other_orders(
    problem: _Problem, paths: FlowPaths, tried: Sequence[_Tried]
) -> Iterator[_Found]:
    """The best of the forward and backward passes, where these are worth their time."""
    least_ps = min(one.found.schedule.time_ps for one in tried)
    fastest = min(tried, key=lambda one: one.found.time_ns)
    for one in tried:
        count = len(one.jobs.link)
        # Of many jobs other orders are for the finest, which gain most, and the fastest; of very
        # many one order has to do.
        is_worth = count <= _FEW_JOBS or one is fastest or one is tried[-1]
        if not is_worth or count > _MOST_JOBS:
            continue
        start = min(one.jobs.forward_and_backward(), key=one.jobs.time_ps)
        schedule = _scheduled(problem, paths, one.jobs, start)
        # One schedule is judged once, and what comes far too late is not.
        if schedule.time_ps <= _HOPELESS * least_ps and not np.array_equal(start, one.start):
            yield _judged(problem, schedule, one.found.pieces)


def _jobs(problem: _Problem, paths: FlowPaths, pieces: int) -> FlowJobs:
    unit_bytes = problem.share_bytes / paths.share_units
    occupancy = problem.request.occupancy
    return FlowJobs.of(problem.network, paths, pieces, unit_bytes, occupancy)


def _scheduled(
    problem: _Problem, paths: FlowPaths, jobs: FlowJobs, start: Int64Array
) -> FlowSchedule:
    return schedule_of(problem.network, problem.demand, paths, jobs, start)


def _judged(
    problem: _Problem,
    schedule: FlowSchedule,
    pieces: int,
) -> _Found:
    """The algorithm of a schedule with the simulator's time, else its own."""
    algorithm = _algorithm(problem, schedule, None)
    own_ns = -(-schedule.time_ps // 1000)
    time_ns = own_ns
    if len(schedule.transfers) <= _MOST_SIMULATED:
        time_ns = problem.request.simulate(algorithm) or own_ns
    return _Found(schedule, algorithm, pieces, time_ns)


def _algorithm(
    problem: _Problem, schedule: FlowSchedule, wanted: tuple[int, ...] | None
) -> Algorithm:
    request = problem.request
    collective = request.collective
    units = schedule.share_units * collective.kind.traits.parts(collective.num_ranks)
    whole = replace(collective, unit_count=units)
    return algorithm_of(
        whole,
        schedule.chunks_of(whole, request.npus),
        schedule.transfers,
        npus=request.npus,
        num_npus=request.topology.num_npus,
        wanted=wanted,
        collective_bytes=request.collective_bytes,
    )
