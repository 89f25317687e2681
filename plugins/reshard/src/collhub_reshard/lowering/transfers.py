"""What a strategy sends: transfers of parts of a box between devices, each after its parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collhub_reshard.scheduling.strategies import Strategy


@dataclass(frozen=True, slots=True)
class Transfer:
    """A part of a piece from one device to another, from `first` to `last` of 0..1.

    `parent`: the transfer that brings it to the source, -1 where the source holds it.
    """

    source: int
    destination: int
    first: Fraction
    last: Fraction
    parent: int = -1


@dataclass(frozen=True, slots=True)
class Audience:
    """The sending device and, by host, the receiving devices; the first of each is its entry."""

    sender: int
    hosts: Mapping[int, Sequence[int]]


def transfers_of(strategy: Strategy, audience: Audience, chunks: int) -> list[Transfer]:
    """The transfers of a strategy, chunk by chunk in the order in which they leave."""
    if strategy is Strategy.SEND_RECV:
        return _to_every_device(audience, chunks)
    if strategy is Strategy.BROADCAST:
        return _chain(audience, chunks)
    gathered = strategy is Strategy.LOCAL_ALL_GATHER
    once = _gathered_locally(audience) if gathered else _scattered(audience)
    return [
        _within_chunk(transfer, chunk, chunks, chunk * len(once))
        for chunk in range(chunks)
        for transfer in once
    ]


def tree_messages(edges: Sequence[tuple[int, int]]) -> list[Transfer]:
    """Messages of all of a piece along the edges of a tree, parents first."""
    number: dict[int, int] = {}
    found = []
    for source, destination in edges:
        parent = number.get(source, -1)
        found.append(Transfer(source, destination, Fraction(0), Fraction(1), parent))
        number[destination] = len(found) - 1
    return found


def _within_chunk(transfer: Transfer, chunk: int, chunks: int, begun: int) -> Transfer:
    """A transfer of the whole piece as one of a chunk; `begun`: transfers of earlier chunks."""
    first = (chunk + transfer.first) / chunks
    last = (chunk + transfer.last) / chunks
    parent = transfer.parent + begun if transfer.parent >= 0 else -1
    return Transfer(transfer.source, transfer.destination, first, last, parent)


def _to_every_device(audience: Audience, chunks: int) -> list[Transfer]:
    """Whole copies, one receiver after another."""
    receivers = [device for devices in audience.hosts.values() for device in devices]
    # A receiver has all before the next one gets anything.
    return [
        Transfer(audience.sender, receiver, *_part(chunk, chunks))
        for receiver in receivers
        for chunk in range(chunks)
    ]


def _part(index: int, count: int) -> tuple[Fraction, Fraction]:
    return Fraction(index, count), Fraction(index + 1, count)


def _gathered_locally(audience: Audience) -> list[Transfer]:
    """A part to each device of a host; they exchange the parts within the host."""
    found: list[Transfer] = []
    for devices in audience.hosts.values():
        # A card carries the box once to each host, whatever its devices.
        for index, device in enumerate(devices):
            part = _part(index, len(devices))
            found.append(Transfer(audience.sender, device, *part))
            parent = len(found) - 1
            # Inside a host nothing is in short supply.
            found += [
                Transfer(device, other, *part, parent) for other in devices if other != device
            ]
    return found


def _scattered(audience: Audience) -> list[Transfer]:
    """A part to each host, which sends it to the other hosts; each spreads it inside."""
    found: list[Transfer] = []
    entries = {host: devices[0] for host, devices in audience.hosts.items()}
    for index, (host, entry) in enumerate(entries.items()):
        part = _part(index, len(entries))
        found.append(Transfer(audience.sender, entry, *part))
        root = len(found) - 1
        found += _within(audience.hosts[host], part, root)
        for other_host, other in entries.items():
            if other_host == host:
                continue
            found.append(Transfer(entry, other, *part, root))
            found += _within(audience.hosts[other_host], part, len(found) - 1)
    return found


def _chain(audience: Audience, chunks: int) -> list[Transfer]:
    """Chunk after chunk from host to host, each spread inside every host."""
    found: list[Transfer] = []
    for chunk in range(chunks):
        part = _part(chunk, chunks)
        source, parent = audience.sender, -1
        for devices in audience.hosts.values():
            found.append(Transfer(source, devices[0], *part, parent))
            source, parent = devices[0], len(found) - 1
            found += _within(devices, part, parent)
    return found


def _within(devices: Sequence[int], part: tuple[Fraction, Fraction], parent: int) -> list[Transfer]:
    """From the entry of a host to its other receivers."""
    return [Transfer(devices[0], other, *part, parent) for other in devices[1:]]
