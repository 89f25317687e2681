"""The collectives of torch.distributed itself, on tensors of their own, to be timed beside ours."""

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

# These work on one tensor, which is input and output.
_ON_ONE_TENSOR = frozenset(
    {CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.REDUCE}
)


def native_collective(source: torch.Tensor, task: RankTask) -> NativeCollective | None:
    """The collective of torch.distributed on the same input, `source`; None where it has none."""
    run = _NATIVE.get(task.collective)
    if run is None:
        return None
    tensors = _NativeTensors(task, source, source.new_empty(task.plan.output_size))

    def fill() -> None:
        # The others write all of their target in every run.
        if task.collective in _ON_ONE_TENSOR:
            tensors.target.copy_(source)

    return NativeCollective(fill, lambda: run(tensors))


@dataclass(frozen=True, slots=True)
class _NativeTensors:
    """Input and output of a rank; each method is a collective on them."""

    task: RankTask
    source: torch.Tensor
    target: torch.Tensor

    @property
    def op(self) -> dist.ReduceOp.RedOpType:
        """The operator, as torch.distributed calls it."""
        return _OPS[self.task.reduce_op]

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.task.plan.rank == self.task.root

    def all_reduce(self) -> None:
        """Reduce in `target`, which holds the input."""
        dist.all_reduce(self.target, self.op)

    def all_gather(self) -> None:
        """Gather the parts of all ranks in one tensor."""
        dist.all_gather_into_tensor(self.target, self.source)

    def reduce_scatter(self) -> None:
        """Keep the own share of the reduced tensors."""
        dist.reduce_scatter_tensor(self.target, self.source, self.op)

    def all_to_all(self) -> None:
        """Get a share of every rank's tensor."""
        dist.all_to_all_single(self.target, self.source)

    def broadcast(self) -> None:
        """Spread the root's `target`, which holds its input."""
        dist.broadcast(self.target, self.task.root)

    def reduce(self) -> None:
        """Reduce in `target`; only the root's holds the result."""
        dist.reduce(self.target, self.task.root, self.op)

    def gather(self) -> None:
        """Gather in views of the root's `target`, one a rank."""
        parts = self._shares(self.target) if self.is_root else None
        dist.gather(self.source, parts, dst=self.task.root)

    def scatter(self) -> None:
        """Scatter views of the root's `source`, one a rank."""
        parts = self._shares(self.source) if self.is_root else None
        dist.scatter(self.target, parts, src=self.task.root)

    def _shares(self, tensor: torch.Tensor) -> list[torch.Tensor]:
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
