"""`collhub convert`: read one format, write another; what the target cannot carry is listed, or refused under --strict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import (
    Assignments,
    assign,
    force_flag,
    from_option,
    json_flag,
    option_pairs,
    output_option,
    source_argument,
    strict_flag,
    to_option,
)
from hub_core.cli.loading import open_source, read_opened, source_options
from hub_core.cli.output import print_json, print_note
from hub_core.cli.session import Session
from hub_core.cli.writing import (
    check_stdout,
    chosen_writer,
    loss_objects,
    print_losses,
    write_out,
    wrote,
)

if TYPE_CHECKING:
    from hub_core.model.algorithm import JsonValue
    from hub_core.pipeline.work import Written


@click.command()
@source_argument
@output_option
@from_option
@to_option
@option_pairs
@strict_flag
@force_flag
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
    check_stdout(out, as_json)
    registry = session.registry()
    writer = chosen_writer(registry, out, target_format)
    opened = open_source(session, source, source_format)
    given = assign(
        assignments, {"reader": opened.reader.offer.options, "writer": writer.offer.options}
    )
    algorithm = read_opened(opened, source_options(session, opened, given["reader"]))
    written = write_out(algorithm, out, writer, given["writer"], strict, force, registry)
    print_losses(written.losses, "conversion", out)
    if as_json:
        print_json(_object(opened.name, opened.reader.name, writer.name, written))
    elif written.paths:
        print_note(wrote(written))


def _object(
    source: str, source_format: str, target_format: str, written: Written
) -> dict[str, JsonValue]:
    return {
        "schema": "collhub/report-convert-1",
        "source": source,
        "from": source_format,
        "to": target_format,
        "artifacts": [str(path) for path in written.paths],
        "losses": loss_objects(written.losses),
    }
