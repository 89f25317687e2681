"""`collhub machines`: list, show and check machine profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hub_core import FILE, CommandContext, CommandGroup, json_flag
from hub_core.model import ExitCode

# Modules that need numpy are imported in the functions: the help of a command appears at once.
if TYPE_CHECKING:
    from collhub_machine_profiles.machine_profile import MachineProfile

    from collhub_machines.machine_records import MachineItem


@click.group(cls=CommandGroup)
def machines() -> None:
    """Measured machines: their tables, constants and errors.

    NAME_OR_FILE is a profile that `collhub calibrate` has written, or the name of a shipped one.
    """


@machines.command("list")
@json_flag
@click.pass_obj
def list_machines(context: CommandContext, as_json: bool) -> int:
    """List the shipped machine profiles by name, one per row of a table.

    A row has the GPU, the library, the number of tables, the node counts of the networks and
    the label of the machine. The column `model` is the first source that a constant of the
    profile has: fit, sibling or prior; otherwise none. --json adds the errors and sources of
    each profile.
    """
    from collhub_machine_profiles import shipped_names, shipped_profile

    from collhub_machines.machine_records import MachinesReport

    profiles = [shipped_profile(name) for name in shipped_names()]
    if as_json:
        context.print_report(MachinesReport(machines=[_create_item(one) for one in profiles]))
        return ExitCode.DONE
    rows = []
    for profile in profiles:
        counts = sorted({count for one in profile.networks for count in one.nodes})
        network = ", ".join(f"{count} nodes" for count in counts) or "none"
        if len(counts) > 2:
            network = f"{counts[0]} to {counts[-1]} nodes"
        rows.append(
            (
                profile.name,
                profile.gpu,
                str(profile.library),
                _origin(profile),
                str(len(profile.tables)),
                network,
                profile.label,
            )
        )
    header = ("name", "gpu", "library", "model", "tables", "network", "machine")
    context.print_table(header, rows, ("tables",))
    return ExitCode.DONE


def _create_item(profile: MachineProfile) -> MachineItem:
    """Return the record of a profile for the JSON report.

    - `name`, `label`, `library` (name and version), `errors` (as documents) and `sources` are
      those of the profile. `gpu` is None if the profile names none.
    - `model` is the origin of its constants: the first of `fit`, `sibling`, `prior` that one of
      them has, else `none`.
    - `tables` is the number of its tables.
    - `network_nodes` are the distinct numbers of nodes of all networks, ascending; [] if none.
    """
    from collhub_machines.machine_records import LibraryItem, MachineItem

    return MachineItem(
        name=profile.name,
        label=profile.label,
        gpu=profile.gpu or None,
        library=LibraryItem(name=profile.library.name, version=profile.library.version),
        model=_origin(profile),
        tables=len(profile.tables),
        network_nodes=sorted({count for network in profile.networks for count in network.nodes}),
        errors=[error.document() for error in profile.errors],
        sources=profile.sources,
    )


def _origin(profile: MachineProfile) -> str:
    """Return where a profile's constants come from: `fit`, `sibling`, `prior` or `none`.

    If they come from several sources, the first in this order is returned. It is `none` if the
    profile has no constants.
    """
    sources = {constant.source for constant in profile.constants.values()}
    return next((source for source in ("fit", "sibling", "prior") if source in sources), "none")


@machines.command()
@click.argument("machine", metavar="NAME_OR_FILE", type=FILE)
@json_flag
@click.pass_obj
def show(context: CommandContext, machine: str, as_json: bool) -> int:
    """Show the constants, errors and sources of a profile.

    NAME_OR_FILE is the file of a profile if it exists, otherwise the name of a shipped profile or
    a text that names its GPU. The tables of the profile are only in the JSON.

    --json prints the profile itself, schema collhub-machine/1.
    """
    from collhub_machine_profiles.machine_profile import profile_document
    from collhub_machine_profiles.shipped import load_profile
    from collhub_machine_profiles.time_models import MEANINGS, NETWORK_NAMES

    profile = load_profile(machine)
    if as_json:
        context.print_json(profile_document(profile))
        return ExitCode.DONE
    gpu = profile.known_gpu
    context.print_fields(
        {
            "name": profile.name,
            "machine": profile.label,
            "gpu": f"{profile.gpu}, {gpu.links}" if gpu else profile.gpu,
            "library": str(profile.library),
            "date": profile.day or "unknown",
        }
    )
    rows = [
        (name, f"{constant.value:.4g}", constant.source, str(constant.points), MEANINGS[name])
        for name, constant in profile.constants.items()
    ]
    for network in profile.networks:
        nodes = "-".join(str(count) for count in sorted({network.nodes[0], network.nodes[-1]}))
        rows += [
            (name, f"{value:.4g}", "fit", str(network.points), f"all-reduce on {nodes} nodes")
            for name, value in zip(NETWORK_NAMES, network.values, strict=True)
        ]
    if rows:
        header = ("constant", "value", "origin", "points", "meaning")
        context.print_table(header, rows, ("value", "points"))
    _print_errors(context, profile)
    for source in profile.sources:
        named = ", ".join(f"{key} {source[key]}" for key in ("repo", "commit") if key in source)
        use = source.get("use") or f"{source.get('points', 0)} points"
        licence = source.get("licence", "licence unknown")
        context.print_line(f"source: {source.get('name')}, {named}, {licence}: {use}")
    return ExitCode.DONE


def _print_errors(context: CommandContext, profile: MachineProfile) -> None:
    rows = [
        (
            error.predictor,
            error.collective,
            str(error.ranks),
            str(error.nodes),
            str(error.points),
            *(f"{100 * value:.1f} %" for value in (error.median, error.p90, error.worst)),
        )
        for error in profile.errors
    ]
    if rows:
        header = (
            *("predictor", "collective", "ranks", "nodes", "points"),
            *("median", "p90", "worst"),
        )
        context.print_table(header, rows, header[2:])


@machines.command()
@click.argument("machine", metavar="NAME_OR_FILE", type=FILE)
@click.argument("results", metavar="[RESULT]...", nargs=-1, type=FILE)
@json_flag
@click.pass_obj
def check(context: CommandContext, machine: str, results: tuple[str, ...], as_json: bool) -> int:
    """Check a profile: its document and, with RESULT, its predictions of measured times.

    Results of the profile's machine are compared. If there are none, results of its GPU are
    compared, also those that name no machine or no known GPU. If there are none of these either,
    results of a sibling GPU are compared, with the model only. All other results are left out. It
    is an error if none is left.

    The error is that of the model, or of the tables if the model predicts no result. Exit 1 if
    the median error exceeds 15 %.
    """
    from collhub_machine_profiles.shipped import load_profile

    from collhub_machines.calibration import MAX_MEDIAN, read_points
    from collhub_machines.machine_records import MachinesReport
    from collhub_machines.profile_check import report_check

    profile = load_profile(machine)
    if results:
        with context.progress("reading"):
            read = read_points(results, registry=context.registry())
        return report_check(
            context, profile, read, profile.known_gpu, as_json=as_json, max_median=MAX_MEDIAN
        )
    if as_json:
        context.print_report(MachinesReport(machines=[_create_item(profile)]))
    else:
        parts = f"{len(profile.constants)} constants, {len(profile.tables)} tables"
        context.print_line(f"{profile.name}: valid, {parts}")
    return ExitCode.DONE
