"""Messages, copies and reductions on tensors: the engine of a rank that has joined a torch.distributed group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from hub_core.execution.rank_engine import NativeCollective, Post, Waiting
from hub_core.execution.rank_tasks import RankTask
from hub_core.model import CollectiveKind, ReduceOp

Array = npt.NDArray[Any]

_REDUCTIONS: Mapping[ReduceOp, Callable[..., object]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.PROD: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
}
_OPS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.PROD: dist.ReduceOp.PRODUCT,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
}


def to_tensor(array: Array) -> torch.Tensor:
    """A copy of an array as a tensor on the CPU; bfloat16, which numpy gets from another package, by its bits."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def to_numpy(tensor: torch.Tensor, dtype: np.dtype[Any]) -> Array:
    """A tensor as an array of its own dtype, which `dtype` names."""
    bits: Array = tensor.cpu().view(torch.uint8).numpy()
    return bits.view(dtype)


class TorchEngine:
    """One rank on one memory of `task.plan.memory_size` elements."""

    def __init__(self, task: RankTask, device: torch.device, is_batched: bool) -> None:
        self._device = device
        self._is_batched = is_batched or device.type == "cuda"
        self._dtype = task.input.dtype
        self._input = to_tensor(task.input).to(device)
        self._background = to_tensor(np.full(1, task.background)).to(device)
        self._memory = self._background.repeat(task.plan.memory_size)
        self._reduction = _REDUCTIONS[task.reduce_op]

    def part(self, start: int, length: int) -> torch.Tensor:
        """A view."""
        return self._memory[start : start + length]

    def fill(self, task: RankTask) -> None:
        """INPUT, and the background everywhere else."""
        self._memory[:] = self._background
        self.part(task.plan.input_start, len(self._input)).copy_(self._input)

    def post(
        self, sends: Sequence[Post[torch.Tensor]], receives: Sequence[Post[torch.Tensor]]
    ) -> Sequence[Waiting]:
        """All at once; NCCL has no tags and matches messages of one pair in their order, the same at both ends."""
        if not self._is_batched:
            arriving = [
                dist.irecv(post.memory, post.message.peer, tag=post.message.tag)
                for post in receives
            ]
            leaving = [
                dist.isend(post.memory, post.message.peer, tag=post.message.tag) for post in sends
            ]
            return _works([*arriving, *leaving])
        ends = [(dist.irecv, post) for post in receives] + [(dist.isend, post) for post in sends]
        works = dist.batch_isend_irecv(
            [dist.P2POp(op, end.memory, end.message.peer, tag=end.message.tag) for op, end in ends]
        )
        # NCCL answers with one piece of work for the whole batch.
        return _works(works if len(works) == len(ends) else works[-1:] * len(ends))

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """destination := source."""
        destination.copy_(source)

    def reduce(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """destination := destination op source."""
        self._reduction(destination, source, out=destination)

    def finish(self) -> None:
        """Kernels and NCCL only queue their work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def output(self, task: RankTask) -> Array:
        """OUTPUT as an array."""
        return to_numpy(self.part(task.plan.output_start, task.plan.output_size), self._dtype)

    def native(self, task: RankTask) -> NativeCollective | None:
        """The collective of torch.distributed, on tensors of its own."""
        call = _NATIVE.get(task.collective)
        if call is None:
            return None
        source, target = self._input, self._memory.new_empty(task.plan.output_size)
        if task.collective not in _ON_ONE_BUFFER:
            return NativeCollective(lambda: None, lambda: call(task, source, target))
        return NativeCollective(lambda: target.copy_(source), lambda: call(task, source, target))


_ON_ONE_BUFFER = frozenset(
    {CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.REDUCE}
)


def _works(works: Sequence[dist.Work | None]) -> list[Waiting]:
    return [work for work in works if work is not None]


def _gather(task: RankTask, source: torch.Tensor, target: torch.Tensor) -> None:
    parts = list(target.chunk(task.plan.num_ranks)) if task.plan.rank == task.root else None
    dist.gather(source, parts, dst=task.root)


def _scatter(task: RankTask, source: torch.Tensor, target: torch.Tensor) -> None:
    parts = list(source.chunk(task.plan.num_ranks)) if task.plan.rank == task.root else None
    dist.scatter(target, parts, src=task.root)


_NATIVE: Mapping[CollectiveKind, Callable[[RankTask, torch.Tensor, torch.Tensor], object]] = {
    CollectiveKind.ALL_REDUCE: lambda task, source, target: dist.all_reduce(
        target, _OPS[task.reduce_op]
    ),
    CollectiveKind.ALL_GATHER: lambda task, source, target: dist.all_gather_into_tensor(
        target, source
    ),
    CollectiveKind.REDUCE_SCATTER: lambda task, source, target: dist.reduce_scatter_tensor(
        target, source, _OPS[task.reduce_op]
    ),
    CollectiveKind.ALL_TO_ALL: lambda task, source, target: dist.all_to_all_single(target, source),
    CollectiveKind.BROADCAST: lambda task, source, target: dist.broadcast(target, task.root),
    CollectiveKind.REDUCE: lambda task, source, target: dist.reduce(
        target, task.root, _OPS[task.reduce_op]
    ),
    CollectiveKind.GATHER: _gather,
    CollectiveKind.SCATTER: _scatter,
}
