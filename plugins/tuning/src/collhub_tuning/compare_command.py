"""`collhub compare`: which algorithm is best here, by size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from collhub_tuning.asked_alike import algorithms_option, named_algorithms, roots_of
from collhub_tuning.comparing import comparison_options, comparisons, options_by_side
from hub_core import (
    COLLECTIVE,
    FILE,
    CommandContext,
    json_flag,
    number_option,
    option_pairs,
    parse_sizes,
)
from hub_core.model import ExitCode
from hub_core.plugin_api import Shown

if TYPE_CHECKING:
    from collhub_tuning.comparison_report import ComparisonOutcome
    from collhub_tuning.questions import ComparisonQuestion
    from collhub_tuning.sensitivity_report import VariedOutcome
    from hub_core.network import Topology


@click.command()
@click.option("--collective", "kind", type=COLLECTIVE, required=True)
@click.option(
    "--topology",
    "topology_text",
    metavar="T",
    type=FILE,
    required=True,
    help="For example mesh:8x8, dgx1v, a file.",
)
@click.option(
    "--size",
    "sizes_text",
    metavar="S",
    required=True,
    help="Size of the full buffer, or a range such as 1KiB..1GiB, each twice the one before.",
)
@algorithms_option
@number_option("--root", "R", "Root of a rooted collective (default: 0).", least=0)
@click.option(
    "--vary",
    "ranges",
    metavar="WHAT=RANGE",
    multiple=True,
    help="Also on networks with other constants: bandwidth=10GB/s..100GB/s of the fastest link, "
    "latency=100ns..10us of the slowest, each twice the one before; others in proportion "
    "(repeatable).",
)
@click.option(
    "--without-link",
    "failures",
    metavar="A-B",
    multiple=True,
    help="Also on the network without this link, both directions; A->B: one; A-B,C-D: at once "
    "(repeatable).",
)
@comparison_options
@click.option("--csv", "csv_out", metavar="FILE", help="Also write all measurements as CSV.")
@click.option(
    "--picture",
    "picture_out",
    metavar="FILE",
    help="Also draw bandwidth over size, as .svg, or as .html with all numbers.",
)
@option_pairs
@json_flag
@click.pass_obj
def compare(
    context: CommandContext,
    /,
    as_json: bool,
    csv_out: str | None,
    picture_out: str | None,
    **asked: Any,
) -> int:
    """Compare algorithms for a collective on a topology: the fastest for every size.

    Every algorithm is made or read, verified, and timed by the simulator; what does not fit is
    said and left out. Results are kept in the user's cache folder, so that the same question is
    answered at once, and one that was interrupted goes on. Exit 1 where no algorithm fits.
    """
    from collhub_tuning import comparison_report as report
    from collhub_tuning import sensitivity_report as sensitivity
    from collhub_tuning.comparison_picture import check_picture, picture_request

    if picture_out is not None:
        check_picture(picture_out, context.registry())
    outcome, varied = _outcomes(context, asked)
    if csv_out is not None:
        context.write_file(csv_out, report.comparison_csv(outcome))
    if as_json:
        document = report.comparison_document(outcome)
        if varied:
            document |= sensitivity.sensitivity_document(outcome, varied)
        context.print_json(document)
    elif csv_out != "-":
        rows = report.comparison_rows(outcome)
        context.print_table(report.HEADER, rows, report.RIGHT)
        if varied:
            _print_sensitivity(context, outcome, varied)
    failures = report.comparison_failures(outcome)
    for one in varied:
        lines = report.comparison_failures(one.outcome)
        failures += [f"{one.name}: {line}" for line in lines if line not in failures]
    for line in failures:
        context.say(line)
    for each in (outcome, *(one.outcome for one in varied)):
        context.report(each.defects())
    has_winner = any(one.time_ns is not None for one in outcome.measurements)
    if picture_out is not None and has_winner:
        written = context.write_report(Shown.COMPARISON, picture_request(outcome), picture_out)
        context.say_written(written)
    return ExitCode.DONE if has_winner else ExitCode.INVALID


def _print_sensitivity(
    context: CommandContext, outcome: ComparisonOutcome, varied: Sequence[VariedOutcome]
) -> None:
    """The winner of every size on every network, and how far the choice falls behind."""
    from collhub_tuning import sensitivity_report as sensitivity

    context.print_line("")
    rows = sensitivity.sensitivity_rows(outcome, varied)
    context.print_table(sensitivity.sensitivity_header(varied), rows, ("size",))
    context.print_line("")
    for line in sensitivity.sensitivity_lines(outcome, varied):
        context.print_line(line)


def _outcomes(
    context: CommandContext, asked: dict[str, Any]
) -> tuple[ComparisonOutcome, list[VariedOutcome]]:
    """Answer the question on the network as given, then on every variation of it."""
    # Imported here: the help of the command needs no numpy.
    from collhub_tuning.sensitivity_report import VariedOutcome
    from collhub_tuning.variations import variations

    registry = context.registry()
    sizes = parse_sizes(asked["sizes_text"])
    topology = context.read_topology(asked["topology_text"])
    question = _question(asked, sizes, topology)
    algorithms = named_algorithms(asked["names"], registry)
    options = options_by_side(context, asked, {})
    # All are made before one is measured: a slip in the last costs nothing.
    networks = variations(topology, asked["ranges"], asked["failures"])
    with comparisons(context, asked, algorithms, options) as compare:
        base = compare(question, topology)
        varied = [VariedOutcome(one.name, compare(question, one.topology)) for one in networks]
    return base, varied


def _question(
    asked: dict[str, Any], sizes: tuple[int, ...], topology: Topology
) -> ComparisonQuestion:
    """The question that the arguments ask: all NPUs of the network, sizes in bytes, any mode."""
    from collhub_tuning.questions import ComparisonQuestion

    kind = asked["kind"]
    root = roots_of([kind], asked["root"], topology)[kind]
    text = asked["topology_text"]
    return ComparisonQuestion(kind, root, text, topology.num_npus, sizes, asked["backend"])
