"""Run a Python program in a process of its own, with limits, and take over what it reports."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from hub_core.model import (
    Diagnostic,
    HubError,
    InputError,
    Location,
    Severity,
    UsageError,
)
from hub_core.sandbox.running import Report
from hub_core.sandbox.supervise import MAX_PROCESSES, EndReason

# What the child imports must be what this process has imported, wherever that came from.
_START = (
    "import sys; sys.path += [place for place in sys.argv[4:] if place not in sys.path]; "
    "from hub_core.sandbox.supervise import main; main(*sys.argv[1:4])"
)
# Seconds to say where a program is, and to end all that it started; and seconds in which the
# report must follow the end of the process, although a process that was missed may hold its pipe.
_TO_ANSWER_S, _TO_END_S, _TO_REPORT_S = 2, 5, 1
MAX_REPORT_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20
# All that a program sees of the environment: where Python and its libraries are, and the language.
_ENVIRONMENT = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "SYSTEMROOT"),
    *("LANG", "LC_ALL", "LC_CTYPE", "TZ"),
)
_POLL_S = 0.05
_REASONS = {
    EndReason.TIME: (
        "and the processes that it started took more CPU time than the limit",
        "if it needs more: -O time_limit=SECONDS",
    ),
    EndReason.MEMORY: (
        "and the processes that it started took more memory than the limit",
        "if it needs more: -O memory_limit=SIZE",
    ),
    EndReason.PROCESSES: (f"started more than {MAX_PROCESSES} processes", "start fewer"),
}
_DUMPED_FRAME = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+) in ')


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits of a program with all processes that it starts: CPU seconds and bytes of memory.

    Each process may also have `memory_limit_bytes` of address space. `sandbox`: the program may
    write no files, open no TCP connections and signal no other processes (`landlock`).
    """

    time_limit_s: int
    memory_limit_bytes: int
    sandbox: bool = True


def _clock_limit_s(limits: ProcessLimits) -> int:
    """Seconds by the clock, for programs that wait; other work may keep the machine busy."""
    return 2 * limits.time_limit_s + 5


@dataclass(frozen=True, slots=True)
class _ProcessEnd:
    """Output and exit of a process. `status` below 0: a signal; `is_late`: it had to be stopped.

    `is_too_long`: it was stopped because its report exceeds `MAX_REPORT_BYTES`.
    """

    output: bytes
    status: int
    is_late: bool
    is_too_long: bool


class ProgramAnswerError(InputError):
    """A program prints an answer, such as its `--help`, and builds no model.

    Its lines are notes before the error, so that a command that needs a model never succeeds by
    what a program prints.
    """


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
    `program`: number or name of the one that is meant where the file defines several. With
    `limits.sandbox` the program can read what Python reads, the folder of the program and nothing
    else, as far as the kernel supports it; without, it has the rights of the user.
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
        "sandbox": limits.sandbox,
    }
    # One line of JSON, then the program as it is.
    message = json.dumps(job).encode() + b"\n" + source
    end = _finished(_started(child, limits), message, _clock_limit_s(limits))
    report = _parsed(end.output)
    if report is None:
        raise _silent_end(name, end, limits)
    if "answer" in report:
        lines = [str(line) for line in report["answer"]]
        notes = [Diagnostic("program-answer", line, Severity.NOTE) for line in lines]
        why = "the program printed this and ended; it defines nothing to read"
        error = Diagnostic("program-answer", why, location=Location(name))
        raise ProgramAnswerError([*notes, error])
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


def _started(child: str, limits: ProcessLimits) -> subprocess.Popen[bytes]:
    """A new process that waits for its job on standard input."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # Sets are walked in the same order every time, and no library starts threads that count against
    # the limits.
    environment |= {
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    given = [child, str(limits.memory_limit_bytes), str(limits.time_limit_s)]
    command = [sys.executable, "-s", "-P", "-B", "-c", _START, *given, *_places()]
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
    """Give the process its job, take its report, and stop the process if it is late."""
    exchange = _Exchange(process, job)
    try:
        is_late = not exchange.run(clock_limit_s)
        if is_late and not exchange.is_too_long:
            # The program's process tells where it is when it gets this signal, then ends.
            process.send_signal(signal.SIGXCPU)
            exchange.run(_TO_ANSWER_S)
    finally:
        _end(process)
    # What it wrote so far: perhaps the place where it was.
    exchange.run(_TO_REPORT_S)
    exchange.close()
    is_too_long = exchange.is_too_long
    return _ProcessEnd(exchange.output(), process.returncode, is_late, is_too_long)


class _Exchange:
    """Writes the job to a process and reads its report, in bounded time and memory."""

    def __init__(self, process: subprocess.Popen[bytes], job: bytes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._job = memoryview(job)
        self._chunks: list[bytes] = []
        self._length = 0
        self.is_too_long = False
        self._selector = selectors.DefaultSelector()
        for pipe, event in (
            (process.stdin, selectors.EVENT_WRITE),
            (process.stdout, selectors.EVENT_READ),
        ):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, event)

    def output(self) -> bytes:
        """The report as far as it has been read."""
        return b"".join(self._chunks)

    def run(self, seconds: float) -> bool:
        """Exchange data until the process has ended and its report is complete, or time is over.

        The report is complete at its end, or a second after the end of the process. Returns
        whether it is; False also if it is too long.
        """
        deadline = time.monotonic() + seconds
        while self._selector.get_map() and not self.is_too_long:
            is_over = self._process.poll() is not None
            if is_over:
                deadline = min(deadline, time.monotonic() + _TO_REPORT_S)
            left = deadline - time.monotonic()
            ready = self._selector.select(max(0.0, min(left, _POLL_S)))
            for key, _ in ready:
                self._transfer(key.fileobj)
            if left <= 0 and not ready:
                return is_over
        if self.is_too_long:
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        return self._process.returncode is not None

    def close(self) -> None:
        """Close the pipes."""
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _transfer(self, pipe: object) -> None:
        """Write or read what the pipe takes or has now."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if pipe is process.stdin:
            try:
                written = os.write(process.stdin.fileno(), self._job[:_CHUNK_BYTES])
            except BlockingIOError:
                return
            except OSError:
                # The process has closed its input.
                written = len(self._job)
            self._job = self._job[written:]
            if not self._job:
                self._selector.unregister(process.stdin)
                with contextlib.suppress(OSError):
                    process.stdin.close()
            return
        try:
            chunk = os.read(process.stdout.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self._selector.unregister(process.stdout)
            return
        self._chunks.append(chunk)
        self._length += len(chunk)
        self.is_too_long = self._length > MAX_REPORT_BYTES
        if self.is_too_long:
            self._chunks.clear()


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
    if not output.startswith(b"{") or len(output) > MAX_REPORT_BYTES:
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
    if end.is_too_long:
        message = f"the program reports more than {MAX_REPORT_BYTES >> 20} MiB"
        return InputError(message, location=Location(name), code="too-large")
    place = Location(name, _dumped_line(name, end.output))
    if end.status in _REASONS and not end.is_late:
        message, cure = _REASONS[EndReason(end.status)]
        return InputError(f"the program {message}", location=place, cure=cure, code="limit")
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
