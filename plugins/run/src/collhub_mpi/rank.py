"""The program of one rank that mpiexec starts for the executor, and its engine.

The engine sends messages and runs native collectives by MPI; numpy computes the reductions.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_execution import (
    FAILED,
    JobFolder,
    NativeCollective,
    NumpyMemory,
    Post,
    PostLevel,
    RankEngine,
    RankPart,
    RankTask,
    Waiting,
    run_task,
    serve_rank,
)
from mpi4py import MPI

from collhub_mpi.executor import drop_names
from hub_core.model import CollectiveKind, PluginError, ReduceOp

Array = npt.NDArray[Any]

# MPI guarantees tags up to 32767 (MPI 4.1, section 9.1.2, MPI_TAG_UB); messages of one pair and tag
# arrive in order, so tags may be reused.
_TAGS = 1 << 15


_OPS = {
    ReduceOp.SUM: MPI.SUM,
    ReduceOp.PROD: MPI.PROD,
    ReduceOp.MIN: MPI.MIN,
    ReduceOp.MAX: MPI.MAX,
}


_KNOWN_TO_MPI = frozenset({"float32", "float64", "int32", "int64"})


def mpi_engine(
    task: RankTask, communicator: MPI.Intracomm, memory: Array | None = None
) -> RankEngine[Array]:
    """Build the engine of a rank: numpy memory, messages by MPI, and MPI's collectives.

    `memory`: array to use as the rank's memory, None for a new one (see `NumpyMemory`).
    """
    native = partial(native_collective, communicator)
    return RankEngine(NumpyMemory(task, memory), MpiTransport(communicator), native)


class MpiTransport:
    """Messages as persistent requests (MPI 4.1, section 3.9), sent as bytes for every dtype.

    Created once, a request costs a start and a test per run. `Isend` and `Irecv` check arguments
    and create Python objects for every message, which took nearly half the time of a small message.
    """

    def __init__(self, communicator: MPI.Intracomm) -> None:
        self._communicator = communicator

    def prepare(self, sends: Sequence[Post[Array]], receives: Sequence[Post[Array]]) -> PostLevel:
        """Prepare the messages of a level in MPI; return the function that starts them.

        The messages become persistent requests; nothing is sent yet. Each call of the function
        starts all receives, then all sends, so that a message finds its receive posted; the
        caller calls it once per run. It returns the same list each time: one object to wait for
        per message, receives first, both in the given order. [] without messages.

        Messages are sent as bytes to and from the memory of the posts. Tags are taken modulo
        `_TAGS`. The requests are freed when the function is no longer referenced.
        """
        world = self._communicator
        requests = [world.Recv_init(*_arguments(post)) for post in receives]
        requests += [world.Send_init(*_arguments(post)) for post in sends]
        starts = [request.Start for request in requests]
        waiting = [_PolledMessage(request.Test) for request in requests]

        def post_level() -> Sequence[Waiting]:
            for start in starts:
                start()
            return waiting

        # MPI reports requests that are not freed when it finalizes.
        weakref.finalize(post_level, _free_all, requests)
        return post_level

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._communicator.Barrier()


def native_collective(world: MPI.Intracomm, task: RankTask) -> NativeCollective | None:
    """Return MPI's own collective for a task, to compare its time; None if MPI does not have it.

    It exists for all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce, gather and
    scatter, if the input is float32, float64, int32 or int64. Nothing is executed here, but an
    array of the rank's output size is allocated for all runs.

    `run` of the result executes the collective once on `world`, from `task.input` to this array.
    `fill` prepares a run: for a broadcast it copies the input to the array, which MPI sends in
    place. For other collectives it has no effect, because each run overwrites the array.
    """
    run = _NATIVE.get(task.collective)
    dtype = task.input.dtype
    if run is None or dtype.name not in _KNOWN_TO_MPI:
        return None
    target = np.empty(task.plan.output_size, dtype)
    arrays = _NativeArrays(world, task, task.input, target)

    def fill() -> None:
        # The remaining collectives overwrite their target in every run.
        if task.collective is CollectiveKind.BROADCAST:
            np.copyto(target, arrays.source)

    return NativeCollective(fill, lambda: run(arrays))


def main() -> int:
    """Run the rank that MPI assigns to this process; the first argument is the folder of the job.

    Return 0 after the rank's OUTPUT is stored in the shared memory of the job. First the ranks
    remove the names of MPI's shared memory.

    - The first error of any rank, of the start or of the run, is stored in the folder. After any
      error the process exits at once with the status `FAILED` (70) and prints no message; MPI's
      clean-up, which would wait, is omitted.
    - If the launcher exits earlier, this process removes the folder and exits with `FAILED`.

    Raises `IndexError` without an argument.
    """
    # MPI determines the rank; the folder has a task for each.
    job, world = JobFolder(Path(sys.argv[1])), MPI.COMM_WORLD
    try:
        _free_names(job, world)
        serve_rank(job, world.rank, lambda part: _run_rank(part, world))
    except BaseException:
        # Without this, MPI would wait for the other ranks when the process exits. The failure is in
        # the folder.
        os._exit(FAILED)
    return 0


def _free_names(job: JobFolder, world: MPI.Intracomm) -> None:
    """Remove the names of MPI's shared memory (`drop_names`); an error is stored in the folder.

    This is done before the rank may exit because its launcher has exited: names would remain.
    """
    try:
        drop_names(world)
    except BaseException as error:
        job.write_failure(world.rank, error)
        raise


@dataclass(frozen=True, slots=True)
class _PolledMessage:
    """A message that is polled until it has completed.

    MPI's wait keeps its core busy: with more ranks than cores, the awaited rank gets no core, and a
    message takes milliseconds (MPICH 5.0).
    """

    test: Callable[[], bool]

    def wait(self) -> None:
        """Yield the core until the message has been sent or received."""
        while not self.test():
            os.sched_yield()


def _free_all(requests: Sequence[MPI.Prequest]) -> None:
    """Free persistent requests."""
    for request in requests:
        request.Free()


def _arguments(post: Post[Array]) -> tuple[tuple[Array, MPI.Datatype], int, int]:
    """Return the arguments for `Recv_init` and `Send_init`: (memory as bytes, peer, tag).

    Elements are passed as bytes, because MPI does not know all dtypes. Tags are taken modulo
    `_TAGS`.
    """
    # The MPI standard has neither float16 nor bfloat16.
    memory = post.memory.view(np.uint8), MPI.BYTE
    return memory, post.end.peer, post.end.tag % _TAGS


@dataclass(frozen=True, slots=True)
class _NativeArrays:
    """Input and output of a rank; each method runs a collective on them."""

    world: MPI.Intracomm
    task: RankTask
    source: Array
    target: Array

    @property
    def op(self) -> MPI.Op:
        """The operator of MPI."""
        return _OPS[self.task.reduce_op]

    def all_reduce(self) -> None:
        """All-reduce `source` into `target`."""
        self.world.Allreduce(self.source, self.target, self.op)

    def all_gather(self) -> None:
        """All-gather `source` into `target`."""
        self.world.Allgather(self.source, self.target)

    def reduce_scatter(self) -> None:
        """Reduce-scatter `source` into `target`; all shares have one size."""
        self.world.Reduce_scatter_block(self.source, self.target, self.op)

    def all_to_all(self) -> None:
        """Exchange one share of `source` with every rank into `target`."""
        self.world.Alltoall(self.source, self.target)

    def broadcast(self) -> None:
        """Broadcast the root's `target`, which contains its input."""
        self.world.Bcast(self.target, self.task.root)

    def reduce(self) -> None:
        """Reduce `source` into the root's `target`."""
        self.world.Reduce(self.source, self.target, self.op, self.task.root)

    def gather(self) -> None:
        """Gather `source` of all ranks into the root's `target`."""
        self.world.Gather(self.source, self.target, self.task.root)

    def scatter(self) -> None:
        """Scatter the root's `source` into `target`."""
        self.world.Scatter(self.source, self.target, self.task.root)


_NATIVE: Mapping[CollectiveKind, Callable[[_NativeArrays], None]] = {
    CollectiveKind.ALL_REDUCE: _NativeArrays.all_reduce,
    CollectiveKind.ALL_GATHER: _NativeArrays.all_gather,
    CollectiveKind.REDUCE_SCATTER: _NativeArrays.reduce_scatter,
    CollectiveKind.ALL_TO_ALL: _NativeArrays.all_to_all,
    CollectiveKind.BROADCAST: _NativeArrays.broadcast,
    CollectiveKind.REDUCE: _NativeArrays.reduce,
    CollectiveKind.GATHER: _NativeArrays.gather,
    CollectiveKind.SCATTER: _NativeArrays.scatter,
}


def _run_rank(part: RankPart, world: MPI.Intracomm) -> Array:
    """Run the task of this rank, fill in the log, and return OUTPUT.

    Raises `PluginError` (`other-mpi`) if MPI sees another number of ranks than the task: then the
    launcher belongs to another MPI, and each rank is alone.
    """
    task = part.task
    if world.size != task.plan.num_ranks:
        # With another MPI's launcher each rank is in a world of size 1.
        message = (
            f"mpiexec started {task.plan.num_ranks} processes, but mpi4py sees {world.size}: "
            "it belongs to another MPI"
        )
        cure = "name the launcher of the same MPI: -O launcher=mpiexec.mpich"
        raise PluginError(message, cure=cure, code="other-mpi")
    return run_task(task, mpi_engine(task, world, part.memory), part.log)


if __name__ == "__main__":
    sys.exit(main())
