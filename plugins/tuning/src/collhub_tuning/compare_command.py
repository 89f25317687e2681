"""`collhub compare`: which algorithm is best here, by size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import click

from collhub_tuning.asked_alike import (
    algorithms_option,
    named_algorithms,
    plugin_versions,
    roots_of,
)
from hub_core import (
    COLLECTIVE,
    FILE,
    CommandContext,
    assign,
    json_flag,
    number_option,
    offer_option,
    option_pairs,
)
from hub_core.model import ExitCode, UsageError, parse_sizes, parse_time
from hub_core.plugin_api import Engine, EngineRequest, Shown, Simulator

if TYPE_CHECKING:
    from collhub_tuning.comparison_report import ComparisonOutcome
    from collhub_tuning.questions import ComparedAlgorithm, ComparisonQuestion
    from collhub_tuning.sensitivity_report import VariedOutcome
    from collhub_tuning.sweep import Start
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
@offer_option("--backend", Simulator, "The simulator that times them.", "analytical")
@number_option("--jobs", "N", "Algorithms at once (default: one a core).")
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
@offer_option(
    "--engine",
    Engine,
    "What runs them at once; its options are given as -O key=value.",
    "processes",
)
@click.option(
    "--timeout",
    "timeout_text",
    metavar="TIME",
    help="Give up an algorithm that takes longer, as 60s, for all sizes (default: never).",
)
@click.option("--no-cache", is_flag=True, help="Measure anew, and keep nothing.")
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
    asked["start"] = _engine(context, asked, algorithms)
    # All are made before one is measured: a slip in the last costs nothing.
    _timeout_s(asked["timeout_text"])
    networks = variations(topology, asked["ranges"], asked["failures"])
    base = _outcome(context, asked, question, algorithms, topology)
    found = []
    for one in networks:
        outcome = _outcome(context, asked, question, algorithms, one.topology)
        found.append(VariedOutcome(one.name, outcome))
    return base, found


def _outcome(
    context: CommandContext,
    asked: dict[str, Any],
    question: ComparisonQuestion,
    algorithms: Sequence[ComparedAlgorithm],
    topology: Topology,
) -> ComparisonOutcome:
    """Answer the question on a network, from the cache where that is known."""
    import hub_core
    from collhub_tuning.comparison_report import ComparisonOutcome
    from collhub_tuning.result_cache import ResultCache, cache_folder
    from collhub_tuning.sweep import compared

    folder = None if asked["no_cache"] else cache_folder(os.environ)
    content = hub_core.topology_to_json(topology)
    cache = ResultCache(folder, content, plugin_versions(context.registry()))
    what = f"comparing {len(algorithms)} algorithms on {topology.name}"
    with context.progress_bar(what) as progress:
        jobs = asked["jobs"] or os.cpu_count() or 1
        found = compared(
            algorithms,
            question,
            cache,
            jobs=jobs,
            progress=progress,
            network=topology,
            timeout_s=_timeout_s(asked["timeout_text"]),
            start=asked["start"],
        )
    if cache.defect:
        context.say(f"results are not kept: {cache.defect}")
    return ComparisonOutcome(question, topology, found)


def _engine(
    context: CommandContext, asked: dict[str, Any], algorithms: Sequence[ComparedAlgorithm]
) -> Start | None:
    """What starts the engine that is named; None for the default, which needs no start.

    Raises `UsageError` where its workers do not see a file that is compared.
    """
    import hub_core

    name, registry = asked["engine"], context.registry()
    given = assign(asked["assignments"], {"engine": context.options_of(Engine, name)})["engine"]
    files = [one.name for one in algorithms if one.is_file]
    if files and not registry.find(Engine, name).offer.shares_files:
        cure = "compare it with --engine processes"
        raise UsageError(f"the engine {name} does not see the file {files[0]}", cure=cure)
    if name == "processes":
        return None

    def start(workers: int, timeout_s: float | None) -> Executor:
        request = EngineRequest(workers, timeout_s)
        return hub_core.start_engine(name, request, options=given, registry=registry)

    return start


def _timeout_s(text: str | None) -> float | None:
    """Seconds, None where no time is given. Raises `UsageError` for 0."""
    seconds = None if text is None else parse_time(text)
    if seconds == 0:
        raise UsageError("--timeout 0 leaves no time to measure", cure="write for example 60s")
    return seconds


def _question(
    asked: dict[str, Any], sizes: tuple[int, ...], topology: Topology
) -> ComparisonQuestion:
    from collhub_tuning.questions import ComparisonQuestion

    kind = asked["kind"]
    root = roots_of([kind], asked["root"], topology)[kind]
    text = asked["topology_text"]
    return ComparisonQuestion(kind, root, text, topology.num_npus, sizes, asked["backend"])
