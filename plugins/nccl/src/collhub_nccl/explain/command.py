"""`collhub nccl explain`: NCCL's choice for a call, and how it compares with a log."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from hub_core import (
    COLLECTIVE,
    FILE,
    CommandContext,
    CommandGroup,
    json_flag,
    number_option,
    parse_sizes,
    topology_option,
)
from hub_core.model import ExitCode, InputError, Location, Severity, UsageError

# Modules that need numpy are imported in the functions: the help of a command appears at once.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from collhub_machine_profiles.gpus import Gpu
    from collhub_machine_profiles.machine_profile import MachineProfile
    from collhub_machine_profiles.nccl_costs import Communicator

    from collhub_nccl.explain.calls import ExplainedCall
    from collhub_nccl.explain.measured_check import MeasuredFinding
    from collhub_nccl.tuner.rules import TunerRule
    from hub_core.network import Topology

_SEARCH = re.compile(r"(\d{1,2})x(\d{1,4}(?:\.\d{1,4})?)\Z")


class _ExplainRequest(TypedDict):
    """Options of the command."""

    machine: str | None
    topology: str | None
    collective: str | None
    sizes_text: tuple[str, ...]
    ranks: int | None
    nodes: int | None
    version: str | None
    dtype: str
    search: str | None
    settings: tuple[str, ...]
    tuner: str | None
    is_registered: bool
    logs: tuple[str, ...]
    as_json: bool


@click.group(cls=CommandGroup)
def nccl() -> None:
    """Explain NCCL's decisions."""


@nccl.command()
@click.option(
    "--machine", metavar="P", help="Profile of the machine: a file, or a shipped one such as h100."
)
@topology_option("Or: its topology, as dgx-h100:2.", "topology")
@click.option("--collective", type=COLLECTIVE, help="Collective to explain.")
@click.option(
    "--size",
    "sizes_text",
    metavar="S",
    multiple=True,
    help="Size of the full buffer, or a range such as 1KiB..1GiB, each twice the one before"
    " (repeatable).",
)
@number_option("--ranks", "N", "Number of ranks (default: all of the topology, or one node).", 2)
@number_option("--nodes", "M", "Number of nodes (default: as few as the ranks fill).")
@click.option(
    "--nccl-version",
    "version",
    metavar="V",
    help="Version of NCCL, 2.18 to 2.30 (default: of the log or the profile).",
)
@click.option("--dtype", default="", metavar="TYPE", help="Element type, such as int8 or float8.")
@click.option(
    "--search",
    metavar="CxB",
    help="Channels of NCCL's search and their GB/s, as its log prints them, such as 12x30.",
)
@click.option(
    "--env",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="Environment variable of the job, such as NCCL_ALGO=Ring (repeatable).",
)
@click.option(
    "--tuner", metavar="FILE", type=FILE, help="Configuration of NCCL's example tuner plugin."
)
@click.option(
    "--registered",
    "is_registered",
    is_flag=True,
    help="Buffers are registered as symmetric windows: also list symmetric kernels.",
)
@click.option(
    "--log",
    "logs",
    metavar="FILE",
    type=FILE,
    multiple=True,
    help="Compare with a log of NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING, or with measured"
    " times: JSON lines of the Inspector, nccl-tests (repeatable).",
)
@json_flag
@click.pass_obj
def explain(context: CommandContext, /, **request: Unpack[_ExplainRequest]) -> int:
    """Explain NCCL's choice for a collective on a machine, or the choices in a log.

    Prints algorithm, protocol, channels, threads, chunk and time, all alternatives with their
    times, and the reasons for which NCCL does not use the others. NCCL's time is the one that it
    computes to choose; the expected time is that of the machine's profile. With --log, every choice
    and cost in the log, or every measured time, is compared with the model; a log identifies a
    known machine by its costs.
    """
    if request["logs"]:
        return _explain_evidence(context, request)
    return _explain_calls(context, request)


def _explain_calls(context: CommandContext, request: _ExplainRequest) -> int:
    from collhub_nccl.explain import report
    from collhub_nccl.explain.calls import CallRequest, explain_call, parse_settings

    collective, sizes_text = request["collective"], request["sizes_text"]
    if collective is None or not sizes_text:
        missing = "--collective" if collective is None else "--size"
        raise UsageError(f"{missing} is missing", cure="see 'collhub nccl explain --help'")
    sizes = dict.fromkeys(size for text in sizes_text for size in parse_sizes(text))
    settings = parse_settings(request["settings"])
    machine = _Machine(context, request)
    communicator = machine.communicator(request["ranks"], request["nodes"], "")
    rules = _read_tuner(context, request["tuner"])
    calls = [
        explain_call(
            CallRequest(
                communicator,
                collective,
                size,
                request["dtype"],
                settings,
                rules,
                request["is_registered"],
            )
        )
        for size in sizes
    ]
    expected = [machine.expected_us(call) for call in calls]
    if request["as_json"]:
        context.print_report(
            report.create_explain_report(communicator, calls, expected, request["settings"])
        )
        return ExitCode.DONE
    context.print_line(report.describe_communicator(communicator, machine.version_source))
    rows = report.choice_rows(calls, expected)
    context.print_table(report.CHOICE_HEADER, rows, report.CHOICE_RIGHT)
    alternatives = report.alternative_rows(calls)
    if alternatives:
        context.print_line("")
        context.print_table(report.ALTERNATIVE_HEADER, alternatives, report.ALTERNATIVE_RIGHT)
        context.print_line("")
        context.print_table(report.REFUSAL_HEADER, report.refusal_rows(calls[0]))
    for note in dict.fromkeys(note for call in calls for note in call.notes):
        context.say(note)
    return ExitCode.DONE


def _explain_evidence(context: CommandContext, request: _ExplainRequest) -> int:
    """Compare the files of `--log` with the model of NCCL, print the result and return DONE.

    A file with the signature of a reader of measurements has measured times, unless it is a tuning
    log. All other files are read as tuning logs. The machine is that of `--machine` or
    `--topology`. Without these options, a tuning log determines its machine, and measured times
    raise `UsageError`.

    `--nccl-version` replaces the version of each log, and `--ranks` its ranks. `--nodes` replaces
    its nodes only if `--ranks` is given. `--env`, `--dtype` and `--registered` are ignored.
    `--json` prints one report. Otherwise each log gives a line, a table and notes, in the order of
    the files; one table of all measured calls follows.

    Raises `UsageError` for `--collective`, `--size`, `--tuner` and invalid values. Raises
    `InputError` for an unreadable file, a log without tuning lines or of an unknown machine.
    """
    from collhub_machine_profiles.nccl_constants import parse_version

    from collhub_nccl.explain import report
    from collhub_nccl.explain.log_check import LogCheck, check_log
    from collhub_nccl.explain.tuning_log import is_tuning_log, read_tuning_log

    for option in ("collective", "sizes_text", "tuner"):
        if request[option]:
            flag = {"sizes_text": "--size"}.get(option, f"--{option}")
            raise UsageError(f"{flag} has no meaning with --log", cure="leave it out")
    version = None if request["version"] is None else parse_version(request["version"])
    machine: _Machine | None = None
    if request["machine"] is not None or request["topology"] is not None:
        machine = _Machine(context, request)
    checks: list[LogCheck] = []
    measured: list[MeasuredFinding] = []
    for file in request["logs"]:
        content = _read_file(file)
        if not is_tuning_log(content) and _is_measured(context, content):
            measured += _check_measured(context, file, machine)
            continue
        log = read_tuning_log(content, file)
        if request["ranks"] is not None:
            log = replace(log, ranks=request["ranks"], nodes=request["nodes"] or log.nodes)
        checks.append(check_log(log, None if machine is None else machine.communicator, version))
    if request["as_json"]:
        context.print_report(report.create_log_report(checks, measured))
        return ExitCode.DONE
    for check in checks:
        source = "of the log" if check.log.version and version is None else "assumed"
        line = report.describe_communicator(check.communicator, source)
        context.print_line(f"{check.log.file}: {line}")
        context.print_table(report.LOG_HEADER, report.log_rows(check), ("line",))
        for note in check.notes:
            context.say(note)
    if measured:
        rows = report.measured_rows(measured)
        context.print_table(report.MEASURED_HEADER, rows, report.MEASURED_RIGHT)
    return ExitCode.DONE


def _is_measured(context: CommandContext, content: bytes) -> bool:
    """Return whether a reader of measured times recognizes this content.

    A reader recognizes it if the signature of its format, a regular expression, is found anywhere
    in `content`. `^` and `$` match at every line.
    """
    from hub_core.plugin_api import MeasurementReader

    return any(
        re.search(provided.offer.format.signature, content, re.MULTILINE)
        for provided in context.registry().all(MeasurementReader)
    )


def _check_measured(
    context: CommandContext, file: str, machine: _Machine | None
) -> list[MeasuredFinding]:
    """Compare the measured calls of a file with the model; return one finding per merged call.

    `merge_calls` first combines the records of a call, and equal calls to one point with the median
    time. The findings are in its order. Rows that the reader skips are reported to `context`.
    Raises `UsageError` without a machine, before the file is read, because measured times do not
    identify one. Errors of the reader are raised.
    """
    from collhub_machine_profiles.calls import merge_calls

    from collhub_nccl.explain.measured_check import check_measured
    from hub_core import read_measurements

    if machine is None:
        message = f"{file} has measured times, which do not identify the machine"
        raise UsageError(message, cure="give --machine, such as h100, or --topology")
    read = read_measurements([file], registry=context.registry())
    context.report(read.skipped)
    return check_measured(merge_calls(read.points), machine.profile, machine.communicator)


class _Machine:
    """The machine of `--machine` or `--topology`: its GPU, its profile and its topology."""

    def __init__(self, context: CommandContext, request: _ExplainRequest) -> None:
        """Read the machine of `--machine` or `--topology`, and apply `--search` to its GPU.

        Sets `gpu`, `profile` and `topology`. The profile is that of `--machine`; with only
        `--topology` it is the known one of this machine, or None. `topology` is None without
        `--topology`. If both are given, they must be of the same GPU. `version_source` begins
        as "default". Raises `UsageError` if neither is given, if the profile names no known GPU,
        if both are of different GPUs, or if there is only a topology and it names no known GPU.
        Errors of reading the topology and the profile, and of `--search`, pass through.
        """
        from collhub_machine_profiles import find_profile, load_profile
        from collhub_machine_profiles.gpus import known_gpu

        self.profile: MachineProfile | None = None
        self.topology: Topology | None = None
        self.version_source = "default"
        self._version, self._search = request["version"], request["search"]
        machine, topology = request["machine"], request["topology"]
        if machine is None and topology is None:
            cure = "give --machine h100, or --topology dgx-h100"
            raise UsageError("the machine is missing", cure=cure)
        named = None
        if topology is not None:
            self.topology = context.read_topology(topology)
            named = known_gpu(topology) or known_gpu(self.topology.name)
        gpu = named
        if machine is not None:
            self.profile = load_profile(machine)
            gpu = self.profile.known_gpu
            if gpu is None:
                message = f"the profile {machine!r:.80} names no known GPU"
                raise UsageError(message, cure="give a profile of a known machine, such as h100")
            if named is not None and named.name != gpu.name:
                message = f"the profile is of {gpu.name}, the topology of {named.name}"
                raise UsageError(message, cure="give the profile of this machine")
        elif self.topology is not None and gpu is not None:
            self.profile = find_profile(self.topology)
        if gpu is None:
            message = f"topology {topology!r:.80} names no known GPU"
            raise UsageError(message, cure="also give --machine, such as h100")
        self.gpu = _with_search(gpu, request["search"])

    def communicator(self, ranks: int | None, nodes: int | None, logged: str) -> Communicator:
        """Return the communicator of these ranks and nodes on this machine.

        The first case gives the version of NCCL, and `self.version_source` in brackets:

        1. `--nccl-version` ("given")
        2. `logged`, the version in a log, unless it is empty; not checked ("of the log")
        3. the version of the library in the profile, or `DEFAULT_VERSION` if that library is not
           NCCL ("of the profile" in both cases)
        4. `DEFAULT_VERSION` (`version_source` is unchanged)

        Without `nodes`, the ranks fill as few nodes as possible. Without `ranks`, the nodes are
        full. Without both, all nodes of the topology are used, or one full node without a topology.
        Raises `UsageError` for an invalid version in case 1, and in the cases of
        `find_communicator`.
        """
        from collhub_machine_profiles.nccl_baseline import find_communicator, nccl_version_of
        from collhub_machine_profiles.nccl_constants import parse_version

        version = nccl_version_of(self.profile)
        if self._version is not None:
            version, self.version_source = parse_version(self._version), "given"
        elif logged:
            version, self.version_source = logged, "of the log"
        elif self.profile is not None and self.profile.library.version:
            self.version_source = "of the profile"
        return find_communicator(
            self.gpu,
            version,
            ranks=ranks,
            nodes=nodes,
            topology=self.topology,
            machine="" if self.profile is None else self.profile.name,
        )

    def expected_us(self, call: ExplainedCall) -> tuple[float, str] | None:
        """Return the time of a call in us by the machine's profile, and the name of the method.

        The result is None without a profile, if the call has no choice, and with `--search`.
        Otherwise the choice of the call is compared with that of the same call without settings,
        tuner and registered buffers:

        - Different: the profile's model for the choice of the call gives the time, and the method
          is "model". None if the profile does not model the call, or if the algorithm is not ring,
          nvls or p2p. Raises `ValueError` if the model has no formula for this algorithm and
          protocol.
        - Equal: the time and the method are those of `expected_time`, for `--nccl-version` or,
          without this option, for any version. None if the profile has no prediction.
        """
        from collhub_machine_profiles.nccl_baseline import (
            expected_time,
            expected_time_of_choice_us,
        )

        from collhub_nccl.explain.calls import CallRequest, explain_call

        profile, request = self.profile, call.request
        if profile is None or call.choice is None or self._search is not None:
            return None
        communicator, size = request.communicator, request.size_bytes
        plain = explain_call(CallRequest(communicator, request.collective, size, request.dtype))
        if call.choice != plain.choice:
            time_us = expected_time_of_choice_us(
                profile, communicator, request.collective, size, call.choice
            )
            return None if time_us is None else (time_us, "model")
        predicted = expected_time(
            profile,
            request.collective,
            communicator.ranks,
            communicator.nodes,
            size,
            self._version or "",
            request.dtype,
        )
        return None if predicted is None else (predicted.time_us, str(predicted.method))


def _with_search(gpu: Gpu, search: str | None) -> Gpu:
    """Return a copy of the GPU with the channels and speed of `--search`, a text such as `12x30`.

    `12x30` means that NCCL's search found 12 channels of 30 GB/s each: `search_channels` becomes
    12, `channel_speed` 30.0, and `channels` (of collectives) 24. `channels` is twice the first
    number, but at most `MAX_COLLECTIVE_CHANNELS`. All other fields are kept.

    None returns the given GPU. The text has 1 or 2 digits, `x`, and 1 to 4 digits, after which a
    point and 1 to 4 digits are permitted. Raises `UsageError` for other texts, and if a number is
    0.
    """
    from collhub_machine_profiles.nccl_costs import MAX_COLLECTIVE_CHANNELS

    if search is None:
        return gpu
    match = _SEARCH.match(search)
    channels, speed = (int(match[1]), float(match[2])) if match else (0, 0.0)
    if not channels or not speed:
        message = f"--search {search!r:.40} is not a number of channels and a speed in GB/s"
        raise UsageError(message, cure="write for example 12x30")
    return replace(
        gpu,
        search_channels=channels,
        channel_speed=speed,
        channels=min(2 * channels, MAX_COLLECTIVE_CHANNELS),
    )


def _read_tuner(context: CommandContext, file: str | None) -> Sequence[TunerRule] | None:
    """Return the rules of a tuner configuration, in the order of the file; None without a file.

    The rules are those that NCCL's example tuner applies, so invalid lines that it accepts give
    rules too. A file without rules gives an empty list. All findings are reported to `context`;
    errors as warnings, because the tuner runs in spite of them. Raises `InputError`
    (`unreadable-input`) if the file cannot be read.
    """
    from collhub_nccl.tuner.read import read_rules

    if file is None:
        return None
    rules, diagnostics = read_rules(_read_file(file), file, as_interpreted=True)
    context.report(
        replace(finding, severity=Severity.WARNING)
        if finding.severity is Severity.ERROR
        else finding
        for finding in diagnostics
    )
    return rules


def _read_file(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        cure = "name a file that can be read"
        raise InputError(
            f"{reason}", location=Location(file), cure=cure, code="unreadable-input"
        ) from None
