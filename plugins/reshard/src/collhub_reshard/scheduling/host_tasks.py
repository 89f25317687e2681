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
    """Rates of the network cards of every host, in bytes per second of one card, exact.

    `out_rate`, `in_rate`: by host. `cards`: number of cards per host. `latency_s`: of a message
    between hosts. Messages within a host take no time.
    """

    out_rate: Mapping[int, Fraction]
    in_rate: Mapping[int, Fraction]
    cards: int = 1
    latency_s: float = 0.0

    def rate(self, sender: int, receivers: Iterable[int]) -> Fraction:
        """Return the rate of a transfer in bytes/s, through one card of every host.

        It is the minimum of the sender's rate out and the rates in of all receivers. Raise
        `ValueError` without receivers, and `KeyError` for a host that the network lacks.
        """
        slowest = min(self.in_rate[host] for host in receivers)
        return min(self.out_rate[sender], slowest)


def build_ideal_network(
    hosts: Iterable[int], bandwidth_bytes_per_s: float, latency_s: float = 0.0, cards: int = 1
) -> HostNetwork:
    """Build a network of equal hosts with `cards` network cards each.

    Every card has `bandwidth_bytes_per_s` in each direction, as the exact fraction of its
    shortest decimal text. `latency_s` is that of a message between hosts. Besides this,
    only the cards limit messages.
    """
    rate = parse_exact_rate(bandwidth_bytes_per_s)
    rates = dict.fromkeys(hosts, rate)
    return HostNetwork(rates, rates, cards, latency_s)


def parse_exact_rate(bandwidth_bytes_per_s: float) -> Fraction:
    """Return a bandwidth as the exact fraction of its shortest decimal text."""
    return Fraction(repr(float(bandwidth_bytes_per_s)))


def find_host_network(topology: Topology, host_of: Int64Array) -> HostNetwork:
    """Find the network cards of hosts on a topology: one card per host, with a total rate.

    `host_of`: host of the first NPUs of the topology, -1 for an NPU that is not used. A switch
    belongs to a host if all NPUs with a link to it do; switches linked to it do not matter. All
    other nodes belong to no host. Links within a host are ignored.

    The rate out of a host is the exact sum, in bytes/s, of its links to nodes that do not
    belong to it; the rate in is that of the links from such nodes. The latency is the largest
    of all links of the topology except those within a host, also of links between two switches;
    0 without such links.

    Raises `InputError`: `mesh-too-large` if `host_of` has more entries than the topology has
    NPUs, then `disconnected` for the lowest host without a link out or without a link in.
    """
    if len(host_of) > topology.num_npus:
        raise InputError(
            f"the meshes name {len(host_of)} devices, topology {topology.name} has "
            f"{topology.num_npus} NPUs",
            cure="choose a larger topology or smaller meshes",
            code="mesh-too-large",
        )
    # Messages between devices of one host do not use its cards.
    owner = find_owners(topology, host_of)
    start, end = owner[topology.source], owner[topology.destination]
    crosses = start != end
    hosts = sorted(set(host_of[host_of >= 0].tolist()))
    out_rate, in_rate = {}, {}
    for host in hosts:
        out_rate[host] = _sum_rates(topology, crosses & (start == host), host)
        in_rate[host] = _sum_rates(topology, crosses & (end == host), host)
    # The slowest hop, so that predictions are not too optimistic.
    latency = float(topology.latency_s[crosses].max()) if crosses.any() else 0.0
    return HostNetwork(out_rate, in_rate, 1, latency)


def find_owners(topology: Topology, host_of: Int64Array) -> Int64Array:
    """Return the host to which every node of a topology belongs: int64[nodes].

    `host_of`: host of the first NPUs, -1 if an NPU is not used. A used NPU belongs to its
    host. A switch belongs to a host if all NPUs that have a link to it do; links from the
    switch and other switches do not matter. Every other node n, such as an unused NPU or a
    switch without NPUs, gets the negative number -1 - n. A switch whose only NPU is unused
    gets the number of this NPU.
    """
    owner = -1 - np.arange(topology.num_nodes, dtype=np.int64)
    used = np.flatnonzero(host_of >= 0)
    owner[used] = host_of[used]
    for switch in range(topology.num_npus, topology.num_nodes):
        neighbours = topology.source[topology.destination == switch]
        npus = neighbours[neighbours < topology.num_npus]
        if len(npus) and len(set(owner[npus].tolist())) == 1:
            owner[switch] = owner[npus[0]]
    return owner


def _sum_rates(topology: Topology, rows: Int64Array, host: int) -> Fraction:
    """Return the exact sum of the bandwidths of the links that `rows` selects, in bytes/s.

    `rows`: bool[links]. Raise `InputError` (`disconnected`) that names `host` if no link is
    selected.
    """
    rates = topology.bandwidth_bytes_per_s[rows].tolist()
    if not rates:
        message = f"topology {topology.name}: host {host} has no link to other hosts"
        raise InputError(message, cure="choose a connected topology", code="disconnected")
    # Exact sums, so that equal hosts have equal rates.
    return sum(map(parse_exact_rate, rates), Fraction(0))


@dataclass(frozen=True, slots=True)
class HostTasks:
    """Tasks between hosts; a task occupies a card of its sender and one of each of its receivers.

    Per task: `rows` (its unit task), `bytes`, `senders` and `receivers` (ascending hosts),
    `durations` (in ticks, one per sender), `release` and `due` (in ticks; due None for no limit).
    `work`: number of times that the busiest card carries the task's bytes; 1 except for some
    strategies. `tick_s`: seconds of one tick; all durations are integral ticks, so that schedules
    are exact.
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
        """Number of cards of every host."""
        return self.network.cards

    def duration(self, task: int, sender: int) -> int:
        """Return the ticks of a task from one of its senders.

        Raises `ValueError` for a host that is no sender.
        """
        return self.durations[task][self.senders[task].index(sender)]

    def seconds(self, ticks: int | Fraction) -> float:
        """Convert ticks to seconds as a float, which may round."""
        return float(ticks * self.tick_s)

    def classes(self) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]]:
        """Group the tasks by equal (senders, receivers); return the task numbers of each group.

        The keys are in the order of their first tasks, and the numbers of a group ascend.
        """
        tasks_by_class: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for task, key in enumerate(zip(self.senders, self.receivers, strict=True)):
            tasks_by_class.setdefault(key, []).append(task)
        return tasks_by_class


def build_host_tasks(
    tasks: UnitTasks,
    moves: Sequence[Move],
    network: HostNetwork,
    work: Mapping[int, Fraction] | None = None,
) -> HostTasks:
    """Build the tasks for network cards: one per box that must cross between hosts, in their order.

    A unit task becomes a task if its box has bytes and a host needs it that does not have it
    (`find_needing_hosts`). `senders` of the task are all hosts that have the box, `receivers`
    the hosts that need it. The duration from a sender is bytes x work / rate; the rate is the
    lowest of the sender's rate out and the rates in of all receivers. The latency is not
    included.

    `work`: how many times the busiest card carries the box, by unit task; 1 for unit tasks that
    it lacks. `moves`: their release and due times become those of their unit tasks. Times are
    integers in ticks. A tick is the longest time of which all durations, release and due times
    are multiples; it is 1 s without tasks. Raises `KeyError` for a host that `network` lacks.
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
    # The number of a float is that of its shortest decimal text.
    move_times = [
        (
            Fraction(repr(move.release_s)),
            None if move.due_s is None else Fraction(repr(move.due_s)),
        )
        for move in moves
    ]
    times = [move_times[tasks.move[row]] for row in rows]
    given_times = [time for pair in times for time in pair if time]
    # A model has thousands of boxes with few distinct sizes.
    distinct = {*given_times, *(time for row in exact for time in row)}
    # Of reduced fractions, gcd = gcd of the numerators over a common denominator.
    denominator = math.lcm(*(time.denominator for time in distinct))
    numerator = math.gcd(*(int(time * denominator) for time in distinct))
    tick = Fraction(numerator, denominator) if distinct else Fraction(1)
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
    """Return, for each unit task in order, the hosts that need its box from another host.

    These are the hosts of its receivers, ascending and without repetition, except the hosts of its
    senders. The tuple is empty if all receivers are on hosts of senders.
    """
    task, receiver, _ = device_pairs(tasks)
    width = int(tasks.host_of.max()) + 1
    needing: list[tuple[int, ...]] = []
    hosts = tasks.host_of[receiver]
    keys = np.unique(task * width + hosts)
    groups: list[list[int]] = [[] for _ in range(len(tasks))]
    for key in keys.tolist():
        groups[key // width].append(key % width)
    for row, group in enumerate(groups):
        sender_hosts = set(tasks.hosts_of(tasks.senders_of(row)))
        needing.append(tuple(host for host in group if host not in sender_hosts))
    return needing


# Rate of links within a host: no realistic message takes a nanosecond.
_INSTANT_BYTES_PER_S = 9e17


def build_ideal_topology(units: UnitTasks, network: HostNetwork) -> Topology:
    """Build a topology for simulators in which only the cards of hosts limit the rate.

    Its nodes are the NPUs, then a switch per host in ascending order, then a central switch.
    NPUs without a host (-1) share one more host, which comes first. Links in bytes/s, in this
    order:

    - per NPU: to the switch of its host, and back: 9e17, no latency
    - per host: its switch to the central switch: rate out x cards, with the latency of the network
    - per host, after the previous link: central switch to its switch: rate in x cards, no latency

    A host that has no rates in `network` gets the rates of the first host of `network`. If
    `network` has no host, `StopIteration` is raised.
    """
    num_npus = len(units.host_of)
    hosts = sorted(set(units.host_of.tolist()))
    middle = num_npus + len(hosts)
    links = []
    for device, host in enumerate(units.host_of.tolist()):
        switch = num_npus + hosts.index(host)
        links += [(device, switch, _INSTANT_BYTES_PER_S, 0.0)]
        links += [(switch, device, _INSTANT_BYTES_PER_S, 0.0)]
    for number, host in enumerate(hosts):
        # Idle devices get any card.
        card_host = host if host in network.out_rate else next(iter(network.out_rate))
        out = float(network.out_rate[card_host] * network.cards)
        in_rate = float(network.in_rate[card_host] * network.cards)
        links += [(num_npus + number, middle, out, network.latency_s)]
        links += [(middle, num_npus + number, in_rate, 0.0)]
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
