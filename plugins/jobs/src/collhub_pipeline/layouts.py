"""Where the ranks of a pipeline stand, what each holds of an activation, and what is handed on.

Ranks of a replica stand together, stage by stage. Without meshes, the activations of a micro-batch
are cut evenly among the ranks of a stage, and every rank sends what the other one is to hold of its
slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

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
