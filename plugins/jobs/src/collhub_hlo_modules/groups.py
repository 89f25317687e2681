"""Replica groups of collectives in all spellings as groups of ranks, and placements by shardings.

A placement is, on each axis of a mesh, replicated or blocks of a dimension.

Sources: openxla/xla `xla/hlo/ir/replica_group.cc`, `mesh_and_axis.cc`, `tile_assignment.cc`,
`hlo_sharding.cc` and `xla/service/collective_ops_utils.cc`. The device assignment is not part of
HLO text: the rank of (replica, partition) is assumed to be replica * num_partitions + partition.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from collhub_hlo_modules.text import parse_integers, to_integer
from hub_core.columns import Int64Array

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"\[([\d,\s]*)\]\s*<=\s*\[([\d,\s]*)\](?:\s*T\(([\d,\s]*)\))?\s*\Z")
_MESH = re.compile(
    r"@?mesh\s*\[([^\]]*)\]\s*"
    r"(?:,?\s*device_ids\s*=\s*(\((?:[^()]|\([^()]*\))*\)|\[[^\]]*\](?:<=[^{]*)?))?\s*"
    r"\{([^{}]*)\}\s*\Z"
)
_DEVICE_IOTA = re.compile(r"\[([\d,\s]*)\](?:\s*<=\s*\[([\d,\s]*)\])?(?:\s*T\(([\d,\s]*)\))?\s*\Z")
_AXIS_SIZE = re.compile(r"\s*['\"]?([\w.\-]+)['\"]?\s*=\s*(\d{1,9})\s*\Z")
_AXIS = re.compile(r"\s*['\"]?([\w.\-]+)['\"]?\s*(?::\s*\((\d{1,9})\)\s*(\d{1,9}))?\s*\Z")
_PAIRS = re.compile(r"\{\s*(-?\d{1,18})\s*,\s*(-?\d{1,18})\s*\}")
_GROUP = re.compile(r"\{([\d,\s]*)\}")
_GROUP_LIST = re.compile(r"\{\s*(?:\{[\d,\s]*\}\s*(?:,\s*\{[\d,\s]*\}\s*)*)?\}\Z")
PARTITION_OPERATIONS = frozenset((
    "all-to-all", "collective-permute", "collective-broadcast", "ragged-all-to-all", "send",
    "recv",
))  # fmt: skip
"""Collectives without the attribute `use_global_device_ids`."""
_MAX_DEVICES = 1 << 16
_MAX_CHOICES = 4096
_TILES = re.compile(
    r"devices=\[([\d,\s]+)\](?:<=\[([\d,\s]*)\](?:\s*T\(([\d,\s]*)\))?|([\d,\s]+))?\s*(.*)\Z",
    re.DOTALL,
)
_KINDS = re.compile(r"last_tile_dims=\{([\w,\s]*)\}?")


@dataclass(frozen=True, slots=True)
class Devices:
    """Numbers of replicas and partitions of a module."""

    replicas: int
    partitions: int

    @property
    def count(self) -> int:
        """Number of ranks."""
        return self.replicas * self.partitions

    def grid(self) -> Int64Array:
        """Return the ranks by replica and partition: int64[replicas, partitions]."""
        return np.arange(self.count, dtype=np.int64).reshape(self.replicas, self.partitions)


def find_groups(opcode: str, attributes: Mapping[str, str], devices: Devices) -> Groups:
    """Return the groups of ranks of a collective, each in the order of its ids.

    A channel is a `channel_id` above 0. The rank of (replica, partition) is replica *
    partitions + partition. The meaning of the ids in `replica_groups`:

    - No channel: replicas. All groups are returned for partition 0, then for partition 1,
      ....
    - A channel and an opcode of `PARTITION_OPERATIONS`, such as all-to-all: partitions.
      All groups are returned for replica 0, then for replica 1, ....
    - A channel, another opcode and `use_global_device_ids`: ranks. The groups are used as
      they are.
    - Otherwise: replicas. Each group is returned once, with all partitions of each replica.

    Missing or empty groups mean one group of all ids, but are an error if the ids are
    ranks. Raises `ValueError`, in this order, for:

    1. a `channel_id` that is no integer, and `use_global_device_ids` without a channel
    2. text that is no list of groups, iota or mesh
    3. empty groups of ranks
    4. ids that are out of range, repeated, or missing (missing is allowed for
       `collective-broadcast`)
    """
    is_flat, columns = _mode(opcode, attributes, devices)
    text = attributes.get("replica_groups", "{}")
    if text.lstrip().startswith(("mesh", "@mesh")) and "device_ids" in attributes:
        # The comma before `device_ids` separated it from the mesh.
        text = f"{text}, device_ids={attributes['device_ids']}"
    groups = parse_groups(text, len(columns))
    if not groups:
        if is_flat:
            raise ValueError("empty replica_groups are not allowed with use_global_device_ids")
        groups = (tuple(range(len(columns))),)
    is_of_replicas = devices.partitions > 1 and not is_flat and _is_joined(opcode, attributes)
    noun = "replica" if is_of_replicas else "id"
    _check_ids(groups, len(columns), noun, is_partial=opcode == "collective-broadcast")
    if is_flat:
        return groups
    if _is_joined(opcode, attributes):
        return tuple(tuple(columns[list(ids)].reshape(-1).tolist()) for ids in groups)
    return tuple(
        tuple(columns[list(ids), column].tolist())
        for column in range(columns.shape[1])
        for ids in groups
    )


def find_pairs(text: str, opcode: str, attributes: Mapping[str, str], devices: Devices) -> Groups:
    """Return the (source, target) ranks of a permutation or message; () for `{}`.

    `text`: the `source_target_pairs`, such as `{{0,1},{1,0}}`. Without a channel (`channel_id`
    absent, 0 or negative), the ids are replicas, and all pairs apply within every partition. With a
    channel, and an `opcode` in `PARTITION_OPERATIONS`, the ids are partitions, and all pairs apply
    within every replica. For other opcodes with a channel see `_mode`. The result has all pairs in
    the order of the text for partition (or replica) 0, then for 1, and so on.

    Raises `ValueError` with the reason in the first of these cases:

    - The text is no list of pairs.
    - `channel_id` is no integer, or `use_global_device_ids=true` occurs without a channel.
    - An id is out of range, or occurs twice as source or twice as target.
    """
    pairs = [(int(source), int(target)) for source, target in _PAIRS.findall(text)]
    if re.sub(r"[\s,{}]", "", _PAIRS.sub("", text)):
        raise ValueError(f"source_target_pairs {text[:60]!r} is no list of pairs")
    _, columns = _mode(opcode, attributes, devices)
    for index, side in enumerate(("source", "target")):
        _check_ids(tuple((pair[index],) for pair in pairs), len(columns), side, is_partial=True)
    return tuple(
        (int(columns[source, column]), int(columns[target, column]))
        for column in range(columns.shape[1])
        for source, target in pairs
    )


def parse_groups(text: str, count: int) -> Groups:
    """Parse groups of ids, written as lists, iota or mesh; () for `{}`.

    `count`: number of ids, which every iota and mesh must have.

    - A list has groups of ids in braces, separated by commas: `{{0,1},{2,3}}`. Empty groups are
      dropped. Ids are not checked for duplicates or an upper limit.
    - An iota `[2,2]<=[4]` has 2 groups of 2 ids: ((0, 1), (2, 3)). The ids are reshaped to the
      sizes after `<=` and transposed by `T(...)`, if given. They are then cut into groups in
      this order.
    - For a mesh see `_mesh_groups`.

    Raises `ValueError` for other text and for wrong numbers of ids or groups.
    """
    text = text.strip()
    if match := _IOTA.match(text):
        sizes = parse_integers(match[1])
        if len(sizes) != 2:
            raise ValueError(f"replica_groups {text[:60]!r}: not [groups, size]<=[...]")
        groups = _to_groups(expand_iota(match[2], match[3], count), sizes[1], text)
        if len(groups) != sizes[0]:
            result = f"groups of {sizes[1]} in the ids below {count}: {len(groups)}"
            raise ValueError(f"replica_groups {text[:60]!r}: {result}, not {sizes[0]}")
        return groups
    if match := _MESH.match(text):
        return _mesh_groups(match, count, text)
    if not text.startswith("{") or re.sub(r"[\s,{}\d]", "", text):
        raise ValueError(f"replica_groups {text[:60]!r} is no list, iota or mesh")
    if not _GROUP_LIST.match(text):
        raise ValueError(f"replica_groups {text[:60]!r} is no list of groups")
    listed = (parse_integers(group_text) for group_text in _GROUP.findall(text[1:-1]))
    return tuple(group for group in listed if group)


def _mode(opcode: str, attributes: Mapping[str, str], devices: Devices) -> tuple[bool, Int64Array]:
    """Return the meaning of the ids in groups: whether they are ranks, and the ranks of each id.

    The table of ranks is int64[ids, ranks of an id]: an id that is a partition has one rank
    per replica, a replica one per partition, a rank only itself. Without a channel (absent,
    0 or negative), ids are replicas. With a channel, ids are partitions for
    `PARTITION_OPERATIONS`, ranks with `use_global_device_ids`, and replicas otherwise.
    Raise `ValueError` for a `channel_id` that is no integer, and for
    `use_global_device_ids` without a channel.
    """
    has_channel = to_integer(attributes.get("channel_id", "0")) > 0
    is_global = attributes.get("use_global_device_ids") == "true"
    grid = devices.grid()
    if is_global and not has_channel:
        raise ValueError("use_global_device_ids needs a channel_id")
    if not has_channel:
        return False, grid
    if opcode in PARTITION_OPERATIONS:
        return False, grid.T
    return (True, grid.reshape(-1, 1)) if is_global else (False, grid)


def _is_joined(opcode: str, attributes: Mapping[str, str]) -> bool:
    """Check whether a group of replicas includes all partitions of these replicas.

    True if it has a channel (`channel_id` above 0), and its opcode is none of
    `PARTITION_OPERATIONS` (all-to-all, collective-permute, collective-broadcast, ragged-all-to-all,
    send, recv). Raise `ValueError` for a `channel_id` that is no integer.
    """
    has_channel = to_integer(attributes.get("channel_id", "0")) > 0
    return has_channel and opcode not in PARTITION_OPERATIONS


def _check_ids(groups: Groups, count: int, noun: str = "id", *, is_partial: bool = False) -> None:
    seen = bytearray(count)
    for group in groups:
        for identity in group:
            if not 0 <= identity < count:
                raise ValueError(f"{noun} {identity} is not in 0..{count - 1}")
            if seen[identity]:
                raise ValueError(f"{noun} {identity} occurs twice")
            seen[identity] = 1
    if not is_partial and (missing := seen.find(0)) >= 0:
        raise ValueError(f"{noun} {missing} is in no group")


def expand_iota(dimensions: str, order: str | None, count: int) -> Int64Array:
    """Return the ids 0 to count - 1 in the order of an HLO iota, as int64[count].

    The ids are reshaped to `dimensions`, their axes are permuted by `order`, and the result
    is flattened.

    `dimensions`: sizes separated by commas, such as `2,4`; brackets around them are ignored.
    `order`: axis numbers from 0 in the same form, or None to keep the order. Raises
    `ValueError` if a text has other entries than integers, if the product of the sizes is not
    `count` (the product is 1 without sizes), or if `order` does not contain every axis
    exactly once.
    """
    sizes = parse_integers(dimensions)
    size = prod(sizes)
    if size != count:
        raise ValueError(f"an iota of {size} ids, but there are {count}")
    values = np.arange(count, dtype=np.int64)
    if order is None:
        return values
    axes = parse_integers(order)
    if sorted(axes) != list(range(len(sizes))):
        raise ValueError(f"T({order[:40]}) is no order of {len(sizes)} dimensions")
    return _transposed(values, sizes, axes)


def _mesh_groups(match: re.Match[str], count: int, text: str) -> Groups:
    """Return the groups of devices along the named axes of a mesh.

    A group contains the devices that differ in the named axes only, with the last named axis
    fastest. Groups follow the order of the other axes, the last one fastest. If only a sub-axis
    is named, the other factors of its axis count as other axes (`_split_axes`). Without named
    axes every device is a group. `match`: of `_MESH`, with axes and sizes, device ids in the order
    of the mesh (0, 1, ... if absent), and named axes. Ids are a list in parentheses, `(0,2,1,3)`,
    or an iota, also without parentheses: `[4]` gives 0, 1, 2, 3, and `[4]<=[2,2]T(1,0)` gives
    0, 2, 1, 3; brackets before `<=` are ignored. `text`: for errors.

    Raises `ValueError` for malformed, unknown, duplicate or overlapping axes, for a mesh with
    another number of devices than `count`, for a sub-axis that does not divide its axis, for
    device ids that are no permutation, and for more than 32 factors or dimensions of an iota.
    """
    axes = {}
    for part in filter(str.strip, match[1].split(",")):
        if not (axis := _AXIS_SIZE.match(part)) or axis[1] in axes:
            raise ValueError(f"replica_groups {text[:60]!r}: no axis {part.strip()!r}")
        axes[axis[1]] = int(axis[2])
    size = prod(axes.values())
    if size != count:
        raise ValueError(f"replica_groups {text[:60]!r}: {size} devices, but there are {count}")
    sizes, used = _split_axes(axes, match[3], text)
    rest = [axis_index for axis_index in range(len(sizes)) if axis_index not in used]
    devices = np.arange(count, dtype=np.int64)
    if match[2]:
        ids = match[2].strip()
        inside = ids[1:-1] if ids.startswith("(") else ids
        if iota := _DEVICE_IOTA.match(inside):
            # Without `<=`, `[4]` states dimensions as well.
            devices = expand_iota(iota[2] or iota[1], iota[3], count)
        else:
            devices = np.array(parse_integers(inside), np.int64)
        if sorted(devices.tolist()) != list(range(count)):
            raise ValueError(f"device_ids {ids[:60]!r} is no permutation of {count} devices")
    size = prod(sizes[axis_index] for axis_index in used)
    return _to_groups(_transposed(devices, tuple(sizes), (*rest, *used)), size, text)


def _split_axes(axes: Mapping[str, int], named: str, text: str) -> tuple[list[int], list[int]]:
    """Split the axes of a mesh into factors, and find the factors that are named.

    `axes`: size by name, in order. `named`: axes or sub-axes, separated by commas. A
    sub-axis `x:(before)size` divides axis x into before, size and the rest, and names the
    middle factor. `text` is used in messages.

    Returns (sizes, positions): the sizes of all factors, in the order of the axes, the
    slowest first, and the positions of the named ones, in the order of `named`. Factors of
    size 1 are left out. A named axis that another sub-axis divides gives all of its
    factors. Example: axes x=8, `named` `x:(2)2` give ([2, 2, 2], [1]).

    Raises `ValueError` for an unknown axis, a sub-axis that does not divide it, sub-axes
    that overlap, and a factor that is named twice.
    """
    cuts: dict[str, set[int]] = {name: {1, size} for name, size in axes.items()}
    parts = []
    for piece in filter(str.strip, named.split(",")):
        axis = _AXIS.match(piece)
        if not axis or axis[1] not in axes:
            raise ValueError(f"replica_groups {text[:60]!r}: there is no axis {piece.strip()!r}")
        before, size = (int(axis[2]), int(axis[3])) if axis[2] else (1, axes[axis[1]])
        if before < 1 or size < 1 or axes[axis[1]] % (before * size):
            part = piece.strip()
            raise ValueError(f"replica_groups {text[:60]!r}: sub-axis {part!r} is no factor")
        cuts[axis[1]] |= {before, before * size}
        parts.append((axis[1], before, before * size))
    sizes: list[int] = []
    position: dict[tuple[str, int], int] = {}
    for name, bounds in cuts.items():
        factors = sorted(bounds)
        for first, last in itertools.pairwise(factors):
            if last % first:
                raise ValueError(f"replica_groups {text[:60]!r}: sub-axes of {name!r} overlap")
            position[name, first] = len(sizes)
            sizes.append(last // first)
    used = [
        position[name, first]
        for name, before, after in parts
        for first in sorted(cuts[name])
        if before <= first < after
    ]
    if len(set(used)) < len(used):
        raise ValueError(f"replica_groups {text[:60]!r} names a part of an axis twice")
    return sizes, used


def _to_groups(ids: Int64Array, size: int, text: str) -> Groups:
    if size < 1 or len(ids) % size:
        raise ValueError(f"replica_groups {text[:60]!r}: {len(ids)} ids in groups of {size}")
    return tuple(tuple(group) for group in ids.reshape(-1, size).tolist())


def _transposed(values: Int64Array, sizes: tuple[int, ...], axes: tuple[int, ...]) -> Int64Array:
    if len(sizes) > 32:
        raise ValueError(f"{len(sizes)} dimensions; at most 32 are read")
    return values.reshape(sizes).transpose(axes).reshape(-1)


def find_placement(sharding: str, devices: Sequence[int], sizes: Sequence[int], count: int) -> str:
    """Return the placement of a tensor on a mesh, such as `R`, `S(0)` or `(S(0), R)`.

    `sharding`: HLO text; `devices`: device of each rank of the mesh; `sizes`: ranks along its axes,
    the slowest first; `count`: devices of the module.

    - A replicated sharding: `R`, for any mesh and any devices.
    - A mesh of one axis: one placement, of several axes: a tuple with one per axis. Axes that shard
      the same dimension nest in order. A dimension is not sharded (R) if all ranks of the mesh have
      the same block of it.
    - Several fit: the first, in the order R, then ascending dimensions, the last axis fastest.

    Returns `""` for a missing sharding, a tuple (`{{`), tiles that `_parse_tiles` refuses, devices
    that do not fit `sizes` or `count`, no fit, and more than 4096 combinations.
    """
    text = sharding.strip()
    if text.startswith("{{"):
        # A tuple has one sharding per member.
        return ""
    text = text.strip("{}").strip()
    if text.startswith("replicated"):
        return "R"
    tiles = _parse_tiles(text, count)
    if tiles is None or len(devices) != prod(sizes) or max(devices, default=count) >= count:
        return ""
    # Blocks that all ranks of the mesh have in common are complete tensors of the program.
    tiles = tiles[list(devices)]
    tiles = tiles - tiles[0]
    coordinates = np.indices(tuple(sizes), dtype=np.int64).reshape(len(sizes), -1)
    dimensions = [place for place in range(tiles.shape[1]) if tiles[:, place].any()]
    if (len(dimensions) + 1) ** len(sizes) > _MAX_CHOICES:
        return ""
    for choice in product((-1, *dimensions), repeat=len(sizes)):
        blocks = np.zeros_like(tiles)
        for axis, dimension in enumerate(choice):
            if dimension >= 0:
                blocks[:, dimension] = blocks[:, dimension] * sizes[axis] + coordinates[axis]
        if np.array_equal(blocks, tiles):
            found = ["R" if dimension < 0 else f"S({dimension})" for dimension in choice]
            return found[0] if len(found) == 1 else f"({', '.join(found)})"
    return ""


def _parse_tiles(text: str, count: int) -> Int64Array | None:
    """Return the block of the tensor on every device: int64[devices, dimensions].

    `text`: HLO sharding, such as `devices=[2,2]<=[4]`; `count`: number of devices. Row d has
    the block number of device d in each dimension, from 0. The trailing dimensions that only
    replicate (`last_tile_dim_replicate`, `last_tile_dims`) are left out.

    Returns None in these cases:

    - The text has no tiles, or an empty number, as in `devices=[2,,2]`.
    - `count` is below 1, above 2^16, or not the product of the tile counts.
    - The devices are not 0..`count` - 1, each once.
    - A trailing dimension has another meaning, such as `manual`.
    - No dimension is left.
    """
    match = _TILES.search(text)
    if match is None or not 0 < count <= _MAX_DEVICES:
        return None
    try:
        dims = parse_integers(match[1])
    except ValueError:
        return None
    kinds = _KINDS.search(match[5])
    words = [word.strip() for word in kinds[1].split(",")] if kinds else []
    copies = len(words) or int("last_tile_dim_replicate" in match[5])
    is_replicated = set(words) <= {"replicated"}
    if not is_replicated or copies >= len(dims) or prod(dims) != count:
        return None
    try:
        if match[2] is not None:
            order = expand_iota(match[2], match[3], count)
        else:
            order = np.array(parse_integers(match[4] or ""), np.int64)
    except ValueError:
        return None
    if sorted(order.tolist()) != list(range(count)):
        return None
    tiles = np.empty((count, len(dims)), np.int64)
    tiles[order] = np.indices(dims, dtype=np.int64).reshape(len(dims), -1).T
    return tiles[:, : len(dims) - copies]
