"""The processes of one execution on shared memory, monitored by the process that started them."""

from __future__ import annotations

import time
import warnings
from multiprocessing.context import ForkProcess

import numpy as np
from collhub_execution import LevelledRequest, RankPlans, positions

from collhub_local.rank_process import SharedBoard, run_rank
from hub_core.model import Diagnostic, InputError

_POLL_S = 0.05
_STILL_S = 4 * _POLL_S


class ForkedRanks:
    """One process per rank; the creator must finally call `end`, in any case."""

    def __init__(self, request: LevelledRequest, board: SharedBoard) -> None:
        self._request, self._board = request, board
        self._processes: list[ForkProcess] = []
        self._deadline = time.monotonic() + request.timeout_s

    def start(self, plans: RankPlans) -> None:
        """Fork one process per rank."""
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
        """Wait until every rank has reported.

        Raises `InputError` with all positions if a rank died or the time limit has passed.
        """
        # Checked at least once per call, so that a long sequence of fast runs ends, too.
        self._check_time()
        for _ in self._processes:
            while not self._board.ready.acquire(True, _POLL_S):
                self._check()

    def let_go(self) -> None:
        """Start the next run of all ranks, which must have reported."""
        for go in self._board.go:
            go.release()

    def _check(self) -> None:
        """Raise `InputError` if a rank has exited or the time limit has passed.

        A wait for the report of a rank that has exited would never end.
        """
        dead = []
        for rank, process in enumerate(self._processes):
            if process.exitcode not in (None, 0):
                dead.append(rank)
        if dead:
            raise self._make_error("rank-died", self._describe_end(dead[0]), set(dead))
        self._check_time()

    def _describe_end(self, rank: int) -> str:
        """Describe how the process of a rank exited."""
        failures = self._board.failures
        reason = "" if failures.empty() else f": {failures.get()}"
        status = self._processes[rank].exitcode or 0
        # Negative numbers are signals, see multiprocessing.Process.exitcode.
        manner = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f"the process of rank {rank} ended {manner}{reason}"

    def _check_time(self) -> None:
        """Raise `InputError` after the time limit; as a deadlock if no rank makes progress."""
        if time.monotonic() > self._deadline:
            message = f"the ranks have not ended after {self._request.timeout_s:g} s"
            code = "deadlock" if self._is_still() else "timeout"
            raise self._make_error(code, message, set())

    def _is_still(self) -> bool:
        """Return whether no rank makes progress."""
        before = self._board.at.copy()
        time.sleep(_STILL_S)
        return bool(np.array_equal(before, self._board.at))

    def _make_error(self, code: str, message: str, dead: set[int]) -> InputError:
        """Return the error, with the position of every rank that still waits."""
        at: list[int | None] = []
        for rank, record in enumerate(self._board.at.tolist()):
            is_waiting = record >= 0 and rank not in dead
            at.append(record if is_waiting else None)
        waiting = positions(self._request.algorithm, self._request.program, at)
        return InputError([Diagnostic(code, message), *waiting])

    def end(self) -> None:
        """Kill and remove all processes."""
        # All are killed before the first join, so that none continues.
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        self._processes.clear()
