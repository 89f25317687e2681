"""`collhub topology`: show, check, draw and convert a network, before anything is made for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hub_core.cli.groups import CommandGroup
from hub_core.cli.output import print_diagnostic, print_json, print_note, print_table, progress
from hub_core.cli.session import Session, check_stdout, written_paths
from hub_core.cli.topology_facts import facts_object, link_objects, print_facts, print_links
from hub_core.model import ExitCode, Severity, format_time, parse_size
from hub_core.model.diagnostics import diagnostic_object
from hub_core.plugin_api import from_option, json_flag, output_option

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hub_core.model import Diagnostic, JsonValue
    from hub_core.network import Topology


_ARGUMENT = click.argument("text", metavar="T")


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
    session: Session, text: str, lists_links: bool, source_format: str | None, as_json: bool
) -> None:
    """Say what T is: nodes, links by class, dimensions, bandwidth of a node, diameter, groups."""
    from hub_core.network import facts_of

    network = session.read_topology(text, source_format)
    with progress("looking at the network"):
        facts = facts_of(network)
    if as_json:
        print_json(
            facts_object(network, facts) | ({"links": link_objects(network)} if lists_links else {})
        )
        return
    print_facts(network, facts)
    if lists_links:
        print_links(network)


@topology.command()
@_ARGUMENT
@click.option(
    "--size",
    "size_text",
    metavar="S",
    help="Also give a lower bound on the time of every collective of this size.",
)
@from_option
@json_flag
@click.pass_obj
def check(
    session: Session, text: str, size_text: str | None, source_format: str | None, as_json: bool
) -> int:
    """Check that all NPUs of T reach one another, and note what is often a slip.

    Exit 0 where they do, else 1 with two of them and the cut between. Notes: one-way and parallel
    links, links that differ from their way back, switches that nothing can pass.
    """
    size = None if size_text is None else parse_size(size_text)
    network = session.read_topology(text, source_format)
    with progress("checking"):
        found = _findings(session, network)
    is_usable = all(one.severity is not Severity.ERROR for one in found)
    bounds = _bounds(network, size) if size is not None and is_usable else {}
    if as_json:
        print_json(_check_object(network, found, size, bounds))
    else:
        _print_check(network, found, bounds)
    return ExitCode.DONE if is_usable else ExitCode.INVALID


@topology.command()
@_ARGUMENT
@output_option
@click.option(
    "--to",
    "target_format",
    metavar="FORMAT",
    help="Format of OUT (default: by suffix; `collhub formats` lists those that draw).",
)
@from_option
@json_flag
@click.pass_obj
def draw(
    session: Session,
    text: str,
    out: str,
    target_format: str | None,
    source_format: str | None,
    as_json: bool,
) -> None:
    """Draw T, to a file or - for stdout.

    Regular networks stand as their dimensions say, others in layers or circles. Colour and width
    tell bandwidth and latency.
    """
    from hub_core.plugin_api import ReportRequest, Shown

    check_stdout(out, as_json)
    network = session.read_topology(text, source_format)
    request = ReportRequest(network.name, topology=network)
    written = session.write_report(Shown.TOPOLOGY, request, out, target_format)
    _say(network, written.paths, as_json)


@topology.command()
@_ARGUMENT
@output_option
@from_option
@json_flag
@click.pass_obj
def convert(
    session: Session, text: str, out: str, source_format: str | None, as_json: bool
) -> None:
    """Write T as the hub's JSON document, to a file or - for stdout."""
    from hub_core.documents.topologies import topology_to_json
    from hub_core.pipeline.artifacts import Content, destination
    from hub_core.plugin_api import Format

    check_stdout(out, as_json)
    network = session.read_topology(text, source_format)
    with progress("converting"):
        content = topology_to_json(network)
    place = destination(out, Format("json", "", (".json",)), force=True)
    _say(network, place.put([Content("", content)]), as_json)


def _say(network: Topology, paths: Sequence[Path], as_json: bool) -> None:
    """Say what was written."""
    if as_json:
        document: dict[str, JsonValue] = {
            "schema": "collhub/report-topology-write-1",
            "topology": network.name,
            "artifacts": list(written_paths(paths)),
        }
        print_json(document)
    elif paths:
        print_note(f"wrote {paths[0]}")


def _findings(session: Session, network: Topology) -> tuple[Diagnostic, ...]:
    """What every installed check of networks says."""
    from hub_core.pipeline.checks import checks_of, run_check
    from hub_core.plugin_api import CheckRequest, Subject

    request = CheckRequest(name=network.name, topology=network)
    checks = checks_of(Subject.TOPOLOGY, session.registry())
    return tuple(found for check in checks for found in run_check(check, request).diagnostics)


def _bounds(network: Topology, size: int) -> dict[str, int]:
    """The lower bound in nanoseconds of every collective that has one; roots are NPU 0."""
    from hub_core.model import Collective
    from hub_core.model.kinds import ROOTED, CollectiveKind
    from hub_core.network import lower_bound_ns

    npus, found = network.num_npus, {}
    for kind in CollectiveKind:
        if kind is not CollectiveKind.CUSTOM:
            collective = Collective(kind, npus, npus, root=0 if kind in ROOTED else None)
            bound = lower_bound_ns(collective, network, size)
            found[str(kind)] = int(bound or 0)
    return found


def _check_object(
    network: Topology, found: tuple[Diagnostic, ...], size: int | None, bounds: dict[str, int]
) -> dict[str, JsonValue]:
    return {
        "schema": "collhub/report-topology-check-1",
        "topology": network.name,
        "ok": all(one.severity is not Severity.ERROR for one in found),
        "npus": network.num_npus,
        "switches": network.num_nodes - network.num_npus,
        "num_links": network.num_links,
        "collective_bytes": size,
        "bounds_ns": dict(bounds),
        "diagnostics": [diagnostic_object(one) for one in found],
    }


def _print_check(network: Topology, found: tuple[Diagnostic, ...], bounds: dict[str, int]) -> None:
    is_usable = all(one.severity is not Severity.ERROR for one in found)
    outcome = "every NPU reaches every other" if is_usable else "not all NPUs reach one another"
    print(f"{network.name}: {network.num_npus} NPUs, {network.num_links} links: {outcome}")
    if bounds:
        rows = [(kind, format_time(bound), f"{bound} ns") for kind, bound in bounds.items()]
        print_table(
            ("collective", "takes at least", "exactly"), rows, right=("takes at least", "exactly")
        )
    for one in found:
        print_diagnostic(one)
