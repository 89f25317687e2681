"""`collhub transform`: change a model by passes, one after another, and say what changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import (
    Assignments,
    OutputRequest,
    assign,
    complete_offers,
    from_option,
    output_option,
    output_options,
    source_argument,
)
from hub_core.cli.placed_output import placed
from hub_core.cli.session import Session, written_paths
from hub_core.cli.workloads import admit_workload, read_workload
from hub_core.model import loss_object
from hub_core.plugin_api import AlgorithmPass

if TYPE_CHECKING:
    from hub_core.model import Algorithm, JsonValue, Workload
    from hub_core.pipeline.inputs import OpenedAlgorithm
    from hub_core.plugin_api import Option


@click.command()
@source_argument
@click.option(
    "--pass",
    "passes",
    metavar="NAME",
    multiple=True,
    required=True,
    shell_complete=complete_offers(AlgorithmPass),
    help="A pass; repeated, they run in this order. `collhub formats` lists them.",
)
@output_option
@from_option
@output_options
@click.pass_obj
def transform(
    session: Session,
    source: str,
    passes: tuple[str, ...],
    out: str,
    source_format: str | None,
    output: OutputRequest,
) -> None:
    """Transform the algorithm or workload in IN by passes and write the result.

    The result is verified like IN.
    An option of -O goes to the reader, the passes and the writer that declare it; reader.KEY,
    writer.KEY and NAME.KEY, with the name of a pass, mean one of them.
    """
    opened = session.open_input(source, source_format)
    target = session.output_target(out, output, is_workload=opened.holds_workload)
    target = placed(target, opened, force=output.force)
    sides = {"reader": opened.options, "writer": target.options, **_pass_options(session, passes)}
    given = assign(output.assignments, sides)
    model = _read(session, opened, given["reader"])
    changes: list[tuple[str, str]] = []
    for name in passes:
        model, changed = _applied(session, model, name, given[_side(name)])
        changes += [(name, change) for change in changed]
    _admit(session, model, f"{opened.name} after {', '.join(passes)}")
    written = session.write_output(model, target, given["writer"], output, work="transformation")
    if output.as_json:
        document: dict[str, JsonValue] = {
            "schema": "collhub/report-transform-1",
            "source": opened.name,
            "from": opened.format_name,
            "to": target.format_name,
            "passes": list(passes),
            "changes": [{"pass": name, "change": change} for name, change in changes],
            "artifacts": list(written_paths(written.paths)),
            "losses": [loss_object(loss) for loss in written.losses],
        }
        session.print_json(document)
        return
    for name, change in changes:
        session.say(f"{name}: {change}")
    session.say_written(written)


def _side(name: str) -> str:
    """How `-O` names the options of a pass: `-` in names stands for `_`, as in all keys."""
    return name.replace("-", "_")


def _pass_options(session: Session, passes: Sequence[str]) -> dict[str, tuple[Option, ...]]:
    return {_side(name): session.options_of(AlgorithmPass, name) for name in passes}


def _read(session: Session, opened: OpenedAlgorithm, options: Assignments) -> Algorithm | Workload:
    """The model in IN, verified as `--verify` says."""
    if not opened.holds_workload:
        return session.read_input(opened, options)
    workload = read_workload(session, opened, options)
    admit_workload(session, workload, opened.name)
    return workload


def _admit(session: Session, model: Algorithm | Workload, name: str) -> None:
    from hub_core.model import Algorithm

    if isinstance(model, Algorithm):
        session.admit(model, name)
    else:
        admit_workload(session, model, name)


def _applied(
    session: Session, model: Algorithm | Workload, name: str, options: Assignments
) -> tuple[Algorithm | Workload, Sequence[str]]:
    # Imported here: the help of the command needs no numpy.
    from hub_core.pipeline.passes import transform as run_pass

    with session.progress(f"running the pass {name}"):
        result, report = run_pass(model, name, options=options, registry=session.registry())
    return result, report.changes
