"""Messages by MPI, copies and reductions by numpy: the engine of a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hub_core.execution.memory import REDUCTIONS
from hub_core.execution.rank_engine import NativeCollective, Post, Waiting
from hub_core.execution.rank_tasks import RankTask
from hub_core.model import CollectiveKind, ReduceOp

Array = npt.NDArray[Any]

# MPI promises tags up to 32767; messages of one pair and tag arrive in their order, so that tags may be used again.
_TAGS = 1 << 15

_OPS = {
    ReduceOp.SUM: MPI.SUM,
    ReduceOp.PROD: MPI.PROD,
    ReduceOp.MIN: MPI.MIN,
    ReduceOp.MAX: MPI.MAX,
}
_KNOWN_TO_MPI = frozenset({"float32", "float64", "int32", "int64"})


class MpiEngine:
    """One rank on one memory of `task.plan.memory_size` elements; messages travel as bytes, so that every dtype does."""

    def __init__(self, task: RankTask, communicator: MPI.Intracomm) -> None:
        self._communicator = communicator
        self._memory = np.empty(task.plan.memory_size, task.input.dtype)
        self._reduction = REDUCTIONS[task.reduce_op]

    def part(self, start: int, length: int) -> Array:
        """A view."""
        return self._memory[start : start + length]

    def fill(self, task: RankTask) -> None:
        """INPUT, and the background everywhere else."""
        self._memory[:] = task.background
        self.part(task.plan.input_start, len(task.input))[:] = task.input

    def post(
        self, sends: Sequence[Post[Array]], receives: Sequence[Post[Array]]
    ) -> Sequence[Waiting]:
        """Receives first, so that messages find their place."""
        communicator = self._communicator
        arriving = [
            communicator.Irecv(_bytes(post.memory), post.message.peer, post.message.tag % _TAGS)
            for post in receives
        ]
        leaving = [
            communicator.Isend(_bytes(post.memory), post.message.peer, post.message.tag % _TAGS)
            for post in sends
        ]
        return [*arriving, *leaving]

    def copy(self, destination: Array, source: Array) -> None:
        """destination := source."""
        destination[:] = source

    def reduce(self, destination: Array, source: Array) -> None:
        """destination := destination op source."""
        with np.errstate(all="ignore"):
            self._reduction(destination, source, out=destination)

    def finish(self) -> None:
        """Nothing is only queued."""

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._communicator.Barrier()

    def output(self, task: RankTask) -> Array:
        """OUTPUT, a view."""
        return self.part(task.plan.output_start, task.plan.output_size)

    def native(self, task: RankTask) -> NativeCollective | None:
        """The collective of MPI, on arrays of its own; None for element types that MPI does not know."""
        call = _NATIVE.get(task.collective)
        if call is None or task.input.dtype.name not in _KNOWN_TO_MPI:
            return None
        target = np.empty(task.plan.output_size, task.input.dtype)
        if task.collective is CollectiveKind.BROADCAST:
            return NativeCollective(
                lambda: np.copyto(target, task.input),
                lambda: self._communicator.Bcast(target, task.root),
            )
        # Received data of an earlier run does no harm: all of it is written again.
        source = np.array(task.input)
        return NativeCollective(
            lambda: None, lambda: call(self._communicator, task, source, target)
        )


def _bytes(memory: Array) -> tuple[Array, MPI.Datatype]:
    return memory.view(np.uint8), MPI.BYTE


_Call = Callable[[MPI.Intracomm, RankTask, Array, Array], None]
_NATIVE: Mapping[CollectiveKind, _Call] = {
    CollectiveKind.ALL_REDUCE: lambda world, task, source, target: world.Allreduce(
        source, target, _OPS[task.reduce_op]
    ),
    CollectiveKind.ALL_GATHER: lambda world, task, source, target: world.Allgather(source, target),
    CollectiveKind.REDUCE_SCATTER: lambda world, task, source, target: world.Reduce_scatter_block(
        source, target, _OPS[task.reduce_op]
    ),
    CollectiveKind.ALL_TO_ALL: lambda world, task, source, target: world.Alltoall(source, target),
    CollectiveKind.BROADCAST: lambda world, task, source, target: world.Bcast(target, task.root),
    CollectiveKind.REDUCE: lambda world, task, source, target: world.Reduce(
        source, target, _OPS[task.reduce_op], task.root
    ),
    CollectiveKind.GATHER: lambda world, task, source, target: world.Gather(
        source, target, task.root
    ),
    CollectiveKind.SCATTER: lambda world, task, source, target: world.Scatter(
        source, target, task.root
    ),
}
