"""`collhub diff`: where two algorithms differ - contents, steps, channels, traffic."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import json_flag, option_pairs
from hub_core.cli.assignments import Assignments, assign
from hub_core.cli.output import print_json, print_line, print_table
from hub_core.cli.parameter_types import FILE
from hub_core.cli.session import Session
from hub_core.model import ExitCode, UsageError

if TYPE_CHECKING:
    from hub_core.cli.reports.comparison import Comparison, PairDifference, PairTraffic
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

    Collective and verdicts, steps by kind, channels, dependencies, the traffic between each pair of
    ranks, and the first step that is not the same. Where they come from is not compared. Exit 0
    where they are equal, else 1. An option of -O goes to the readers that declare it; a.KEY and
    b.KEY name one of them.
    """
    # Imported here: the help of a command needs no numpy.
    from hub_core.cli.reports.comparison import compare

    if a == b == "-":
        raise UsageError("standard input can be read once alone", cure="give - once")
    opened_a, opened_b = session.open_input(a), session.open_input(b)
    given = assign(assignments, {"a": opened_a.options, "b": opened_b.options})
    algorithm_a = session.read_unverified(opened_a, given["a"])
    algorithm_b = session.read_unverified(opened_b, given["b"])
    with session.progress("comparing"):
        found = compare(algorithm_a, algorithm_b)
    if as_json:
        print_json(_document(opened_a.name, opened_b.name, found))
    else:
        _print(found, algorithm_a, algorithm_b)
    return ExitCode.DONE if found.equal else ExitCode.INVALID


def _document(a: str, b: str, found: Comparison) -> dict[str, JsonValue]:
    first = found.first_step
    return {
        "schema": "collhub/report-diff-1",
        "a": a,
        "b": b,
        "equal": found.equal,
        "facts": [asdict(one) for one in found.facts],
        "traffic": [asdict(pair) for pair in found.traffic],
        "pairs": found.pairs,
        "first_different_step": None if first is None else asdict(first),
    }


def _print(found: Comparison, a: Algorithm, b: Algorithm) -> None:
    if found.equal:
        kind, ranks = a.collective.kind, a.num_ranks
        print_line(f"equal: {kind}, {ranks} ranks, {len(a.steps)} steps")
        return
    if found.facts:
        print_table(("", "A", "B"), [(f.what, _cell(f.a), _cell(f.b)) for f in found.facts])
    _print_traffic(found, a.collective.unit_count, b.collective.unit_count)
    if (first := found.first_step) is not None:
        print_line(f"first different step: rank {first.rank}, step {first.step}")
        print_line(f"A  {first.a or _NOTHING}")
        print_line(f"B  {first.b or _NOTHING}")


def _cell(value: JsonValue) -> str:
    words = {None: _NOTHING, True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _print_traffic(found: Comparison, units_a: int, units_b: int) -> None:
    """The pairs of ranks with the most traffic first, ties by their numbers."""
    if not found.traffic:
        print_line(f"traffic of {found.pairs} pairs of ranks: equal")
        return
    print_line(f"traffic of {len(found.traffic)} of {found.pairs} pairs of ranks differs:")

    def most_units(pair: PairDifference) -> int:
        """Sort key of a pair, most traffic first: minus the larger of its units in A and in B."""
        # Brought to units of one size.
        return -max(pair.a.units * units_b, pair.b.units * units_a)

    rows = [
        (
            f"{pair.source} -> {pair.destination}",
            str(pair.a.messages),
            str(pair.b.messages),
            _share(pair.a, units_a),
            _share(pair.b, units_b),
        )
        for pair in sorted(found.traffic, key=most_units)[:LISTED_PAIRS]
    ]
    header = ("link", "messages A", "messages B", "buffers A", "buffers B")
    print_table(header, rows, right=header[1:])


def _share(sent: PairTraffic, unit_count: int) -> str:
    """Units as multiples of the full buffer."""
    return f"{sent.units / unit_count:.4g}"
