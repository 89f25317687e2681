"""Layouts of a pipeline: ranks of stages, slices of activations, messages between stages.

Ranks of a replica are consecutive, stage by stage. Without meshes, the activations of a micro-batch
are cut evenly among the ranks of a stage, and a rank sends the overlap of its slice and that of the
receiver. On meshes, each stage has a sharding spec, and activations are resharded: a stage sends
the boxes in which its tiles intersect those of the next stage (`collhub_shardings.unit_tasks`),
each from the replica that has sent the fewest bytes. The last axis of a mesh is a host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from collhub_shardings import (
    Move,
    ShapedType,
    Side,
    UnitTasks,
    parse_side,
    parse_tensor,
    unit_tasks,
)

from hub_core import UsageError
from hub_core.columns import Int64Array

ROLES = ("tensor", "data")


class Leg(NamedTuple):
    """Message between ranks of the first replica; `is_forwarded`: its data was received before."""

    source: int
    destination: int
    bytes: int
    is_forwarded: bool = False


@dataclass(frozen=True, slots=True)
class Ranks:
    """Numbering of ranks: `widths` ranks per device, `replicas` times."""

    widths: tuple[int, ...]
    replicas: int

    def rank(self, device: int, member: int) -> int:
        """Return the rank of a member of a device in the first replica."""
        return sum(self.widths[:device]) + member

    def in_replicas(self, rank: int) -> Int64Array:
        """Return the ranks that correspond to a rank of the first replica: int64[replicas]."""
        return rank + sum(self.widths) * np.arange(self.replicas, dtype=np.int64)


class ActivationLayout(Protocol):
    """Distribution of activations to the ranks of stages."""

    @property
    def ranks(self) -> Ranks:
        """Where they stand."""

    def groups(self) -> dict[str, Int64Array]:
        """Return by role the groups that reduce partial results and gradients; rows end with -1."""

    def summed_bytes(self, device: int, member: int) -> int:
        """Return the bytes that a rank reduces after a pass; 0 without a reduction."""

    def has_copies(self, device: int) -> bool:
        """Return whether several ranks have the same weights of a device and reduce gradients."""

    def legs(
        self,
        sender: int,
        receiver: int,
    ) -> tuple[Leg, ...]:
        """Return the messages that send an activation or gradient to another device."""


@dataclass(frozen=True, slots=True)
class EvenSlices:
    """Even slices of `activation` bytes in rank order; partial results are complete."""

    ranks: Ranks
    activation: int

    def groups(self) -> dict[str, Int64Array]:
        """Return the groups of ranks by role, `tensor` and `data`, as tables of one group per row.

        - `tensor`: the ranks of one device in one replica, ascending, padded with -1 to the widest
          device. Rows are ordered by replica, then device.
        - `data`: the ranks at the same position in all replicas, in the order of the replicas. Rows
          are in the order of the ranks of a replica.
        """
        ranks, widths = self.ranks, self.ranks.widths
        rows = []
        for device, width in enumerate(widths):
            row = np.full((ranks.replicas, max(widths)), -1, np.int64)
            first = ranks.in_replicas(ranks.rank(device, 0))
            row[:, :width] = first[:, None] + np.arange(width)
            rows.append(row)
        # Replica by replica, in rank order.
        tensor = np.stack(rows, axis=1).reshape(-1, max(widths))
        data = np.stack([ranks.in_replicas(rank) for rank in range(sum(widths))])
        return dict(zip(ROLES, (tensor, data), strict=True))

    def summed_bytes(self, device: int, member: int) -> int:
        """Return the bytes of the activation if the device has several ranks."""
        return self.activation if self.ranks.widths[device] > 1 else 0

    def has_copies(self, device: int) -> bool:
        """Return whether replicas exist; only they have the same weights."""
        return self.ranks.replicas > 1

    def legs(self, sender: int, receiver: int) -> tuple[Leg, ...]:
        """Return the intersections of slices of both devices."""
        widths = self.ranks.widths
        legs: list[Leg] = []
        for sender_member in range(widths[sender]):
            begin, end = _slice(sender_member, widths[sender], self.activation)
            for receiver_member in range(widths[receiver]):
                first, last = _slice(receiver_member, widths[receiver], self.activation)
                common = min(end, last) - max(begin, first)
                if common > 0:
                    source = self.ranks.rank(sender, sender_member)
                    destination = self.ranks.rank(receiver, receiver_member)
                    legs.append(Leg(source, destination, common))
        return tuple(legs)


def _slice(member: int, members: int, size: int) -> tuple[int, int]:
    """Return the first byte and the end of the slice of a member."""
    return member * size // members, (member + 1) * size // members


def grouped(rows: Mapping[object, list[int]]) -> Int64Array:
    """Convert groups of ranks to a table: one group per row, ascending, padded with -1.

    Rows are in the order of `rows`, whose keys do not count; the result is int64, as wide as the
    largest group. Raises `ValueError` without groups.
    """
    width = max(map(len, rows.values()))
    table = np.full((len(rows), width), -1, np.int64)
    for at, members in enumerate(rows.values()):
        table[at, : len(members)] = sorted(members)
    return table


_CURE = "write for example 'mesh(2,2): S0 R S1', or one for every stage with ; between"


def sides_of(
    text: str,
    tensor: ShapedType,
    stages: int,
) -> list[Side]:
    """Parse the meshes and specs of all stages, which `;` separates; return one side per stage.

    Each side has the mesh and the spec of a stage. A single text applies to every stage. Devices
    are numbered from 0 without gaps, stage by stage: with the text `mesh(2,2): S0 R` and two
    stages, the first has the devices 0 to 3 and the second 4 to 7.

    Raises `UsageError` (`option-value`) if the number of texts is neither 1 nor `stages`, and if a
    text has device numbers (`@`). Then the texts are parsed in order. The first fault raises
    `HubError` for an invalid spec, `UsageError` (`option-value`) for partial placements (sums), or
    `HubError` for more tiles than elements of `tensor`.
    """
    texts = [part.strip() for part in text.split(";")]
    if len(texts) == 1:
        texts *= stages
    if len(texts) != stages or any("@" in side_text for side_text in texts):
        message = f"-O meshes={text} does not state a mesh for each of {stages} stages"
        raise UsageError(message, cure=_CURE, code="option-value")
    sides: list[Side] = []
    first = 0
    for side_text in texts:
        side = parse_side(side_text, len(tensor.shape), first)
        if side.placement.partial:
            message = f"-O meshes: activations of {side_text!r} are summands"
            raise UsageError(message, cure="name S and R alone", code="option-value")
        # `Move` refuses specs with more tiles than elements.
        Move(tensor, side, side, name="activation")
        sides.append(side)
        first += side.mesh.num_devices
    return sides


@dataclass(frozen=True)
class MeshLayout:
    """Activations of a tensor type on the meshes of stages; `hand_over`: transfer to replicas.

    `send-recv`: a message to every receiver. `broadcast`: one message to each host, whose receiver
    forwards it. `all-gather`: a chunk to every receiver on a host, which exchange their chunks.
    """

    tensor: ShapedType
    sides: Sequence[Side]
    replicas: int
    hand_over: str

    @classmethod
    def of(cls, tensor: str, meshes: str, stages: int, replicas: int, hand_over: str) -> MeshLayout:
        """Parse a layout from the texts of the options `activation_tensor` and `meshes`.

        `stages`: number of stages, which `meshes` must fit; `replicas`: copies of the pipeline.
        `hand_over`: how a mesh gets its tiles: `send-recv` (directly), `broadcast` (once per host,
        then forwarded), anything else (in parts, then forwarded). Raises `HubError` for invalid
        texts.
        """
        tensor_type = parse_tensor(tensor)
        return cls(tensor_type, sides_of(meshes, tensor_type, stages), replicas, hand_over)

    @cached_property
    def ranks(self) -> Ranks:
        """Return the numbering of the ranks: one rank per device of each stage's mesh.

        Ranks count stage by stage, and replica by replica.
        """
        widths = tuple(side.mesh.num_devices for side in self.sides)
        return Ranks(widths, self.replicas)

    def groups(self) -> dict[str, Int64Array]:
        """Return the groups of both roles in `ROLES` as tables, one group per row, padded with -1.

        The ranks in a row ascend. A tensor group has all ranks of one stage's mesh in one
        replica that hold the same tile of the activation; rows are ordered by stage, then by
        the lowest rank in the first replica, then by replica. A data group has all ranks of one
        stage's mesh, in all replicas, that hold the same weights but different rows of the
        batch; rows are ordered by stage, then by the lowest rank. A group may have one rank.
        """
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
        """Return the bytes that a rank must add up with other ranks of its mesh after a pass.

        They are the bytes of the rank's tile of the activation if another rank of the mesh has the
        same tile, else 0.
        """
        side = self.sides[device]
        keys = [tile for tile, _ in self._keys(side)]
        tile = keys[member]
        if keys.count(tile) == 1:
            return 0
        cuts = side.placement.boundaries(self.tensor.shape, side.mesh)
        lengths = [int(cut[at + 1] - cut[at]) for cut, at in zip(cuts, tile, strict=True)]
        return int(np.prod(lengths)) * self.tensor.element_bytes

    def has_copies(self, device: int) -> bool:
        """Check whether several ranks of stage `device` have the same weights.

        These are replicas, or ranks of one mesh with different batch rows.
        """
        weights = [weights for _, weights in self._keys(self.sides[device])]
        return self.replicas > 1 or len(set(weights)) < len(weights)

    def legs(self, sender: int, receiver: int) -> tuple[Leg, ...]:
        """Return the messages that bring activations from one stage's mesh to another's; cached.

        `sender`, `receiver`: numbers of the stages. The messages are between ranks of replica 0,
        none has 0 bytes: first the direct ones, then those by which ranks of the receiver forward
        data. Each kind is ordered by source, then destination, with one message per pair. Raises
        `InputError` (`too-many-tasks`) if the tiles of the stages share more than 2^22 boxes.

        A host is a row of the receiver's mesh along its last dimension. Each box of data that two
        tiles share goes to each host with receivers separately. The holder that has sent the fewest
        direct bytes so far sends it, of equal ones the first. `hand_over` selects the messages:

        - `send-recv`: each receiver gets the box by a direct message.
        - `broadcast`: the first receiver gets the box, and forwards it to the others on the host.
        - any other: each receiver gets an equal part, and forwards it to the others on the host.
        """
        if (sender, receiver) in self._legs:
            return self._legs[sender, receiver]
        units = unit_tasks([Move(self.tensor, self.sides[sender], self.sides[receiver])])
        size = self.sides[receiver].mesh.shape[-1]
        first = self.ranks.rank(receiver, 0)
        bytes_of_leg: dict[tuple[bool, int, int], int] = {}
        sent: dict[int, int] = {}
        for row in range(len(units)):
            hosts: dict[int, list[int]] = {}
            for device in units.receivers_of(row).tolist():
                hosts.setdefault((device - first) // size, []).append(device)
            for members in hosts.values():
                self._add_host(units, row, members, sent, bytes_of_leg)
        legs = tuple(
            Leg(source, destination, bytes_, is_forwarded)
            for (is_forwarded, source, destination), bytes_ in sorted(bytes_of_leg.items())
        )
        self._legs[sender, receiver] = legs
        return legs

    @cached_property
    def _legs(self) -> dict[tuple[int, int], tuple[Leg, ...]]:
        return {}

    def _keys(self, side: Side) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield for each device of a mesh, in its order, the tile and the key of its weights.

        The tile is its coordinates per dimension of the activation. The key is the coordinates
        of the device on all axes of the mesh that do not split the batch (dimension 0): devices
        with equal keys have the same weights.
        """
        tiles = side.placement.tile_coordinates(side.mesh).tolist()
        batch = side.placement.axes[0]
        for tile, coordinates in zip(tiles, side.mesh.coordinates().tolist(), strict=True):
            yield tuple(tile), tuple(at for axis, at in enumerate(coordinates) if axis not in batch)

    def _add_host(
        self,
        units: UnitTasks,
        row: int,
        members: Sequence[int],
        sent: dict[int, int],
        bytes_of_leg: dict[tuple[bool, int, int], int],
    ) -> None:
        """Add the messages that bring a box of data to its receivers on one host.

        `units`, `row`: the box, with the devices that hold it; `members`: the receivers.
        `hand_over` decides:

        - `send-recv`: every receiver gets the entire box by a direct message.
        - `broadcast`: the first receiver gets the entire box and forwards it to each other one.
        - any other: every receiver gets one part and forwards it to each other one. The parts
          differ by at most one byte.

        Each direct message comes from the holder with the fewest bytes in `sent` so far, the first
        one of equal ones. Its bytes are added to `sent`, by holder. The bytes of all messages are
        added to `bytes_of_leg`, by (is forwarded, source, destination). Parts of 0 bytes are
        skipped.
        """
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
                legs += [(True, entry, receiver) for receiver in members if receiver != entry]
            for leg in legs:
                bytes_of_leg[leg] = bytes_of_leg.get(leg, 0) + part
