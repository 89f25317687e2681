"""Run a request by programs that start one process a rank on this machine, and leave no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hub_core.execution.job_folder import Job
from hub_core.execution.memory import flat_size, step_times
from hub_core.execution.rank_engine import NOT_STARTED
from hub_core.execution.stall import positions
from hub_core.model.diagnostics import Diagnostic, InputError, PluginError
from hub_core.plugin_api.executor import ExecutionRequest, ExecutionResult

_POLL_S = 0.02
_STILL_S = 0.2
_GRACE_S = 2.0
_TAIL_LINES = 3


def launch(request: ExecutionRequest, command: Callable[[Path], Sequence[str]]) -> ExecutionResult:
    """Run `command(folder)`, a program that serves every rank of the `Job` in the folder and ends when all ranks have ended.

    Times are from the first rank's start to the last rank's end. Raises `InputError` with the position of every rank when
    one ends early or `timeout_s`, starting included, is over; `PluginError` for what a rank reports as missing, and where
    the program cannot be started.
    """
    flat_size(request)
    with tempfile.TemporaryDirectory(prefix="collhub-job-", ignore_cleanup_errors=True) as name:
        job = Job(Path(name))
        with job.write(request), open(job.folder / "printed", "wb") as printed:
            team = _Team(request, job, command(job.folder), printed.fileno())
            try:
                team.await_end()
            finally:
                team.end()
        return _result(request, job)


def _result(request: ExecutionRequest, job: Job) -> ExecutionResult:
    times, dtype = job.times(request), request.inputs[0].dtype
    spans = (times.runs[1].max(axis=1) - times.runs[0].min(axis=1))[request.warmups :][
        : request.repeats
    ]
    native = times.native[1].max(axis=1) - times.native[0].min(axis=1) if times.has_native else ()
    outputs = tuple(job.output(rank, dtype) for rank in range(request.program.num_ranks))
    steps = step_times(request, *times.records) if request.wants_step_times else (None, None)
    return ExecutionResult(
        outputs,
        tuple(map(float, spans)),
        tuple(map(float, native)),
        step_start_ns=steps[0],
        step_end_ns=steps[1],
    )


class _Team:
    """The program that was started, and what it started: a process group of its own."""

    def __init__(
        self, request: ExecutionRequest, job: Job, command: Sequence[str], printed: int
    ) -> None:
        self._request, self._job = request, job
        self._deadline = time.monotonic() + request.timeout_s
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise PluginError(f"{command[0]} cannot be run: {error.strerror}") from None

    def await_end(self) -> None:
        """Wait for success. Raises `HubError` for anything else."""
        while (status := self._process.poll()) is None:
            if self._job.failure():
                break
            if time.monotonic() > self._deadline:
                raise self._late()
            time.sleep(_POLL_S)
        if status != 0:
            raise self._failed(status)

    def _failed(self, status: int | None) -> InputError | PluginError:
        failure = self._job.failure()
        if isinstance(failure, PluginError):
            return failure
        printed = (self._job.folder / "printed").read_text("utf-8", "replace").strip().splitlines()
        found = f"a rank ended early (status {status}): {' '.join(printed[-_TAIL_LINES:])}".rstrip(
            ": "
        )
        return self._with_positions(
            "rank-died", failure.diagnostics[0].message if failure else found
        )

    def _late(self) -> InputError:
        ranks = self._request.program.num_ranks
        before = self._job.positions(ranks)
        time.sleep(_STILL_S)
        what = f"the ranks have not ended after {self._request.timeout_s:g} s"
        if NOT_STARTED in before:
            waiting = sum(at == NOT_STARTED for at in before)
            what += (
                f"; {waiting} of {ranks} have not begun: starting them takes its time, allow more"
            )
            return self._with_positions("timeout", what)
        return self._with_positions(
            "deadlock" if before == self._job.positions(ranks) else "timeout", what
        )

    def _with_positions(self, code: str, what: str) -> InputError:
        program = self._request.program
        at = [None if record < 0 else record for record in self._job.positions(program.num_ranks)]
        return InputError(
            [Diagnostic(code, what), *positions(self._request.algorithm, program, at)]
        )

    def end(self) -> None:
        """End the whole group: politely first, because a launcher such as mpiexec has ranks in groups of their own."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
