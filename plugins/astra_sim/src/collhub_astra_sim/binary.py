"""Simulator `astra-sim`: run the real ASTRA-sim binary on a written folder and read its output.

Also the check of `collhub doctor` that the configured binary works.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from collhub_astra_sim.folders.folder import AstraFolder, arguments, count_file_handles
from collhub_astra_sim.folders.write import build_folder
from collhub_astra_sim.options import (
    BINARY_VARIABLE,
    CONGESTION_AWARE,
    CONGESTION_UNAWARE,
    AstraBinaryOptions,
    AstraFolderOptions,
)
from hub_core.model import Diagnostic, HubError, InputError, Location, PluginError, Severity
from hub_core.plugin_api import (
    CheckLine,
    CheckReport,
    CheckRequest,
    NoOptions,
    SimulationRequest,
    SimulationResult,
)

# Texts in the simulator's output after a failure, with the cures.
_CURES = {
    "Cannot access et file": "a trace cannot be opened: check the limit of open files (ulimit -n)",
    "No collective implementation found": (
        "the binary is older than custom collectives: build a newer one"
    ),
    "Attribute comm_size not found": "the binary needs absolute sizes",
    "msg_chunk_cnt": "the binary reads symbolic sizes only: use the main branch of ASTRA-sim",
}


def simulate(request: SimulationRequest, options: AstraBinaryOptions) -> SimulationResult:
    """Run ASTRA-sim on an algorithm and return the finish time of every rank in ns.

    A rank that never finishes has None. The folder of the run is temporary. Without the option
    `network`, the backend is congestion-unaware if the file name of the binary contains "unaware"
    (in any case), otherwise congestion-aware. `shares_links` of the result is True for the latter.
    Diagnostics of the result, in this order: one note per loss of the folder, the error
    `lost-event` if ASTRA-sim lost an event, and the error `never-finishes` per unfinished rank.

    Raises `PluginError` (`no-binary`) if no binary is named, it cannot be started, or it does not
    answer like ASTRA-sim. Raises `InputError` if the run fails (`astra-sim-failed`), exceeds the
    option `time_limit_s` (`time-limit`), or needs more open files than the system allows
    (`file-handles`). Raises the errors of `build_folder`, such as `UsageError` for a topology that
    ASTRA-sim cannot simulate.
    """
    binary = find_binary(options.binary)
    is_unaware = "unaware" in Path(binary).name.lower()
    folder_options = AstraFolderOptions(
        network=options.network or (CONGESTION_UNAWARE if is_unaware else CONGESTION_AWARE),
        size=request.collective_bytes,
        dialect="absolute",
        group=None if request.npus is None else ",".join(map(str, request.npus)),
    )
    folder = build_folder(request.algorithm, request.topology, folder_options)
    status, printed = _run_on(folder, binary, options.time_limit_s)
    _check(binary, status, printed, folder)
    finish = tuple(printed.finish_ns.get(npu) for npu in folder.placement.members)
    is_aware = folder_options.network == CONGESTION_AWARE
    diagnostics = tuple(_collect_findings(folder, printed))
    return SimulationResult(finish, diagnostics=diagnostics, shares_links=is_aware)


def _run_on(folder: AstraFolder, binary: str, time_limit_s: float) -> tuple[int, AstraPrinted]:
    """Write a folder to a temporary directory and run the binary in it.

    Returns (exit status, parsed output). Raises as `run`.
    """
    with tempfile.TemporaryDirectory(prefix="collhub-astra-sim-") as name:
        input_folder = Path(name, "input")
        for artifact in folder.artifacts():
            file = input_folder / artifact.name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(artifact.content())
        output = Path(name, "output.log")
        status = run(
            (binary, *arguments(has_groups=folder.placement.is_part)),
            input_folder,
            output,
            time_limit_s=time_limit_s,
            handles=count_file_handles(folder.placement.npus),
        )
        with open(output, encoding="utf-8", errors="replace") as lines:
            return status, parse_output(lines)


def _check(binary: str, status: int, printed: AstraPrinted, folder: AstraFolder) -> None:
    """Raise an error unless a run of ASTRA-sim ended normally and printed results.

    `binary`: path for messages. `printed`: parsed output. `folder`: input of the run. Checked in
    this order:

    1. `status`, the exit status, is not 0: `InputError` (`astra-sim-failed`) with the status, or
       the name of the signal if it is negative, and the last lines of the output. SIGABRT and 128
       plus its number are explained as a failed assertion. The cure is that of the first text of
       `_CURES` in these lines. Without one it is the losses of the folder whose consequence
       contains "aborts", or empty.
    2. The output has the finish time of an NPU that the folder does not have, or has no finish
       time, no unfinished NPU and no lost event: `PluginError` (`no-binary`).

    A run in which some or all ranks did not finish passes, if the output reports them.
    """
    output = " | ".join(printed.tail) or "(it printed nothing)"
    if status != 0:
        cures = [cure for text, cure in _CURES.items() if text in output]
        aborts = [
            f"{loss.feature}: {loss.consequence}"
            for loss in folder.losses
            if "aborts" in loss.consequence
        ]
        ending = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        # A shell between the simulator and its caller converts a signal into 128 plus its number.
        if status in (-signal.SIGABRT, 128 + signal.SIGABRT):
            ending += " (an assertion failed)"
        raise InputError(
            f"ASTRA-sim ended with {ending}: {output}",
            cure=cures[0] if cures else "; ".join(aborts),
            code="astra-sim-failed",
        )
    has_unknown_npus = any(npu >= folder.placement.npus for npu in printed.finish_ns)
    # The exit status is also 0 if no rank finishes, but then the output reports it.
    has_results = printed.finish_ns or printed.unreleased or printed.lost_event
    if has_unknown_npus or not has_results:
        raise PluginError(
            f"{binary} does not answer like ASTRA-sim: {output}",
            cure="name the analytical binary",
            code="no-binary",
        )


def _collect_findings(folder: AstraFolder, printed: AstraPrinted) -> Iterator[Diagnostic]:
    """Yield the findings of a run, in this order:

    1. Each loss of the folder: a note (`loss`).
    2. `printed.lost_event`, that is, ASTRA-sim printed that it dropped an event after an exception:
       one error (`lost-event`).
    3. Each rank, ascending, for whose NPU the output has no finish time: an error
       (`never-finishes`). Its message also says if the simulator reported nodes that were never
       released.
    """
    for loss in folder.losses:
        yield Diagnostic("loss", str(loss), Severity.NOTE)
    if printed.lost_event:
        yield Diagnostic(
            "lost-event",
            "ASTRA-sim lost an event after an exception (a callable is removed before call)",
            cure="the trace breaks the simulator's input contract; "
            "please report it with the algorithm",
        )
    for rank, npu in enumerate(folder.placement.members):
        if npu in printed.finish_ns:
            continue
        # The simulator names a node of the workload, never the stuck node.
        is_reported = npu in printed.unreleased
        detail = ", the simulator reports unreleased nodes" if is_reported else ""
        yield Diagnostic(
            "never-finishes",
            f"rank {rank} never finishes{detail}",
            location=Location(rank=rank),
            cure="the simulator analytical names the step that it waits for",
        )


_CURE = (
    "build the public ASTRA-sim and name its binary: "
    "-O binary=PATH, or the environment variable ASTRA_SIM_BIN"
)


def find_binary(name: str | None) -> str:
    """Return the absolute path of the binary that the user named; links are not resolved.

    `name`: a path with a folder, relative to the current folder, or a name without a
    folder, which is searched only on `PATH`. Raise `PluginError` (`no-binary`) if it is
    None, empty or no executable file.
    """
    if not name:
        message = "the simulator astra-sim runs a binary, and none is named"
        raise PluginError(message, cure=_CURE, code="no-binary")
    # A name without a folder is searched on the path, as in a shell.
    path = os.path.abspath(name) if os.sep in name else name
    executable = shutil.which(path)
    if executable is None:
        message = f"the ASTRA-sim binary {name!r} is not a program that can be run"
        raise PluginError(message, cure=_CURE, code="no-binary")
    return os.path.abspath(executable)


def run(
    command: Sequence[str], folder: Path, output: Path, *, time_limit_s: float, handles: int
) -> int:
    """Run a command in a folder to completion and return its exit status, negative for a signal.

    Standard output and standard error are written to the file `output`. `handles`: number of files
    that the command opens at once. All processes of the command are killed at the end, also after
    an exception. Raises `InputError` if the time limit passes or the system allows fewer open
    files, `PluginError` if the command cannot be started.
    """
    with _raise_file_limit(handles), open(output, "wb") as sink:
        process = _start_process(command, folder, sink)
        try:
            return process.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"ASTRA-sim did not finish within {time_limit_s:g} s",
                cure="raise it with -O time_limit_s=SECONDS",
                code="time-limit",
            ) from None
        finally:
            # The group no longer exists if all its processes have exited.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start_process(
    command: Sequence[str], folder: Path, sink: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a command in its own session, without standard input.

    Raises `PluginError` if the system cannot start it.
    """
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            # A new session, so that its children can be killed, too.
            start_new_session=True,
        )
    except OSError as error:
        message = f"{command[0]} cannot be run: {error.strerror}"
        raise PluginError(message, cure=_CURE, code="no-binary") from None


@contextlib.contextmanager
def _raise_file_limit(needed: int) -> Iterator[None]:
    """Raise the soft limit of open files to `needed` within a block (context manager).

    The old soft limit is restored at the end of the block, also after an exception. Child
    processes started in the block inherit the raised limit. A soft limit that is unlimited or at
    least `needed` is not changed. Raises `InputError` (`file-handles`) if the hard limit is below
    `needed`. Platforms without the module `resource` (Windows) raise `ImportError`.
    """
    # Imported here: Unix only, like the simulator.
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(
            f"ASTRA-sim would open {needed} files at once, the system allows {hard}",
            cure="raise the limit (ulimit -H -n), or simulate with the simulator analytical",
            code="file-handles",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


_FINISHED = re.compile(r"sys\[(\d{1,9})\] finished, (\d{1,19}) cycles")
_UNRELEASED = re.compile(r"!!!Hardware Resource sys\.id=(\d{1,9}) has unreleased nodes!!!")
_LOST_EVENT = "a callable is removed before call"
_KEPT_LINES = 5
_LONGEST_LINE = 300


@dataclass(frozen=True, slots=True)
class AstraPrinted:
    """Contents of the output of a run.

    `finish_ns`: cycles by NPU, for those that finished. `unreleased`: NPUs reported with unreleased
    nodes. `lost_event`: the simulator dropped an event after an exception. `tail`: the last lines
    that are not blank.
    """

    finish_ns: Mapping[int, int]
    unreleased: frozenset[int]
    lost_event: bool
    tail: tuple[str, ...]


def parse_output(lines: Iterable[str]) -> AstraPrinted:
    """Parse the lines that a run of ASTRA-sim printed on standard output and standard error.

    The result has:

    - the finish time in ns by NPU, in order of first appearance; the last time of an NPU counts
    - the set of unreleased NPUs, i.e. those that the output reports with nodes that never started
    - whether a line reports a lost event
    - the last `_KEPT_LINES` lines that are not blank, stripped and cut to `_LONGEST_LINE`
      characters

    Patterns may occur anywhere in a line, because loggers prefix them. Lines without a pattern only
    count for the last item. Without lines, all items are empty or False.
    """
    finish_ns: dict[int, int] = {}
    unreleased = set()
    lost_event = False
    tail: deque[str] = deque(maxlen=_KEPT_LINES)
    for line in lines:
        # Searched instead of matched, because a logger prefixes its lines.
        finished = _FINISHED.search(line)
        stuck = _UNRELEASED.search(line)
        if finished:
            finish_ns[int(finished[1])] = int(finished[2])
        elif stuck:
            unreleased.add(int(stuck[1]))
        lost_event = lost_event or _LOST_EVENT in line
        text = line.strip()
        if text:
            tail.append(text[:_LONGEST_LINE])
    return AstraPrinted(finish_ns, frozenset(unreleased), lost_event, tuple(tail))


_SUBJECT = "ASTRA-sim binary"
_MESSAGE_BYTES = 1 << 20
_TIME_LIMIT_S = 20.0
# One message of 1 MiB at 50 GiB/s and 500 ns takes trunc(500 + 2^20 / (50 * 2^30 / 10^9)) ns, with
# and without congestion; measured with the public release of March 2026.
_KNOWN_TIME_NS = 20031


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check the ASTRA-sim binary that the environment variable `BINARY_VARIABLE` names.

    The variable is read from the environment of the request: a path, or a name that is searched
    on `PATH`. The binary simulates one message of 1 MiB, whose time is known. The check passes if
    both ranks finish exactly at this time. It also passes if the variable is not set or empty,
    because the simulator `analytical` needs no binary. The check fails, without an exception, if
    the binary is missing, fails, exceeds the time limit or gives another time. The report has one
    line: what was found and, if the check fails, a cure. For a `HubError` both are those of its
    first diagnostic.
    """
    del options
    name = request.environment.get(BINARY_VARIABLE)
    if not name:
        details = f"not named ({BINARY_VARIABLE} is not set); the simulator analytical needs none"
        return CheckReport(True, lines=(CheckLine(_SUBJECT, True, details),))
    try:
        binary = find_binary(name)
        times = _simulate_message(binary)
    except HubError as error:
        diagnostic = error.diagnostics[0]
        line = CheckLine(_SUBJECT, False, diagnostic.message, diagnostic.cure)
    else:
        if times == (_KNOWN_TIME_NS, _KNOWN_TIME_NS):
            line = CheckLine(_SUBJECT, True, f"{binary} gives the known time of one message")
        else:
            line = CheckLine(
                _SUBJECT,
                False,
                f"{binary}: one message of 1 MiB took {times} ns, {_KNOWN_TIME_NS} ns are right",
                "build the analytical backend of the public release",
            )
    return CheckReport(line.is_ok, lines=(line,))


def _simulate_message(binary: str) -> tuple[int | None, ...]:
    """Return the finish times in ns of two ranks, the first of which sends 1 MiB to the other.

    `binary`: the program to run. The network has a link of 50 GiB/s and 500 ns in each direction. A
    rank that never finishes has None. Raises the errors of `simulate`; the time limit is
    `_TIME_LIMIT_S`.
    """
    # Imported here, so that listing checks imports neither numpy nor protobuf.
    import numpy as np

    from hub_core import parse_topology
    from hub_core.model import (
        Algorithm,
        Buffer,
        Collective,
        CollectiveKind,
        StepKind,
        StepTableBuilder,
    )

    steps = StepTableBuilder(2)
    steps.add(0, StepKind.SEND, peer=1, src_buffer=Buffer.OUTPUT, count=1)
    steps.add(1, StepKind.RECV, peer=0, dst_buffer=Buffer.OUTPUT, count=1)
    kind = CollectiveKind.BROADCAST
    collective = Collective(kind, 2, 1, root=0, in_place=True, out_of_place=False)
    algorithm = Algorithm(collective, steps.build(), np.zeros(2, np.int64))
    topology = parse_topology("fully-connected:2?bandwidth=50GiB/s&latency=500ns")
    request = SimulationRequest(algorithm, topology, _MESSAGE_BYTES)
    options = AstraBinaryOptions(binary, time_limit_s=_TIME_LIMIT_S)
    return simulate(request, options).rank_finish_ns
