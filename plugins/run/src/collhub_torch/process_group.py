"""A process group of torch.distributed that runs one collective with a loaded algorithm.

All other calls use a fallback group. The class depends on an interface that torch documents as
experimental: process groups in Python (`torch.distributed.Backend.register_backend`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from collhub_torch.session import SHAPES, Session, op_name, tensor_defect
from hub_core.model import CollectiveKind, PluginError

if TYPE_CHECKING:
    # Types are also checked without torch, whose stubs have overloads that are not overridden here.
    class _Work:
        """dist.Work."""

    class _ProcessGroup:
        """dist.ProcessGroup."""

        def __init__(self, rank: int, size: int) -> None:
            """Rank `rank` of a group of `size` ranks."""
            ...

        def size(self) -> int: ...
else:
    _Work, _ProcessGroup = dist.Work, dist.ProcessGroup

_BACKEND = "collhub"


@dataclass(frozen=True, slots=True)
class SizeWindow:
    """Bytes of the full buffer for which an algorithm is used, both ends inclusive."""

    min_bytes: int = 0
    max_bytes: int | None = None

    def holds(self, size: int) -> bool:
        """Return whether a size is in the window."""
        return self.min_bytes <= size and (self.max_bytes is None or size <= self.max_bytes)


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The collective that a group runs; `session_of` creates its session on the fallback group."""

    session_of: Callable[[dist.ProcessGroup], Session]
    kind: CollectiveKind
    device: str
    window: SizeWindow


@dataclass(frozen=True, slots=True)
class _BackendOptions:
    """Options that torch passes to `_make_group`."""

    group: GroupOptions
    fallback: dist.ProcessGroup


def new_group(ranks: list[int] | None, fallback: str, options: GroupOptions) -> dist.ProcessGroup:
    """Create and register a torch group that runs the loaded algorithm, and return it.

    `ranks`: members of the group, None for all. All ranks of the default group must call
    this; a rank that is no member gets torch's object for that (`NON_GROUP_MEMBER`).
    `fallback`: backend of a second group of the same ranks, which serves all calls that the
    algorithm does not (`CollhubGroup`). The first call registers the backend `collhub` in
    torch.
    """
    if _BACKEND.upper() not in dist.Backend._plugins:
        devices = ["cpu", "cuda"]
        dist.Backend.register_backend(_BACKEND, _make_group, extended_api=True, devices=devices)
    fallback_group = dist.new_group(ranks, backend=fallback)
    if not isinstance(fallback_group, dist.ProcessGroup):
        # This rank is not in the group, but must take part in its creation.
        return _create_group(ranks, None)
    return _create_group(ranks, _BackendOptions(options, fallback_group))


def _create_group(ranks: list[int] | None, options: _BackendOptions | None) -> dist.ProcessGroup:
    """Create a torch group of the backend `collhub` with `ranks` as members; None means all.

    Every rank of the default group must call this; torch then calls `_make_group` with
    `options` on the members. On a rank that is not a member, `options` is None and the
    result is torch's `GroupMember.NON_GROUP_MEMBER`.
    """
    group: dist.ProcessGroup = dist.new_group(ranks, backend=_BACKEND, pg_options=options)
    return group


def _make_group(store_and_ranks: Any, options: _BackendOptions) -> CollhubGroup:
    """Create the group; torch calls this for a new group of the backend."""
    return CollhubGroup(options.fallback, options.group)


class FinishedWork(_Work):
    """Work whose result is in its future; on a GPU the stream waits for it."""

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: object = None) -> bool:
        """Make the current stream wait for the work, and return True.

        On the CPU the work is already finished. `timeout` is ignored.
        """
        self._future.wait()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the future, for hooks of DistributedDataParallel."""
        return self._future

    def is_completed(self) -> bool:
        """Return whether the work is enqueued."""
        return bool(self._future.done())


def _make_delegate(*names: str) -> Callable[..., Any]:
    """Return a method that calls a method of the fallback group with all arguments.

    It is the first one of `names` that this version of torch has. If it has none, the call raises
    `PluginError` (`old-torch`).
    """

    def method(self: CollhubGroup, *arguments: Any, **named: Any) -> Any:
        for name in names:
            if hasattr(self.fallback, name):
                return getattr(self.fallback, name)(*arguments, **named)
        message = f"torch {torch.__version__} has no {names[0]} of process groups"
        raise PluginError(message, cure="use a later torch", code="old-torch")

    return method


class CollhubGroup(_ProcessGroup):
    """See the module. All ranks decide by the same data, so they make the same decisions."""

    def __init__(self, fallback: dist.ProcessGroup, options: GroupOptions) -> None:
        """Create the group with the fallback group's rank and size, and a session of the algorithm.

        The fallback serves all other collectives. The communicator and the CUDA stream are created
        by the first call of the algorithm.
        """
        super().__init__(fallback.rank(), fallback.size())
        self.fallback = fallback
        self._options = options
        self._session = options.session_of(fallback)
        self._shape = SHAPES[options.kind]
        self._name = self._description = ""
        # Created by the first call: collectives overlap with the caller's computation.
        self._stream: torch.cuda.Stream | None = None

    def getBackendName(self) -> str:  # noqa: N802 - the name that torch looks for
        """Return the name of the backend."""
        return _BACKEND

    # A group in Python must store the name under which torch registers and removes it.
    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Store the name; called once by torch."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """Return the name in the registry of torch."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Store the description; called once by torch."""
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the description."""
        return self._description

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """All-reduce the tensor of the list `tensors` in place; return torch's handle of the work.

        The loaded algorithm runs if it serves the call (`_is_served`: kind of collective, one
        tensor, its size, dtype and device, the operator). Otherwise the fallback group runs it.
        Without `opts` the operator is a sum.
        """
        opts = dist.AllreduceOptions() if opts is None else opts
        if self._is_served(CollectiveKind.ALL_REDUCE, tensors, tensors, opts.reduceOp):
            return self._run(tensors[0], tensors[0], opts.reduceOp)
        return self.fallback.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Broadcast the tensor of rank `opts.rootRank` in place; return torch's handle of the work.

        `tensors` has one tensor. The loaded algorithm runs if it serves the call (`_is_served`)
        and has this root. Otherwise the fallback group runs it.
        """
        if self._is_served(CollectiveKind.BROADCAST, tensors, tensors, root=opts.rootRank):
            return self._run(tensors[0], tensors[0])
        return self.fallback.broadcast(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Reduce the tensors of all ranks, in place, to `opts.rootRank`; return torch's handle.

        `tensors` has one tensor; only that of the root contains the result. The loaded
        algorithm runs if it serves the call (`_is_served`) and has this root. Otherwise the
        fallback group runs it.
        """
        kind = CollectiveKind.REDUCE
        if self._is_served(kind, tensors, tensors, opts.reduceOp, opts.rootRank):
            return self._run(tensors[0], tensors[0], opts.reduceOp)
        return self.fallback.reduce(tensors, opts)

    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        """Gather `source` of all ranks into `output`, by rank; return torch's handle of the work.

        The loaded algorithm runs if it serves the call (`_is_served`). One of the conditions is
        that `output` has as many elements as all sources together; its shape is not checked. The
        fallback group runs all other calls, also those with a wrong size of `output`.
        """
        if self._is_served(CollectiveKind.ALL_GATHER, [source], [output]):
            return self._run(source, output)
        return _ALL_GATHER(self, output, source, *_as_arguments(opts))

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        """Reduce `source` over all ranks; write this rank's part to `output`; return the handle.

        Part r of n equal parts is the result of rank r. The loaded algorithm runs if it serves
        the call (`_is_served`), otherwise the fallback group. Without `opts` the
        operator is a sum.
        """
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        if self._is_served(CollectiveKind.REDUCE_SCATTER, [source], [output], op):
            return self._run(source, output, op)
        return _REDUCE_SCATTER(self, output, source, *_as_arguments(opts))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: list[int],
        source_splits: list[int],
        opts: Any = None,
    ) -> Any:
        """Send part r of `source` to rank r, and write the received parts to `output`, by rank.

        The loaded algorithm runs if both lists of splits (sizes of the parts) are empty, which
        means equal parts, and if it serves the call (`_is_served`). Otherwise the fallback group
        runs it. Return torch's handle of the work.
        """
        is_equal = not output_splits and not source_splits
        if is_equal and self._is_served(CollectiveKind.ALL_TO_ALL, [source], [output]):
            return self._run(source, output)
        return _ALL_TO_ALL(self, output, source, output_splits, source_splits, *_as_arguments(opts))

    # Names before torch 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    allgather = _make_delegate("allgather")
    allgather_coalesced = _make_delegate("allgather_coalesced")
    allgather_into_tensor_coalesced = _make_delegate("allgather_into_tensor_coalesced")
    all_gather_single_coalesced = _make_delegate("all_gather_single_coalesced")
    allreduce_coalesced = _make_delegate("allreduce_coalesced")
    alltoall = _make_delegate("alltoall")
    barrier = _make_delegate("barrier")
    gather = _make_delegate("gather")
    monitored_barrier = _make_delegate("monitored_barrier")
    recv = _make_delegate("recv")
    recv_anysource = _make_delegate("recv_anysource")
    reduce_scatter = _make_delegate("reduce_scatter")
    reduce_scatter_single_coalesced = _make_delegate("reduce_scatter_single_coalesced")
    reduce_scatter_tensor_coalesced = _make_delegate("reduce_scatter_tensor_coalesced")
    scatter = _make_delegate("scatter")
    send = _make_delegate("send")
    _start_coalescing = _make_delegate("_start_coalescing")
    _end_coalescing = _make_delegate("_end_coalescing")
    _get_backend = _make_delegate("_get_backend")

    def abort(self) -> None:
        """Abort the fallback, which torch requests when ranks hang.

        The communicator of the algorithm may hang too: it is freed when the process exits.
        """
        self.fallback.abort()

    def shutdown(self) -> None:
        """Close the session; called by destroy_process_group."""
        self._session.close()

    def _is_served(
        self,
        kind: CollectiveKind,
        sources: list[torch.Tensor],
        targets: list[torch.Tensor],
        op: object = dist.ReduceOp.SUM,
        root: int = 0,
    ) -> bool:
        """Return whether the loaded algorithm runs this call; otherwise the fallback group does.

        The algorithm runs if all of these conditions hold, checked in about this order:

        - `kind` is the kind of the group, there is exactly one source, and NCCL has the operator
          `op`.
        - The source and the first target are strided and contiguous, on the type of device of the
          group (any index), and of one dtype that NCCL has. Further targets are not examined.
        - `root` is that of the algorithm, also for collectives without a root (0).
        - The numbers of elements fit the collective (`Shape.fits`): the ranks divide the source if
          the collective divides it, and the target has the size of the result.
        - The size in bytes of the larger tensor is within the window of the group, ends included.

        Raises `IndexError` for no target if the first condition holds.
        """
        if kind is not self._options.kind or len(sources) != 1 or op_name(op) is None:
            return False
        source, target = sources[0], targets[0]
        for tensor in (source, target):
            if tensor_defect(tensor, self._options.device) is not None:
                return False
        if source.dtype != target.dtype or root != self._session.root:
            return False
        if not self._shape.fits(source.numel(), target.numel(), self.size()):
            return False
        size = max(source.numel(), target.numel()) * source.element_size()
        return self._options.window.holds(size)

    def _run(
        self, source: torch.Tensor, target: torch.Tensor, op: object = dist.ReduceOp.SUM
    ) -> FinishedWork:
        """Run a call with the loaded algorithm; return torch's handle of the work.

        The result is written to `target`, which is also the value of the handle. `op`: operator
        of a reduction; one without a name in NCCL counts as a sum. Errors of the session are
        raised.

        - CPU: the work is finished at return.
        - CUDA: it is only enqueued. It runs after all previous work of the caller, concurrently
          with later work. Waiting for the handle makes later work of the waiting stream wait.
        """
        count = self._shape.count(source, self.size())
        name = op_name(op) or "sum"
        if source.device.type != "cuda":
            future: torch.futures.Future[Any] = torch.futures.Future()
            self._session.run(source, target, count, name)
            future.set_result([target])
            return FinishedWork(future)
        return self._run_on_stream(source, target, count, name)

    def _run_on_stream(
        self, source: torch.Tensor, target: torch.Tensor, count: int, op: str
    ) -> FinishedWork:
        """Enqueue a call on the CUDA stream of the group, after the caller's previous work.

        The stream is created at the first call, on the device of `source`. `source` is the input,
        and the result is written to `target`. `count`: elements, as the session counts them; `op`:
        name of the operator. Errors of the session are raised.

        The function does not wait for the GPU. It returns a handle whose future already contains
        `[target]`. Waiting for it makes later work of the waiting stream wait for the call. The
        memory of both tensors is not reused before the stream has finished with it.
        """
        if self._stream is None:
            new_stream: Callable[..., torch.cuda.Stream] = torch.cuda.Stream
            self._stream = new_stream(source.device)
        self._stream.wait_stream(torch.cuda.current_stream(source.device))
        # When set, it records that the work of this stream has to be awaited.
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[source.device])
        with torch.cuda.stream(self._stream):
            self._session.run(source, target, count, op)
            for tensor in (source, target):
                # The memory must not be reused before this stream has finished with it.
                tensor.record_stream(self._stream)
            future.set_result([target])
        return FinishedWork(future)


_ALL_GATHER = _make_delegate("all_gather_single", "_allgather_base")
_REDUCE_SCATTER = _make_delegate("reduce_scatter_single", "_reduce_scatter_base")
_ALL_TO_ALL = _make_delegate("all_to_all_single", "alltoall_base")


def _as_arguments(opts: Any) -> tuple[Any, ...]:
    """Return the options as the last argument, if there are any."""
    return () if opts is None else (opts,)
