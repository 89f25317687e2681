"""The executor `shared-memory`: one process per rank on anonymous shared memory.

The processes are monitored by the process that started them.
"""

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
from collhub_execution import (
    NOT_STARTED,
    LevelledRequest,
    RankPlans,
    RecordKind,
    all_outputs,
    execute_levelled,
    fused_reductions,
    positions,
    step_times,
)

from collhub_local.rank_process import RankPair, SharedBoard, run_rank
from hub_core.model import Diagnostic, InputError, PluginError, UsageError
from hub_core.plugin_api import ExecutionRequest, ExecutionResult, NoOptions

_POLL_S = 0.05
_STILL_S = 4 * _POLL_S


class ForkedRanks:
    """One process per rank; the creator must finally call `end`, in any case."""

    def __init__(self, request: LevelledRequest, board: SharedBoard) -> None:
        self._request, self._board = request, board
        self._processes: list[ForkProcess] = []
        self._deadline = time.monotonic() + request.timeout_s

    def start(self, plans: RankPlans) -> None:
        """Fork one daemon process per rank, which waits for `let_go` before every run.

        The processes inherit the request, the plans and the shared memory. They are recorded in
        this object, so that `end` can kill them. The warning of Python 3.12 about forks in
        processes with threads is suppressed.
        """
        with warnings.catch_warnings():
            # Python 3.12 warns about forks in multithreaded processes; the child only computes on
            # arrays and waits for semaphores.
            warnings.simplefilter("ignore", DeprecationWarning)
            for rank in range(self._request.program.num_ranks):
                process = self._board.context.Process(
                    target=run_rank,
                    args=(self._request, plans, self._board, rank),
                    daemon=True,
                    name=f"collhub rank {rank}",
                )
                process.start()
                self._processes.append(process)

    def await_all(self) -> None:
        """Wait until every rank has reported that it is ready for the next run (or has finished).

        Raise `InputError` with the record (operation) for which each rank waits, in two cases:
        the process of a rank has exited with a signal or a status other than 0 (`rank-died`);
        or the time limit of all runs has passed (`deadlock` if no rank makes progress, else
        `timeout`). The limit is also checked before the wait.
        """
        # Checked in every call, so that the limit also stops a long sequence of fast runs.
        self._check_time()
        for _ in self._processes:
            while not self._board.ready.acquire(True, _POLL_S):
                self._check()

    def let_go(self) -> None:
        """Start the next run of all ranks, which must have reported."""
        for go in self._board.go:
            go.release()

    def _check(self) -> None:
        """Raise `InputError` if a rank has failed or the time limit has passed; else do nothing.

        A rank has failed if its process has exited with a signal or a status other than 0. The
        code is then `rank-died`, also if the time limit has passed. The message has the lowest
        such rank, its signal or status, and the first reported exception of any rank, which is
        removed from the queue.

        Otherwise, after the time limit, the code is `deadlock` if no rank's position changes
        within 0.2 s, else `timeout`. After the first finding, one more finding per waiting rank
        gives the record for which it waits. Failed ranks, ranks that have not started and ranks
        that have finished are left out.
        """
        dead = []
        for rank, process in enumerate(self._processes):
            if process.exitcode not in (None, 0):
                dead.append(rank)
        if dead:
            # Describe how the process of a rank exited: signal or status, and its exception if any.
            rank = dead[0]
            failures = self._board.failures
            reason = "" if failures.empty() else f": {failures.get()}"
            status = self._processes[rank].exitcode or 0
            # Negative numbers are signals, see multiprocessing.Process.exitcode.
            manner = f"by signal {-status}" if status < 0 else f"with status {status}"
            raise self._make_error(
                "rank-died", f"the process of rank {rank} ended {manner}{reason}", set(dead)
            )
        self._check_time()

    def _check_time(self) -> None:
        """Raise `InputError` after the time limit: as a deadlock if no rank makes progress.

        The code is `deadlock` if no position of a rank changes while it waits a moment, else
        `timeout`. Before the limit nothing happens.
        """
        if time.monotonic() > self._deadline:
            message = f"the ranks have not ended after {self._request.timeout_s:g} s"
            before = self._board.at.copy()
            time.sleep(_STILL_S)
            code = "deadlock" if bool(np.array_equal(before, self._board.at)) else "timeout"
            raise self._make_error(code, message, set())

    def _make_error(self, code: str, message: str, dead: set[int]) -> InputError:
        """Return (do not raise) an `InputError` with this message, and where each rank waits.

        Ranks in `dead`, ranks that have not started and those that have finished are left out.
        """
        at: list[int | None] = []
        for rank, record in enumerate(self._board.at.tolist()):
            is_waiting = record >= 0 and rank not in dead
            at.append(record if is_waiting else None)
        waiting = positions(self._request.algorithm, self._request.program, at)
        return InputError([Diagnostic(code, message), *waiting])

    def end(self) -> None:
        """Kill all processes, then wait until they have exited; may be called in any state.

        The list of processes is empty afterwards, so that a second call does nothing.
        """
        # All are killed before the first join, so that none continues.
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        self._processes.clear()


Array = npt.NDArray[Any]

_MAX_RANKS = 256
# Each pair of ranks needs two semaphores, each of which needs a mapping of the process; Linux
# allows 65530 mappings (vm.max_map_count).
_MAX_PAIRS = 1 << 14


def execute(request: ExecutionRequest, options: NoOptions) -> ExecutionResult:
    """Run with true concurrency, one process per rank.

    A receiver waits for the sender's post, copies directly from its memory, and acknowledges; a
    sender continues when all its messages are acknowledged. A message that is only reduced is
    reduced directly from the sender's memory, without a copy in scratch.

    No resource has a name: when the processes exit, for any reason, no shared memory and no
    semaphore remains.
    """
    return execute_levelled(request, run_in_processes)


def run_in_processes(request: LevelledRequest) -> ExecutionResult:
    """Run a request (operations of all ranks, by level) with one forked process per rank.

    Runs are `warmups`, then `repeats`, then one more if step times are requested. All ranks start a
    run together, after all have finished the previous one. The result has:

    - `outputs` of the last run.
    - `repeat_times_s`: for each repeat, the time from the first start to the last end of any rank.
    - `step_start_ns`, `step_end_ns`: from the first start of any step in the last run, or None.

    All processes are killed at the end. Raises `InputError` (`rank-died`) if a process fails, and
    for all runs above `timeout_s`: `deadlock` without progress within 0.2 s after it, else
    `timeout`. Raises `PluginError` if no fork is possible. Raises `UsageError` for more than 256
    ranks (`too-many-ranks`) or 2^14 pairs of ranks that exchange messages (`too-many-pairs`).
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        message = "the executor shared-memory needs a system that can fork"
        raise PluginError(message, cure="use the executor numpy")
    num_ranks = request.program.num_ranks
    if num_ranks > _MAX_RANKS:
        message = (
            f"the executor shared-memory runs at most {_MAX_RANKS} ranks, "
            f"this algorithm has {num_ranks}"
        )
        raise UsageError(message, cure="use the executor numpy", code="too-many-ranks")
    board = _create_board(request, multiprocessing.get_context("fork"))
    ranks = ForkedRanks(request, board)
    try:
        # Before the fork, so that the plans of all ranks are created once.
        ranks.start(RankPlans(request.program, request.elements, fused_reductions(request)))
        for _ in range(request.runs):
            ranks.await_all()
            ranks.let_go()
        ranks.await_all()
    finally:
        ranks.end()
    # Build the result from the shared memory and times.
    start_times, finish_times = board.times
    spans = (finish_times.max(axis=1) - start_times.min(axis=1)).tolist()
    step_start = step_end = None
    if request.wants_step_times:
        step_start, step_end = step_times(request, *board.record_times)
    return ExecutionResult(
        outputs=all_outputs(board.memory, request),
        repeat_times_s=tuple(spans[request.warmups : request.warmups + request.repeats]),
        step_start_ns=step_start,
        step_end_ns=step_end,
    )


def _create_board(request: LevelledRequest, context: ForkContext) -> SharedBoard:
    """Create all arrays, semaphores and the queue that the forked processes of the ranks share.

    Every ordered pair (source, destination) with at least one SEND record gets two semaphores, both
    0. There is also one semaphore `go` per rank and one semaphore `ready`, all 0, and an empty
    queue of failures. Arrays:

    - `memory`: zeros, `request.flat_size` elements of the request's dtype
    - `at`: int64[ranks], all `NOT_STARTED`
    - `times`: float64[2, runs, ranks], zeros
    - `record_times`: int64[2, records], -1 if step times are requested, else 0

    `starter` is the id of the calling process. Raises `UsageError` (`too-many-pairs`) for more than
    2^14 ordered pairs, before semaphores are created.
    """
    ranks = request.program.num_ranks
    times = _create_shared(2 * request.runs * ranks, np.float64)
    # Create the rendezvous of every pair of ranks that exchanges messages.
    program = request.program
    # Only pairs that exchange messages: semaphores for all pairs would be too many.
    sends = program.kind == RecordKind.SEND
    rank_pairs = np.stack([program.rank[sends], program.peer[sends]], axis=1)
    pairs = np.unique(rank_pairs, axis=0).tolist()
    if len(pairs) > _MAX_PAIRS:
        message = (
            f"{len(pairs)} pairs of ranks exchange messages, "
            f"the executor shared-memory can serve {_MAX_PAIRS}"
        )
        raise UsageError(message, cure="use the executor numpy", code="too-many-pairs")
    board = SharedBoard(
        memory=_create_shared(request.flat_size, request.dtype),
        at=_create_shared(ranks, np.int64),
        times=times.reshape(2, request.runs, ranks),
        record_times=_create_shared(2 * len(request.program), np.int64).reshape(2, -1),
        pairs={(source, destination): RankPair.at_start(context) for source, destination in pairs},
        ready=context.Semaphore(0),
        go=[context.Semaphore(0) for _ in range(ranks)],
        failures=context.SimpleQueue(),
        context=context,
        starter=os.getpid(),
    )
    board.at.fill(NOT_STARTED)
    if request.wants_step_times:
        board.record_times.fill(-1)
    return board


def _create_shared(elements: int, dtype: npt.DTypeLike) -> Array:
    """Return an array of zeros with `elements` elements in memory that forked processes share.

    It has no name, and is freed when the last process exits. There may be no elements.
    """
    # Anonymous and shared: it needs no name, and is freed when the last process exits.
    kind: np.dtype[Any] = np.dtype(dtype)
    # The system refuses an empty mapping.
    mapping = mmap.mmap(-1, max(1, elements * kind.itemsize))
    return np.frombuffer(mapping, kind, elements)
