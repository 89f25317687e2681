"""`collhub diff`: compare two algorithms by contents, steps, channels and traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import json_flag, option_pairs
from hub_core.cli.assignments import Assignments, assign
from hub_core.cli.command_context import Session
from hub_core.cli.output import print_line, print_table
from hub_core.cli.parameter_types import FILE
from hub_core.model import ExitCode, UsageError

if TYPE_CHECKING:
    from hub_core.cli.reports.comparison import AlgorithmComparison, PairTraffic
    from hub_core.model import Algorithm, JsonValue

LISTED_PAIRS = 10
_NOTHING = "none"


@click.command()
@click.argument("a", metavar="A", type=FILE)
@click.argument("b", metavar="B", type=FILE)
@option_pairs
@json_flag
@click.pass_obj
def diff(session: Session, a: str, b: str, assignments: Assignments, as_json: bool) -> int:
    """Compare the algorithms in A and B.

    Prints the differences in collective and verdicts, steps by kind, channels, dependencies,
    the traffic between each pair of ranks, and the first different step. If there are none,
    one line says so. A and B may be incorrect; only one of them may be - (standard input).
    Provenance and extensions are ignored. Exit 0 if they are equal, else 1. -O sets an option
    of the readers that declare it; a.KEY and b.KEY name one of them.
    """
    # Imported here: the help of a command needs no numpy.
    from hub_core.cli.reports.comparison import compare

    if a == b == "-":
        raise UsageError("standard input can be read only once", cure="give - once")
    opened_a, opened_b = session.open_input(a), session.open_input(b)
    options = assign(assignments, {"a": opened_a.options, "b": opened_b.options})
    algorithm_a = session.read_unverified(opened_a, options["a"])
    algorithm_b = session.read_unverified(opened_b, options["b"])
    with session.progress("comparing"):
        comparison = compare(algorithm_a, algorithm_b)
    if as_json:
        from hub_core.cli.reports.algorithm_records import DiffReport

        session.print_report(
            DiffReport(
                a=opened_a.name,
                b=opened_b.name,
                equal=comparison.equal,
                facts=comparison.facts,
                traffic=comparison.traffic,
                pairs=comparison.pairs,
                first_different_step=comparison.first_step,
            )
        )
    else:
        _print(comparison, algorithm_a, algorithm_b)
    return ExitCode.DONE if comparison.equal else ExitCode.INVALID


def _print(comparison: AlgorithmComparison, a: Algorithm, b: Algorithm) -> None:
    """Print a comparison: one line if A and B are equal, otherwise the differences in this order.

    1. A table of the facts that differ, if any; None is `none`, booleans are `yes` and `no`.
    2. The numbers of the pairs of ranks whose traffic differs, and of all pairs with messages in A
       or B. A table of at most `LISTED_PAIRS` (10) of the former has messages and traffic (in full
       buffers, 4 significant digits) in A and in B, sorted by the larger traffic of a pair, most
       first; ties keep the order of `comparison.traffic`. If no pair differs, only one line says
       so.
    3. The first different step, if any: its rank and position, then a line each for A and B, `none`
       for a missing step.
    """
    if comparison.equal:
        kind, ranks = a.collective.kind, a.num_ranks
        print_line(f"equal: {kind}, {ranks} ranks, {len(a.steps)} steps")
        return
    if comparison.facts:
        print_table(
            ("", "A", "B"),
            [(f.what, _format_value(f.a), _format_value(f.b)) for f in comparison.facts],
        )

    # A and B may divide the full buffer differently.
    units_a, units_b = a.collective.unit_count, b.collective.unit_count
    different = sorted(
        comparison.traffic,
        key=lambda pair: -max(pair.a.units * units_b, pair.b.units * units_a),
    )
    if different:
        print_line(f"traffic of {len(different)} of {comparison.pairs} pairs of ranks differs:")
        rows = [
            (
                f"{pair.source} -> {pair.destination}",
                str(pair.a.messages),
                str(pair.b.messages),
                _format_share(pair.a, units_a),
                _format_share(pair.b, units_b),
            )
            for pair in different[:LISTED_PAIRS]
        ]
        header = ("link", "messages A", "messages B", "buffers A", "buffers B")
        print_table(header, rows, right=header[1:])
    else:
        print_line(f"traffic of {comparison.pairs} pairs of ranks: equal")

    if (first := comparison.first_step) is not None:
        print_line(f"first different step: rank {first.rank}, step {first.step}")
        print_line(f"A  {first.a or _NOTHING}")
        print_line(f"B  {first.b or _NOTHING}")


def _format_value(value: JsonValue) -> str:
    words = {None: _NOTHING, True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _format_share(sent: PairTraffic, unit_count: int) -> str:
    """Format units as a multiple of the full buffer."""
    return f"{sent.units / unit_count:.4g}"
