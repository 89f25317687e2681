"""Construct networks: products of regular dimensions, planes side by side, machines on a network.

Dimensions are lines, rings, fully connected groups and switches.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hub_core.columns import Int64Array, distinct, positions_in
from hub_core.model import InputError, UsageError
from hub_core.network.links import Links
from hub_core.network.topology import Dimension, DimensionKind, MeasuredSwitches, Topology

MAX_NODES = 1 << 20

MAX_LINKS = 1 << 24


def grid(name: str, dimensions: Sequence[Dimension]) -> Topology:
    """Build a grid network as the product of dimensions, which the result keeps.

    The number of an NPU is a0 + n0 * (a1 + n1 * ...) for coordinates a and sizes n, as in
    ASTRA-sim. A dimension of kind switch adds one switch per group of NPUs that differ only in this
    dimension. Switches are numbered after the NPUs: dimension by dimension, then by the lowest NPU
    of the group.

    The links from NPUs are first, ordered by NPU, then by dimension, then as in `_dimension_links`.
    The links from switches follow, ordered by dimension, then by the NPU to which they lead. Every
    link has the bandwidth and latency of its dimension.

    Raises `UsageError` for more than `MAX_NODES` NPUs or `MAX_LINKS` links (an upper estimate per
    NPU counts), and `ValueError` without dimensions.
    """
    sizes = [dimension.size for dimension in dimensions]
    npus = math.prod(sizes)
    # Checked before arrays are allocated: sizes typed by users may exceed the memory.
    if npus > MAX_NODES or sum(npus * _links_per_npu(each) for each in dimensions) > MAX_LINKS:
        cure = f"stay below {MAX_NODES} NPUs and {MAX_LINKS} links"
        raise UsageError(f"topology {name!r} is too large", cure=cure)
    parts: list[Links] = []
    nodes = npus
    strides = itertools.accumulate([1, *sizes], operator.mul)
    for dimension, stride in zip(dimensions, strides, strict=False):
        endpoints = _dimension_links(dimension, stride, npus, nodes)
        parts.append(
            Links.uniform(*endpoints, dimension.bandwidth_bytes_per_s, dimension.latency_s)
        )
        nodes = max(nodes, int(endpoints[0].max(initial=0)) + 1)
    links = Links.joined(parts).by_source(npus)
    return links.topology(name, npus, nodes, dimensions=tuple(dimensions))


def side_by_side(name: str, parts: Sequence[Topology]) -> Topology:
    """Join networks on the same NPUs, so that the i-th part with links becomes plane i.

    All links of a part are on its plane, in the order of the parts. Each part must have one
    plane; this is not checked. Raises `UsageError` (`invalid-topology-text`) at the first part
    with another number of NPUs than the first part, and `IndexError` without parts. Parts
    without links add no plane and no switches, unless no part has links: then the switches are
    those of the first part only. The rules are:

    - Switches of a part are numbered after those of the previous parts; each switch keeps its
      multicast and its reduction.
    - If no part has names, the result has none. Otherwise NPUs are named as in the first part
      (by their number if it has no names), and switches by `_switch_names`.
    - The result has the groups of all parts. Of several groups with one name, the one of the
      first part is used.
    - All measured switches are kept, with the lowest rate of any part.
    - The result has no dimensions.
    """
    first, npus = parts[0], parts[0].num_npus
    for part in parts:
        if part.num_npus != npus:
            sizes = f"{first.name} has {npus} NPUs, {part.name} has {part.num_npus}"
            cure = "join networks of as many NPUs by +, with npus=... for each of them"
            message = f"topology {name!r}: {sizes}"
            raise UsageError(message, cure=cure, code="invalid-topology-text")
    # Planes must be numbered without gaps, and only links have planes.
    with_links = [part for part in parts if part.num_links] or parts[:1]
    nodes = npus
    links: list[Links] = []
    names = [first.node_name(npu) for npu in range(npus)]
    multicast: list[int] = []
    reduction: list[int] = []
    measured: list[MeasuredSwitches] = []
    for plane, part in enumerate(with_links):
        multicast += [switch + nodes - npus for switch in part.multicast]
        reduction += [switch + nodes - npus for switch in part.reduction]
        if part.measured_switches is not None:
            moved = part.measured_switches.renumber(range(nodes - npus, nodes + part.num_nodes))
            measured += [moved] if moved else []
        # Numbers of switches increase; NPUs keep theirs.
        switches_before = nodes - npus
        number = np.arange(part.num_nodes, dtype=np.int64)
        number[part.num_npus :] += switches_before
        links.append(
            Links(
                number[part.source],
                number[part.destination],
                part.bandwidth_bytes_per_s,
                part.latency_s,
                np.full(part.num_links, plane, np.int64),
            )
        )
        nodes += part.num_nodes - npus
        names += _switch_names(part, plane, names)
    # Reversed, so that the group of the first part overwrites the others.
    groups = {group: members for part in reversed(parts) for group, members in part.groups.items()}
    stated = tuple(names) if any(part.node_names for part in parts) else ()
    joined = Links.joined(links).topology(name, npus, nodes, node_names=stated, groups=groups)
    switches = tuple(switch for one in measured for switch in one.switches)
    slowest = min((one.bytes_per_s for one in measured), default=0.0)
    return replace(
        joined,
        multicast=tuple(multicast),
        reduction=tuple(reduction),
        measured_switches=MeasuredSwitches(switches, slowest) if switches else None,
    )


@dataclass(frozen=True, slots=True)
class GroupNetwork:
    """A network, the NPU of each position of the group, and a key.

    Groups with equal `identity` and equally many members can share an algorithm.
    """

    topology: Topology
    npus: tuple[int, ...]
    identity: Hashable


def group_network(topology: Topology, members: tuple[int, ...]) -> GroupNetwork:
    """Return a network for the members of a group, and the NPU of every member in it.

    `members`: NPUs of `topology` by position in the group. There are three cases:

    - `members` are all NPUs in ascending order: `topology` and `members`; `identity` is ().
    - The subset of the members and all switches is connected, that is, every member has a route
      from and to the first member: this subset, in which member i is NPU i; `identity` is the
      content of its links.
    - Otherwise: `topology` and `members`; `identity` is `members`.

    Raises `UsageError` (`invalid-subset`) if `members` is empty, has an NPU twice, or an unknown
    NPU.
    """
    if members == tuple(range(topology.num_npus)):
        return GroupNetwork(topology, members, ())
    subset = topology.subset(members)
    ranks = np.arange(1, len(members))
    first = np.zeros_like(ranks)
    try:
        subset.routes(np.concatenate([first, ranks]), np.concatenate([ranks, first]))
    except InputError:
        return GroupNetwork(topology, members, members)
    columns = (
        *(subset.source, subset.destination, subset.bandwidth_bytes_per_s, subset.latency_s),
        subset.plane,
    )
    identity = tuple(column.tobytes() for column in columns)
    return GroupNetwork(subset, tuple(range(len(members))), identity)


def below_network(
    name: str,
    machines: Topology,
    network: Topology,
    *,
    by_rail: bool = False,
    has_bandwidths: bool = True,
    has_latencies: bool = True,
) -> Topology:
    """Return a topology in which `network` replaces the switches between machines.

    Machines are the groups of `machines`. Switches outside of machines are removed with their
    links. A port is a node that had a link to such a switch. Port i takes the position of NPU
    i of `network`. Ports are numbered by node; with `by_rail`, the first ports of all
    machines come first, then the second ones, and so on. Each machine must have equally many
    ports (not checked). NPUs of `network` without a port are removed.

    Links of `network` keep bandwidth and latency. Without `has_bandwidths`, all get the
    minimum of the removed links from ports; without `has_latencies`, the maximum of these.

    The result has the remaining nodes of `machines`, then the switches of `network`. Links
    are sorted by source. Groups and measured switches are those of `machines`. There is one
    plane, without multicast, reduction and dimensions.

    Raises `UsageError` in the first of these cases: no ports, as with fewer than two
    machines; a `network` with several planes, a link between NPUs or several links from an
    NPU; fewer NPUs than ports.
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
    number = positions_in(selected, machines.num_nodes)
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
    topology = joined.topology(
        name,
        machines.num_npus,
        len(selected) + switches,
        node_names=tuple(names),
        groups=machines.groups,
    )
    measured = machines.measured_switches
    return replace(topology, measured_switches=measured and measured.renumber(number.tolist()))


def group_of_nodes(topology: Topology) -> Int64Array:
    """Return the group number of every node: int64[nodes], -1 for no group.

    Groups are numbered in the order of `topology.groups`. An NPU has the last group that lists it.
    A switch is decided in the first round in which nodes with a group have links to it. If all
    these nodes have one group, the switch gets this group, and counts for the switches of later
    rounds. If they have several groups, the switch stays without a group. A switch that no such
    node reaches has no group.
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


def _links_per_npu(dimension: Dimension) -> int:
    """Return an upper bound of the number of links that a dimension adds per NPU.

    It is 2 for a switch (one per direction), size - 1 for a fully connected dimension, and
    the smaller of 2 and size - 1 for a line or a ring.
    """
    if dimension.kind is DimensionKind.SWITCH:
        return 2
    neighbours = dimension.size - 1
    return neighbours if dimension.kind is DimensionKind.FULLY_CONNECTED else min(2, neighbours)


def _dimension_links(
    dimension: Dimension, stride: int, npus: int, first_switch: int
) -> tuple[Int64Array, Int64Array]:
    """Return sources and destinations (int64) of the links of one dimension of `npus` NPUs.

    Links are ordered by NPU. `stride`: product of the sizes of the previous dimensions. Lines
    and rings link an NPU to the next higher and then to the next lower coordinate. In a ring,
    size - 1 is followed by 0, and a ring of two has one link per NPU. A fully connected
    dimension links it to all other coordinates, ascending. A dimension of size 1 of these kinds
    has no links.

    A switch dimension adds one switch per group of NPUs that are equal in all other
    coordinates. Switches are numbered from `first_switch`, by the lowest NPU of their group.
    For each NPU there is a link to its switch, followed by the link back from the switch. This
    also holds for size 1.
    """
    node = np.arange(npus, dtype=np.int64)
    # Links of a dimension change this coordinate only.
    coordinate = node // stride % dimension.size
    if dimension.kind is DimensionKind.SWITCH:
        # NPUs that are equal in all other coordinates share a switch.
        groups = np.unique(node - coordinate * stride, return_inverse=True)[1]
        switch = first_switch + groups
        return np.stack([node, switch], 1).ravel(), np.stack([switch, node], 1).ravel()
    # Candidate coordinates of neighbours, one row per node, in the order of links.
    neighbour: Int64Array = coordinate[:, None] + np.asarray([1, -1], np.int64)
    if dimension.kind is DimensionKind.FULLY_CONNECTED:
        everywhere = np.arange(dimension.size, dtype=np.int64)
        neighbour = np.broadcast_to(everywhere, (npus, dimension.size))
    elif dimension.kind is DimensionKind.RING:
        # In a ring of two, both directions are the same link.
        directions = 1 if dimension.size == 2 else 2
        neighbour = neighbour[:, :directions] % dimension.size
    is_inside = (neighbour >= 0) & (neighbour < dimension.size)
    row, column = np.nonzero(is_inside & (neighbour != coordinate[:, None]))
    return node[row], node[row] + (neighbour[row, column] - coordinate[row]) * stride


def _switch_names(part: Topology, plane: int, taken: Sequence[str]) -> list[str]:
    """Return a name for every switch of a part (one plane of a network), in order.

    `taken`: names of all nodes of previous parts. A switch without a name is called `switch
    K`, where K counts the switches of all planes from 0. A name that is in `taken`, or that
    a previous switch of the part has, gets ` of plane P` appended, where P is `plane`.
    """
    names: list[str] = []
    for switch in range(part.num_npus, part.num_nodes):
        count = len(taken) + len(names) - part.num_npus
        stated = part.node_names[switch] if part.node_names else f"switch {count}"
        is_taken = stated in taken or stated in names
        names.append(f"{stated} of plane {plane}" if is_taken else stated)
    return names


def _switches_between(machines: Topology) -> Int64Array:
    """Return the switches that connect machines: node numbers, int64, ascending.

    The machines are the groups of the topology. A switch connects machines if it has no
    group by `group_of_nodes`. Empty for fewer than two groups.
    """
    if len(machines.groups) < 2:
        return np.zeros(0, np.int64)
    group = group_of_nodes(machines)
    return np.flatnonzero(group[machines.num_npus :] < 0) + machines.num_npus


def _ports(machines: Topology, between: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the ports, the machine of each port, and the links from ports to `between`.

    `between`: the switches between machines. A port is any other node with a link to one of
    them. The results are int64: ports, ascending; the machine of each port, from 0; rows of
    the links from ports to these switches, ascending. All are empty if there are no ports.

    All machines (the groups of the topology) must have equally many ports, and nodes must
    be numbered machine by machine, because ports are divided evenly in ascending order;
    this is not checked.
    """
    is_between = np.zeros(machines.num_nodes, np.bool_)
    is_between[between] = True
    leaves = is_between[machines.destination] & ~is_between[machines.source]
    ports = distinct(machines.source[leaves])
    count = len(machines.groups)
    machine = np.arange(len(ports)) * count // max(len(ports), 1)
    return ports, machine, np.flatnonzero(leaves)


def _check_network(name: str, network: Topology, ports: int) -> None:
    """Raise `UsageError` unless the network of switches `network` can connect `ports` NICs.

    It must have one plane, no link between two NPUs, at most one outgoing link of every NPU, and at
    least `ports` NPUs, which are the places of the NICs. `name`: the topology in messages.
    """
    degree = np.bincount(network.source, minlength=network.num_nodes)[: network.num_npus]
    joins_npus = (network.source < network.num_npus) & (network.destination < network.num_npus)
    example = "use fat-tree:K, leaf-spine:L,H,S, dragonfly:A,P,H or switch:N"
    if joins_npus.any() or degree.max() > 1 or network.num_planes > 1:
        message = f"{name}: {network.name} is no network of switches with one link per NPU"
        raise UsageError(message, cure=example)
    if network.num_npus < ports:
        message = f"{name}: {network.name} has {network.num_npus} places for {ports} NICs"
        raise UsageError(message, cure="choose a larger network, or fewer machines")
