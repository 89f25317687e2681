"""Strategies for one unit task: their cost, the best number of chunks, and their transfers.

The cost model is that of section 3 of "On Optimizing the Communication of Model Parallelism" (MLSys
2023): t is the time of the box on one card, a the number of receiving hosts with b devices each,
alpha the latency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from collhub_shardings import UnitTasks


class Strategy(StrEnum):
    """How a box reaches all of its receivers; in order of simplicity."""

    SEND_RECV = "send-recv"
    LOCAL_ALL_GATHER = "local-all-gather"
    SCATTER_ALL_GATHER = "scatter-all-gather"
    BROADCAST = "broadcast"
    TREE = "tree"


MOST_CHUNKS = 64
# A message leaves through one card and enters through another, as a whole at either.
LINKS_A_HOP = 2


@dataclass(frozen=True, slots=True)
class Reach:
    """Receivers of a task: `hosts`, with at most `devices` on each."""

    hosts: int
    devices: int


def compute_card_work(strategy: Strategy, reach: Reach) -> Fraction:
    """Times that the busiest card carries the box, t being one."""
    a, b = reach.hosts, reach.devices
    work = {
        Strategy.SEND_RECV: Fraction(a * b),
        Strategy.LOCAL_ALL_GATHER: Fraction(a),
        Strategy.SCATTER_ALL_GATHER: Fraction(2 * a - 1, a),
    }
    # A chain or tree passes every card once.
    return work.get(strategy, Fraction(1))


def compute_best_chunks(links: int, t_s: float, alpha_s: float, most: int = MOST_CHUNKS) -> int:
    """K* = sqrt((s - 1) t / alpha), s the links in a row, at least 1 and at most `most`.

    There (K + s - 1) (t / K + alpha) is least.
    """
    if alpha_s <= 0:
        return most
    ideal = math.sqrt((links - 1) * t_s / alpha_s)
    return max(1, min(most, round(ideal)))


def compute_strategy_cost_s(strategy: Strategy, reach: Reach, t_s: float, alpha_s: float) -> float:
    """Seconds of a strategy alone on the network, by the table of section 3."""
    a = reach.hosts
    work = float(compute_card_work(strategy, reach)) * t_s
    if strategy is Strategy.SEND_RECV:
        return work + alpha_s
    if strategy is Strategy.LOCAL_ALL_GATHER:
        return work + a * alpha_s
    if strategy is Strategy.SCATTER_ALL_GATHER:
        return work + (a + a - 1) * alpha_s
    chunks = compute_best_chunks(a, t_s, alpha_s)
    return (chunks + a - 1) * (t_s / chunks + alpha_s)


def compute_costs_s(reach: Reach, t_s: float, alpha_s: float) -> Mapping[Strategy, float]:
    """The cost of every strategy that needs no topology."""
    plain = [strategy for strategy in Strategy if strategy is not Strategy.TREE]
    return {one: compute_strategy_cost_s(one, reach, t_s, alpha_s) for one in plain}


def choose_cheapest(reach: Reach, t_s: float, alpha_s: float) -> Strategy:
    """The cheapest strategy, the simplest of equals.

    In the model a chain of one host costs what one message to it costs, and no gathering inside
    the host: it wins where a host has several receivers.
    """
    costs = compute_costs_s(reach, t_s, alpha_s)
    if reach == Reach(1, 1):
        return Strategy.SEND_RECV
    chain = costs[Strategy.BROADCAST]
    rivals = [Strategy.SEND_RECV, Strategy.SCATTER_ALL_GATHER, Strategy.LOCAL_ALL_GATHER]
    best = min(rivals, key=lambda one: costs[one])
    # One host: the chain is a single message with K = 1, whatever K hides its store and forward.
    if reach.hosts == 1 or chain <= costs[best]:
        return Strategy.BROADCAST
    return best


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


def list_transfers(strategy: Strategy, audience: Audience, chunks: int) -> list[Transfer]:
    """The transfers of a strategy, chunk by chunk in the order in which they leave."""
    if strategy is Strategy.SEND_RECV:
        return _send_to_every_device(audience, chunks)
    if strategy is Strategy.BROADCAST:
        return _send_along_chain(audience, chunks)
    gathered = strategy is Strategy.LOCAL_ALL_GATHER
    once = _gather_locally(audience) if gathered else _scatter_among_hosts(audience)
    return [
        _move_to_chunk(transfer, chunk, chunks, chunk * len(once))
        for chunk in range(chunks)
        for transfer in once
    ]


def list_tree_transfers(edges: Sequence[tuple[int, int]]) -> list[Transfer]:
    """Messages of all of a piece along the edges of a tree, parents first."""
    number: dict[int, int] = {}
    found = []
    for source, destination in edges:
        parent = number.get(source, -1)
        found.append(Transfer(source, destination, Fraction(0), Fraction(1), parent))
        number[destination] = len(found) - 1
    return found


def _move_to_chunk(transfer: Transfer, chunk: int, chunks: int, begun: int) -> Transfer:
    """A transfer of the whole piece as one of a chunk; `begun`: transfers of earlier chunks."""
    first = (chunk + transfer.first) / chunks
    last = (chunk + transfer.last) / chunks
    parent = transfer.parent + begun if transfer.parent >= 0 else -1
    return Transfer(transfer.source, transfer.destination, first, last, parent)


def _send_to_every_device(audience: Audience, chunks: int) -> list[Transfer]:
    """Whole copies, one receiver after another."""
    receivers = [device for devices in audience.hosts.values() for device in devices]
    # A receiver has all before the next one gets anything.
    return [
        Transfer(audience.sender, receiver, *_compute_part(chunk, chunks))
        for receiver in receivers
        for chunk in range(chunks)
    ]


def _compute_part(index: int, count: int) -> tuple[Fraction, Fraction]:
    return Fraction(index, count), Fraction(index + 1, count)


def _gather_locally(audience: Audience) -> list[Transfer]:
    """A part to each device of a host; they exchange the parts within the host."""
    found: list[Transfer] = []
    for devices in audience.hosts.values():
        # A card carries the box once to each host, whatever its devices.
        for index, device in enumerate(devices):
            part = _compute_part(index, len(devices))
            found.append(Transfer(audience.sender, device, *part))
            parent = len(found) - 1
            # Inside a host nothing is in short supply.
            found += [
                Transfer(device, other, *part, parent) for other in devices if other != device
            ]
    return found


def _scatter_among_hosts(audience: Audience) -> list[Transfer]:
    """A part to each host, which sends it to the other hosts; each spreads it inside."""
    found: list[Transfer] = []
    entries = {host: devices[0] for host, devices in audience.hosts.items()}
    for index, (host, entry) in enumerate(entries.items()):
        part = _compute_part(index, len(entries))
        found.append(Transfer(audience.sender, entry, *part))
        root = len(found) - 1
        found += _spread_within_host(audience.hosts[host], part, root)
        for other_host, other in entries.items():
            if other_host == host:
                continue
            found.append(Transfer(entry, other, *part, root))
            found += _spread_within_host(audience.hosts[other_host], part, len(found) - 1)
    return found


def _send_along_chain(audience: Audience, chunks: int) -> list[Transfer]:
    """Chunk after chunk from host to host, each spread inside every host."""
    found: list[Transfer] = []
    for chunk in range(chunks):
        part = _compute_part(chunk, chunks)
        source, parent = audience.sender, -1
        for devices in audience.hosts.values():
            found.append(Transfer(source, devices[0], *part, parent))
            source, parent = devices[0], len(found) - 1
            found += _spread_within_host(devices, part, parent)
    return found


def _spread_within_host(
    devices: Sequence[int], part: tuple[Fraction, Fraction], parent: int
) -> list[Transfer]:
    """From the entry of a host to its other receivers."""
    return [Transfer(devices[0], other, *part, parent) for other in devices[1:]]


@dataclass(frozen=True, slots=True)
class LocalReceivers:
    """Receivers that need no card: `own` hold the box, `served` get it from a device of their host.

    `served`: (sender, receiver).
    """

    own: tuple[int, ...]
    served: tuple[tuple[int, int], ...]


def find_local_receivers(units: UnitTasks, row: int) -> LocalReceivers:
    """The receivers of a unit task whose host has the box."""
    # Replicas on one host need no card of it.
    holders = units.senders_of(row).tolist()
    # Of several holders on a host the first one serves.
    by_host = {int(units.host_of[device]): device for device in reversed(holders)}
    own, served = [], []
    for receiver in units.receivers_of(row).tolist():
        host = int(units.host_of[receiver])
        if receiver in holders:
            own.append(receiver)
        # A box that is anywhere on the host does not cross.
        elif host in by_host:
            served.append((by_host[host], receiver))
    return LocalReceivers(tuple(own), tuple(served))


def find_audience(
    units: UnitTasks,
    row: int,
    sender_host: int,
    receiver_hosts: tuple[int, ...],
) -> Audience:
    """The sender on a host, and the receivers on hosts that lack the box."""
    # Any holder on the host would do: they share its card.
    senders = units.senders_of(row)
    sender = int(senders[units.host_of[senders] == sender_host][0])
    # In the order in which the chain passes them.
    hosts: dict[int, list[int]] = {host: [] for host in receiver_hosts}
    for receiver in units.receivers_of(row).tolist():
        host = int(units.host_of[receiver])
        # Other receivers have the box at hand.
        if host in hosts:
            hosts[host].append(receiver)
    return Audience(sender, hosts)
