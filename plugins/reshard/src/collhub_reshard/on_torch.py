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
from collhub_shardings import Move, ShapedType, Side, parse_side

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
    """Reshard a tensor among the ranks of the default group; return this rank's new shard.

    All ranks must call this with equal arguments, except `tensor`: the shard (DTensor or plain) on
    the source mesh, not changed. The result is a new plain tensor on its device (CPU for None), or
    None outside of the destination mesh. `source`, `destination`: `mesh(2,2)@0-3: S0 S1`; without
    `@` from rank 0. `shape`, `dtype`: of the full tensor, by default those of a DTensor; a plain
    tensor has only the dtype. `host_size`: ranks per host, by default (None, 0) the last source
    dimension. `host_bandwidth`: bytes/s, for scheduling. Summands of a `Partial` source are all
    sent, and added in the element type in the order of the axes: replicas are bitwise equal.
    Raises `UsageError` for an invalid rank list after `@`. Raises `InputError` for other invalid
    texts, a `Partial` destination, an unknown shape or dtype, a shape without dimensions, and a
    rank outside of the group; `shard-mismatch` if a source rank's shard is missing or differs.
    """
    import torch
    import torch.distributed as dist

    shard = tensor
    # A DTensor, i.e. any object with `to_local`, contains its shard.
    if tensor is not None and hasattr(tensor, "to_local"):
        shard = tensor.to_local()
        shape = tuple(tensor.shape) if shape is None else shape
    element = dtype or (None if tensor is None else tensor.dtype)
    if shape is None or element is None:
        message = "the shape and dtype of the whole tensor are not known on this rank"
        raise InputError(message, cure="give shape= and dtype= on all ranks")

    # Ranks are those of the group: without @ both meshes begin at rank 0.
    whole = ShapedType(tuple(shape), str(element).removeprefix("torch."))
    start = parse_side(source, len(shape), 0, host_size)
    end = parse_side(destination, len(shape), 0, host_size or start.mesh.shape[-1])
    move = Move(whole, start, end)
    rank = dist.get_rank()
    world = dist.get_world_size()
    # Ranks are numbers of the default group.
    last = max(*move.source.mesh.devices, *move.destination.mesh.devices)
    if last >= world:
        message = f"the meshes name rank {last}, the group has {world} ranks"
        raise InputError(message, cure="start more ranks or use smaller meshes")
    _check_shard(shard, move, rank, element)
    plan = plan_reshard([move], host_bandwidth=host_bandwidth)
    output = None
    bounds = _find_tile(move.destination, move.tensor.shape, rank)
    if bounds is not None:
        device = torch.device("cpu") if shard is None else shard.device
        output = torch.empty([stop - start for start, stop in bounds], dtype=element, device=device)
    _run(plan, move, rank, shard, output)
    return output


def _check_shard(shard: torch.Tensor | None, move: Move, rank: int, dtype: torch.dtype) -> None:
    """Check that a shard has the shape and type of the tile that the source gives this rank.

    `shard`: None without one. `dtype`: the element type of the full tensor. Device and
    strides are not checked. A rank outside of the source mesh may have any shard or None.
    Raises `InputError` (`shard-mismatch`) if a rank of the mesh has no shard, or one of
    another shape or type.
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
    """Return (start, stop) of a rank's tile along every dimension, in elements; stop is excluded.

    `shape`: of the full tensor. If there are more tiles than elements along a dimension,
    start and stop of the last ones are equal. Returns `None` for a rank outside of the
    mesh.
    """
    if rank not in side.mesh.devices:
        return None
    cuts = side.placement.boundaries(shape, side.mesh)
    position = side.mesh.devices.index(rank)
    at = side.placement.tile_coordinates(side.mesh)[position].tolist()
    return [(int(cut[i]), int(cut[i + 1])) for cut, i in zip(cuts, at, strict=True)]


def _run(
    plan: ReshardPlan,
    move: Move,
    rank: int,
    shard: torch.Tensor | None,
    output: torch.Tensor | None,
) -> None:
    """Send and receive the messages of this rank round by round; write the result to `output`.

    All ranks must call this with the same plan; each waits for its messages. In a later
    round a rank may forward boxes that it received earlier. At the end, partial sums are
    added up. `shard` and `output`: the tiles of this rank in source and destination, None
    outside of the mesh. `shard` is not changed.
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
        """Return a view of the box of a unit task in this tile; writes to it change the tile.

        `row`: unit task. The tile must have data and contain the box.
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
        """Return the tensor in which a received box is stored, and from which it is forwarded.

        `row`: unit task. The tensor is a view of the target tile. If the source has partial sums,
        it is a separate contiguous tensor instead, which the first call for the unit task allocates
        uninitialized.
        """
        view = self.target.box(self.plan, row)
        if not self.are_summands:
            return view
        if row not in self.summands:
            import torch

            self.summands[row] = torch.empty_like(view, memory_format=torch.contiguous_format)
        return self.summands[row]

    def add_up(self) -> None:
        """Store the sums of the received summands in the target tile; do nothing without summands.

        The summands of a box are consecutive unit tasks. The first one is copied to the box, and
        the others are added in the order of unit tasks.
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
    """Exchange those messages of one round that this rank sends or receives, and wait for them.

    `messages`: those of all ranks; other ranks' messages are skipped. A message from this rank
    to itself is a copy from `source_shard` to `arrivals`. A box to send is read from
    `source_shard` if the rank is one of its original senders, otherwise from `arrivals`, where
    an earlier round stored it.

    All sends and receives of the round are started as one batch, in the order of `messages`.
    Received boxes are stored in `arrivals` (the target tile, or buffers for summands) after all
    of them have ended. Errors of `torch.distributed` pass through.
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
    """Return all messages of a plan with their rounds, in the same order on every rank.

    First, per unit task with bytes, in order, those within a host, all in round 0:

    1. a message to itself for each receiver that holds the box
    2. for each other receiver on a holder's host, a message from the first holder there

    Then the pieces of the schedule in order. A piece passes the hosts n = 0, 1, ... of its chain.
    The first device of host n gets it in round n from the first device of host n - 1, or from the
    sending device for n = 0. It sends the piece to the other receivers of host n in round n + 1.

    Receivers are in the order of the unit task. The list is empty without unit tasks.
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
    """Reshard the tensors of a state dict; return the new shards of this rank by name.

    All ranks of the default group must call this. Tensors whose destination mesh does not
    have this rank are left out of the result. `state`: shards of this rank by name, absent
    or None without one; names that are not in `shapes` are ignored. `shapes`: full shape
    and dtype by name; all ranks must have the same names in the same order, which is the
    order of communication and of the result. `sides`: (source, destination) by name.
    `host_size`: ranks per host, as for `reshard`. Raises `KeyError` for a name without
    sides, and the errors of `reshard`; earlier tensors have then been moved.
    """
    moved_tensors = {}
    for name, (shape, dtype) in shapes.items():
        source, destination = sides[name]
        shard = state.get(name)
        moved = reshard(shard, source, destination, shape=shape, dtype=dtype, host_size=host_size)
        if moved is not None:
            moved_tensors[name] = moved
    return moved_tensors
