"""Pass `search`: find the fastest sequence of transformations of a program on a network."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace

from collhub_coconet.documents.json_document import BoundProgram, bind_sizes
from collhub_coconet.lowering.workload import lower
from collhub_coconet.plugin import SearchOptions
from collhub_coconet.program.operations import Binding, Kind, parse_ranges
from collhub_coconet.program.program import Program
from collhub_coconet.search.bucket_sizes import add_buckets
from collhub_coconet.search.collective_times import (
    Demand,
    Rates,
    find_demand,
    find_slowest_link,
    is_any_to_any,
)
from collhub_coconet.search.composition import combine
from collhub_coconet.search.cost_models import FormulaModel
from collhub_coconet.search.describing import (
    describe_exploration,
    describe_parts,
    list_restrictions,
)
from collhub_coconet.search.explore import (
    Candidate,
    Exploration,
    Progress,
    explore,
    ignore_progress,
)
from collhub_coconet.search.hub_algorithms import HubAlgorithms, Omission, describe_omissions
from collhub_coconet.search.parts import divide
from collhub_coconet.search.simulation import Simulation, simulate_candidates
from collhub_coconet.transformations.costs import Costs, costs
from collhub_coconet.transformations.passes import read_program, record_fields
from hub_core import Topology, read_topology
from hub_core.model import InputError, JsonValue, UsageError, Workload
from hub_core.plugin_api import PassReport, SearchBudget


@dataclass(frozen=True, slots=True)
class Outlook:
    """Machine of a search, and the origin of its times.

    `times_are`: "by formula" or "simulated", with details, as shown in the report. `restrictions`:
    texts as shown in the report.
    """

    topology: Topology
    rates: Rates
    times_are: str
    restrictions: tuple[str, ...] = ()

    def to_record(
        self, before: Candidate, after: Candidate, size_index: int
    ) -> dict[str, JsonValue]:
        """Build the record of the search, which follows those of the transformations.

        `before`, `after`: the original and the selected program. `size_index`: index in `timings`
        of the problem size for which all numbers are. The members are, in this order:

        - `transformation`: "search"
        - `predicted_ns`, `predicted_before_ns`: times of the slowest rank of `after` and of
          `before`, rounded to whole ns
        - `peak_bytes`, `peak_before_bytes`: peak memory of a rank
        - `times_are`, `restrictions`: those of this object
        - `means`: the choice for each collective, stage or chain of `after`, by its name, as text
          such as `ring simple, 2 chunks`
        - `machine`: `topology` (its name), then all fields of `rates`
        """
        choices = {name: str(means) for name, means in after.timings[size_index].choices.items()}
        return {
            "transformation": "search",
            "predicted_ns": _predicted_ns(after, size_index),
            "predicted_before_ns": _predicted_ns(before, size_index),
            "peak_bytes": after.peaks[size_index],
            "peak_before_bytes": before.peaks[size_index],
            "times_are": self.times_are,
            "restrictions": list(self.restrictions),
            "means": choices,  # type: ignore[dict-item]
            "machine": {"topology": self.topology.name, **asdict(self.rates)},
        }


def _predicted_ns(candidate: Candidate, size_index: int) -> int:
    """Return the predicted time of a candidate at one size in ns, as the nearest integer."""
    return round(candidate.timings[size_index].seconds * 1e9)


def run(
    workload: Workload,
    options: SearchOptions,
    workers: Executor | None = None,
    progress: Progress = ignore_progress,
    budget: SearchBudget | None = None,
) -> tuple[Workload, PassReport]:
    """Return the workload of the fastest program, and a report about all searched sizes.

    The result is the program that is fastest at the given program's sizes, or at the smallest
    searched sizes if the given ones are not searched. Ties: less peak memory, fewer unevenly sliced
    values, fewer steps, then the first. It is lowered for the given sizes, with one rank per NPU,
    and keeps the provenance of `workload`.

    The program is divided into parts (`divide`); equal parts are searched once, and the results are
    combined. Then programs with buckets, i.e. several equal collectives in one call, are compared
    too (`add_buckets`). Times are by formula, or with the option `simulate` by simulation of
    promising programs; if one of them cannot be simulated, by formula. If a limit of `budget`
    (None: no limit) is reached, the best program so far is returned. Results do not depend on
    `workers`.

    Errors, in order: `InputError` without a program; `UsageError` without the option `topology`;
    errors of reading the network; `InputError` if it does not fit (`ranks`, `mesh`); `UsageError`
    for malformed sizes, `InputError` for impossible ones.
    """
    budget = budget or SearchBudget()
    inference = read_program(workload, options)
    topology = _read_network(options)
    bound = _assign_ranks(inference.bound, topology)
    bindings = list_bindings(bound, options.sizes, options.points)
    rates = _build_rates(topology, options)
    hub = _collect_algorithms(topology, options) if options.simulate else None
    simulation = Simulation(rates, topology, hub.registry, hub) if hub else None
    classes = divide(bound.program)
    explorations, times = [], []
    for index, part in enumerate(classes):
        exploration, times_are = _search_part(
            part.program,
            bindings,
            FormulaModel(rates, hub),
            simulation,
            options,
            workers,
            lambda fraction, text, index=index: progress(  # type: ignore[misc]
                (index + fraction) / len(classes), text
            ),
            budget,
        )
        explorations.append(exploration)
        times.append(times_are)
    times_are = times[0]
    if len(classes) == 1 and len(classes[0].copies) == 1:
        (exploration,) = explorations
    else:
        are_simulated = all(text.startswith("simulated") for text in times)
        exploration, added = combine(
            bound.program, classes, explorations, bindings, simulation if are_simulated else None
        )
        unlike = next((text for text in times if not text.startswith("simulated")), "simulated")
        times_are = added if added.startswith("simulated") else f"{unlike}; {added}"
    # Sums of simulated times of parts are not times of the entire program.
    is_simulated = times_are.startswith(("simulated:", "simulated as a whole"))
    exploration, trials = add_buckets(
        bound.program, classes, explorations, exploration, bindings,
        FormulaModel(rates, hub), simulation if is_simulated else None, budget,
    )  # fmt: skip
    if trials.programs and simulation is not None and not is_simulated:
        times_are = f"by formula for the entire program; parts: {times_are}"
    omitted = _list_omissions(exploration, bindings, hub) if hub else []
    restrictions = list_restrictions(exploration, classes, bindings, simulation, trials)
    all_sizes = [dict(binding.sizes) for binding in bindings]
    sizes = dict(bound.binding.sizes)
    size_index = all_sizes.index(sizes) if sizes in all_sizes else 0
    outlook = Outlook(topology, rates, times_are, tuple(restrictions))
    result = _lower_fastest(bound, exploration, size_index, outlook)
    ranks = f"{bound.binding.num_ranks} ranks per group, one per NPU of {topology.name}"
    changes = (
        *inference.filled_in,
        *describe_exploration(exploration, bindings, omitted, restrictions),
        *describe_omissions(omitted),
        *describe_parts(classes),
        ranks,
        f"times are {times_are}",
    )
    result = replace(result, provenance=workload.provenance)
    return result, PassReport(changes, tuple(budget.cuts))


def _search_part(
    program: Program,
    bindings: Sequence[Binding],
    model: FormulaModel,
    simulation: Simulation | None,
    options: SearchOptions,
    workers: Executor | None,
    progress: Progress,
    budget: SearchBudget,
) -> tuple[Exploration, str]:
    """Search one program by formula, then simulate the most promising candidates.

    Returns (candidates, text about the origin of their times). The first case that applies decides:

    1. `simulation` is None: all candidates with times by formula, "by formula".
    2. The budget reached its limit during the search: the same, and the omitted simulation is
       recorded in the budget.
    3. A candidate cannot be simulated: all candidates with times by formula; the text has the
       reason. This is also the case if the limit is reached before one candidate is simulated.
    4. Otherwise only the simulated candidates (`simulate_candidates`), with simulated times, and a
       text such as "simulated: 12 programs". At a limit during the simulation these are the
       candidates that were simulated before it, and the rest is recorded in the budget.

    Progress runs from 0 to 1; with a simulation the search takes the first half. Raises the
    `HubError`s of the simulation, and `InputError` if a worker process died.
    """
    # Fraction of the progress that the search by formula accounts for.
    formula_fraction = 0.5 if simulation else 1.0
    exploration = explore(
        program,
        bindings,
        model,
        options.states,
        workers=workers,
        progress=lambda fraction, text: progress(formula_fraction * fraction, text),
        budget=budget,
    )
    if simulation is None:
        return exploration, "by formula"
    if budget.reason:
        budget.cut("simulation of programs", "all of it: times are by formula")
        return exploration, "by formula"
    simulated = simulate_candidates(
        exploration,
        bindings,
        simulation,
        options.simulate,
        workers=workers,
        progress=lambda fraction, text: progress(
            formula_fraction + formula_fraction * fraction, text
        ),
        budget=budget,
    )
    if isinstance(simulated, str):
        return exploration, f"by formula, since a program cannot be simulated: {simulated}"
    return simulated, f"simulated: {len(simulated.candidates)} programs"


def _collect_algorithms(topology: Topology, options: SearchOptions) -> HubAlgorithms:
    """Collect the algorithms of the hub for the network, and those that the user names.

    The names are in the option `algorithms`, separated by `+`; empty names are ignored.
    Raise `HubError` for a name that is neither a synthesizer nor a file with an algorithm.
    No algorithm is synthesized here.
    """
    named = tuple(filter(None, (options.algorithms or "").split("+")))
    hub = HubAlgorithms(topology, named=named, work=options.work)
    for name in named:
        hub.check_name(name)
    return hub


def _list_omissions(
    exploration: Exploration, bindings: Sequence[Binding], hub: HubAlgorithms
) -> list[Omission]:
    """List the algorithms that were not compared for the collectives of the fastest programs.

    The collectives are those of the fastest program for each size, where a size is an entry
    of `bindings`. Sends do not count. The result has the entries of `hub.omissions` for these
    collectives, in its order, each once.

    For a collective that was compared only in another process, the algorithms are compared
    again, which adds to `hub`. Raise `InputError` for a collective without any algorithm.
    """
    demands: dict[Demand, None] = {}
    for size_index, binding in enumerate(bindings):
        program = exploration.fastest(size_index).program
        for operation in program.operations:
            demand = find_demand(program, binding, operation)
            if demand is not None and demand.kind is not Kind.SEND:
                demands[demand] = None
                # Offers that were compared in other processes are collected again.
                hub.list_offers(demand)
    return [omission for omission in hub.omissions.values() if omission.demand in demands]


def list_bindings(bound: BoundProgram, sizes: str, count: int) -> list[Binding]:
    """List the sizes at which programs are timed, from the smallest to the largest.

    `sizes`: sizes and ranges by symbol, such as `B=8,N=1024..4096`, which replace those of the
    program. `count`: number of bindings; only one is listed if no symbol has a range. All ranges
    grow together by equal ratios: binding i of n has low * (high / low) ** (i / (n - 1)), rounded
    to the nearest integer. With 3 bindings, `N=1024..4096` gives 1024, 2048, 4096. If `count` is 1,
    it has the low ends. A range that begins at 0 is 0 in all bindings. Equal bindings are not
    removed.

    All have the ranks of `bound`. Raises `UsageError` for malformed sizes, and the `InputError`s of
    `bind_sizes` for an unknown symbol or sizes that the program does not permit.
    """
    ranges = {symbol: (size, size) for symbol, size in bound.binding.sizes.items()}
    ranges.update(parse_ranges(sizes))
    is_single = all(low == high for low, high in ranges.values())
    num_bindings = 1 if is_single else count
    mesh = _find_axis_sizes(bound)
    bindings = []
    for index in range(num_bindings):
        exponent = index / max(num_bindings - 1, 1)
        sizes_at_index = {
            symbol: round(low * (high / low) ** exponent) if low else low
            for symbol, (low, high) in ranges.items()
        }
        bindings.append(bind_sizes(bound.program, bound.binding.num_ranks, sizes_at_index, mesh))
    return bindings


def _read_network(options: SearchOptions) -> Topology:
    """Read the network of the option `topology`.

    Raise `UsageError` if the option is None, and the errors of `read_topology`.
    """
    if options.topology is None:
        message = "option topology, the network to search for, is missing"
        raise UsageError(message, cure="--search --topology ring:8, or -O topology=ring:8")
    return read_topology(options.topology)


def _assign_ranks(bound: BoundProgram, topology: Topology) -> BoundProgram:
    """Return the program with the number of ranks per group at which every NPU runs one rank.

    This number is the NPUs divided by the groups of the program; sizes and axes stay. `bound` is
    not changed. Raises `InputError` in this order:

    1. `ranks`: the groups do not divide the NPUs, or a group would have fewer than 2 ranks.
    2. `ranks`: the program was captured on another number of ranks.
    3. `mesh`: the program has several axes, and their product is another number.
    4. As `bind_sizes`, if the sizes of the program do not fit this number of ranks.
    """
    groups = bound.program.num_groups
    ranks, remainder = divmod(topology.num_npus, groups)
    if remainder or ranks < 2:
        message = f"{topology.name} has {topology.num_npus} NPUs for {groups} groups of ranks"
        cure = "choose a topology with equally many NPUs for every group, at least 2"
        raise InputError(message, cure=cure, code="ranks")
    bound.check_ranks(ranks)
    mesh = _find_axis_sizes(bound)
    if mesh and bound.binding.num_ranks != ranks:
        axes = ",".join(f"{name}={size}" for name, size in mesh.items())
        message = f"the mesh {axes} has {bound.binding.num_ranks} ranks, {topology.name} {ranks}"
        cure = f"state axes with a product of {ranks}: -O mesh={axes}"
        raise InputError(message, cure=cure, code="mesh")
    binding = bind_sizes(bound.program, ranks, bound.binding.sizes, mesh)
    return replace(bound, binding=binding)


def _find_axis_sizes(bound: BoundProgram) -> dict[str, int]:
    """Return the number of ranks along every axis of the mesh, by name in the mesh's order.

    The result is {} for a program without a mesh or with a single axis.
    """
    names = bound.program.mesh
    return dict(zip(names, bound.binding.axis_sizes, strict=True)) if len(names) > 1 else {}


def _build_rates(topology: Topology, options: SearchOptions) -> Rates:
    """Build the rates of a rank: links from the network, compute and memory from the options.

    - Bandwidth (bytes/s) and latency (s) are those of the NPU whose fastest link is slowest. NPUs
      without links are ignored. The latency of a link to a switch counts twice
      (`find_slowest_link`).
    - `is_any_to_any` is true only for a network that is declared as one switch or one fully
      connected dimension.
    - `compute_tflops` is converted to operations per second (times 10^12).
    - Memory bandwidth (bytes/s) and launch time (s) are copied.

    Raise `InputError` for a network in which no NPU has a link.
    """
    bandwidth, latency = find_slowest_link(topology)
    return Rates(
        options.compute_tflops * 1e12,
        options.memory_bandwidth,
        bandwidth,
        latency,
        options.launch_time,
        is_any_to_any(topology),
    )


def _lower_fastest(
    bound: BoundProgram, exploration: Exploration, size_index: int, outlook: Outlook
) -> Workload:
    """Return the fastest program at one size of the search, lowered to a workload.

    The program is `exploration.fastest(size_index)`: the first candidate by
    `Candidate.sort_key`, of equal ones the one that was discovered first. The sizes in `bound`
    are used for the workload and for the recorded costs.

    Its history is that of `bound`, then one record per transformation in the order of
    application, with the changes of the costs (bytes, operations, kernels). For a transformation
    of several equal parts, the parameters are those of the first one, the change is multiplied by
    their number, and a note has this number. The record of the search
    (`Outlook.to_record`) is always last. Raises `InputError` for a symbol without a size, and for
    layouts that do not fit the ranks.
    """
    fastest = exploration.fastest(size_index)
    history = list(bound.history)
    # A program is the result of one step and the start of the next one.
    known: dict[int, Costs] = {}

    def find_costs(program: Program) -> Costs:
        """Return the costs of a program at the sizes and ranks of `bound`.

        They are cached by the identity of the program object, so the object must remain alive.
        Raises `InputError` for a symbol without a size, and for invalid counts (`costs`).
        """
        if id(program) not in known:
            known[id(program)] = costs(program, bound.binding)
        return known[id(program)]

    for part_step in fastest.part_steps:
        record, count = part_step.rewrite.record, part_step.count
        if count > 1:
            record = replace(record, notes=(*record.notes, f"applied to {count} equal parts"))
        effect = find_costs(part_step.rewrite.program) - find_costs(part_step.before)
        total = Costs(**{name: count * value for name, value in asdict(effect).items()})
        history.append(record_fields(record, part_step.before, total))
    if fastest.part_steps:
        history.append(outlook.to_record(exploration.candidates[0], fastest, size_index))
        return lower(fastest.program, bound.binding, tuple(history))
    previous = bound.program
    for step in fastest.steps:
        effect = find_costs(step.program) - find_costs(previous)
        history.append(record_fields(step.record, previous, effect))
        previous = step.program
    history.append(outlook.to_record(exploration.candidates[0], fastest, size_index))
    return lower(fastest.program, bound.binding, tuple(history))
