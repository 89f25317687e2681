"""`collhub compose`: compose algorithms in sequence, then replicate, then renumber the result."""

from __future__ import annotations

from collections.abc import Sequence
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
    number_option,
    output_option,
    output_options,
)
from hub_core.model import Loss, UsageError

if TYPE_CHECKING:
    from collhub_compose.compose_record import ComposeReport
    from hub_core.model import Algorithm


class _Composition(TypedDict):
    """Options of the command that change the sequence afterwards, in the order of their effect."""

    instances: int
    interleaved: bool
    ranks: tuple[int, ...] | None
    embed: int | None


def _parse_ranks(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """Parse a list of ranks such as `3,1,2,0`, in this order; None without the option.

    Raises `click.BadParameter` for a part that is not an integer. Whether the ranks are valid is
    checked later.
    """
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
    help="Distribute the units round robin, not in one part per copy.",
)
@click.option(
    "--ranks",
    callback=_parse_ranks,
    metavar="R,R,...",
    help="Then renumber: rank i becomes the i-th of these.",
)
@number_option("--embed", "N", "Embed the ranks in N ranks; the remaining ones are idle.")
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
    """Run each IN on the data that the previous one leaves in OUTPUT, without a barrier in
    between: reduce-scatter and all-gather make an all-reduce.

    A single IN needs --instances, --ranks or --embed. Each IN is verified; check the result
    with `collhub verify`. An option -O is passed to the readers and the writer that declare
    it; reader.KEY and writer.KEY select one side.
    """
    if sources.count("-") > 1:
        raise UsageError("standard input is named more than once", cure="name files, or - once")
    if composition["interleaved"] and composition["instances"] == 1:
        raise UsageError("--interleaved has no meaning without --instances", cure="give both")
    is_renumbered = composition["ranks"] is not None or composition["embed"] is not None
    if len(sources) == 1 and composition["instances"] == 1 and not is_renumbered:
        uses = "name a second IN, or use --instances, --ranks or --embed"
        cure = f"{uses}; `collhub convert` changes only the format"
        raise UsageError("a single algorithm without options cannot be composed", cure=cure)
    target = context.output_target(out, output)
    opened = [context.open_input(source, source_format) for source in sources]
    parts, writer_options = _read_parts(context, opened, target, output.assignments)
    # Imported here, since the help of a command needs no numpy.
    from collhub_compose.ranks import embed, relabel
    from collhub_compose.replication import replicate
    from collhub_compose.sequence import sequential

    with context.progress("composing"):
        sequence = sequential(parts)
        algorithm = replicate(sequence, composition["instances"], composition["interleaved"])
        ranks, num_ranks = composition["ranks"], composition["embed"]
        if num_ranks is not None:
            algorithm = embed(algorithm, ranks or range(algorithm.num_ranks), num_ranks)
        elif ranks is not None:
            algorithm = relabel(algorithm, ranks)
    written = context.write_output(
        algorithm,
        target,
        writer_options,
        output,
        losses=_find_losses(parts, algorithm),
        work="composition",
    )
    if output.as_json:
        context.print_report(_create_report(opened, target, algorithm, written))
    else:
        context.say_written(written, f"{_describe(algorithm)}: ")


def _read_parts(
    context: CommandContext,
    opened: Sequence[OpenedInput],
    target: OutputTarget,
    assignments: Assignments,
) -> tuple[list[Algorithm], dict[str, str]]:
    """Read all parts; return them in the order of `opened`, and the writer's options by name.

    `assignments`: the options `-O` of the command line. A reader gets those that it declares.
    An option that several readers declare is one option and is given to all of them.

    Raise `UsageError` for an option that neither a reader nor the writer declares. Each part
    is verified as `--verify` requires: with `refuse`, an incorrect part is an `InputError`,
    with `warn` it only causes warnings. Raise `HubError` for a part that cannot be read.
    """
    # Parts of different formats have different readers: an option name that several declare is one
    # option.
    declared = {option.name: option for source in opened for option in source.options}
    sides = {"reader": tuple(declared.values()), "writer": target.options}
    values = assign(assignments, sides)
    parts = []
    for source in opened:
        names = {option.name for option in source.options}
        options = {name: value for name, value in values["reader"].items() if name in names}
        parts.append(context.read_input(source, options))
    return parts, values["writer"]


def _find_losses(parts: Sequence[Algorithm], algorithm: Algorithm) -> list[Loss]:
    """List the properties of the parts that the composed algorithm does not have.

    There are at most two losses: one with the sorted names of all extensions of parts that the
    result lacks, and one for source lines, if a step of some part has one and no step of the
    result has. Empty if there is no loss.
    """
    losses = []
    names = {name for part in parts for name in part.extensions}
    dropped = sorted(names - set(algorithm.extensions))
    if dropped:
        consequence = "data that only one tool knows about a part does not apply to the result"
        losses.append(Loss("extensions", ", ".join(dropped), consequence))
    had_lines = any(_has_source_lines(part) for part in parts)
    if had_lines and not _has_source_lines(algorithm):
        consequence = "the parts come from several files, so messages name ranks and steps"
        losses.append(Loss("source lines", "all steps", consequence))
    return losses


def _has_source_lines(algorithm: Algorithm) -> bool:
    """Whether any step has a source line."""
    return bool((algorithm.steps.source_line >= 0).any())


def _create_report(
    opened: Sequence[OpenedInput],
    target: OutputTarget,
    algorithm: Algorithm,
    written: WrittenFiles,
) -> ComposeReport:
    """Return the report for `--json` from the inputs and the result of a composition.

    It has the name and the format of every input, in order of the command line, and the format of
    the output. Of the composed algorithm it has the kind, root, ranks, units, the flags `in_place`
    and `out_of_place`, and the number of steps of all ranks together. `artifacts` are the paths of
    the written files, empty for standard output. `losses` are those of writing the output.
    """
    from collhub_compose.compose_record import ComposedSource, ComposeReport
    from hub_core.reports import list_losses

    collective = algorithm.collective
    return ComposeReport(
        sources=[
            ComposedSource(source=source.name, source_format=source.format_name)
            for source in opened
        ],
        target_format=target.format_name,
        collective=str(collective.kind),
        root=collective.root,
        num_ranks=collective.num_ranks,
        unit_count=collective.unit_count,
        in_place=collective.in_place,
        out_of_place=collective.out_of_place,
        steps=len(algorithm.steps),
        artifacts=[str(path) for path in written.paths],
        losses=list_losses(written.losses),
    )


def _describe(algorithm: Algorithm) -> str:
    """Return a text such as `all-reduce of 8 ranks, in place and out of place`.

    A collective with a root has `with root 0` after its name. Only the modes that the algorithm
    supports are named.
    """
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
