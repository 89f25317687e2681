"""`collhub topology`: show, check, draw and convert a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hub_core import (
    FILE,
    TOPOLOGY,
    Assignments,
    CommandContext,
    CommandGroup,
    check_stdout,
    format_option,
    from_option,
    json_flag,
    option_pairs,
    output_option,
    size_option,
    strict_flag,
)
from hub_core.model import ExitCode, parse_size
from hub_core.plugin_api import (
    ReportWriter,
    TopologyDrawing,
    TopologyWriter,
)

if TYPE_CHECKING:
    from hub_core import WrittenFiles
    from hub_core.network import Topology

# Modules that compute are imported in the functions, since the help of a command needs no numpy.

_ARGUMENT = click.argument("text", metavar="T", type=TOPOLOGY)


@click.group(cls=CommandGroup)
def topology() -> None:
    """Show, check, draw and convert networks.

    T is a text such as ring:8, 'mesh:4x4?bandwidth=50GB/s&latency=500ns' or 'dgx1v?npus=0,1,4', a
    file, or - for stdin.
    """


@topology.command()
@_ARGUMENT
@click.option("--links", "lists_links", is_flag=True, help="Also list all links.")
@from_option
@json_flag
@click.pass_obj
def show(
    context: CommandContext,
    text: str,
    lists_links: bool,
    source_format: str | None,
    as_json: bool,
) -> None:
    """Show the facts of T: nodes, links by class, dimensions, bandwidth of nodes, diameter, groups.

    A class has all links of equal bandwidth, latency and kinds of nodes. The diameter is the
    largest number of links between two NPUs, or not known if some NPU cannot reach another one
    or the search is too long. The text lists at most 10 classes and 10 groups, and counts the
    others. --links adds every link in the order of T. --json has bandwidths in bytes/s and
    latencies in s.
    """
    from collhub_topologies.show_report import create_facts_report, print_facts, print_links
    from collhub_topologies.summary import collect_facts

    network = context.read_topology(text, source_format)
    with context.progress("analyzing the network"):
        facts = collect_facts(network)
    if as_json:
        context.print_report(create_facts_report(network, facts, with_links=lists_links))
        return
    print_facts(context, network, facts)
    if lists_links:
        print_links(context, network)


@topology.command()
@_ARGUMENT
@size_option("Also give a lower bound on the time of every collective of this size.")
@from_option
@json_flag
@click.pass_obj
def check(
    context: CommandContext,
    text: str,
    size_text: str | None,
    source_format: str | None,
    as_json: bool,
) -> int:
    """Check that all NPUs of T reach one another, and note likely mistakes.

    Exit 0 if no check of an installed plugin finds an error, else 1. The error names two
    NPUs without a path, and all nodes that the first one reaches. Notes: one-way and
    parallel links, links that differ from the reverse link, switches that no message can
    pass.
    """
    from collhub_topologies.check_report import check_network

    size = None if size_text is None else parse_size(size_text)
    network = context.read_topology(text, source_format)
    outcome = check_network(context, network, size)
    if as_json:
        context.print_report(outcome.create_report())
    else:
        outcome.print_text(context)
    return ExitCode.DONE if outcome.is_usable else ExitCode.INVALID


@topology.command()
@_ARGUMENT
@output_option
@format_option(
    "--to",
    "target_format",
    ReportWriter,
    "Format of OUT (default: by suffix; `collhub formats` lists those that draw).",
)
@click.option(
    "--loads",
    "loads_path",
    metavar="RESULT.json",
    type=FILE,
    help="Colour links by how busy they were: the output of `collhub simulate --json` on T.",
)
@click.option(
    "--collapse",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Draw each group as one node with its counts; auto: if the picture is wider than a page.",
)
@from_option
@json_flag
@click.pass_obj
def draw(
    context: CommandContext,
    text: str,
    out: str,
    target_format: str | None,
    loads_path: str | None,
    collapse: str,
    source_format: str | None,
    as_json: bool,
) -> None:
    """Draw T, to a file or - for stdout.

    Regular networks are drawn by their dimensions, the remaining ones in layers or circles. Colour
    and width show bandwidth and latency; with --loads, colour shows how busy a link was.
    """
    from collhub_topologies.check_report import SimulatedLoads, read_loads

    # Checked first, since reading may take long.
    check_stdout(out, as_json)
    simulated = SimulatedLoads((), None) if loads_path is None else read_loads(loads_path)
    network = context.read_topology(text, source_format)
    drawing = TopologyDrawing(network.name, network, simulated.loads, simulated.time_ns, collapse)
    written = context.draw_report(drawing, out, target_format)
    _report_written(context, network, written, as_json)


@topology.command()
@_ARGUMENT
@output_option
@format_option(
    "--to",
    "target_format",
    TopologyWriter,
    "Format of OUT (default: by suffix, else the hub's JSON document).",
)
@option_pairs
@strict_flag
@from_option
@json_flag
@click.pass_obj
def convert(
    context: CommandContext,
    text: str,
    out: str,
    target_format: str | None,
    assignments: Assignments,
    strict: bool,
    source_format: str | None,
    as_json: bool,
) -> None:
    """Write T as the hub's JSON document or in another format, to a file or - for stdout."""
    check_stdout(out, as_json)
    network = context.read_topology(text, source_format)
    written = context.write_topology(network, out, target_format, assignments, strict=strict)
    _report_written(context, network, written, as_json)


def _report_written(
    context: CommandContext, network: Topology, written: WrittenFiles, as_json: bool
) -> None:
    """Report the written files, either as text or with `as_json` as a JSON report.

    - Text: one line on stderr with the first path and the number of all other paths. For
      output to stdout, which has no paths, no line is printed.
    - JSON on stdout: `topology`, the name of the network, and `artifacts`, the paths of
      the files.
    """
    if not as_json:
        context.say_written(written)
        return
    from collhub_topologies.show_report import TopologyWriteReport

    paths = [str(path) for path in written.paths]
    context.print_report(TopologyWriteReport(topology=network.name, artifacts=paths))
