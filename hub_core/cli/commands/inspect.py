"""`collhub inspect`: describe a file by collective, steps, channels, traffic, critical path."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import (
    from_option,
    json_flag,
    option_pairs,
    size_option,
    source_argument,
)
from hub_core.cli.assignments import Assignments, assign, give_symbol_sizes
from hub_core.cli.command_context import Session
from hub_core.cli.output import progress
from hub_core.model.diagnostics import InputError, Severity
from hub_core.model.quantities import parse_size
from hub_core.plugin_api import WorkloadReader, resolve

if TYPE_CHECKING:
    from hub_core.model import Workload
    from hub_core.pipeline.inputs import OpenedAlgorithm


WORKLOAD_CODE = "workload-trace"


@click.command()
@source_argument
@from_option
@option_pairs
@size_option(
    "Size for which bytes are counted (default: the size in IN); for a program, sizes of its"
    " symbols, as B=8,S=1024."
)
@json_flag
@click.pass_obj
def inspect(
    session: Session,
    source: str,
    source_format: str | None,
    assignments: Assignments,
    size_text: str | None,
    as_json: bool,
) -> None:
    """Describe IN: traffic and critical path of an algorithm, or nodes of a workload or trace.

    An algorithm, which is not verified: collective, steps by kind, channels, traffic by
    link, critical path, origin.

    A workload: nodes, process groups, collectives by kind and size.

    Other execution traces: nodes by type, dependencies, attributes. A workload of traces
    that cannot be read is described in this way too, with a warning.
    """
    # Imported here: the help of the command needs no numpy.
    from hub_core.cli.jobs.workloads import print_workload
    from hub_core.cli.reports.summary import (
        create_inspect_report,
        critical_path,
        print_algorithm,
        traffic,
    )
    from hub_core.pipeline.detection import CANONICAL_FORMAT, trace_form
    from hub_core.pipeline.inputs import require_workload

    opened = session.open_input(source, source_format)
    options = assign(assignments, {"reader": opened.options})["reader"]
    size_text = give_symbol_sizes(size_text, opened.options, options)
    size = None if size_text is None else parse_size(size_text)
    try:
        if opened.holds_workload:
            workload = require_workload(session.read_model(opened, options), opened.name)
            lines = _get_reader_lines(opened, workload)
            print_workload(opened.name, opened.format_name, workload, lines, as_json)
            return
        algorithm = session.read_unverified(opened, options)
    except InputError as error:
        form = trace_form(opened.reader.offer.format)
        is_workload = opened.holds_workload and form is not None
        if not is_workload and error.diagnostics[0].code != WORKLOAD_CODE:
            raise
        if is_workload:
            _warn(session, error)
        # Opened as traces, without other files in the same folder.
        traces = session.open_input(source, CANONICAL_FORMAT if form is None else form.name)
        from hub_core.cli.jobs.workload_survey import print_survey, survey

        print_survey(survey(traces.source), as_json)
        return
    size = algorithm.collective_bytes if size is None else size
    with progress("inspecting"):
        sent, longest = traffic(algorithm, size), critical_path(algorithm.steps)
    network = None
    try:
        topology = session.own_topology(opened)
        network = None if topology is None else topology.name
    except InputError as error:
        # A network that cannot be read is left out.
        _warn(session, error)
    if as_json:
        session.print_report(
            create_inspect_report(
                opened.name, opened.format_name, algorithm, network, sent, longest
            )
        )
    else:
        print_algorithm(opened.name, opened.format_name, algorithm, network, sent, longest)


def _warn(session: Session, error: InputError) -> None:
    """Print findings that do not stop the command as warnings; the exit code remains 0."""
    session.report(replace(finding, severity=Severity.WARNING) for finding in error.diagnostics)


def _get_reader_lines(opened: OpenedAlgorithm, workload: Workload) -> list[str]:
    """Return the lines that the reader of a workload adds to the description.

    The list is empty if the reader has no function for this, or reads another kind of model than
    workloads. Items that are no texts are converted by `str`. Raises `PluginError` if the function
    fails or returns neither a list nor a tuple.
    """
    offer = opened.reader.offer
    if not isinstance(offer, WorkloadReader) or not offer.lines:
        return []
    # Imported here: the help of the command needs no plugins.
    from hub_core.pipeline.calls import blame, misfit

    with blame(opened.reader):
        lines = resolve(offer.lines)(workload)
    if not isinstance(lines, list | tuple):
        raise misfit(opened.reader, f"adds {type(lines).__name__} to inspect, not a list of lines")
    return [str(line) for line in lines]
