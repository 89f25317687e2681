"""`collhub synthesize`: synthesize an algorithm, verify it, time it and write it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import (
    OutputRequest,
    backend_option,
    collective_option,
    machine_option,
    occupancy_option,
    output_options,
    reduce_op_option,
    root_option,
    size_option,
    timeout_option,
)
from hub_core.cli.assignments import Assignments, assign, topology_option
from hub_core.cli.command_context import Session
from hub_core.cli.output import progress_bar
from hub_core.cli.parameter_types import OfferName
from hub_core.cli.reports.synthesis_report import (
    SynthesisArguments,
    SynthesizedAlgorithm,
    print_synthesis,
)
from hub_core.cli.session_outputs import ChosenOutput
from hub_core.model import (
    STANDARD_KINDS,
    CollectiveKind,
    ExitCode,
    UsageError,
    format_ranks,
    parse_ranks,
    parse_size,
)
from hub_core.plugin_api import Command, Synthesizer, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub_core.model import Algorithm, Collective
    from hub_core.network import Topology
    from hub_core.pipeline.simulation import TimingSource
    from hub_core.plugin_api import (
        SearchBudget,
        SimulationResult,
        SynthesisResult,
    )

# Name of the command for several groups, which a plugin may offer.
_GROUPS = "groups"
# The synthesizer that chooses among all others.
_PORTFOLIO = "auto"


def _parse_ranks_option(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """Parse a list of ranks; None without the option."""
    return None if text is None else parse_ranks(text)


@click.command()
@click.argument(
    "name",
    metavar="[NAME]",
    default="auto",
    type=OfferName(Synthesizer),
)
@collective_option("The collective, for example all-reduce.", has_counts=True)
@topology_option("For example mesh:8x8, dgx1v, a file.", required=True)
@size_option("Size of the full buffer, for example 1MiB.")
@root_option("NPU of the root of a rooted collective (default: the first).")
@reduce_op_option()
@click.option(
    "--ranks",
    callback=_parse_ranks_option,
    metavar="LIST",
    help="The NPUs that take part, as 0,2,4-7 (default: all).",
)
@click.option(
    "--groups",
    "groups_text",
    metavar="LISTS",
    help="Process groups that run at the same time, as 0-7,8-15 or '0,5,9;1,2,4': one schedule.",
)
@click.option(
    "--group",
    "single",
    metavar="NPUS[:COLLECTIVE[:SIZE[:START[:COUNTS]]]]",
    multiple=True,
    help="One such group, as 0-7:all-gather:1MiB or 0-7:all-to-all-v:1MiB::zipf:1.2; repeatable.",
)
@click.option("--relays", is_flag=True, help="With --ranks: let the other NPUs forward.")
@click.option(
    "--write-ranks",
    callback=_parse_ranks_option,
    metavar="LIST",
    help="Synthesize and write only the steps of these ranks.",
)
@occupancy_option
@machine_option
@backend_option("The simulator that times algorithms, if it is installed.")
@timeout_option
@click.option(
    "--for",
    "runtime",
    metavar="RUNTIME",
    help="The runtime that will execute the algorithm, as executor, or with limits of your own, as"
    " 'executor?blocks=16'; ideal: no limits (default: that of OUT, without OUT ideal).",
)
@click.option(
    "-o",
    "--output",
    "out",
    metavar="OUT",
    help="File, trace-set prefix, folder, or - for stdout (default: none).",
)
@output_options
@click.pass_obj
def synthesize(
    session: Session,
    name: str,
    kind: str | None,
    counts: str | None,
    topology_text: str,
    size_text: str | None,
    root: int | None,
    reduce_op: str,
    ranks: tuple[int, ...] | None,
    groups_text: str | None,
    single: tuple[str, ...],
    relays: bool,
    write_ranks: tuple[int, ...] | None,
    occupancy: str,
    machine: str | None,
    backend: str,
    budget: SearchBudget,
    runtime: str | None,
    out: str | None,
    output: OutputRequest,
) -> int:
    """Synthesize an algorithm with the synthesizer NAME (`collhub formats` lists them).

    By default, `auto` runs all synthesizers and returns the fastest result.

    Ranks are the NPUs of the topology; with --ranks, rank i is the i-th NPU of the list, unless
    --relays lets all NPUs take part. Ctrl-C and --timeout end the search with the best result so
    far. Exit 0, or 1 if verification fails or no algorithm was finished in time. With --groups, OUT
    is a folder with an algorithm per group.
    """
    from hub_core.pipeline.runtimes import name_runtime, select_runtime

    if groups_text is not None or single:
        return _run_for_groups(session)
    if kind is None or size_text is None:
        missing = "--size" if kind else "--collective"
        cure = "for example --collective all-reduce --size 1MiB"
        raise UsageError(f"{missing} is needed", cure=cure)
    request = SynthesisArguments(
        kind,
        topology_text,
        parse_size(size_text),
        root,
        reduce_op,
        ranks,
        relays,
        write_ranks,
        occupancy,
        backend,
        machine,
        counts,
    )
    _check_options(request, out, output)
    target = None if out is None else session.output_target(out, output)
    sides = {"synthesizer": session.options_of(Synthesizer, name)}
    if target is not None:
        sides["writer"] = target.options
    assigned = assign(output.assignments, sides)
    writer = None if target is None else target.writer
    if runtime is None:
        # With relays, the algorithm has one rank per NPU and is custom.
        written = CollectiveKind.CUSTOM if relays else CollectiveKind(kind)
        runtime = name_runtime(writer, assigned.get("writer", {}), written)
    request = replace(request, runtime=runtime)
    selecting = select_runtime(runtime, writer, assigned.get("writer", {}), session.registry())
    synthesis = _run_synthesizer(session, name, request, assigned["synthesizer"], budget)
    algorithm = synthesis.result.algorithm
    if not synthesis.result.is_partial:
        synthesis.report = session.admit(algorithm, f"the algorithm of {name}")
    if target is not None:
        options = {**selecting, **_add_ranks(assigned["writer"], target, write_ranks)}
        synthesis.written = session.write_output(algorithm, target, options, output)
    print_synthesis(synthesis, name, request, output.as_json, out == "-")
    if name == _PORTFOLIO or machine is not None:
        session.say(synthesis.timing.note)
    if synthesis.written is not None and not output.as_json:
        session.say_written(synthesis.written)
    return ExitCode.DONE


def _run_for_groups(session: Session) -> int:
    """Run the command `groups` with the options of this command line that it has; return DONE.

    Its other options are ignored. Raises `UsageError` if `--root`, `--ranks`, `--relays` or
    `--write-ranks` is given, then `HubError` without `groups`, then the errors of `groups`.
    """
    context = click.get_current_context()
    for name in ("root", "ranks", "relays", "write_ranks"):
        value = context.params[name]
        if value is not None and value is not False:
            flag = name.replace("_", "-")
            message = f"--{flag} has no meaning with --groups"
            raise UsageError(message, cure=f"leave out --{flag}")
    command = resolve(session.registry().find(Command, _GROUPS).offer.function)
    assert isinstance(command, click.Command)
    shared_names = {parameter.name for parameter in command.params}
    values = {name: value for name, value in context.params.items() if name in shared_names}
    context.invoke(command, **values)
    return ExitCode.DONE


def _check_options(request: SynthesisArguments, out: str | None, output: OutputRequest) -> None:
    """Raise `UsageError` for the first option that has no meaning in this combination.

    Order: `--root` for kinds without root, `--relays` without `--ranks`, `--to` without `-o`.
    """
    kind = CollectiveKind(request.collective)
    if request.root is not None and not kind.traits.is_rooted:
        rooted = [each for each in STANDARD_KINDS if each.traits.is_rooted]
        cure = f"it belongs to {', '.join(rooted)}"
        raise UsageError(f"--root has no meaning for {kind}", cure=cure)
    if request.relays and request.npus is None:
        message = "--relays has no meaning where all NPUs take part"
        raise UsageError(message, cure="name those that take part with --ranks")
    if output.target_format is not None and out is None:
        raise UsageError("--to has no meaning without -o", cure="say where to write: -o OUT")


def _add_ranks(
    options: Assignments, target: ChosenOutput, ranks: tuple[int, ...] | None
) -> Assignments:
    """Return the options of the writer, with the option `ranks` if only some ranks are written.

    `ranks`: those of `--write-ranks`; None (all) returns `options` unchanged. Otherwise, in a copy,
    they replace any given option `ranks`. Raises `UsageError` for a writer without this option.
    """
    if ranks is None:
        return options
    if "ranks" not in (option.name for option in target.options):
        message = f"the format {target.format_name} cannot hold only some ranks"
        raise UsageError(message, cure="write Chakra traces: --to chakra")
    return {**options, "ranks": format_ranks(ranks)}


def _run_synthesizer(
    session: Session,
    name: str,
    request: SynthesisArguments,
    options: Assignments,
    budget: SearchBudget,
) -> SynthesizedAlgorithm:
    """Run the synthesizer on the topology of the request; measure elapsed and CPU seconds.

    If the request names NPUs without `relays`, the network has only these NPUs. `choose_timing` may
    give a machine, for the portfolio also an unnamed one. With a machine, candidates are compared
    by simulated times, and bounds use its measured switches. A complete result without `fit` is
    then simulated: it gets the fastest variant, and its time unless that is None or 0. Both
    durations include search and simulation. `HubError` of any part passes through.
    """
    # Imported here: the help of a command needs no numpy.
    from hub_core.network.links import Occupancy
    from hub_core.pipeline.bounds import replace_bounds
    from hub_core.pipeline.runtimes import time_on_runtime
    from hub_core.pipeline.simulation import choose_timing
    from hub_core.pipeline.synthesis import create_synthesis_request, run_synthesizer

    topology = session.read_topology(request.topology_text)
    npus = request.npus or tuple(range(topology.num_npus))
    network = topology if request.relays or request.npus is None else topology.subset(npus)
    # It tries several copies of each algorithm on the known machine.
    timing = choose_timing(
        request.machine,
        request.backend,
        network,
        session.registry(),
        uses_known=name == _PORTFOLIO,
        tries_instances=name == _PORTFOLIO,
    )
    timing = time_on_runtime(timing, request.runtime, session.registry())
    simulate = None
    if timing.machine is not None:
        simulate = _create_simulation(timing, network, request, session)
    with progress_bar(f"synthesizing {request.collective}") as show:
        synthesis = create_synthesis_request(
            _build_collective(request, topology, npus),
            network,
            request.size,
            npus=npus if request.relays else None,
            occupancy=Occupancy(request.occupancy),
            wanted=request.wanted,
            backend=request.backend,
            judge=simulate and (lambda algorithm: simulate(algorithm).time_ns),
            progress=show,
            registry=session.registry(),
            budget=budget,
            runtime=request.runtime,
            timing=timing,
        )
        wall, cpu = time.perf_counter(), time.process_time()
        result = run_synthesizer(synthesis, name, options)
    if simulate is not None and not result.is_partial and result.fit is None:
        result = _build_timed_variant(result, simulate(result.algorithm), session)
    spent = (time.perf_counter() - wall, time.process_time() - cpu)
    bounded = timing.bounded_network(network)
    if bounded is not network:
        result = replace_bounds(result, synthesis, bounded)
    return SynthesizedAlgorithm(result, network, *spent, timing)


def _create_simulation(
    timing: TimingSource, topology: Topology, request: SynthesisArguments, session: Session
) -> Callable[[Algorithm], SimulationResult]:
    """Return a function that simulates an algorithm on `topology` for `request.size` bytes.

    It has the simulator and options in `timing`; calls raise `HubError` if these or the run fail.
    """
    from hub_core.pipeline.simulation import simulate

    return lambda algorithm: simulate(
        algorithm,
        topology,
        request.size,
        backend=timing.backend,
        options=timing.options,
        registry=session.registry(),
    )


def _build_timed_variant(
    result: SynthesisResult, simulation: SimulationResult, session: Session
) -> SynthesisResult:
    """Replace the algorithm of a result by the variant that a simulation found to be the fastest.

    The passes in `simulation.passes` are applied in order, each with its options, and the statistic
    `variant` describes them. Without passes, algorithm and statistics are unchanged. The time in ns
    becomes that of the simulation; if that is None or 0, the time of the result remains.
    """
    from hub_core.pipeline.runtimes import build_variant

    algorithm, variant = build_variant(result.algorithm, simulation.passes, session.registry())
    statistics = {**result.statistics, **({"variant": variant} if variant else {})}
    return replace(
        result,
        algorithm=algorithm,
        time_ns=simulation.time_ns or result.time_ns,
        statistics=statistics,
    )


def _build_collective(
    request: SynthesisArguments, topology: Topology, npus: tuple[int, ...]
) -> Collective:
    """Build the in-place collective of the request, with its reduction operator.

    It has the total units of `request.counts` if the kind is uneven, else one unit per
    part. Rank i is NPU `npus[i]`. `request.root` is an NPU, by default `npus[0]`; kinds
    without a root ignore it, except that `UsageError` (`root-outside`) is raised if it
    is not in `npus`. Then raises the errors of `resolve_counts`.
    """
    from hub_core.model import Collective
    from hub_core.model.kinds import ReduceOp
    from hub_core.pipeline.synthesis import resolve_counts

    root = request.root if request.root is not None else npus[0]
    if root not in npus:
        cure = f"name one of {format_ranks(npus)[:200]}"
        raise UsageError(
            f"the root, NPU {root}, does not take part on {topology.name}",
            cure=cure,
            code="root-outside",
        )
    kind = CollectiveKind(request.collective)
    counts = resolve_counts(request.counts, kind, len(npus))
    return Collective(
        kind,
        len(npus),
        kind.traits.parts(len(npus)) if counts is None else counts.total,
        root=npus.index(root) if kind.traits.is_rooted else None,
        in_place=True,
        reduce_op=ReduceOp(request.reduce_op),
        counts=counts,
    )
