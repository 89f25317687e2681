"""Run a Python program in a separate process with limits, and receive its report."""

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
    InputError,
    Location,
    Severity,
    UsageError,
)
from hub_core.sandbox.confinement import MAX_PROCESSES, EndReason
from hub_core.sandbox.running import Report

# The child must import the same modules as this process, from the same places.
_START = (
    "import sys; sys.path += [place for place in sys.argv[4:] if place not in sys.path]; "
    "from hub_core.sandbox.confinement import main; main(*sys.argv[1:4])"
)
# Seconds for reporting the position of a program, and for stopping all its processes; and seconds
# in which the report must follow the end of the process, because an undetected process may keep its
# pipe open.
_TO_ANSWER_S, _TO_END_S, _TO_REPORT_S = 2, 5, 1
MAX_REPORT_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20
# Environment variables that a program gets: locations of Python and its libraries, and the
# language.
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
    """Limits of a program and all its processes together: CPU seconds and bytes of memory.

    Each process may also use at most `memory_limit_bytes` of address space. `sandbox`: the program
    may not write files, open TCP connections or signal other processes (`landlock`).
    """

    time_limit_s: int
    memory_limit_bytes: int
    sandbox: bool = True


def _get_clock_limit_s(limits: ProcessLimits) -> int:
    """Return the limit of elapsed time in s: other work may keep the host busy."""
    return 2 * limits.time_limit_s + 5


@dataclass(frozen=True, slots=True)
class _ProcessEnd:
    """Output and exit status of a process; a status below 0 is a signal.

    `is_late`: it was stopped at the time limit. `is_too_long`: it was stopped because its report
    exceeds `MAX_REPORT_BYTES`.
    """

    output: bytes
    status: int
    is_late: bool
    is_too_long: bool


class ProgramAnswerError(InputError):
    """The program prints an answer, such as its `--help`, and builds no model.

    Its lines are notes before the error, so that a command that needs a model never succeeds
    because of printed text.
    """


def run_program(
    child: str,
    name: str,
    source: bytes,
    arguments: list[str],
    limits: ProcessLimits,
    program: str | None = None,
) -> Report:
    """Execute the Python program `source` in a process and return the report of this process.

    `child`: `module:function` that the process calls; it must call `run_job`. `name`: file name for
    errors. `arguments`: those of the program. `program`: number or name of one of several programs
    of the file. With `limits.sandbox` the program can read only its folder and Python, if the
    kernel supports it; else it has the user's rights. Raises `UsageError` if a program must be
    chosen, `ProgramAnswerError` if it only prints an answer, and `InputError` if it reports another
    error or ends without a report, for example at a limit of `limits` (`_explain_end`).
    """
    job = {
        "name": name,
        "arguments": arguments,
        "program": program,
        "time_limit_s": limits.time_limit_s,
        "memory_limit_bytes": limits.memory_limit_bytes,
        "sandbox": limits.sandbox,
    }
    # One line of JSON, followed by the program.
    message = json.dumps(job).encode() + b"\n" + source
    end = _run_exchange(_start_process(child, limits), message, _get_clock_limit_s(limits))
    report = _parse_report(end.output)
    if report is None:
        raise _explain_end(name, end, limits)
    if "answer" in report:
        lines = [str(line) for line in report["answer"]]
        notes = [Diagnostic("program-answer", line, Severity.NOTE) for line in lines]
        message_text = "the program printed this and ended; it defines nothing to read"
        error = Diagnostic("program-answer", message_text, location=Location(name))
        raise ProgramAnswerError([*notes, error])
    if "error" in report:
        place = Location(name, report["line"] if report["line"] > 0 else None)
        code = report.get("code", "program-failed")
        if code == "several-programs":
            cure = "choose one: -O program=NUMBER or -O program=NAME"
            raise UsageError(str(report["error"]), location=place, cure=cure, code=code)
        cure = str(report.get("cure", ""))
        raise InputError(str(report["error"]), location=place, cure=cure, code=code)
    return report


def _start_process(child: str, limits: ProcessLimits) -> subprocess.Popen[bytes]:
    """Start a Python process in a new session that reads its job from standard input.

    `child`: `module:function` that runs the job. The environment is `_ENVIRONMENT` and settings for
    UTF-8, hash seed 0 and single-threaded libraries. The import path is that of this process,
    without the working folder, which `python -m` adds, unless that contains the core. Standard
    input and output are pipes; standard error is discarded. The process itself applies the limits
    of memory (bytes) and CPU time (s), which it gets as arguments.
    """
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # Sets are iterated in the same order in every run, and libraries start no threads, which would
    # count against the limits.
    environment |= {
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    arguments = [child, str(limits.memory_limit_bytes), str(limits.time_limit_s)]
    working = os.getcwd()
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # The working folder may contain any files; a checkout may be the working folder itself.
    import_path = [path for path in sys.path if path and (path != working or path == root)]
    command = [sys.executable, "-s", "-P", "-B", "-c", _START, *arguments, *import_path]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        # A separate process group, so that all its processes can be stopped.
        start_new_session=True,
    )


def _run_exchange(
    process: subprocess.Popen[bytes],
    job: bytes,
    clock_limit_s: int,
) -> _ProcessEnd:
    """Send the job to the process, receive its output, and stop it at the time limit.

    After `clock_limit_s` seconds, the process gets SIGXCPU and has 2 s to report its position. If
    its output is too long, it gets no signal. Then, also after an error, all its processes are
    stopped (`_stop_process`), and pending output is received for at most 1 s. Returns the output,
    the exit status (negative for a signal), `is_late` (the process did not end in time, or its
    output was too long), and `is_too_long`.
    """
    exchange = _JobExchange(process, job)
    try:
        is_late = not exchange.run(clock_limit_s)
        if is_late and not exchange.is_too_long:
            # On this signal, the program's process reports its position and exits.
            process.send_signal(signal.SIGXCPU)
            exchange.run(_TO_ANSWER_S)
    finally:
        _stop_process(process)
    # Receives the output so far, which may contain the position of the program.
    exchange.run(_TO_REPORT_S)
    exchange.close()
    is_too_long = exchange.is_too_long
    return _ProcessEnd(exchange.output(), process.returncode, is_late, is_too_long)


class _JobExchange:
    """Sends the job to a process and receives its report, in bounded time and memory."""

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
        """Return the report as received so far."""
        return b"".join(self._chunks)

    def run(self, seconds: float) -> bool:
        """Exchange data until the process has ended and its report is complete, or until the limit.

        `seconds`: limit of elapsed time. The report is complete when the pipe ends, or 1 s after
        the end of the process, since a child process may keep the pipe open. Returns whether the
        process has ended; False if the report is too long. The process is not stopped.
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
        """Close the selector and both pipes of the process.

        Errors, as of a pipe that the process has closed, are ignored. The process is not stopped.
        """
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _transfer(self, pipe: object) -> None:
        """Write to standard input, or read from standard output, at most 1 MiB without waiting.

        `pipe`, one of these two, leaves the selector when the job is written, or at the end of the
        report. Input is then closed, and the rest of a job that the process does not read is
        dropped. A report above `MAX_REPORT_BYTES` is discarded; `is_too_long` is set.
        """
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


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    """Stop the process and all processes that it started, and wait until it has ended.

    If it still runs, it gets SIGTERM and 5 s to stop its processes, also those outside its process
    group. Then its group gets SIGKILL in any case. A group that no longer exists is no error.
    """
    if process.poll() is None:
        # It also knows processes that have left its group.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TO_END_S)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _parse_report(output: bytes) -> Report | None:
    """Parse the output of a process, which must be exactly one JSON object, its report.

    Return None if the output is empty, is no valid JSON, does not begin with `{`, has more
    text than white space after the object, exceeds `MAX_REPORT_BYTES` (256 MiB), or is too deep.
    """
    if not output.startswith(b"{") or len(output) > MAX_REPORT_BYTES:
        return None
    try:
        report = json.loads(output)
    except (ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) else None


def _explain_end(
    name: str,
    end: _ProcessEnd,
    limits: ProcessLimits,
) -> InputError:
    """Create the error for a process that ended without a report. The first code that applies:

    `too-large`: the report is too long (no line). `limit`: status in `_REASONS`, and not late.
    `time-limit`: late, or ended by SIGXCPU, or the output has a traceback line of the program.
    `program-failed`: other ends. The line is that of `_find_dumped_line`. Late: `end.is_late`.
    """
    if end.is_too_long:
        message = f"the program reports more than {MAX_REPORT_BYTES >> 20} MiB"
        return InputError(message, location=Location(name), code="too-large")
    place = Location(name, _find_dumped_line(name, end.output))
    if end.status in _REASONS and not end.is_late:
        message, cure = _REASONS[EndReason(end.status)]
        return InputError(f"the program {message}", location=place, cure=cure, code="limit")
    # A program that survives the first signal is killed; then only its output at the first signal
    # shows the reason.
    if end.is_late or -end.status == signal.SIGXCPU or place.line is not None:
        took = f"{limits.time_limit_s} s of CPU time"
        if end.is_late:
            took = f"{_get_clock_limit_s(limits)} s by the clock"
        message = f"the program did not end within {took}"
        cure = "if it needs longer: -O time_limit=SECONDS"
        return InputError(message, location=place, cure=cure, code="time-limit")
    how = f"signal {-end.status}" if end.status < 0 else f"status {end.status}"
    message = f"the program's process ended by {how} before the program did"
    return InputError(message, location=place, code="program-failed")


def _find_dumped_line(name: str, output: bytes) -> int | None:
    """Return the innermost line of the program in a traceback of `faulthandler`, or None.

    `name`: file of the program. `output`: output of the process. The traceback has the innermost
    frame first, so the first frame in that file counts. The file name may be escaped as
    `faulthandler` does for characters other than ASCII.
    """
    shown = name.encode("ascii", "backslashreplace").decode()
    # `faulthandler` escapes names that are not ASCII.
    for frame in _DUMPED_FRAME.finditer(output.decode(errors="replace")):
        if frame["file"] in (name, shown):
            return int(frame["line"])
    return None
