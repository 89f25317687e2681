"""`collhub simulate`: simulate an algorithm on a topology for one size or a range of sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import (
    backend_option,
    collective_rules_option,
    input_options,
    machine_option,
    size_option,
    source_argument,
    topology_option,
)
from hub_core.cli.assignments import Assignments, assign, parse_sizes
from hub_core.cli.jobs.simulate_job import JobOutputs, refuse_overlap, simulate_workload
from hub_core.cli.jobs.workloads import apply_rules, collect_workload_warnings
from hub_core.cli.output import print_fields, print_json, print_line, print_table, progress
from hub_core.cli.parameter_types import FILE
from hub_core.cli.session import Session
from hub_core.model import ExitCode, UsageError, format_bytes, format_ranks, format_time
from hub_core.plugin_api import Simulator, WorkloadRequest, WorkloadSimulator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hub_core.cli.reports.timing import Timing
    from hub_core.cli.reports.timing_records import SimulatedSize, SimulateReport
    from hub_core.model import Algorithm
    from hub_core.network import Topology
    from hub_core.pipeline.inputs import OpenedAlgorithm
    from hub_core.pipeline.simulation import TimingSource


LISTED_LINKS = 10
TIMING_COLUMNS = ("size", "time", "bandwidth", "bound", "ratio")


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
@click.option(
    "--overlap",
    "has_overlap",
    is_flag=True,
    help="For a workload: also the time without limits on concurrent nodes of a rank.",
)
@collective_rules_option(
    "For a workload: KIND[@SIZE][/GROUP]=ALGORITHM, a synthesizer (ring:order=given) or a file, as"
    " with expand (repeatable, the last matching rule applies)."
)
@input_options
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
    has_overlap: bool,
    rules: tuple[str, ...],
    source_format: str | None,
    assignments: Assignments,
    as_json: bool,
) -> int:
    """Simulate the algorithm or workload in IN on a topology, by default on the network in IN.

    Exit 0 if every rank finishes, else 1 with the reasons.
    """
    from hub_core.pipeline.simulation import NO_MACHINE, choose_timing, simulator_name

    sizes = None if size_text is None else parse_sizes(size_text)
    if sizes is not None and len(sizes) > 1:
        _refuse_files({"--steps": steps_out, "--timeline": timeline_out})
    given_topology = None if topology_text is None else session.read_topology(topology_text)
    opened = session.open_input(source, source_format)
    is_on_machine = machine not in (None, NO_MACHINE)
    if opened.holds_workload and is_on_machine and (rules or topology_text is not None):
        option = "--collective" if rules else "--topology"
        message = f"--machine and {option} exclude each other for a workload"
        cure = f"leave out {option}: the times are those of the library that was measured there"
        raise UsageError(message, cure=cure)
    kind = WorkloadSimulator if opened.holds_workload else Simulator
    backend = simulator_name(
        machine, backend, session.registry(), of_workloads=opened.holds_workload
    )
    simulator_options = session.options_of(kind, backend)
    assigned = assign(assignments, {"reader": opened.options, "simulator": simulator_options})
    if opened.holds_workload:
        from hub_core.pipeline.inputs import require_workload

        workload = require_workload(session.read_model(opened, assigned["reader"]), opened.name)
        # An incorrect job is not refused: the simulation shows its effect.
        warnings = collect_workload_warnings(session, workload, opened.name)
        if rules:
            network = given_topology or _read_network_of_input(session, opened)
            workload = apply_rules(session, workload, rules, network)
        options = assigned["simulator"]
        if machine is not None and is_on_machine:
            options = {**options, "machine": machine}
        if has_overlap:
            refuse_overlap([option.name for option in simulator_options], options, backend)
        outputs = JobOutputs(opened.name, as_json, has_overlap, steps_out, timeline_out)
        request = WorkloadRequest(
            workload,
            given_topology,
            session.registry(),
            lambda: _find_network_of_input(session, opened),
        )
        return simulate_workload(session, request, backend, options, outputs, warnings)
    for option, is_given in (("--overlap", has_overlap), ("--collective", bool(rules))):
        if is_given:
            raise UsageError(f"{option} is for workloads", cure="leave it out for an algorithm")
    topology = given_topology or _read_network_of_input(session, opened)
    algorithm = session.read_input(opened, assigned["reader"])
    sizes = sizes or _get_size_of_input(opened.name, algorithm)
    machine = machine or assigned["simulator"].get("machine")
    source_of_times = choose_timing(machine, backend, topology, session.registry())
    options = {**assigned["simulator"], **source_of_times.options}
    timings = _simulate_sizes(
        session, algorithm, topology, sizes, backend, options, source_of_times
    )
    if steps_out is not None:
        from hub_core.cli.reports.timing import write_step_times

        write_step_times(algorithm.steps, timings[0].result, steps_out)
    if timeline_out is not None:
        _write_timeline(session, algorithm, timings[0], timeline_out)
    _print(opened.name, algorithm, topology, source_of_times, timings, as_json)
    session.say(source_of_times.note)
    findings = dict.fromkeys(finding for timing in timings for finding in timing.result.diagnostics)
    findings |= dict.fromkeys(timing.defect for timing in timings if timing.defect is not None)
    session.report(findings, opened, algorithm)
    is_finished = all(timing.time_ns is not None for timing in timings)
    return ExitCode.DONE if is_finished else ExitCode.INVALID


def _print(
    name: str,
    algorithm: Algorithm,
    topology: Topology,
    source_of_times: TimingSource,
    timings: Sequence[Timing],
    as_json: bool,
) -> None:
    if as_json:
        from hub_core.reports import to_json

        print_json(to_json(_create_report(name, algorithm, topology, source_of_times, timings)))
    elif len(timings) == 1:
        _print_one(algorithm, topology, timings[0])
    else:
        rows = [format_timing(timing) for timing in timings]
        print_table(TIMING_COLUMNS, rows, right=TIMING_COLUMNS)


def _write_timeline(session: Session, algorithm: Algorithm, timing: Timing, out: str) -> None:
    """Write the timeline of the steps of a run to the file `out`.

    The suffix of `out` selects the writer of reports. That writer refuses a run whose simulator
    states no times of steps (they are None), with a `HubError`.
    """
    from hub_core.plugin_api import RunTimeline

    result = timing.result
    timeline = RunTimeline(
        out, algorithm, timing.collective_bytes, result.step_start_ns, result.step_end_ns
    )
    session.draw_report(timeline, out)


def format_timing(timing: Timing) -> tuple[str, ...]:
    """Return the cells of a row of `TIMING_COLUMNS`.

    `never ends` for a run that does not finish; `-` for unknown values.
    """
    bandwidth, ratio = timing.bandwidth_bytes_per_s, timing.ratio_to_bound
    return (
        format_bytes(timing.collective_bytes),
        "never ends" if timing.time_ns is None else format_time(timing.time_ns),
        "-" if bandwidth is None else f"{bandwidth / 1e9:.2f} GB/s",
        "-" if timing.bound_ns is None else format_time(timing.bound_ns),
        "-" if ratio is None else f"{ratio:.3f}",
    )


def _simulate_sizes(
    session: Session,
    algorithm: Algorithm,
    topology: Topology,
    sizes: Sequence[int],
    backend: str,
    options: Assignments,
    source_of_times: TimingSource,
) -> list[Timing]:
    from hub_core.cli.reports.timing import judge
    from hub_core.pipeline.simulation import simulate as run_simulator

    registry = session.registry()
    results = {}
    for size in sizes:
        with progress(f"simulating {format_bytes(size)}"):
            results[size] = run_simulator(
                algorithm, topology, size, backend=backend, options=options, registry=registry
            )
    with progress("computing lower bounds"):
        return judge(
            algorithm,
            topology,
            results,
            backend=backend,
            options=options,
            registry=registry,
            bounded=source_of_times.bounded_network(topology),
        )


def _refuse_files(paths: Mapping[str, str | None]) -> None:
    """Raise `UsageError` for files of a single run if there are several sizes."""
    if named := [option for option, out in paths.items() if out is not None]:
        raise UsageError(f"{named[0]} needs a single size", cure="give for example --size 1MiB")


def _read_network_of_input(session: Session, opened: OpenedAlgorithm) -> Topology:
    """Read the network of IN and report its use in a note, since the user did not name it.

    Raises `UsageError` if IN contains no network, and `HubError` if it cannot be read.
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
    """Read the network that IN itself contains; None if it contains none.

    Its use is reported in a note, since the user did not name it. Raises `HubError` if it cannot be
    read.
    """
    topology = session.own_topology(opened)
    if topology is not None:
        session.say(f"on the network that {opened.name} states: {topology.name}")
    return topology


def _get_size_of_input(name: str, algorithm: Algorithm) -> tuple[int, ...]:
    if algorithm.collective_bytes is None:
        raise UsageError(
            f"{name} states no size", cure="give one, for example --size 1MiB", code="no-size"
        )
    return (algorithm.collective_bytes,)


def _create_report(
    source: str,
    algorithm: Algorithm,
    topology: Topology,
    source_of_times: TimingSource,
    timings: Sequence[Timing],
) -> SimulateReport:
    """Create the report: the run of a single size as its members, several under `results`.

    `results` is absent for a single run. The NPUs are those on which the algorithm is placed, else
    0 to ranks - 1. `timing` and `machine` say whose times they are; `machine` is None for nominal
    links.
    """
    from msgspec import structs

    from hub_core.cli.reports.timing_records import SimulateReport
    from hub_core.model import placement_of
    from hub_core.reports import UNSET

    runs = [_create_run(topology, timing) for timing in timings]
    return SimulateReport(
        source=source,
        topology=topology.name,
        npus=placement_of(algorithm) or tuple(range(algorithm.num_ranks)),
        backend=source_of_times.backend,
        timing=source_of_times.note,
        machine=source_of_times.machine_record(),
        results=runs if len(runs) > 1 else UNSET,
        **(structs.asdict(runs[0]) if len(runs) == 1 else {}),
    )


def _create_run(topology: Topology, timing: Timing) -> SimulatedSize:
    from hub_core.cli.reports.timing_records import NamedLinkLoad, SimulatedSize
    from hub_core.reports import list_findings

    result, bound = timing.result, timing.bound
    finish_ns = result.rank_finish_ns
    return SimulatedSize(
        collective_bytes=timing.collective_bytes,
        time_ns=result.time_ns,
        rank_finish_ns=finish_ns,
        rank_exposed_ns=result.rank_exposed_ns,
        unfinished_ranks=[rank for rank, time in enumerate(finish_ns) if time is None],
        time_ps=timing.time_ps,
        bound_ns=timing.bound_ns,
        bound_ps=None if bound is None else bound.time_ps,
        bound_method=None if bound is None else bound.method,
        ratio_to_bound=timing.ratio_to_bound,
        algorithm_bandwidth_bytes_per_s=timing.bandwidth_bytes_per_s,
        busiest_links=[
            NamedLinkLoad(
                source=load.source,
                destination=load.destination,
                source_name=topology.node_name(load.source),
                destination_name=topology.node_name(load.destination),
                bytes=load.bytes,
                busy_ns=load.busy_ns,
            )
            for load in result.link_loads[:LISTED_LINKS]
        ],
        link_loads=result.link_loads,
        details=result.details,
        diagnostics=list_findings(result.diagnostics),
    )


def _print_one(algorithm: Algorithm, topology: Topology, timing: Timing) -> None:
    from hub_core.model import placement_of

    npus = placement_of(algorithm)
    size, time, bandwidth, bound, ratio = format_timing(timing)
    exact = "" if timing.time_ns is None else f" ({timing.time_ns} ns)"
    ranks = f"{algorithm.num_ranks} ranks"
    print_fields(
        {
            "algorithm": f"{algorithm.collective.kind}, {ranks}, {len(algorithm.steps)} steps",
            "topology": f"{topology.name}: {topology.num_npus} NPUs, {topology.num_links} links",
            **({} if npus is None else {"ranks on NPUs": format_ranks(npus)}),
            "size": size,
            "time": f"{time}{exact}",
            **{key: str(value) for key, value in timing.result.details.items()},
            "bandwidth": bandwidth,
            "bound": _format_bound(timing, bound, ratio),
        }
    )
    busiest = timing.result.link_loads[:LISTED_LINKS]
    if busiest:
        print_line(f"busiest of {len(timing.result.link_loads)} used links:")
        rows = [
            (
                f"{topology.node_name(load.source)} -> {topology.node_name(load.destination)}",
                format_bytes(load.bytes),
                f"{100 * load.busy_ns / timing.time_ns:.0f} %"
                if timing.time_ns
                else format_time(load.busy_ns),
            )
            for load in busiest
        ]
        print_table(("link", "bytes", "busy"), rows, right=("bytes", "busy"))


def _format_bound(timing: Timing, bound: str, ratio: str) -> str:
    """Return the bound and the ratio of the time to it as one text.

    `bound`, `ratio`: formatted; a ratio of `-` (unknown) is omitted. The offer that proves the
    bound is named unless it is the core, or there is no bound.
    """
    from hub_core.pipeline.bounds import CORE_METHOD

    if timing.bound is None or timing.bound.method == CORE_METHOD:
        by = ""
    else:
        by = f" by {timing.bound.method}"
    return f"{bound}{by}" + ("" if ratio == "-" else f", time is {ratio} times that")
