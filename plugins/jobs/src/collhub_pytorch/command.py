"""`collhub profile`: report waiting times of a profiled job and savings on another network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hub_core import (
    FILE,
    CommandContext,
    OpenedInput,
    backend_option,
    change_lines,
    json_flag,
    machine_option,
    topology_option,
    view_option,
)
from hub_core.model import (
    CollectiveKind,
    HubError,
    InputError,
    UsageError,
    parse_time,
    standard_kind,
)
from hub_core.plugin_api import InteractivePage, JobTimeline

if TYPE_CHECKING:
    from collhub_pytorch.findings import ProfileFindings, Saving
    from collhub_pytorch.machine import MachineComparison
    from collhub_pytorch.predicted_times import MachinePredictor, Predictor
    from collhub_pytorch.replay import NetworkTimes
    from collhub_pytorch.report import Block
    from hub_core.model import Workload
    from hub_core.plugin_api import JobChange

# The value of --machine for nominal links.
_NO_MACHINE = "none"
_READER_OPTION = re.compile(r"-O ([a-z_]+)=(\S+?)(?=[,.;)]|\s|\Z)")


def _parse_algorithms(
    context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[CollectiveKind, str]:
    """Parse values such as `all-reduce=ring`: name of the algorithm by kind of collective.

    It is the callback of a click option. The text before the first `=` is a kind in any usual
    spelling (`standard_kind`), and the text after it is the name, which is not checked. The
    last value of a repeated kind is used. Raises `click.BadParameter` for an unknown kind and
    an empty or missing name.
    """
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
@view_option
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
    view_out: str | None,
    as_json: bool,
    **reading: str | int | float | None,
) -> None:
    """Report where a job waits, from profiles of its ranks (one FILE each) or any file of a job.

    Prints the transfer time and the bus bandwidth of each collective, and how long its ranks
    wait for the last one. Also prints the ranks for which the remaining ranks wait, and
    divides the time of each rank into computation, communication, memory work and idle time.
    With --topology, prints the savings by another network or other algorithms. With --machine
    P, prints the bus bandwidth of each collective in percent of that of the machine. With
    either one, prints the savings by other bucket sizes and by overlap. If only computations
    have times in the files, collectives get the times of the network or machine. Without any
    times, as in execution traces, collectives are only counted; --topology, --machine P and
    --view are then refused. The files are profiles or execution traces of PyTorch, exports of
    Nsight Systems (SQLite), records of NCCL (its Inspector, its profiler plugin, its log), or
    a job in any other format, such as the card of CCL-Bench, HLO, SimAI or Chakra.
    """
    _check_options(topology_text, algorithms, machine, ranks_per_node)
    # Lazy imports: `--help` must not import numpy.
    from collhub_pytorch.analysis import has_times
    from collhub_pytorch.findings import collect_findings, saving
    from collhub_pytorch.job_changes import find_changes
    from collhub_pytorch.machine import compare_with_machine
    from collhub_pytorch.predicted_times import NetworkPredictor, has_computation_times

    workload, notes = _read_job(context, files, reading)
    compared_machine = None if machine == _NO_MACHINE else machine
    is_measured = has_times(workload)
    if not is_measured and not has_computation_times(workload):
        _refuse_comparisons(topology_text, compared_machine)
    predictor: Predictor | None = None
    times = None
    if topology_text is not None:
        times = _choose_times(context, topology_text, algorithms, machine, backend)
        predictor = NetworkPredictor(times)
    machine_predictor = None
    if compared_machine is not None:
        machine_predictor = _create_machine_predictor(
            context, workload, compared_machine, ranks_per_node, notes
        )
        predictor = predictor or machine_predictor
    if not is_measured:
        if predictor is None:
            if view_out is not None:
                cure = "add --topology or --machine, which predict them"
                raise UsageError(f"--view needs times, which {files[0]} lacks", cure=cure)
            _print_counts(context, workload, notes, as_json)
            return
        workload = _predict_job(context, workload, predictor, notes)
    findings = collect_findings(workload)
    report = _Report(findings, notes)
    if times is not None:
        with context.progress("simulating collectives"):
            report.replay = saving(findings, times), times
    if machine_predictor is not None and is_measured:
        report.comparison = compare_with_machine(findings, machine_predictor)
    if predictor is not None:
        with context.progress("timing the job with other bucket sizes and with overlap"):
            report.changes = find_changes(
                workload, predictor, findings.meetings, is_predicted=not is_measured
            )
    if view_out is not None:
        timing = "measured" if is_measured else "predicted"
        _write_page(context, workload, files[0], timing, view_out)
    if as_json:
        from collhub_pytorch.report import create_report

        context.print_report(
            create_report(findings, notes, report.replay, report.comparison, report.changes or ())
        )
    else:
        _print_report(context, report)


def _write_page(
    context: CommandContext, workload: Workload, name: str, timing: str, out: str
) -> None:
    """Write an interactive page with the timeline of a job to `out`, and print its path.

    `name`: title of the page and the timeline. Times are computed from the durations in the
    workload; `timing` describes them, such as "measured". Raise `InputError` if a node
    other than a marker has no duration, and for cyclic dependencies.
    """
    from collhub_pytorch.analysis import measured_timeline

    times = measured_timeline(workload)
    timeline = JobTimeline(name, workload, times.start, times.end, timing=f"{timing} durations")
    context.say_written(context.draw_report(InteractivePage(name, (timeline,)), out))


@dataclass(slots=True)
class _Report:
    """Contents of the report. `changes`: None without a machine and a topology."""

    findings: ProfileFindings
    notes: Sequence[str]
    replay: tuple[Saving, NetworkTimes] | None = None
    comparison: MachineComparison | None = None
    changes: tuple[JobChange, ...] | None = None


def _create_machine_predictor(
    context: CommandContext,
    workload: Workload,
    machine: str,
    ranks_per_node: int | None,
    notes: list[str],
) -> MachinePredictor:
    """Create the predictor of times on a measured machine, which is not read yet.

    `machine`: its name or profile; an unknown one raises `HubError` only when the predictor is
    first used. `ranks_per_node` is passed to the predictor. If it is None, the number that the
    files record is passed, and a note that reports it is appended to `notes`. If they record
    none, None is passed.
    """
    from collhub_pytorch.job import recorded_ranks_per_node
    from collhub_pytorch.predicted_times import MachinePredictor

    recorded = recorded_ranks_per_node(workload)
    if ranks_per_node is None and recorded is not None:
        ranks_per_node = recorded
        notes.append(f"the records name the nodes: {recorded} ranks are on each of them")
    return MachinePredictor(machine, ranks_per_node, context.registry())


def _predict_job(
    context: CommandContext, workload: Workload, predictor: Predictor, notes: list[str]
) -> Workload:
    """Return the job with predicted times of its collectives, and append notes to `notes`.

    The first note names the predictor. The second follows if no node of the new job computes.
    `workload` is not changed. Raises `UsageError` for collectives without a size, other than
    barriers; errors of the prediction (`HubError`) pass through. Nothing is appended after an
    error.
    """
    from collhub_pytorch.analysis import is_computation
    from collhub_pytorch.predicted_times import predict_job, require_sizes

    require_sizes(workload)
    with context.progress("predicting the times of collectives"):
        workload = predict_job(workload, predictor)
    notes.append(
        f"the times of collectives are not recorded: they are predicted for {predictor.name}"
    )
    if not is_computation(workload).any():
        notes.append("the files record no computations: the job consists of communication")
    return workload


def _check_options(
    topology_text: str | None,
    algorithms: Mapping[CollectiveKind, str],
    machine: str | None,
    ranks_per_node: int | None,
) -> None:
    """Raise `UsageError` for the first option without another one that it needs.

    The order of the checks is:

    1. `algorithms` (not empty) without `topology_text`;
    2. `machine` with the text `none`, without `topology_text`;
    3. `ranks_per_node` without `machine`, or with the machine `none`.

    None means that an option is not given.
    """
    if algorithms and topology_text is None:
        raise UsageError("--collective has no meaning without --topology", cure="give both")
    if machine == _NO_MACHINE and topology_text is None:
        raise UsageError("--machine none has no meaning without --topology", cure="give both")
    if ranks_per_node is not None and machine in (None, _NO_MACHINE):
        raise UsageError("--ranks-per-node has no meaning without --machine P", cure="give both")


def _read_job(
    context: CommandContext, files: Sequence[str], reading: Mapping[str, str | int | float | None]
) -> tuple[Workload, list[str]]:
    """Return the files as one job, with notes for the user.

    `files`: at least one path. `reading`: options by name, None for not given.

    - If the files are a job in another format than profiles (`_open_other_job`), it is read with
      those options that its format declares. Other options are dropped silently; the notes are [].
    - Otherwise the files are profiles. The content determines their format, which must be the same
      for all. The notes are those of the reader. Execution traces have one note instead: that they
      record no times.

    Raises `UsageError` before reading if `step` is given but the format has no steps. With profiles
    it is also raised for an invalid time in `clock_residual` and a file that is given twice. Errors
    of the readers are passed on; their advice names options of this command, such as `--step 3`.
    """
    from collhub_pytorch.formats import EXECUTION_TRACE, ProfileOptions
    from collhub_pytorch.profile_formats import detect_format, read_files
    from collhub_pytorch.trace_files import list_files

    residual, step = reading["clock_residual"], reading["step"]
    opened = _open_other_job(context, files)
    if opened is not None:
        declared = {option.name for option in opened.options}
        if step is not None and "step" not in declared:
            raise _no_steps_error(f"the format {opened.format_name}")
        given = {
            name: str(value)
            for name, value in reading.items()
            if name in declared and value is not None
        }
        with _translate_reader_options():
            return context.read_workload(opened, given), []
    trace_files = list_files(files)
    options = ProfileOptions(
        ranks_missing=str(reading["ranks_missing"]),
        step=None if step is None else int(step),
        clocks=str(reading["clocks"]),
        clock_residual=None if residual is None else parse_time(str(residual)),
        kernel_delay_factor=float(reading["kernel_delay_factor"] or 0),
    )
    with _translate_reader_options(), context.progress("reading profiles"):
        form = detect_format(trace_files)
        if step is not None and not form.has_steps:
            raise _no_steps_error(form.description)
        workload, notes = read_files(form, trace_files, options)
    if form.name == EXECUTION_TRACE:
        notes = ["execution traces record no times: name Kineto profiles for those"]
    return workload, notes


def _open_other_job(context: CommandContext, files: Sequence[str]) -> OpenedInput | None:
    """Open the files as a job in a format other than profiles; None if they may be profiles.

    `files`: at least one. If it is a single existing file with the suffix `.yaml` or `.yml` (a
    card of CCL-Bench), the folder of the card is opened instead. The first case that applies:

    1. The first path is a file with the signature of a profile: None.
    2. The paths cannot be opened together as one input, i.e. `open_input` raises `HubError`. For a
       folder or a card the error is raised. Otherwise None, so that the reader of profiles reports
       the error.
    3. The opened input has no workload: None.
    4. Otherwise the opened input is returned.
    """
    from collhub_pytorch.profile_formats import has_profile_signature
    from collhub_pytorch.trace_files import list_files

    path = Path(files[0])
    is_card = len(files) == 1 and path.suffix in (".yaml", ".yml") and path.is_file()
    if is_card:
        path = path.parent
    if path.is_file() and has_profile_signature(list_files(files[:1])[0]):
        return None
    try:
        opened = context.open_input(str(path), None, files[1:])
    except HubError:
        if path.is_dir() or is_card:
            raise
        return None
    return opened if opened.holds_workload else None


def _no_steps_error(formats: str) -> UsageError:
    message = f"--step has no meaning for {formats}, which mark no iterations"
    return UsageError(message, cure="leave it out, or name Kineto profiles")


def _refuse_comparisons(topology_text: str | None, machine: str | None) -> None:
    """Raise `UsageError` if `--topology` or `--machine` is given for a job without times.

    Both compare with times of collectives, which such a job lacks.
    """
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
    """Create the object that simulates times of collectives on the network `topology_text`.

    `algorithms`: replacements of the default ones, by kind. `backend`: name of the simulator.
    `machine` decides:

    - A name or content of a profile: this machine is simulated.
    - None (no option): the known machine that the topology names, if `backend` is the default
      simulator or one that models machines.
    - `none`: this known machine, only if `backend` models machines.
    - Otherwise, `backend` simulates the links of the topology.

    On a machine, the fastest number of copies of an algorithm counts. Raises `HubError` for
    an invalid topology, an unknown machine, one of another topology, and one that contradicts
    `backend`.
    """
    from collhub_pytorch.replay import NetworkTimes
    from hub_core import choose_timing

    topology = context.read_topology(topology_text)
    registry = context.registry()
    timing = choose_timing(
        machine, backend, topology, registry, uses_known=True, tries_instances=True
    )
    return NetworkTimes(topology, algorithms, timing, registry)


def _print_counts(
    context: CommandContext, workload: Workload, notes: Sequence[str], as_json: bool
) -> None:
    """Print the number of communications per kind, size and group, without times.

    A collective counts once for all its ranks, and a message once for sender and receiver.

    - Without `as_json`: first the notes on standard error, then a table on standard output.
      The table has one row per group of `group_calls`, in the same order.
    - With `as_json`: only a JSON report on standard output, which contains the notes. In it,
      `transferring_ns` is 0, and all other times are null.

    Raises `InputError` before printing if the ranks of a collective do not match.
    """
    from collhub_pytorch import report
    from collhub_pytorch.analysis import match_communications
    from collhub_pytorch.findings import group_calls

    calls = group_calls(workload, match_communications(workload))
    if as_json:
        context.print_report(report.create_counts_report(workload, calls, notes))
        return
    _print_notes(context, notes)
    _print_blocks(context, [report.counts_table(calls)])


def _print_report(context: CommandContext, report: _Report) -> None:
    """Print the report on a profile on standard output, notes on standard error.

    Empty lines separate the tables and groups of lines on standard output. The order is:

    1. the notes, each as `note: TEXT`
    2. the tables of findings, and the line about the time without communication (`instant_line`)
    3. `report.comparison`: the lines of the comparison with a machine
    4. `report.replay`: the table of simulated times, and the line about the time that is saved;
       then the note of the simulator's timing, on standard error
    5. `report.changes`: the changes of the job; if empty, a line that no other bucket size and no
       overlap saves time

    Each of 3 to 5 is omitted if it is None.
    """
    from collhub_pytorch.machine import comparison_lines
    from collhub_pytorch.report import build_blocks, instant_line, saving_line, simulated_table

    findings = report.findings
    _print_notes(context, report.notes)
    _print_blocks(context, [*build_blocks(findings), [instant_line(findings)]])
    if report.comparison is not None:
        context.print_line("")
        _print_blocks(context, [comparison_lines(report.comparison)])
    if report.replay is not None:
        saved, times = report.replay
        lead = f"with these times on {times.topology.name}"
        context.print_line("")
        _print_blocks(context, [simulated_table(times), [saving_line(saved, lead)]])
        context.say(times.timing.note)
    if report.changes is not None:
        no_saving = ["no other bucket size and no overlap saves time"]
        context.print_line("")
        _print_blocks(context, [change_lines(report.changes) or no_saving])


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
