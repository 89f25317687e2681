"""`collhub simulate`: simulate an algorithm on a topology for one size or a range of sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import (
    backend_option,
    collective_rules_option,
    json_flag,
    machine_option,
    option_pairs,
    size_option,
    source_argument,
    verify_option,
)
from hub_core.cli.assignments import Assignments, assign, parse_sizes, topology_option
from hub_core.cli.command_context import Session
from hub_core.cli.jobs.simulate_job import SimulationOutputs, refuse_overlap, simulate_and_report
from hub_core.cli.jobs.workloads import apply_rules, collect_workload_warnings
from hub_core.cli.output import progress
from hub_core.cli.page_options import excerpt_options, view_option
from hub_core.cli.parameter_types import FILE
from hub_core.model import ExitCode, UsageError, format_bytes
from hub_core.plugin_api import (
    RunExcerpt,
    RunTimeline,
    Simulator,
    WorkloadRequest,
    WorkloadSimulator,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hub_core.cli.reports.timing import TimedRun
    from hub_core.model import Algorithm
    from hub_core.network import Topology
    from hub_core.pipeline.failures import FailureTime
    from hub_core.pipeline.inputs import OpenedAlgorithm
    from hub_core.pipeline.simulation import TimingSource


@click.command()
@source_argument
@topology_option(
    "For example ring:8, 'mesh:4x4?bandwidth=50GB/s', a file (default: the network in IN)."
)
@size_option("1MiB, or 1MiB..1GiB by doubling (default: the size in IN).")
@machine_option
@backend_option("The simulator.")
@click.option(
    "--steps",
    "steps_out",
    metavar="FILE",
    type=FILE,
    help="Also write start and end of every step, or node of a workload, as CSV.",
)
@click.option(
    "--timeline",
    "timeline_out",
    metavar="FILE",
    type=FILE,
    help="Also write a Chrome trace, for ui.perfetto.dev.",
)
@view_option
@click.option(
    "--overlap",
    "has_overlap",
    is_flag=True,
    help="For a workload: also the time without limits on concurrent nodes of a rank.",
)
@click.option(
    "--failures",
    "has_failures",
    is_flag=True,
    help="For an algorithm: also the time without each link of the network, one after another.",
)
@collective_rules_option(
    "For a workload: KIND[@SIZE][/GROUP]=ALGORITHM, a synthesizer (ring:order=given) or a file, as"
    " with expand (repeatable, the last matching rule applies)."
)
@excerpt_options
@option_pairs
@verify_option
@json_flag
@click.pass_obj
def simulate(
    session: Session,
    source: str,
    topology_text: str | None,
    size_text: str | None,
    machine: str | None,
    backend: str,
    steps_out: str | None,
    timeline_out: str | None,
    view_out: str | None,
    has_overlap: bool,
    has_failures: bool,
    rules: tuple[str, ...],
    source_format: str | None,
    excerpt: RunExcerpt,
    assignments: Assignments,
    as_json: bool,
) -> int:
    """Simulate the algorithm or workload in IN on a topology, by default on the network in IN.

    Exit 0 if every rank finishes at every size, else 1 with the reasons.
    """
    from hub_core.pipeline.simulation import NO_MACHINE, choose_timing, simulator_name

    sizes = None if size_text is None else parse_sizes(size_text)
    if sizes is not None and len(sizes) > 1:
        options_of_single_run = {
            "--steps": steps_out is not None,
            "--timeline": timeline_out is not None,
            "--view": view_out is not None,
            "--failures": has_failures,
        }
        if named := [option for option, is_given in options_of_single_run.items() if is_given]:
            raise UsageError(f"{named[0]} needs a single size", cure="give for example --size 1MiB")
    if not excerpt.is_all and timeline_out is None and view_out is None:
        cure = "add --view FILE or --timeline FILE"
        raise UsageError("--ranks, --from TIME and --to select data of a file", cure=cure)
    given_topology = None if topology_text is None else session.read_topology(topology_text)
    opened = session.open_input(source, source_format)
    if opened.holds_workload and machine not in (None, NO_MACHINE):
        _refuse_with_machine({"--collective": bool(rules), "--topology": topology_text is not None})
    kind = WorkloadSimulator if opened.holds_workload else Simulator
    backend = simulator_name(
        machine, backend, session.registry(), of_workloads=opened.holds_workload
    )
    options = assign(
        assignments, {"reader": opened.options, "simulator": session.options_of(kind, backend)}
    )
    outputs = SimulationOutputs(
        opened.name, as_json, has_overlap, steps_out, timeline_out, view_out, excerpt
    )
    if opened.holds_workload:
        if has_failures:
            raise UsageError("--failures is for algorithms", cure="leave it out for a workload")
        if machine is not None and machine != NO_MACHINE:
            options["simulator"] = {**options["simulator"], "machine": machine}
        return _simulate_job(session, opened, backend, options, given_topology, rules, outputs)
    for option, is_given in (("--overlap", has_overlap), ("--collective", bool(rules))):
        if is_given:
            raise UsageError(f"{option} is for workloads", cure="leave it out for an algorithm")
    topology = given_topology or _read_network_of_input(session, opened)
    algorithm = session.read_input(opened, options["reader"])
    source_of_times = choose_timing(
        machine or options["simulator"].get("machine"), backend, topology, session.registry()
    )
    return _simulate_algorithm(
        session,
        algorithm,
        topology,
        sizes,
        backend,
        {**options["simulator"], **source_of_times.options},
        source_of_times,
        outputs,
        opened,
        has_failures=has_failures,
    )


def _simulate_algorithm(
    session: Session,
    algorithm: Algorithm,
    topology: Topology,
    sizes: Sequence[int] | None,
    backend: str,
    options: Assignments,
    source_of_times: TimingSource,
    outputs: SimulationOutputs,
    opened: OpenedAlgorithm,
    *,
    has_failures: bool,
) -> int:
    """Simulate an algorithm for every size (bytes), write the outputs and print the findings.

    `options`: those of the simulator `backend`. Without `sizes`, the size is that of the algorithm;
    raises `UsageError` (`no-size`) if it has none. With `has_failures`, the first size is also
    simulated for each pair of linked nodes, without all links between them. The files in `outputs`
    (of the first size) and the report are written even if a run does not finish. Then the note on
    the source of the times and the distinct findings, last those of times below a bound, are
    printed on stderr. Returns DONE if the runs of all sizes finish (failures do not count),
    otherwise INVALID. Raises the `HubError` of the simulator or of the writing.
    """
    from hub_core.cli.reports.timing import judge
    from hub_core.pipeline.simulation import simulate as run_simulator

    if not sizes:
        if algorithm.collective_bytes is None:
            cure = "give one, for example --size 1MiB"
            raise UsageError(f"{opened.name} states no size", cure=cure, code="no-size")
        sizes = (algorithm.collective_bytes,)
    registry = session.registry()
    results = {}
    for size in sizes:
        with progress(f"simulating {format_bytes(size)}"):
            results[size] = run_simulator(
                algorithm,
                topology,
                size,
                backend=backend,
                options=options,
                registry=registry,
                wants_transfers=outputs.view_out is not None,
            )
    with progress("computing lower bounds"):
        timings = judge(
            algorithm,
            topology,
            results,
            backend=backend,
            options=options,
            registry=registry,
            bounded=source_of_times.bounded_network(topology),
        )
    failures = None
    if has_failures:
        from hub_core.pipeline.failures import simulate_failures

        with progress("simulating failures"):
            failures = simulate_failures(
                algorithm,
                topology,
                timings[0].collective_bytes,
                timings[0].time_ns,
                backend=backend,
                options=options,
                registry=registry,
            )
    _write_outputs(session, algorithm, topology, source_of_times, timings, outputs, failures)
    session.say(source_of_times.note)
    findings = dict.fromkeys(finding for timing in timings for finding in timing.result.diagnostics)
    findings |= dict.fromkeys(timing.defect for timing in timings if timing.defect is not None)
    session.report(findings, opened, algorithm)
    is_finished = all(timing.time_ns is not None for timing in timings)
    return ExitCode.DONE if is_finished else ExitCode.INVALID


def _simulate_job(
    session: Session,
    opened: OpenedAlgorithm,
    backend: str,
    options: Mapping[str, Assignments],
    given_topology: Topology | None,
    rules: Sequence[str],
    outputs: SimulationOutputs,
) -> int:
    """Read a workload, apply `rules` (of `--collective`), simulate it and print the result.

    `options`: for `reader` and `simulator`. Findings of the checks are only warnings. Rules use
    `given_topology`, otherwise the network in IN; without both they raise `UsageError`
    (`no-topology`). The simulator gets `given_topology`, and can read the network in IN. Raises
    `UsageError` if `outputs.has_overlap` is set and the simulator has no option `slots` or it is
    `unlimited`. Other `HubError` pass through. Returns INVALID if a rank never finishes, otherwise
    DONE.
    """
    from hub_core.pipeline.inputs import require_workload

    workload = require_workload(session.read_model(opened, options["reader"]), opened.name)
    # An incorrect job is not refused: the simulation shows its effect.
    warnings = collect_workload_warnings(session, workload, opened.name)
    if rules:
        network = given_topology or _read_network_of_input(session, opened)
        workload = apply_rules(session, workload, rules, network)
    if outputs.has_overlap:
        declared = [option.name for option in session.options_of(WorkloadSimulator, backend)]
        refuse_overlap(declared, options["simulator"], backend)
    request = WorkloadRequest(
        workload,
        given_topology,
        session.registry(),
        lambda: _find_network_of_input(session, opened),
        outputs.view_out is not None,
    )
    return simulate_and_report(session, request, backend, options["simulator"], outputs, warnings)


def _refuse_with_machine(options: Mapping[str, bool]) -> None:
    """Raise `UsageError` for the first given option that excludes `--machine` for a workload."""
    for option, is_given in options.items():
        if is_given:
            raise UsageError(
                f"--machine and {option} exclude each other for a workload",
                cure=f"leave out {option}: the times are those of the library that was measured "
                "there",
            )


def _write_outputs(
    session: Session,
    algorithm: Algorithm,
    topology: Topology,
    source_of_times: TimingSource,
    timings: Sequence[TimedRun],
    outputs: SimulationOutputs,
    failures: Sequence[FailureTime] | None,
) -> None:
    """Write the requested files of the first run, then print the report of all runs on stdout.

    Files with a path in `outputs`, in this order: times of steps (CSV), timeline, page. With
    `outputs.as_json` the report is JSON with `failures`. Otherwise it has the fields of the run if
    `timings` has one, or a table of runs, then a table of `failures` if not None.

    Raises `UsageError` if the CSV file is requested and the simulator reported no step times, or if
    it cannot be written. Raises the `HubError` of `outputs.draw` if no installed writer can draw
    timeline or page, for example without step times. Files written before an error remain, and no
    report is printed.
    """
    # Imported here: the help of the command needs no numpy.
    from hub_core.cli.reports.timing import (
        create_simulate_report,
        print_failures,
        print_timings,
        write_step_times,
    )
    from hub_core.reports import to_json

    if outputs.steps_out is not None:
        write_step_times(algorithm.steps, timings[0].result, outputs.steps_out)
    result = timings[0].result
    timeline = RunTimeline(
        outputs.name,
        algorithm,
        timings[0].collective_bytes,
        result.step_start_ns,
        result.step_end_ns,
        topology,
        result,
        outputs.excerpt,
        source_of_times.note,
    )
    outputs.draw(session, timeline)
    if outputs.as_json:
        report = create_simulate_report(
            outputs.name, algorithm, topology, source_of_times, timings, failures
        )
        session.print_json(to_json(report))
        return
    print_timings(algorithm, topology, timings)
    if failures is not None:
        print_failures(failures)


def _read_network_of_input(session: Session, opened: OpenedAlgorithm) -> Topology:
    """Read the network that IN contains and print a note that it is used.

    Raises `UsageError` (`no-topology`) if IN has no network, and `HubError` if it is unreadable.
    """
    topology = _find_network_of_input(session, opened)
    if topology is None:
        raise UsageError(
            f"{opened.name} contains no network",
            cure="give one, for example --topology ring:8",
            code="no-topology",
        )
    return topology


def _find_network_of_input(session: Session, opened: OpenedAlgorithm) -> Topology | None:
    """Read the network that IN contains and print a note that it is used; None if it contains none.

    Raises `HubError` if it cannot be read.
    """
    topology = session.own_topology(opened)
    if topology is not None:
        session.say(f"on the network that {opened.name} states: {topology.name}")
    return topology
