"""Run a request with a program that starts one process per rank on this host.

All processes of the program are terminated at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from collhub_execution.job_folder import JobFolder
from collhub_execution.levelling import LevelledRequest
from collhub_execution.memory import step_times
from collhub_execution.rank_engine import NOT_STARTED
from collhub_execution.rendezvous import positions
from hub_core.columns import Float64Array
from hub_core.model import Diagnostic, InputError, PluginError, UsageError, format_bytes
from hub_core.plugin_api import ExecutionResult

_POLL_S = 0.02
_STILL_S = 0.2
_GRACE_S = 2.0
# Launchers print the error first; Python prints it at the end of tracebacks.
_HEAD_LINES = 4
_TAIL_LINES = 2

_NO_VARIABLES: Mapping[str, str] = {}


def launch(
    request: LevelledRequest,
    command: Callable[[Path], Sequence[str]],
    variables: Mapping[str, str] = _NO_VARIABLES,
    shared_bytes: int = 0,
) -> ExecutionResult:
    """Run `command(folder)`, a program that serves every rank of the `JobFolder` in the folder.

    It exits when all ranks have finished. `variables`: of the environment, unless the user has set
    them. `shared_bytes`: maximum use of /dev/shm by the ranks, which is reported if they exit early
    and the space is not available. Times are from the first rank's start to the last rank's end.

    Raises `InputError` with the position of every rank if one exits early or `timeout_s`, including
    the start, has elapsed; `PluginError` for software that a rank reports as missing, or if the
    program cannot be started; `UsageError` if the folder cannot be written.
    """
    with _create_job(request) as job, open(job.folder / "printed", "wb") as printed:
        # Files that the program creates in TMPDIR are removed with the folder.
        environment = {**variables, **os.environ, "TMPDIR": str(job.folder)}
        team = _LaunchedRanks(request, job, command(job.folder), environment, printed.fileno())
        try:
            team.await_end(shared_bytes)
        finally:
            team.end()
        # Build the result from the folder: outputs, and times of the repeats only.
        times = job.times()
        first_timed, end_timed = request.warmups, request.warmups + request.repeats
        repeat_times = _compute_spans(times.runs)[first_timed:end_timed]
        native = _compute_spans(times.native) if times.has_native else []
        starts = ends = None
        if request.wants_step_times:
            starts, ends = step_times(request, *times.records)
        return ExecutionResult(
            outputs=job.outputs(request),
            repeat_times_s=tuple(repeat_times),
            native_times_s=tuple(native),
            step_start_ns=starts,
            step_end_ns=ends,
        )


@contextlib.contextmanager
def _create_job(request: LevelledRequest) -> Iterator[JobFolder]:
    """Create a temporary folder with the tasks of all ranks, and yield it as a job.

    This is a context manager; the folder is removed at the end. Any `OSError` while it is created,
    for example without space, becomes a `UsageError`. Errors of the block are not changed.
    """
    path = "TMPDIR"
    with contextlib.ExitStack() as stack:
        try:
            folder = tempfile.TemporaryDirectory(prefix="collhub-job-", ignore_cleanup_errors=True)
            path = stack.enter_context(folder)
            job = JobFolder(Path(path))
            stack.enter_context(job.written(request))
        except OSError as error:
            raise report_unwritable_folder(path, error) from None
        yield job


def _compute_spans(times: Float64Array) -> list[float]:
    """Return, for every run, the seconds from the first rank's start to the last rank's end.

    `times`: (starts, ends), float64[2, runs, ranks], measured with one clock.
    """
    start_times, finish_times = times
    spans: list[float] = (finish_times.max(axis=1) - start_times.min(axis=1)).tolist()
    return spans


class _LaunchedRanks:
    """The started program and its child processes, in a separate process group."""

    def __init__(
        self,
        request: LevelledRequest,
        job: JobFolder,
        command: Sequence[str],
        environment: Mapping[str, str],
        printed: int,
    ) -> None:
        self._request, self._job = request, job
        self._deadline = time.monotonic() + request.timeout_s
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise PluginError(f"{command[0]} cannot be run: {error.strerror}") from None

    def await_end(self, shared_bytes: int) -> None:
        """Wait until the started program and all ranks have finished successfully.

        Polls every `_POLL_S` seconds. Raises `InputError` or `PluginError` as soon as a rank stores
        a failure, if the program ends with another status than 0 or before all ranks have stored
        their results, or if the time limit passes. The program is not stopped here. `shared_bytes`:
        shared memory that the ranks may need, for the message.
        """
        while (status := self._process.poll()) is None:
            if self._job.failure():
                break
            if time.monotonic() > self._deadline:
                raise self._make_late_error()
            time.sleep(_POLL_S)
        # Some launchers exit successfully when ranks were killed.
        if status != 0 or not self._job.have_all_ended():
            raise self._make_failure(status, shared_bytes)

    def _make_failure(self, status: int | None, shared_bytes: int) -> InputError | PluginError:
        """Return (do not raise) the error of a failed run.

        The first case that applies decides:

        1. A rank stored a `PluginError`: this error.
        2. A rank stored another error: code `rank-died`, with the message of its first diagnostic.
        3. Otherwise: code `rank-died`. The message has the exit `status` unless it is 0 or None,
           file systems with too little space for `shared_bytes`, and the first `_HEAD_LINES` and
           last `_TAIL_LINES` printed lines with text, `...` for those between them.

        An error of case 2 or 3 also has the record for which each rank waits (`_add_positions`).
        """
        failure = self._job.failure()
        if isinstance(failure, PluginError):
            return failure
        if failure is not None:
            return self._add_positions("rank-died", failure.diagnostics[0].message)
        printed = (self._job.folder / "printed").read_text("utf-8", "replace")
        ended = f"a rank ended early (status {status})" if status else "a rank ended early"
        crowded = describe_full_folders(shared_bytes)
        # Open MPI prints horizontal lines around its messages.
        lines = [line.strip() for line in printed.splitlines() if line.strip(" -\t")]
        if len(lines) > _HEAD_LINES + _TAIL_LINES:
            lines[_HEAD_LINES:-_TAIL_LINES] = ["..."]
        message = ": ".join(part for part in (ended, crowded, " ".join(lines)) if part)
        cure = "make room there (docker: --shm-size)" if crowded else ""
        return self._add_positions("rank-died", message, cure)

    def _make_late_error(self) -> InputError:
        """Return (do not raise) the error for a passed time limit: `deadlock` or `timeout`.

        - Some ranks have not started: `timeout`; the message contains their number.
        - All have started, and no rank reaches another record (operation) in the next
          `_STILL_S` seconds, which this call waits: `deadlock`.
        - All have started, and some rank still makes progress: `timeout`.

        The diagnostics of `_add_positions` follow: the record for which each rank waits.
        """
        ranks = self._request.program.num_ranks
        before = self._job.positions()
        message = f"the ranks have not ended after {self._request.timeout_s:g} s"
        if NOT_STARTED in before:
            waiting = sum(at == NOT_STARTED for at in before)
            hint = "starting them takes time, allow more"
            message += f"; {waiting} of {ranks} have not begun: {hint}"
            return self._add_positions("timeout", message)
        time.sleep(_STILL_S)
        is_still = before == self._job.positions()
        return self._add_positions("deadlock" if is_still else "timeout", message)

    def _add_positions(self, code: str, message: str, cure: str = "") -> InputError:
        """Return (do not raise) an `InputError` with a diagnostic and where the ranks wait.

        The first diagnostic has `code`, `message` and `cure`. The other diagnostics name for each
        waiting rank the record for which it waits. At most `_LISTED_RANKS` are listed, and the rest
        is counted.
        """
        program = self._request.program
        at = [None if record < 0 else record for record in self._job.positions()]
        waiting = positions(self._request.algorithm, program, at)
        return InputError([Diagnostic(code, message, cure=cure), *waiting])

    def end(self) -> None:
        """Terminate the program and its process group; return when the program has exited.

        If the program still runs, it first gets SIGTERM and up to `_GRACE_S` seconds to exit,
        because mpiexec starts ranks in other groups, which it has to end itself. Then the
        group gets SIGKILL, also if the program has already exited, because ranks may outlive
        it. A group that no longer exists is no error, so the method may be called twice.
        """
        # The group outlives its leader if ranks hang, so it is killed in any case.
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


# POSIX shared memory on Linux; message libraries are killed by a signal if it is full.
SHARED_MEMORY = Path("/dev/shm")

# For sessions of launchers and files through which ranks find each other.
_TEMPORARY_BYTES = 1 << 20


def report_unwritable_folder(folder: str, error: OSError) -> UsageError:
    """Return the error for a job folder that cannot be written."""
    return UsageError(
        f"the ranks have no folder to meet in: {folder}: {error.strerror}",
        cure="make room there, or set TMPDIR to another folder",
        code="no-space",
    )


def describe_full_folders(shared_bytes: int) -> str:
    """Return a text on file systems with less free space than ranks may need, or "".

    The temporary folder needs `_TEMPORARY_BYTES` (1 MiB), then shared memory `shared_bytes` (0:
    not checked). If both are the same folder, only `shared_bytes` counts. Folders that do not
    exist are skipped. A text has the folder, its free and total space and the requirement. Two
    texts are joined by " and ", in this order. The result is "" if all have enough space.
    """
    required = {Path(tempfile.gettempdir()): _TEMPORARY_BYTES, SHARED_MEMORY: shared_bytes}
    descriptions = []
    for folder, needed in required.items():
        if not needed or not folder.is_dir():
            continue
        total, _, free = shutil.disk_usage(folder)
        if free < needed:
            name = f"{folder} (TMPDIR)" if folder != SHARED_MEMORY else os.fspath(folder)
            available = f"{format_bytes(free)} of {format_bytes(total)} free"
            descriptions.append(
                f"{name} has {available}, but the ranks may need {format_bytes(needed)}"
            )
    return " and ".join(descriptions)
