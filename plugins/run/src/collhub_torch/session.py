"""One rank of a group and its communicator, on which a loaded algorithm runs."""

from __future__ import annotations

import torch
import torch.distributed as dist

from collhub_torch.native_library import NativeCall, NativeLibrary
from collhub_torch.shapes import DATATYPES, OPS
from hub_core.model import UsageError


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
        """Enqueue a call on the current stream of the tensors' device."""
        if self._communicator is None:
            self._communicator = self._joined(source.device)
        call = NativeCall(
            source.data_ptr(),
            target.data_ptr(),
            count,
            DATATYPES[source.dtype],
            OPS[op],
            _current_stream(source.device),
        )
        self._library.run(self._communicator, call)

    def close(self) -> None:
        """Leave the communicator."""
        if self._communicator is not None:
            communicator, self._communicator = self._communicator, None
            self._library.leave(communicator)

    def _joined(self, device: torch.device) -> int:
        """Join a communicator of the group's ranks; its ID is broadcast through the group."""
        rank = self._group.rank()
        unique_id = self._library.new_id() if rank == 0 else bytes(128)
        # NCCL accesses only memory of its GPU.
        shared = torch.tensor(list(unique_id), dtype=torch.uint8, device=device)
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        work = self._group.broadcast([shared], options)
        if work is not None:
            work.wait()
        if device.type == "cuda":
            with torch.cuda.device(device):
                return self._library.join(bytes(shared.cpu().tolist()), self.num_ranks, rank)
        return self._library.join(bytes(shared.tolist()), self.num_ranks, rank)


def check_tensor(tensor: torch.Tensor, device: str) -> None:
    """Raise `UsageError` for a tensor that the library does not support."""
    reason = tensor_defect(tensor, device)
    if reason is not None:
        raise UsageError(f"the tensor {reason}", code="tensor")


def tensor_defect(tensor: torch.Tensor, device: str) -> str | None:
    """Return why the library does not support a tensor, None if it does."""
    if tensor.device.type != device:
        return f"is on {tensor.device.type}, the library is loaded for {device}"
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        return "is not contiguous"
    if tensor.dtype not in DATATYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DATATYPES)
        return f"is of {tensor.dtype}, not one of {known}"
    return None


def _current_stream(device: torch.device) -> int:
    """Return the address of the current CUDA stream, 0 for the CPU."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.current_stream(device).cuda_stream)
