"""Exchange tasks, positions and results between a launcher and the ranks on its host.

They use a common folder. Inputs, buffers and logs are arrays in shared memory without a persistent
name.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from collhub_execution.input_data import Array
from collhub_execution.levelling import LevelledRequest
from collhub_execution.memory import all_outputs
from collhub_execution.rank_engine import NOT_STARTED, RankLog
from collhub_execution.rank_plans import RankTask, rank_tasks
from hub_core.columns import Float64Array, Int64Array
from hub_core.model import HubError, InputError, PluginError

Shapes = Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]

_SHAPES = "shapes"


@dataclass(frozen=True, slots=True)
class JobMemory:
    """Shared arrays by name, reachable through a folder."""

    folder: Path

    @contextmanager
    def created(self, shapes: Shapes) -> Iterator[None]:
        """Create shared arrays of zeros in the folder, which exist while the `with` block runs.

        `shapes`: shape and dtype by name; they are written to the folder, so that `arrays` can open
        the arrays in any process. After the block, processes that have opened the arrays keep them.
        On Linux the memory then cannot be opened any more; on other systems the data remain in
        files. The folder and its entries are not removed. So a second call with one of the names
        raises `FileExistsError`; the caller uses a new folder for each call.
        """
        (self.folder / _SHAPES).write_bytes(pickle.dumps(dict(shapes)))
        descriptors: list[int] = []
        try:
            for name, (shape, dtype) in shapes.items():
                size = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
                descriptors.append(_create_shared_file(self.folder / name, size))
            yield
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def arrays(self) -> dict[str, Array]:
        """Open all shared arrays of the job read-write; return them by name.

        Names, shapes and dtypes are those of their creation, read from the job's folder. The arrays
        remain valid after the files are removed. Raises `OSError` if a file is missing.
        """
        # Only this user can write to the folder, so unpickling is safe.
        shapes: Shapes = pickle.loads((self.folder / _SHAPES).read_bytes())
        arrays: dict[str, Array] = {}
        for name, (shape, dtype) in shapes.items():
            if 0 in shape:
                # An empty file cannot be mapped.
                arrays[name] = np.zeros(shape, dtype)
            else:
                arrays[name] = np.memmap(self.folder / name, dtype, "r+", shape=shape)
        return arrays


def _create_shared_file(path: Path, size: int) -> int:
    """Create `size` bytes of shared zeros that can be opened as `path`; return the file descriptor.

    On Linux the memory uses no disk, and `path` is a link that becomes invalid when the descriptor
    is closed. On other systems `path` is a file. Raises `FileExistsError` if `path` exists.
    """
    create_memory: Callable[[str], int] | None = getattr(os, "memfd_create", None)
    if create_memory is None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    else:
        descriptor = create_memory("collhub-job")
        try:
            # Processes of the same user may open the descriptor through /proc.
            path.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
        except BaseException:
            os.close(descriptor)
            raise
    os.ftruncate(descriptor, size)
    return descriptor


# EX_SOFTWARE of sysexits.h.
FAILED = 70

_LIFELINE = "launcher-lives"
_MOST_TRIES = 5
# A cache line of int64: ranks that write their positions must not share cache lines.
_LINE = 8


@dataclass(frozen=True, slots=True)
class LoggedTimes:
    """Times that the ranks measured.

    `runs`, `native`: float64[2, runs, ranks], start and end in seconds on one clock; `native` stays
    0 if the library has no such collective. `records`: int64 in nanoseconds, -1 if not timed.
    """

    runs: Float64Array
    native: Float64Array
    records: Int64Array

    @property
    def has_native(self) -> bool:
        """Return whether every rank has measured all runs of the library's own collective.

        The library is the communication library of the run, such as NCCL. True if no entry of
        `native` is 0. False if no such runs were requested.
        """
        if not self.native.size:
            return False
        # Times that were never written are zeros.
        return bool(self.native.all())


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The folder of one execution, readable only by its user.

    Files: one pickled task per rank; the reason of the first failure. Inputs, buffers and logs of
    all ranks are shared memory that is reachable through the folder. The launcher holds a lock on
    one file: it becomes free when the launcher exits.
    """

    folder: Path

    @contextmanager
    def written(self, request: LevelledRequest) -> Iterator[None]:
        """Write the files that launcher and ranks share, which are available within the block.

        These are the locked file by which ranks see that the launcher lives, the tasks of all
        ranks, and shared arrays: inputs, memory, and blank logs of positions, ends, times and
        records. All are created on entry; the lock and the arrays are released at the end of the
        block. Raises `OSError` if there is no space.
        """
        # Locked before any rank can check it: a free lock means that the launcher has exited.
        with open(self.folder / _LIFELINE, "wb") as lifeline:
            fcntl.flock(lifeline, fcntl.LOCK_EX)
            # Names, shapes and types of the arrays that launcher and ranks share.
            ranks, records = request.program.num_ranks, len(request.program)
            elements = sum(len(array) for array in request.inputs)
            with JobMemory(self.folder).created(
                {
                    "inputs": ((elements,), request.dtype),
                    "memory": ((request.flat_size,), request.dtype),
                    "at": ((ranks, _LINE), np.int64),
                    "ended": ((ranks,), np.int64),
                    "times": ((2, request.runs, ranks), np.float64),
                    "native": ((2, request.repeats, ranks), np.float64),
                    "records": ((2, records), np.int64),
                }
            ):
                self._write_tasks(request)
                yield

    def _write_tasks(self, request: LevelledRequest) -> None:
        """Write the file `task.RANK` of every rank; fill the shared arrays for the start.

        The shared arrays must exist already. Each file has the pickled task of the rank (its part
        of the program), without input data, and two ranges: of its input in the array `inputs` and
        of its buffers in the array `memory`. The inputs of all ranks are stored one after the
        other, in rank order.

        All positions are set to `NOT_STARTED`, and all times of records (single operations) to -1
        (not measured). Other arrays keep their content. Raises `OSError` if an array cannot be
        opened or a file cannot be written.
        """
        arrays = self._open_arrays()
        arrays["at"][:] = NOT_STARTED
        arrays["records"][:] = -1
        start = 0
        for task in rank_tasks(request):
            rank, rank_input = task.plan.rank, task.input
            inputs = slice(start, start + len(rank_input))
            arrays["inputs"][inputs] = rank_input
            first = request.program.rank_memory(rank).start * request.elements
            memory = slice(first, first + task.plan.memory_size)
            task_places = _TaskPlaces(replace(task, input=rank_input[:0]), inputs, memory)
            pickled = pickle.dumps(task_places, pickle.HIGHEST_PROTOCOL)
            (self.folder / f"task.{rank}").write_bytes(pickled)
            start = inputs.stop

    def part(self, rank: int) -> RankPart:
        """Return the data with which a rank runs: task, log, memory and end marks.

        The task is read from the file `task.RANK`. Everything else is a view of the job's shared
        arrays, so that changes are visible to the launcher and to other ranks:

        - `task.input`: the input of the rank
        - `log`: the position (int64[1]), start and end of every run of the task and of every run of
          the library's collective, and the times of the records of the rank
        - `memory`: the buffers of the rank
        - `ended`: int64. Element 0 belongs to this rank; the rank sets it to 1 when its OUTPUT is
          available. Further elements belong to the ranks after it.

        Raises `OSError` if the files of the job do not exist, also for a rank without a task.
        """
        # Only this user can write to the folder, so unpickling is safe.
        task_places: _TaskPlaces = pickle.loads((self.folder / f"task.{rank}").read_bytes())
        arrays = self._open_arrays()
        plan = task_places.task.plan
        log = RankLog(
            arrays["at"][rank, :1],
            arrays["times"][:, :, rank],
            arrays["native"][:, :, rank],
            arrays["records"][:, plan.first_record : plan.first_record + len(plan.kind)],
        )
        task = replace(task_places.task, input=arrays["inputs"][task_places.inputs])
        return RankPart(task, log, arrays["memory"][task_places.memory], arrays["ended"][rank:])

    def _open_arrays(self) -> dict[str, Array]:
        """Open the shared arrays of the job, by name."""
        return JobMemory(self.folder).arrays()

    def num_tasks(self) -> int:
        """Return the number of ranks."""
        return sum(1 for _ in self.folder.glob("task.*"))

    def positions(self) -> list[int]:
        """Return the number of the record (single operation) for which each rank waits, by rank.

        Records are numbered in the program of all ranks. A negative number is a constant
        instead: `DONE` (-1) after a run, or `NOT_STARTED` (-2). The ranks write their numbers
        to shared memory, so they are available even after the ranks were killed. Raise
        `OSError` if the files of the job were removed.
        """
        # Written by the ranks, so that it is available after a kill.
        record_of_rank: list[int] = self._open_arrays()["at"][:, 0].tolist()
        return record_of_rank

    def have_all_ended(self) -> bool:
        """Return whether every rank has stored its OUTPUT."""
        return bool(self._open_arrays()["ended"].all())

    def times(self) -> LoggedTimes:
        """Return the measured times of runs, library runs and records (operations).

        Times of runs are in seconds (start and end on one clock), those of records in ns. Times
        that were not measured are 0 for runs and -1 for records. The arrays are views of shared
        memory, so they change while ranks run. Raise `OSError` if the files of the job were
        removed.
        """
        arrays = self._open_arrays()
        return LoggedTimes(arrays["times"], arrays["native"], arrays["records"])

    def outputs(self, request: LevelledRequest) -> tuple[Array, ...]:
        """Return OUTPUT of all ranks, as views of the shared memory."""
        # Views, because a large run would not fit into memory twice.
        return all_outputs(self._open_arrays()["memory"], request)

    def write_failure(self, rank: int, error: BaseException) -> None:
        """Store the reason of a failure as JSON in the file `failure`, unless it exists already.

        If two ranks fail at once, one of the reasons is stored. The object has these keys:

        - `rank`: the rank.
        - `message`, `cure`: for a `HubError` those of its first diagnostic. For any other error
          the message is `TYPE: TEXT`, and the cure is empty.
        - `missing`: true only for a `PluginError`.

        `OSError` is raised if the file cannot be written.
        """
        diagnostic = error.diagnostics[0] if isinstance(error, HubError) else None
        failure = {
            "rank": rank,
            "message": diagnostic.message if diagnostic else f"{type(error).__name__}: {error}",
            "cure": diagnostic.cure if diagnostic else "",
            "missing": isinstance(error, PluginError),
        }
        path = self.folder / "failure"
        # "x" creates the file or fails: if two ranks fail at once, one reason is stored.
        with suppress(FileExistsError), open(path, "x", encoding="utf-8") as file:
            json.dump(failure, file)

    def failure(self) -> InputError | PluginError | None:
        """Return the stored failure of a rank as an error; None without a complete one.

        It is a `PluginError` with the message and cure of the rank if software is missing,
        otherwise an `InputError` (`rank-died`) that contains the rank.
        """
        try:
            failure = json.loads((self.folder / "failure").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # The file is missing or incomplete.
            return None
        if failure["missing"]:
            return PluginError(failure["message"], cure=failure["cure"])
        message = f"the process of rank {failure['rank']} failed: {failure['message']}"
        return InputError(message, code="rank-died")

    def end_with_launcher(self) -> None:
        """Make this process exit, and remove the job's folder, as soon as the launcher exits.

        A background thread waits for that; the function returns at once. If the launcher has
        already exited, also if it was killed, the folder is removed and the process exits
        within this call. The exit code is `FAILED` (70); no handlers run and no buffers are
        flushed (`os._exit`).
        """
        # Checked here and not only in the thread: otherwise this thread would continue without its
        # data.
        self._exit_if_free(fcntl.LOCK_SH | fcntl.LOCK_NB)
        threading.Thread(target=self._exit_if_free, args=(fcntl.LOCK_SH,), daemon=True).start()

    def _exit_if_free(self, how: int) -> None:
        """Remove the job's folder and exit this process if the launcher has released its lock.

        The launcher holds the lock of a file in the folder while it runs. `how`: flags of `flock`.
        Without `LOCK_NB` the call waits until the lock is released. With `LOCK_NB` it returns if
        the lock is held. A missing lock file counts as released.
        """
        # The system frees the lock of a process that exits, even if it is killed.
        try:
            with open(self.folder / _LIFELINE, "rb") as lifeline:
                fcntl.flock(lifeline, how)
        except BlockingIOError:
            return
        except OSError:
            # Another rank has removed the file.
            pass
        # Retried, because launchers may still write to the folder.
        for _ in range(_MOST_TRIES):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                break
        os._exit(FAILED)


@dataclass(frozen=True, slots=True)
class RankPart:
    """The data of a rank: its task, its log, and the shared memory of its buffers.

    `ended`: int64; the first element becomes 1 when OUTPUT is available.
    """

    task: RankTask
    log: RankLog
    memory: Array
    ended: Int64Array

    def leave(self, output: Array) -> None:
        """Store the rank's OUTPUT in the job's shared memory, and set `ended[0]` to 1.

        If `output` shares memory with the region of OUTPUT, as with most executors, it is
        not copied and its size is not checked. Otherwise it is copied to this region. Raise
        `ValueError`, and leave `ended[0]` unchanged, if its size differs from that of the
        region; a single element is not refused but fills the entire region.
        """
        plan = self.task.plan
        target = self.memory[plan.output_start : plan.output_start + plan.output_size]
        # Most executors compute in this memory already.
        if not np.shares_memory(target, output):
            target[:] = output
        self.ended[0] = 1


@dataclass(frozen=True, slots=True)
class _TaskPlaces:
    """A task without its input, and the ranges of its data in the shared arrays."""

    task: RankTask
    inputs: slice
    memory: slice


def serve_rank(job: JobFolder, rank: int, run: Callable[[RankPart], Array]) -> None:
    """Run the part of a rank with the function `run`, and store its result for the launcher.

    `run` returns the OUTPUT of the rank. The process exits when the launcher exits. An exception of
    `run` is stored in the folder and raised again.
    """
    job.end_with_launcher()
    try:
        part = job.part(rank)
        part.leave(run(part))
    except BaseException as error:
        job.write_failure(rank, error)
        raise
