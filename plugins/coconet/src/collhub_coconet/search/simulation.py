"""Simulated times of programs, with the fastest algorithm, chunk count and protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from collhub_coconet.lowering.algorithms import Choice, select_fallbacks
from collhub_coconet.lowering.timing import Machine, makespan
from collhub_coconet.program.operations import Binding
from collhub_coconet.program.program import Program
from collhub_coconet.search.collective_times import PROTOCOLS, Means, Rates
from collhub_coconet.search.cost_models import Timing
from collhub_coconet.search.explore import (
    Candidate,
    Exploration,
    Progress,
    ignore_progress,
    run_tasks,
)
from hub_core import HubError, Registry, Topology, run_registry
from hub_core.plugin_api import SearchBudget

ALGORITHMS = ("ring", "halving-doubling", "double-binary-tree")
CHUNKS = (1, 4, 16)
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
_COMMON_MEANS = "all collectives"
"""Key in `Timing.choices` of the means that all collectives without an entry share."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """Machine on which programs are simulated: the rates of a rank, and the network.

    `registry`: the plugins of the run; a worker process receives them as its settings.
    """

    rates: Rates
    topology: Topology
    registry: Registry = field(default_factory=run_registry)

    def timing(self, program: Program, binding: Binding) -> Timing | str:
        """Simulate a program, and select one set of means for all of its collectives.

        Coordinate descent: the protocol is selected first, then the algorithm, then the chunk
        count; all combinations would need three times as many simulations. Collectives that these
        algorithms do not implement use a fixed algorithm. If no means fit, the result is the reason
        of the first ones. Raises `HubError` for errors with another reason.
        """
        best: tuple[float, Means] | None = None
        first_error = ""
        initial = Means(ALGORITHMS[0], PROTOCOLS[0].name, CHUNKS[0])
        for field_name in ("protocol", "algorithm", "chunks"):
            base = best[1] if best else initial
            for means in _vary(base, field_name):
                seconds = self._simulate(program, binding, {"": means})
                if isinstance(seconds, str):
                    first_error = first_error or seconds
                elif best is None or seconds < best[0]:
                    best = seconds, means
        if best is None:
            return first_error
        seconds, common = best
        fixed = {
            name: replace(common, algorithm=str(choice.algorithm))
            for name, choice in select_fallbacks(program, common.chunks).items()
        }
        all_fixed = all(name in fixed for name in _names_of_communications(program))
        return Timing(seconds, fixed if all_fixed else {_COMMON_MEANS: common} | fixed)

    def refined(self, program: Program, binding: Binding, timing: Timing) -> Timing:
        """Select an algorithm and a chunk count for each collective, starting from common means.

        `timing`: a result of `timing` for the same program and sizes. One collective after another,
        each value that reduces the simulated time is adopted; the protocol is not changed. Returns
        `timing` unless a collective got different means. If only one collective uses the common
        means, these are already selected for it and nothing is simulated.
        """
        common = timing.choices.get(_COMMON_MEANS)
        if common is None:
            return timing
        names = _names_of_communications(program)
        initial = {name: common for name in names if name not in timing.choices}
        best_seconds, selected = timing.seconds, dict(initial)
        for name in initial if len(initial) > 1 else ():
            for field_name in ("algorithm", "chunks"):
                for means in _vary(selected[name], field_name):
                    trial = {"": common, **selected, name: means}
                    seconds = self._simulate(program, binding, trial)
                    if not isinstance(seconds, str) and seconds < best_seconds:
                        best_seconds, selected[name] = seconds, means
        if selected == initial:
            return timing
        fixed = {name: means for name, means in timing.choices.items() if name != _COMMON_MEANS}
        return Timing(best_seconds, selected | fixed)

    def _simulate(
        self, program: Program, binding: Binding, means_by_name: Mapping[str, Means]
    ) -> float | str:
        """Simulate a program once; return seconds, or the reason why the means do not fit.

        `means_by_name`: means (algorithm, protocol, chunks) by name of a collective; the entry with
        the empty name applies to the remaining collectives, and its protocol to all of them: it
        scales the bandwidth and adds to the latency of every link. Chains get as many tiles as
        chunks. The reason is returned only if all diagnostics have a code of
        `_CODES_OF_UNFIT_MEANS`, such as for halving-doubling if the number of ranks is not a power
        of two; other `HubError`s are raised.
        """
        common = means_by_name[""]
        protocol = next(entry for entry in PROTOCOLS if entry.name == common.protocol)
        dimensions = tuple(
            replace(
                dimension,
                bandwidth_bytes_per_s=dimension.bandwidth_bytes_per_s * protocol.data_share,
                latency_s=dimension.latency_s + protocol.step_s,
            )
            for dimension in self.topology.dimensions
        )
        machine = Machine(
            self.rates.operations_per_s,
            self.rates.memory_bytes_per_s,
            self.rates.launch_s,
            topology=replace(
                self.topology,
                bandwidth_bytes_per_s=self.topology.bandwidth_bytes_per_s * protocol.data_share,
                latency_s=self.topology.latency_s + protocol.step_s,
                dimensions=dimensions,
            ),
        )
        # Computations in a chain are cut into as many tiles as collectives into chunks.
        choices = {
            name: Choice(means.algorithm, means.chunks, tiles=means.chunks)
            for name, means in means_by_name.items()
        } | select_fallbacks(program, common.chunks)
        try:
            return makespan(program, binding, machine, choices, registry=self.registry).time_s
        except HubError as error:
            if any(
                diagnostic.code not in _CODES_OF_UNFIT_MEANS for diagnostic in error.diagnostics
            ):
                raise
            return str(error)


def _names_of_communications(program: Program) -> list[str]:
    return [operation.name for operation in program.operations if operation.is_communication]


def _vary(means: Means, field_name: str) -> Iterator[Means]:
    """Yield copies of `means` with alternative values of one field.

    All protocols are yielded, the current one included; of algorithms and chunk counts only values
    that differ from the current one.
    """
    if field_name == "protocol":
        yield from (replace(means, protocol=protocol.name) for protocol in PROTOCOLS)
    elif field_name == "algorithm":
        for algorithm in ALGORITHMS:
            if algorithm != means.algorithm:
                yield replace(means, algorithm=algorithm)
    else:
        yield from (replace(means, chunks=count) for count in CHUNKS if count != means.chunks)


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
    """Simulate the most promising candidates of a search by formula.

    Simulated are, at every size, the original program, the `count` fastest candidates, and the
    first `count` of the Pareto front. The result contains only these candidates, with simulated
    times; at every size the fastest one gets means for each collective (`Simulation.refined`).

    If a program cannot be simulated, the result is the reason as text: times by formula and by
    simulation are never compared. `workers` simulate one program at one size per task. `budget`
    counts one unit of work per simulated size of a program. At its limit, only candidates that were
    simulated at all sizes are compared, without refinement; if there is none, the result is the
    name of the limit.
    """
    budget = budget or SearchBudget()
    num_sizes = len(bindings)
    candidates = _select_promising(exploration, num_sizes, count)
    tasks = [
        (simulation, candidate.program, binding) for candidate in candidates for binding in bindings
    ]
    activity = f"simulating {len(candidates)} programs"

    def is_limit_reached(num_completed: int) -> bool:
        """Count one unit of work, report the progress, and return True once a limit of the budget
        is reached.
        """
        progress(num_completed / len(tasks), activity)
        budget.count(1)
        return bool(budget.reason)

    timings: list[Timing] = []
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
    return replace(exploration, candidates=simulated)


def _refine_fastest(
    candidates: list[Candidate],
    bindings: Sequence[Binding],
    simulation: Simulation,
    workers: Executor | None,
) -> None:
    """Refine the timing of the fastest candidate at every size.

    Replaces these candidates in the list `candidates`, which is modified; only the timing at that
    size changes. Of equally fast ones the first is refined. `workers` computes in parallel; None:
    in this process.
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


def _simulate_task(task: tuple[Simulation, Program, Binding]) -> Timing | str:
    """Call `Simulation.timing`."""
    simulation, program, binding = task
    return simulation.timing(program, binding)


def _refine_task(task: tuple[Simulation, Program, Binding, Timing]) -> Timing:
    """Call `Simulation.refined`."""
    simulation, program, binding, timing = task
    return simulation.refined(program, binding, timing)


def _select_promising(exploration: Exploration, num_sizes: int, count: int) -> list[Candidate]:
    """Select candidates to simulate, in order of discovery, without duplicates.

    At every size: the original program, the `count` fastest (ties by order of discovery), and the
    `count` fastest of the Pareto front of time and memory.
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
