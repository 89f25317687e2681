"""The program of the executor, and the engine of a rank in a torch.distributed group.

The program imports torch once, then forks one process per rank. The processes find each other
through a file in the folder of the job. The engine has tensors, messages and native collectives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from collhub_execution import (
    FAILED,
    JobFolder,
    NativeCollective,
    Post,
    PostLevel,
    RankEngine,
    RankPart,
    RankTask,
    Waiting,
    run_task,
    serve_rank,
)

from collhub_torch.plugin import DEVICES, TorchOptions
from hub_core.model import CollectiveKind, PluginError, ReduceOp

Array = npt.NDArray[Any]

_REDUCTIONS: dict[ReduceOp, Callable[..., object]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.PROD: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
}


_PostedMessages = list[tuple[Callable[..., dist.Work | None], Post[torch.Tensor]]]


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


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--device", type=click.Choice(DEVICES), default="cpu")
@click.option("--batch", is_flag=True)
def main(folder: Path, device: str, batch: bool) -> None:
    """Fork all ranks, and exit as soon as one has failed: the launcher ends the remaining ranks."""
    sys.exit(fork_ranks(JobFolder(folder), TorchOptions(device, batch)))


def fork_ranks(job: JobFolder, options: TorchOptions) -> int:
    """Fork one process per rank and wait for all of them; return the exit status for the program.

    The ranks are the tasks of the job. The status is 0 if all processes exit with status 0. It
    is `FAILED` (70) as soon as one process does not; the other processes are neither awaited
    nor ended. Then the signal or status of this process is stored in the job's folder, unless a
    rank has already stored a reason. Limits torch to one thread in all these processes. Only
    the parent returns; a forked process exits after its task.
    """
    # One thread per rank: there may already be more ranks than cores.
    torch.set_num_threads(1)
    # torch has not run yet, so there are no threads that a fork would lose.
    ranks = {_fork_rank(job, rank, options): rank for rank in range(job.num_tasks())}
    while ranks:
        process, status = os.wait()
        rank, code = ranks.pop(process), os.waitstatus_to_exitcode(status)
        if code:
            description = (
                f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
            )
            job.write_failure(rank, ChildProcessError(description))
            return FAILED
    return 0


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Number of a rank among all ranks, and among those of its host."""

    rank: int
    num_ranks: int
    local_rank: int
    local_ranks: int


def join(device: str, position: RankPlace, init_method: str) -> torch.device:
    """Join the default process group of torch and return the device of this rank.

    The group has all `position.num_ranks` ranks; the call waits for them. `init_method`: how ranks
    find each other (`torch.distributed.init_process_group`), whose errors pass through.

    - `device` "cpu": the backend is gloo.
    - Any other `device`: the backend is NCCL. The device is the GPU with the rank's number on its
      host (`position.local_rank`), and becomes the current device. Raises `PluginError` (`no-gpu`)
      if the host has fewer GPUs than ranks on this host, or if torch has no NCCL.
    """
    if device == "cpu":
        dist.init_process_group(
            "gloo", init_method=init_method, rank=position.rank, world_size=position.num_ranks
        )
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if gpus < position.local_ranks or not dist.is_nccl_available():
        message = (
            f"NCCL needs a GPU for each of the {position.local_ranks} ranks on this host, "
            f"torch {torch.__version__} finds {gpus}"
        )
        cure = "use -O device=cpu, or a torch with CUDA on a machine with GPUs"
        raise PluginError(message, cure=cure, code="no-gpu")
    gpu = torch.device("cuda", position.local_rank)
    torch.cuda.set_device(gpu)
    # With the device NCCL connects immediately, so the first message is not slow.
    dist.init_process_group(
        "nccl",
        init_method=init_method,
        rank=position.rank,
        world_size=position.num_ranks,
        device_id=gpu,
    )
    return gpu


def torch_engine(
    task: RankTask, device: torch.device, is_batched: bool, shared: Array | None = None
) -> RankEngine[torch.Tensor]:
    """Return the engine of a rank: memory and transport on `device`, and torch's collective.

    `shared`: host memory that a rank on the CPU uses instead of a new tensor; it is not used
    as memory on a GPU. The messages of a level (messages that a rank posts together) are
    started as one batch if `is_batched`, and always on a GPU: NCCL has one queue for all
    messages of a rank, so two ranks that both send first would wait for each other.
    """
    memory = TensorMemory(task, device, shared)
    # NCCL has one queue for all messages of a rank: those of a level must start together, otherwise
    # two ranks that both send first wait for each other.
    transport = TorchTransport(is_batched or device.type == "cuda")
    return RankEngine(memory, transport, partial(native_collective, memory.input))


class TorchTransport:
    """Messages of torch.distributed, started one by one or as one batch per level."""

    def __init__(self, is_batched: bool) -> None:
        """Choose how the messages of a level (messages that a rank posts together) are started.

        With `is_batched` they are one batch of torch, as NCCL needs; otherwise they are started
        one by one.
        """
        self._start = _start_batch if is_batched else _start_each
        self._posted: Sequence[Waiting] = ()

    def prepare(
        self, sends: Sequence[Post[torch.Tensor]], receives: Sequence[Post[torch.Tensor]]
    ) -> PostLevel:
        """Return a function that starts all messages of a level; no message is started yet.

        Every call of the function starts them again, the receives before the sends, so that
        messages do not arrive unexpectedly. It returns one `Waiting` (a work to wait for) per
        message, in this order; all share one if torch has one work for a batch.
        """
        # Both functions take (tensor, peer, tag=...), and `P2POp` requires the function.
        messages: _PostedMessages = [(dist.irecv, post) for post in receives]
        messages += [(dist.isend, post) for post in sends]

        def start_level() -> Sequence[Waiting]:
            posted = self._start(messages)
            # The previous level's messages are freed only now: to free a message of gloo before the
            # next one has started makes short levels two to four times slower (torch 2.13).
            self._posted = posted
            return posted

        return start_level

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()


class TensorMemory:
    """The `EngineMemory` of a rank: one tensor of `task.plan.memory_size` elements."""

    def __init__(self, task: RankTask, device: torch.device, shared: Array | None = None) -> None:
        # A fill is a copy on the device, so no data cross the bus between two runs.
        self._device = device
        self._dtype = task.input.dtype
        self._background = to_tensor(np.full(1, task.background)).to(device)
        self._memory = self._background.new_empty(task.plan.memory_size)
        if shared is not None and device.type == "cpu":
            self._memory = as_tensor(shared)
        self._reduction = _REDUCTIONS[task.reduce_op]
        # Shared input is never written, but torch has no read-only tensors.
        input_tensor = to_tensor(task.input) if shared is None else as_tensor(task.input)
        self.input = input_tensor.to(device)

    def part(self, start: int, length: int) -> torch.Tensor:
        """Return a view."""
        return self._memory[start : start + length]

    def fill(self, task: RankTask) -> None:
        """Write the task's INPUT to its place, and the background value to all other elements.

        So elements that a run does not write can be recognized. In place, INPUT may be a part of
        OUTPUT.
        """
        # The background first, because in place INPUT may be a part of OUTPUT.
        self._memory[:] = self._background
        self.part(task.plan.input_start, len(self.input)).copy_(self.input)

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """destination := source."""
        destination.copy_(source)

    def reduce(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """destination := destination op source."""
        self._reduction(destination, source, out=destination)

    def finish(self) -> None:
        """Wait for kernels and messages of NCCL, which are only queued."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def output(self, task: RankTask) -> Array:
        """Return OUTPUT as a numpy array of the task's dtype.

        It is a view of the memory on the CPU, and a copy of memory on a GPU.
        """
        tensor = self.part(task.plan.output_start, task.plan.output_size)
        return to_numpy(tensor, self._dtype)


def native_collective(source: torch.Tensor, task: RankTask) -> NativeCollective | None:
    """Return torch's own collective for the task, to compare its time; None if torch lacks it.

    Torch has an all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce, gather
    and scatter; all other kinds give None. The collective reads `source`, the input of the
    task, and writes to a new target. It does not run yet.

    For an all-reduce, broadcast and reduce, which work on one tensor in place, `fill` copies
    `source` to the target, as is necessary before each run. For the remaining kinds `fill`
    has no effect, because each run overwrites the target.
    """
    run = _NATIVE.get(task.collective)
    if run is None:
        return None
    tensors = _NativeTensors(task, source, source.new_empty(task.plan.output_size))

    def fill() -> None:
        # The remaining collectives overwrite their target in every run.
        if task.collective in _ON_ONE_TENSOR:
            tensors.target.copy_(source)

    return NativeCollective(fill, lambda: run(tensors))


def to_tensor(array: Array) -> torch.Tensor:
    """Return a copy of an array as a tensor on the CPU."""
    return as_tensor(np.array(array))


def as_tensor(array: Array) -> torch.Tensor:
    """Return an array as a tensor on the same memory, with the same dtype.

    The array must be writeable: torch only warns otherwise, and a write to the tensor has
    undefined results. bfloat16 of ml_dtypes is supported. Raise `TypeError` for a dtype that
    torch does not know.
    """
    if array.dtype.name == "bfloat16":
        # torch does not know the bfloat16 of ml_dtypes: reinterpret its bits.
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor, dtype: np.dtype[Any]) -> Array:
    """Return a contiguous tensor as an array of `dtype` with the same bits.

    `dtype` must have the item size of the tensor; values are not converted. A tensor on a
    GPU is copied; one on the CPU shares its memory with the array.
    """
    # Reinterpret bytes: torch cannot convert a bfloat16 tensor to numpy.
    bits: Array = tensor.cpu().view(torch.uint8).numpy()
    return bits.view(dtype)


def _start_each(messages: _PostedMessages) -> Sequence[Waiting]:
    """Start the messages one by one; return one work per message to wait for, in their order.

    Each has its tag, which is equal at both ends. Messages of the other ranks may start in any
    order.
    """
    works = []
    for start, post in messages:
        works.append(start(post.memory, post.end.peer, tag=post.end.tag))
    return _list_started(works)


def _start_batch(messages: _PostedMessages) -> Sequence[Waiting]:
    """Start the messages as one batch; return one work per message to wait for, in their order.

    There must be a message. NCCL ignores tags: messages of a pair match in their order at
    both ends. If torch returns another number of works than messages, such as one work for
    the batch, every message waits for the last work.
    """
    batch = []
    for start, post in messages:
        batch.append(dist.P2POp(start, post.memory, post.end.peer, tag=post.end.tag))
    works = dist.batch_isend_irecv(batch)
    if len(works) != len(messages):
        # NCCL returns one work object for the entire batch.
        works = works[-1:] * len(messages)
    return _list_started(works)


def _list_started(works: Sequence[dist.Work | None]) -> list[Waiting]:
    """Return the work objects to wait for."""
    # None occurs only for a process outside the group, which a rank never is.
    return [work for work in works if work is not None]


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
        """Gather the `source` of all ranks into `target` of the root, by rank.

        `target` of the other ranks is not changed. All ranks must call this.
        """
        parts = self._split_shares(self.target) if self.is_root else None
        dist.gather(self.source, parts, dst=self.task.root)

    def scatter(self) -> None:
        """Send part r of the root's `source` to `target` of rank r; parts are equal.

        `source` of the other ranks is ignored. All ranks must call this.
        """
        parts = self._split_shares(self.source) if self.is_root else None
        dist.scatter(self.target, parts, src=self.task.root)

    def _split_shares(self, tensor: torch.Tensor) -> list[torch.Tensor]:
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


def _fork_rank(job: JobFolder, rank: int, options: TorchOptions) -> int:
    """Fork a process that serves a rank; return its process ID.

    In the new process this never returns: it exits with the status 0 or `FAILED`. The reason of a
    failure is stored in the folder.
    """
    process = os.fork()
    if process:
        return process
    status = FAILED
    try:
        serve_rank(job, rank, lambda part: _run_rank(job, part, options))
        status = 0
    finally:
        # The failure is in the folder; threads of gloo need no clean-up.
        os._exit(status)


def _run_rank(job: JobFolder, part: RankPart, options: TorchOptions) -> Array:
    """Join the group of all ranks on this host, run the task, leave the group; return OUTPUT.

    The option `device` "cpu" uses the backend gloo, any other device NCCL (`join`, with its
    errors). Ranks find each other by the file `rendezvous` in the folder of the job. On Linux, two
    environment variables of this process (`GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME`) are set to
    the loopback interface, also if they have another value. If the task fails, its error is raised
    and the group is not left.
    """
    if sys.platform == "linux":
        # All ranks run on this host: use the loopback interface, regardless of the host name's
        # address.
        os.environ.update(GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo")
    task = part.task
    # All ranks are on one host, so global and local ranks are equal.
    rank, ranks = task.plan.rank, task.plan.num_ranks
    position = RankPlace(rank, ranks, local_rank=rank, local_ranks=ranks)
    device = join(options.device, position, f"file://{job.folder / 'rendezvous'}")
    output = run_task(task, torch_engine(task, device, options.batch, part.memory), part.log)
    dist.destroy_process_group()
    return output


if __name__ == "__main__":
    main()
