"""The collectives of torch.distributed, on separate tensors, timed for comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from collhub_execution import NativeCollective, RankTask

from hub_core.model import CollectiveKind, ReduceOp

_OPS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.PROD: dist.ReduceOp.PRODUCT,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
}

# These use one tensor as input and output.
_ON_ONE_TENSOR = frozenset(
    {CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.REDUCE}
)


def native_collective(source: torch.Tensor, task: RankTask) -> NativeCollective | None:
    """Return torch's collective on the same input, `source`; None if torch has none."""
    run = _NATIVE.get(task.collective)
    if run is None:
        return None
    tensors = _NativeTensors(task, source, source.new_empty(task.plan.output_size))

    def fill() -> None:
        # The remaining collectives overwrite their target in every run.
        if task.collective in _ON_ONE_TENSOR:
            tensors.target.copy_(source)

    return NativeCollective(fill, lambda: run(tensors))


@dataclass(frozen=True, slots=True)
class _NativeTensors:
    """Input and output of a rank; each method runs a collective on them."""

    task: RankTask
    source: torch.Tensor
    target: torch.Tensor

    @property
    def op(self) -> dist.ReduceOp.RedOpType:
        """The operator of torch.distributed."""
        return _OPS[self.task.reduce_op]

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.task.plan.rank == self.task.root

    def all_reduce(self) -> None:
        """All-reduce in `target`, which contains the input."""
        dist.all_reduce(self.target, self.op)

    def all_gather(self) -> None:
        """All-gather `source` into `target`."""
        dist.all_gather_into_tensor(self.target, self.source)

    def reduce_scatter(self) -> None:
        """Reduce-scatter `source` into `target`."""
        dist.reduce_scatter_tensor(self.target, self.source, self.op)

    def all_to_all(self) -> None:
        """Exchange one share of `source` with every rank into `target`."""
        dist.all_to_all_single(self.target, self.source)

    def broadcast(self) -> None:
        """Broadcast the root's `target`, which contains its input."""
        dist.broadcast(self.target, self.task.root)

    def reduce(self) -> None:
        """Reduce in `target`; only the root's contains the result."""
        dist.reduce(self.target, self.task.root, self.op)

    def gather(self) -> None:
        """Gather into views of the root's `target`, one per rank."""
        parts = self._shares(self.target) if self.is_root else None
        dist.gather(self.source, parts, dst=self.task.root)

    def scatter(self) -> None:
        """Scatter views of the root's `source`, one per rank."""
        parts = self._shares(self.source) if self.is_root else None
        dist.scatter(self.target, parts, src=self.task.root)

    def _shares(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return one view per rank."""
        return list(tensor.chunk(self.task.plan.num_ranks))


_NATIVE: Mapping[CollectiveKind, Callable[[_NativeTensors], None]] = {
    CollectiveKind.ALL_REDUCE: _NativeTensors.all_reduce,
    CollectiveKind.ALL_GATHER: _NativeTensors.all_gather,
    CollectiveKind.REDUCE_SCATTER: _NativeTensors.reduce_scatter,
    CollectiveKind.ALL_TO_ALL: _NativeTensors.all_to_all,
    CollectiveKind.BROADCAST: _NativeTensors.broadcast,
    CollectiveKind.REDUCE: _NativeTensors.reduce,
    CollectiveKind.GATHER: _NativeTensors.gather,
    CollectiveKind.SCATTER: _NativeTensors.scatter,
}
