"""Machines below a network of switches: the switches between machines replaced by a tree."""

from __future__ import annotations

import numpy as np

from hub_core.columns import Int64Array, distinct
from hub_core.model import UsageError
from hub_core.network.links import Links
from hub_core.network.topology import Topology


def below_network(
    name: str,
    machines: Topology,
    network: Topology,
    *,
    by_rail: bool = False,
    has_bandwidths: bool = True,
    has_latencies: bool = True,
) -> Topology:
    """The machines of a topology with `network` in place of the switches that join them.

    Machines are the groups of `machines`; each link from a node of a machine to a switch between
    machines is a port. Port by port, machine by machine, ports take the places of the NPUs of
    `network`; with `by_rail`, the first ports of all machines come first. Places that are left over
    stay empty. A cable from a port has the values of the link of its place in `network`; if that
    states no bandwidths (latencies), all its links have those of the ports' links in `machines`.
    Raises `UsageError` where there are fewer places than ports, or something is no such network.
    """
    between = _switches_between(machines)
    ports, machine_of_port, rows = _ports(machines, between)
    if not len(ports):
        message = f"{name}: {machines.name} is no cluster of machines that switches join"
        raise UsageError(message, cure="write for example dgx-h100:4?network=leaf-spine:4,8,4")
    _check_network(name, network, len(ports))
    place = np.arange(len(ports))
    if by_rail:
        # By the position of a port in its machine, then by machine.
        first = np.searchsorted(machine_of_port, machine_of_port)
        place[np.lexsort((machine_of_port, place - first))] = np.arange(len(ports))
    kept = np.setdiff1d(np.arange(machines.num_nodes), between)
    number = np.full(machines.num_nodes, -1, np.int64)
    number[kept] = np.arange(len(kept))
    inner = (number[machines.source] >= 0) & (number[machines.destination] >= 0)
    parts = [
        Links(
            number[machines.source[inner]],
            number[machines.destination[inner]],
            machines.bandwidth_bytes_per_s[inner],
            machines.latency_s[inner],
        )
    ]
    # NPUs of the network that no port takes are left out with their links.
    node = np.full(network.num_nodes, -1, np.int64)
    node[place] = number[ports]
    switches = network.num_nodes - network.num_npus
    node[network.num_npus :] = len(kept) + np.arange(switches)
    outer = (node[network.source] >= 0) & (node[network.destination] >= 0)
    rates, latencies = network.bandwidth_bytes_per_s[outer], network.latency_s[outer]
    if not has_bandwidths:
        rates = np.full(len(rates), machines.bandwidth_bytes_per_s[rows].min())
    if not has_latencies:
        latencies = np.full(len(latencies), machines.latency_s[rows].max())
    parts.append(
        Links(node[network.source[outer]], node[network.destination[outer]], rates, latencies)
    )
    names = [machines.node_name(old) for old in kept.tolist()]
    names += [network.node_name(switch) for switch in range(network.num_npus, network.num_nodes)]
    joined = Links.joined(parts).by_source()
    return joined.topology(
        name,
        machines.num_npus,
        len(kept) + switches,
        node_names=tuple(names),
        groups=machines.groups,
    )


def group_of_nodes(topology: Topology) -> Int64Array:
    """The group of every node, int64[nodes]; -1 for NPUs in none and switches between groups.

    A switch belongs to a group if its nearest neighbours that belong to any belong to that one.
    """
    group = np.full(topology.num_nodes, -1, np.int64)
    for number, members in enumerate(topology.groups.values()):
        group[list(members)] = number
    is_open = np.arange(topology.num_nodes) >= topology.num_npus
    while True:
        joins = (group[topology.source] >= 0) & is_open[topology.destination]
        if not joins.any():
            return group
        switch, near = topology.destination[joins], group[topology.source[joins]]
        least = np.full(topology.num_nodes, topology.num_nodes, np.int64)
        most = np.full(topology.num_nodes, -1, np.int64)
        np.minimum.at(least, switch, near)
        np.maximum.at(most, switch, near)
        # Next to one group: of that group. Next to several: between them, for good.
        reached = distinct(switch)
        own = reached[least[reached] == most[reached]]
        group[own] = most[own]
        is_open[reached] = False


def _switches_between(machines: Topology) -> Int64Array:
    """Switches that belong to none of several machines, int64."""
    if len(machines.groups) < 2:
        return np.zeros(0, np.int64)
    group = group_of_nodes(machines)
    return np.flatnonzero(group[machines.num_npus :] < 0) + machines.num_npus


def _ports(machines: Topology, between: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Nodes with a link to a switch between machines; the machine of each; rows of such links.

    int64 columns, machine by machine.
    """
    is_between = np.zeros(machines.num_nodes, np.bool_)
    is_between[between] = True
    leaves = is_between[machines.destination] & ~is_between[machines.source]
    ports = distinct(machines.source[leaves])
    # Equal machines: their nodes of one kind stand machine by machine.
    count = len(machines.groups)
    machine = np.arange(len(ports)) * count // max(len(ports), 1)
    return ports, machine, np.flatnonzero(leaves)


def _check_network(name: str, network: Topology, ports: int) -> None:
    """Raise `UsageError` for a network whose NPUs are no ends of single links, or too few."""
    degree = np.bincount(network.source, minlength=network.num_nodes)[: network.num_npus]
    joins_npus = (network.source < network.num_npus) & (network.destination < network.num_npus)
    example = "use fat-tree:K, leaf-spine:L,H,S, dragonfly:A,P,H or switch:N"
    if joins_npus.any() or degree.max() > 1 or network.num_planes > 1:
        message = f"{name}: {network.name} is no network of switches with one link a place"
        raise UsageError(message, cure=example)
    if network.num_npus < ports:
        message = f"{name}: {network.name} has {network.num_npus} places for {ports} NICs"
        raise UsageError(message, cure="choose a larger network, or fewer machines")
