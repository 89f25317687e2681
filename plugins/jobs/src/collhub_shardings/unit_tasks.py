"""Moves of tensors between two shardings, and their unit tasks.

A unit task is the intersection (box) of a source tile and a destination tile, with the devices
that have it and the devices that need it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_shardings.placements import Mesh, MeshPlacement, parse_mesh, parse_placement
from hub_core.columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    distinct,
    expanded_ranges,
    group_of_entry,
    row_pointer,
)
from hub_core.model import InputError

# Bytes per element by the type names of numpy and torch.
_ELEMENT_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
_MOST_ELEMENTS = 1 << 50


@dataclass(frozen=True, slots=True)
class ShapedType:
    """Shape and element type. Raises `InputError` for unknown types."""

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in _ELEMENT_BYTES:
            known = ", ".join(_ELEMENT_BYTES)
            message, cure = f"there is no dtype {self.dtype!r}", f"use one of {known}"
            raise InputError(message, cure=cure, code="invalid-tensor")
        if not self.shape or min(self.shape) < 0 or math.prod(self.shape) > _MOST_ELEMENTS:
            raise InputError(f"shape {self.shape} is not that of a tensor", code="invalid-tensor")

    @property
    def element_bytes(self) -> int:
        """Return the bytes of one element of the tensor."""
        return _ELEMENT_BYTES[self.dtype]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the complete tensor."""
        return math.prod(self.shape) * self.element_bytes

    def __str__(self) -> str:
        return "x".join(map(str, self.shape)) + f":{self.dtype}"


@dataclass(frozen=True, slots=True)
class Side:
    """Source or destination of a move: a mesh and the placement on it."""

    mesh: Mesh
    placement: MeshPlacement

    def __str__(self) -> str:
        # As --from and --to take it.
        return f"{self.mesh}: {self.placement.text(self.mesh)}"


@dataclass(frozen=True, slots=True)
class Move:
    """Move of a tensor from one side to the other.

    A dimension may be cut in more tiles than it has elements: the last devices then hold no
    elements, as `torch.chunk` and DTensor leave them.

    `release_s`: when its producer is done. `due_s`: when its consumer starts, None for any time.
    """

    tensor: ShapedType
    source: Side
    destination: Side
    name: str = "tensor"
    release_s: float = 0.0
    due_s: float | None = None

    def __post_init__(self) -> None:
        if self.destination.placement.partial:
            raise InputError(
                f"{self.name}: the destination {self.destination} is Partial",
                cure="move to Shard or Replicate; summands exist on the source side alone",
                code="invalid-spec",
            )


def parse_tensor(text: str) -> ShapedType:
    """Parse the shape and element type of a tensor such as `1024x1024x512:float32`.

    Surrounding white space is ignored. There is at least one dimension, and a length may be
    0. Raise `InputError` (`invalid-tensor`) for another form, an unknown element type, and
    more than 2^50 elements.
    """
    # Python converts at most 4300 digits.
    match = re.fullmatch(r"([0-9]{1,40}(?:x[0-9]{1,40})*):(\w+)", text.strip())
    if match is None:
        cure = "write for example 1024x1024x512:float32"
        raise InputError(f"{text!r:.80} is no tensor", cure=cure, code="invalid-tensor")
    # Zero is a length too.
    shape = tuple(map(int, match[1].split("x")))
    return ShapedType(shape, match[2])


def parse_side(text: str, rank: int, first_device: int = 0, host_size: int | None = None) -> Side:
    """Parse a mesh with a spec, `mesh(2,4): S0 R R`, for a tensor of `rank` dimensions.

    Devices are numbered in row-major order from `first_device`, unless the mesh lists them.
    `host_size`: devices on a host, by default (None or 0) the size of the last axis; device
    d is on host d // `host_size`. Raise `InputError` (`invalid-mesh`, `invalid-spec`) for
    other text, also without a colon, and `UsageError` for a malformed list of devices.
    """
    # Neither meshes nor specs hold a colon.
    mesh_text, colon, spec = text.partition(":")
    if not colon:
        cure = "write for example 'mesh(2,4): S0 R R'"
        message = f"{text!r:.80} has no spec after its mesh"
        raise InputError(message, cure=cure, code="invalid-spec")
    # The axes of the mesh say what the spec may name.
    mesh = parse_mesh(mesh_text, first_device, host_size)
    return Side(mesh, parse_placement(spec, rank, mesh))


def parse_move(
    tensor: str,
    source: str,
    destination: str,
    *,
    name: str = "tensor",
    host_size: int | None = None,
    release_s: float = 0.0,
    due_s: float | None = None,
) -> Move:
    """Parse a move from texts: a tensor (`8x4:float32`) and two sides (`mesh(2,4): S0 R`).

    A device d is on host d // H. H is `host_size`; if None or 0, the size of the last axis of the
    source. Source devices count from 0, unless listed after `@`. Devices of the destination:
    - Listed after `@`: host d // H, with the H of the source. They may be source devices.
    - Not listed: the numbers after the highest source device. If `host_size` is None, they are on
      new hosts after the highest source host, each with as many devices as the last axis of the
      destination. Otherwise host d // `host_size` (for 0, the last axis of the destination).

    `name`, `release_s` and `due_s` (seconds) are copied. Raises `InputError` (`invalid-tensor`,
    `invalid-mesh`, `invalid-spec`) for invalid texts and a Partial destination, and `UsageError`
    for a malformed list of devices.
    """
    tensor_type = parse_tensor(tensor)
    rank = len(tensor_type.shape)
    start = parse_side(source, rank, 0, host_size)
    first_device = max(start.mesh.devices) + 1
    if "@" in destination.partition(":")[0]:
        # Devices with numbers of their own stand on hosts of one size, whatever their mesh.
        size = host_size or start.mesh.shape[-1]
        end = parse_side(destination, rank, first_device, size)
        return Move(tensor_type, start, end, name, release_s, due_s)
    end = parse_side(destination, rank, first_device, host_size)
    if host_size is None:
        mesh = end.mesh
        first_host, size = max(start.mesh.hosts) + 1, mesh.shape[-1]
        hosts = tuple(first_host + position // size for position in range(mesh.num_devices))
        end = Side(Mesh(mesh.shape, mesh.devices, hosts, mesh.axis_names), end.placement)
    return Move(tensor_type, start, end, name, release_s, due_s)


_MOST_TASKS = 1 << 22


@dataclass(frozen=True, slots=True)
class UnitTasks:
    """Unit tasks as columns, one row a task; of moves in order, destination tiles in row-major
    order, within one the source tiles, within one of these the summands.

    `move`, `source_tile`, `destination_tile`, `elements`, `bytes`, `source_bytes` (of the whole
    source tile): int64[tasks]. `summand`: which of the devices' summands, 0 where there is but one.
    `start`, `stop`: the box, int64[tasks, dimensions], filled up with 0 and 1. Senders of task i
    are the devices `senders[sender_indptr[i]:sender_indptr[i + 1]]`, receivers alike, in the order
    of their meshes. `host_of`: the host of every device that any mesh names, -1 of others.
    """

    move: Int64Array
    source_tile: Int64Array
    destination_tile: Int64Array
    summand: Int64Array
    elements: Int64Array
    bytes: Int64Array
    source_bytes: Int64Array
    start: Int64Array
    stop: Int64Array
    sender_indptr: Int64Array
    senders: Int64Array
    receiver_indptr: Int64Array
    receivers: Int64Array
    host_of: Int64Array

    def __len__(self) -> int:
        return len(self.move)

    def senders_of(self, task: int) -> Int64Array:
        """Return the devices that have the box of a task."""
        # In the order of the mesh, so that choices
        # are the same everywhere.
        return self.senders[self.sender_indptr[task] : self.sender_indptr[task + 1]]

    def receivers_of(self, task: int) -> Int64Array:
        """Return the devices that need the box of a task."""
        # In the order of the mesh: the first of a host
        # is its entry.
        return self.receivers[self.receiver_indptr[task] : self.receiver_indptr[task + 1]]

    def hosts_of(self, devices: Int64Array) -> tuple[int, ...]:
        """Return the hosts of devices, ascending."""
        # Python integers: they are compared and written down.
        return tuple(distinct(self.host_of[devices]).tolist())


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Tiles of one side: cuts per dimension, and devices of every tile and summand.

    `group_of_device`: int64[devices], tile * summands + summand.
    """

    cuts: list[Int64Array]
    counts: tuple[int, ...]
    num_summands: int
    group_of_device: Int64Array
    devices: Int64Array

    def members(self) -> tuple[Int64Array, Int64Array]:
        """Return the groups of devices as CSR (row pointer, devices), in mesh order.

        A group has the devices that hold one summand of one tile; a tensor with partial axes is the
        sum of its summands. Group i is tile i // summands and summand i % summands. There are tiles
        x summands groups, which may be empty.
        """
        # Summands of one tile are groups of their own.
        groups = int(np.prod(self.counts)) * self.num_summands
        # Stable: within a group the order of the mesh stays.
        order = np.argsort(self.group_of_device, kind="stable")
        # Some tiles may have no devices if a mesh is a part.
        sizes = np.bincount(self.group_of_device, minlength=groups)
        return row_pointer(sizes), self.devices[order]


def unit_tasks(moves: Sequence[Move]) -> UnitTasks:
    """Build the unit tasks of moves.

    The box of a task is the intersection of one source tile and one destination tile. A source
    that is a sum over mesh axes has one task per box and summand. Every element of a destination
    tile is in exactly one box. Boxes that a receiver already has are included. A tensor without
    elements has no tasks.

    Tasks are in the order of `moves`, then by destination tile, source tile and summand. Boxes of
    moves with fewer dimensions than the largest number are padded with [0, 1). `host_of` has the
    host of every device of any mesh, -1 for other device numbers.

    Raises `ValueError` without moves. Raises `InputError` (`host-clash`) if meshes place a device
    on different hosts, then (`too-many-tasks`) for the first move with more than 2^22 tasks.
    """
    meshes = [side.mesh for move in moves for side in (move.source, move.destination)]
    host_of = np.full(max(max(mesh.devices) for mesh in meshes) + 1, -1, np.int64)
    for mesh in meshes:
        devices = np.asarray(mesh.devices)
        hosts = np.asarray(mesh.hosts)
        clash = (host_of[devices] >= 0) & (host_of[devices] != hosts)
        if clash.any():
            device = int(devices[clash][0])
            message = f"device {device} stands on two hosts of the meshes"
            raise InputError(message, cure="state -O host_size", code="host-clash")
        host_of[devices] = hosts
    width = max(len(move.tensor.shape) for move in moves)
    parts = [_tasks_of(move, number, width) for number, move in enumerate(moves)]
    columns = {
        name: np.concatenate([part[name] for part in parts])
        for name in parts[0]
        if not name.endswith("_count")
    }
    for side in ("sender", "receiver"):
        counts = np.concatenate([part[f"{side}_count"] for part in parts])
        columns[f"{side}_indptr"] = row_pointer(counts)
    return UnitTasks(**columns, host_of=host_of)


def _tiles(side: Side, shape: Sequence[int]) -> _Tiles:
    mesh, placement = side.mesh, side.placement
    counts = placement.parts(mesh)
    tile = np.ravel_multi_index(tuple(placement.tile_coordinates(mesh).T), counts)
    places = mesh.coordinates()
    summand = np.zeros(mesh.num_devices, np.int64)
    summands = 1
    for axis in placement.partial:
        summand = summand * mesh.shape[axis] + places[:, axis]
        summands *= mesh.shape[axis]
    return _Tiles(
        placement.boundaries(shape, mesh),
        counts,
        summands,
        np.asarray(tile * summands + summand, np.int64),
        np.asarray(mesh.devices, np.int64),
    )


def _tasks_of(move: Move, number: int, width: int) -> dict[str, Int64Array]:
    """Build the columns of the unit tasks of one move, by name.

    A unit task sends the box that one source tile and one destination tile have in common. A
    partial source has a task per box and summand. Tiles without a common box have no task. Tasks
    are ordered by destination tile, source tile and summand.

    `number`: index of the move. `width`: number of dimensions, at least those of the tensor; boxes
    are padded to it with [0, 1). The columns are int64:

    - `move`, `source_tile`, `destination_tile` (row-major numbers in the grids of tiles), `summand`
    - `elements` and `bytes` of the box, `source_bytes` of the entire source tile
    - `start`, `stop`: [tasks, `width`], in elements, `stop` exclusive
    - `sender_count`, `receiver_count`: number of devices of each task
    - `senders`, `receivers`: devices of all tasks, concatenated, each task's in mesh order

    Raises `InputError` (`too-many-tasks`) for more than 2^22 tasks.
    """
    shape = move.tensor.shape
    source, destination = _tiles(move.source, shape), _tiles(move.destination, shape)
    grid = [_cells(*cuts) for cuts in zip(source.cuts, destination.cuts, strict=True)]
    sizes = [len(cell[0]) for cell in grid]
    if np.prod(sizes, dtype=np.float64) * source.num_summands > _MOST_TASKS:
        message = f"{move.name}: more than {_MOST_TASKS} unit tasks"
        raise InputError(message, cure="use coarser specs", code="too-many-tasks")
    # A cell of the common grid is in one tile of each side: it is the box of one task.
    places = np.unravel_index(np.arange(int(np.prod(sizes))), sizes)
    columns = [np.stack([grid[d][k][places[d]] for d in range(len(grid))], 1) for k in range(4)]
    start, stop, source_at, destination_at = columns
    source_tile = np.ravel_multi_index(tuple(source_at.T), source.counts)
    destination_tile = np.ravel_multi_index(tuple(destination_at.T), destination.counts)
    order = np.lexsort((source_tile, destination_tile))
    order = np.repeat(order, source.num_summands)
    summand = np.arange(len(order)) % source.num_summands
    cuts = [np.diff(points) for points in source.cuts]
    tile_sizes = np.stack([cut[source_at[:, d]] for d, cut in enumerate(cuts)], 1)
    elements = (stop - start).prod(axis=1)[order]
    padding = width - len(shape)
    sent = _expanded(source, source_tile[order] * source.num_summands + summand)
    received = _expanded(destination, destination_tile[order])
    element_bytes = move.tensor.element_bytes
    return {
        "move": np.full(len(order), number, np.int64),
        "source_tile": source_tile[order].astype(np.int64),
        "destination_tile": destination_tile[order].astype(np.int64),
        "summand": summand.astype(np.int64),
        "elements": elements,
        "bytes": elements * element_bytes,
        "source_bytes": tile_sizes.prod(axis=1)[order] * element_bytes,
        "start": np.pad(start[order], ((0, 0), (0, padding))),
        "stop": np.pad(stop[order], ((0, 0), (0, padding)), constant_values=1),
        "sender_count": sent[0],
        "senders": sent[1],
        "receiver_count": received[0],
        "receivers": received[1],
    }


def _cells(
    source: Int64Array, destination: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Divide one dimension at all cuts of both sides; return the intervals with their tiles.

    The result is (start, stop, source tile, destination tile), one entry per interval, ascending;
    tiles are numbered along the dimension. `source`, `destination`: ascending cuts of each side,
    from 0 to the length; equal neighbours are an empty tile, which contains no interval.
    """
    points = distinct(np.concatenate([source, destination]))
    start, stop = points[:-1], points[1:]
    # Tiles may be empty: the last tile that starts at a cut contains the interval.
    source_tile = np.searchsorted(source, start, side="right") - 1
    destination_tile = np.searchsorted(destination, start, side="right") - 1
    return start, stop, source_tile, destination_tile


def _expanded(tiles: _Tiles, groups: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the number of devices for each task, and the devices of all tasks, concatenated.

    `groups`: group in `tiles` by task. The devices of a group are in mesh order.
    """
    # Replicas of a tile are found once,
    # whatever the number of its boxes.
    indptr, members = tiles.members()
    # Then every box gets its own list of them.
    counts = np.diff(indptr)[groups]
    return counts, members[expanded_ranges(indptr[groups], counts)]


def device_pairs(tasks: UnitTasks) -> tuple[Int64Array, Int64Array, BoolArray]:
    """Return the pairs of a unit task and a receiver as columns (task, receiver, is held).

    There is one entry for each receiver of each task, by ascending task and, within one, in
    the order of `tasks.receivers`. `task` is the row of the task, and `receiver` the number
    of a device (both int64). `is held` is true if this device is also a sender of the same
    task, which means that it already has the box (the part of the tensor) that the task
    moves.
    """
    task = group_of_entry(tasks.receiver_indptr)
    width = len(tasks.host_of)
    held_keys = group_of_entry(tasks.sender_indptr) * width + tasks.senders
    is_held = np.isin(task * width + tasks.receivers, held_keys)
    return task, tasks.receivers, is_held


def ordinal_in_task(indptr: Int64Array) -> Int64Array:
    """Return the position of every sender or receiver in its task."""
    return counted_positions(np.diff(indptr))
