"""The collectives of the MPI library, on separate arrays, timed for comparison."""

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
