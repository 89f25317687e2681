"""The engine of a rank in MPI: messages and native collectives by MPI, reductions by numpy."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_execution import (
    NativeCollective,
    NumpyMemory,
    Post,
    PostLevel,
    RankEngine,
    RankTask,
    Waiting,
)
from mpi4py import MPI

from hub_core.model import CollectiveKind, ReduceOp

Array = npt.NDArray[Any]

# MPI guarantees tags up to 32767 (MPI 4.1, section 9.1.2, MPI_TAG_UB); messages of one pair and tag
# arrive in order, so tags may be reused.
_TAGS = 1 << 15


def mpi_engine(
    task: RankTask, communicator: MPI.Intracomm, memory: Array | None = None
) -> RankEngine[Array]:
    """Return memory and transport of a rank, and MPI's collectives; `memory`: see `NumpyMemory`."""
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
        """Create the requests of a level, and return the function that starts all of them.

        Receives start first, to avoid unexpected messages.
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
    """Return (memory as bytes, peer, tag), the arguments of `Recv_init` and `Send_init`."""
    # The MPI standard has neither float16 nor bfloat16.
    memory = post.memory.view(np.uint8), MPI.BYTE
    return memory, post.end.peer, post.end.tag % _TAGS


_OPS = {
    ReduceOp.SUM: MPI.SUM,
    ReduceOp.PROD: MPI.PROD,
    ReduceOp.MIN: MPI.MIN,
    ReduceOp.MAX: MPI.MAX,
}
_KNOWN_TO_MPI = frozenset({"float32", "float64", "int32", "int64"})


def native_collective(world: MPI.Intracomm, task: RankTask) -> NativeCollective | None:
    """Return MPI's collective on the same input; None if MPI lacks it or the element type."""
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
