"""One rank of a loaded algorithm: its communicator, tensor shapes, and NCCL's numbers of types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from collhub_torch.native_library import NativeCall, NativeLibrary
from hub_core.model import CollectiveKind, PluginError, UsageError

_ID_BYTES = 128


class Session:
    """The communicator of a rank, joined in the first call, which waits for all ranks."""

    def __init__(self, library: NativeLibrary, group: dist.ProcessGroup, root: int | None) -> None:
        self._library = library
        self._group = group
        # Root of collectives that have one.
        self.root = root or 0
        self._communicator: int | None = None

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the group."""
        return int(self._group.size())

    def run(self, source: torch.Tensor, target: torch.Tensor, count: int, op: str) -> None:
        """Enqueue a call on the current stream of the device of `source`, without waiting for it.

        The first call joins the communicator on the device of `source`, which waits for all ranks.
        Later calls use the same communicator. After a failed join, the next call joins again.

        `source` is the send buffer, `target` the receive buffer; shapes and devices are not
        compared. On a device other than `cuda`, the stream is 0. `count`: elements, as the library
        defines them. `op`: an operator of `OPS`, also for a collective that does not reduce. Raises
        `KeyError`, after the join, for another operator or a dtype of `source` that is not in
        `DATATYPES`. Raises `PluginError` (`nccl`) if NCCL reports an error.
        """
        if self._communicator is None:
            self._communicator = self._join(source.device)
        is_on_gpu = source.device.type == "cuda"
        stream = int(torch.cuda.current_stream(source.device).cuda_stream) if is_on_gpu else 0
        call = NativeCall(
            source.data_ptr(),
            target.data_ptr(),
            count,
            DATATYPES[source.dtype],
            OPS[op],
            stream,
        )
        self._library.run(self._communicator, call)

    def close(self) -> None:
        """Leave the communicator."""
        if self._communicator is not None:
            communicator, self._communicator = self._communicator, None
            self._library.leave(communicator)

    def _join(self, device: torch.device) -> int:
        """Join an NCCL communicator of the group's ranks on `device` and return its handle.

        All ranks of the group must call this, because it waits for them. Rank 0 creates the ID of
        the communicator (128 bytes). A broadcast of the process group, with a tensor on `device`,
        sends it to the other ranks, after a byte that is 0 if rank 0 has no ID. If `device` is a
        GPU, it is the current device while the communicator is joined; the previous one is current
        again afterwards. The handle is not stored here.

        Raises `PluginError` (`nccl`) if NCCL reports an error. If rank 0 cannot create the ID, it
        raises after the broadcast, and so do the other ranks.
        """
        rank = self._group.rank()
        unique_id = bytes(_ID_BYTES)
        failure: PluginError | None = None
        if rank == 0:
            try:
                unique_id = self._library.new_id()
            except PluginError as error:
                # The other ranks must not wait for the broadcast until its time limit.
                failure = error
        message = [int(failure is None), *unique_id]
        # NCCL accesses only memory of its GPU.
        shared = torch.tensor(message, dtype=torch.uint8, device=device)
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        work = self._group.broadcast([shared], options)
        if work is not None:
            work.wait()
        if failure is not None:
            raise failure
        has_id, *received = shared.cpu().tolist()
        if not has_id:
            raise PluginError(
                "rank 0 could not create an NCCL ID", cure="see the error of rank 0", code="nccl"
            )
        if device.type == "cuda":
            with torch.cuda.device(device):
                return self._library.join(bytes(received), self.num_ranks, rank)
        return self._library.join(bytes(received), self.num_ranks, rank)


def check_tensor(tensor: torch.Tensor, device: str) -> None:
    """Raise `UsageError` (`tensor`) for a tensor that the library does not support.

    `device`: type of the device for which it is loaded, such as `cuda`. The conditions are those of
    `tensor_defect`.
    """
    reason = tensor_defect(tensor, device)
    if reason is not None:
        raise UsageError(f"the tensor {reason}", code="tensor")


def tensor_defect(tensor: torch.Tensor, device: str) -> str | None:
    """Return why the library does not support a tensor; None if it does.

    `device`: a type without index, such as `cuda`. The text continues "the tensor" and
    names the first defect in this order:

    1. The tensor is on a device of another type; the index of its device does not count.
    2. It is not strided or not contiguous.
    3. NCCL does not support its dtype.
    """
    if tensor.device.type != device:
        return f"is on {tensor.device.type}, the library is loaded for {device}"
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        return "is not contiguous"
    if tensor.dtype not in DATATYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DATATYPES)
        return f"is of {tensor.dtype}, not one of {known}"
    return None


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
    """Return NCCL's name of an operator of torch.distributed: sum, prod, max, min or avg.

    None for any other object, such as an operator that NCCL does not support.
    """
    for known, name in _NAMED_OPS:
        if op == known:
            return name
    return None


@dataclass(frozen=True, slots=True)
class CallShape:
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
        """Return whether the input's first dimension can be divided as the collective needs.

        The number of parts is `parts(num_ranks)`: the ranks for a reduce-scatter or an
        all-to-all, else 1, for which the result is always True. A tensor without dimensions
        counts as one element, and a dimension of 0 can be divided.
        """
        first = source.shape[0] if source.dim() else 1
        return first % self.parts(num_ranks) == 0

    def fits(self, source: int, target: int, num_ranks: int) -> bool:
        """Return whether an input and an output of these numbers of elements fit the collective.

        `source`, `target`: elements of the input and of the output of a rank. The input must be
        divisible by the number of parts into which the collective divides it (`parts`), and
        `target` must equal the number of elements of the result for this input (`output`).
        """
        is_divisible = source % self.parts(num_ranks) == 0
        return is_divisible and self.output(source, num_ranks) == target

    def like(self, source: torch.Tensor, num_ranks: int) -> torch.Tensor:
        """Return a new, uninitialized output tensor for a collective of `num_ranks` ranks.

        It is contiguous. Its first dimension is that of `source` times the ranks for an
        all-gather, divided by the ranks (rounded down) for a reduce-scatter, and equal for all
        other collectives. Dtype, device and other dimensions are those of `source`. A source
        without dimensions counts as one of shape (1,) if the first dimension changes.
        """
        if self.output is _keep_size:
            return torch.empty_like(source, memory_format=torch.contiguous_format)
        first, *rest = source.shape or (1,)
        return source.new_empty((self.output(first, num_ranks), *rest))


def _keep_size(first: int, _: int) -> int:
    """Return the first dimension of the output of a collective that keeps sizes."""
    return first


def _count_one_part(_: int) -> int:
    """Return 1: the count of NCCL's call is the size of the input."""
    return 1


# Collectives in which every rank passes tensors of one shape.
SHAPES = {
    CollectiveKind.ALL_REDUCE: CallShape(_keep_size, _count_one_part),
    CollectiveKind.BROADCAST: CallShape(_keep_size, _count_one_part),
    CollectiveKind.REDUCE: CallShape(_keep_size, _count_one_part),
    CollectiveKind.ALL_GATHER: CallShape(lambda first, ranks: first * ranks, _count_one_part),
    CollectiveKind.REDUCE_SCATTER: CallShape(
        lambda first, ranks: first // ranks, lambda ranks: ranks
    ),
    CollectiveKind.ALL_TO_ALL: CallShape(_keep_size, lambda ranks: ranks),
}
