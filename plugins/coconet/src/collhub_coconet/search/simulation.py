"""Simulated times of programs, with the fastest algorithm, chunk count and protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from collhub_coconet.lowering.algorithms import Choice
from collhub_coconet.lowering.timing import Machine, makespan
from collhub_coconet.program.operations import Binding, Kind
from collhub_coconet.program.program import Program, reduces_scalar
from collhub_coconet.search.collective_times import (
    PROTOCOLS,
    Demand,
    Means,
    Protocol,
    Rates,
    find_demand,
    find_slowest_link,
)
from collhub_coconet.search.cost_models import ProgramTiming
from collhub_coconet.search.explore import (
    Candidate,
    Exploration,
    Progress,
    ignore_progress,
    run_tasks,
)
from collhub_coconet.search.hub_algorithms import HubAlgorithms, change_protocol
from hub_core import HubError, Registry, Topology, run_registry
from hub_core.model import Algorithm
from hub_core.plugin_api import SearchBudget

CHUNKS = (1, 4, 16)
# Algorithms per collective that are simulated within a program, the fastest alone.
_CONTENDERS = 3
# Nodes of all pieces of a collective on all ranks above which its chunk count is not tried.
_MAX_NODES = 60_000
# Collectives of a program above which equal ones keep equal means.
_MAX_REFINED = 8
# Codes of errors after which a program is not simulated with these means: the algorithm does not
# exist for this collective, number of ranks or size, the network has no room for the program, or a
# plugin is not installed. All remaining errors are defects of the program or of a plugin.
_CODES_OF_UNFIT_MEANS = frozenset(
    {
        "algorithm-does-not-fit",
        "disconnected",
        "invalid-subset",
        "no-contents",
        "collective-unsupported",
        "not-a-power",
        "not-available",
        "odd-ranks",
        "size-too-small",
        "too-large",
        "topology-too-small",
    }
)


@dataclass(frozen=True, slots=True)
class Simulation:
    """Machine on which programs are simulated: the rates of a rank, and the network.

    `registry`: the plugins of the run. `algorithms`: those of the hub for the network; None: they
    are collected in `hub`.
    """

    rates: Rates
    topology: Topology
    registry: Registry = field(default_factory=run_registry)
    algorithms: HubAlgorithms | None = None
    hub: HubAlgorithms = field(init=False)

    def __post_init__(self) -> None:
        hub = self.algorithms or HubAlgorithms(self.topology, self.registry)
        object.__setattr__(self, "hub", hub)

    def timing(self, program: Program, binding: Binding) -> ProgramTiming | str:
        """Simulate a program, and choose algorithm, protocol and chunk count of its collectives.

        1. Every collective gets the algorithm and protocol that are fastest in isolation.
        2. The chunk counts `CHUNKS` (1, 4, 16) are simulated, each for all collectives together.
           Collectives with a scalar result or too many steps keep 1 (`_try_chunks`). The fastest
           count is selected, the first one if times are equal.
        3. For each group of collectives with equal `Demand` (kind, bytes, ranks, root), in
           program order, alternatives are simulated. One that fits and is strictly faster than
           the best time so far replaces the choice of the whole group.

        Returns the time in s with the choices by name of the collective. A misfit is a `HubError`
        with only codes of `_CODES_OF_UNFIT_MEANS`. Returns its text if the network does not fit,
        or if no count of step 2 fits (text of the first count). Any other `HubError` is raised,
        also that for a collective without any algorithm.
        """
        try:
            choice = self._start(program, binding)
        except HubError as error:
            return _explain_unfit(error)
        timing = self._try_chunks(program, binding, choice)
        if isinstance(timing, str):
            return timing
        alike: dict[Demand, list[str]] = {}
        for name, demand in choice.demands.items():
            alike.setdefault(demand, []).append(name)
        return self._descend(program, binding, choice, timing, list(alike.values()))

    def _try_chunks(
        self,
        program: Program,
        binding: Binding,
        choice: _MeansOfProgram,
        counts: Sequence[int] = CHUNKS,
    ) -> ProgramTiming | str:
        """Simulate a program with each chunk count; return the fastest time in s with its choices.

        Each communication has the algorithm and protocol that are fastest in isolation, and starts
        with 1 chunk. For each of `counts`, in order, every communication gets this chunk count,
        except two kinds that keep 1 chunk: reductions to a scalar, and communications for which the
        count would need more than `_MAX_NODES` (60 000) steps. After a count above 1 that changes
        no communication, no further count is tried. Of equal times the first is returned.

        If no simulated count fits, the result is the reason of the first one as text. Raises
        `InputError` for a collective without an algorithm, and `HubError` for other errors of the
        simulation.
        """
        names = list(choice.demands)
        initial = {name: choice.find_initial(name) for name in names}
        best_s, selected, reason = math.inf, initial, ""
        for count in counts:
            trial = {name: choice.change_chunks(name, initial[name], count) for name in names}
            seconds = self._simulate(program, binding, choice, trial)
            if isinstance(seconds, str):
                reason = reason or seconds
            elif seconds < best_s:
                best_s, selected = seconds, trial
            if trial == initial and count > 1:
                break
        return reason if best_s == math.inf else ProgramTiming(best_s, selected)

    def list_restrictions(self, program: Program, binding: Binding) -> list[str]:
        """Describe the algorithms and chunk counts that are never simulated in a program.

        Returns up to three texts, in this order; [] without communications:

        1. If some collective has more than `_CONTENDERS` (3) algorithms: only the 3 fastest in
           isolation are compared.
        2. If there are communications (also Sends, and reductions to a scalar): only the chunk
           counts `CHUNKS` (1, 4, 16) are compared.
        3. If some communication, but no reduction to a scalar, needs more than `_MAX_NODES` (60
           000) nodes for 16 chunks: such counts are left out.

        Raises `InputError` for a network with too few NPUs or without links, and for a collective
        without an algorithm.
        """
        choice = self._start(program, binding)
        restrictions = []
        offers = {
            demand: len(self.hub.list_offers(demand))
            for demand in choice.demands.values()
            if demand.kind is not Kind.SEND
        }
        if any(count > _CONTENDERS for count in offers.values()):
            restrictions.append(
                f"of each collective, the {_CONTENDERS} algorithms that are fastest alone were "
                "simulated within a program"
            )
        if choice.demands:
            counts = ", ".join(map(str, CHUNKS))
            restrictions.append(f"chunk counts of collectives were {counts}")
        if any(
            choice.change_chunks(name, means, CHUNKS[-1]) == means
            for name in choice.demands
            if name not in choice.scalars
            for means in [choice.find_initial(name)]
        ):
            restrictions.append(
                f"chunk counts of collectives that need more than {_MAX_NODES} nodes were left out"
            )
        return restrictions

    def estimate(
        self, program: Program, binding: Binding, counts: Sequence[int] = CHUNKS
    ) -> ProgramTiming | str:
        """Simulate a program with one chunk count for all collectives; return the fastest result.

        Each of `counts` is simulated in order; of equal times the first counts. Each collective
        has the algorithm and protocol that are fastest in isolation. Reductions to a scalar,
        and collectives with too many steps, keep 1 chunk. Return the time in s with the
        choices. If the network or all counts do not fit, return the reason as text instead.
        Raise `HubError` for other errors.
        """
        try:
            choice = self._start(program, binding)
        except HubError as error:
            return _explain_unfit(error)
        return self._try_chunks(program, binding, choice, counts)

    def refined(self, program: Program, binding: Binding, timing: ProgramTiming) -> ProgramTiming:
        """Improve a time by choosing algorithm, protocol and chunk count for each collective.

        `timing`: the start, in which equal collectives have equal choices. The result is never
        slower. `timing` itself is returned if no two collectives are equal, since their choices
        are separate already, or if there are more than `_MAX_REFINED` collectives. Alternatives
        that do not fit are skipped. Raise `InputError` for a network with fewer NPUs than
        ranks, and `HubError` for other errors of the simulation.
        """
        choice = self._start(program, binding)
        names = list(choice.demands)
        if len(set(choice.demands.values())) == len(names) or len(names) > _MAX_REFINED:
            return timing
        return self._descend(program, binding, choice, timing, [[name] for name in names])

    def _start(self, program: Program, binding: Binding) -> _MeansOfProgram:
        """Collect the communications of a program, for which algorithms can then be chosen.

        The result has, by name of the operation in the order of the program, the demand (kind,
        bytes, ranks) of every communication. Left out are those of a single rank, and the members
        of a bucket after its first. It also has the names of all reductions of slices to scalars,
        and the bandwidth of the slowest NPU's fastest link in bytes/s. No algorithm is chosen yet.

        Raises `InputError` first if the network has fewer NPUs than the ranks of all groups, then
        for invalid counts, and for a network without links.
        """
        ranks = binding.num_ranks * program.num_groups
        self._build_machine(PROTOCOLS[0]).network(ranks, self.registry)
        demands = {}
        for operation in program.operations:
            demand = find_demand(program, binding, operation)
            if demand is not None:
                demands[operation.name] = demand
        scalars = {
            operation.name for operation in program.operations if reduces_scalar(program, operation)
        }
        rate = find_slowest_link(self.topology)[0]
        return _MeansOfProgram(self.hub, demands, scalars, rate)

    def _descend(
        self,
        program: Program,
        binding: Binding,
        choice: _MeansOfProgram,
        timing: ProgramTiming,
        groups: list[list[str]],
    ) -> ProgramTiming:
        """Try other algorithms, protocols and chunk counts group by group, once; keep faster ones.

        `groups`: names of collectives that get equal choices. `timing`: the start. The
        alternatives of a group come from `choice.list_alternatives` for its first member, with
        the choice that this member has before the group begins. They do not change when one of
        them is kept, so at most the last improvement of a group stays. Each alternative is
        given to all members, and the entire program is simulated. It is kept if it is strictly
        faster than the fastest time so far, and skipped if it does not fit. Kept choices apply
        to the following groups.

        Returns the fastest time in s with all choices; `timing` is not changed. Without groups
        or improvements the result equals `timing`. Raises `HubError` for errors other than a
        misfit.
        """
        best_s, selected = timing.seconds, dict(timing.choices)
        for names in groups:
            for means in choice.list_alternatives(names[0], selected[names[0]]):
                trial = selected | dict.fromkeys(names, means)
                seconds = self._simulate(program, binding, choice, trial)
                if not isinstance(seconds, str) and seconds < best_s:
                    best_s, selected = seconds, trial
        return ProgramTiming(best_s, selected)

    def simulate_means(
        self, program: Program, binding: Binding, means: Mapping[str, Means]
    ) -> float | str:
        """Simulate a program with the given algorithm, protocol and chunks of its communications.

        `means`: by name of the communication, one for each. Return the time in s, or the reason
        as text if the means or the network do not fit. Raise `HubError` for other errors, and
        `StopIteration` for an unknown algorithm or protocol.
        """
        try:
            choice = self._start(program, binding)
        except HubError as error:
            return _explain_unfit(error)
        return self._simulate(program, binding, choice, means)

    def _simulate(
        self,
        program: Program,
        binding: Binding,
        choice: _MeansOfProgram,
        means_by_name: Mapping[str, Means],
    ) -> float | str:
        """Simulate a program once; return the time in s, or the reason why the means do not fit.

        `means_by_name`: algorithm, protocol and chunk count of every communication in `choice`. The
        network has the latency of the fastest protocol among them, or of the first protocol without
        communications. Messages of a slower protocol are longer by the bytes that a link transfers
        in the additional latency.

        If the simulation raises `HubError` and all of its diagnostics have a code in
        `_CODES_OF_UNFIT_MEANS`, such as `too-large`, the result is the text of the error. Any other
        `HubError` is raised. Raises `StopIteration` for an unknown protocol or algorithm.
        """
        used = [choice.find_protocol(means) for means in means_by_name.values()]
        base = min(used or [PROTOCOLS[0]], key=lambda protocol: protocol.step_s)
        choices = {
            name: choice.create_choice(name, means, base) for name, means in means_by_name.items()
        }
        try:
            return makespan(
                program,
                binding,
                self._build_machine(base),
                choices,
                registry=self.registry,
                algorithms=choice.hub.contents,
            ).time_s
        except HubError as error:
            return _explain_unfit(error)

    def _build_machine(self, base: Protocol) -> Machine:
        """Return a machine whose network has the latency of a protocol, and the full bandwidth.

        Compute rates and launch time are those of `rates`.
        """
        return Machine(
            self.rates.operations_per_s,
            self.rates.memory_bytes_per_s,
            self.rates.launch_s,
            topology=change_protocol(self.topology, replace(base, data_share=1.0)),
        )


@dataclass(frozen=True, slots=True)
class _MeansOfProgram:
    """Means that the communications of one program may have.

    `demands`: by name; `scalars`: names of reductions to scalars, which have one chunk.
    `link_bytes_per_s`: rate at which additional latency is converted to bytes.
    """

    hub: HubAlgorithms
    demands: dict[str, Demand]
    scalars: set[str]
    link_bytes_per_s: float

    def find_initial(self, name: str) -> Means:
        """Return the algorithm and protocol that are fastest in isolation, with one chunk.

        `name`: of the communication, a key of `demands` (otherwise `KeyError`). Of equally fast
        algorithms the first by name is returned, with its first of equally fast protocols. A
        Send has the algorithm `direct` and the first of `PROTOCOLS`. Raises `InputError`
        (`algorithm-does-not-fit`) if the hub has no algorithm for the collective.
        """
        demand = self.demands[name]
        if demand.kind is Kind.SEND:
            return Means("direct", PROTOCOLS[0].name)
        return self.hub.find_fastest(demand)[1]

    def change_chunks(self, name: str, means: Means, count: int) -> Means:
        """Return the means (algorithm, protocol, chunks) with another chunk count.

        `means` is returned unchanged for a reduction to a scalar, and if `count` times the
        steps of the algorithm exceeds `_MAX_NODES` (60 000). A Send has one step. `name`: of
        the communication. Raises `StopIteration` if the hub has no algorithm of this name for
        it.
        """
        if name in self.scalars:
            return means
        demand, num_steps = self.demands[name], 1
        if demand.kind is not Kind.SEND:
            num_steps = len(self.hub.find_offer(demand, means.algorithm).algorithm.steps)
        return means if count * num_steps > _MAX_NODES else replace(means, chunks=count)

    def list_alternatives(self, name: str, means: Means) -> list[Means]:
        """List alternatives to the algorithm, protocol and chunk count `means` of a communication.

        The order is:

        1. Other algorithms among the `_CONTENDERS` (3) that are fastest in isolation, the
           fastest first. Each has its fastest protocol and the chunk count of `means`. A Send
           has none.
        2. `means` with each of the other protocols, in the order of `PROTOCOLS`.
        3. `means` with each of the other chunk counts in `CHUNKS` (1, 4, 16). Counts that need
           more than `_MAX_NODES` steps are left out, and all counts for a reduction to a
           scalar.

        `means` itself is not listed. Raises `InputError` (`algorithm-does-not-fit`) if the hub
        has no algorithm for the collective.
        """
        demand = self.demands[name]
        alternatives = []
        if demand.kind is not Kind.SEND:
            for offer in self.hub.list_offers(demand)[:_CONTENDERS]:
                other = Means(offer.name, offer.find_fastest_protocol(), means.chunks)
                if offer.name != means.algorithm:
                    alternatives.append(self.change_chunks(name, other, means.chunks))
        alternatives += [replace(means, protocol=protocol.name) for protocol in PROTOCOLS]
        alternatives += [self.change_chunks(name, means, count) for count in CHUNKS]
        return [other for other in dict.fromkeys(alternatives) if other != means]

    def create_choice(self, name: str, means: Means, base: Protocol) -> Choice:
        """Convert algorithm, protocol and chunk count (`means`) of a communication for lowering.

        `name`: the communication. Its chunks become `chunks`, and overlapped computations have as
        many tiles. The algorithm is the first that applies:

        1. An uneven collective in several chunks: the name in `means`, so that every chunk is
           synthesized for its counts. An algorithm of a file does not fit then, which the lowering
           reports.
        2. A Send: `direct`.
        3. Otherwise: the algorithm object that the hub offers for the collective under that name.

        `step_bytes`, which is added to each message, is (latency of the protocol - latency of
        `base`) * `link_bytes_per_s`, rounded; it may be negative. `base` is the protocol with the
        latency of the simulated network. `data_share` is that of the protocol. Raises
        `StopIteration` for an unknown protocol, and in case 3 for an unknown algorithm.
        """
        demand, protocol = self.demands[name], self.find_protocol(means)
        algorithm: str | Algorithm = "direct"
        if demand.counts is not None and means.chunks > 1:
            # The counts of a chunk are usually no multiple of those of the collective.
            algorithm = means.algorithm
        elif demand.kind is not Kind.SEND:
            algorithm = self.hub.find_offer(demand, means.algorithm).algorithm
        slower_s = protocol.step_s - base.step_s
        return Choice(
            algorithm,
            means.chunks,
            tiles=means.chunks,
            data_share=protocol.data_share,
            step_bytes=round(slower_s * self.link_bytes_per_s),
        )

    def find_protocol(self, means: Means) -> Protocol:
        """Return the protocol that has the name in the means.

        Raises `StopIteration` for an unknown name.
        """
        return next(protocol for protocol in PROTOCOLS if protocol.name == means.protocol)


def _explain_unfit(error: HubError) -> str:
    """Return the message of an error that a choice of algorithm or chunks can cause.

    These are errors where the codes of all diagnostics are in `_CODES_OF_UNFIT_MEANS`; the
    message is that of the first one. Otherwise the error is raised again.
    """
    if any(diagnostic.code not in _CODES_OF_UNFIT_MEANS for diagnostic in error.diagnostics):
        raise error
    return str(error)


def simulate_candidates(
    exploration: Exploration,
    bindings: Sequence[Binding],
    simulation: Simulation,
    count: int,
    *,
    workers: Executor | None = None,
    progress: Progress = ignore_progress,
    budget: SearchBudget | None = None,
) -> Exploration | str:
    """Simulate the most promising candidates of a search by formula, at all sizes (`bindings`).

    They are the original program and, for every size, the `count` fastest candidates by formula and
    the first `count` of the Pareto front of time and memory. The result has only them, in order of
    discovery, with simulated times, and a restriction if others are left out. At every size the
    fastest one then gets algorithm, protocol and chunk count per collective (`Simulation.refined`).

    The result is the reason as text if a program cannot be simulated (the first one), or if the
    budget allows none. `budget` (None: no limit) counts one unit per program and size. At its limit
    only candidates simulated at all sizes remain, without refinement; the budget records both.

    `workers`: processes to simulate in, None for this one. `progress` is called after each
    simulation. Raises `HubError` of the simulation, and `InputError` if a worker died.
    """
    budget = budget or SearchBudget()
    num_sizes = len(bindings)
    candidates = _select_promising(exploration, num_sizes, count)
    tasks = [
        (simulation, candidate.program, binding) for candidate in candidates for binding in bindings
    ]
    activity = f"simulating {len(candidates)} programs"

    def is_limit_reached(num_completed: int) -> bool:
        """Count one unit of work in `budget`; return whether its limit of work or time is reached.

        One unit is one program at one size; `num_completed` is the number of units so far.
        Calls `progress` with their fraction of all units first.
        """
        progress(num_completed / len(tasks), activity)
        budget.count(1)
        return bool(budget.reason)

    timings: list[ProgramTiming] = []
    for timing in run_tasks(workers, _simulate_task, tasks, is_limit_reached):
        if isinstance(timing, str):
            return timing
        timings.append(timing)
    num_complete = len(timings) // num_sizes
    if num_complete < len(candidates):
        num_missing = len(candidates) - num_complete
        budget.cut("simulation of programs", f"{num_missing} of {len(candidates)} programs")
        if not num_complete:
            return budget.reason
        candidates = candidates[:num_complete]
    simulated = [
        replace(candidate, timings=tuple(timings[index * num_sizes : (index + 1) * num_sizes]))
        for index, candidate in enumerate(candidates)
    ]
    if budget.reason:
        budget.cut("choice of means for each collective", "all of it")
    else:
        _refine_fastest(simulated, bindings, simulation, workers)
    restrictions = exploration.restrictions
    num_known = len(exploration.candidates)
    if len(simulated) < num_known:
        text = f"{len(simulated)} of {num_known} programs were simulated, the fastest by formula"
        restrictions = (*restrictions, text)
    return replace(exploration, candidates=simulated, restrictions=restrictions)


def _refine_fastest(
    candidates: list[Candidate],
    bindings: Sequence[Binding],
    simulation: Simulation,
    workers: Executor | None,
) -> None:
    """Refine the timing of the fastest candidate at every size (`Simulation.refined`).

    `candidates` must not be empty; refined ones are replaced in place. The fastest candidate of a
    size is chosen by the times before any refinement, of equal ones the first. Only its timing at
    that size is replaced; it never becomes slower. `workers`: processes to simulate in, None for
    this process. Raises `HubError` of the simulation.
    """
    fastest_indices = []
    for size_index in range(len(bindings)):
        seconds = [candidate.timings[size_index].seconds for candidate in candidates]
        fastest_indices.append(seconds.index(min(seconds)))
    tasks = [
        (simulation, candidates[index].program, binding, candidates[index].timings[size_index])
        for size_index, (index, binding) in enumerate(zip(fastest_indices, bindings, strict=True))
    ]
    refined_timings = run_tasks(workers, _refine_task, tasks)
    for size_index, index in enumerate(fastest_indices):
        timings = list(candidates[index].timings)
        timings[size_index] = refined_timings[size_index]
        candidates[index] = replace(candidates[index], timings=tuple(timings))


# Tasks for worker processes: the object and the arguments of a method are sent as one argument.


def _simulate_task(task: tuple[Simulation, Program, Binding]) -> ProgramTiming | str:
    """Return `Simulation.timing` of the program of a task; called in worker processes.

    `task`: simulation, program, and binding of symbols and ranks. The result is the reason
    as text if the network does not fit, or no chunk count can be simulated. `HubError` is
    raised for other defects, also for a collective without any algorithm.
    """
    simulation, program, binding = task
    return simulation.timing(program, binding)


def _refine_task(task: tuple[Simulation, Program, Binding, ProgramTiming]) -> ProgramTiming:
    """Return `Simulation.refined` of the program of a task; called in worker processes.

    `task`: simulation, program, binding of symbols and ranks, and the timing to improve.
    The result is never slower than this timing. Raises `InputError` for a network with fewer
    NPUs than ranks, and `HubError` for other errors of the simulation.
    """
    simulation, program, binding, timing = task
    return simulation.refined(program, binding, timing)


def _select_promising(exploration: Exploration, num_sizes: int, count: int) -> list[Candidate]:
    """Select candidates to simulate, in the order of `exploration.candidates`, without duplicates.

    The first candidate (the original program) is always selected. At each of the sizes
    0..`num_sizes` - 1 these are added: the `count` candidates with the lowest estimated time
    (of equal times the first candidates), and the first `count` of the Pareto front of
    estimated time and peak memory, the fastest first.
    """
    candidates = exploration.candidates
    selected = {0}
    for size_index in range(num_sizes):
        seconds = [candidate.timings[size_index].seconds for candidate in candidates]
        by_time = sorted(range(len(candidates)), key=seconds.__getitem__)
        selected.update(by_time[:count])
        front = exploration.pareto_front(size_index)[:count]
        selected.update(candidates.index(candidate) for candidate in front)
    return [candidates[index] for index in sorted(selected)]
