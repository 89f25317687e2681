"""Tensor shapes of collectives, and NCCL's numbers of types and operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from hub_core.model import CollectiveKind

# As in nccl.h.
DATATYPES = {
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
    torch.int32: 2,
    torch.int64: 4,
}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_NAMED_OPS = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.PRODUCT, "prod"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.AVG, "avg"),
)


def op_name(op: object) -> str | None:
    """Return the name of an operator of torch.distributed, None if NCCL's library does not support
    it.
    """
    for known, name in _NAMED_OPS:
        if op == known:
            return name
    return None


@dataclass(frozen=True, slots=True)
class Shape:
    """Relation between input and output, and the count of NCCL's call.

    `output`: the first dimension of the output from that of the input and the number of ranks.
    `parts`: the size of the input divided by the count of a call, by the number of ranks.
    """

    output: Callable[[int, int], int]
    parts: Callable[[int], int]

    def count(self, source: torch.Tensor, num_ranks: int) -> int:
        """Return the count of NCCL's call."""
        return int(source.numel()) // self.parts(num_ranks)

    def divides(self, source: torch.Tensor, num_ranks: int) -> bool:
        """Return whether the input can be divided into equal parts."""
        first = source.shape[0] if source.dim() else 1
        return first % self.parts(num_ranks) == 0

    def like(self, source: torch.Tensor, num_ranks: int) -> torch.Tensor:
        """Return a new, uninitialized output."""
        if self.output is _same:
            return torch.empty_like(source, memory_format=torch.contiguous_format)
        first, *rest = source.shape or (1,)
        return source.new_empty((self.output(first, num_ranks), *rest))


def _same(first: int, _: int) -> int:
    return first


def _whole(_: int) -> int:
    return 1


# Collectives in which every rank passes tensors of one shape.
SHAPES = {
    CollectiveKind.ALL_REDUCE: Shape(_same, _whole),
    CollectiveKind.BROADCAST: Shape(_same, _whole),
    CollectiveKind.REDUCE: Shape(_same, _whole),
    CollectiveKind.ALL_GATHER: Shape(lambda first, ranks: first * ranks, _whole),
    CollectiveKind.REDUCE_SCATTER: Shape(lambda first, ranks: first // ranks, lambda ranks: ranks),
    CollectiveKind.ALL_TO_ALL: Shape(_same, lambda ranks: ranks),
}
