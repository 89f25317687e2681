"""Plan groups: simulate joint, simultaneous and consecutive schedules, and choose the fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import hub_core
from collhub_flows.groups.jobs import NAME, own_provenance
from collhub_flows.groups.joining import combine_algorithms
from collhub_flows.groups.schedules import (
    OccupiedNetwork,
    compute_joint_bounds,
    find_fastest_schedule,
)
from collhub_flows.groups.shares import GroupWish, Shares, check_groups
from collhub_flows.optimal_flow import FlowArcs
from hub_core import Registry
from hub_core.model import (
    Algorithm,
    InputError,
    UsageError,
    format_ranks,
)
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import SearchBudget, SearchCut

MAX_WORK = 400_000
# More units cannot be divided further with 64-bit integers.
_MAX_COUNTED_UNITS = 1 << 40

# Method, algorithm of each group, all as one, and time.
_Candidate = tuple[str, tuple[Algorithm, ...], Algorithm | None, "GroupTime"]
_Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class GroupChoices:
    """Options of a plan.

    `name`: the synthesizer that also synthesizes each group separately, up to `work` as counted by
    `SearchBudget`. `budget`: budget of the plan, with the time limit of the user. `backend`: the
    simulator. `registry`: the plugins of the run, None for `run_registry`.
    """

    name: str = "auto"
    occupancy: Occupancy = Occupancy.SERIALIZATION
    backend: str = "analytical"
    work: int = MAX_WORK
    budget: SearchBudget = field(default_factory=SearchBudget)
    registry: Registry | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GroupPlan:
    """One algorithm per group, with simulated times.

    `joint`: all of them as one algorithm, None if they run one by one. `method`: `together`,
    `at once` (each synthesized separately) or `one by one`. `time`: time of the plan; `alone`: time
    of every group in isolation; `alone_makers`: synthesizer of its fastest algorithm. `bounds_ps`:
    bounds by name. `not_tried`: groups for which the named synthesizer did not run, with reasons.
    `cuts`: parts of the search that a limit has stopped. Ratios are computed in picoseconds.
    """

    wishes: tuple[GroupWish, ...]
    algorithms: tuple[Algorithm, ...]
    joint: Algorithm | None
    method: str
    time: GroupTime
    alone: tuple[GroupTime, ...]
    alone_makers: tuple[str, ...]
    bounds_ps: Mapping[str, int]
    not_tried: Mapping[int, str] = field(default_factory=dict)
    cuts: tuple[SearchCut, ...] = ()

    @property
    def one_by_one(self) -> GroupTime:
        """Time of all groups one after the other, in the order of their starts.

        Each begins at its start, or later when the one before has finished; without starts it is
        the sum of their times in isolation.
        """
        return _run_one_by_one(self.wishes, self.alone)

    @property
    def ratio(self) -> float:
        """Speedup: the time of all groups one after the other, divided by their time together."""
        return self.one_by_one.ps / max(self.time.ps, 1)

    @property
    def bounds_ns(self) -> dict[str, int]:
        """The bounds in integer nanoseconds, rounded down."""
        return {name: time_ps // 1000 for name, time_ps in self.bounds_ps.items()}

    @property
    def bound_ns(self) -> int:
        """The largest bound in integer nanoseconds, rounded down."""
        return max(self.bounds_ns.values())

    @property
    def ratio_to_bound(self) -> float:
        """Return the time of all groups together divided by the largest lower bound.

        The bound counts as at least 1 ps. If the time is below the bound by at most its rounding
        error (`slack_ps`), the ratio is 1. A ratio below 1 shows that the bound is wrong.
        """
        bound_ps = max(1, *self.bounds_ps.values())
        is_beaten = self.time.ps + self.time.slack_ps < bound_ps
        return self.time.ps / bound_ps if is_beaten else max(1.0, self.time.ps / bound_ps)


@dataclass(frozen=True, slots=True)
class GroupTime:
    """A simulated time: integer nanoseconds of the simulator, and picoseconds.

    `slack_ps`: maximum rounding error of the picoseconds.
    """

    ns: int
    ps: int
    slack_ps: int = 0

    @classmethod
    def total(cls, times: Sequence[GroupTime]) -> GroupTime:
        """Return the sum of the times, field by field: ns, ps and slack; 0 for none."""
        return cls(
            sum(time.ns for time in times),
            sum(time.ps for time in times),
            sum(time.slack_ps for time in times),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _SeparateAlgorithm:
    """The fastest algorithm of a group in isolation."""

    algorithm: Algorithm
    time_ns: int
    maker: str


def plan_groups(
    wishes: Sequence[GroupWish],
    topology: Topology,
    choices: GroupChoices | None = None,
    progress: _Progress = lambda fraction, label: None,
) -> GroupPlan:
    """Return the fastest plan for process groups that communicate at the same time.

    `wishes`: the collective, NPUs, size and start of each group; at least one group. The
    candidates, in this order:

    1. `together`: the joint schedule of all groups.
    2. `at once`: the separate algorithms (`_plan_separately`) at the same time. Only if they can be
       combined into one algorithm.
    3. `one by one`: the separate algorithms one after the other, in the order of their starts. Only
       for two or more groups. `joint` of the plan is then None.

    The one with the lowest simulated time in ps is taken; of equal times the first. At a time limit
    the plan consists of the best schedules so far, at least one per group, and `cuts` has the
    searches that ended.

    `progress` is called with a fraction and a label: 0 for the joint schedule, 0.3 to below 0.9 for
    the groups, 0.95 for the bounds.

    Raises `UsageError` for unknown NPUs (`npu-range`) and for the requests that `_check_requests`
    refuses. Raises `InputError` for unreachable NPUs (`unreachable`), too many shares
    (`too-large`), and a simulator without a time (`no-time`). Other errors of the simulator and the
    synthesizer propagate.
    """
    chosen = choices or GroupChoices()
    check_groups(wishes, topology.num_npus, topology.name)
    _check_requests(wishes, topology)
    network = OccupiedNetwork(FlowArcs.of(topology), chosen.occupancy)
    judge = partial(_simulate, topology=topology, choices=chosen)
    progress(0.0, "groups together")
    budget = chosen.budget.part()
    schedule = find_fastest_schedule(network, wishes, budget=budget)
    if budget.is_reached:
        budget.cut("groups together", "more parts and trees")
    together = schedule.algorithms(wishes)
    provenance = own_provenance(topology.name)
    starts = [wish.start_ns for wish in wishes]
    joint = combine_algorithms(together, provenance, schedule.turns(together), starts)
    alone, not_tried = _plan_separately(network, wishes, chosen, progress)
    times = tuple(judge(single.algorithm) for single in alone)
    candidates: list[_Candidate] = [("together", together, joint, judge(joint))]
    separate = tuple(single.algorithm for single in alone)
    try:
        at_once = combine_algorithms(separate, provenance, None, starts)
    except InputError:
        # The algorithms have no common unit.
        pass
    else:
        candidates.append(("at once", separate, at_once, judge(at_once)))
    # One group after the other is no other candidate for a single group.
    if len(wishes) > 1:
        candidates.append(("one by one", separate, None, _run_one_by_one(wishes, times)))
    progress(0.95, "bounds")
    method, algorithms, best, time = min(candidates, key=lambda candidate: candidate[3].ps)
    return GroupPlan(
        tuple(wishes),
        algorithms,
        best,
        method,
        time,
        times,
        tuple(single.maker for single in alone),
        compute_joint_bounds(network.flows, wishes, schedule.shares),
        not_tried,
        tuple(chosen.budget.cuts),
    )


def _check_requests(wishes: Sequence[GroupWish], topology: Topology) -> None:
    """Raise `UsageError` for the first reason why the groups cannot be scheduled.

    The first check is whether the topology has several planes (`planes-unsupported`). Then the
    groups are checked in order, each completely before the next one:

    1. The smallest share has less than one byte (`size-too-small`). A share is a part of the
       group's data with one source or sum, and one target or all members. Its bytes are the bytes
       of the group times its units / units of the full buffer.
    2. No share leaves its rank (`nothing-sent`).
    3. The group has more than 2^40 units (`too-large`).
    4. The group has more units than bytes (`size-too-small`).

    Without groups, only the planes are checked. Counts were divided by their greatest common
    divisor.
    """
    if topology.num_planes > 1:
        raise UsageError(
            f"topology {topology.name}: groups take one plane, not {topology.num_planes}",
            cure="name one of the networks alone",
            code="planes-unsupported",
        )
    for wish in wishes:
        if wish.share_bytes.min() < 1:
            raise UsageError(
                f"too few bytes for {len(wish.npus)} ranks: {wish.size}",
                cure="choose a larger size",
                code="size-too-small",
            )
        if not len(Shares.of([wish])):
            raise UsageError(
                f"no rank of the group {format_ranks(wish.npus)} sends data to another rank",
                cure="give a count above 0 beside the diagonal, or leave the group out",
                code="nothing-sent",
            )
        if wish.total_units > _MAX_COUNTED_UNITS:
            raise UsageError(
                f"the counts of {len(wish.npus)} ranks sum to {wish.total_units} units, at most "
                f"{_MAX_COUNTED_UNITS} can be scheduled together",
                cure="give counts in larger units",
                code="too-large",
            )
        if wish.size < wish.total_units:
            raise UsageError(
                f"{wish.size} bytes of the group {format_ranks(wish.npus)} are too few for the "
                f"{wish.total_units} units of its counts",
                cure="choose a larger size, or give counts in larger units",
                code="size-too-small",
            )


def _simulate_ns(algorithm: Algorithm, topology: Topology, choices: GroupChoices) -> int:
    """Simulate an algorithm with the chosen backend and return its time in ns.

    The size is its `collective_bytes`; None raises `AssertionError`. The option `occupancy` is
    given to the simulator only if it is not SERIALIZATION, the default. Raises `InputError`
    (`no-time`) if the backend reports no time. Other errors of `simulate` propagate, such as an
    unknown backend or an option that the backend does not have.
    """
    assert algorithm.collective_bytes is not None
    result = hub_core.simulate(
        algorithm,
        topology,
        algorithm.collective_bytes,
        backend=choices.backend,
        options=_get_simulator_options(choices),
        registry=choices.registry,
    )
    if result.time_ns is None:
        raise InputError(
            f"the simulator {choices.backend} states no time",
            cure="take another one with --backend",
            code="no-time",
        )
    return result.time_ns


def _simulate(algorithm: Algorithm, topology: Topology, choices: GroupChoices) -> GroupTime:
    """Simulate an algorithm with the chosen backend and link model and return its time.

    The algorithm must have a size (`collective_bytes`); None raises `AssertionError`. The result
    has:

    - `ns`: integer nanoseconds of the simulator
    - `ps`: the picoseconds of `exact_time`, which may simulate a second time. If they are None or
      0, 1000 times `ns`.
    - `slack_ps`: the maximum rounding error of `exact_time` in picoseconds

    Raises `InputError` (`no-time`) if the backend reports no time. Other errors of the simulation
    propagate.
    """
    assert algorithm.collective_bytes is not None
    time_ns = _simulate_ns(algorithm, topology, choices)
    exact = hub_core.exact_time(
        algorithm,
        topology,
        algorithm.collective_bytes,
        time_ns,
        backend=choices.backend,
        options=_get_simulator_options(choices),
        registry=choices.registry,
    )
    return GroupTime(time_ns, exact.time_ps or 1000 * time_ns, exact.slack_ps)


def _get_simulator_options(choices: GroupChoices) -> dict[str, str]:
    # Simulators with a single link model have no option for it.
    if choices.occupancy is Occupancy.SERIALIZATION:
        return {}
    return {"occupancy": str(choices.occupancy)}


def _run_one_by_one(wishes: Sequence[GroupWish], times: Sequence[GroupTime]) -> GroupTime:
    """Return the time at which all groups have finished if they run one after the other.

    Times are in ns and in ps, which are added separately. `times`: duration of each group.
    Groups run in the order of their starts (`start_ns`), those with equal starts in the
    order of `wishes`. A group begins at its start, or when the group before it has
    finished, if that is later. The rounding errors (`slack_ps`) of all groups add up.
    Without groups the time is 0.
    """
    total = GroupTime(0, 0)
    for number in sorted(range(len(wishes)), key=lambda number: wishes[number].start_ns):
        start_ns = wishes[number].start_ns
        begin = GroupTime(max(total.ns, start_ns), max(total.ps, 1000 * start_ns), total.slack_ps)
        total = GroupTime.total([begin, times[number]])
    return total


def _plan_separately(
    network: OccupiedNetwork,
    wishes: Sequence[GroupWish],
    choices: GroupChoices,
    progress: _Progress,
) -> tuple[list[_SeparateAlgorithm], dict[int, str]]:
    """Find the fastest algorithm of each group in isolation, by simulated time in ns.

    Returns one algorithm per group in the order of `wishes`; also the reasons why the synthesizer
    was not run, by group number from 0. Each group has the packed trees of this package as a
    candidate (at a limit of `choices.budget` the best so far). The second candidate is the
    algorithm of the synthesizer `choices.name`; of equal times the packed trees are taken.

    The synthesizer runs of all groups share `choices.work` steps, within `choices.budget`. If a
    limit is reached before a run, it is omitted, with `SearchBudget.reason` as the reason. A
    request that the synthesizer refuses (`_synthesize_separately`) has no second candidate and no
    reason.

    `progress` is called before each group with 0.3 + 0.6 * number / groups and "group NUMBER
    alone". Raises `InputError` for unreachable NPUs and a simulator without a time; other errors
    propagate.
    """
    fastest: list[_SeparateAlgorithm] = []
    not_tried: dict[int, str] = {}
    budget = choices.budget.part(choices.work)
    for number, wish in enumerate(wishes):
        progress(0.3 + 0.6 * number / len(wishes), f"group {number} alone")
        schedule = find_fastest_schedule(network, [wish], 1.0 / len(wishes), choices.budget.part())
        (packed,) = schedule.algorithms([wish])
        packed_ns = _simulate_ns(packed, network.flows.topology, choices)
        candidates = [_SeparateAlgorithm(packed, packed_ns, NAME)]
        if reason := budget.reason:
            not_tried[number] = reason
        else:
            candidates += _synthesize_separately(
                network.flows.topology, wish, choices, budget.part()
            )
        # Among equally fast ones, the algorithm of this package.
        fastest.append(min(candidates, key=lambda candidate: candidate.time_ns))
    return fastest, not_tried


def _synthesize_separately(
    topology: Topology, wish: GroupWish, choices: GroupChoices, budget: SearchBudget
) -> list[_SeparateAlgorithm]:
    """Return the algorithm of the chosen synthesizer for a group, with its simulated time in ns.

    The list has one entry: the algorithm with `wish.size` as `collective_bytes`, its time in ns,
    and `choices.name`. The list is empty in these cases; other errors are raised:

    - The synthesizer raises an `InputError`. Examples are a budget that ends before its first
      algorithm, and a simulator that gives no time.
    - It raises a `UsageError` with code `size-too-small`.

    The synthesizer compares its candidates by simulated times. If `budget` ends, its best algorithm
    so far is used. NPUs outside of the group may be relays. The result is simulated once more; the
    budget counts this simulation, but does not prevent it. Its errors are raised.
    """
    collective = wish.collective(1)
    if wish.counts is None:
        parts = wish.kind.traits.parts(len(wish.npus))
        collective = replace(collective, unit_count=parts)

    def time_ns(algorithm: Algorithm) -> int:
        sized = replace(algorithm, collective_bytes=wish.size)
        return _simulate_ns(sized, topology, choices)

    try:
        result = hub_core.synthesize(
            collective,
            topology,
            wish.size,
            name=choices.name,
            npus=wish.npus,
            occupancy=choices.occupancy,
            judge=time_ns,
            registry=choices.registry,
            budget=budget,
        )
    except InputError:
        return []
    except UsageError as error:
        if error.diagnostics[0].code != "size-too-small":
            raise
        return []
    algorithm = replace(result.algorithm, collective_bytes=wish.size)
    steps = len(algorithm.steps)
    simulated_ns = budget.simulated(steps, lambda: time_ns(algorithm), is_checked=False)
    return [_SeparateAlgorithm(algorithm, simulated_ns, choices.name)]
