"""Reshard tensors of a running torch.distributed job: gloo on CPUs, NCCL on GPUs.

Every rank computes the same plan, so only the data are sent. The messages are those of the
schedule, one point-to-point operation per box, in batches; boxes are slices of the given shards,
regardless of their strides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from collhub_shardings import Move, Side, TensorType, parse_side

from collhub_reshard.planning import ReshardPlan, plan_reshard
from collhub_reshard.strategies import find_audience, find_local_receivers
from hub_core.model import InputError

if TYPE_CHECKING:
    import torch

_DEFAULT_BANDWIDTH = 12.5e9


@dataclass(frozen=True, slots=True)
class _Message:
    """A box from one rank to another.

    `round`: all messages of earlier rounds have finished when it starts.
    """

    row: int
    source: int
    destination: int
    round: int


def reshard(
    tensor: torch.Tensor | None,
    source: str,
    destination: str,
    *,
    shape: tuple[int, ...] | None = None,
    dtype: torch.dtype | None = None,
    host_size: int | None = None,
    host_bandwidth: float = _DEFAULT_BANDWIDTH,
) -> torch.Tensor | None:
    """Return this rank's shard on the destination mesh, None if the rank is not part of it.

    `tensor`: this rank's shard on the source mesh, a DTensor or a plain tensor, None on other
    ranks. If the source is `Partial` along mesh axes, it is this rank's summand: every box is sent
    once per summand, and the destination gets their sum in its element type, added in the order of
    the axes, so that replicas are bitwise equal.

    `source`, `destination`: as `mesh(2,2)@0-3: S0 S1`; meshes may share ranks, and all ranks of the
    group must call this. `shape`, `dtype`: of the full tensor, required on ranks without a shard,
    and equal on all ranks. `host_size`: ranks per host. `host_bandwidth`: bytes per second, used
    only to schedule. Raises `InputError` for a shard that is not the rank's tile, and for meshes
    larger than the group.
    """
    import torch
    import torch.distributed as dist

    shard = _plain(tensor)
    full_shape, element = _find_shape_and_type(tensor, shape, dtype)
    move = _move(full_shape, element, source, destination, host_size)
    rank = dist.get_rank()
    world = dist.get_world_size()
    # Ranks are numbers of the default group.
    last = max(*move.source.mesh.devices, *move.destination.mesh.devices)
    if last >= world:
        message = f"the meshes name rank {last}, the group has {world} ranks"
        raise InputError(message, cure="start more ranks or use smaller meshes")
    _check_shard(shard, move, rank, element)
    plan = plan_reshard([move], host_bandwidth=host_bandwidth)
    output = _allocate_output(
        move, rank, element, torch.device("cpu") if shard is None else shard.device
    )
    _run(plan, move, rank, shard, output)
    return output


def _plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return the local shard of a DTensor; other tensors and None unchanged."""
    if tensor is not None and hasattr(tensor, "to_local"):
        local: torch.Tensor = tensor.to_local()
        return local
    return tensor


def _find_shape_and_type(
    tensor: torch.Tensor | None, shape: tuple[int, ...] | None, dtype: torch.dtype | None
) -> tuple[tuple[int, ...], torch.dtype]:
    """Return shape and element type of the full tensor.

    The given ones take precedence; a DTensor contains both, another tensor only the type. Raises
    `InputError` if one of them is unknown on this rank.
    """
    if shape is None and tensor is not None and hasattr(tensor, "to_local"):
        shape = tuple(tensor.shape)
    dtype = dtype or (None if tensor is None else tensor.dtype)
    if shape is None or dtype is None:
        message = "the shape and dtype of the whole tensor are not known on this rank"
        raise InputError(message, cure="give shape= and dtype= on all ranks")
    return tuple(shape), dtype


def _move(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    source: str,
    destination: str,
    host_size: int | None,
) -> Move:
    """Build the move from the texts of its sides; without `@`, both meshes begin at rank 0.

    `host_size`: devices per host, by default the last dimension of the source mesh.
    """
    name = str(dtype).removeprefix("torch.")
    tensor = TensorType(shape, name)
    start = parse_side(source, len(shape), 0, host_size)
    size = host_size or start.mesh.shape[-1]
    # Ranks are those of the group: without @ both meshes begin at rank 0.
    end = parse_side(destination, len(shape), 0, size)
    return Move(tensor, start, end)


def _check_shard(shard: torch.Tensor | None, move: Move, rank: int, dtype: torch.dtype) -> None:
    """Raise `InputError` unless the shard is the tile that the source spec gives this rank.

    Ranks outside of the source mesh may have any shard.
    """
    bounds = _find_tile(move.source, move.tensor.shape, rank)
    if bounds is None:
        return
    expected = tuple(stop - start for start, stop in bounds)
    if shard is None or tuple(shard.shape) != expected or shard.dtype != dtype:
        actual = "none" if shard is None else f"{tuple(shard.shape)} of {shard.dtype}"
        message = f"rank {rank}: the shard is {actual}, {move.source} gives {expected} of {dtype}"
        raise InputError(message, code="shard-mismatch")


def _find_tile(side: Side, shape: tuple[int, ...], rank: int) -> list[tuple[int, int]] | None:
    """Return (start, stop) of a rank's tile along every dimension, in elements of a tensor of this
    shape; None for a rank outside of the mesh.
    """
    if rank not in side.mesh.devices:
        return None
    cuts = side.placement.boundaries(shape, side.mesh)
    position = side.mesh.devices.index(rank)
    at = side.placement.tile_coordinates(side.mesh)[position].tolist()
    return [(int(cut[i]), int(cut[i + 1])) for cut, i in zip(cuts, at, strict=True)]


def _allocate_output(
    move: Move, rank: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    """Return an uninitialized shard for the destination; None outside of its mesh.

    It has the shape of the rank's tile.
    """
    import torch

    bounds = _find_tile(move.destination, move.tensor.shape, rank)
    if bounds is None:
        return None
    return torch.empty([stop - start for start, stop in bounds], dtype=dtype, device=device)


def _run(
    plan: ReshardPlan,
    move: Move,
    rank: int,
    shard: torch.Tensor | None,
    output: torch.Tensor | None,
) -> None:
    """Send and receive round by round, in ascending order, and finally add up partial sums.

    A rank forwards boxes that it received in an earlier round. `shard` and `output` are the rank's
    tiles of the move's source and destination, None without one; `output` is overwritten.
    """
    shape = move.tensor.shape
    source_shard = _Tiled(shard, _find_tile(move.source, shape, rank))
    target_shard = _Tiled(output, _find_tile(move.destination, shape, rank))
    arrivals = _Arrivals(plan, target_shard, bool(move.source.placement.partial))
    # Messages of one round do not wait for one another.
    rounds: dict[int, list[_Message]] = {}
    for message in _list_messages(plan):
        rounds.setdefault(message.round, []).append(message)
    for _, messages in sorted(rounds.items()):
        _run_round(plan, messages, rank, source_shard, arrivals)
    arrivals.add_up()


@dataclass(frozen=True, slots=True)
class _Tiled:
    """A shard and its range in the full tensor; both None on a rank without one."""

    tensor: torch.Tensor | None
    bounds: list[tuple[int, int]] | None

    def box(self, plan: ReshardPlan, row: int) -> torch.Tensor:
        """Return the view of the box of a unit task: no copy, writes change the tile.

        Its bounds in the entire tensor are moved by the start of this tile. Needs a tile with data.
        """
        assert self.tensor is not None
        assert self.bounds is not None
        first, last = plan.units.start[row].tolist(), plan.units.stop[row].tolist()
        slices: list[slice] = []
        for low, high, (base, _) in zip(first, last, self.bounds, strict=True):
            slices.append(slice(low - base, high - base))
        return self.tensor[tuple(slices)]


@dataclass(slots=True)
class _Arrivals:
    """Destinations of boxes that a rank receives: its tile, or buffers for summands.

    Summands are stored until all have arrived, because a rank may have to forward them. `wanted`:
    the destination shard.
    """

    plan: ReshardPlan
    target: _Tiled
    are_summands: bool
    summands: dict[int, torch.Tensor] = field(default_factory=dict)

    def box(self, row: int) -> torch.Tensor:
        """Return the tensor that stores the box of a unit task, and from which it is forwarded.

        It is a view of the target, or, if arrivals are summands, a separate contiguous tensor,
        allocated uninitialized at the first call for the row.
        """
        view = self.target.box(self.plan, row)
        if not self.are_summands:
            return view
        if row not in self.summands:
            import torch

            self.summands[row] = torch.empty_like(view, memory_format=torch.contiguous_format)
        return self.summands[row]

    def add_up(self) -> None:
        """Store the sums in the shard; does nothing without summands.

        The summands of a box are consecutive rows: the first one is copied to the box, the others
        are added to it in order.
        """
        in_order = sorted(self.summands.items(), key=itemgetter(0))
        for row, summand in in_order:
            view = self.target.box(self.plan, row)
            if self.plan.units.summand[row]:
                view.add_(summand)
            else:
                view.copy_(summand)


def _run_round(
    plan: ReshardPlan,
    messages: Sequence[_Message],
    rank: int,
    source_shard: _Tiled,
    arrivals: _Arrivals,
) -> None:
    """Post all messages of a round at once, wait, and store the received boxes.

    A message from this rank to itself is copied. A message that it sends is read from its source
    shard if it is a sender of the unit task, else from the boxes that have arrived. Messages
    between other ranks are ignored. Received boxes are written to `arrivals` after all operations
    ended.
    """
    import torch
    import torch.distributed as dist

    operations = []
    landings: list[tuple[torch.Tensor, torch.Tensor]] = []
    for message in messages:
        row = message.row
        if message.source == message.destination == rank:
            arrivals.box(row).copy_(source_shard.box(plan, row))
        elif message.source == rank:
            # Otherwise it forwards a box that it has received.
            is_held = bool(np.any(plan.units.senders_of(row) == rank))
            box = source_shard.box(plan, row) if is_held else arrivals.box(row)
            box = box.contiguous()
            operations.append(dist.P2POp(dist.isend, box, message.destination))
        elif message.destination == rank:
            view = arrivals.box(row)
            # A box is rarely contiguous in its tile, but a message must be.
            landing = torch.empty_like(view, memory_format=torch.contiguous_format)
            landings.append((view, landing))
            operations.append(dist.P2POp(dist.irecv, landing, message.source))
    if operations:
        for request in dist.batch_isend_irecv(operations):
            request.wait()
    for view, landing in landings:
        view.copy_(landing)


def _list_messages(plan: ReshardPlan) -> list[_Message]:
    """Return all messages, in an order that every rank shares; unit tasks without bytes have none.

    Local copies and messages within hosts come first, all in round 0. Then, piece by piece, the
    chain of hosts: the message to the first device of the n-th host (from 0) is in round n, those
    on to its other devices in round n + 1.
    """
    messages = []
    for row in range(len(plan.units)):
        if not plan.units.bytes[row]:
            continue
        local = find_local_receivers(plan.units, row)
        messages += [_Message(row, device, device, 0) for device in local.own]
        messages += [_Message(row, source, target, 0) for source, target in local.served]
    for piece in plan.schedule.pieces:
        row = plan.tasks.rows[piece.task]
        audience = find_audience(plan.units, row, piece.sender, plan.tasks.receivers[piece.task])
        source = audience.sender
        for depth, devices in enumerate(audience.hosts.values()):
            messages.append(_Message(row, source, devices[0], depth))
            source = devices[0]
            messages += [_Message(row, source, device, depth + 1) for device in devices[1:]]
    return messages


def move_state(
    state: Mapping[str, torch.Tensor | None],
    shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    sides: Mapping[str, tuple[str, str]],
    host_size: int | None = None,
) -> dict[str, torch.Tensor]:
    """Reshard the tensors of a state dict by name, in the order of `shapes` on every rank.

    `shapes`: full shape and dtype. `sides`: source and destination. Returns only the tensors of
    which this rank has a shard afterwards.
    """
    moved_tensors = {}
    for name, (shape, dtype) in shapes.items():
        source, destination = sides[name]
        shard = state.get(name)
        moved = reshard(shard, source, destination, shape=shape, dtype=dtype, host_size=host_size)
        if moved is not None:
            moved_tensors[name] = moved
    return moved_tensors
