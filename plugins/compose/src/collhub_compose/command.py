"""`collhub compose`: one algorithm from several, then replicated, then put on other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from hub_core import (
    FILE,
    Assignments,
    CommandContext,
    OpenedInput,
    OutputRequest,
    OutputTarget,
    WrittenFiles,
    assign,
    from_option,
    loss_object,
    number_option,
    output_option,
    output_options,
)
from hub_core.model import Loss, UsageError

if TYPE_CHECKING:
    from hub_core.model import Algorithm, JsonValue


class _Composition(TypedDict):
    """Options of the command that change the sequence afterwards, in the order of their effect."""

    instances: int
    interleaved: bool
    ranks: tuple[int, ...] | None
    embed: int | None


@dataclass(frozen=True, slots=True)
class _CompositionMade:
    """What a composition made from what, and what is to be said of it."""

    opened: Sequence[OpenedInput]
    target: OutputTarget
    algorithm: Algorithm
    written: WrittenFiles


def _parsed_ranks(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """`3,1,2,0`, in this order; what is no permutation is refused where the ranks are known."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"{text!r} is not a list of ranks, for example 3,1,2,0"
        raise click.BadParameter(message, context, parameter) from None


@click.command()
@click.argument("sources", metavar="IN [IN ...]", type=FILE, nargs=-1, required=True)
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
@number_option("--embed", "N", "The ranks are some of N; the others do nothing.")
@from_option
@output_options
@click.pass_obj
def compose(
    context: CommandContext,
    sources: tuple[str, ...],
    out: str,
    source_format: str | None,
    output: OutputRequest,
    **composition: Unpack[_Composition],
) -> None:
    """Run each IN on what the one before leaves in OUTPUT, without a barrier between them:
    reduce-scatter and all-gather make an all-reduce.

    Each IN is verified; `collhub verify` judges the result. An option of -O goes to the readers and
    the writer that declare it; reader.KEY and writer.KEY name one side.
    """
    _check_request(sources, composition)
    target = context.output_target(out, output)
    opened = [context.open_input(source, source_format) for source in sources]
    parts, writer_options = _read(context, opened, target, output.assignments)
    with context.progress("composing"):
        algorithm = _composed(parts, composition)
    written = context.write_output(
        algorithm,
        target,
        writer_options,
        output,
        losses=_losses(parts, algorithm),
        work="composition",
    )
    if output.as_json:
        context.print_json(_document(_CompositionMade(opened, target, algorithm, written)))
    else:
        context.say_written(written, f"{_description(algorithm)}: ")


def _check_request(sources: Sequence[str], composition: _Composition) -> None:
    """Raise `UsageError` for requests that mean nothing."""
    if sources.count("-") > 1:
        raise UsageError("standard input is named more than once", cure="name files, or - once")
    if composition["interleaved"] and composition["instances"] == 1:
        raise UsageError("--interleaved has no meaning without --instances", cure="give both")
    is_renumbered = composition["ranks"] is not None or composition["embed"] is not None
    if len(sources) == 1 and composition["instances"] == 1 and not is_renumbered:
        uses = "name a second IN, or use --instances, --ranks or --embed"
        cure = f"{uses}; `collhub convert` changes the format alone"
        raise UsageError("one algorithm alone is nothing to compose", cure=cure)


def _read(
    context: CommandContext,
    opened: Sequence[OpenedInput],
    target: OutputTarget,
    assignments: Assignments,
) -> tuple[list[Algorithm], dict[str, str]]:
    """All parts, each read with the options that its reader declares; and those of the writer."""
    # Parts of different formats have different readers: a name that several declare is one option.
    declared = {option.name: option for one in opened for option in one.options}
    sides = {"reader": tuple(declared.values()), "writer": target.options}
    given = assign(assignments, sides)
    parts = []
    for one in opened:
        names = {option.name for option in one.options}
        own = {name: value for name, value in given["reader"].items() if name in names}
        parts.append(context.read_input(one, own))
    return parts, given["writer"]


def _composed(parts: Sequence[Algorithm], composition: _Composition) -> Algorithm:
    # Imported here: the help of a command needs no numpy.
    from collhub_compose.ranks import embed, relabel
    from collhub_compose.replication import replicate
    from collhub_compose.sequence import sequential

    whole = sequential(parts)
    algorithm = replicate(whole, composition["instances"], composition["interleaved"])
    ranks, num_ranks = composition["ranks"], composition["embed"]
    if num_ranks is not None:
        return embed(algorithm, ranks or range(algorithm.num_ranks), num_ranks)
    if ranks is not None:
        return relabel(algorithm, ranks)
    return algorithm


def _losses(parts: Sequence[Algorithm], algorithm: Algorithm) -> list[Loss]:
    """What the parts have and the composed algorithm has not."""
    losses = []
    named = {name for part in parts for name in part.extensions}
    dropped = sorted(named - set(algorithm.extensions))
    if dropped:
        consequence = "what only one tool knows of a part is not said of the whole"
        losses.append(Loss("extensions", ", ".join(dropped), consequence))
    had_lines = any(_has_lines(part) for part in parts)
    if had_lines and not _has_lines(algorithm):
        consequence = "the parts come from several files, so messages name ranks and steps"
        losses.append(Loss("source lines", "all steps", consequence))
    return losses


def _has_lines(algorithm: Algorithm) -> bool:
    """Whether any step says where it stood in its file."""
    return bool((algorithm.steps.source_line >= 0).any())


def _document(outcome: _CompositionMade) -> dict[str, JsonValue]:
    """The report that `--json` prints."""
    collective = outcome.algorithm.collective
    losses = outcome.written.losses
    sources: list[JsonValue] = []
    for one in outcome.opened:
        sources.append({"source": one.name, "from": one.format_name})
    return {
        "schema": "collhub/report-compose-1",
        "sources": sources,
        "to": outcome.target.format_name,
        "collective": str(collective.kind),
        "root": collective.root,
        "num_ranks": collective.num_ranks,
        "unit_count": collective.unit_count,
        "in_place": collective.in_place,
        "out_of_place": collective.out_of_place,
        "steps": len(outcome.algorithm.steps),
        "artifacts": [str(path) for path in outcome.written.paths],
        "losses": [loss_object(loss) for loss in losses],
    }


def _description(algorithm: Algorithm) -> str:
    """`all-reduce of 8 ranks, in place and out of place`."""
    collective = algorithm.collective
    claims = []
    if collective.in_place:
        claims.append("in place")
    if collective.out_of_place:
        claims.append("out of place")
    kind = str(collective.kind)
    if collective.root is not None:
        kind = f"{kind} with root {collective.root}"
    return f"{kind} of {collective.num_ranks} ranks, {' and '.join(claims)}"
