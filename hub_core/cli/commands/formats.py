"""`collhub formats`: list all offers with their plugins and options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import json_flag
from hub_core.cli.command_context import Session
from hub_core.cli.output import (
    print_fields,
    print_line,
    print_note,
    print_table,
)
from hub_core.cli.parameter_types import complete_offers
from hub_core.cli.reports.installation_records import (
    create_option_item,
    default_text,
    description_of,
)
from hub_core.plugin_api.formats import (
    Format,
    FormatReader,
    FormatWriter,
    Layout,
    TopologyReader,
    TopologyWriter,
    WorkloadGenerator,
    WorkloadReader,
    WorkloadWriter,
)
from hub_core.plugin_api.measurements import MeasurementReader
from hub_core.plugin_api.offers import Offer
from hub_core.plugin_api.options import Option
from hub_core.plugin_api.outputs import ReportWriter, SelectionWriter, Shown
from hub_core.plugin_api.runs import Executor, Simulator, WorkloadSimulator
from hub_core.plugin_api.subjects import AlgorithmPass, Check, Subject
from hub_core.plugin_api.synthesis import Engine, LowerBound, Synthesizer
from hub_core.registry.compatibility import options_of
from hub_core.registry.plugins import Provided, Registry

if TYPE_CHECKING:
    from hub_core.cli.reports.installation_records import FormatItem


# Role of each kind of offer, in the order of the list after the formats.
_ROLES: dict[type[Offer], str] = {
    FormatReader: "read",
    WorkloadReader: "read workload",
    FormatWriter: "write",
    WorkloadWriter: "write workload",
    TopologyReader: "read topology",
    TopologyWriter: "write topology",
    ReportWriter: "draw",
    SelectionWriter: "tune",
    MeasurementReader: "read measurements",
    Synthesizer: "synthesize",
    WorkloadGenerator: "generate",
    AlgorithmPass: "transform",
    Simulator: "simulate",
    WorkloadSimulator: "simulate workload",
    Executor: "run",
    Engine: "sweep",
    LowerBound: "bound",
    Check: "check",
}
# Subjects whose checks are not called by name: all of them run.
_BY_SUBJECT = (Subject.TOPOLOGY, Subject.INSTALLATION, Subject.WORKLOAD)
_SHOWN = {
    Shown.TOPOLOGY: "draw topology",
    Shown.RUN: "draw timeline",
    Shown.JOB: "draw timeline of job",
    Shown.COMPARISON: "draw comparison",
    Shown.WAITS: "draw waits",
    Shown.PAGE: "draw page",
}
_PATTERNS = {Layout.FILE: "*{}", Layout.PREFIX: "PREFIX.<rank>{}", Layout.FOLDER: "folder"}


@dataclass(frozen=True, slots=True)
class _OfferRow:
    """One row of the list: an offer with its role, files, plugin, description and options."""

    name: str
    does: str
    files: str
    plugin: str
    description: str
    options: tuple[Option, ...]
    format: Format | None = None
    runtime: Check | None = None


@click.command()
@click.argument("name", required=False, shell_complete=complete_offers(*_ROLES))
@json_flag
@click.pass_obj
def formats(session: Session, name: str | None, as_json: bool) -> None:
    """List all offers, or show NAME with its options.

    Offers are formats, pictures, synthesizers, generators, passes, simulators, executors,
    engines and checks. Formats come first, by name. The other offers follow by kind, and by
    name within a kind; checks are last. With a NAME, every offer of that name is shown with its
    role, plugin and options. A NAME without offer is an error; the closest known name is
    suggested. A last note lists the plugins that are not loaded.
    """
    registry = session.registry()
    rows = sorted(_collect_rows(registry), key=_get_sort_key)
    if name is not None:
        known = sorted({row.name for row in rows})
        rows = [row for row in rows if row.name == name]
        if not rows:
            message = (
                "there is no format, picture, synthesizer, generator, pass, simulator, executor, "
                f"engine or check {name!r}"
            )
            raise registry.unknown_name(message, name, known, f"known: {', '.join(known)}")
    if as_json:
        from hub_core.cli.reports.installation_records import FormatsReport

        session.print_report(FormatsReport(formats=[_create_item(row) for row in rows]))
    elif name is None:
        # Offers that have equal columns except `does`, such as the reader and the writer of a
        # format, share a row.
        roles: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            columns = (row.name, row.files, row.plugin, row.description)
            roles.setdefault(columns, []).append(row.does)
        header = ("name", "does", "files", "plugin", "description")
        table = [(first, ", ".join(does), *rest) for (first, *rest), does in roles.items()]
        print_table(header, table)
    else:
        for row in rows:
            _print_row(row)
    if hint := registry.unavailable_hint():
        print_note(f"not loaded: {hint}")


def _collect_rows(registry: Registry) -> Iterable[_OfferRow]:
    for kind in _ROLES:
        for provided in registry.all(kind):
            offer = provided.offer
            # A kind may be a subclass of another kind.
            if type(offer) is not kind:
                continue
            # A check is not called by name if all checks of its subject run.
            if not (isinstance(offer, Check) and offer.subject in _BY_SUBJECT):
                yield _create_row(provided)


def _create_row(provided: Provided[Offer]) -> _OfferRow:
    offer = provided.offer
    role = _ROLES[type(offer)]
    if isinstance(offer, ReportWriter):
        role = _SHOWN[offer.shows]
    elif isinstance(offer, AlgorithmPass) and offer.subject is Subject.WORKLOAD:
        role = f"{_ROLES[AlgorithmPass]} workload"
    elif isinstance(offer, Check):
        role = f"check {offer.subject}"
    described: Format | None = getattr(offer, "format", None)
    files = ""
    if described is not None:
        pattern = _PATTERNS[described.layout]
        files = " ".join(dict.fromkeys(pattern.format(end) for end in described.suffixes or ("",)))
    return _OfferRow(
        provided.name,
        role,
        files,
        provided.plugin.name,
        description_of(offer),
        options_of(offer),
        described,
        offer if isinstance(offer, Check) and offer.versions else None,
    )


def _get_sort_key(row: _OfferRow) -> tuple[bool, int, str, str]:
    """Return the key by which `collhub formats` sorts its rows.

    Offers with a file format come first (also pictures), by name, then by the text of the
    column `does`. The remaining offers follow, kind by kind in the order of `_ROLES`, and
    by name within a kind. Checks come last.
    """
    kinds = list(_ROLES.values())
    does = row.does.removesuffix(" workload") if row.does not in kinds else row.does
    kind = kinds.index(does) if row.format is None and does in kinds else -1
    is_check = row.does.startswith("check")
    return (row.format is None, len(kinds) if is_check else kind, row.name, row.does)


def _create_item(row: _OfferRow) -> FormatItem:
    from hub_core.cli.reports.installation_records import FormatItem

    described = row.format
    return FormatItem(
        name=row.name,
        does=row.does,
        plugin=row.plugin,
        description=row.description,
        suffixes=described.suffixes if described else (),
        layout=str(described.layout) if described else None,
        options=[create_option_item(option) for option in row.options],
        versioned_by=row.runtime.versioned_by if row.runtime else "",
        versions=row.runtime.versions if row.runtime else (),
    )


def _print_row(row: _OfferRow) -> None:
    """Print an offer: its kind and name, files, plugin, description, versions and options.

    Empty fields are left out, and so is the table of versions without a runtime. The line of an
    option has its values: the choices, or else the type with the range of valid numbers, `(1..8)`,
    `(1..)` or `(..8)`. Both limits are valid, and are shown with at most 15 significant digits. Its
    help follows, then the default and the environment variable, if there are any.
    """
    print_line(f"{row.does} {row.name}")
    fields = {"  files": row.files, "  plugin": row.plugin, "  about": row.description}
    print_fields({name: value for name, value in fields.items() if value})
    if row.runtime:
        # Imported here: the help of the command needs no numpy.
        from hub_core.pipeline.checks import format_span

        rows = [
            (
                format_span(row.runtime, versions),
                "yes" if versions.uses_files else f"no: {versions.reason}",
                versions.source,
                versions.date,
            )
            for versions in row.runtime.versions
        ]
        print_table(("versions", "use the file", "source", "read"), rows)
    for option in row.options:
        default = "" if option.default is None else f" (default {default_text(option)})"
        if option.environment:
            default += f" (or from {option.environment})"
        values = "|".join(option.choices) or str(option.type).upper()
        if not option.choices and (option.minimum is not None or option.maximum is not None):
            low = "" if option.minimum is None else f"{option.minimum:.15g}"
            high = "" if option.maximum is None else f"{option.maximum:.15g}"
            values += f"({low}..{high})"
        print_line(f"  -O {option.name}={values}  {option.help}{default}")
