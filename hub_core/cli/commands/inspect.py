"""`collhub inspect`: what a file is - collective, steps, channels, traffic, critical path."""

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
from hub_core.cli.jobs.inspect_workload import print_survey
from hub_core.cli.jobs.workload_survey import survey
from hub_core.cli.jobs.workloads import print_workload
from hub_core.cli.output import (
    print_fields,
    print_json,
    print_line,
    print_note,
    print_table,
    progress,
)
from hub_core.cli.reports.summary import (
    CriticalPath,
    Lanes,
    Traffic,
    channel_count,
    critical_path,
    kind_counts,
    lanes,
    traffic,
)
from hub_core.cli.session import Session
from hub_core.model.diagnostics import InputError, Severity
from hub_core.model.placement import placement_of
from hub_core.model.quantities import format_bytes, parse_size
from hub_core.model.rank_lists import format_ranks
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
    """Say what IN is: collective, steps by kind, channels, traffic by link, critical path, origin.

    Of a workload: nodes, process groups, collectives by kind and size. Execution traces that are
    neither are surveyed: nodes by type, dependencies, attributes.
    """
    opened = session.open_input(source, source_format)
    options = assign(assignments, {"reader": opened.options})["reader"]
    size_text = give_symbol_sizes(size_text, opened.options, options)
    size = None if size_text is None else parse_size(size_text)
    try:
        if opened.holds_workload:
            workload = require_workload(session.read_model(opened, options), opened.name)
            lines = _lines(opened, workload)
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
        # Without what may stand beside the traces.
        traces = session.open_input(source, CANONICAL_FORMAT if form is None else form.name)
        print_survey(survey(traces.source), as_json)
        return
    size = algorithm.collective_bytes if size is None else size
    with progress("inspecting"):
        sent, longest = traffic(algorithm, size), critical_path(algorithm.steps)
    network = _network(session, opened)
    if as_json:
        print_json(_object(opened.name, opened.format_name, algorithm, network, sent, longest))
    else:
        _print(opened.name, opened.format_name, algorithm, network, sent, longest)


def _warn(session: Session, error: InputError) -> None:
    """Print findings that do not stop the command, which exits with 0, as warnings."""
    session.report(replace(found, severity=Severity.WARNING) for found in error.diagnostics)


def _lines(opened: OpenedAlgorithm, workload: Workload) -> list[str]:
    """What the reader of a workload adds to what is said of it."""
    offer = opened.reader.offer
    if not isinstance(offer, WorkloadReader) or not offer.lines:
        return []
    # Imported here: the help of the command needs no plugins.
    from hub_core.pipeline.calls import blame, misfit

    with blame(opened.reader):
        found = resolve(offer.lines)(workload)
    if not isinstance(found, list | tuple):
        raise misfit(opened.reader, f"adds {type(found).__name__} to inspect, not a list of lines")
    return [str(line) for line in found]


def _network(session: Session, opened: OpenedAlgorithm) -> str | None:
    """The network that IN states, by name; one that cannot be read is said, and no obstacle."""
    try:
        topology = session.own_topology(opened)
    except InputError as error:
        _warn(session, error)
        return None
    return None if topology is None else topology.name


def _object(
    source: str,
    source_format: str,
    algorithm: Algorithm,
    network: str | None,
    sent: Traffic,
    longest: CriticalPath | None,
) -> JsonValue:
    collective, steps = algorithm.collective, algorithm.steps
    found = lanes(steps)
    return {
        "schema": "collhub/report-inspect-1",
        "source": source,
        "format": source_format,
        "collective": str(collective.kind),
        "root": collective.root,
        "reduce_op": str(collective.reduce_op) if collective.reduces else None,
        "claims": {"in_place": collective.in_place, "out_of_place": collective.out_of_place},
        "has_contents": algorithm.has_contents,
        "num_ranks": collective.num_ranks,
        "npus": list(placement_of(algorithm) or range(collective.num_ranks)),
        "topology": network,
        "unit_count": collective.unit_count,
        "scratch_units": algorithm.scratch_units.tolist(),
        "collective_bytes": algorithm.collective_bytes,
        "steps": len(steps),
        "steps_by_kind": dict(kind_counts(steps)),
        "channels": channel_count(algorithm.steps),
        "lanes": found.most,
        "longest_lane": found.longest,
        "fused_steps": found.fused,
        "dependencies": {"data": len(steps.data_indices), "control": len(steps.control_indices)},
        "units_by_link": _by_link(sent, sent.units),
        "bytes_by_link": None if sent.bytes is None else _by_link(sent, sent.bytes),
        "critical_path": None
        if longest is None
        else {"steps": longest.steps, "messages": longest.messages},
        "provenance": algorithm.provenance.as_json(),
        "extensions": sorted(algorithm.extensions),
        "stated": _stated(algorithm),
    }


def _stated(algorithm: Algorithm) -> dict[str, JsonValue]:
    """What its maker says of it, by extension: single values alone, such as a claimed time."""
    found: dict[str, JsonValue] = {}
    for name, extension in sorted(algorithm.extensions.items()):
        if not isinstance(extension, dict):
            continue
        single: dict[str, JsonValue] = {
            key: value
            for key, value in extension.items()
            if value is not None and not isinstance(value, dict | list)
        }
        if single:
            found[name] = single
    return found


def _by_link(
    sent: Traffic, values: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> dict[str, JsonValue]:
    ends = zip(sent.source.tolist(), sent.destination.tolist(), values.tolist(), strict=True)
    return {f"{source}->{destination}": value for source, destination, value in ends}


def _said_lanes(found: Lanes) -> str:
    """The lanes in words: the most of a rank and the longest; `not stated` where there are none."""
    if not found.most:
        return "not stated"
    fused = f", {found.fused} steps fused" if found.fused else ""
    return f"{found.most} of a rank at most, the longest of {found.longest} steps{fused}"


def _print(
    source: str,
    source_format: str,
    algorithm: Algorithm,
    network: str | None,
    sent: Traffic,
    longest: CriticalPath | None,
) -> None:
    collective, steps = algorithm.collective, algorithm.steps
    made = algorithm.provenance
    scratch = int(algorithm.scratch_units.max(initial=0))
    kinds = ", ".join(f"{count} {kind}" for kind, count in kind_counts(steps).items() if count)
    print_fields(
        {
            "file": f"{source} ({source_format})",
            "collective": _said_collective(algorithm),
            "ranks": _said_ranks(algorithm),
            "units": f"{collective.unit_count}, scratch {scratch} at most",
            "size": "not stated"
            if algorithm.collective_bytes is None
            else format_bytes(algorithm.collective_bytes),
            **({} if network is None else {"network": network}),
            "steps": f"{len(steps)}: {kinds}" if kinds else "0",
            "dependencies": f"{len(steps.data_indices)} data, {len(steps.control_indices)} control",
            "channels": str(channel_count(algorithm.steps)),
            "lanes": _said_lanes(lanes(steps)),
            "critical path": _said_path(longest),
            "made by": f"{made.producer} {made.producer_version}".strip(),
            "made from": algorithm.provenance.source_name or "not stated",
            **{name: _said(values) for name, values in _stated(algorithm).items()},
        }
    )
    _print_links(sent)
    if not algorithm.has_contents:
        print_note(
            "a timing-only trace: it can be matched and simulated, its contents cannot be verified"
        )


def _said(values: JsonValue) -> str:
    """What an extension states, in the order in which it does."""
    assert isinstance(values, dict)
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values.items())


def _said_collective(algorithm: Algorithm) -> str:
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


def _said_ranks(algorithm: Algorithm) -> str:
    npus = placement_of(algorithm)
    return f"{algorithm.num_ranks}" + ("" if npus is None else f", on NPUs {format_ranks(npus)}")


def _said_path(longest: CriticalPath | None) -> str:
    if longest is None:
        return "none: steps wait for each other in a circle; see collhub verify"
    return f"{longest.messages} messages, {longest.steps} steps"


def _print_links(sent: Traffic) -> None:
    """The heaviest pairs of ranks first, ties by their numbers."""
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
