"""Simulated times of programs, with the best algorithm, chunk count and protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from collhub_coconet.lowering.algorithms import Choice, fallbacks
from collhub_coconet.lowering.timing import Machine, makespan
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from collhub_coconet.search.collective_times import PROTOCOLS, Means, Protocol
from collhub_coconet.search.cost_models import Timing
from collhub_coconet.search.explore import Candidate, Exploration
from collhub_coconet.search.rates import Rates
from collhub_coconet.search.workers import Progress, done_by, silent
from hub_core import HubError, Registry, Topology, run_registry
from hub_core.plugin_api import SearchBudget

ALGORITHMS = ("ring", "halving-doubling", "double-binary-tree")
CHUNKS = (1, 4, 16)
_EVERYTHING = "all collectives"


@dataclass(frozen=True, slots=True)
class Simulation:
    """The machine on which programs are simulated: rates of a rank, and the network.

    `registry`: the plugins of the run; a worker process receives them as its settings.
    """

    rates: Rates
    topology: Topology
    registry: Registry = field(default_factory=run_registry)

    def timing(self, program: Program, binding: Binding) -> Timing | str:
        """The best time found: protocols, then algorithms, then chunk counts, one after another.

        All collectives of the program are carried out by the same means, until `refined`. Where it
        cannot be simulated, the reason in one line.
        """
        # Coordinate descent: all combinations would be three times as many.
        best: tuple[float, Means] | None = None
        failed = ""
        means = Means(ALGORITHMS[0], PROTOCOLS[0].name, CHUNKS[0])
        for stage in ("protocol", "algorithm", "chunks"):
            start = best[1] if best else means
            for other in _others(start, stage):
                seconds = self._seconds(program, binding, {"": other})
                if isinstance(seconds, str):
                    failed = failed or seconds
                elif best is None or seconds < best[0]:
                    best = seconds, other
        if best is None:
            return failed
        # Collectives that have no choice go by the name of their own algorithm.
        others = fallbacks(program, best[1].chunks)
        named = {
            name: replace(best[1], algorithm=str(one.algorithm)) for name, one in others.items()
        }
        is_all = all(one.name in named for one in program.operations if one.is_communication)
        common = {} if is_all else {_EVERYTHING: best[1]}
        return Timing(best[0], common | named)

    def refined(self, program: Program, binding: Binding, timing: Timing) -> Timing:
        """The time with an algorithm and a chunk count of its own for every collective.

        One collective after another, each value that saves time kept; the protocol is one for all.
        """
        common = timing.choices.get(_EVERYTHING)
        if common is None:
            return timing
        names = [one.name for one in program.operations if one.is_communication]
        own = {name: common for name in names if name not in timing.choices}
        best, chosen = timing.seconds, dict(own)
        # Of one collective, the means of all are its own.
        for name in own if len(own) > 1 else ():
            for stage in ("algorithm", "chunks"):
                for other in _others(chosen[name], stage):
                    means = {"": common, **chosen, name: other}
                    seconds = self._seconds(program, binding, means)
                    if not isinstance(seconds, str) and seconds < best:
                        best, chosen[name] = seconds, other
        if chosen == own:
            return timing
        others = {name: one for name, one in timing.choices.items() if name != _EVERYTHING}
        return Timing(best, chosen | others)

    def _seconds(
        self, program: Program, binding: Binding, means: Mapping[str, Means]
    ) -> float | str:
        """Simulated seconds by means for each collective; the reason where they do not fit.

        `means`: by name, that of the empty name for all others.
        """
        common = means[""]
        protocol = next(one for one in PROTOCOLS if one.name == common.protocol)
        machine = Machine(
            self.rates.operations_per_s,
            self.rates.memory_bytes_per_s,
            self.rates.launch_s,
            topology=_seen_by(self.topology, protocol),
        )
        # Tiles of computations are as many as chunks of collectives.
        choices = {
            name: Choice(one.algorithm, one.chunks, tiles=one.chunks) for name, one in means.items()
        } | fallbacks(program, common.chunks)
        try:
            return makespan(program, binding, machine, choices, registry=self.registry).time_s
        # Halving needs a power of two, for one.
        except HubError as error:
            return str(error)


def _others(means: Means, stage: str) -> Iterator[Means]:
    """The means with all values of one of its parts."""
    if stage == "protocol":
        yield from (replace(means, protocol=one.name) for one in PROTOCOLS)
    elif stage == "algorithm":
        yield from (replace(means, algorithm=one) for one in ALGORITHMS if one != means.algorithm)
    else:
        yield from (replace(means, chunks=one) for one in CHUNKS if one != means.chunks)


def _seen_by(topology: Topology, protocol: Protocol) -> Topology:
    # Regular networks state their rates twice: by link, and by dimension.
    dimensions = tuple(
        replace(
            one,
            bandwidth_bytes_per_s=one.bandwidth_bytes_per_s * protocol.data_share,
            latency_s=one.latency_s + protocol.step_s,
        )
        for one in topology.dimensions
    )
    return replace(
        topology,
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s * protocol.data_share,
        latency_s=topology.latency_s + protocol.step_s,
        dimensions=dimensions,
    )


def simulated_exploration(
    explored: Exploration,
    bindings: Sequence[Binding],
    simulation: Simulation,
    count: int,
    *,
    workers: Executor | None = None,
    progress: Progress = silent,
    budget: SearchBudget | None = None,
) -> Exploration | str:
    """The most promising candidates with simulated times: the first, the fastest, the front.

    `count`: how many of the fastest, and of the front, at every size. Where one of them cannot be
    simulated, the reason, since times of two models are never compared. `workers`: simulate one
    program at one size each. At a limit of `budget`, the programs that were simulated at all sizes
    are compared; before there is one, the reason is that limit.
    """
    budget = budget or SearchBudget()
    # Formulas choose, the simulator judges.
    chosen = _promising(explored, len(bindings), count)
    tasks = [(simulation, one.program, size) for one in chosen for size in bindings]
    told = f"simulating {len(chosen)} programs"
    sizes = len(bindings)

    def is_enough(done: int) -> bool:
        progress(done / len(tasks), told)
        budget.count(1)
        return bool(budget.reason)

    timings = done_by(workers, _simulated, tasks, is_enough)
    judged: list[Timing] = []
    for timing in timings:
        if isinstance(timing, str):
            return timing
        judged.append(timing)
    whole = len(judged) // sizes
    if whole < len(chosen):
        budget.cut("simulation of programs", f"{len(chosen) - whole} of {len(chosen)} programs")
        if not whole:
            return budget.reason
        chosen = chosen[:whole]
    found = [
        replace(one, timings=tuple(judged[place * sizes : (place + 1) * sizes]))
        for place, one in enumerate(chosen)
    ]
    if budget.reason:
        budget.cut("choice of means for each collective", "all of it")
        return replace(explored, candidates=found)
    return replace(explored, candidates=_refined_winners(found, bindings, simulation, workers))


def _refined_winners(
    found: list[Candidate],
    bindings: Sequence[Binding],
    simulation: Simulation,
    workers: Executor | None,
) -> list[Candidate]:
    """The same with the best means for each collective of the fastest candidate at every size."""
    winners = []
    for place in range(len(bindings)):
        seconds = [one.timings[place].seconds for one in found]
        winners.append(seconds.index(min(seconds)))
    tasks = [
        (simulation, found[winner].program, size, found[winner].timings[place])
        for place, (winner, size) in enumerate(zip(winners, bindings, strict=True))
    ]
    timings = done_by(workers, _refined, tasks)
    for place, (winner, timing) in enumerate(zip(winners, timings, strict=True)):
        stated = list(found[winner].timings)
        stated[place] = timing
        found[winner] = replace(found[winner], timings=tuple(stated))
    return found


def _refined(task: tuple[Simulation, Program, Binding, Timing]) -> Timing:
    """One winner, in this process or another."""
    simulation, program, binding, timing = task
    # As above, a method and its object travel as one task.
    return simulation.refined(program, binding, timing)


def _simulated(task: tuple[Simulation, Program, Binding]) -> Timing | str:
    """One program at one size, in this process or another."""
    simulation, program, binding = task
    # A method and its object travel to other processes as one task.
    return simulation.timing(program, binding)


def _promising(explored: Exploration, sizes: int, count: int) -> list[Candidate]:
    """Candidates to simulate, in the order of their discovery."""
    wanted = {0}
    for place in range(sizes):
        # By time alone, then those that need less memory.
        ordered = sorted(
            range(len(explored.candidates)),
            key=lambda one, place=place: (  # type: ignore[misc]
                explored.candidates[one].timings[place].seconds
            ),
        )
        wanted.update(ordered[:count])
        front = explored.front(place)[:count]
        wanted.update(explored.candidates.index(one) for one in front)
    return [explored.candidates[one] for one in sorted(wanted)]
