"""The network cards of hosts, and the unit tasks that cross between hosts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from collhub_shardings import Move, UnitTasks, device_pairs

from hub_core.columns import Int64Array
from hub_core.model import InputError
from hub_core.network import Topology


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """What the cards of every host send and receive, bytes per second of one card, exactly.

    `out_rate`, `in_rate`: by host. `cards`: how many a host has. `latency_s`: of a message between
    hosts. Messages within a host take no time.
    """

    out_rate: Mapping[int, Fraction]
    in_rate: Mapping[int, Fraction]
    cards: int = 1
    latency_s: float = 0.0

    def rate(self, sender: int, receivers: Iterable[int]) -> Fraction:
        """Rate of a transfer through one card at either end."""
        # All receivers take the box at one pace,
        # that of the slowest.
        slowest = min(self.in_rate[host] for host in receivers)
        return min(self.out_rate[sender], slowest)


def build_ideal_network(
    hosts: Iterable[int], bandwidth_bytes_per_s: float, latency_s: float = 0.0, cards: int = 1
) -> HostNetwork:
    """Equal cards at every host, and nothing but the cards in the way."""
    rate = parse_exact_rate(bandwidth_bytes_per_s)
    rates = dict.fromkeys(hosts, rate)
    return HostNetwork(rates, rates, cards, latency_s)


def parse_exact_rate(bandwidth_bytes_per_s: float) -> Fraction:
    """The fraction that a bandwidth's shortest decimal text names."""
    return Fraction(repr(float(bandwidth_bytes_per_s)))


def find_host_network(topology: Topology, host_of: Int64Array) -> HostNetwork:
    """The cards of hosts on a topology: what leaves the devices of a host, and what enters them.

    `host_of`: host of every NPU, -1 of those that take no part. Switches that only the devices of
    one host are linked to belong to it. Raises `InputError` for a host without a link to others.
    """
    if len(host_of) > topology.num_npus:
        raise InputError(
            f"the meshes name {len(host_of)} devices, topology {topology.name} has "
            f"{topology.num_npus} NPUs",
            cure="choose a larger topology or smaller meshes",
            code="mesh-too-large",
        )
    # Devices of one host talk without its cards.
    owner = find_owners(topology, host_of)
    start, end = owner[topology.source], owner[topology.destination]
    crosses = start != end
    hosts = sorted(set(host_of[host_of >= 0].tolist()))
    out_rate, in_rate = {}, {}
    for host in hosts:
        out_rate[host] = _sum_rates(topology, crosses & (start == host), host)
        in_rate[host] = _sum_rates(topology, crosses & (end == host), host)
    # The slowest hop: a prediction shall not promise too much.
    latency = float(topology.latency_s[crosses].max()) if crosses.any() else 0.0
    return HostNetwork(out_rate, in_rate, 1, latency)


def find_owners(topology: Topology, host_of: Int64Array) -> Int64Array:
    """The host of every node of a topology; nodes of no host have negative numbers of their own.

    `host_of`: of the first NPUs, -1 of those that take no part. A switch between the devices of one
    host is inside it.
    """
    owner = -1 - np.arange(topology.num_nodes, dtype=np.int64)
    known = np.flatnonzero(host_of >= 0)
    owner[known] = host_of[known]
    for switch in range(topology.num_npus, topology.num_nodes):
        near = topology.source[topology.destination == switch]
        npus = near[near < topology.num_npus]
        if len(npus) and len(set(owner[npus].tolist())) == 1:
            owner[switch] = owner[npus[0]]
    return owner


def _sum_rates(topology: Topology, rows: Int64Array, host: int) -> Fraction:
    """Bytes per second of some links together."""
    rates = topology.bandwidth_bytes_per_s[rows].tolist()
    # Nothing could be sent to or from such a host.
    if not rates:
        message = f"topology {topology.name}: host {host} has no link to other hosts"
        raise InputError(message, cure="choose a connected topology", code="disconnected")
    # Exact sums: equal hosts shall have equal rates.
    return sum(map(parse_exact_rate, rates), Fraction(0))


@dataclass(frozen=True, slots=True)
class HostTasks:
    """Tasks between hosts; a task occupies a card of its sender and of each of its receivers.

    Per task: `rows` (its unit task), `bytes`, `senders` and `receivers` (ascending hosts),
    `durations` (in ticks, one a sender), `release` and `due` (in ticks, due None for any time).
    `work`: how often the busiest card carries the task's bytes, 1 but for some strategies.
    `tick_s`: seconds of one tick; all durations are whole ticks, so that schedules are exact.
    """

    rows: tuple[int, ...]
    bytes: tuple[int, ...]
    senders: tuple[tuple[int, ...], ...]
    receivers: tuple[tuple[int, ...], ...]
    durations: tuple[tuple[int, ...], ...]
    release: tuple[int, ...]
    due: tuple[int | None, ...]
    work: tuple[Fraction, ...]
    tick_s: Fraction
    network: HostNetwork

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def cards(self) -> int:
        """Cards of every host."""
        return self.network.cards

    def duration(self, task: int, sender: int) -> int:
        """Ticks of a task from one of its senders."""
        # Senders differ in time only where
        # their cards do.
        return self.durations[task][self.senders[task].index(sender)]

    def seconds(self, ticks: int | Fraction) -> float:
        """Ticks as seconds."""
        return float(ticks * self.tick_s)

    def classes(self) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]]:
        """Tasks by their senders and receivers."""
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for task, key in enumerate(zip(self.senders, self.receivers, strict=True)):
            found.setdefault(key, []).append(task)
        return found


def build_host_tasks(
    tasks: UnitTasks,
    moves: Sequence[Move],
    network: HostNetwork,
    work: Mapping[int, Fraction] | None = None,
) -> HostTasks:
    """The tasks that cross between hosts.

    A receiver on a host that has the box needs no card: such hosts are left out, and tasks without
    others too. `work`: how often a card carries the box of a unit task, by row, else once.
    """
    work = {} if work is None else work
    needs = find_needing_hosts(tasks)
    rows = [row for row in range(len(tasks)) if needs[row] and tasks.bytes[row]]
    senders = [tasks.hosts_of(tasks.senders_of(row)) for row in rows]
    receivers = [needs[row] for row in rows]
    sizes = [int(tasks.bytes[row]) for row in rows]
    exact = [
        [size * work.get(row, 1) / network.rate(host, to) for host in hosts]
        for row, size, hosts, to in zip(rows, sizes, senders, receivers, strict=True)
    ]
    times = _list_move_times(tasks, moves, rows)
    tick = _find_common_measure([time for row in exact for time in row] + _stated(times))
    return HostTasks(
        tuple(rows),
        tuple(sizes),
        tuple(senders),
        tuple(receivers),
        tuple(tuple(int(time / tick) for time in row) for row in exact),
        tuple(int(release / tick) for release, _ in times),
        tuple(None if due is None else int(due / tick) for _, due in times),
        tuple(Fraction(work.get(row, 1)) for row in rows),
        tick,
        network,
    )


def find_needing_hosts(tasks: UnitTasks) -> list[tuple[int, ...]]:
    """Per unit task, the hosts of its receivers that do not have the box."""
    task, receiver, _ = device_pairs(tasks)
    width = int(tasks.host_of.max()) + 1
    found: list[tuple[int, ...]] = []
    hosts = tasks.host_of[receiver]
    keys = np.unique(task * width + hosts)
    groups: list[list[int]] = [[] for _ in range(len(tasks))]
    for key in keys.tolist():
        groups[key // width].append(key % width)
    for row, group in enumerate(groups):
        own = set(tasks.hosts_of(tasks.senders_of(row)))
        found.append(tuple(host for host in group if host not in own))
    return found


def _list_move_times(
    tasks: UnitTasks, moves: Sequence[Move], rows: Sequence[int]
) -> list[tuple[Fraction, Fraction | None]]:
    """Release and due time of every task, in seconds."""
    known = [
        (
            Fraction(repr(move.release_s)),
            None if move.due_s is None else Fraction(repr(move.due_s)),
        )
        for move in moves
    ]
    return [known[tasks.move[row]] for row in rows]


def _stated(times: Sequence[tuple[Fraction, Fraction | None]]) -> list[Fraction]:
    return [time for pair in times for time in pair if time]


def _find_common_measure(times: Sequence[Fraction]) -> Fraction:
    """The largest time of which all are whole multiples."""
    # A model has thousands of boxes of a few sizes.
    distinct = set(times)
    if not distinct:
        # Where all is zero any tick will do.
        return Fraction(1)
    top = math.gcd(*(time.numerator for time in distinct))
    # Denominators come from rates and stated times.
    bottom = math.lcm(*(time.denominator for time in distinct))
    # Of reduced fractions, gcd = gcd of the numerators over a common denominator.
    whole = math.gcd(*(int(time * bottom) for time in distinct))
    return Fraction(whole, bottom) if whole else Fraction(top, bottom)


# Of links within a host: no message of a size that exists takes a nanosecond.
_INSTANT_BYTES_PER_S = 9e17


def build_ideal_topology(units: UnitTasks, network: HostNetwork) -> Topology:
    """Devices on a switch a host, and the switches on one in the middle that is never busy.

    Between hosts a message passes the card of the sender's host out, then that of the receiver's
    host in. Devices that no mesh names stand alone on a switch of their own.
    """
    num_npus = len(units.host_of)
    hosts = sorted(set(units.host_of.tolist()))
    middle = num_npus + len(hosts)
    links = []
    for device, host in enumerate(units.host_of.tolist()):
        switch = num_npus + hosts.index(host)
        links += [(device, switch, _INSTANT_BYTES_PER_S, 0.0)]
        links += [(switch, device, _INSTANT_BYTES_PER_S, 0.0)]
    for at, host in enumerate(hosts):
        # Idle devices get any card.
        known = host if host in network.out_rate else next(iter(network.out_rate))
        out = float(network.out_rate[known] * network.cards)
        into = float(network.in_rate[known] * network.cards)
        links += [(num_npus + at, middle, out, network.latency_s)]
        links += [(middle, num_npus + at, into, 0.0)]
    source, destination, rate, latency = zip(*links, strict=True)
    return Topology(
        "ideal",
        num_npus,
        middle + 1,
        np.asarray(source, np.int64),
        np.asarray(destination, np.int64),
        np.asarray(rate, np.float64),
        np.asarray(latency, np.float64),
    )
