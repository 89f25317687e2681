"""`collhub view`: show runs, jobs, networks and comparisons on an interactive page."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hub_core import (
    FILE,
    Assignments,
    CommandContext,
    OpenedInput,
    are_ranks_of_one,
    assign,
    backend_option,
    excerpt_options,
    machine_option,
    option_pairs,
    parse_sizes,
    size_option,
    topology_option,
    verify_option,
)
from hub_core.model import HubError, UsageError
from hub_core.plugin_api import (
    JobTimeline,
    PageSubject,
    RunExcerpt,
    RunTimeline,
    Simulator,
    TopologyDrawing,
    WorkloadRequest,
    WorkloadSimulator,
)

if TYPE_CHECKING:
    from hub_core.network import Topology


@dataclass(frozen=True, slots=True)
class _ViewRequest:
    """Options of the command that apply to every IN."""

    topology: Topology | None
    size: int | None
    backend: str
    machine: str | None
    source_format: str | None
    assignments: Assignments
    excerpt: RunExcerpt


@click.command()
@click.argument("sources", metavar="IN [IN ...]", type=FILE, nargs=-1, required=True)
@click.option(
    "-o", "--output", "out", metavar="OUT", type=FILE, required=True, help="The page, as run.html."
)
@topology_option("Network of algorithms and jobs (default: the network in IN).")
@size_option("Size of collectives, such as 1MiB (default: the size in IN, else 1MiB).")
@machine_option
@backend_option("The simulator.")
@excerpt_options
@verify_option
@option_pairs
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.pass_obj
def view(
    context: CommandContext,
    /,
    sources: tuple[str, ...],
    out: str,
    topology_text: str | None,
    size_text: str | None,
    machine: str | None,
    backend: str,
    source_format: str | None,
    excerpt: RunExcerpt,
    assignments: Assignments,
    force: bool,
) -> None:
    """Show algorithms, jobs, networks and reports on an interactive page: one file, no server.

    IN is an algorithm or a workload, which is simulated on the topology; a network, a file or a
    text such as ring:8; a folder of 'collhub tune'; or the --json report of 'collhub compare'
    or 'collhub diagnose'. If all IN are files of the ranks of one set, they are read as one IN.
    Several runs are shown on one time axis. An existing OUT is an error without --force, and so
    are several sizes.
    """
    from hub_core.plugin_api import InteractivePage

    if not force and out != "-" and Path(out).exists():
        raise UsageError(
            f"{out} exists already", cure="name another file, or add --force", code="output-exists"
        )
    sizes = parse_sizes(size_text) if size_text is not None else (None,)
    if len(sizes) > 1:
        raise UsageError("view needs a single size", cure="give for example --size 1MiB")
    request = _ViewRequest(
        None if topology_text is None else context.read_topology(topology_text),
        sizes[0],
        backend,
        machine,
        source_format,
        assignments,
        excerpt,
    )
    subjects: list[PageSubject] = []
    inputs: list[tuple[str, tuple[str, ...]]] = [(source, ()) for source in sources]
    if len(sources) > 1 and are_ranks_of_one(sources, context.registry()):
        inputs = [(sources[0], sources[1:])]
    for source, more in inputs:
        subjects.extend(_read_subjects(context, source, more, request))
    title = ", ".join(Path(source).name or source for source in sources[:4])
    page = InteractivePage(title, tuple(subjects))
    context.say_written(context.draw_report(page, out))


def _read_subjects(
    context: CommandContext, source: str, more: tuple[str, ...], request: _ViewRequest
) -> list[PageSubject]:
    """Return the subjects of the page for the input `source`, by the first rule that applies.

    1. A folder with `report.json`: the comparisons and files of this tuned folder.
    2. A file that is a report of the hub: one subject.
    3. A network description such as `ring:8`: the network. The text must have a colon or be an
       identifier, no path may have this name, and `more` and `--from` must be absent. If it
       cannot be read, a text with a colon raises the error; an identifier goes on to rule 4.
    4. An algorithm or job that can be opened: it is simulated on `request.topology`, else on its
       network. An algorithm without either: `UsageError` (`no-topology`).
    5. An existing file that can be read as a network.

    `more`: files of other ranks, opened with `source` by rule 4 only. If rules 4 and 5 fail, the
    error of rule 4 is raised. Errors of a report, of reading and of simulation are raised too.
    """
    from collhub_viewer.report_inputs import read_report, read_tuned_folder

    path = Path(source)
    if path.is_dir() and (path / "report.json").is_file():
        return read_tuned_folder(path)
    if path.is_file() and (subject := read_report(path)) is not None:
        return [subject]
    is_text = not path.exists() and not more and (":" in source or source.isidentifier())
    if is_text and request.source_format is None:
        try:
            topology = context.read_topology(source)
        except HubError:
            if ":" in source:
                raise
        else:
            return [TopologyDrawing(source, topology)]
    try:
        opened = context.open_input(source, request.source_format, more)
    except HubError:
        if path.exists():
            with suppress(HubError):
                network = context.read_topology(source, request.source_format)
                return [TopologyDrawing(source, network)]
        raise
    if opened.holds_workload:
        return [_simulate_job(context, opened, request)]
    return [_simulate_algorithm(context, opened, request)]


def _simulate_algorithm(
    context: CommandContext, opened: OpenedInput, request: _ViewRequest
) -> RunTimeline:
    from hub_core import choose_timing, simulate

    simulator_options = context.options_of(Simulator, request.backend)
    options = assign(
        request.assignments, {"reader": opened.options, "simulator": simulator_options}
    )
    topology = request.topology or context.own_topology(opened)
    if topology is None:
        raise UsageError(
            f"{opened.name} contains no network",
            cure="give one, for example --topology ring:8",
            code="no-topology",
        )
    algorithm = context.read_input(opened, options["reader"])
    size = request.size or algorithm.collective_bytes or 1 << 20
    source = choose_timing(request.machine, request.backend, topology, context.registry())
    with context.progress(f"simulating {opened.name}"):
        result = simulate(
            algorithm,
            topology,
            size,
            backend=source.backend,
            options={**options["simulator"], **source.options},
            registry=context.registry(),
            wants_transfers=True,
        )
    context.report(result.diagnostics, opened, algorithm)
    return RunTimeline(
        opened.name,
        algorithm,
        size,
        result.step_start_ns,
        result.step_end_ns,
        topology,
        result,
        request.excerpt,
        source.note,
    )


def _simulate_job(
    context: CommandContext, opened: OpenedInput, request: _ViewRequest
) -> JobTimeline:
    simulator_options = context.options_of(WorkloadSimulator, request.backend)
    options = assign(
        request.assignments, {"reader": opened.options, "simulator": simulator_options}
    )
    workload = context.read_workload(opened, options["reader"])
    topology = request.topology or context.own_topology(opened)
    job = WorkloadRequest(workload, topology, context.registry(), wants_transfers=True)
    result = context.simulate_workload(job, request.backend, options["simulator"])
    context.report(result.diagnostics)
    return JobTimeline(
        opened.name,
        workload,
        result.step_start_ns,
        result.step_end_ns,
        topology,
        result,
        request.excerpt,
    )
