"""`collhub profile`: where a profiled job waits, and what another network would save it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from hub_core import FILE, CommandContext, json_flag, offer_option
from hub_core.model import STANDARD_KINDS, CollectiveKind, UsageError, parse_time
from hub_core.plugin_api import Simulator

if TYPE_CHECKING:
    from collhub_pytorch.findings import Findings, Saving
    from collhub_pytorch.network_times import NetworkTimes
    from collhub_pytorch.options import ProfileOptions
    from collhub_pytorch.trace_files import TraceFile


def _parsed_algorithms(
    context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[CollectiveKind, str]:
    """`all-reduce=ring`, repeatable."""
    found = {}
    for pair in pairs:
        kind, _, name = pair.partition("=")
        if kind not in STANDARD_KINDS or not name:
            message = f"{pair!r} is not KIND=NAME, for example all-reduce=ring"
            raise click.BadParameter(message, context, parameter)
        found[CollectiveKind(kind)] = name
    return found


@click.command()
@click.argument("files", metavar="FILE [FILE ...]", type=FILE, nargs=-1, required=True)
@click.option("--topology", "topology_text", metavar="T", type=FILE, help="Replay the job there.")
@click.option(
    "--collective",
    "algorithms",
    metavar="KIND=NAME",
    multiple=True,
    callback=_parsed_algorithms,
    help="With --topology: the synthesizer for a kind, as all-reduce=tacos (repeatable; default: "
    "ring; direct for all-to-all, gather and scatter).",
)
@offer_option("--backend", Simulator, "The simulator that times the collectives.", "analytical")
@click.option("--step", type=click.IntRange(0), metavar="N", help="Only ProfilerStep#N.")
@click.option(
    "--ranks-missing",
    type=click.Choice(["refuse", "assume-same"]),
    default="refuse",
    show_default=True,
    help="What to do about ranks without a file.",
)
@click.option(
    "--clocks",
    type=click.Choice(["align", "stated"]),
    default="align",
    show_default=True,
    help="Align clocks by the ends of collectives, or believe them.",
)
@click.option(
    "--clock-residual",
    metavar="TIME",
    help="The most by which ends of one collective may differ then (default: 1ms, 100ms without a "
    "device).",
)
@json_flag
@click.pass_obj
def profile(
    context: CommandContext,
    /,
    files: tuple[str, ...],
    topology_text: str | None,
    algorithms: dict[CollectiveKind, str],
    backend: str,
    as_json: bool,
    **reading: str | int | None,
) -> None:
    """Say where a PyTorch job waits, by the profiles of its ranks, one FILE each.

    How long each collective transfers and how long its ranks wait for the last one, how much of
    communication is hidden behind computation; with --topology, what the collectives of another
    network or other algorithms would save. Of execution traces, the collectives are counted.
    """
    if algorithms and topology_text is None:
        raise UsageError("--collective has no meaning without --topology", cure="give both")
    # Imported here: the help of a command needs no numpy.
    from collhub_pytorch import report
    from collhub_pytorch.findings import findings_of, saving
    from collhub_pytorch.kineto.read import notes
    from collhub_pytorch.network_times import NetworkTimes
    from collhub_pytorch.reading import read_profiles
    from collhub_pytorch.trace_files import holds_execution_trace, on_disk

    opened, options = on_disk(files), _options(reading)
    if holds_execution_trace(opened[0]):
        _say_counts(context, opened, options, as_json)
        return
    with context.progress("reading profiles"):
        workload = read_profiles(files, options)
    findings, lines, found = findings_of(workload), notes(workload), None
    if topology_text is not None:
        topology = context.read_topology(topology_text)
        times = NetworkTimes(topology, algorithms, backend, context.registry())
        with context.progress("simulating collectives"):
            found = saving(findings, times), times
    if as_json:
        context.print_json(report.document(findings, lines, found))
        return
    for line in lines:
        context.say(f"note: {line}")
    _print_findings(context, findings, found)


def _options(reading: Mapping[str, str | int | None]) -> ProfileOptions:
    """The options of the reader from those of the command, the clock residual in seconds."""
    from collhub_pytorch.options import ProfileOptions

    residual, step = reading["clock_residual"], reading["step"]
    return ProfileOptions(
        ranks_missing=str(reading["ranks_missing"]),
        step=None if step is None else int(step),
        clocks=str(reading["clocks"]),
        clock_residual=None if residual is None else parse_time(str(residual)),
    )


def _say_counts(
    context: CommandContext, files: Sequence[TraceFile], options: ProfileOptions, as_json: bool
) -> None:
    """The report of execution traces."""
    from collhub_pytorch import report
    from collhub_pytorch.analysis import matched
    from collhub_pytorch.execution_trace import workload_of
    from collhub_pytorch.findings import calls_alike
    from hub_core.model import Provenance

    workload = workload_of(files, options, Provenance("pytorch-et", "", files[0].name))
    calls = calls_alike(workload, matched(workload))
    if as_json:
        context.print_json(report.counts_document(workload, calls))
        return
    context.say("note: execution traces state no times: name Kineto profiles for those")
    context.print_table(report.COUNTS_HEADER, report.counts_rows(calls), report.CALLS_RIGHT)


def _print_findings(
    context: CommandContext, findings: Findings, found: tuple[Saving, NetworkTimes] | None
) -> None:
    """The tables for people."""
    from collhub_pytorch import report

    context.print_table(report.CALLS_HEADER, report.calls_rows(findings), report.CALLS_RIGHT)
    context.print_line("")
    for line in report.kind_lines(findings):
        context.print_line(line)
    context.print_line("")
    context.print_table(report.RANKS_HEADER, report.ranks_rows(findings), report.RANKS_RIGHT)
    context.print_line("")
    context.print_line(report.saving_line(findings.instant, "if collectives took no time"))
    if found is None:
        return
    gained, times = found
    lead = f"with these times on {times.topology.name}"
    context.print_line("")
    context.print_table(report.TIMES_HEADER, report.times_rows(times), report.TIMES_RIGHT)
    context.print_line("")
    context.print_line(report.saving_line(gained, lead))
