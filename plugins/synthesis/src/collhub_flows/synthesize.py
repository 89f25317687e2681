"""Synthesize: compute a flow, its paths, the fastest order of their pieces, and the bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np

from collhub_flows.jobs import NUM_TIE_ORDERS, FlowJobs, FlowPaths, FlowSchedule, build_schedule
from collhub_flows.optimal_flow import (
    Flow,
    FlowArcs,
    FlowDemand,
    approximate_flow,
    certify_flow,
    solve_exact_flow,
)
from collhub_flows.plugin import FlowOptions
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
# Method of a flow by a linear program.
_EXACT = "exact flow"
_LADDER = (1, 2, 4, 8)
# Means, of paths with different sizes.
_UNEVEN_LADDER = (1, 2, 4, 8, 16, 32)
# Further means, for at most this number of jobs; the last one only far from the bound.
_FINE_UNEVEN_LADDER = (64, 128, 256)
_MAX_FINE_JOBS = 150_000
# Ratio to a bound above which a time is far from it, so that a longer search is justified.
_FAR_RATIO = 1.03
# Further means for equal shares, tried far from the bound of the flow. A schedule of them must be
# faster by this fraction to justify its messages.
_FINE_LADDER = (16, 32, 64)
_MIN_FINE_GAIN = 0.01
# Minimum gain in the load of the busiest link for which paths through switches are balanced.
_MIN_BALANCE_GAIN = 0.02
# Units per share for these means, and for uneven shares: rounding adds at most a thousandth to the
# load of a link.
_FINE_SHARE_UNITS = 960
# Units of all shares up to which verification examines every unit.
_MAX_FINE_UNITS = 1 << 20
# Divisible by every count of the ladder; a unit is less than half a percent of a share.
_SHARE_UNITS = 240
# The next power of two: sizes of messages are mostly multiples of powers of two.
_MAX_SHARE_UNITS = 256
# Number of variables up to which the linear program takes seconds. For uneven shares, whose
# approximate paths miss the optimum by more, it may take up to 15 CPU s.
_MAX_EXACT, _MAX_EXACT_UNEVEN = 40_000, 45_000
# Above these limits the approximate flow takes minutes; they allow about 512 NPUs on a torus.
_MAX_VARIABLES = 4_000_000
_MAX_SHARES = 300_000
# Number of jobs above which further counts of pieces take too long, and number of transfers above
# which the simulator does.
_MAX_JOBS = 400_000
_MAX_SIMULATED = 1 << 20
# Number of jobs up to which uneven shares on switches are scheduled with other tie orders.
_MAX_TIE_JOBS = 100_000
# Number of jobs up to which improved orders are computed for all counts of pieces.
_FEW_JOBS = 50_000
# Ratio to the fastest planned time above which a schedule is not simulated.
_MAX_SLOWDOWN = 1.05
# Ratio to the bound of all orders below which more pieces are not tried.
_GOOD_RATIO = 1.01


def synthesize(request: SynthesisRequest, options: FlowOptions) -> SynthesisResult:
    """Synthesize the fastest algorithm along the paths of the optimal flow.

    Compilation of kernels is reported as progress. Raises `UsageError` for topologies with several
    planes, if no rank sends data to another one, and for sizes below one byte per share
    (all-to-all-v: per unit). Raises `InputError` for collectives other than all-to-all,
    all-to-all-v, scatter and gather, for unreachable targets, and for networks that are too large.
    """
    # Imports numba, which takes a second.
    from collhub_packing.compiling import COMPILING, compilations

    # Reports as progress that kernels are compiled.
    with compilations(lambda: request.progress(0.0, COMPILING)):
        return _synthesize(request, options)


def _check_size(request: SynthesisRequest) -> None:
    """Raise `InputError` (`too-large`) for a network whose flow would need hours or all memory.

    That is so if sources times arcs exceed 4,000,000 (`_MAX_VARIABLES`), or pairs of ranks exceed
    300,000 (`_MAX_SHARES`). With r ranks:

    - Arcs: the links, or with switches the square of the number of NPUs, because there may be an
      arc between any two of them.
    - Sources: 1 for a scatter, r for other collectives.
    - Pairs: r * r for an all-to-all and all-to-all-v, r for other collectives.
    """
    topology, kind = request.topology, request.collective.kind
    npus, ranks = topology.num_npus, len(request.npus)
    # With switches there may be an arc between any two NPUs.
    has_switches = topology.num_nodes > npus
    arcs = topology.num_links
    if has_switches:
        arcs = npus * npus
    sources = ranks
    if kind is CollectiveKind.SCATTER:
        sources = 1
    pairs = ranks
    if kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL_V):
        pairs = ranks * ranks
    if sources * arcs <= _MAX_VARIABLES and pairs <= _MAX_SHARES:
        return
    raise InputError(
        f"topology {topology.name}: a flow from {sources} NPUs on {arcs} arcs is too large",
        cure="use tacos",
        code="too-large",
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """A request with its network and demand, and the bytes of a share (the mean if uneven)."""

    request: SynthesisRequest
    network: FlowArcs
    demand: FlowDemand
    share_bytes: float

    @classmethod
    def of(cls, request: SynthesisRequest) -> _Problem:
        """Build the problem of a request: network, demand, and bytes per share (a float).

        The bytes per share are the bytes of the collective / `demand.parts` * `demand.scale`. For
        an all-to-all of n ranks that is 1/n of the buffer; for an all-to-all-v it is the mean of
        all shares that are not empty.

        Raises, in this order: `UsageError` for several planes (`planes-unsupported`); `InputError`
        for networks that are too large (`too-large`), and for collectives without a flow
        (`collective-unsupported`); `UsageError` if no rank sends data to another one (`one-rank`);
        `InputError` (`disconnected`) for networks with switches in which an NPU cannot reach
        another one. Networks without switches are not checked for missing links here.
        """
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
            is_single = request.collective.num_ranks == 1
            raise UsageError(
                "one rank has nothing to send"
                if is_single
                else "no rank sends data to another one",
                cure="let at least two ranks take part" if is_single else "use direct: copies only",
                code="one-rank",
            )
        share_bytes = request.collective_bytes / demand.parts * demand.scale
        return cls(request, FlowArcs.of(topology), demand, share_bytes)

    @property
    def fluid_cost_s(self) -> Float64Array:
        """Seconds that the bytes of a share occupy each link, without latency: float64[links]."""
        return self.share_bytes / self.request.topology.bandwidth_bytes_per_s

    @property
    def cost_s(self) -> Float64Array:
        """Return the seconds for which one share occupies each link: float64[links].

        In the alpha-beta model the latency is included, in the serialization model it is not.
        """
        if self.request.occupancy is Occupancy.ALPHA_BETA:
            return self.fluid_cost_s + self.request.topology.latency_s
        return self.fluid_cost_s

    @property
    def part_bytes(self) -> float:
        """Bytes of a part of the data: a share, or one unit of uneven counts."""
        return self.request.collective_bytes / self.demand.parts

    def find_paths(
        self,
        flow: Flow,
        share_units: int,
        max_pieces: int,
        *,
        is_fine: bool = False,
        is_approximate: bool = False,
    ) -> FlowPaths:
        """Divide a flow of this problem into paths, as `FlowPaths.of` does."""
        return FlowPaths.of(
            self.network,
            self.demand,
            flow,
            share_units,
            max_pieces,
            self.cost_s,
            is_fine=is_fine,
            is_approximate=is_approximate,
        )

    def build_jobs(self, paths: FlowPaths, pieces: int) -> FlowJobs:
        """Build the jobs that send the data of `paths`: one per piece and link of its path.

        A path has at most `pieces` pieces; for paths of uneven shares, `pieces` is the mean
        number (`FlowPaths.divide`). Raises the `InputError` of `FlowJobs.of`.
        """
        unit_bytes = self.part_bytes / paths.share_units
        return FlowJobs.of(self.network, paths, pieces, unit_bytes, self.request.occupancy)

    @property
    def fine_share_units(self) -> int:
        """Number of units of a mean share that allows many pieces: 240 to 960.

        For n shares it is `_MAX_FINE_UNITS` (2^20) // n, limited to `_SHARE_UNITS` (240) to
        `_FINE_SHARE_UNITS` (960). So all shares together have at most `_MAX_FINE_UNITS` units,
        unless 240 units per share are more.
        """
        most = _MAX_FINE_UNITS // len(self.demand.pairs[0])
        return min(_FINE_SHARE_UNITS, max(_SHARE_UNITS, most))

    def share_units(self) -> int:
        """Return the number of units per part of the data.

        A part is the data from one NPU to another or, with uneven counts, one unit of the counts.
        b is the bytes of a part, rounded down. The first rule that applies:

        1. `request.units` is not None: its largest allowed number that is at most 256
           (`_MAX_SHARE_UNITS`) and at most b. If all are larger, the smallest one.
        2. Equal shares: the smaller of 240 (`_SHARE_UNITS`) and b.
        3. Uneven shares: the smaller of b and `fine_share_units` / `demand.scale`, rounded up.
           `demand.scale` is the number of parts of a mean share.

        Raises `UsageError` (`size-too-small`) first, if a part has less than one byte. Raises
        `InputError` (`size-not-served`) if `request.units` allows no number.
        """
        if self.part_bytes < 1:
            raise UsageError(
                "too few bytes for a byte per "
                f"{'share' if self.request.collective.counts is None else 'unit'}: "
                f"{self.request.collective_bytes}",
                cure="choose a larger size",
                code="size-too-small",
            )
        units = self.request.units
        if units is None:
            share_units = self.fine_share_units if self.demand.is_uneven else _SHARE_UNITS
            return min(math.ceil(share_units / self.demand.scale), int(self.part_bytes))
        count = units.choose_count(self.demand.parts, min(_MAX_SHARE_UNITS, int(self.part_bytes)))
        if count is None:
            raise units.build_error(self.demand.parts)
        return count


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A schedule with its algorithm and time; `pieces`: maximum number of pieces per path."""

    schedule: FlowSchedule
    algorithm: Algorithm
    pieces: int
    time_ns: int
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """Jobs with the starts of their first order, and the simulated candidate of it."""

    candidate: _Candidate
    jobs: FlowJobs
    start: Int64Array


def _synthesize(request: SynthesisRequest, options: FlowOptions) -> SynthesisResult:
    problem = _Problem.of(request)
    share_units = problem.share_units()
    request.progress(0.0, "flow")
    flow, method = _compute_flow(problem, options)
    # Counted as one step per variable, also if the flow was cached.
    request.budget.count(len(problem.demand.sources) * problem.network.num_arcs)
    request.progress(0.5, "paths")
    paths = problem.find_paths(flow, share_units, options.pieces or _LADDER[-1])
    if paths.is_uneven and method != _EXACT:
        # The flow is approximate. Balanced paths are used if they relieve the busiest link enough.
        balanced = problem.find_paths(flow, share_units, _LADDER[-1], is_approximate=True)
        load_ps, balanced_ps = (problem.build_jobs(one, 1).bound_ps() for one in (paths, balanced))
        if balanced_ps <= (1 - _MIN_BALANCE_GAIN) * load_ps:
            paths = balanced
    certificate = certify_flow(problem.network, problem.demand, flow, request)
    best = fastest_of(
        _generate_all(problem, paths, flow, certificate.bound_ns, options),
        lambda candidate: candidate.time_ns,
    )
    assert best is not None
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
        algorithm = _build_algorithm(problem, best.schedule, request.wanted)
    option_texts = {name: str(value) for name, value in asdict(options).items()}
    # Sources that are imported without an installation have no version.
    version = installed_version("collhub-synthesis") or ""
    algorithm = replace(
        algorithm,
        provenance=Provenance(_NAME, version, request.topology.name, "", option_texts),
        extensions={_NAME: extension},
    )
    is_partial = request.wanted is not None
    return SynthesisResult(algorithm, best.time_ns, bounds, statistics, is_partial)


def _compute_flow(problem: _Problem, options: FlowOptions) -> tuple[Flow, str]:
    """Return the optimal flow of the full demand, and a text that describes the method.

    The flow depends only on the ratios of the link costs and not on the number of units, so one
    cached result serves many sizes. The caller must not change it. Raises `InputError` if a target
    is unreachable.
    """
    request = problem.request
    # Only ratios of costs matter; without latency they are equal for all sizes.
    cost = problem.cost_s / problem.cost_s.max()
    collective = request.collective
    if not collective.kind.traits.is_uneven:
        units = collective.kind.traits.parts(collective.num_ranks)
        collective = replace(collective, unit_count=units)
    return _compute_flow_at(
        request.topology, collective, tuple(request.npus), cost.tobytes(), options
    )


# A comparison requests many sizes on one network.
@lru_cache(maxsize=4)
def _compute_flow_at(
    topology: Topology,
    collective: Collective,
    npus: tuple[int, ...],
    cost: bytes,
    options: FlowOptions,
) -> tuple[Flow, str]:
    """Return the optimal flow for given link costs, and a text that names the method.

    `cost`: the bytes of a float64 array with the cost of each link, in any unit. The number of
    variables is sources times arcs. The option `method` decides:

    - `exact`: a linear program, with the text `exact flow`.
    - `auto`: the same for at most `_MAX_EXACT` (40 000) variables, or `_MAX_EXACT_UNEVEN` (45 000)
      if the shares are uneven.
    - In all other cases, and if the linear program ends without an optimal solution: an
      approximation, with the text `approximate flow, N phases`. N is the option `phases`. If
      `phases` is 0, N is 4e8 / variables / 15, rounded down, at least 60 and at most 400.

    The last 4 results are cached, so callers must not change them. Raises `InputError`
    (`unreachable`) if a target is unreachable.
    """
    network = FlowArcs.of(topology)
    demand = FlowDemand.of(collective, npus, topology.num_npus)
    # The key of the cache must be hashable, so the array is passed as bytes.
    costs = np.frombuffer(cost)
    variables = len(demand.sources) * network.num_arcs
    is_exact = options.method == "exact"
    if options.method == "auto":
        is_exact = variables <= (_MAX_EXACT_UNEVEN if demand.is_uneven else _MAX_EXACT)
    exact = solve_exact_flow(network, demand, costs) if is_exact else None
    if exact is not None:
        return exact, _EXACT
    # On large networks fewer phases suffice for a gap of one percent.
    phases = options.phases or int(np.clip(4e8 / variables / 15, 60, 400))
    flow = approximate_flow(network, demand, costs, phases)
    return flow, f"approximate flow, {phases} phases"


def _generate_all(
    problem: _Problem, paths: FlowPaths, flow: Flow, bound_ns: int, options: FlowOptions
) -> Iterator[_Candidate]:
    """Yield candidates with few pieces per path, then faster ones with many pieces.

    A path's data are sent in equal pieces, one after the other. The candidates are those of
    `_generate_candidates`, with their times. All candidates with few pieces are yielded. Their
    numbers of pieces are the option `pieces`, or else 1, 2, 4 and 8. For uneven shares without the
    option, they are means, and 16 to 256 (powers of two) follow.

    Then 16, 32 and 64 pieces are tried, with shares in smaller units (`fine_share_units`), unless
    one of these cases holds:

    - Shares have unequal sizes, or the option `pieces` or the request (`units`) limits them.
    - The best time so far is at most `_FAR_RATIO` (1.03) * `bound_ns`, the bound of the flow in ns.
    - The number of pieces gives more than `_MAX_FINE_JOBS` (150 000) jobs.

    A candidate with many pieces is yielded only if its time is at most 0.99 times that of the best
    one with few pieces (`_MIN_FINE_GAIN`).
    """
    ladder: tuple[int, ...] = (options.pieces,) if options.pieces else _LADDER
    if paths.is_uneven and not options.pieces:
        ladder = _UNEVEN_LADDER + _FINE_UNEVEN_LADDER
    best_ns: int | None = None
    for candidate in _generate_candidates(problem, paths, ladder):
        best_ns = candidate.time_ns if best_ns is None else min(best_ns, candidate.time_ns)
        yield candidate
    assert best_ns is not None
    is_limited = options.pieces or problem.request.units is not None or paths.is_uneven
    if is_limited or best_ns <= _FAR_RATIO * bound_ns:
        return
    share_units = min(problem.fine_share_units, int(problem.part_bytes))
    fine_paths = problem.find_paths(flow, share_units, _FINE_LADDER[-1], is_fine=True)
    links_of_arcs = np.diff(problem.network.routes.indptr)
    jobs_per_piece = int(links_of_arcs[fine_paths.arcs].sum())
    ladder = tuple(pieces for pieces in _FINE_LADDER if pieces * jobs_per_piece <= _MAX_FINE_JOBS)
    if not ladder:
        return
    for candidate in _generate_candidates(problem, fine_paths, ladder):
        if candidate.time_ns <= (1 - _MIN_FINE_GAIN) * best_ns:
            yield candidate


def _generate_candidates(
    problem: _Problem, paths: FlowPaths, ladder: Sequence[int]
) -> Iterator[_Candidate]:
    """Yield simulated schedules for all numbers of pieces per path, then one further variant.

    In that variant of the fastest schedule, messages that could start at time 0 on the same link
    are sent one after the other. Of equally fast schedules the first is the fastest.
    """
    fastest: _Candidate | None = None
    for candidate in _generate_by_pieces(problem, paths, ladder):
        if fastest is None or candidate.time_ns < fastest.time_ns:
            fastest = candidate
        yield candidate
    if fastest is not None:
        # Messages that start at the same time may contend later; ordered ones lose a latency.
        yield _simulate_candidate(problem, fastest.schedule.order_first_messages(), fastest.pieces)


def _generate_by_pieces(
    problem: _Problem, paths: FlowPaths, ladder: Sequence[int]
) -> Iterator[_Candidate]:
    """Yield a simulated schedule per number of pieces, then schedules with improved orders.

    The numbers of pieces (for uneven shares the means) are those of `ladder`, in its order. The
    first is always used. The search stops before a later number with more than 400 000 jobs
    (150 000 for 64, 128 and 256 pieces). It also stops if the fastest time so far exceeds the bound
    of the number (`bound_ps`) by at most 1 % (3 % for 256 pieces). The order of a number is
    `order_by_progress` for uneven shares, otherwise `order_by_pieces`.

    Then improved orders follow, by number. A number is improved if it has at most 50 000 jobs; the
    fastest and the last number if they have at most 400 000. Uneven shares are not improved if the
    fastest time is within 1 % of the number's bound. The candidates are the result of
    `improve_orders` with the least planned time and, for uneven shares, the same from the first
    order. One is skipped if it equals the first order, or if its planned time exceeds 1.05 times
    the smallest planned first time.

    For uneven shares with switches, improved schedules get `order_as_planned`, and
    `_generate_with_tie_orders` follows. Progress is reported before each number of pieces.
    """
    topology = problem.request.topology
    has_switches, is_uneven = topology.num_nodes > topology.num_npus, paths.is_uneven
    trials: list[_Trial] = []
    for index, pieces in enumerate(ladder):
        problem.request.progress(0.5 + 0.5 * index / len(ladder), "schedules")
        jobs = problem.build_jobs(paths, pieces)
        max_jobs = _MAX_FINE_JOBS if pieces in _FINE_UNEVEN_LADDER else _MAX_JOBS
        if index and len(jobs.link) > max_jobs:
            break
        # Finer pieces gain nothing if latencies or loads determine the time.
        fastest_ns = min((trial.candidate.time_ns for trial in trials), default=0)
        good_ratio = _FAR_RATIO if pieces == _FINE_UNEVEN_LADDER[-1] else _GOOD_RATIO
        if fastest_ns and 1000 * fastest_ns <= good_ratio * jobs.bound_ps():
            break
        start = jobs.order_by_progress(has_switches) if is_uneven else jobs.order_by_pieces()
        candidate = _simulate_candidate(
            problem, _schedule_jobs(problem, paths, jobs, start), pieces
        )
        trials.append(_Trial(candidate, jobs, start))
        yield candidate
    # Yield the best improved order of each count of pieces, if its computation is fast enough.
    best_ps = min(trial.candidate.schedule.time_ps for trial in trials)
    fastest = min(trials, key=lambda trial: trial.candidate.time_ns)
    best_ns = fastest.candidate.time_ns
    for trial in trials:
        count = len(trial.jobs.link)
        # With many jobs, only the finest and the fastest count of pieces get improved orders; with
        # very many jobs none does.
        is_improved = count <= _FEW_JOBS or trial is fastest or trial is trials[-1]
        if not is_improved or count > _MAX_JOBS:
            continue
        jobs = trial.jobs
        if is_uneven and 1000 * fastest.candidate.time_ns <= _GOOD_RATIO * jobs.bound_ps():
            continue
        starts = [min(jobs.improve_orders(), key=jobs.time_ps)]
        if is_uneven:
            starts.append(min(jobs.improve_orders(trial.start), key=jobs.time_ps))
        for start in starts:
            schedule = _schedule_jobs(problem, paths, jobs, start)
            # Schedules that are simulated already or far slower than the best are skipped.
            is_fast = schedule.time_ps <= _MAX_SLOWDOWN * best_ps
            if is_fast and not np.array_equal(start, trial.start):
                if is_uneven and has_switches:
                    schedule = schedule.order_as_planned()
                candidate = _simulate_candidate(problem, schedule, trial.candidate.pieces)
                best_ns = min(best_ns, candidate.time_ns)
                yield candidate
    if is_uneven and has_switches:
        yield from _generate_with_tie_orders(problem, paths, trials, best_ns)


def _generate_with_tie_orders(
    problem: _Problem, paths: FlowPaths, trials: Sequence[_Trial], best_ns: int
) -> Iterator[_Candidate]:
    """Yield improved schedules with other pseudo-random orders of equal jobs.

    Which message a switch forwards first depends on details of a schedule, so the simulated times
    of equally good orders differ by several percent. All orders are tried for all numbers of pieces
    with at most `_MAX_TIE_JOBS` jobs, as long as the best time exceeds `_FAR_RATIO` times the bound
    of all orders. Jobs double with the number, so all numbers together take about twice as long as
    the finest one. Schedules whose planned time exceeds `_MAX_SLOWDOWN` times the best time are not
    simulated. `best_ns`: best time so far.
    """
    for trial in trials:
        if len(trial.jobs.link) > _MAX_TIE_JOBS:
            return
        for number in range(1, NUM_TIE_ORDERS):
            jobs = trial.jobs.with_tie_order(number)
            by_progress = jobs.order_by_progress(has_switches=True)
            for initial in (None, by_progress):
                if 1000 * best_ns <= _FAR_RATIO * jobs.bound_ps():
                    return
                start = min(jobs.improve_orders(initial), key=jobs.time_ps)
                schedule = _schedule_jobs(problem, paths, jobs, start)
                if schedule.time_ps > _MAX_SLOWDOWN * 1000 * best_ns:
                    continue
                if initial is None:
                    schedule = schedule.order_as_planned()
                candidate = _simulate_candidate(problem, schedule, trial.candidate.pieces)
                best_ns = min(best_ns, candidate.time_ns)
                yield candidate


def _schedule_jobs(
    problem: _Problem, paths: FlowPaths, jobs: FlowJobs, start: Int64Array
) -> FlowSchedule:
    return build_schedule(problem.network, paths, jobs, start)


def _simulate_candidate(
    problem: _Problem,
    schedule: FlowSchedule,
    pieces: int,
) -> _Candidate:
    """Build the algorithm of a schedule, and return it as a candidate with its time in ns.

    The time is simulated (`request.simulate`). If that gives None or 0, and for schedules
    of more than `_MAX_SIMULATED` transfers, it is the planned time of the schedule,
    rounded up. `pieces`: number of pieces per path, which is only recorded.
    """
    algorithm = _build_algorithm(problem, schedule, None)
    planned_ns = -(-schedule.time_ps // 1000)
    time_ns = planned_ns
    if len(schedule.transfers) <= _MAX_SIMULATED:
        time_ns = problem.request.simulate(algorithm) or planned_ns
    return _Candidate(schedule, algorithm, pieces, time_ns)


def _build_algorithm(
    problem: _Problem, schedule: FlowSchedule, ranks: tuple[int, ...] | None
) -> Algorithm:
    request = problem.request
    collective = request.collective
    units = schedule.share_units * problem.demand.parts
    counts = collective.counts and collective.counts.multiplied(schedule.share_units)
    divided = replace(collective, unit_count=units, counts=counts)
    return algorithm_of(
        divided,
        schedule.build_chunks(divided, request.npus),
        schedule.transfers,
        npus=request.npus,
        num_npus=request.topology.num_npus,
        wanted=ranks,
        collective_bytes=request.collective_bytes,
    )
