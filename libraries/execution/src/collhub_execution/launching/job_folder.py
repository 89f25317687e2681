"""A folder by which a launcher and the ranks on its machine exchange tasks, positions, results."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from collhub_execution.data.element_types import Array
from collhub_execution.ranks.engine import NOT_STARTED, RankLog
from collhub_execution.ranks.plans import RankTask, rank_tasks
from collhub_execution.request_levelling import LevelledRequest
from hub_core.model import Float64Array, HubError, InputError, Int64Array, PluginError

# EX_SOFTWARE of sysexits.h.
FAILED = 70

_LIFELINE = "launcher-lives"
_INT64_BYTES = 8


@dataclass(frozen=True, slots=True)
class LoggedTimes:
    """What the ranks measured, arrays over (start or end, run, rank), seconds; records in ns."""

    runs: Float64Array
    native: Float64Array
    records: Int64Array

    @property
    def has_native(self) -> bool:
        """Whether the library's own collective ran, so that its times are measured."""
        if not self.native.size:
            return False
        # Times that were never written are zeros.
        return bool(self.native.all())


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The folder of one execution, readable by its user alone.

    Files: a pickled task a rank; the log of all ranks as arrays that all processes map; OUTPUT of
    every rank as bytes; the reason of the first failure. The launcher holds a lock on one file: it
    is free when the launcher is gone.
    """

    folder: Path

    def write(self, request: LevelledRequest) -> IO[bytes]:
        """Write the tasks and blank logs; return the open lifeline, which must be closed last."""
        # Locked before any rank can look: a free lock means that the launcher is gone.
        lifeline = open(self.folder / _LIFELINE, "wb")  # noqa: SIM115
        fcntl.flock(lifeline, fcntl.LOCK_EX)
        for task in rank_tasks(request):
            pickled = pickle.dumps(task, pickle.HIGHEST_PROTOCOL)
            (self.folder / f"task.{task.plan.rank}").write_bytes(pickled)
        # "w+" creates the files at their full size, filled with zeros.
        ranks, records = request.program.num_ranks, len(request.program)
        self._array("at", (ranks,), np.int64, "w+")[:] = NOT_STARTED
        self._array("times", (2, request.runs, ranks), np.float64, "w+")
        self._array("native", (2, request.repeats, ranks), np.float64, "w+")
        self._array("records", (2, max(records, 1)), np.int64, "w+")[:] = -1
        return lifeline

    def task(self, rank: int) -> RankTask:
        """The task of a rank."""
        # Only this user can write here; nothing of strangers is unpickled.
        task: RankTask = pickle.loads((self.folder / f"task.{rank}").read_bytes())
        return task

    def num_tasks(self) -> int:
        """The number of ranks."""
        return sum(1 for _ in self.folder.glob("task.*"))

    def log(self, task: RankTask) -> RankLog:
        """The part of the logs that belongs to a rank."""
        # Views of arrays of all ranks: whoever maps the same file sees what is written.
        plan = task.plan
        times = self._array("times", (2, task.runs, plan.num_ranks), np.float64)
        native = self._array("native", (2, task.repeats, plan.num_ranks), np.float64)
        at = self._array("at", (plan.num_ranks,), np.int64)
        mine = slice(plan.first_record, plan.first_record + len(plan.kind))
        return RankLog(
            at[plan.rank : plan.rank + 1],
            times[:, :, plan.rank],
            native[:, :, plan.rank],
            self._all_records()[:, mine],
        )

    def _all_records(self) -> Int64Array:
        """Start and end of all records of the program."""
        # A task does not say how many records the program has; the size of the file does.
        size = (self.folder / "records").stat().st_size
        records: Int64Array = self._array("records", (2, size // _INT64_BYTES // 2), np.int64)
        return records

    def positions(self, ranks: int) -> list[int]:
        """Where every rank stands, as in `RankLog.at`."""
        found: list[int] = self._array("at", (ranks,), np.int64).tolist()
        return found

    def times(self, request: LevelledRequest) -> LoggedTimes:
        """What the ranks measured."""
        # The file has room for one record at least.
        ranks, records = request.program.num_ranks, len(request.program)
        return LoggedTimes(
            self._array("times", (2, request.runs, ranks), np.float64),
            self._array("native", (2, request.repeats, ranks), np.float64),
            self._all_records()[:, :records],
        )

    def write_output(self, rank: int, output: Array) -> None:
        """Leave OUTPUT of a rank for the launcher."""
        # Bytes without a header: numpy's own format does not know bfloat16.
        np.ascontiguousarray(output).tofile(self.folder / f"output.{rank}")

    def output(self, rank: int, dtype: np.dtype[Any]) -> Array:
        """OUTPUT of a rank."""
        return np.fromfile(self.folder / f"output.{rank}", dtype)

    def write_failure(self, rank: int, error: BaseException) -> None:
        """Leave the reason of a failure, unless another rank was faster."""
        found = error.diagnostics[0] if isinstance(error, HubError) else None
        failure = {
            "rank": rank,
            "message": found.message if found else f"{type(error).__name__}: {error}",
            "cure": found.cure if found else "",
            "missing": isinstance(error, PluginError),
        }
        path = self.folder / "failure"
        # "x" creates the file or fails: of two ranks that fail at once, one is told.
        with suppress(FileExistsError), open(path, "x", encoding="utf-8") as file:
            json.dump(failure, file)

    def failure(self) -> InputError | PluginError | None:
        """The reason that a rank left, None where there is none.

        `PluginError` for something missing on the machine.
        """
        try:
            found = json.loads((self.folder / "failure").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # Not there, or not yet written to its end.
            return None
        if found["missing"]:
            return PluginError(found["message"], cure=found["cure"])
        message = f"the process of rank {found['rank']} failed: {found['message']}"
        return InputError(message, code="rank-died")

    def end_with_launcher(self) -> None:
        """Let this process end, and the folder go, when the launcher is gone, however it ended."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Wait for the lifeline, then clear up and end."""
        # The system frees the lock of a process that ends, even one that is killed.
        with suppress(OSError), open(self.folder / _LIFELINE, "rb") as lifeline:
            fcntl.flock(lifeline, fcntl.LOCK_SH)
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(FAILED)

    def _array(self, name: str, shape: tuple[int, ...], dtype: Any, mode: Any = "r+") -> Any:
        """A file as an array that all processes share."""
        if 0 in shape:
            # An empty file cannot be mapped.
            return np.zeros(shape, dtype)
        return np.memmap(self.folder / name, dtype, mode, shape=shape)


def serve_rank(job: JobFolder, rank: int, run: Callable[[RankTask, RankLog], Array]) -> None:
    """Run the task of a rank with `run` and leave what came out in the folder.

    An exception is left there and raised again.
    """
    job.end_with_launcher()
    try:
        task = job.task(rank)
        output = run(task, job.log(task))
        job.write_output(rank, output)
    except BaseException as error:
        job.write_failure(rank, error)
        raise
