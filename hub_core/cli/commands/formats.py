"""`collhub formats`: what there is to work with, by which plugin, and with which options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import json_flag
from hub_core.cli.output import (
    print_fields,
    print_json,
    print_line,
    print_note,
    print_table,
)
from hub_core.cli.parameter_types import complete_offers
from hub_core.cli.reports.plugin_report import default_text, description_of, option_object
from hub_core.cli.session import Session
from hub_core.pipeline.checks import span_text
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
from hub_core.registry.descriptions import options_of
from hub_core.registry.plugins import Provided, Registry

if TYPE_CHECKING:
    from hub_core.model.algorithm import JsonValue


# What each kind of offer does, in the order of the list behind the formats.
_DOES: dict[type[Offer], str] = {
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
# Subjects whose checks nobody names: all of them run.
_BY_SUBJECT = (Subject.TOPOLOGY, Subject.INSTALLATION, Subject.WORKLOAD)
_SHOWN = {
    Shown.TOPOLOGY: "draw topology",
    Shown.RUN: "draw timeline",
    Shown.JOB: "draw timeline of job",
    Shown.COMPARISON: "draw comparison",
}
_PATTERNS = {Layout.FILE: "*{}", Layout.PREFIX: "PREFIX.<rank>{}", Layout.FOLDER: "folder"}


@dataclass(frozen=True, slots=True)
class _Way:
    """One row of the list: a name, what it does, and what is known of it."""

    name: str
    does: str
    files: str
    plugin: str
    description: str
    options: tuple[Option, ...]
    format: Format | None = None
    runtime: Check | None = None


@click.command()
@click.argument("name", required=False, shell_complete=complete_offers(*_DOES))
@json_flag
@click.pass_obj
def formats(session: Session, name: str | None, as_json: bool) -> None:
    """List what there is to work with, or show NAME with its options.

    Formats, pictures, synthesizers, generators, passes, simulators, executors, engines and checks,
    by their plugins.
    """
    registry = session.registry()
    ways = sorted(_ways(registry), key=_position)
    if name is not None:
        ways = [way for way in ways if way.name == name] or _unknown(registry, name, ways)
    if as_json:
        print_json(
            {"schema": "collhub/report-formats-1", "formats": [_object(way) for way in ways]}
        )
    elif name is None:
        _print_list(ways)
    else:
        for way in ways:
            _print_way(way)
    if hint := registry.unavailable_hint():
        print_note(f"not loaded: {hint}")


def _ways(registry: Registry) -> Iterable[_Way]:
    for kind in _DOES:
        for provided in registry.all(kind):
            # A kind may be a special case of another one.
            if type(provided.offer) is not kind:
                continue
            if not _is_asked_by_subject(provided.offer):
                yield _way(provided)


def _is_asked_by_subject(offer: Offer) -> bool:
    """Whether this is a check that nobody names: all of its subject run."""
    return isinstance(offer, Check) and offer.subject in _BY_SUBJECT


def _way(provided: Provided[Offer]) -> _Way:
    offer = provided.offer
    described: Format | None = getattr(offer, "format", None)
    return _Way(
        provided.name,
        _does(offer),
        "" if described is None else _files(described),
        provided.plugin.name,
        description_of(offer),
        options_of(offer),
        described,
        offer if isinstance(offer, Check) and offer.versions else None,
    )


def _does(offer: Offer) -> str:
    if isinstance(offer, ReportWriter):
        return _SHOWN[offer.shows]
    if isinstance(offer, AlgorithmPass) and offer.subject is Subject.WORKLOAD:
        return f"{_DOES[AlgorithmPass]} workload"
    return f"check {offer.subject}" if isinstance(offer, Check) else _DOES[type(offer)]


def _files(described: Format) -> str:
    pattern = _PATTERNS[described.layout]
    return " ".join(dict.fromkeys(pattern.format(end) for end in described.suffixes or ("",)))


def _position(way: _Way) -> tuple[bool, int, str, str]:
    """Formats first, by name; then what else there is, kind by kind."""
    kinds = list(_DOES.values())
    does = way.does.removesuffix(" workload") if way.does not in kinds else way.does
    kind = kinds.index(does) if way.format is None and does in kinds else -1
    is_check = way.does.startswith("check")
    return (way.format is None, len(kinds) if is_check else kind, way.name, way.does)


def _object(way: _Way) -> dict[str, JsonValue]:
    described = way.format
    return {
        "name": way.name,
        "does": way.does,
        "plugin": way.plugin,
        "description": way.description,
        "suffixes": list(described.suffixes) if described else [],
        "layout": str(described.layout) if described else None,
        "options": [option_object(option) for option in way.options],
        "versioned_by": way.runtime.versioned_by if way.runtime else "",
        "versions": [asdict(row) for row in way.runtime.versions] if way.runtime else [],
    }


def _print_list(ways: list[_Way]) -> None:
    """One row a format: what reads and writes it alike stands in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for way in ways:
        rows.setdefault((way.name, way.files, way.plugin, way.description), []).append(way.does)
    header = ("name", "does", "files", "plugin", "description")
    print_table(header, [(name, ", ".join(does), *rest) for (name, *rest), does in rows.items()])


def _print_way(way: _Way) -> None:
    print_line(f"{way.does} {way.name}")
    fields = {"  files": way.files, "  plugin": way.plugin, "  about": way.description}
    print_fields({name: value for name, value in fields.items() if value})
    if way.runtime:
        rows = [
            (
                span_text(way.runtime, row),
                "yes" if row.uses_files else f"no: {row.reason}",
                row.source,
                row.date,
            )
            for row in way.runtime.versions
        ]
        print_table(("versions", "use the file", "source", "read"), rows)
    for option in way.options:
        default = "" if option.default is None else f" (default {default_text(option)})"
        if option.environment:
            default += f" (or from {option.environment})"
        values = "|".join(option.choices) or str(option.type).upper() + _range(option)
        print_line(f"  -O {option.name}={values}  {option.help}{default}")


def _range(option: Option) -> str:
    """`(1..8)`, `(1..)` or `(..8)` behind the type of a bounded option."""
    if option.minimum is None and option.maximum is None:
        return ""
    low = "" if option.minimum is None else f"{option.minimum:.15g}"
    high = "" if option.maximum is None else f"{option.maximum:.15g}"
    return f"({low}..{high})"


def _unknown(registry: Registry, name: str, ways: list[_Way]) -> list[_Way]:
    known = sorted({way.name for way in ways})
    kinds = "format, picture, synthesizer, generator, pass, simulator, executor, engine or check"
    message = f"there is no {kinds} {name!r}"
    raise registry.unknown_name(message, name, known, f"known: {', '.join(known)}")
