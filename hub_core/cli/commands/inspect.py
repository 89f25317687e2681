"""`collhub inspect`: describe a file by collective, steps, channels, traffic, critical path."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click
import numpy as np

from hub_core.cli.arguments import (
    from_option,
    json_flag,
    option_pairs,
    size_option,
    source_argument,
)
from hub_core.cli.assignments import Assignments, assign, give_symbol_sizes
from hub_core.cli.jobs.workload_survey import print_survey, survey
from hub_core.cli.jobs.workloads import print_workload
from hub_core.cli.output import (
    print_fields,
    print_line,
    print_note,
    print_table,
    progress,
)
from hub_core.cli.reports.algorithm_records import ModeFlags
from hub_core.cli.reports.inspection_records import (
    ChainLengths,
    DependencyCounts,
    InspectReport,
    describe_origin,
)
from hub_core.cli.reports.summary import (
    CriticalPath,
    Lanes,
    Traffic,
    count_channels,
    count_kinds,
    critical_path,
    lanes,
    traffic,
)
from hub_core.cli.session import Session
from hub_core.model.algorithm import placement_of
from hub_core.model.diagnostics import InputError, Severity
from hub_core.model.quantities import format_bytes, format_ranks, parse_size
from hub_core.pipeline.detection import CANONICAL_FORMAT, trace_form
from hub_core.pipeline.inputs import require_workload
from hub_core.plugin_api import WorkloadReader, resolve

if TYPE_CHECKING:
    from hub_core.model import Workload
    from hub_core.model.algorithm import Algorithm, JsonValue
    from hub_core.pipeline.inputs import OpenedAlgorithm


LISTED_LINKS = 10
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
    """Describe IN: collective, steps by kind, channels, traffic by link, critical path, origin.

    For a workload: nodes, process groups, collectives by kind and size. For execution traces that
    are neither: nodes by type, dependencies, attributes.
    """
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
        print_survey(survey(traces.source), as_json)
        return
    size = algorithm.collective_bytes if size is None else size
    with progress("inspecting"):
        sent, longest = traffic(algorithm, size), critical_path(algorithm.steps)
    network = _find_network_name(session, opened)
    if as_json:
        session.print_report(
            _create_report(opened.name, opened.format_name, algorithm, network, sent, longest)
        )
    else:
        _print(opened.name, opened.format_name, algorithm, network, sent, longest)


def _warn(session: Session, error: InputError) -> None:
    """Print findings that do not stop the command as warnings; the exit code remains 0."""
    session.report(replace(finding, severity=Severity.WARNING) for finding in error.diagnostics)


def _get_reader_lines(opened: OpenedAlgorithm, workload: Workload) -> list[str]:
    """Return the lines that the reader of a workload adds to the description; [] if it has none.

    A reader of another kind of model has none either. Items that are no texts are converted by
    `str`. Raises `PluginError` if its function fails or returns neither a list nor a tuple.
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


def _find_network_name(session: Session, opened: OpenedAlgorithm) -> str | None:
    """Return the name of the network that IN itself contains, None without one.

    A network that cannot be read (`InputError`) is reported as a warning, and None is returned.
    """
    try:
        topology = session.own_topology(opened)
    except InputError as error:
        _warn(session, error)
        return None
    return None if topology is None else topology.name


def _create_report(
    source: str,
    source_format: str,
    algorithm: Algorithm,
    network: str | None,
    sent: Traffic,
    longest: CriticalPath | None,
) -> InspectReport:
    collective, steps = algorithm.collective, algorithm.steps
    lane_counts = lanes(steps)
    path = None
    if longest is not None:
        path = ChainLengths(steps=longest.steps, messages=longest.messages)
    return InspectReport(
        source=source,
        format=source_format,
        collective=str(collective.kind),
        root=collective.root,
        reduce_op=str(collective.reduce_op) if collective.reduces else None,
        claims=ModeFlags(in_place=collective.in_place, out_of_place=collective.out_of_place),
        has_contents=algorithm.has_contents,
        num_ranks=collective.num_ranks,
        npus=placement_of(algorithm) or tuple(range(collective.num_ranks)),
        topology=network,
        unit_count=collective.unit_count,
        scratch_units=algorithm.scratch_units.tolist(),
        collective_bytes=algorithm.collective_bytes,
        steps=len(steps),
        steps_by_kind=count_kinds(steps),
        channels=count_channels(steps),
        lanes=lane_counts.most,
        longest_lane=lane_counts.longest,
        fused_steps=lane_counts.fused,
        dependencies=DependencyCounts(
            data=len(steps.data_indices), control=len(steps.control_indices)
        ),
        units_by_link=_sum_by_link(sent, sent.units),
        bytes_by_link=None if sent.bytes is None else _sum_by_link(sent, sent.bytes),
        critical_path=path,
        provenance=describe_origin(algorithm.provenance),
        extensions=sorted(algorithm.extensions),
        stated=_collect_scalars(algorithm),
    )


def _collect_scalars(algorithm: Algorithm) -> dict[str, dict[str, JsonValue]]:
    """Return the texts, numbers and booleans of extensions by name of the extension.

    Extensions are in alphabetical order, their members in that of the source. Lists, objects and
    null are omitted, and so are extensions that are no objects or have nothing else.
    """
    values_by_extension: dict[str, dict[str, JsonValue]] = {}
    for name, extension in sorted(algorithm.extensions.items()):
        if not isinstance(extension, dict):
            continue
        single: dict[str, JsonValue] = {
            key: value
            for key, value in extension.items()
            if value is not None and not isinstance(value, dict | list)
        }
        if single:
            values_by_extension[name] = single
    return values_by_extension


def _sum_by_link(
    sent: Traffic, values: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> dict[str, int]:
    pairs = zip(sent.source.tolist(), sent.destination.tolist(), values.tolist(), strict=True)
    return {f"{source}->{destination}": value for source, destination, value in pairs}


def _describe_lanes(lane_counts: Lanes) -> str:
    """Describe the lanes in one line: maximum per rank and steps of the longest lane.

    Adds the number of fused steps if there are any. `not stated` if no step has a lane.
    """
    if not lane_counts.most:
        return "not stated"
    fused = f", {lane_counts.fused} steps fused" if lane_counts.fused else ""
    return (
        f"{lane_counts.most} of a rank at most, the longest of {lane_counts.longest} steps{fused}"
    )


def _print(
    source: str,
    source_format: str,
    algorithm: Algorithm,
    network: str | None,
    sent: Traffic,
    longest: CriticalPath | None,
) -> None:
    collective, steps = algorithm.collective, algorithm.steps
    provenance = algorithm.provenance
    scratch = int(algorithm.scratch_units.max(initial=0))
    kinds = ", ".join(f"{count} {kind}" for kind, count in count_kinds(steps).items() if count)
    print_fields(
        {
            "file": f"{source} ({source_format})",
            "collective": _describe_collective(algorithm),
            "ranks": _describe_ranks(algorithm),
            "units": f"{collective.unit_count}, scratch {scratch} at most",
            "size": "not stated"
            if algorithm.collective_bytes is None
            else format_bytes(algorithm.collective_bytes),
            **({} if network is None else {"network": network}),
            "steps": f"{len(steps)}: {kinds}" if kinds else "0",
            "dependencies": f"{len(steps.data_indices)} data, {len(steps.control_indices)} control",
            "channels": str(count_channels(algorithm.steps)),
            "lanes": _describe_lanes(lanes(steps)),
            "critical path": _describe_path(longest),
            "made by": f"{provenance.producer} {provenance.producer_version}".strip(),
            "made from": algorithm.provenance.source_name or "not stated",
            **{
                name: _format_values(values) for name, values in _collect_scalars(algorithm).items()
            },
        }
    )
    _print_links(sent)
    if not algorithm.has_contents:
        print_note(
            "a timing-only trace: it can be matched and simulated, its contents cannot be verified"
        )


def _format_values(values: JsonValue) -> str:
    """Format the values of an extension, in their order."""
    assert isinstance(values, dict)
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values.items())


def _describe_collective(algorithm: Algorithm) -> str:
    collective = algorithm.collective
    modes = " and ".join(
        name
        for name, claimed in (
            ("in place", collective.in_place),
            ("out of place", collective.out_of_place),
        )
        if claimed
    )
    root = "" if collective.root is None else f", root {collective.root}"
    return f"{collective.kind}{root}, {modes}"


def _describe_ranks(algorithm: Algorithm) -> str:
    npus = placement_of(algorithm)
    return f"{algorithm.num_ranks}" + ("" if npus is None else f", on NPUs {format_ranks(npus)}")


def _describe_path(longest: CriticalPath | None) -> str:
    if longest is None:
        return "none: steps wait for each other in a circle; see collhub verify"
    return f"{longest.messages} messages, {longest.steps} steps"


def _print_links(sent: Traffic) -> None:
    """Print the pairs of ranks with the most units, ties by sender, then receiver.

    At most `LISTED_LINKS` (10) pairs. The columns are link, messages, units and bytes; bytes are
    `-` if the size of the collective is unknown. Prints nothing without traffic.
    """
    if not len(sent.source):
        return
    heaviest = np.lexsort((sent.destination, sent.source, -sent.units))[:LISTED_LINKS].tolist()
    print_line(f"heaviest of {len(sent.source)} pairs of ranks:")
    rows = [
        (
            f"{sent.source[row]} -> {sent.destination[row]}",
            str(sent.messages[row]),
            str(sent.units[row]),
            "-" if sent.bytes is None else format_bytes(int(sent.bytes[row])),
        )
        for row in heaviest
    ]
    print_table(("link", "messages", "units", "bytes"), rows, right=("messages", "units", "bytes"))
