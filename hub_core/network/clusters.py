"""Replace the switches between machines by another network of switches."""

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
    """Build the machines of a topology with `network` instead of the switches that connect them.

    Machines are the groups of `machines`. A node of a machine with a link to a switch between
    machines is a port. Ports replace the NPUs of `network` in order: machine by machine, or with
    `by_rail` the first port of every machine, then the second, and so on. NPUs of `network` beyond
    the number of ports are removed. The links of a port have the bandwidth and latency of the NPU's
    links in `network`; without `has_bandwidths` all links of `network` have the minimum bandwidth
    of the ports' links in `machines`, without `has_latencies` their maximum latency. Raises
    `UsageError` if `network` has fewer NPUs than there are ports, or has no suitable form.
    """
    between = _switches_between(machines)
    ports, machine_of_port, rows = _ports(machines, between)
    if not len(ports):
        message = f"{name}: {machines.name} is no cluster of machines that switches join"
        raise UsageError(message, cure="write for example dgx-h100:4?network=leaf-spine:4,8,4")
    _check_network(name, network, len(ports))
    position = np.arange(len(ports))
    if by_rail:
        # Sorted by the position of a port in its machine, then by machine.
        first = np.searchsorted(machine_of_port, machine_of_port)
        position[np.lexsort((machine_of_port, position - first))] = np.arange(len(ports))
    selected = np.setdiff1d(np.arange(machines.num_nodes), between)
    number = np.full(machines.num_nodes, -1, np.int64)
    number[selected] = np.arange(len(selected))
    inner = (number[machines.source] >= 0) & (number[machines.destination] >= 0)
    parts = [
        Links(
            number[machines.source[inner]],
            number[machines.destination[inner]],
            machines.bandwidth_bytes_per_s[inner],
            machines.latency_s[inner],
        )
    ]
    # NPUs of the network without a port are removed with their links.
    node = np.full(network.num_nodes, -1, np.int64)
    node[position] = number[ports]
    switches = network.num_nodes - network.num_npus
    node[network.num_npus :] = len(selected) + np.arange(switches)
    outer = (node[network.source] >= 0) & (node[network.destination] >= 0)
    rates, latencies = network.bandwidth_bytes_per_s[outer], network.latency_s[outer]
    if not has_bandwidths:
        rates = np.full(len(rates), machines.bandwidth_bytes_per_s[rows].min())
    if not has_latencies:
        latencies = np.full(len(latencies), machines.latency_s[rows].max())
    parts.append(
        Links(node[network.source[outer]], node[network.destination[outer]], rates, latencies)
    )
    names = [machines.node_name(old) for old in selected.tolist()]
    names += [network.node_name(switch) for switch in range(network.num_npus, network.num_nodes)]
    joined = Links.joined(parts).by_source()
    return joined.topology(
        name,
        machines.num_npus,
        len(selected) + switches,
        node_names=tuple(names),
        groups=machines.groups,
    )


def group_of_nodes(topology: Topology) -> Int64Array:
    """Return the group number of every node: int64[nodes], -1 for no group.

    An NPU has the group that lists it. A switch has the group of its nearest NPUs, and none if
    these are in different groups.
    """
    group = np.full(topology.num_nodes, -1, np.int64)
    for number, members in enumerate(topology.groups.values()):
        group[list(members)] = number
    is_open = np.arange(topology.num_nodes) >= topology.num_npus
    while True:
        joins = (group[topology.source] >= 0) & is_open[topology.destination]
        if not joins.any():
            return group
        switch, neighbour_group = topology.destination[joins], group[topology.source[joins]]
        minimum = np.full(topology.num_nodes, topology.num_nodes, np.int64)
        maximum = np.full(topology.num_nodes, -1, np.int64)
        np.minimum.at(minimum, switch, neighbour_group)
        np.maximum.at(maximum, switch, neighbour_group)
        # A switch reached from one group joins it; one reached from several never gets a group.
        reached = distinct(switch)
        unique = reached[minimum[reached] == maximum[reached]]
        group[unique] = maximum[unique]
        is_open[reached] = False


def _switches_between(machines: Topology) -> Int64Array:
    """Return the switches between machines: int64; none if there are fewer than two machines."""
    if len(machines.groups) < 2:
        return np.zeros(0, np.int64)
    group = group_of_nodes(machines)
    return np.flatnonzero(group[machines.num_npus :] < 0) + machines.num_npus


def _ports(machines: Topology, between: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return (ports, machine number of each port, rows of links from ports to switches), int64.

    Assumes equal machines, whose nodes of a kind are numbered machine by machine.
    """
    is_between = np.zeros(machines.num_nodes, np.bool_)
    is_between[between] = True
    leaves = is_between[machines.destination] & ~is_between[machines.source]
    ports = distinct(machines.source[leaves])
    count = len(machines.groups)
    machine = np.arange(len(ports)) * count // max(len(ports), 1)
    return ports, machine, np.flatnonzero(leaves)


def _check_network(name: str, network: Topology, ports: int) -> None:
    """Raise `UsageError` unless every NPU has one link, to a switch, and there are enough NPUs."""
    degree = np.bincount(network.source, minlength=network.num_nodes)[: network.num_npus]
    joins_npus = (network.source < network.num_npus) & (network.destination < network.num_npus)
    example = "use fat-tree:K, leaf-spine:L,H,S, dragonfly:A,P,H or switch:N"
    if joins_npus.any() or degree.max() > 1 or network.num_planes > 1:
        message = f"{name}: {network.name} is no network of switches with one link a place"
        raise UsageError(message, cure=example)
    if network.num_npus < ports:
        message = f"{name}: {network.name} has {network.num_npus} places for {ports} NICs"
        raise UsageError(message, cure="choose a larger network, or fewer machines")
