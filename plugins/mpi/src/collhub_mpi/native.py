"""The collectives of MPI itself, on arrays of their own, to be timed beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_execution import NativeCollective, RankTask
from mpi4py import MPI

from hub_core.model import CollectiveKind, ReduceOp

Array = npt.NDArray[Any]

_Call = Callable[[MPI.Intracomm, RankTask, Array, Array], None]

_OPS = {
    ReduceOp.SUM: MPI.SUM,
    ReduceOp.PROD: MPI.PROD,
    ReduceOp.MIN: MPI.MIN,
    ReduceOp.MAX: MPI.MAX,
}
_KNOWN_TO_MPI = frozenset({"float32", "float64", "int32", "int64"})


def native_collective(communicator: MPI.Intracomm, task: RankTask) -> NativeCollective | None:
    """The collective of MPI on the same input; None for element types that MPI does not know."""
    call = _NATIVE.get(task.collective)
    if call is None or task.input.dtype.name not in _KNOWN_TO_MPI:
        return None
    target = np.empty(task.plan.output_size, task.input.dtype)
    source = np.array(task.input)

    def fill() -> None:
        # Received data of an earlier run does no harm to the others: all of it is written again.
        if task.collective is CollectiveKind.BROADCAST:
            np.copyto(target, source)

    return NativeCollective(fill, lambda: call(communicator, task, source, target))


def _all_reduce(world: MPI.Intracomm, task: RankTask, source: Array, target: Array) -> None:
    """The reduced array at all ranks."""
    world.Allreduce(source, target, _OPS[task.reduce_op])


def _all_gather(world: MPI.Intracomm, task: RankTask, source: Array, target: Array) -> None:
    """The parts of all ranks in one array."""
    world.Allgather(source, target)


def _reduce_scatter(world: MPI.Intracomm, task: RankTask, source: Array, target: Array) -> None:
    """The own share of the reduced arrays; all shares have one size."""
    world.Reduce_scatter_block(source, target, _OPS[task.reduce_op])


def _all_to_all(world: MPI.Intracomm, task: RankTask, source: Array, target: Array) -> None:
    """A share of every rank's array."""
    world.Alltoall(source, target)


def _broadcast(world: MPI.Intracomm, task: RankTask, source: Array, target: Array) -> None:
    """In one array, which holds the root's at the end."""
    world.Bcast(target, task.root)


def _reduce(world: MPI.Intracomm, task: RankTask, source: Array, target: Array) -> None:
    """The reduced array, at the root alone."""
    world.Reduce(source, target, _OPS[task.reduce_op], task.root)


def _gather(world: MPI.Intracomm, task: RankTask, source: Array, target: Array) -> None:
    """The parts of all ranks in one array, at the root alone."""
    world.Gather(source, target, task.root)


def _scatter(world: MPI.Intracomm, task: RankTask, source: Array, target: Array) -> None:
    """The own share of the root's array."""
    world.Scatter(source, target, task.root)


_NATIVE: Mapping[CollectiveKind, _Call] = {
    CollectiveKind.ALL_REDUCE: _all_reduce,
    CollectiveKind.ALL_GATHER: _all_gather,
    CollectiveKind.REDUCE_SCATTER: _reduce_scatter,
    CollectiveKind.ALL_TO_ALL: _all_to_all,
    CollectiveKind.BROADCAST: _broadcast,
    CollectiveKind.REDUCE: _reduce,
    CollectiveKind.GATHER: _gather,
    CollectiveKind.SCATTER: _scatter,
}
