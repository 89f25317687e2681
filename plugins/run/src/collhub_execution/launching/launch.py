"""Run a request by programs that start one process a rank here, and leave no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from collhub_execution.data.memory import step_times
from collhub_execution.launching.job_folder import JobFolder
from collhub_execution.launching.room import crowded_places, no_room
from collhub_execution.ranks.engine import NOT_STARTED
from collhub_execution.rendezvous.positions import positions
from collhub_execution.request_levelling import LevelledRequest
from hub_core.columns import Float64Array
from hub_core.model import Diagnostic, InputError, PluginError
from hub_core.plugin_api import ExecutionResult

_POLL_S = 0.02
_STILL_S = 0.2
_GRACE_S = 2.0
# Launchers say first what is wrong; Python ends its tracebacks with it.
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

    It ends when all ranks have ended. `variables`: of the environment, where the user has set no
    others. `shared_bytes`: what the ranks may take of /dev/shm, named where they end early and it
    is not there. Times are from the first rank's start to the last rank's end.

    Raises `InputError` with the position of every rank when one ends early or `timeout_s`, starting
    included, is over; `PluginError` for what a rank reports as missing, and where the program
    cannot be started; `UsageError` where no folder can be written.
    """
    with _job(request) as job, open(job.folder / "printed", "wb") as printed:
        # What the program itself leaves in TMPDIR goes with the folder.
        environment = {**variables, **os.environ, "TMPDIR": str(job.folder)}
        team = _LaunchedRanks(request, job, command(job.folder), environment, printed.fileno())
        try:
            team.await_end(shared_bytes)
        finally:
            team.end()
        return _result(request, job)


@contextlib.contextmanager
def _job(request: LevelledRequest) -> Iterator[JobFolder]:
    """A folder with the tasks of all ranks. Raises `UsageError` where there is no room for one."""
    place = "TMPDIR"
    with contextlib.ExitStack() as stack:
        try:
            folder = tempfile.TemporaryDirectory(prefix="collhub-job-", ignore_cleanup_errors=True)
            place = stack.enter_context(folder)
            job = JobFolder(Path(place))
            stack.enter_context(job.written(request))
        except OSError as error:
            raise no_room(place, error) from None
        yield job


def _result(request: LevelledRequest, job: JobFolder) -> ExecutionResult:
    """What the ranks left in the folder, warm-ups and the run for step times left out."""
    times = job.times()
    first_timed, end_timed = request.warmups, request.warmups + request.repeats
    timed = _spans(times.runs)[first_timed:end_timed]
    native = _spans(times.native) if times.has_native else []
    starts = ends = None
    if request.wants_step_times:
        starts, ends = step_times(request, *times.records)
    return ExecutionResult(
        outputs=job.outputs(request),
        repeat_times_s=tuple(timed),
        native_times_s=tuple(native),
        step_start_ns=starts,
        step_end_ns=ends,
    )


def _spans(times: Float64Array) -> list[float]:
    """Seconds from the first rank's start to the last rank's end, run by run."""
    starts, ends = times
    spans: list[float] = (ends.max(axis=1) - starts.min(axis=1)).tolist()
    return spans


def _summary(printed: str) -> str:
    """The first lines that a program printed, and the last ones."""
    # Open MPI draws lines around what it says.
    lines = [line.strip() for line in printed.splitlines() if line.strip(" -\t")]
    if len(lines) > _HEAD_LINES + _TAIL_LINES:
        lines[_HEAD_LINES:-_TAIL_LINES] = ["..."]
    return " ".join(lines)


class _LaunchedRanks:
    """The program that was started, and what it started: a process group of its own."""

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
        """Wait for success. Raises `HubError` for anything else; see `launch`."""
        while (status := self._process.poll()) is None:
            if self._job.failure():
                break
            if time.monotonic() > self._deadline:
                raise self._late()
            time.sleep(_POLL_S)
        # Some launchers end as if all were well when ranks were killed.
        if status != 0 or not self._job.have_all_ended():
            raise self._failed(status, shared_bytes)

    def _failed(self, status: int | None, shared_bytes: int) -> InputError | PluginError:
        """Why the program ended: what a rank wrote, else what was printed and what is full."""
        failure = self._job.failure()
        if isinstance(failure, PluginError):
            return failure
        if failure is not None:
            return self._with_positions("rank-died", failure.diagnostics[0].message)
        printed = (self._job.folder / "printed").read_text("utf-8", "replace")
        ended = f"a rank ended early (status {status})" if status else "a rank ended early"
        crowded = crowded_places(shared_bytes)
        what = ": ".join(part for part in (ended, crowded, _summary(printed)) if part)
        cure = "make room there (docker: --shm-size)" if crowded else ""
        return self._with_positions("rank-died", what, cure)

    def _late(self) -> InputError:
        """Time is up: the ranks were never there, stand still, or are just slow."""
        ranks = self._request.program.num_ranks
        before = self._job.positions()
        what = f"the ranks have not ended after {self._request.timeout_s:g} s"
        if NOT_STARTED in before:
            waiting = sum(at == NOT_STARTED for at in before)
            hint = "starting them takes its time, allow more"
            what += f"; {waiting} of {ranks} have not begun: {hint}"
            return self._with_positions("timeout", what)
        time.sleep(_STILL_S)
        is_still = before == self._job.positions()
        return self._with_positions("deadlock" if is_still else "timeout", what)

    def _with_positions(self, code: str, what: str, cure: str = "") -> InputError:
        """`what`, and where every rank stands that waits."""
        program = self._request.program
        at = [None if record < 0 else record for record in self._job.positions()]
        found = positions(self._request.algorithm, program, at)
        return InputError([Diagnostic(code, what, cure=cure), *found])

    def end(self) -> None:
        """End the whole group: politely first, as mpiexec has ranks in groups of their own."""
        # The group outlives its leader where ranks hang, so that it is killed in any case.
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
