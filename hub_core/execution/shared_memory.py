"""The executor `shared-memory`: one process a rank on anonymous shared memory, with semaphores for the rendezvous."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
import warnings
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.execution.memory import flat_size, output_of, step_times
from hub_core.execution.program import RecordKind
from hub_core.execution.rank_process import Board, Pair, run_rank
from hub_core.execution.stall import positions
from hub_core.model.diagnostics import Diagnostic, InputError, PluginError, UsageError
from hub_core.plugin_api.contract import Options
from hub_core.plugin_api.executor import ExecutionRequest, ExecutionResult

Array = npt.NDArray[Any]

_MAX_RANKS = 256
# Each pair of ranks takes two semaphores, and each of these a mapping of the process, of which Linux allows 65530.
_MAX_PAIRS = 1 << 14
_POLL_S = 0.05


def execute(request: ExecutionRequest, options: Options) -> ExecutionResult:
    """Run the program with true concurrency: a receiver waits for the sender's post, copies straight out of its memory, and
    acknowledges; a sender goes on when all its messages are acknowledged. What a message is only reduced with is reduced on
    the way, without a copy in scratch.

    Nothing has a name: when the processes end, however they end, no shared memory and no semaphore is left.
    """
    context = _context(request)
    board = _board(request, context)
    runs = request.warmups + request.repeats + int(request.wants_step_times)
    team = _Team(request, board, context)
    try:
        team.start(runs)
        for _ in range(runs):
            team.await_all()
            for go in board.go:
                go.release()
        team.await_all()
    finally:
        team.end()
    times = board.ends.max(axis=1) - board.starts.min(axis=1)
    timed = tuple(times[request.warmups : request.warmups + request.repeats].tolist())
    outputs = tuple(
        output_of(board.memory, request, rank) for rank in range(request.program.num_ranks)
    )
    steps = step_times(request, *board.record_times) if request.wants_step_times else (None, None)
    return ExecutionResult(outputs, timed, step_start_ns=steps[0], step_end_ns=steps[1])


def _context(request: ExecutionRequest) -> ForkContext:
    if "fork" not in multiprocessing.get_all_start_methods():
        raise PluginError(
            "the executor shared-memory needs a system that can fork", cure="use the executor numpy"
        )
    if request.program.num_ranks > _MAX_RANKS:
        message = f"the executor shared-memory runs at most {_MAX_RANKS} ranks, this algorithm has {request.program.num_ranks}"
        raise UsageError(message, cure="use the executor numpy", code="too-many-ranks")
    return multiprocessing.get_context("fork")


def _board(request: ExecutionRequest, context: ForkContext) -> Board:
    """What all processes share."""
    program, runs = (
        request.program,
        request.warmups + request.repeats + int(request.wants_step_times),
    )
    sends = program.kind == RecordKind.SEND
    ends = np.unique(np.stack([program.rank[sends], program.peer[sends]], axis=1), axis=0).tolist()
    if len(ends) > _MAX_PAIRS:
        message = f"{len(ends)} pairs of ranks exchange messages, the executor shared-memory can serve {_MAX_PAIRS}"
        raise UsageError(message, cure="use the executor numpy", code="too-many-pairs")
    ranks = program.num_ranks
    return Board(
        memory=_shared(flat_size(request), request.inputs[0].dtype),
        at=_shared(ranks, np.dtype(np.int64)),
        starts=_shared(runs * ranks, np.dtype(np.float64)).reshape(runs, ranks),
        ends=_shared(runs * ranks, np.dtype(np.float64)).reshape(runs, ranks),
        record_times=_untimed(len(program) if request.wants_step_times else 0),
        pairs={
            (source, destination): Pair(context.Semaphore(0), context.Semaphore(0))
            for source, destination in ends
        },
        ready=context.Semaphore(0),
        go=[context.Semaphore(0) for _ in range(ranks)],
        failures=context.SimpleQueue(),
        starter=os.getpid(),
    )


def _untimed(records: int) -> Array:
    times = _shared(2 * records, np.dtype(np.int64)).reshape(2, -1)
    times.fill(-1)
    return times


def _shared(elements: int, dtype: np.dtype[Any]) -> Array:
    """Zeros in memory that forked processes share."""
    return np.frombuffer(mmap.mmap(-1, max(1, elements * dtype.itemsize)), dtype, elements)


class _Team:
    """The processes of one execution, watched by the one that started them."""

    def __init__(self, request: ExecutionRequest, board: Board, context: ForkContext) -> None:
        self._request, self._board, self._context = request, board, context
        self._processes: list[ForkProcess] = []
        self._deadline = time.monotonic() + request.timeout_s

    def start(self, runs: int) -> None:
        """Fork one process a rank."""
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads; the child only computes on arrays and waits for semaphores.
            warnings.simplefilter("ignore", DeprecationWarning)
            for rank in range(self._request.program.num_ranks):
                arguments = (self._request, self._board, rank, runs)
                process = self._context.Process(
                    target=run_rank, args=arguments, daemon=True, name=f"collhub rank {rank}"
                )
                process.start()
                self._processes.append(process)

    def await_all(self) -> None:
        """Wait until every rank has reported. Raises `InputError` with all positions when one died or time is up."""
        self._check_time()
        for _ in self._processes:
            while not self._board.ready.acquire(True, _POLL_S):
                self._check()

    def _check(self) -> None:
        dead = [
            rank
            for rank, process in enumerate(self._processes)
            if process.exitcode not in (None, 0)
        ]
        if dead:
            failure = "" if self._board.failures.empty() else f": {self._board.failures.get()}"
            status = self._processes[dead[0]].exitcode or 0
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            what = f"the process of rank {dead[0]} ended {how}{failure}"
            raise self._stopped("rank-died", what, set(dead))
        self._check_time()

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            what = f"the ranks have not ended after {self._request.timeout_s:g} s"
            raise self._stopped("deadlock" if self._is_still() else "timeout", what, set())

    def _is_still(self) -> bool:
        """Whether no rank moves any more."""
        before = self._board.at.copy()
        time.sleep(4 * _POLL_S)
        return bool(np.array_equal(before, self._board.at))

    def _stopped(self, code: str, what: str, dead: set[int]) -> InputError:
        at = [
            None if record < 0 or rank in dead else record
            for rank, record in enumerate(self._board.at.tolist())
        ]
        return InputError(
            [Diagnostic(code, what), *positions(self._request.algorithm, self._request.program, at)]
        )

    def end(self) -> None:
        """Leave no process behind."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        self._processes.clear()
