"""`collhub compose`.

One algorithm from several, one after another, then replicated, then put on other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hub_core.cli.loading import read_opened
from hub_core.cli.loss_objects import loss_objects
from hub_core.cli.output import print_json, print_note, progress
from hub_core.cli.session import Session, check_stdout
from hub_core.cli.writing import policy_of, print_losses, write_out, wrote
from hub_core.model import Loss, UsageError, apply_policy
from hub_core.pipeline.inputs import open_source
from hub_core.pipeline.outputs import chosen_writer
from hub_core.plugin_api import (
    Assignments,
    assign,
    force_flag,
    json_flag,
    option_pairs,
    output_option,
    strict_flag,
    to_option,
)

if TYPE_CHECKING:
    from hub_core.model import Algorithm, JsonValue
    from hub_core.pipeline.inputs import OpenedAlgorithm
    from hub_core.pipeline.outputs import Written
    from hub_core.plugin_api import FormatWriter
    from hub_core.registry.plugins import Provided


def _parsed_ranks(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a list of ranks, for example 3,1,2,0", context, parameter
        ) from None


@click.command()
@click.argument("sources", metavar="IN [IN ...]", nargs=-1, required=True)
@output_option
@click.option(
    "--instances",
    type=click.IntRange(1),
    default=1,
    metavar="K",
    help="Then run K copies on K times as many units.",
)
@click.option(
    "--interleaved",
    is_flag=True,
    help="Deal the units to the copies in turn, not in one part a copy.",
)
@click.option(
    "--ranks",
    callback=_parsed_ranks,
    metavar="R,R,...",
    help="Then let rank i be the i-th of these.",
)
@click.option(
    "--embed",
    type=click.IntRange(1),
    metavar="N",
    help="The ranks are some of N; the others do nothing.",
)
@click.option(
    "--from",
    "source_format",
    metavar="FORMAT",
    help="Format of every IN (default: by suffix, then content).",
)
@to_option
@option_pairs
@strict_flag
@force_flag
@json_flag
@click.pass_obj
def compose(
    session: Session,
    sources: tuple[str, ...],
    out: str,
    instances: int,
    interleaved: bool,
    ranks: tuple[int, ...] | None,
    embed: int | None,
    source_format: str | None,
    target_format: str | None,
    assignments: Assignments,
    strict: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Run each IN on what the one before leaves in OUTPUT, without a barrier between them.

    Reduce-scatter and all-gather make an all-reduce.

    The claims of the parts are trusted; `collhub verify` judges the result. An option of -O goes to
    the readers and the writer that declare it; reader.KEY and writer.KEY name one side.
    """
    _check_request(sources, out, instances, interleaved, ranks, embed, as_json)
    registry = session.registry()
    writer = chosen_writer(registry, out, target_format)
    opened = [open_source(session, source, source_format) for source in sources]
    parts, writer_options = _read(opened, writer, assignments)
    with progress("composing"):
        algorithm = _composed(parts, instances, interleaved, ranks, embed)
    losses = _losses(parts, algorithm)
    apply_policy(losses, policy_of(strict))
    written = write_out(algorithm, out, writer, writer_options, strict, force, registry)
    losses = (*losses, *written.losses)
    print_losses(losses, "composition", out)
    if as_json:
        print_json(_object(opened, writer.name, algorithm, written, losses))
    elif written.paths:
        print_note(_said(algorithm, written))


def _check_request(
    sources: Sequence[str],
    out: str,
    instances: int,
    interleaved: bool,
    ranks: tuple[int, ...] | None,
    embed: int | None,
    as_json: bool,
) -> None:
    """Raise `UsageError` for requests that mean nothing."""
    check_stdout(out, as_json)
    if sources.count("-") > 1:
        raise UsageError("standard input is named more than once", cure="name files, or - once")
    if interleaved and instances == 1:
        raise UsageError("--interleaved has no meaning without --instances", cure="give both")
    if len(sources) == 1 and instances == 1 and ranks is None and embed is None:
        cure = "name a second IN, or use --instances, --ranks or --embed; `collhub convert` changes the format alone"
        raise UsageError("one algorithm alone is nothing to compose", cure=cure)


def _read(
    opened: Sequence[OpenedAlgorithm], writer: Provided[FormatWriter], assignments: Assignments
) -> tuple[list[Algorithm], dict[str, str]]:
    """Read all parts, each with those options that its reader declares.

    Return them and the options of the writer.
    """
    declared = {option.name: option for one in opened for option in one.reader.offer.options}
    given = assign(
        assignments, {"reader": tuple(declared.values()), "writer": writer.offer.options}
    )
    parts = []
    for one in opened:
        names = {option.name for option in one.reader.offer.options}
        parts.append(
            read_opened(
                one, {name: value for name, value in given["reader"].items() if name in names}
            )
        )
    return parts, given["writer"]


def _composed(
    parts: Sequence[Algorithm],
    instances: int,
    interleaved: bool,
    ranks: tuple[int, ...] | None,
    embed: int | None,
) -> Algorithm:
    # Imported here: the help of a command needs no numpy.
    from hub_core import composition

    algorithm = composition.replicate(composition.sequential(parts), instances, interleaved)
    if embed is not None:
        return composition.embed(algorithm, ranks or range(algorithm.num_ranks), embed)
    return algorithm if ranks is None else composition.relabel(algorithm, ranks)


def _losses(parts: Sequence[Algorithm], algorithm: Algorithm) -> tuple[Loss, ...]:
    """What the parts have and the composed algorithm has not."""
    losses = []
    names = sorted({name for part in parts for name in part.extensions} - set(algorithm.extensions))
    if names:
        losses.append(
            Loss(
                "extensions",
                ", ".join(names),
                "what only one tool knows of a part is not said of the whole",
            )
        )
    if (
        any(bool((part.steps.source_line >= 0).any()) for part in parts)
        and not (algorithm.steps.source_line >= 0).any()
    ):
        losses.append(
            Loss(
                "source lines",
                "all steps",
                "the parts come from several files, so messages name ranks and steps",
            )
        )
    return tuple(losses)


def _object(
    opened: Sequence[OpenedAlgorithm],
    target: str,
    algorithm: Algorithm,
    written: Written,
    losses: Sequence[Loss],
) -> dict[str, JsonValue]:
    collective = algorithm.collective
    return {
        "schema": "collhub/report-compose-1",
        "sources": [{"source": one.name, "from": one.reader.name} for one in opened],
        "to": target,
        "collective": str(collective.kind),
        "root": collective.root,
        "num_ranks": collective.num_ranks,
        "unit_count": collective.unit_count,
        "in_place": collective.in_place,
        "out_of_place": collective.out_of_place,
        "steps": len(algorithm.steps),
        "artifacts": [str(path) for path in written.paths],
        "losses": loss_objects(losses),
    }


def _said(algorithm: Algorithm, written: Written) -> str:
    collective = algorithm.collective
    claims = [
        name
        for name, holds in (
            ("in place", collective.in_place),
            ("out of place", collective.out_of_place),
        )
        if holds
    ]
    root = "" if collective.root is None else f" with root {collective.root}"
    what = f"{collective.kind}{root} of {collective.num_ranks} ranks, {' and '.join(claims)}"
    return f"{what}: {wrote(written)}"
