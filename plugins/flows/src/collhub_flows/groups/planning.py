"""Groups together against one by one: the fastest of what was made, all of it simulated."""

from __future__ import annotations

import time
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

STEPS_OF_A_SIMULATION = 500
MOST_WORK = 400_000

# Method, algorithm of each group, all as one, and nanoseconds.
_Candidate = tuple[str, tuple[Algorithm, ...], Algorithm | None, int]
_Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class GroupChoices:
    """How groups are planned.

    `name`: the synthesizer that also makes each group's algorithm alone, until `work` is done:
    steps that were simulated for it, and `STEPS_OF_A_SIMULATION` for each simulation, a count that
    is the same on every machine. `timeout_s`: seconds after which it is asked no more, None without
    limit. `backend`: the simulator that judges. `registry`: the plugins of the run, None for those
    of `run_registry`.
    """

    name: str = "auto"
    occupancy: Occupancy = Occupancy.SERIALIZATION
    backend: str = "analytical"
    work: int = MOST_WORK
    timeout_s: float | None = None
    registry: Registry | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GroupPlan:
    """One algorithm a group, and how long all take; times in nanoseconds, by simulation.

    `joint`: all of them as one algorithm, None where they are to run one by one. `method`:
    `together`, `at once` (each made alone) or `one by one`. `alone_ns`: of every group by itself;
    `alone_makers`: who made the fastest algorithm for it. `not_tried`: for which groups the named
    synthesizer was not asked, each with the reason.
    """

    wishes: tuple[GroupWish, ...]
    algorithms: tuple[Algorithm, ...]
    joint: Algorithm | None
    method: str
    time_ns: int
    alone_ns: tuple[int, ...]
    alone_makers: tuple[str, ...]
    bounds_ns: dict[str, int]
    not_tried: Mapping[int, str] = field(default_factory=dict)

    @property
    def one_by_one_ns(self) -> int:
        """Time of all groups one after another."""
        return sum(self.alone_ns)

    @property
    def ratio(self) -> float:
        """How many times faster than one by one."""
        return self.one_by_one_ns / max(self.time_ns, 1)

    @property
    def bound_ns(self) -> int:
        """The largest bound, at least 1."""
        return max(1, *self.bounds_ns.values())

    @property
    def ratio_to_bound(self) -> float:
        """Time by the largest bound."""
        return self.time_ns / self.bound_ns


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

    Raises `InputError` for NPUs that cannot be reached and for what is too large, `UsageError` for
    NPUs that are not there, several planes, and sizes below a byte a share.
    """
    chosen = choices or GroupChoices()
    check_groups(wishes, topology.num_npus, topology.name)
    _check_planes_and_sizes(wishes, topology)
    network = GroupNetwork(FlowNetwork.of(topology), chosen.occupancy)
    judge = partial(_simulated, topology=topology, choices=chosen)
    progress(0.0, "groups together")
    schedule = fastest_schedule(network, wishes)
    together = schedule.algorithms(wishes)
    provenance = own_provenance(topology.name)
    joint = side_by_side(together, provenance, schedule.turns(together))
    alone, not_tried = _all_alone(network, wishes, chosen, progress)
    found: list[_Candidate] = [("together", together, joint, judge(joint))]
    # Groups of one plan each would have no other candidate.
    if len(wishes) > 1:
        single = tuple(each.algorithm for each in alone)
        found += _at_once(single, topology, judge)
        found.append(("one by one", single, None, sum(each.time_ns for each in alone)))
    progress(0.95, "bounds")
    method, algorithms, best, time_ns = min(found, key=lambda each: each[3])
    return GroupPlan(
        tuple(wishes),
        algorithms,
        best,
        method,
        time_ns,
        tuple(each.time_ns for each in alone),
        tuple(each.maker for each in alone),
        joint_bounds(network.flows, wishes, Shares.of(wishes)),
        not_tried,
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
    # Some simulators know one link model alone, and have no option for it.
    options = {"occupancy": str(choices.occupancy)}
    if choices.occupancy is Occupancy.SERIALIZATION:
        options = {}
    result = hub_core.simulate(
        algorithm,
        topology,
        algorithm.collective_bytes,
        backend=choices.backend,
        options=options,
        registry=choices.registry,
    )
    if result.time_ns is None:
        raise InputError(
            f"the simulator {choices.backend} states no time",
            cure="take another one with --backend",
            code="no-time",
        )
    return result.time_ns


def _at_once(
    single: tuple[Algorithm, ...], topology: Topology, judge: Callable[[Algorithm], int]
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
    work = _Work(choices)
    for place, wish in enumerate(wishes):
        progress(0.3 + 0.6 * place / len(wishes), f"group {place} alone")
        made = [_own(network, wish, choices, 1.0 / len(wishes))]
        if reason := work.limit():
            not_tried[place] = reason
        else:
            made += _by_name(network.flows.topology, wish, choices, work)
        # Of equal ones the own.
        found.append(min(made, key=lambda each: each.time_ns))
    return found, not_tried


class _Work:
    """The work for the named synthesizer, as `GroupChoices` counts it."""

    def __init__(self, choices: GroupChoices) -> None:
        self._choices = choices
        self._start_s = time.monotonic()
        self._done = 0

    def limit(self) -> str:
        """Why it is asked no more; empty if it may be."""
        work, timeout_s = self._choices.work, self._choices.timeout_s
        if self._done >= work:
            return f"the work limit was reached ({work} simulated steps, -O work=)"
        # Only if the user has set a time limit may the plan depend on the clock.
        if timeout_s is not None and time.monotonic() - self._start_s >= timeout_s:
            return f"the time limit was reached ({timeout_s:g} s, -O timeout=)"
        return ""

    def counted(self, judge: Callable[[Algorithm], int]) -> Callable[[Algorithm], int]:
        """The judge, each use of which is counted."""

        def time_ns(algorithm: Algorithm) -> int:
            self._done += len(algorithm.steps) + STEPS_OF_A_SIMULATION
            return judge(algorithm)

        return time_ns


def _own(network: GroupNetwork, wish: GroupWish, choices: GroupChoices, effort: float) -> _Alone:
    (algorithm,) = fastest_schedule(network, [wish], effort).algorithms([wish])
    time_ns = _simulated(algorithm, network.flows.topology, choices)
    return _Alone(algorithm, time_ns, NAME)


def _by_name(
    topology: Topology, wish: GroupWish, choices: GroupChoices, work: _Work
) -> list[_Alone]:
    """What the named synthesizer makes for a group with all others as relays, if it does."""
    parts = wish.kind.traits.parts(len(wish.npus))
    collective = replace(wish.collective(1), unit_count=parts)

    def time_ns(algorithm: Algorithm) -> int:
        stated = replace(algorithm, collective_bytes=wish.size)
        return _simulated(stated, topology, choices)

    judge = work.counted(time_ns)
    try:
        result = hub_core.synthesize(
            collective,
            topology,
            wish.size,
            name=choices.name,
            npus=wish.npus,
            occupancy=choices.occupancy,
            judge=judge,
            registry=choices.registry,
        )
    except InputError:
        return []
    algorithm = replace(result.algorithm, collective_bytes=wish.size)
    return [_Alone(algorithm, judge(algorithm), choices.name)]
