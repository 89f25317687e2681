"""The collectives of MPI itself, on arrays of their own, to be timed beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_execution import NativeCollective, RankTask
from mpi4py import MPI

from hub_core.model import CollectiveKind, ReduceOp

Array = npt.NDArray[Any]

_OPS = {
    ReduceOp.SUM: MPI.SUM,
    ReduceOp.PROD: MPI.PROD,
    ReduceOp.MIN: MPI.MIN,
    ReduceOp.MAX: MPI.MAX,
}
_KNOWN_TO_MPI = frozenset({"float32", "float64", "int32", "int64"})


def native_collective(world: MPI.Intracomm, task: RankTask) -> NativeCollective | None:
    """The collective of MPI on the same input; None for element types that MPI does not know."""
    run = _NATIVE.get(task.collective)
    dtype = task.input.dtype
    if run is None or dtype.name not in _KNOWN_TO_MPI:
        return None
    target = np.empty(task.plan.output_size, dtype)
    arrays = _NativeArrays(world, task, task.input, target)

    def fill() -> None:
        # The others write all of their target in every run.
        if task.collective is CollectiveKind.BROADCAST:
            np.copyto(target, arrays.source)

    return NativeCollective(fill, lambda: run(arrays))


@dataclass(frozen=True, slots=True)
class _NativeArrays:
    """Input and output of a rank; each method is a collective on them."""

    world: MPI.Intracomm
    task: RankTask
    source: Array
    target: Array

    @property
    def op(self) -> MPI.Op:
        """The operator, as MPI calls it."""
        return _OPS[self.task.reduce_op]

    def all_reduce(self) -> None:
        """Get the reduced array at all ranks."""
        self.world.Allreduce(self.source, self.target, self.op)

    def all_gather(self) -> None:
        """Gather the parts of all ranks in one array."""
        self.world.Allgather(self.source, self.target)

    def reduce_scatter(self) -> None:
        """Keep the own share of the reduced arrays; all shares have one size."""
        self.world.Reduce_scatter_block(self.source, self.target, self.op)

    def all_to_all(self) -> None:
        """Get a share of every rank's array."""
        self.world.Alltoall(self.source, self.target)

    def broadcast(self) -> None:
        """Spread the root's `target`, which holds its input."""
        self.world.Bcast(self.target, self.task.root)

    def reduce(self) -> None:
        """Get the reduced array at the root."""
        self.world.Reduce(self.source, self.target, self.op, self.task.root)

    def gather(self) -> None:
        """Gather the parts of all ranks in one array at the root."""
        self.world.Gather(self.source, self.target, self.task.root)

    def scatter(self) -> None:
        """Get the own share of the root's array."""
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
