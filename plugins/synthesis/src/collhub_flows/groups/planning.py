"""Groups together against one by one: the fastest of what was made, all of it simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import hub_core
from collhub_flows.groups.bounds import joint_bounds
from collhub_flows.groups.joining import side_by_side
from collhub_flows.groups.lowering import NAME, own_provenance
from collhub_flows.groups.schedules import GroupNetwork, fastest_schedule
from collhub_flows.groups.shares import Shares
from collhub_flows.groups.wishes import GroupWish, check_groups
from collhub_flows.network import FlowNetwork
from hub_core import Registry
from hub_core.model import (
    Algorithm,
    InputError,
    UsageError,
)
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import SearchBudget, SearchCut

MOST_WORK = 400_000

# Method, algorithm of each group, all as one, and time.
_Candidate = tuple[str, tuple[Algorithm, ...], Algorithm | None, "GroupTime"]
_Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class GroupChoices:
    """How groups are planned.

    `name`: the synthesizer that also makes each group's algorithm alone, until it has done `work`
    as counted by `SearchBudget`. `budget`: of the plan, with the time limit of the user.
    `backend`: the simulator that judges. `registry`: the plugins of the run, None for those of
    `run_registry`.
    """

    name: str = "auto"
    occupancy: Occupancy = Occupancy.SERIALIZATION
    backend: str = "analytical"
    work: int = MOST_WORK
    budget: SearchBudget = field(default_factory=SearchBudget)
    registry: Registry | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GroupPlan:
    """One algorithm a group, and how long all take, by simulation.

    `joint`: all of them as one algorithm, None where they are to run one by one. `method`:
    `together`, `at once` (each made alone) or `one by one`. `time`: of the plan; `alone`: of every
    group by itself; `alone_makers`: who made the fastest algorithm for it. `bounds_ps`: by name.
    `not_tried`: for which groups the named synthesizer was not asked, each with the reason.
    `cuts`: parts of the search that a limit has ended. Ratios are those of picoseconds.
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
        """Time of all groups one after another."""
        return GroupTime.total(self.alone)

    @property
    def ratio(self) -> float:
        """How many times faster than one by one."""
        return self.one_by_one.ps / max(self.time.ps, 1)

    @property
    def bounds_ns(self) -> dict[str, int]:
        """The bounds in whole nanoseconds, rounded down."""
        return {name: time_ps // 1000 for name, time_ps in self.bounds_ps.items()}

    @property
    def bound_ns(self) -> int:
        """The largest bound in whole nanoseconds, rounded down."""
        return max(self.bounds_ns.values())

    @property
    def ratio_to_bound(self) -> float:
        """Time by the largest bound; below 1 only if the bound is wrong."""
        bound_ps = max(1, *self.bounds_ps.values())
        is_beaten = self.time.ps + self.time.slack_ps < bound_ps
        return self.time.ps / bound_ps if is_beaten else max(1.0, self.time.ps / bound_ps)


@dataclass(frozen=True, slots=True)
class GroupTime:
    """A simulated time: whole nanoseconds as the simulator states them, and picoseconds.

    `slack_ps`: how much rounding may have taken from the picoseconds.
    """

    ns: int
    ps: int
    slack_ps: int = 0

    @classmethod
    def total(cls, times: Sequence[GroupTime]) -> GroupTime:
        """One after another."""
        return cls(
            sum(one.ns for one in times),
            sum(one.ps for one in times),
            sum(one.slack_ps for one in times),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Alone:
    """The fastest algorithm of a group by itself."""

    algorithm: Algorithm
    time_ns: int
    maker: str


def plan_groups(
    wishes: Sequence[GroupWish],
    topology: Topology,
    choices: GroupChoices | None = None,
    progress: _Progress = lambda fraction, what: None,
) -> GroupPlan:
    """The fastest plan found for groups that run at the same time; never behind one by one.

    At a time limit the plan is made of the best schedules so far, at least one for each group.
    Raises `InputError` for NPUs that cannot be reached and for what is too large, `UsageError` for
    NPUs that are not there, several planes, and sizes below a byte a share.
    """
    chosen = choices or GroupChoices()
    check_groups(wishes, topology.num_npus, topology.name)
    _check_planes_and_sizes(wishes, topology)
    network = GroupNetwork(FlowNetwork.of(topology), chosen.occupancy)
    judge = partial(_exact, topology=topology, choices=chosen)
    progress(0.0, "groups together")
    budget = chosen.budget.part()
    schedule = fastest_schedule(network, wishes, budget=budget)
    if budget.is_reached:
        budget.cut("groups together", "more parts and trees")
    together = schedule.algorithms(wishes)
    provenance = own_provenance(topology.name)
    joint = side_by_side(together, provenance, schedule.turns(together))
    alone, not_tried = _all_alone(network, wishes, chosen, progress)
    times = tuple(judge(each.algorithm) for each in alone)
    found: list[_Candidate] = [("together", together, joint, judge(joint))]
    # Groups of one plan each would have no other candidate.
    if len(wishes) > 1:
        single = tuple(each.algorithm for each in alone)
        found += _at_once(single, topology, judge)
        found.append(("one by one", single, None, GroupTime.total(times)))
    progress(0.95, "bounds")
    method, algorithms, best, time = min(found, key=lambda each: each[3].ps)
    return GroupPlan(
        tuple(wishes),
        algorithms,
        best,
        method,
        time,
        times,
        tuple(each.maker for each in alone),
        joint_bounds(network.flows, wishes, Shares.of(wishes)),
        not_tried,
        tuple(chosen.budget.cuts),
    )


def _check_planes_and_sizes(wishes: Sequence[GroupWish], topology: Topology) -> None:
    if topology.num_planes > 1:
        raise UsageError(
            f"topology {topology.name}: groups take one plane, not {topology.num_planes}",
            cure="name one of the networks alone",
            code="planes-unsupported",
        )
    for wish in wishes:
        if wish.share_bytes < 1:
            raise UsageError(
                f"{wish.size} bytes are too few for {len(wish.npus)} ranks",
                cure="choose a larger size",
                code="size-too-small",
            )


def _simulated(algorithm: Algorithm, topology: Topology, choices: GroupChoices) -> int:
    """Time of an algorithm of stated size, in nanoseconds. Raises `InputError` for none."""
    assert algorithm.collective_bytes is not None
    result = hub_core.simulate(
        algorithm,
        topology,
        algorithm.collective_bytes,
        backend=choices.backend,
        options=_simulator_options(choices),
        registry=choices.registry,
    )
    if result.time_ns is None:
        raise InputError(
            f"the simulator {choices.backend} states no time",
            cure="take another one with --backend",
            code="no-time",
        )
    return result.time_ns


def _exact(algorithm: Algorithm, topology: Topology, choices: GroupChoices) -> GroupTime:
    """Time of an algorithm of stated size, also in picoseconds."""
    assert algorithm.collective_bytes is not None
    time_ns = _simulated(algorithm, topology, choices)
    exact = hub_core.exact_time(
        algorithm,
        topology,
        algorithm.collective_bytes,
        time_ns,
        backend=choices.backend,
        options=_simulator_options(choices),
        registry=choices.registry,
    )
    return GroupTime(time_ns, exact.time_ps or 1000 * time_ns, exact.slack_ps)


def _simulator_options(choices: GroupChoices) -> dict[str, str]:
    # Some simulators know one link model alone, and have no option for it.
    if choices.occupancy is Occupancy.SERIALIZATION:
        return {}
    return {"occupancy": str(choices.occupancy)}


def _at_once(
    single: tuple[Algorithm, ...], topology: Topology, judge: Callable[[Algorithm], GroupTime]
) -> list[_Candidate]:
    """What was made for each group alone, started at the same time; none for unlike units."""
    try:
        joint = side_by_side(single, own_provenance(topology.name))
    except InputError:
        return []
    return [("at once", single, joint, judge(joint))]


def _all_alone(
    network: GroupNetwork,
    wishes: Sequence[GroupWish],
    choices: GroupChoices,
    progress: _Progress,
) -> tuple[list[_Alone], dict[int, str]]:
    """The fastest algorithm of each group by itself, and why the named synthesizer was not asked.

    The second by the number of the group.
    """
    found: list[_Alone] = []
    not_tried: dict[int, str] = {}
    budget = choices.budget.part(choices.work)
    for place, wish in enumerate(wishes):
        progress(0.3 + 0.6 * place / len(wishes), f"group {place} alone")
        made = [_own(network, wish, choices, 1.0 / len(wishes))]
        if reason := budget.reason:
            not_tried[place] = reason
        else:
            made += _by_name(network.flows.topology, wish, choices, budget.part())
        # Of equal ones the own.
        found.append(min(made, key=lambda each: each.time_ns))
    return found, not_tried


def _own(network: GroupNetwork, wish: GroupWish, choices: GroupChoices, effort: float) -> _Alone:
    budget = choices.budget.part()
    (algorithm,) = fastest_schedule(network, [wish], effort, budget).algorithms([wish])
    time_ns = _simulated(algorithm, network.flows.topology, choices)
    return _Alone(algorithm, time_ns, NAME)


def _by_name(
    topology: Topology, wish: GroupWish, choices: GroupChoices, budget: SearchBudget
) -> list[_Alone]:
    """What the named synthesizer makes for a group with all others as relays, if it does."""
    parts = wish.kind.traits.parts(len(wish.npus))
    collective = replace(wish.collective(1), unit_count=parts)

    def time_ns(algorithm: Algorithm) -> int:
        stated = replace(algorithm, collective_bytes=wish.size)
        return _simulated(stated, topology, choices)

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
    algorithm = replace(result.algorithm, collective_bytes=wish.size)
    steps = len(algorithm.steps)
    judged = budget.simulated(steps, lambda: time_ns(algorithm), is_checked=False)
    return [_Alone(algorithm, judged, choices.name)]
