"""Where the ranks of a pipeline stand, what each holds of an activation, and what is handed on.

Ranks of a replica stand together, stage by stage. Without meshes, the activations of a micro-batch
are cut evenly among the ranks of a stage, and every rank sends what the other one is to hold of its
slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from collhub_shardings import (
    Move,
    Side,
    TensorType,
    UnitTasks,
    parse_side,
    parse_tensor,
    unit_tasks,
)

from hub_core import UsageError

ROLES = ("tensor", "data")
Ints = npt.NDArray[np.int64]


class Leg(NamedTuple):
    """A message between ranks of the first replica; `is_forwarded`: of what a message brought."""

    source: int
    destination: int
    bytes: int
    is_forwarded: bool = False


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where ranks stand: `widths` ranks a device, `replicas` times."""

    widths: tuple[int, ...]
    replicas: int

    def rank(self, device: int, member: int) -> int:
        """The rank of a member of a device in the first replica."""
        # Stages of fewer ranks take fewer numbers.
        return sum(self.widths[:device]) + member

    def in_replicas(self, rank: int) -> Ints:
        """A rank of the first replica in every replica: int64[replicas]."""
        return rank + sum(self.widths) * np.arange(self.replicas, dtype=np.int64)


class Layout(Protocol):
    """What the ranks of stages hold of activations."""

    @property
    def ranks(self) -> Ranks:
        """Where they stand."""

    def groups(self) -> dict[str, Ints]:
        """By role: ranks that add up partial results, and gradients; a group a row, -1: no rank."""

    def summed_bytes(self, device: int, member: int) -> int:
        """What a rank adds up behind a pass with others that hold the same; 0 where nobody does."""

    def has_copies(self, device: int) -> bool:
        """Whether several ranks hold the same weights of a device, and add up their gradients."""

    def legs(
        self,
        sender: int,
        receiver: int,
    ) -> tuple[Leg, ...]:
        """The messages that hand an activation or gradient from one device to another."""


@dataclass(frozen=True, slots=True)
class EvenSlices:
    """Slices of `activation` bytes in the order of ranks; partial results are whole."""

    ranks: Ranks
    activation: int

    def groups(self) -> dict[str, Ints]:
        """All ranks of a device; the same rank of all replicas."""
        ranks, widths = self.ranks, self.ranks.widths
        rows = []
        for device, width in enumerate(widths):
            row = np.full((ranks.replicas, max(widths)), -1, np.int64)
            first = ranks.in_replicas(ranks.rank(device, 0))
            row[:, :width] = first[:, None] + np.arange(width)
            rows.append(row)
        # Replica by replica, as ranks are.
        tensor = np.stack(rows, axis=1).reshape(-1, max(widths))
        data = np.stack([ranks.in_replicas(rank) for rank in range(sum(widths))])
        return dict(zip(ROLES, (tensor, data), strict=True))

    def summed_bytes(self, device: int, member: int) -> int:
        """The whole activation, among all ranks of a device."""
        return self.activation if self.ranks.widths[device] > 1 else 0

    def has_copies(self, device: int) -> bool:
        """Replicas alone hold the same weights."""
        return self.ranks.replicas > 1

    def legs(self, sender: int, receiver: int) -> tuple[Leg, ...]:
        """What slices of both devices have in common."""
        return tuple(self._common(sender, receiver))

    def _common(self, sender: int, receiver: int) -> Iterator[Leg]:
        widths = self.ranks.widths
        for here in range(widths[sender]):
            begin, end = _slice(here, widths[sender], self.activation)
            for there in range(widths[receiver]):
                first, last = _slice(there, widths[receiver], self.activation)
                common = min(end, last) - max(begin, first)
                if common > 0:
                    ends = self.ranks.rank(sender, here), self.ranks.rank(receiver, there)
                    yield Leg(*ends, common)


def _slice(member: int, members: int, size: int) -> tuple[int, int]:
    """First byte and end of the slice of a member."""
    return member * size // members, (member + 1) * size // members


def grouped(rows: Mapping[object, list[int]]) -> Ints:
    """Groups of ranks as a table, a group a row, filled up with -1."""
    width = max(map(len, rows.values()))
    table = np.full((len(rows), width), -1, np.int64)
    for at, members in enumerate(rows.values()):
        table[at, : len(members)] = sorted(members)
    return table


_CURE = "write for example 'mesh(2,2): S0 R S1', or one for every stage with ; between"


def sides_of(
    text: str,
    tensor: TensorType,
    stages: int,
) -> list[Side]:
    """The meshes and specs of all stages, devices one after another. Raises `HubError`."""
    texts = [part.strip() for part in text.split(";")]
    if len(texts) == 1:
        texts *= stages
    if len(texts) != stages or any("@" in one for one in texts):
        message = f"-O meshes={text} does not state a mesh for each of {stages} stages"
        raise UsageError(message, cure=_CURE, code="option-value")
    sides: list[Side] = []
    first = 0
    for one in texts:
        side = parse_side(one, len(tensor.shape), first)
        if side.placement.partial:
            message = f"-O meshes: activations of {one!r} are summands"
            raise UsageError(message, cure="name S and R alone", code="option-value")
        # A move to itself refuses more tiles than elements.
        Move(tensor, side, side, name="activation")
        sides.append(side)
        first += side.mesh.num_devices
    return sides


@dataclass(frozen=True)
class MeshLayout:
    """Activations of a tensor type on the meshes of stages; `hand_over`: how boxes get to replicas.

    `send-recv`: a message to every receiver. `broadcast`: one to each host, which passes it on.
    `all-gather`: a part to every receiver on a host, which pass their parts on to one another.
    """

    tensor: TensorType
    sides: Sequence[Side]
    replicas: int
    hand_over: str

    @classmethod
    def of(cls, tensor: str, meshes: str, stages: int, replicas: int, hand_over: str) -> MeshLayout:
        """The layout of options. Raises `HubError` for texts that are none."""
        made = parse_tensor(tensor)
        return cls(made, sides_of(meshes, made, stages), replicas, hand_over)

    @cached_property
    def ranks(self) -> Ranks:
        """Where ranks stand."""
        widths = tuple(side.mesh.num_devices for side in self.sides)
        return Ranks(widths, self.replicas)

    def groups(self) -> dict[str, Ints]:
        """Ranks of the same tile; ranks that hold the same weights for other rows of the batch."""
        tensor: dict[object, list[int]] = {}
        data: dict[object, list[int]] = {}
        for device, side in enumerate(self.sides):
            for member, (tile, weights) in enumerate(self._keys(side)):
                ranks = self.ranks.in_replicas(self.ranks.rank(device, member)).tolist()
                data.setdefault((device, weights), []).extend(ranks)
                for replica, rank in enumerate(ranks):
                    tensor.setdefault((replica, device, tile), []).append(rank)
        return dict(zip(ROLES, (grouped(tensor), grouped(data)), strict=True))

    def summed_bytes(self, device: int, member: int) -> int:
        """The tile of a rank, where others hold the same one."""
        side = self.sides[device]
        keys = [tile for tile, _ in self._keys(side)]
        is_shared = keys.count(keys[member]) > 1
        return self._tile_bytes(side, keys[member]) if is_shared else 0

    def has_copies(self, device: int) -> bool:
        """Replicas, and ranks with other rows of the batch."""
        weights = [weights for _, weights in self._keys(self.sides[device])]
        return self.replicas > 1 or len(set(weights)) < len(weights)

    def legs(self, sender: int, receiver: int) -> tuple[Leg, ...]:
        """The boxes of a reshard, those of one pair of ranks together."""
        # Nearly all calls are for a few pairs of devices.
        if (sender, receiver) not in self._legs:
            self._legs[sender, receiver] = tuple(self._resharded(sender, receiver))
        return self._legs[sender, receiver]

    @cached_property
    def _legs(self) -> dict[tuple[int, int], tuple[Leg, ...]]:
        return {}

    def _keys(self, side: Side) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Of every device its tile, and its place along the axes that do not split the batch."""
        tiles = side.placement.tile_coordinates(side.mesh).tolist()
        batch = side.placement.axes[0]
        for tile, place in zip(tiles, side.mesh.coordinates().tolist(), strict=True):
            yield tuple(tile), tuple(at for axis, at in enumerate(place) if axis not in batch)

    def _tile_bytes(self, side: Side, tile: Sequence[int]) -> int:
        cuts = side.placement.boundaries(self.tensor.shape, side.mesh)
        lengths = [int(cut[at + 1] - cut[at]) for cut, at in zip(cuts, tile, strict=True)]
        return int(np.prod(lengths)) * self.tensor.element_bytes

    def _resharded(self, sender: int, receiver: int) -> Iterator[Leg]:
        """Legs in the order of ranks, what is forwarded behind what it is forwarded of."""
        units = unit_tasks([Move(self.tensor, self.sides[sender], self.sides[receiver])])
        size = self.sides[receiver].mesh.shape[-1]
        first = self.ranks.rank(receiver, 0)
        found: dict[tuple[bool, int, int], int] = {}
        sent: dict[int, int] = {}
        for row in range(len(units)):
            hosts: dict[int, list[int]] = {}
            for device in units.receivers_of(row).tolist():
                hosts.setdefault((device - first) // size, []).append(device)
            for members in hosts.values():
                self._add_host(units, row, members, sent, found)
        for (is_forwarded, source, destination), bytes_ in sorted(found.items()):
            yield Leg(source, destination, bytes_, is_forwarded)

    def _add_host(
        self,
        units: UnitTasks,
        row: int,
        members: Sequence[int],
        sent: dict[int, int],
        found: dict[tuple[bool, int, int], int],
    ) -> None:
        """The messages that bring a box to its receivers on one host."""
        total = int(units.bytes[row])
        holders = units.senders_of(row).tolist()
        entries = members[:1] if self.hand_over == "broadcast" else members
        count = len(entries)
        for at, entry in enumerate(entries):
            part = (at + 1) * total // count - at * total // count
            if self.hand_over == "send-recv":
                part = total
            if not part:
                continue
            source = min(holders, key=lambda device: sent.get(device, 0))
            sent[source] = sent.get(source, 0) + part
            legs = [(False, source, entry)]
            if self.hand_over != "send-recv":
                legs += [(True, entry, other) for other in members if other != entry]
            for leg in legs:
                found[leg] = found.get(leg, 0) + part
