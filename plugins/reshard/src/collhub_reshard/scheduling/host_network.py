"""Network cards of hosts: how many each has, and how fast they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

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


def ideal_network(
    hosts: Iterable[int], bandwidth_bytes_per_s: float, latency_s: float = 0.0, cards: int = 1
) -> HostNetwork:
    """Equal cards at every host, and nothing but the cards in the way."""
    rate = exact_rate(bandwidth_bytes_per_s)
    rates = dict.fromkeys(hosts, rate)
    return HostNetwork(rates, rates, cards, latency_s)


def exact_rate(bandwidth_bytes_per_s: float) -> Fraction:
    """The fraction that a bandwidth's shortest decimal text names."""
    return Fraction(repr(float(bandwidth_bytes_per_s)))


def network_of(topology: Topology, host_of: Int64Array) -> HostNetwork:
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
    owner = owners(topology, host_of)
    start, end = owner[topology.source], owner[topology.destination]
    crosses = start != end
    hosts = sorted(set(host_of[host_of >= 0].tolist()))
    out_rate, in_rate = {}, {}
    for host in hosts:
        out_rate[host] = _total(topology, crosses & (start == host), host)
        in_rate[host] = _total(topology, crosses & (end == host), host)
    # The slowest hop: a prediction shall not promise too much.
    latency = float(topology.latency_s[crosses].max()) if crosses.any() else 0.0
    return HostNetwork(out_rate, in_rate, 1, latency)


def owners(topology: Topology, host_of: Int64Array) -> Int64Array:
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


def _total(topology: Topology, rows: Int64Array, host: int) -> Fraction:
    """Bytes per second of some links together."""
    rates = topology.bandwidth_bytes_per_s[rows].tolist()
    # Nothing could be sent to or from such a host.
    if not rates:
        message = f"topology {topology.name}: host {host} has no link to other hosts"
        raise InputError(message, cure="choose a connected topology", code="disconnected")
    # Exact sums: equal hosts shall have equal rates.
    return sum(map(exact_rate, rates), Fraction(0))
