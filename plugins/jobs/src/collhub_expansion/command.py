"""`collhub expand`: replace the collectives of a workload by the steps of algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from hub_core import (
    CommandContext,
    Diagnostic,
    OpenedInput,
    OutputRequest,
    OutputTarget,
    Severity,
    UsageError,
    WrittenFiles,
    assign,
    backend_option,
    collective_rules_option,
    draw_job_page,
    from_option,
    machine_option,
    number_option,
    output_option,
    output_options,
    source_argument,
    topology_option,
    view_option,
)
from hub_core.model import format_bytes
from hub_core.plugin_api import Synthesizer, WorkloadRequest, WorkloadSimulator

if TYPE_CHECKING:
    from collhub_expansion.expand import Expanded, ExpandReport
    from hub_core import CollectiveRule, TimingSource, Topology
    from hub_core.model import Workload


_WARNING = Severity.WARNING
# The simulator of nominal links, which --machine replaces.
_SIMULATOR = "analytical"
_SLOT_RULES = {
    "free": "free: a node runs as soon as its dependencies are complete",
    "frozen": "frozen: one node a slot, in the order that the simulator {backend} gives",
}


class _Choices(TypedDict):
    """Options of an expansion."""

    collectives: tuple[str, ...]
    topology: str | None
    slots: str
    split: int | None
    machine: str | None
    backend: str


@click.command()
@source_argument
@collective_rules_option(
    "KIND[@SIZE][/GROUP]=ALGORITHM: a synthesizer (ring:order=given), a file or native[:ring];"
    " repeatable, the last matching rule applies.",
    "collectives",
)
@topology_option("Network of the job (default: that of IN).", "topology")
@click.option(
    "--slots",
    type=click.Choice(["free", "frozen"]),
    default="free",
    show_default=True,
    help="Anything at once, or the order of a simulation, which keeps to ASTRA-sim's slots.",
)
@number_option("--split", "N", "Run every collective as N independent pieces.")
@backend_option("Simulator for --slots frozen.", WorkloadSimulator)
@machine_option
@output_option
@view_option
@from_option
@output_options
@click.pass_obj
def expand(
    context: CommandContext,
    source: str,
    out: str,
    view_out: str | None,
    source_format: str | None,
    output: OutputRequest,
    **choices: Unpack[_Choices],
) -> None:
    """Expand the collectives of the workload in IN into messages: one flat graph.

    Without a rule, a collective gets the native algorithm that the system of IN names, else
    ASTRA-sim's ring. An option of -O goes to the reader, the writer and the simulator that declare
    it; reader.KEY, writer.KEY and simulator.KEY name one of them.
    """
    # Imported here: the help of the command needs no numpy.
    from hub_core import parse_rule

    target = context.output_target(out, output, is_workload=True)
    opened = context.open_input(source, source_format)
    sides = {
        "reader": opened.options,
        "writer": target.options,
        "simulator": context.options_of(WorkloadSimulator, choices["backend"]),
    }
    side_options = assign(output.assignments, sides)
    synthesizers = [provided.name for provided in context.registry().all(Synthesizer)]
    rules = [parse_rule(text, synthesizers) for text in choices["collectives"]]
    workload = context.read_workload(opened, side_options["reader"])
    topology = _topology(context, opened, choices["topology"], workload)
    # Imported here: the help of the command needs no numpy.
    from hub_core import choose_timing

    timing = choose_timing(choices["machine"], _SIMULATOR, topology, context.registry())
    job_simulator = context.registry().find(WorkloadSimulator, choices["backend"]).offer
    if timing.machine is not None and choices["machine"] and job_simulator.has_machines:
        profile = {"machine": choices["machine"]}
        side_options["simulator"] = {**profile, **side_options["simulator"]}
    # Synthesizers choose among algorithms by these times.
    context.say(timing.note)
    expansion = _expanded(
        context, workload, topology, timing, rules, choices, side_options["simulator"]
    )
    context.report(
        Diagnostic("no-match", f"--collective {use.rule.text} matches no collective", _WARNING)
        for use in expansion.uses
        if not use.collectives
    )
    written = context.write_output(
        expansion.workload,
        target,
        side_options["writer"],
        output,
        losses=expansion.losses,
        work="expansion",
    )
    if view_out is not None:
        draw_job_page(context, expansion.workload, opened.name, topology, view_out)
    if output.as_json:
        report = _create_report(opened, target, topology, timing, choices, expansion, written)
        context.print_report(report)
        return
    if out != "-":
        _print_report(context, workload, topology, choices, expansion)
    context.say_written(written)


def _expanded(
    context: CommandContext,
    workload: Workload,
    topology: Topology,
    timing: TimingSource,
    rules: list[CollectiveRule],
    choices: _Choices,
    options: Mapping[str, str],
) -> Expanded:
    """Replace the collectives of a workload by the messages of algorithms; return the result.

    If `choices["slots"]` is `frozen`, the backend `choices["backend"]` first simulates the
    workload with `options`. Computations then get their simulated durations, and nodes that share
    a slot of a rank run in the order of their simulated starts. With `free` no simulation runs.
    `choices["split"]`: number of independent pieces per collective, None for that of the system.
    Synthesizers compare their candidates by the times of `timing`. Algorithms that rules name as
    files are read by the context. Shows progress; `workload` is not changed.

    Raises `UsageError` (`queues`) first if the option `queues` is not 1, in both modes of slots.
    Then raises the `HubError` of the simulation, of reading a file, and of `expand_workload`, such
    as for a rule whose algorithm cannot serve a collective.
    """
    # Lazy imports: `--help` must not import numpy.
    from collhub_expansion.expand import expand_workload
    from collhub_expansion.making import Maker
    from collhub_expansion.native import native_system

    times = None
    if options.get("queues", "1") != "1":
        # Half of the queues run anticlockwise, and the queue of a stream depends on earlier ones.
        message = "with several queues a dimension, the streams of a collective are no fixed graph"
        cure = "expand with one queue, or simulate the job itself with -O queues=N"
        raise UsageError(message, cure=cure, code="queues")
    if choices["slots"] == "frozen":
        request = WorkloadRequest(workload, topology)
        times = context.simulate_workload(request, choices["backend"], options)
    system = native_system(workload)
    maker = Maker(
        topology,
        system,
        workload.num_ranks,
        context.registry(),
        read=lambda name: context.read_input(context.open_input(name), {}),
        admit=context.admit,
        timing=timing,
    )
    with context.progress("expanding"):
        return expand_workload(workload, rules, maker, system, splits=choices["split"], times=times)


def _topology(
    context: CommandContext, opened: OpenedInput, text: str | None, workload: Workload
) -> Topology:
    """Return the network: that of `text` if given, else the recorded one, else that of the input.

    `text`: value of `--topology`. The recorded network is a text in the extension of the workload.
    The network of the input is read only if there is no recorded one. Raises `UsageError`
    (`no-topology`) if there is no network, and `UsageError` (`topology-size`) if it has another
    number of NPUs than the workload has ranks, whatever its source. Raises the `HubError` of
    reading the network that is used.
    """
    from collhub_expansion.native import read_recorded_network

    if text is not None:
        topology: Topology | None = context.read_topology(text)
    else:
        stated = read_recorded_network(workload, context.registry())
        topology = stated or context.own_topology(opened)
    if topology is None:
        cure = "name one, for example --topology ring:8"
        raise UsageError(f"{opened.name} contains no network", cure=cure, code="no-topology")
    if topology.num_npus != workload.num_ranks:
        message = (
            f"topology {topology.name} has {topology.num_npus} NPUs, "
            f"the workload has {workload.num_ranks} ranks"
        )
        cure = "choose a topology with one NPU for every rank"
        raise UsageError(message, cure=cure, code="topology-size")
    return topology


def _print_report(
    context: CommandContext,
    workload: Workload,
    topology: Topology,
    choices: _Choices,
    expansion: Expanded,
) -> None:
    flat = expansion.workload
    context.print_fields(
        {
            "workload": f"{workload.num_ranks} ranks, {len(workload.nodes)} nodes",
            "expanded": f"{len(flat.nodes)} nodes",
            "topology": topology.name,
            "slots": _SLOT_RULES[choices["slots"]].format(backend=choices["backend"]),
            "algorithms": f"{len(expansion.algorithms)} for"
            f" {sum(use.collectives for use in expansion.uses)} collectives",
        }
    )
    rows = [
        (
            use.rule.text,
            ", ".join(use.makers) or "-",
            str(use.collectives),
            format_bytes(use.bytes),
            str(use.nodes),
        )
        for use in expansion.uses
    ]
    head = ("rule", "algorithm", "collectives", "bytes", "nodes")
    context.print_table(head, rows, right=head[2:])


def _create_report(
    opened: OpenedInput,
    target: OutputTarget,
    topology: Topology,
    timing: TimingSource,
    choices: _Choices,
    expansion: Expanded,
    written: WrittenFiles,
) -> ExpandReport:
    from collhub_expansion.expand import ExpandReport, RuleUseItem, UsedAlgorithm
    from hub_core.reports import list_losses

    return ExpandReport(
        source=opened.name,
        source_format=opened.format_name,
        target_format=target.format_name,
        topology=topology.name,
        timing=timing.note,
        machine=timing.machine_record(),
        slots=choices["slots"],
        split=choices["split"],
        num_ranks=expansion.workload.num_ranks,
        nodes=len(expansion.workload.nodes),
        rules=[
            RuleUseItem(
                rule=use.rule.text,
                algorithms=tuple(use.makers),
                collectives=use.collectives,
                bytes=use.bytes,
                nodes=use.nodes,
            )
            for use in expansion.uses
        ],
        algorithms=[
            UsedAlgorithm(
                algorithm=algorithm.maker,
                collective=str(algorithm.kind),
                num_ranks=algorithm.num_ranks,
                bytes=algorithm.size,
                steps=algorithm.steps,
            )
            for algorithm in expansion.algorithms
        ],
        artifacts=[str(path) for path in written.paths],
        losses=list_losses(written.losses),
    )
