"""Run a Python program in a process of its own, with limits, and take over what it reports."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass

from collhub_source_programs.running import Report
from hub_core.model import (
    Diagnostic,
    ExitCode,
    HubError,
    InputError,
    Location,
    Severity,
    UsageError,
)

# What the child imports must be what this process has imported, wherever that came from.
_START = (
    "import sys; sys.path += [place for place in sys.argv[2:] if place not in sys.path]; "
    "from collhub_source_programs.supervise import main; main(sys.argv[1])"
)
# Seconds to say where a program is, and to end all that it started.
_TO_ANSWER_S, _TO_END_S = 2, 5
_MOST_REPORT_BYTES = 1 << 30
_DUMPED_FRAME = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+) in ')


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits of the process of a program: CPU seconds, and bytes of address space."""

    time_limit_s: int
    memory_limit_bytes: int


def _clock_limit_s(limits: ProcessLimits) -> int:
    """Seconds by the clock, for programs that wait; other work may keep the machine busy."""
    return 2 * limits.time_limit_s + 5


@dataclass(frozen=True, slots=True)
class _ProcessEnd:
    """Output and exit of a process. `status` below 0: a signal; `is_late`: it had to be stopped."""

    output: bytes
    status: int
    is_late: bool


class ProgramAnswerError(HubError):
    """A program answers a question, such as its `--help`, and makes nothing: its lines as notes."""

    exit_code = ExitCode.DONE


def run_program(
    child: str,
    name: str,
    source: bytes,
    arguments: list[str],
    limits: ProcessLimits,
    program: str | None = None,
) -> Report:
    """Execute the Python program `source` and return what its process reports.

    `child`: `module:function` that the process calls; it calls `run_job` with a language.
    `program`: number or name of the one that is meant where the file defines several. The program
    has the rights of the user: limits keep it from going on for ever, nothing keeps it from harm.
    Raises `InputError` with the program's line where it ends without a report or reports an error,
    `UsageError` where there are several programs to choose from, and `ProgramAnswerError` where it
    only says something.
    """
    job = {
        "name": name,
        "arguments": arguments,
        "program": program,
        "time_limit_s": limits.time_limit_s,
        "memory_limit_bytes": limits.memory_limit_bytes,
    }
    # One line of JSON, then the program as it is.
    message = json.dumps(job).encode() + b"\n" + source
    end = _finished(_started(child), message, _clock_limit_s(limits))
    report = _parsed(end.output)
    if report is None:
        raise _silent_end(name, end, limits)
    if "answer" in report:
        raise ProgramAnswerError(
            [Diagnostic("program-answer", str(line), Severity.NOTE) for line in report["answer"]]
        )
    # The program failed, and its process lived to tell.
    if "error" in report:
        raise _failed(name, report)
    return report


def _failed(name: str, report: Report) -> HubError:
    """The error that a program's process tells of."""
    place = Location(name, report["line"] if report["line"] > 0 else None)
    code = report.get("code", "program-failed")
    if code == "several-programs":
        cure = "choose one: -O program=NUMBER or -O program=NAME"
        return UsageError(str(report["error"]), location=place, cure=cure, code=code)
    cure = str(report.get("cure", ""))
    return InputError(str(report["error"]), location=place, cure=cure, code=code)


def _started(child: str) -> subprocess.Popen[bytes]:
    """A new process that waits for its job on standard input."""
    # Sets are walked in the same order every time, and no library starts threads that count against
    # the limits. All other variables pass through: some interpreters find their libraries by them.
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-s", "-P", "-c", _START, child, *_places()]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        # A process group of its own, so that all that it starts can be ended.
        start_new_session=True,
    )


def _places() -> list[str]:
    """Where this process imports from, but for the working folder if it does not live there.

    `python -m` puts that first, and anything may lie in it.
    """
    # A checkout may be the working folder itself.
    working = os.getcwd()
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return [place for place in sys.path if place and (place != working or place == own)]


def _finished(
    process: subprocess.Popen[bytes],
    job: bytes,
    clock_limit_s: int,
) -> _ProcessEnd:
    """Give the process its job and wait for it, or stop it when it is late."""
    is_late = False
    try:
        try:
            output, _ = process.communicate(job, clock_limit_s)
        except subprocess.TimeoutExpired:
            is_late = True
            output = _stopped(process)
    finally:
        _end(process)
    return _ProcessEnd(output, process.returncode, is_late)


def _stopped(process: subprocess.Popen[bytes]) -> bytes:
    """Output of a process that is stopped now."""
    # The child says where it is when it gets this signal, then ends.
    process.send_signal(signal.SIGXCPU)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_TO_ANSWER_S)
    _end(process)
    # What it wrote so far: perhaps the place where it was.
    output, _ = process.communicate()
    return output


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started."""
    if process.poll() is None:
        # It knows also those that have left its group.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TO_END_S)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _parsed(output: bytes) -> Report | None:
    """The report, or None for anything else that the process may have written."""
    if not output.startswith(b"{") or len(output) > _MOST_REPORT_BYTES:
        return None
    try:
        report = json.loads(output)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def _silent_end(
    name: str,
    end: _ProcessEnd,
    limits: ProcessLimits,
) -> InputError:
    """Error for a process that ended without a report: for its limits, or by itself."""
    place = Location(name, _dumped_line(name, end.output))
    # A program that survives the first signal is killed; then only what it wrote at the first one
    # tells why.
    if end.is_late or -end.status == signal.SIGXCPU or place.line is not None:
        took = f"{limits.time_limit_s} s of CPU time"
        if end.is_late:
            took = f"{_clock_limit_s(limits)} s by the clock"
        message = f"the program did not end within {took}"
        cure = "if it needs longer: -O time_limit=SECONDS"
        return InputError(message, location=place, cure=cure, code="time-limit")
    how = f"signal {-end.status}" if end.status < 0 else f"status {end.status}"
    message = f"the program's process ended by {how} before the program did"
    return InputError(message, location=place, code="program-failed")


def _dumped_line(name: str, output: bytes) -> int | None:
    """The program's line in the traceback that `faulthandler` wrote, innermost frame first."""
    shown = name.encode("ascii", "backslashreplace").decode()
    # Names that are not ASCII are dumped with escapes.
    for frame in _DUMPED_FRAME.finditer(output.decode(errors="replace")):
        if frame["file"] in (name, shown):
            return int(frame["line"])
    return None
