"""Builders of networks of several switches: trees, dragonflies, and nodes joined by rails."""

from __future__ import annotations

import numpy as np
from collhub_columns import Int64Array

from collhub_topologies.builders.levels import check_npus, joined_levels, span
from hub_core.network import MAX_NODES, Topology, TopologyText

Ends = tuple[Int64Array, Int64Array]
"""Lower and upper ends of pairs of links, int64 columns of equal length."""

_MAX_PORTS = 64


def fat_tree(text: TopologyText) -> Topology:
    """`fat-tree:4`: the k-ary fat tree of switches with k ports, k even.

    Al-Fares, Loukissas, Vahdat, SIGCOMM 2008. k pods of k/2 edge and k/2 aggregation switches, k/2
    hosts an edge switch, (k/2)^2 core switches: k^3/4 NPUs, 5k^2/4 switches, 3k^3/2 directed links.
    NPU h hangs at edge switch h // (k/2); aggregation switch a of a pod reaches the cores a * (k/2)
    ... a * (k/2) + k/2 - 1. Switch ids: edge, aggregation (pod by pod), core. Classes of links:
    host, edge-aggregation, aggregation-core.
    """
    (ports,) = text.parameters(1, "x", "fat-tree:4 for 16 NPUs")
    if ports % 2 or ports > _MAX_PORTS:
        message = f"{ports} ports a switch are not an even number in 2..{_MAX_PORTS}"
        raise text.error(message, "fat-tree:4 has 16 NPUs")
    constants = text.per_dimension(3, what="levels of links")
    half = ports // 2
    hosts_a_pod = half * half
    hosts = hosts_a_pod * ports
    levels = _fat_tree_levels(ports)
    in_pod = [f"{pod}.{place}" for pod, place in np.ndindex(ports, half)]
    names = [f"edge {place}" for place in in_pod]
    names += [f"aggregation {place}" for place in in_pod]
    names += [f"core {index}" for index in range(hosts_a_pod)]
    pods = {}
    for pod in range(ports):
        pods[f"pod {pod}"] = span(pod, hosts_a_pod)
    return joined_levels(text.text, hosts, names, levels, constants, pods)


def _fat_tree_levels(ports: int) -> tuple[Ends, ...]:
    """Lower and upper ends of all pairs of links, a level each: hosts, pods, cores."""
    half = ports // 2
    hosts, switches_a_level = half * half * ports, half * ports
    edge = hosts
    aggregation = edge + switches_a_level
    core = aggregation + switches_a_level
    host = np.arange(hosts, dtype=np.int64)
    pod, lower, upper = _places(ports, half, half)
    first = pod * half
    return (
        (host, edge + host // half),
        (edge + first + lower, aggregation + first + upper),
        # Aggregation switch a of every pod goes to the same cores, so that between two pods there
        # is one path per core.
        (aggregation + first + lower, core + lower * half + upper),
    )


def leaf_spine(text: TopologyText) -> Topology:
    """`leaf-spine:8,8,4`: leaf switches, NPUs a leaf, spine switches; each leaf reaches each spine.

    With fewer spines than NPUs a leaf, and links of one bandwidth, the leaves are oversubscribed by
    that ratio. NPU n hangs at leaf n // NPUs a leaf. Switch ids: leaves, spines. Classes of links:
    host, leaf-spine.
    """
    leaves, hosts, spines = text.parameters(3, ",", "leaf-spine:8,8,4 for 64 NPUs")
    if max(leaves * hosts, leaves * spines, spines) > MAX_NODES:
        raise text.error("too large", "write for example leaf-spine:8,8,4 for 64 NPUs")
    constants = text.per_dimension(2, what="classes of links")
    npus = leaves * hosts
    check_npus(text, npus)
    host = np.arange(npus, dtype=np.int64)
    leaf, spine = _places(leaves, spines)
    levels = ((host, npus + host // hosts), (npus + leaf, npus + leaves + spine))
    names = [f"leaf {index}" for index in range(leaves)]
    names += [f"spine {index}" for index in range(spines)]
    members = {f"leaf {index}": span(index, hosts) for index in range(leaves)}
    return joined_levels(text.text, npus, names, levels, constants, members)


def dragonfly(text: TopologyText) -> Topology:
    """`dragonfly:4,2,2`: the largest dragonfly of fully joined groups of a routers.

    Kim, Dally, Scott, Abts, ISCA 2008. The numbers are a, p and h: every router has p NPUs and h
    links to other groups: g = a * h + 1 groups, a * p * g NPUs, a * g switches, one pair of links
    between any two groups. Global port j of group i (at router j // h) leads to group (i + j + 1)
    mod g, where it is port a * h - 1 - j. NPU n hangs at router n // p. Classes of links: host,
    local, global.
    """
    example = "dragonfly:4,2,2 for 72 NPUs"
    routers, hosts, global_links = text.parameters(3, ",", example)
    groups = routers * global_links + 1
    # Before anything is made: numbers as they are typed can ask for more memory than there is.
    ends = groups * routers * max(hosts, routers, global_links)
    if max(routers, hosts, groups, ends) > MAX_NODES:
        raise text.error("too large", f"write for example {example}")
    constants = text.per_dimension(3, what="classes of links")
    npus = groups * routers * hosts
    host = np.arange(npus, dtype=np.int64)
    levels = (
        (host, npus + host // hosts),
        _local_links(npus, groups, routers),
        _global_links(npus, routers, global_links),
    )
    names = [f"router {group}.{router}" for group, router in np.ndindex(groups, routers)]
    members = {}
    for group in range(groups):
        members[f"group {group}"] = span(group, routers * hosts)
    return joined_levels(text.text, npus, names, levels, constants, members)


def _local_links(npus: int, groups: int, routers: int) -> Ends:
    """Both ends of every pair of links within the groups of a dragonfly, the lower ones first."""
    group, one, other = _places(groups, routers, routers)
    # Routers are numbered behind the NPUs.
    first = npus + group * routers
    # Every pair stands twice, once from each of its routers.
    is_once = one < other
    lower = first + one
    upper = first + other
    return lower[is_once], upper[is_once]


def _global_links(npus: int, routers: int, global_links: int) -> Ends:
    """Both ends of every pair of links between groups of a dragonfly."""
    groups = routers * global_links + 1
    here, port = _places(groups, groups - 1)
    there = (here + port + 1) % groups
    # Port j of one group is port a * h - 1 - j of the other, and a * h is the number of groups - 1.
    port_there = groups - 2 - port
    near = npus + here * routers + port // global_links
    far = npus + there * routers + port_there // global_links
    # Both ends of a link list it: it is taken from the lower one.
    is_once = here < there
    return near[is_once], far[is_once]


def rail(text: TopologyText) -> Topology:
    """`rail:4x8`: nodes of GPUs behind one NVSwitch each, and one switch per rail.

    GPU i of every node hangs at rail switch i: nodes * gpus NPUs, nodes + gpus switches, 4 * nodes
    * gpus directed links. There is no spine: between GPUs of different nodes and indices, routes
    pass a GPU of the sender's node, as NCCL's PXN does. NPU id = node * gpus + index. Switch ids:
    NVSwitches, rails. Classes of links: NVSwitch, rail.
    """
    nodes, gpus = text.parameters(2, "x", "rail:4x8 for 32 NPUs")
    npus = nodes * gpus
    check_npus(text, npus)
    # Nominal bandwidths of an H100 system: NVLink per GPU, 400 Gbit/s per NIC.
    constants = text.per_dimension(2, (450e9, 50e9), "classes of links")
    npu = np.arange(npus, dtype=np.int64)
    nvswitch = npus + npu // gpus
    rail_switch = npus + nodes + npu % gpus
    levels = ((npu, nvswitch), (npu, rail_switch))
    nvswitches = [f"nvswitch {node}" for node in range(nodes)]
    rails = [f"rail {index}" for index in range(gpus)]
    names = [*nvswitches, *rails]
    members = {}
    for node in range(nodes):
        members[f"node {node}"] = span(node, gpus)
    return joined_levels(text.text, npus, names, levels, constants, members)


def _places(*sizes: int) -> list[Int64Array]:
    """The coordinates of all cells of a box.

    In row order, one int64 column an axis.
    """
    return [axis.ravel() for axis in np.indices(sizes, dtype=np.int64)]
