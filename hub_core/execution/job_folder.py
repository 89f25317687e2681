"""A folder by which a launcher and the ranks on its machine exchange tasks, positions, times and outputs."""

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
import numpy.typing as npt

from hub_core.execution.rank_engine import NOT_STARTED, RankLog
from hub_core.execution.rank_tasks import RankTask, rank_tasks
from hub_core.model.diagnostics import HubError, InputError, PluginError
from hub_core.plugin_api.executor import ExecutionRequest

Array = npt.NDArray[Any]

FAILED = 70

_LIFELINE = "launcher-lives"


@dataclass(frozen=True, slots=True)
class Times:
    """What the ranks measured, arrays over (start or end, run, rank), and whether the library's own collective ran."""

    runs: npt.NDArray[np.float64]
    native: npt.NDArray[np.float64]
    records: npt.NDArray[np.int64]

    @property
    def has_native(self) -> bool:
        """Whether the native times are measured."""
        return bool(self.native.size) and bool(self.native.all())


@dataclass(frozen=True, slots=True)
class Job:
    """The folder of one execution, readable by its user alone.

    Files: a pickled task a rank; the log of all ranks as arrays that all processes map; OUTPUT of every rank as bytes;
    the reason of the first failure. The launcher holds a lock on one file: it is free when the launcher is gone.
    """

    folder: Path

    def write(self, request: ExecutionRequest) -> IO[bytes]:
        """Write the tasks and blank logs; return the open lifeline, which must be closed last."""
        lifeline = open(self.folder / _LIFELINE, "wb")  # noqa: SIM115
        fcntl.flock(lifeline, fcntl.LOCK_EX)
        for task in rank_tasks(request):
            (self.folder / f"task.{task.plan.rank}").write_bytes(
                pickle.dumps(task, pickle.HIGHEST_PROTOCOL)
            )
        ranks, records = request.program.num_ranks, len(request.program)
        runs = request.warmups + request.repeats + int(request.wants_step_times)
        self._array("at", (ranks,), np.int64, "w+")[:] = NOT_STARTED
        self._array("times", (2, runs, ranks), np.float64, "w+")
        self._array("native", (2, request.repeats, ranks), np.float64, "w+")
        self._array("records", (2, max(records, 1)), np.int64, "w+")[:] = -1
        return lifeline

    def task(self, rank: int) -> RankTask:
        """The task of a rank."""
        task: RankTask = pickle.loads((self.folder / f"task.{rank}").read_bytes())
        return task

    def log(self, task: RankTask) -> RankLog:
        """The part of the logs that belongs to a rank."""
        rank, ranks, first = task.plan.rank, task.plan.num_ranks, task.plan.first_record
        times = self._array("times", (2, task.runs, ranks), np.float64)
        native = self._array("native", (2, task.repeats, ranks), np.float64)
        size = (self.folder / "records").stat().st_size // 16
        records = self._array("records", (2, size), np.int64)
        at = self._array("at", (ranks,), np.int64)
        mine = slice(first, first + len(task.plan.kind))
        return RankLog(at[rank : rank + 1], times[:, :, rank], native[:, :, rank], records[:, mine])

    def positions(self, ranks: int) -> list[int]:
        """Where every rank stands, as in `RankLog.at`."""
        found: list[int] = self._array("at", (ranks,), np.int64).tolist()
        return found

    def times(self, request: ExecutionRequest) -> Times:
        """What the ranks measured."""
        ranks, records = request.program.num_ranks, len(request.program)
        runs = request.warmups + request.repeats + int(request.wants_step_times)
        return Times(
            self._array("times", (2, runs, ranks), np.float64),
            self._array("native", (2, request.repeats, ranks), np.float64),
            self._array("records", (2, max(records, 1)), np.int64)[:, :records],
        )

    def write_output(self, rank: int, output: Array) -> None:
        """Leave OUTPUT of a rank for the launcher."""
        np.ascontiguousarray(output).tofile(self.folder / f"output.{rank}")

    def output(self, rank: int, dtype: np.dtype[Any]) -> Array:
        """OUTPUT of a rank."""
        return np.fromfile(self.folder / f"output.{rank}", dtype)

    def write_failure(self, rank: int, error: BaseException) -> None:
        """Leave the reason of a failure, unless another rank was faster."""
        with (
            suppress(FileExistsError),
            open(self.folder / "failure", "x", encoding="utf-8") as file,
        ):
            is_missing = isinstance(error, PluginError)
            found = error.diagnostics[0] if isinstance(error, HubError) else None
            message = found.message if found else f"{type(error).__name__}: {error}"
            json.dump(
                {
                    "rank": rank,
                    "message": message,
                    "cure": found.cure if found else "",
                    "missing": is_missing,
                },
                file,
            )

    def failure(self) -> InputError | PluginError | None:
        """The reason that a rank left, None where there is none: `PluginError` for something missing on the machine."""
        try:
            found = json.loads((self.folder / "failure").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if found["missing"]:
            return PluginError(found["message"], cure=found["cure"])
        return InputError(
            f"the process of rank {found['rank']} failed: {found['message']}", code="rank-died"
        )

    def end_with_launcher(self) -> None:
        """Let this process end, and the folder go, as soon as the launcher is gone, whatever happened to it."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        with suppress(OSError), open(self.folder / _LIFELINE, "rb") as lifeline:
            fcntl.flock(lifeline, fcntl.LOCK_SH)
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(FAILED)

    def _array(self, name: str, shape: tuple[int, ...], dtype: Any, mode: Any = "r+") -> Any:
        # An empty file cannot be mapped.
        if 0 in shape:
            return np.zeros(shape, dtype)
        return np.memmap(self.folder / name, dtype, mode, shape=shape)


def serve_rank(job: Job, rank: int, run: Callable[[RankTask, RankLog], Array]) -> None:
    """Run the task of a rank with `run` and leave what came out in the folder. An exception is left there and raised again."""
    job.end_with_launcher()
    try:
        task = job.task(rank)
        job.write_output(rank, run(task, job.log(task)))
    except BaseException as error:
        job.write_failure(rank, error)
        raise
