"""`collhub formats`: what can be read, written, synthesized, simulated and run with, by which plugin, and with which options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import json_flag
from hub_core.cli.output import print_fields, print_json, print_note, print_table
from hub_core.cli.plugin_report import option_object
from hub_core.cli.session import Session
from hub_core.model.diagnostics import UsageError
from hub_core.plugin_api.contract import (
    Executor,
    Format,
    FormatReader,
    FormatWriter,
    Layout,
    Option,
    OptionValue,
    Simulator,
    Synthesizer,
    TopologyReader,
)
from hub_core.registry.plugins import Provided, Registry, closest

if TYPE_CHECKING:
    from hub_core.model.algorithm import JsonValue


_LAST = {"simulate": 1, "run": 2}
_PATTERNS = {Layout.FILE: "*{}", Layout.PREFIX: "PREFIX.<rank>{}", Layout.FOLDER: "folder"}


@dataclass(frozen=True, slots=True)
class _Way:
    """One way into or out of the hub: what it does, what does it, and the format, simulator or executor that it is."""

    name: str
    does: str
    files: str
    plugin: str
    description: str
    options: tuple[Option, ...]
    format: Format | None = None


@click.command()
@click.argument("name", required=False)
@json_flag
@click.pass_obj
def formats(session: Session, name: str | None, as_json: bool) -> None:
    """List the formats, synthesizers, simulators and executors, or show NAME with its options."""
    registry = session.registry()
    ways = sorted(
        _ways(registry),
        key=lambda way: (way.format is None, _LAST.get(way.does, 0), way.name, way.does),
    )
    if name is not None:
        ways = [way for way in ways if way.name == name] or _unknown(name, ways)
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
    for reader in registry.all(FormatReader):
        yield _format_way(reader, reader.offer.format, "read", reader.offer.options)
    for writer in registry.all(FormatWriter):
        yield _format_way(writer, writer.offer.format, "write", writer.offer.options)
    for topology in registry.all(TopologyReader):
        yield _format_way(topology, topology.offer.format, "read topology", topology.offer.options)
    for maker in registry.all(Synthesizer):
        yield _Way(
            maker.name,
            "synthesize",
            "",
            maker.plugin.name,
            maker.offer.description,
            maker.offer.options,
        )
    for found in registry.all(Simulator):
        yield _Way(
            found.name,
            "simulate",
            "",
            found.plugin.name,
            found.offer.description,
            found.offer.options,
        )
    for runner in registry.all(Executor):
        yield _Way(
            runner.name,
            "run",
            "",
            runner.plugin.name,
            runner.offer.description,
            runner.offer.options,
        )


def _format_way(
    provided: Provided[FormatReader] | Provided[FormatWriter] | Provided[TopologyReader],
    described: Format,
    does: str,
    options: tuple[Option, ...],
) -> _Way:
    patterns = dict.fromkeys(
        _PATTERNS[described.layout].format(suffix) for suffix in described.suffixes or ("",)
    )
    return _Way(
        described.name,
        does,
        " ".join(patterns),
        provided.plugin.name,
        described.description,
        options,
        described,
    )


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
    }


def _print_list(ways: list[_Way]) -> None:
    """One row a format: what reads and writes it alike stands in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for way in ways:
        rows.setdefault((way.name, way.files, way.plugin, way.description), []).append(way.does)
    header = ("name", "does", "files", "plugin", "description")
    print_table(header, [(name, ", ".join(does), *rest) for (name, *rest), does in rows.items()])


def _print_way(way: _Way) -> None:
    print(f"{way.does} {way.name}")
    fields = {"  files": way.files, "  plugin": way.plugin, "  about": way.description}
    print_fields({name: value for name, value in fields.items() if value})
    for option in way.options:
        default = "" if option.default is None else f" (default {_text_of(option.default)})"
        if option.environment:
            default += f" (or from {option.environment})"
        values = "|".join(option.choices) or str(option.type).upper()
        print(f"  -O {option.name}={values}  {option.help}{default}")


def _text_of(default: OptionValue) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _unknown(name: str, ways: list[_Way]) -> list[_Way]:
    known = sorted({way.name for way in ways})
    cure = closest(name, known) or f"known: {', '.join(known)}"
    raise UsageError(
        f"there is no format, synthesizer, simulator or executor {name!r}",
        cure=cure,
        code="unknown-name",
    )
