"""`collhub profile`: report waiting times of a profiled job and savings on another network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from hub_core import (
    FILE,
    CommandContext,
    backend_option,
    choose_timing,
    json_flag,
    machine_option,
    topology_option,
)
from hub_core.model import CollectiveKind, InputError, UsageError, parse_time, standard_kind

if TYPE_CHECKING:
    from collhub_pytorch.findings import Findings, Saving
    from collhub_pytorch.machine_comparison import MachineComparison
    from collhub_pytorch.options import ProfileOptions
    from collhub_pytorch.replay import NetworkTimes
    from collhub_pytorch.report import Block
    from hub_core.model import Workload

# The value of --machine for nominal links.
_NO_MACHINE = "none"
_READER_OPTION = re.compile(r"-O ([a-z_]+)=(\S+?)(?=[,.;)]|\s|\Z)")


def _parse_algorithms(
    context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[CollectiveKind, str]:
    """Parse repeated options such as `all-reduce=ring`."""
    algorithms = {}
    for pair in pairs:
        text, _, name = pair.partition("=")
        kind = standard_kind(text)
        if kind is None or not name:
            message = f"{pair!r} is not KIND=NAME, for example all-reduce=ring"
            raise click.BadParameter(message, context, parameter)
        algorithms[kind] = name
    return algorithms


@click.command()
@click.argument("files", metavar="FILE [FILE ...]", type=FILE, nargs=-1, required=True)
@topology_option("Replay the job there.")
@click.option(
    "--collective",
    "algorithms",
    metavar="KIND=NAME",
    multiple=True,
    callback=_parse_algorithms,
    help="With --topology: the synthesizer for a kind, as all-reduce=tacos (repeatable; default: "
    "ring; direct for all-to-all, gather and scatter).",
)
@machine_option
@click.option(
    "--ranks-per-node",
    type=click.IntRange(1),
    metavar="N",
    help="With --machine: ranks of the job on each node (default: the GPUs of a node).",
)
@backend_option("The simulator that times the collectives.")
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
@click.option(
    "--kernel-delay-factor",
    type=click.FloatRange(0),
    metavar="F",
    default=1.0,
    show_default=True,
    help="Idle gaps of a stream below 30 ns times F count as delay between two kernels.",
)
@json_flag
@click.pass_obj
def profile(
    context: CommandContext,
    /,
    files: tuple[str, ...],
    topology_text: str | None,
    algorithms: dict[CollectiveKind, str],
    machine: str | None,
    ranks_per_node: int | None,
    backend: str,
    as_json: bool,
    **reading: str | int | float | None,
) -> None:
    """Say where a job waits, by the profiles of its ranks, one FILE each.

    How long each collective transfers, at which bus bandwidth, and how long its ranks wait for the
    last one; which ranks the others wait for; how the time of each rank divides into computation,
    communication, memory work and idle time. With --topology, what the collectives of another
    network or other algorithms would save. With --machine P, the bus bandwidth of each collective
    in percent of the bandwidth that the machine reaches. Without times, as in execution traces, the
    collectives are counted. The files are profiles or execution traces of PyTorch, exports of
    Nsight Systems (SQLite), or records of NCCL: of its Inspector, its profiler plugin, or its log.
    """
    _check_options(topology_text, algorithms, machine, ranks_per_node)
    # Lazy imports: `--help` must not import numpy.
    from collhub_pytorch.analysis import has_times
    from collhub_pytorch.findings import collect_findings, saving
    from collhub_pytorch.machine_comparison import compare_with_machine

    workload, notes = _read_job(context, files, reading)
    compared_machine = None if machine == _NO_MACHINE else machine
    if not has_times(workload):
        _refuse_comparisons(topology_text, compared_machine)
        _print_counts(context, workload, notes, as_json)
        return
    findings = collect_findings(workload)
    replay = comparison = None
    if topology_text is not None:
        times = _choose_times(context, topology_text, algorithms, machine, backend)
        with context.progress("simulating collectives"):
            replay = saving(findings, times), times
    if compared_machine is not None:
        registry = context.registry()
        comparison = compare_with_machine(findings, compared_machine, ranks_per_node, registry)
    if as_json:
        _print_document(context, findings, notes, comparison, replay)
    else:
        _print_report(context, findings, notes, comparison, replay)


def _check_options(
    topology_text: str | None,
    algorithms: Mapping[CollectiveKind, str],
    machine: str | None,
    ranks_per_node: int | None,
) -> None:
    """Raise `UsageError` for options that need another one."""
    if algorithms and topology_text is None:
        raise UsageError("--collective has no meaning without --topology", cure="give both")
    if machine == _NO_MACHINE and topology_text is None:
        raise UsageError("--machine none has no meaning without --topology", cure="give both")
    if ranks_per_node is not None and machine in (None, _NO_MACHINE):
        raise UsageError("--ranks-per-node has no meaning without --machine P", cure="give both")


def _read_job(
    context: CommandContext, files: Sequence[str], reading: Mapping[str, str | int | float | None]
) -> tuple[Workload, list[str]]:
    """Read the files as one job. Returns the workload, and the notes for the user."""
    from collhub_pytorch.options import EXECUTION_TRACE
    from collhub_pytorch.profile_formats import detect_format, read_files
    from collhub_pytorch.trace_files import list_files

    trace_files, options = list_files(files), _options(reading)
    with _translate_reader_options(), context.progress("reading profiles"):
        form = detect_format(trace_files)
        if reading["step"] is not None and not form.has_steps:
            message = f"--step has no meaning for {form.description}, which mark no iterations"
            raise UsageError(message, cure="leave it out, or name Kineto profiles")
        workload, notes = read_files(form, trace_files, options)
    if form.name == EXECUTION_TRACE:
        notes = ["execution traces record no times: name Kineto profiles for those"]
    return workload, notes


def _refuse_comparisons(topology_text: str | None, machine: str | None) -> None:
    """Raise `UsageError` for options that require times of collectives."""
    if topology_text is not None:
        message = "without times of collectives there is no job to replay"
        raise UsageError(message, cure="leave out --topology, or profile the device as well")
    if machine is not None:
        message = "without times of collectives there is no bandwidth to compare"
        raise UsageError(message, cure="leave out --machine, or profile the device as well")


def _choose_times(
    context: CommandContext,
    topology_text: str,
    algorithms: Mapping[CollectiveKind, str],
    machine: str | None,
    backend: str,
) -> NetworkTimes:
    """Return the function that gives times of collectives on a network."""
    from collhub_pytorch.replay import NetworkTimes

    topology = context.read_topology(topology_text)
    registry = context.registry()
    timing = choose_timing(
        machine, backend, topology, registry, uses_known=True, tries_instances=True
    )
    return NetworkTimes(topology, algorithms, timing, registry)


def _print_counts(
    context: CommandContext, workload: Workload, notes: Sequence[str], as_json: bool
) -> None:
    """Print the number of calls of each collective, without times."""
    from collhub_pytorch import report
    from collhub_pytorch.analysis import match_communications
    from collhub_pytorch.findings import group_calls

    calls = group_calls(workload, match_communications(workload))
    if as_json:
        context.print_json(report.build_counts_document(workload, calls, notes))
        return
    _print_notes(context, notes)
    _print_blocks(context, [report.counts_table(calls)])


def _print_document(
    context: CommandContext,
    findings: Findings,
    notes: Sequence[str],
    comparison: MachineComparison | None,
    replay: tuple[Saving, NetworkTimes] | None,
) -> None:
    """Print the report as JSON."""
    from collhub_pytorch.machine_report import comparison_object
    from collhub_pytorch.report import build_document

    document = build_document(findings, notes, replay)
    if comparison is not None:
        document["machine_comparison"] = comparison_object(comparison)
    context.print_json(document)


def _print_report(
    context: CommandContext,
    findings: Findings,
    notes: Sequence[str],
    comparison: MachineComparison | None,
    replay: tuple[Saving, NetworkTimes] | None,
) -> None:
    """Print the report as tables and lines."""
    from collhub_pytorch import report
    from collhub_pytorch.machine_report import comparison_lines

    _print_notes(context, notes)
    _print_blocks(context, [*report.build_blocks(findings), [report.instant_line(findings)]])
    if comparison is not None:
        context.print_line("")
        _print_blocks(context, [comparison_lines(comparison)])
    if replay is not None:
        saved, times = replay
        lead = f"with these times on {times.topology.name}"
        context.print_line("")
        _print_blocks(context, [report.simulated_table(times), [report.saving_line(saved, lead)]])
        context.say(times.timing.note)


def _options(reading: Mapping[str, str | int | float | None]) -> ProfileOptions:
    """Convert the options of the command to options of the reader."""
    from collhub_pytorch.options import ProfileOptions

    residual, step = reading["clock_residual"], reading["step"]
    return ProfileOptions(
        ranks_missing=str(reading["ranks_missing"]),
        step=None if step is None else int(step),
        clocks=str(reading["clocks"]),
        clock_residual=None if residual is None else parse_time(str(residual)),
        kernel_delay_factor=float(reading["kernel_delay_factor"] or 0),
    )


@contextmanager
def _translate_reader_options() -> Iterator[None]:
    """Translate reader options in errors to options of this command: `-O step=3` to `--step 3`."""
    try:
        yield
    except InputError as error:
        diagnostics = [
            replace(diagnostic, cure=to_command_options(diagnostic.cure))
            for diagnostic in error.diagnostics
        ]
        raise InputError(diagnostics) from None


def to_command_options(cure: str) -> str:
    """Replace reader options in a cure by options of this command."""
    return _READER_OPTION.sub(lambda match: f"--{match[1].replace('_', '-')} {match[2]}", cure)


def _print_notes(context: CommandContext, notes: Sequence[str]) -> None:
    for line in notes:
        context.say(f"note: {line}")


def _print_blocks(context: CommandContext, blocks: Sequence[Block]) -> None:
    """Print tables and lines, with an empty line between two blocks."""
    for index, block in enumerate(blocks):
        if index:
            context.print_line("")
        if isinstance(block, list):
            for line in block:
                context.print_line(line)
        else:
            context.print_table(block.header, block.rows, block.right)
