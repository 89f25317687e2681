"""A process group of torch.distributed that runs one collective by a loaded algorithm.

Everything else goes to a fallback group. The class stands on what torch documents as experimental:
process groups in Python (`torch.distributed.Backend.register_backend`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from collhub_torch.session import Session, tensor_defect
from collhub_torch.shapes import SHAPES, op_name
from hub_core.model import CollectiveKind, PluginError

if TYPE_CHECKING:
    # Types are checked without torch too, and its own have overloads that nobody overrides.
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

    least: int = 0
    most: int | None = None

    def holds(self, size: int) -> bool:
        """Whether a size is within."""
        return self.least <= size and (self.most is None or size <= self.most)


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """What a group runs by itself: `session_of` makes its session on a group that carries ids."""

    session_of: Callable[[dist.ProcessGroup], Session]
    kind: CollectiveKind
    device: str
    window: SizeWindow


@dataclass(frozen=True, slots=True)
class _BackendOptions:
    """What torch hands through to `_made`."""

    group: GroupOptions
    fallback: dist.ProcessGroup


def new_group(ranks: list[int] | None, fallback: str, options: GroupOptions) -> dist.ProcessGroup:
    """A registered group of these ranks; see `LoadedAlgorithm.new_group`."""
    if _BACKEND.upper() not in dist.Backend._plugins:
        devices = ["cpu", "cuda"]
        dist.Backend.register_backend(_BACKEND, _made, extended_api=True, devices=devices)
    below = dist.new_group(ranks, backend=fallback)
    if not isinstance(below, dist.ProcessGroup):
        # This rank is not of the group, but takes part in making it.
        return _registered(ranks, None)
    return _registered(ranks, _BackendOptions(options, below))


def _registered(ranks: list[int] | None, options: _BackendOptions | None) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(ranks, backend=_BACKEND, pg_options=options)
    return group


def _made(place: Any, options: _BackendOptions) -> CollhubGroup:
    """What torch calls for a new group of the backend."""
    return CollhubGroup(options.fallback, options.group)


class FinishedWork(_Work):
    """Work whose result is in its future; on a GPU waiting for it is left to the stream."""

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: object = None) -> bool:
        """Let the current stream wait, on the CPU nothing is left to wait for."""
        self._future.wait()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """For hooks of DistributedDataParallel."""
        return self._future

    def is_completed(self) -> bool:
        """Whether all is enqueued."""
        return bool(self._future.done())


def _delegated(*names: str) -> Callable[..., Any]:
    """A method that is the fallback's, by the first of these names that this torch has."""

    def method(self: CollhubGroup, *arguments: Any, **named: Any) -> Any:
        for name in names:
            if hasattr(self.fallback, name):
                return getattr(self.fallback, name)(*arguments, **named)
        message = f"torch {torch.__version__} has no {names[0]} of process groups"
        raise PluginError(message, cure="use a later torch", code="old-torch")

    return method


class CollhubGroup(_ProcessGroup):
    """See the module. Ranks decide by what they have in common, so that all decide alike."""

    def __init__(self, fallback: dist.ProcessGroup, options: GroupOptions) -> None:
        """Take the rank and size of the fallback group, and make the session on it."""
        super().__init__(fallback.rank(), fallback.size())
        self.fallback = fallback
        self._options = options
        self._session = options.session_of(fallback)
        self._shape = SHAPES[options.kind]
        self._name = self._description = ""
        # Made with the first call: collectives overlap with what the caller computes meanwhile.
        self._stream: torch.cuda.Stream | None = None

    def getBackendName(self) -> str:  # noqa: N802 - the name that torch looks for
        """What torch shows."""
        return _BACKEND

    # A group in Python keeps what torch calls it, by which torch registers and forgets it.
    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Called once, by torch."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """The name in the registry of torch."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Called once, by torch."""
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """What torch shows."""
        return self._description

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """All-reduce in place."""
        opts = dist.AllreduceOptions() if opts is None else opts
        if self._serves(CollectiveKind.ALL_REDUCE, tensors, tensors, opts.reduceOp):
            return self._run(tensors[0], tensors[0], opts.reduceOp)
        return self.fallback.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Broadcast from the root of the algorithm; other roots are the fallback's."""
        if self._serves(CollectiveKind.BROADCAST, tensors, tensors, root=opts.rootRank):
            return self._run(tensors[0], tensors[0])
        return self.fallback.broadcast(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Reduce to the root of the algorithm; other roots are the fallback's."""
        kind = CollectiveKind.REDUCE
        if self._serves(kind, tensors, tensors, opts.reduceOp, opts.rootRank):
            return self._run(tensors[0], tensors[0], opts.reduceOp)
        return self.fallback.reduce(tensors, opts)

    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        """All-gather to one tensor."""
        if self._serves(CollectiveKind.ALL_GATHER, [source], [output]):
            return self._run(source, output)
        return _ALL_GATHER(self, output, source, *_given(opts))

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        """Reduce-scatter from one tensor."""
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        if self._serves(CollectiveKind.REDUCE_SCATTER, [source], [output], op):
            return self._run(source, output, op)
        return _REDUCE_SCATTER(self, output, source, *_given(opts))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: list[int],
        source_splits: list[int],
        opts: Any = None,
    ) -> Any:
        """All-to-all of equal parts; others are the fallback's."""
        is_equal = not output_splits and not source_splits
        if is_equal and self._serves(CollectiveKind.ALL_TO_ALL, [source], [output]):
            return self._run(source, output)
        return _ALL_TO_ALL(self, output, source, output_splits, source_splits, *_given(opts))

    # The names before torch 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    allgather = _delegated("allgather")
    allgather_coalesced = _delegated("allgather_coalesced")
    allgather_into_tensor_coalesced = _delegated("allgather_into_tensor_coalesced")
    all_gather_single_coalesced = _delegated("all_gather_single_coalesced")
    allreduce_coalesced = _delegated("allreduce_coalesced")
    alltoall = _delegated("alltoall")
    barrier = _delegated("barrier")
    gather = _delegated("gather")
    monitored_barrier = _delegated("monitored_barrier")
    recv = _delegated("recv")
    recv_anysource = _delegated("recv_anysource")
    reduce_scatter = _delegated("reduce_scatter")
    reduce_scatter_single_coalesced = _delegated("reduce_scatter_single_coalesced")
    reduce_scatter_tensor_coalesced = _delegated("reduce_scatter_tensor_coalesced")
    scatter = _delegated("scatter")
    send = _delegated("send")
    _start_coalescing = _delegated("_start_coalescing")
    _end_coalescing = _delegated("_end_coalescing")
    _get_backend = _delegated("_get_backend")

    def abort(self) -> None:
        """End the fallback, as torch asks for when ranks hang.

        The communicator of the algorithm may hang too: it is left to the end of the process.
        """
        self.fallback.abort()

    def shutdown(self) -> None:
        """What destroy_process_group calls."""
        self._session.close()

    def _serves(
        self,
        kind: CollectiveKind,
        sources: list[torch.Tensor],
        targets: list[torch.Tensor],
        op: object = dist.ReduceOp.SUM,
        root: int = 0,
    ) -> bool:
        """Whether a call is for the algorithm."""
        if kind is not self._options.kind or len(sources) != 1 or op_name(op) is None:
            return False
        source, target = sources[0], targets[0]
        for tensor in (source, target):
            if tensor_defect(tensor, self._options.device) is not None:
                return False
        if source.dtype != target.dtype or root != self._session.root:
            return False
        size = max(source.numel(), target.numel()) * source.element_size()
        return self._options.window.holds(size)

    def _run(
        self, source: torch.Tensor, target: torch.Tensor, op: object = dist.ReduceOp.SUM
    ) -> FinishedWork:
        """Enqueue a call, beside what the caller enqueues next."""
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
        """On a stream of the group, which waits for what is enqueued already."""
        if self._stream is None:
            new_stream: Callable[..., torch.cuda.Stream] = torch.cuda.Stream
            self._stream = new_stream(source.device)
        self._stream.wait_stream(torch.cuda.current_stream(source.device))
        # Tells when it is set that the work of this stream is what waits.
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[source.device])
        with torch.cuda.stream(self._stream):
            self._session.run(source, target, count, op)
            for tensor in (source, target):
                # Its memory must not go to others before this stream is done with it.
                tensor.record_stream(self._stream)
            future.set_result([target])
        return FinishedWork(future)


_ALL_GATHER = _delegated("all_gather_single", "_allgather_base")
_REDUCE_SCATTER = _delegated("reduce_scatter_single", "_reduce_scatter_base")
_ALL_TO_ALL = _delegated("all_to_all_single", "alltoall_base")


def _given(opts: Any) -> tuple[Any, ...]:
    """Options as the last argument, where there are any."""
    return () if opts is None else (opts,)
