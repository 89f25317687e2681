"""The processes of one execution on shared memory, watched by the one that started them."""

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
    """One process a rank; whoever makes it calls `end` at last, whatever happens."""

    def __init__(self, request: LevelledRequest, board: SharedBoard) -> None:
        self._request, self._board = request, board
        self._processes: list[ForkProcess] = []
        self._deadline = time.monotonic() + request.timeout_s

    def start(self, plans: RankPlans) -> None:
        """Fork one process a rank."""
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads; the child only computes on arrays and waits
            # for semaphores.
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

        Raises `InputError` with all positions when one died or time is up.
        """
        # Once a round even if all are fast, so that runs that go on and on end too.
        self._check_time()
        for _ in self._processes:
            while not self._board.ready.acquire(True, _POLL_S):
                self._check()

    def let_go(self) -> None:
        """Let all ranks run, which have reported."""
        for go in self._board.go:
            go.release()

    def _check(self) -> None:
        """Look for ranks that ended, which a wait alone would never see."""
        dead = []
        for rank, process in enumerate(self._processes):
            if process.exitcode not in (None, 0):
                dead.append(rank)
        if dead:
            raise self._stopped("rank-died", self._end_of(dead[0]), set(dead))
        self._check_time()

    def _end_of(self, rank: int) -> str:
        """How the process of a rank ended, in words."""
        failures = self._board.failures
        reason = "" if failures.empty() else f": {failures.get()}"
        status = self._processes[rank].exitcode or 0
        # Negative numbers are signals, see multiprocessing.Process.exitcode.
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f"the process of rank {rank} ended {how}{reason}"

    def _check_time(self) -> None:
        """Raise where time is up, as a deadlock where nobody moves any more."""
        if time.monotonic() > self._deadline:
            what = f"the ranks have not ended after {self._request.timeout_s:g} s"
            code = "deadlock" if self._is_still() else "timeout"
            raise self._stopped(code, what, set())

    def _is_still(self) -> bool:
        """Whether no rank moves any more."""
        before = self._board.at.copy()
        time.sleep(_STILL_S)
        return bool(np.array_equal(before, self._board.at))

    def _stopped(self, code: str, what: str, dead: set[int]) -> InputError:
        """The error, with the position of every rank that still waits."""
        at: list[int | None] = []
        for rank, record in enumerate(self._board.at.tolist()):
            is_waiting = record >= 0 and rank not in dead
            at.append(record if is_waiting else None)
        found = positions(self._request.algorithm, self._request.program, at)
        return InputError([Diagnostic(code, what), *found])

    def end(self) -> None:
        """Leave no process behind."""
        # All are killed before one is waited for: none may go on alone.
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        self._processes.clear()
