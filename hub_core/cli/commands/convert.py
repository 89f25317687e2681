"""`collhub convert`: read one format, write another, and list or refuse the losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import (
    OutputRequest,
    from_option,
    output_option,
    output_options,
    source_argument,
)
from hub_core.cli.assignments import Assignments, assign
from hub_core.cli.command_context import Session
from hub_core.cli.session_outputs import ChosenOutput, choose_path, written_paths

if TYPE_CHECKING:
    from hub_core.model import Algorithm, Workload


@click.command()
@source_argument
@output_option
@from_option
@output_options
@click.pass_obj
def convert(
    session: Session, source: str, out: str, source_format: str | None, output: OutputRequest
) -> None:
    """Convert the algorithm or workload in IN to another format.

    -O sets an option of the reader or writer that declares it, of both if both declare it;
    reader.KEY and writer.KEY name one of them. IN is verified first: an incorrect input is
    refused with the causes, and nothing is written, unless --verify is warn or off. Losses are
    listed, and refused with --strict. A message follows if the output's runtime does not serve
    the size of the algorithm.
    """
    opened = session.open_input(source, source_format)
    target = session.output_target(out, output, is_workload=opened.holds_workload)
    target = choose_path(target, opened, force=output.force)
    options = assign(output.assignments, {"reader": opened.options, "writer": target.options})
    model = session.read_verified(opened, options["reader"])
    written = session.write_output(model, target, options["writer"], output)
    unserved = _describe_unserved(model, target, options["writer"], session)
    if unserved:
        session.say(unserved)
    if output.as_json:
        from hub_core.cli.reports.algorithm_records import ConvertReport
        from hub_core.reports import list_losses

        report = ConvertReport(
            source=opened.name,
            source_format=opened.format_name,
            target_format=target.format_name,
            artifacts=written_paths(written.paths),
            losses=list_losses(written.losses),
            notes=written.notes,
        )
        session.print_report(report)
    else:
        session.say_written(written)


def _describe_unserved(
    model: Algorithm | Workload, target: ChosenOutput, options: Assignments, session: Session
) -> str:
    """Describe that the output's runtime does not serve the size of the algorithm; "" if it does.

    The runtime is the first one of the writer that executes this kind of collective and contradicts
    no option in `options` (`name_runtime`). It serves `collective_bytes` in multiples of its
    `unit_bytes` times the number of units that remain if neighbouring units of the algorithm are
    merged. It serves every size if `unit_bytes` is 0.

    The text has the nearest sizes that are served. If the runtime has a text on other sizes
    (`remainder`), it is added after `; `. Returns "" also for a workload, for an algorithm without
    a size, and if the writer has no such runtime.
    """
    # Imported here: the help of the command needs no numpy.
    from hub_core.model import Algorithm
    from hub_core.pipeline.runtimes import describe_unserved, find_runtime, name_runtime

    if not isinstance(model, Algorithm) or model.collective_bytes is None:
        return ""
    name = name_runtime(target.writer, options, model.collective.kind)
    chosen = find_runtime(name, session.registry())
    if chosen is None:
        return ""
    text = describe_unserved(model, chosen.runtime, model.collective_bytes)
    remainder = chosen.runtime.remainder
    return f"{text}; {remainder}" if text and remainder else text
