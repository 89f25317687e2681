"""Search for the best transformations of a program on a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace

from collhub_coconet.documents.bound_document import bound_to
from collhub_coconet.documents.node_statements import BoundProgram
from collhub_coconet.lowering.workload import lower
from collhub_coconet.passes.outlook import Outlook
from collhub_coconet.passes.rewritten_workload import parameter_text, read_program, record_fields
from collhub_coconet.passes.search_options import SearchOptions
from collhub_coconet.program.size_ranges import parsed_ranges
from collhub_coconet.program.tensors import Binding
from collhub_coconet.search.cost_models import FormulaModel
from collhub_coconet.search.explore import Candidate, Exploration, explore
from collhub_coconet.search.rates import Rates, is_any_to_any, link_of
from collhub_coconet.search.simulation import Simulation, simulated_exploration
from collhub_coconet.search.workers import Progress, silent
from collhub_coconet.transformations.costs import costs
from hub_core import Topology, read_topology
from hub_core.model import InputError, UsageError, Workload, format_bytes, format_time
from hub_core.plugin_api import PassReport, SearchBudget


def run(
    workload: Workload,
    options: SearchOptions,
    workers: Executor | None = None,
    progress: Progress = silent,
    budget: SearchBudget | None = None,
) -> tuple[Workload, PassReport]:
    """The fastest program at the sizes of the workload, and what was found at all sizes.

    Told are the winner of every range of sizes with the passes that make it, and the front of time
    and memory at the largest. The result is that of any number of `workers`. At a limit of
    `budget`, the best program so far is the result. Raises `InputError`
    for a network with too few NPUs.
    """
    budget = budget or SearchBudget()
    found = read_program(workload, options)
    topology = _topology(options)
    bound = _on_network(found.bound, topology)
    # The workload has one of these sizes, or none.
    bindings = size_points(bound, options.sizes, options.points)
    rates = _rates(topology, options)
    # Of a search that is simulated too, the formulas are the first half.
    share = 0.5 if options.simulate else 1.0
    explored = explore(
        bound.program,
        bindings,
        FormulaModel(rates),
        options.states,
        workers=workers,
        progress=lambda done, what: progress(share * done, what),
        budget=budget,
    )
    how = "by formula"
    if budget.reason and options.simulate:
        budget.cut("simulation of programs", "all of it: times are by formula")
    elif options.simulate:
        judged = simulated_exploration(
            explored,
            bindings,
            Simulation(rates, topology),
            options.simulate,
            workers=workers,
            progress=lambda done, what: progress(share + share * done, what),
            budget=budget,
        )
        if isinstance(judged, str):
            how = f"by formula, since a program cannot be simulated: {judged}"
        else:
            how, explored = f"simulated: {len(judged.candidates)} programs", judged
    place = _own_place(bound, bindings)
    outlook = Outlook(topology, rates, how)
    after = _lowered(bound, explored, place, outlook)
    ranks = f"{bound.binding.num_ranks} ranks a group, one an NPU of {topology.name}"
    changes = (*found.filled_in, *told(explored, bindings), ranks, f"times are {how}")
    return replace(after, provenance=workload.provenance), PassReport(changes, tuple(budget.cuts))


def size_points(bound: BoundProgram, sizes: str, count: int) -> list[Binding]:
    """Bindings from the smallest to the largest sizes, evenly spaced in their logarithms.

    Symbols that are not named keep their number. Of sizes that are no range there is one.
    """
    ranges = {name: (one, one) for name, one in bound.binding.sizes.items()}
    # What is searched for goes before what was read.
    ranges.update(parsed_ranges(sizes))
    is_one = all(low == high for low, high in ranges.values())
    last = 0 if is_one else count - 1
    found = []
    for place in range(last + 1):
        share = place / max(last, 1)
        numbers = {
            name: round(low * (high / low) ** share) if low else low
            for name, (low, high) in ranges.items()
        }
        found.append(bound_to(bound.program, bound.binding.num_ranks, numbers))
    return found


def _own_place(bound: BoundProgram, bindings: Sequence[Binding]) -> int:
    """The binding whose sizes are those of the workload; else the first."""
    sizes = [dict(one.sizes) for one in bindings]
    own = dict(bound.binding.sizes)
    return sizes.index(own) if own in sizes else 0


def _topology(options: SearchOptions) -> Topology:
    """The network that the options name."""
    if options.topology is None:
        message = "the network to search for is not stated"
        raise UsageError(message, cure="--search --topology ring:8, or -O topology=ring:8")
    return read_topology(options.topology)


def _on_network(bound: BoundProgram, topology: Topology) -> BoundProgram:
    """The program with as many ranks in each group as give every NPU one."""
    groups = bound.program.num_groups
    ranks, rest = divmod(topology.num_npus, groups)
    if rest or ranks < 2:
        message = f"{topology.name} has {topology.num_npus} NPUs for {groups} groups of ranks"
        cure = "state a topology with as many NPUs for every group, at least 2"
        raise InputError(message, cure=cure, code="ranks")
    binding = bound_to(bound.program, ranks, bound.binding.sizes)
    return replace(bound, binding=binding)


def _rates(topology: Topology, options: SearchOptions) -> Rates:
    """Rates as the options state them, those of links as the network has them."""
    bandwidth, latency = link_of(topology)
    return Rates(
        options.compute_tflops * 1e12,
        options.memory_bandwidth,
        bandwidth,
        latency,
        options.launch_time,
        is_any_to_any(topology),
    )


def _lowered(bound: BoundProgram, explored: Exploration, place: int, outlook: Outlook) -> Workload:
    """The workload of the winner, with the record of every move, and what was predicted."""
    best = explored.winner(place)
    history = list(bound.history)
    # Effects are told step by step, as those of single passes.
    before = bound.program
    for step in best.steps:
        effect = costs(step.program, bound.binding) - costs(before, bound.binding)
        history.append(record_fields(step.record, before, effect))
        before = step.program
    history.append(outlook.record(explored.candidates[0], best, place))
    return lower(best.program, bound.binding, tuple(history))


def told(explored: Exploration, bindings: Sequence[Binding]) -> Iterator[str]:
    """The result in lines: winners by sizes, the front, and how the search ended."""
    first = explored.candidates[0]
    winners = [explored.winner(place) for place in range(len(bindings))]
    start = 0
    # Neighbouring sizes with one winner are one range.
    while start < len(winners):
        stop = start
        while stop + 1 < len(winners) and winners[stop + 1] is winners[start]:
            stop += 1
        sizes = " to ".join(dict.fromkeys(_sizes(bindings[place]) for place in (start, stop)))
        seconds, before = winners[stop].timings[stop].seconds, first.timings[stop].seconds
        gain = f"{before / seconds:.2f} times as fast as before" if seconds else "no time"
        yield f"winner for {sizes}: {_time(seconds)}, {gain}"
        yield f"  {script(winners[start]) or 'no pass'}"
        choices = winners[stop].timings[stop].choices
        yield f"  {'; '.join(f'{name}: {choice}' for name, choice in choices.items())}"
        start = stop + 1
    last = len(bindings) - 1
    yield f"front of time and memory of a rank for {_sizes(bindings[last])}:"
    for one in explored.front(last):
        memory = format_bytes(one.peaks[last])
        yield f"  {_time(one.timings[last].seconds)}, {memory}: {script(one) or 'no pass'}"
    yield f"{explored.visited} programs gone on from, {explored.pruned} not for their bound"
    yield completeness(explored)


def completeness(explored: Exploration) -> str:
    """Whether the search saw everything, in words."""
    if explored.is_complete:
        return "search is complete: every program that legal moves reach was looked at, or bounded"
    return "search is NOT complete: it stopped at a limit, and more programs are there"


def script(candidate: Candidate) -> str:
    """The passes that make a program, as `collhub transform` takes them."""
    words = []
    # A step is a pass with its options, in the order in which they were taken.
    for step in candidate.steps:
        record = step.record
        words.append(f"--pass {record.transformation}")
        words += [f"-O {key}={parameter_text(one)}" for key, one in record.parameters.items()]
    return " ".join(words)


def _sizes(binding: Binding) -> str:
    return ",".join(f"{name}={size}" for name, size in binding.sizes.items()) or "all sizes"


def _time(seconds: float) -> str:
    # The hub prints whole nanoseconds.
    return format_time(round(seconds * 1e9))
