"""`collhub convert`: read one format, write another; what the target cannot carry is listed, or refused under --strict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import Assignments, assign, from_option, json_flag, option_pairs, source_argument
from hub_core.cli.loading import open_source, read_opened, source_options
from hub_core.cli.output import print_diagnostic, print_json, print_note, progress
from hub_core.cli.session import Session
from hub_core.diagnostics import Diagnostic, Location, Severity, UsageError
from hub_core.losses import Loss, LossPolicy

if TYPE_CHECKING:
    from hub_core.algorithm import JsonValue
    from hub_core.pipeline import Written

__all__ = ["convert", "loss_objects"]


@click.command()
@source_argument
@click.option("-o", "--output", "out", metavar="OUT", required=True, help="File, trace-set prefix, folder, or - for stdout.")
@from_option
@click.option("--to", "target_format", metavar="FORMAT", help="Format of OUT (default: by suffix; none: Chakra traces).")
@option_pairs
@click.option("--strict", is_flag=True, help="Write nothing and exit 4 where something would be lost.")
@click.option("--force", is_flag=True, help="Overwrite a folder that is not empty, or a set with other ranks.")
@json_flag
@click.pass_obj
def convert(
    session: Session,
    source: str,
    out: str,
    source_format: str | None,
    target_format: str | None,
    assignments: Assignments,
    strict: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Convert the algorithm in IN to another format.

    An option of -O goes to the reader or writer that declares it, to both where both do; reader.KEY and
    writer.KEY name one of them.
    """
    from hub_core import pipeline
    from hub_core.detection import writer_for
    from hub_core.plugins.contract import FormatWriter

    if as_json and out == "-":
        raise UsageError("--json and the output both want standard output", cure="give -o a path")
    registry = session.registry()
    writer = registry.find(FormatWriter, target_format) if target_format is not None else writer_for(out, registry)
    opened = open_source(session, source, source_format)
    given = assign(assignments, {"reader": opened.reader.offer.options, "writer": writer.offer.options})
    algorithm = read_opened(opened, source_options(session, opened, given["reader"]))
    policy = LossPolicy.REFUSE if strict else LossPolicy.WARN
    with progress(f"writing {out}"):
        written = pipeline.write(
            algorithm, out, format=writer.name, options=given["writer"], policy=policy, force=force, registry=registry
        )
    for loss in written.losses:
        print_diagnostic(Diagnostic("lossy", f"the conversion loses: {loss}", Severity.WARNING, Location(out)))
    if as_json:
        print_json(_object(opened.name, opened.reader.name, writer.name, written))
    elif written.paths:
        print_note(_said(written))


def loss_objects(losses: Sequence[Loss]) -> list[JsonValue]:
    """Losses as the reports carry them."""
    return [{"feature": loss.feature, "where": loss.where, "consequence": loss.consequence} for loss in losses]


def _object(source: str, source_format: str, target_format: str, written: Written) -> dict[str, JsonValue]:
    return {
        "schema": "collhub/report-convert-1",
        "source": source,
        "from": source_format,
        "to": target_format,
        "artifacts": [str(path) for path in written.paths],
        "losses": loss_objects(written.losses),
    }


def _said(written: Written) -> str:
    first, rest = written.paths[0], len(written.paths) - 1
    return f"wrote {first}" + (f" and {rest} more" if rest else "")
