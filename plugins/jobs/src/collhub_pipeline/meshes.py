"""Stages on device meshes: each holds activations by a spec of its own, and they are resharded.

The last axis of a mesh is a host. A stage hands on the boxes in which its tiles meet those of the
next stage (`collhub_shardings.unit_tasks`); each leaves from the replica that has sent least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from collhub_shardings import (
    Move,
    Side,
    TensorType,
    UnitTasks,
    parse_side,
    parse_tensor,
    unit_tasks,
)

from collhub_pipeline.layouts import ROLES, Ints, Leg, Ranks, grouped
from hub_core import UsageError

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
