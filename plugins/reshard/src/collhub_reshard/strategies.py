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
    """How a box reaches all of its receivers; from the simplest to the most complex."""

    SEND_RECV = "send-recv"
    LOCAL_ALL_GATHER = "local-all-gather"
    SCATTER_ALL_GATHER = "scatter-all-gather"
    BROADCAST = "broadcast"
    TREE = "tree"


MAX_CHUNKS = 64
# A message is stored and forwarded at two cards: the sender's and the receiver's.
LINKS_PER_HOP = 2


@dataclass(frozen=True, slots=True)
class Reach:
    """Receivers of a task: `hosts`, with at most `devices` on each."""

    hosts: int
    devices: int


def compute_card_work(strategy: Strategy, reach: Reach) -> Fraction:
    """Return how many times the busiest network card carries a box, as an exact fraction.

    `reach`: number of receiving hosts, and of devices per host.

    - Send/recv: hosts * devices.
    - Local all-gather: hosts.
    - Scatter and all-gather: (2 * hosts - 1) / hosts.
    - Broadcast chain and tree: 1.
    """
    a, b = reach.hosts, reach.devices
    work = {
        Strategy.SEND_RECV: Fraction(a * b),
        Strategy.LOCAL_ALL_GATHER: Fraction(a),
        Strategy.SCATTER_ALL_GATHER: Fraction(2 * a - 1, a),
    }
    # A chain or tree passes every card once.
    return work.get(strategy, Fraction(1))


def compute_best_chunks(links: int, t_s: float, alpha_s: float, maximum: int = MAX_CHUNKS) -> int:
    """Return the number of chunks K for which a box passes s `links` in sequence fastest.

    The time is (K + s - 1) (t / K + alpha), where t is `t_s`, the seconds of the entire box
    on a link, and alpha is `alpha_s`, the latency of a message in seconds. The best real
    number, sqrt((s - 1) t / alpha), is rounded to an integer and limited to 1..`maximum`.
    If `alpha_s` is 0 or negative, return `maximum`. Otherwise raise `ValueError` if (s - 1) t
    is negative.
    """
    if alpha_s <= 0:
        return maximum
    ideal = math.sqrt((links - 1) * t_s / alpha_s)
    return max(1, min(maximum, round(ideal)))


def compute_strategy_cost_s(strategy: Strategy, reach: Reach, t_s: float, alpha_s: float) -> float:
    """Return the time in seconds of a strategy without other traffic, by the cost model.

    `reach`: number a of receiving hosts, and b of devices per host. `t_s`: seconds of the
    entire box of data on a network card. `alpha_s`: latency of a message in seconds.

    - Send/recv: a * b * `t_s` + `alpha_s`.
    - Local all-gather: a * `t_s` + a * `alpha_s`.
    - Scatter and all-gather: (2 a - 1) / a * `t_s` + (2 a - 1) * `alpha_s`.
    - Broadcast chain and tree: (K + a - 1) * (`t_s` / K + `alpha_s`), with the best number
      K of chunks from 1 to 64 (`compute_best_chunks`).
    """
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
    """Return the time in seconds of every strategy except `TREE`, which needs a topology.

    `t_s`: seconds of the entire box on a card. `alpha_s`: latency of a message in seconds. The
    times are those of `compute_strategy_cost_s`.
    """
    plain = [strategy for strategy in Strategy if strategy is not Strategy.TREE]
    return {
        strategy_name: compute_strategy_cost_s(strategy_name, reach, t_s, alpha_s)
        for strategy_name in plain
    }


def choose_cheapest(reach: Reach, t_s: float, alpha_s: float) -> Strategy:
    """Return the strategy that sends a box in the shortest time by the cost model.

    `t_s`: seconds of the box on a card. `alpha_s`: latency in seconds. For one receiver it is
    send/recv. For several receivers on one host it is the broadcast chain, which is then a single
    message to the host. Otherwise it is the chain if no other strategy is cheaper; among the other
    strategies, ties go to send/recv, then scatter and all-gather.
    """
    costs = compute_costs_s(reach, t_s, alpha_s)
    if reach == Reach(1, 1):
        return Strategy.SEND_RECV
    chain = costs[Strategy.BROADCAST]
    rivals = [Strategy.SEND_RECV, Strategy.SCATTER_ALL_GATHER, Strategy.LOCAL_ALL_GATHER]
    best = min(rivals, key=lambda strategy: costs[strategy])
    # One host: the chain is a single message with K = 1, whatever K hides its store and forward.
    if reach.hosts == 1 or chain <= costs[best]:
        return Strategy.BROADCAST
    return best


@dataclass(frozen=True, slots=True)
class Transfer:
    """A part of a piece from one device to another, from `first` to `last` of 0..1.

    `parent`: the transfer that brings it to the source, -1 if the source has it.
    """

    source: int
    destination: int
    first: Fraction
    last: Fraction
    parent: int = -1


@dataclass(frozen=True, slots=True)
class Audience:
    """The sending device and, by host, the receiving devices.

    The first device of a host is its entry: the device that receives the box from other hosts.
    """

    sender: int
    hosts: Mapping[int, Sequence[int]]


def list_transfers(strategy: Strategy, audience: Audience, chunks: int) -> list[Transfer]:
    """List the transfers by which a strategy sends a box of data, in the order of sending.

    A transfer carries an interval of the box, from `first` to `last` of 0..1. The box has `chunks`
    equal chunks. Hosts and devices have the order of `audience`. The entry of a host is its first
    device.

    - `SEND_RECV`: receiver by receiver, the sender sends it every chunk.
    - `BROADCAST`: chunk by chunk, the sender sends the chunk to the first entry. Each entry sends
      the chunk to the other devices of its host, then to the next entry.
    - `LOCAL_ALL_GATHER`: chunk by chunk and host by host, the chunk is divided into one equal part
      per device of the host. Each device gets its part from the sender and sends it to the other
      devices of its host.
    - All others, also `TREE`: chunk by chunk, the chunk is divided into one equal part per host.
      The sender sends each part to the entry of its host. This entry sends the part to the other
      devices of its host, then to each other entry in turn, which sends it to the other devices
      there.

    `parent` is the index of the transfer that brought the data to the source, -1 for the sender.
    """
    if strategy is Strategy.SEND_RECV:
        receivers = [device for devices in audience.hosts.values() for device in devices]
        return [
            Transfer(audience.sender, receiver, *_compute_part(chunk, chunks))
            for receiver in receivers
            for chunk in range(chunks)
        ]
    transfers: list[Transfer] = []
    if strategy is Strategy.BROADCAST:
        # Send chunk after chunk from host to host; each host distributes it inside.
        for chunk in range(chunks):
            part = _compute_part(chunk, chunks)
            source, parent = audience.sender, -1
            for devices in audience.hosts.values():
                transfers.append(Transfer(source, devices[0], *part, parent))
                source, parent = devices[0], len(transfers) - 1
                transfers += _spread_within_host(devices, part, parent)
        return transfers
    gathered = strategy is Strategy.LOCAL_ALL_GATHER
    box_transfers = _gather_locally(audience) if gathered else _scatter_among_hosts(audience)
    for chunk in range(chunks):
        begun = len(transfers)
        for transfer in box_transfers:
            first = (chunk + transfer.first) / chunks
            last = (chunk + transfer.last) / chunks
            parent = transfer.parent + begun if transfer.parent >= 0 else -1
            transfers.append(Transfer(transfer.source, transfer.destination, first, last, parent))
    return transfers


def list_tree_transfers(edges: Sequence[tuple[int, int]]) -> list[Transfer]:
    """List the messages that send an entire piece of data along the edges of a tree.

    `edges`: (parent, child) devices, parents first. There is one transfer per edge, in order, with
    the fractions 0 to 1. The parent of a transfer is the index of the last transfer to its source,
    -1 if no earlier edge leads there.
    """
    number: dict[int, int] = {}
    transfers = []
    for source, destination in edges:
        parent = number.get(source, -1)
        transfers.append(Transfer(source, destination, Fraction(0), Fraction(1), parent))
        number[destination] = len(transfers) - 1
    return transfers


def _compute_part(index: int, count: int) -> tuple[Fraction, Fraction]:
    """Return (start, end) of the part `index` (from 0) of `count` equal parts of 0..1, exactly."""
    return Fraction(index, count), Fraction(index + 1, count)


def _gather_locally(audience: Audience) -> list[Transfer]:
    """List the transfers of a local all-gather of the entire box.

    For every host, in order, the box is divided into equal parts, one per device of the
    host. For each device in order, the sender sends it its part (parent -1), and then this
    device sends the part to each other device of the host. The parent of such a transfer is
    the index of the transfer that brought the part. A host with one device gets the entire
    box.
    """
    transfers: list[Transfer] = []
    for devices in audience.hosts.values():
        # A card carries the box once to each host, regardless of the number of its devices.
        for index, device in enumerate(devices):
            part = _compute_part(index, len(devices))
            transfers.append(Transfer(audience.sender, device, *part))
            parent = len(transfers) - 1
            transfers += [
                Transfer(device, peer, *part, parent) for peer in devices if peer != device
            ]
    return transfers


def _scatter_among_hosts(audience: Audience) -> list[Transfer]:
    """List the transfers of scatter and all-gather for the entire box.

    The box is divided into equal parts, one per host. The parts are sent one after the other, in
    the order of the hosts. The transfers of a part are, in this order:

    1. from the sender to the first device of the part's host, with the parent -1;
    2. from there to each other device of this host;
    3. for each other host in order: from the first device of the part's host to the first device
       of the other host, and from there to each other device of that host.

    The parent of every other transfer is the index of the transfer that brought its source the
    part.
    """
    transfers: list[Transfer] = []
    entries = {host: devices[0] for host, devices in audience.hosts.items()}
    for index, (host, entry) in enumerate(entries.items()):
        part = _compute_part(index, len(entries))
        transfers.append(Transfer(audience.sender, entry, *part))
        root = len(transfers) - 1
        transfers += _spread_within_host(audience.hosts[host], part, root)
        for other_host, other_entry in entries.items():
            if other_host == host:
                continue
            transfers.append(Transfer(entry, other_entry, *part, root))
            transfers += _spread_within_host(audience.hosts[other_host], part, len(transfers) - 1)
    return transfers


def _spread_within_host(
    devices: Sequence[int], part: tuple[Fraction, Fraction], parent: int
) -> list[Transfer]:
    """Return transfers of the part from the first device of a host to each other one; all wait for
    the transfer `parent`.
    """
    return [Transfer(devices[0], device, *part, parent) for device in devices[1:]]


@dataclass(frozen=True, slots=True)
class LocalReceivers:
    """Receivers that need no network card.

    `own`: they have the box. `served`: pairs (sender, receiver) on one host.
    """

    own: tuple[int, ...]
    served: tuple[tuple[int, int], ...]


def find_local_receivers(units: UnitTasks, row: int) -> LocalReceivers:
    """Find the receivers of a unit task that are on hosts with a device that holds its data.

    Receivers that hold the data themselves are `own`. Other receivers on the host of a holder are
    `served`, as (holder, receiver); the first of several holders on the host serves them. Both are
    in the order of the receivers; receivers on other hosts are in neither.
    """
    holders = units.senders_of(row).tolist()
    # Reversed, so that the first of several holders on a host serves it.
    by_host = {int(units.host_of[device]): device for device in reversed(holders)}
    holding, served = [], []
    for receiver in units.receivers_of(row).tolist():
        host = int(units.host_of[receiver])
        if receiver in holders:
            holding.append(receiver)
        elif host in by_host:
            served.append((by_host[host], receiver))
    return LocalReceivers(tuple(holding), tuple(served))


def find_audience(
    units: UnitTasks,
    row: int,
    sender_host: int,
    receiver_hosts: tuple[int, ...],
) -> Audience:
    """Find the sending device of a unit task on one host, and its receivers on given hosts.

    The sender is the unit task's first sender on `sender_host`. The receivers are grouped
    by host in the order of `receiver_hosts`, within a host in the order of the unit task; a
    host without receivers has an empty list. Receivers on other hosts are left out. Raises
    `IndexError` if no sender is on `sender_host`.
    """
    # All holders on the host share its card, so the first one is as good as any.
    senders = units.senders_of(row)
    sender = int(senders[units.host_of[senders] == sender_host][0])
    # In the order in which the chain passes them.
    hosts: dict[int, list[int]] = {host: [] for host in receiver_hosts}
    for receiver in units.receivers_of(row).tolist():
        host = int(units.host_of[receiver])
        # Receivers on other hosts have the box on their host.
        if host in hosts:
            hosts[host].append(receiver)
    return Audience(sender, hosts)
