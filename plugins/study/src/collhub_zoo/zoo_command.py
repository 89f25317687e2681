"""`collhub zoo`: list, show, get and build the algorithms of a catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hub_core import (
    COLLECTIVE,
    FILE,
    TOPOLOGY,
    CommandContext,
    CommandGroup,
    InputError,
    OutputRequest,
    UsageError,
    assign,
    force_flag,
    json_flag,
    number_option,
    output_option,
    output_options,
    size_option,
    topology_option,
)
from hub_core.model import STANDARD_KINDS, CollectiveKind, ExitCode, parse_size

# Modules that need numpy or msgspec are imported in the functions: help appears at once.
if TYPE_CHECKING:
    from collhub_zoo.cards import Card
    from collhub_zoo.catalogue import Catalogue, Entry
    from collhub_zoo.zoo_records import EntryItem

_DEFAULT_SIZE = "16MiB"


def _zoo_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--zoo",
        "source",
        metavar="ZOO",
        type=FILE,
        help="Folder with cards, output of 'zoo build', or https address of one (default: the"
        " installed zoo). Only an address uses the network.",
    )(function)


@click.group(cls=CommandGroup)
def zoo() -> None:
    """Algorithms of the catalogue: their origin, times and files."""


@zoo.command("list")
@_zoo_option
@click.option("--collective", "kind", type=COLLECTIVE, help="Only entries of this collective.")
@click.option(
    "--machine",
    "machine",
    metavar="T",
    type=TOPOLOGY,
    help="Only entries that are intended for this network.",
)
@click.option(
    "--ranks",
    type=click.IntRange(1),
    metavar="N",
    help="Only entries that exist for this number of ranks.",
)
@json_flag
@click.pass_obj
def list_entries(
    context: CommandContext,
    source: str | None,
    kind: str | None,
    machine: str | None,
    ranks: int | None,
    as_json: bool,
) -> int:
    """List the algorithms of a catalogue: name, title, ranks and collectives of each.

    The order is that of the catalogue. With several options, an entry must fit all of them.
    With --collective, it must have this collective. With --ranks, an entry without ranks
    fits too. With --machine, this must be one of its networks; an entry without networks
    has all networks of the catalogue.

    Exit 1 if an entry of the catalogue is invalid; the valid ones are listed.
    """
    from collhub_zoo.zoo_records import ZooListReport

    catalogue = _open(context, source)
    entries = []
    for entry in catalogue.entries:
        card = entry.card
        is_of_kind = kind is None or kind in card.collectives
        is_for_machine = machine is None or machine in catalogue.topologies_of(card)
        is_for_ranks = ranks is None or not card.ranks or ranks in card.ranks
        if is_of_kind and is_for_machine and is_for_ranks:
            entries.append(entry)
    if as_json:
        context.print_report(ZooListReport(entries=[_create_item(entry) for entry in entries]))
    else:
        rows = [
            (
                entry.card.name,
                entry.card.title,
                ", ".join(map(str, entry.card.ranks)) or "any",
                _describe_collectives(entry.card),
            )
            for entry in entries
        ]
        context.print_table(("name", "title", "ranks", "collectives"), rows)
    return ExitCode.INVALID if catalogue.errors else ExitCode.DONE


@zoo.command()
@click.argument("name")
@_zoo_option
@json_flag
@click.pass_obj
def show(context: CommandContext, name: str, source: str | None, as_json: bool) -> int:
    """Show an algorithm of the zoo: its collectives, ranks, origin, source, networks and notes.

    A table of its published figures follows if there are any. NAME must be exactly the name
    of an entry. For another name the error suggests a similar one, if there is one. Invalid
    cards of other entries are reported, but the command still succeeds.
    """
    from collhub_zoo.zoo_records import ZooListReport

    catalogue = _open(context, source)
    entry = catalogue.find(name)
    if as_json:
        context.print_report(ZooListReport(entries=[_create_item(entry)]))
        return ExitCode.DONE
    card = entry.card
    context.print_fields(
        {
            "name": card.name,
            "title": card.title,
            "collectives": _describe_collectives(card),
            "ranks": ", ".join(map(str, card.ranks)) or "any",
            "paper": card.origin.paper or "none",
            "project": card.origin.project or "none",
            "licence": card.origin.licence,
            "address": card.origin.url or "none",
            "source": _describe_source(card),
            "networks": ", ".join(catalogue.topologies_of(card)) or "none",
            "notes": card.notes.strip() or "none",
        }
    )
    if card.figures:
        header = ("topology", "collective", "quantity", "value", "unit", "source")
        rows = [
            (one.topology, one.collective, one.quantity, f"{one.value:g}", one.unit, one.source)
            for one in card.figures
        ]
        context.print_table(header, rows, ("value",))
    return ExitCode.DONE


@zoo.command()
@click.argument("name")
@_zoo_option
@click.option("--collective", "kind", type=COLLECTIVE, help="Default: the first one of the card.")
@click.option(
    "--machine",
    metavar="T",
    type=TOPOLOGY,
    help="Network for which the algorithm is created (default: the first one of the card whose"
    " number of ranks fits).",
)
@size_option(f"Size of the full buffer (default: {_DEFAULT_SIZE}).")
@click.option(
    "--fetched",
    metavar="FILE",
    type=FILE,
    help="The file that the card asks you to download; its SHA-256 is checked.",
)
@output_option
@output_options
@click.pass_obj
def get(
    context: CommandContext,
    name: str,
    source: str | None,
    kind: str | None,
    machine: str | None,
    size_text: str | None,
    fetched: str | None,
    out: str,
    output: OutputRequest,
) -> int:
    """Create the algorithm NAME of the catalogue, verify it and write it to OUT.

    Reports the written files and the losses of the format. Fails without writing if the
    catalogue has no entry NAME, or its card does not list the collective or the number of
    ranks of the network. Fails also if the card needs a file that --fetched does not give,
    and for an incorrect algorithm unless --verify permits it.
    """
    from collhub_zoo.catalogue import AlgorithmSource

    catalogue = _open(context, source)
    entry = catalogue.find(name)
    download = None if fetched is None else _read_fetched(fetched)
    algorithms = AlgorithmSource(entry, context.registry(), download)
    target = context.output_target(out, output)
    options = assign(output.assignments, {"writer": target.options})["writer"]
    chosen = CollectiveKind(kind or entry.card.collectives[0])
    topology_text = machine or _choose_machine(context, catalogue, entry.card)
    topology = context.read_topology(topology_text)
    with context.progress(f"creating {name}"):
        algorithm = algorithms.create(chosen, topology, parse_size(size_text or _DEFAULT_SIZE))
    context.admit(algorithm, f"the algorithm of {name}")
    written = context.write_output(algorithm, target, options, output)
    if output.as_json:
        from collhub_zoo.zoo_records import ZooGetReport
        from hub_core.reports import list_losses

        context.print_report(
            ZooGetReport(
                entry=name,
                collective=chosen.value,
                topology=topology_text,
                artifacts=[str(path) for path in written.paths],
                losses=list_losses(written.losses),
            )
        )
    else:
        context.say_written(written)
    return ExitCode.DONE


@zoo.command()
@_zoo_option
@click.option(
    "--small",
    "is_small",
    is_flag=True,
    help="Only the machines that the catalogue marks as small, at 64 KiB and 16 MiB.",
)
@click.option(
    "--entry",
    "names",
    metavar="NAME",
    multiple=True,
    help="Only this entry (repeatable; default: all).",
)
@topology_option(
    "Only this network (repeatable; default: all machines of the catalogue and of the cards).",
    "machines",
    multiple=True,
)
@click.option(
    "--fetched",
    "fetched",
    metavar="NAME=FILE",
    multiple=True,
    help="A file that the card of an entry asks you to download; its SHA-256 is checked.",
)
@click.option(
    "--previous",
    metavar="INDEX",
    type=FILE,
    help="index.json of an earlier build: report every curve that became worse, and exit with 1.",
)
@number_option("--jobs", "N", "Collectives on a machine at once (default: one a core).")
@output_option
@force_flag
@json_flag
@click.pass_obj
def build(
    context: CommandContext,
    source: str | None,
    is_small: bool,
    names: tuple[str, ...],
    machines: tuple[str, ...],
    fetched: tuple[str, ...],
    previous: str | None,
    jobs: int | None,
    out: str,
    force: bool,
    as_json: bool,
) -> int:
    """Evaluate all entries on all machines, and write an index and pages to the folder OUT.

    Each algorithm is verified, timed on nominal links and on the measured machine, compared
    with a proven bound, and written for the runtimes that use it. OUT must be missing or empty,
    unless --force is given. A zoo at an address cannot be built.

    Exit 1 if an entry failed, a card is invalid, or a curve became worse; the remaining entries
    are built.
    """
    import os

    from collhub_zoo.build import (
        FULL_SIZES,
        SMALL_SIZES,
        BuildRequest,
        build_index,
        choose_machines,
        create_output,
    )
    from collhub_zoo.catalogue import parse_index
    from hub_core.plugin_api import Artifact

    if source is not None and "://" in source:
        raise UsageError("a zoo at an address cannot be built", cure="name a folder with --zoo")
    catalogue = _open(context, source)
    for name in names:
        catalogue.find(name)
    folders = context.selection_folders()
    folders.admit(out, force=force)
    old = None if previous is None else parse_index(_read_fetched(previous), previous)
    request = BuildRequest(
        catalogue,
        source,
        tuple(names) or tuple(entry.card.name for entry in catalogue.entries),
        tuple(machines) or choose_machines(catalogue, is_small=is_small),
        SMALL_SIZES if is_small else FULL_SIZES,
        jobs or os.cpu_count() or 1,
        _read_downloads(catalogue, fetched),
    )
    with context.progress_bar("building the zoo") as show_progress:
        report, files = build_index(request, old, context.registry(), show_progress)
    output = create_output(report, request, files)
    folders.put(out, (Artifact(path, output[path]) for path in sorted(output)), force=force)
    for failure in report.failures:
        place = " ".join(filter(None, (failure.entry, failure.machine, failure.collective)))
        context.say(f"failed: {place}: {failure.reason}")
    for worse in report.worse:
        place = f"{worse.entry} {worse.machine} {worse.collective}"
        context.say(f"worse: {place}, {worse.curve}: {worse.reason}")
    if as_json:
        context.print_report(report)
    else:
        context.print_line(
            f"{out}: {len(report.results)} results of {len(report.entries)} entries on "
            f"{len(report.machines)} machines, {len(report.skipped)} not applicable, "
            f"{len(report.failures)} failed, {len(report.worse)} curves worse"
        )
    return ExitCode.INVALID if report.failures or report.worse else ExitCode.DONE


def _read_downloads(catalogue: Catalogue, pairs: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    """Read the files of `--fetched NAME=FILE` as (entry name, bytes), in order.

    Raises `UsageError` for a text without `=` and for an unknown entry (`Catalogue.find`),
    and `InputError` (`unreadable`) for a file that cannot be read.
    """
    downloads = []
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals:
            raise UsageError(f"--fetched {pair!r:.80} is not NAME=FILE", cure="name the entry")
        catalogue.find(name)
        downloads.append((name, _read_fetched(path)))
    return tuple(downloads)


def _open(context: CommandContext, source: str | None) -> Catalogue:
    """Open a catalogue, and report the errors of its invalid cards, which it does not contain.

    `source` is a folder or an address; None means the installed catalogue. Raises `UsageError`
    for a source without a catalogue, `InputError` for an invalid machines file or index, and
    the errors of reading an address (`open_catalogue`).
    """
    from collhub_zoo.catalogue import open_catalogue

    catalogue = open_catalogue(source)
    for error in catalogue.errors:
        context.report(error.diagnostics)
    return catalogue


def _create_item(entry: Entry) -> EntryItem:
    from collhub_zoo.zoo_records import EntryItem

    return EntryItem(card=entry.card, files=list(entry.files))


def _describe_collectives(card: Card) -> str:
    return "all" if len(card.collectives) == len(STANDARD_KINDS) else ", ".join(card.collectives)


def _describe_source(card: Card) -> str:
    if card.fetch is not None:
        return f"download {card.fetch.url}, SHA-256 {card.fetch.sha256}"
    if card.file is not None:
        return f"file {card.file}"
    return f"collhub {' '.join(card.command)}" if card.command else "published figures only"


def _choose_machine(context: CommandContext, catalogue: Catalogue, card: Card) -> str:
    """Return the first network of a card whose number of ranks the card allows.

    The networks are those of `Catalogue.topologies_of`. A card without ranks allows any
    number: the result is then the first network, which is not read. Raises `UsageError`
    (`no-machine`) if no network fits, and the errors of a network that cannot be read.
    """
    for text in catalogue.topologies_of(card):
        if not card.ranks or context.read_topology(text).num_npus in card.ranks:
            return text
    raise UsageError(
        f"no network of {card.name} has {', '.join(map(str, card.ranks))} ranks",
        cure="name a network with --machine",
        code="no-machine",
    )


def _read_fetched(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}", cure="check the path", code="unreadable"
        ) from None
