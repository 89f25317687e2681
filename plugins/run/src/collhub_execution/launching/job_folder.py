"""A folder by which a launcher and the ranks on its machine exchange tasks, positions, results."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from collhub_execution.data.element_types import Array
from collhub_execution.data.memory import all_outputs
from collhub_execution.launching.job_memory import JobMemory, Shapes
from collhub_execution.ranks.engine import NOT_STARTED, RankLog
from collhub_execution.ranks.plans import RankTask, rank_tasks
from collhub_execution.request_levelling import LevelledRequest
from hub_core.columns import Float64Array, Int64Array
from hub_core.model import HubError, InputError, PluginError

# EX_SOFTWARE of sysexits.h.
FAILED = 70

_LIFELINE = "launcher-lives"
_MOST_TRIES = 5
# A cache line of int64: ranks that write their positions must not wait for each other's cores.
_LINE = 8


@dataclass(frozen=True, slots=True)
class LoggedTimes:
    """What the ranks measured.

    `runs`, `native`: float64[2, runs, ranks], start and end in seconds on one clock; `native` stays
    0 where the library has no collective of its own. `records`: int64 in nanoseconds, -1 for what
    was not timed.
    """

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

    Files: a pickled task a rank; the reason of the first failure. Inputs, buffers and logs of all
    ranks are shared memory to which the folder leads. The launcher holds a lock on one file: it is
    free when the launcher is gone.
    """

    folder: Path

    @contextmanager
    def written(self, request: LevelledRequest) -> Iterator[None]:
        """Write the tasks, inputs and blank logs, which others find as long as the block lasts.

        Raises `OSError` where there is no room for the tasks.
        """
        # Locked before any rank can look: a free lock means that the launcher is gone.
        with open(self.folder / _LIFELINE, "wb") as lifeline:
            fcntl.flock(lifeline, fcntl.LOCK_EX)
            with JobMemory(self.folder).created(_shapes(request)):
                self._write_tasks(request)
                yield

    def _write_tasks(self, request: LevelledRequest) -> None:
        """Write what every rank does, and what it starts with."""
        arrays = self._arrays()
        arrays["at"][:] = NOT_STARTED
        arrays["records"][:] = -1
        start = 0
        for task in rank_tasks(request):
            rank, given = task.plan.rank, task.input
            inputs = slice(start, start + len(given))
            arrays["inputs"][inputs] = given
            first = request.program.rank_memory(rank).start * request.elements
            memory = slice(first, first + task.plan.memory_size)
            places = _TaskPlaces(replace(task, input=given[:0]), inputs, memory)
            pickled = pickle.dumps(places, pickle.HIGHEST_PROTOCOL)
            (self.folder / f"task.{rank}").write_bytes(pickled)
            start = inputs.stop

    def part(self, rank: int) -> RankPart:
        """What a rank needs: its task, and its parts of what all share."""
        # Only this user can write here; nothing of strangers is unpickled.
        places: _TaskPlaces = pickle.loads((self.folder / f"task.{rank}").read_bytes())
        arrays = self._arrays()
        plan = places.task.plan
        log = RankLog(
            arrays["at"][rank, :1],
            arrays["times"][:, :, rank],
            arrays["native"][:, :, rank],
            arrays["records"][:, plan.first_record : plan.first_record + len(plan.kind)],
        )
        task = replace(places.task, input=arrays["inputs"][places.inputs])
        return RankPart(task, log, arrays["memory"][places.memory], arrays["ended"][rank:])

    def _arrays(self) -> dict[str, Array]:
        """The shared arrays of the job by name, opened anew by every call."""
        return JobMemory(self.folder).arrays()

    def num_tasks(self) -> int:
        """The number of ranks."""
        return sum(1 for _ in self.folder.glob("task.*"))

    def positions(self) -> list[int]:
        """Where every rank stands, as in `RankLog.at`."""
        # Ranks write it themselves, so that it is there after a kill.
        found: list[int] = self._arrays()["at"][:, 0].tolist()
        return found

    def have_all_ended(self) -> bool:
        """Whether every rank has left its OUTPUT."""
        return bool(self._arrays()["ended"].all())

    def times(self) -> LoggedTimes:
        """What the ranks measured."""
        arrays = self._arrays()
        return LoggedTimes(arrays["times"], arrays["native"], arrays["records"])

    def outputs(self, request: LevelledRequest) -> tuple[Array, ...]:
        """OUTPUT of all ranks, where they left it."""
        # Views: a large run would not fit into memory twice.
        return all_outputs(self._arrays()["memory"], request)

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
        """Let this process end, and the folder go, when the launcher is gone, however it ended.

        Where it is gone already, this does not return.
        """
        # Not left to the thread: this one would go on and find nothing of what it needs.
        self._end_if_free(fcntl.LOCK_SH | fcntl.LOCK_NB)
        threading.Thread(target=self._end_if_free, args=(fcntl.LOCK_SH,), daemon=True).start()

    def _end_if_free(self, how: int) -> None:
        """Lock the lifeline, and end unless the launcher holds it; `how`: whether to wait."""
        # The system frees the lock of a process that ends, even one that is killed.
        try:
            with open(self.folder / _LIFELINE, "rb") as lifeline:
                fcntl.flock(lifeline, how)
        except BlockingIOError:
            return
        except OSError:
            # Another rank has removed it.
            pass
        self._remove()
        os._exit(FAILED)

    def _remove(self) -> None:
        """Remove the folder, to which launchers may still write."""
        for _ in range(_MOST_TRIES):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return


@dataclass(frozen=True, slots=True)
class RankPart:
    """What belongs to a rank: its task and its log, and the memory of its buffers, which is shared.

    `ended`: int64, the first of which becomes 1 when OUTPUT is there.
    """

    task: RankTask
    log: RankLog
    memory: Array
    ended: Int64Array

    def leave(self, output: Array) -> None:
        """Put OUTPUT where the launcher finds it."""
        plan = self.task.plan
        place = self.memory[plan.output_start : plan.output_start + plan.output_size]
        # Most executors compute in place.
        if not np.shares_memory(place, output):
            place[:] = output
        self.ended[0] = 1


@dataclass(frozen=True, slots=True)
class _TaskPlaces:
    """A task without its input, and where in the shared arrays its data are."""

    task: RankTask
    inputs: slice
    memory: slice


def _shapes(request: LevelledRequest) -> Shapes:
    """Names, shapes and types of what launcher and ranks share."""
    ranks, records = request.program.num_ranks, len(request.program)
    elements = sum(len(given) for given in request.inputs)
    return {
        "inputs": ((elements,), request.dtype),
        "memory": ((request.flat_size,), request.dtype),
        "at": ((ranks, _LINE), np.int64),
        "ended": ((ranks,), np.int64),
        "times": ((2, request.runs, ranks), np.float64),
        "native": ((2, request.repeats, ranks), np.float64),
        "records": ((2, records), np.int64),
    }


def serve_rank(job: JobFolder, rank: int, run: Callable[[RankPart], Array]) -> None:
    """Run the part of a rank with `run`, which returns OUTPUT, and leave what came out.

    An exception is left in the folder and raised again.
    """
    job.end_with_launcher()
    try:
        part = job.part(rank)
        part.leave(run(part))
    except BaseException as error:
        job.write_failure(rank, error)
        raise
