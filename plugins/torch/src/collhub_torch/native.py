"""The collectives of torch.distributed itself, on tensors of their own, to be timed beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from collhub_execution import NativeCollective, RankTask

from hub_core.model import CollectiveKind, ReduceOp

_Call = Callable[[RankTask, torch.Tensor, torch.Tensor], object]

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
    call = _NATIVE.get(task.collective)
    if call is None:
        return None
    target = source.new_empty(task.plan.output_size)

    def fill() -> None:
        if task.collective in _ON_ONE_TENSOR:
            target.copy_(source)

    return NativeCollective(fill, lambda: call(task, source, target))


def _all_reduce(task: RankTask, source: torch.Tensor, target: torch.Tensor) -> None:
    """In one tensor, which holds the input."""
    dist.all_reduce(target, _OPS[task.reduce_op])


def _all_gather(task: RankTask, source: torch.Tensor, target: torch.Tensor) -> None:
    """The parts of all ranks in one tensor."""
    dist.all_gather_into_tensor(target, source)


def _reduce_scatter(task: RankTask, source: torch.Tensor, target: torch.Tensor) -> None:
    """The own share of the reduced tensors."""
    dist.reduce_scatter_tensor(target, source, _OPS[task.reduce_op])


def _all_to_all(task: RankTask, source: torch.Tensor, target: torch.Tensor) -> None:
    """A share of every rank's tensor."""
    dist.all_to_all_single(target, source)


def _broadcast(task: RankTask, source: torch.Tensor, target: torch.Tensor) -> None:
    """In one tensor, which holds the root's at the end."""
    dist.broadcast(target, task.root)


def _reduce(task: RankTask, source: torch.Tensor, target: torch.Tensor) -> None:
    """In one tensor; only the root's holds the result."""
    dist.reduce(target, task.root, _OPS[task.reduce_op])


def _gather(task: RankTask, source: torch.Tensor, target: torch.Tensor) -> None:
    """Views of one tensor at the root, one a rank."""
    is_root = task.plan.rank == task.root
    parts = list(target.chunk(task.plan.num_ranks)) if is_root else None
    dist.gather(source, parts, dst=task.root)


def _scatter(task: RankTask, source: torch.Tensor, target: torch.Tensor) -> None:
    """Views of the root's tensor, one a rank."""
    is_root = task.plan.rank == task.root
    parts = list(source.chunk(task.plan.num_ranks)) if is_root else None
    dist.scatter(target, parts, src=task.root)


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
