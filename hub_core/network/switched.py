"""Networks of several switches: fat tree, dragonfly, and nodes of GPUs joined by rails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hub_core.network.topology import Links, Topology

Int64Array = npt.NDArray[np.int64]
Constants = Sequence[tuple[float, float]]
"""(bandwidth in bytes/s, latency in s) of every class of links."""


def fat_tree(name: str, ports: int, constants: Constants) -> Topology:
    """The k-ary fat tree (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008) of switches with k = `ports` ports, k even.

    k pods of k/2 edge and k/2 aggregation switches, k/2 hosts an edge switch, (k/2)^2 core switches: k^3/4 NPUs,
    5k^2/4 switches, 3k^3/2 directed links. NPU h hangs at edge switch h // (k/2); aggregation switch a of a
    pod reaches the cores a * (k/2) ... a * (k/2) + k/2 - 1. Switch ids: edge, aggregation (pod by pod), core.
    `constants`: host, edge-aggregation and aggregation-core links.
    """
    half = ports // 2
    hosts, rows = half * half * ports, half * ports
    edge, aggregation, core = hosts, hosts + rows, hosts + 2 * rows
    host = np.arange(hosts, dtype=np.int64)
    pod, lower, upper = (axis.ravel() for axis in np.indices((ports, half, half), dtype=np.int64))
    levels = (
        (host, edge + host // half),
        (edge + pod * half + lower, aggregation + pod * half + upper),
        (aggregation + pod * half + lower, core + lower * half + upper),
    )
    names = [
        f"{level} {pod_of}.{place}"
        for level in ("edge", "aggregation")
        for pod_of, place in np.ndindex(ports, half)
    ]
    names += [f"core {index}" for index in range(half * half)]
    pods = {f"pod {index}": span(index, half * half) for index in range(ports)}
    return joined_levels(name, hosts, names, levels, constants, pods)


def dragonfly(
    name: str, routers: int, hosts: int, global_links: int, constants: Constants
) -> Topology:
    """The largest dragonfly (Kim, Dally, Scott, Abts, ISCA 2008) of groups of a = `routers` fully joined routers.

    Every router has p = `hosts` NPUs and h = `global_links` links to other groups: g = a * h + 1 groups, a * p * g
    NPUs, a * g switches, one pair of links between any two groups. Global port j of group i (at router
    j // h) leads to group (i + j + 1) mod g, where it is port a * h - 1 - j. NPU n hangs at router n // p.
    `constants`: host, local and global links.
    """
    groups = routers * global_links + 1
    npus = groups * routers * hosts
    host = np.arange(npus, dtype=np.int64)
    group, one, other = (
        axis.ravel() for axis in np.indices((groups, routers, routers), dtype=np.int64)
    )
    is_local = one < other
    here, port = (axis.ravel() for axis in np.indices((groups, groups - 1), dtype=np.int64))
    there = (here + port + 1) % groups
    is_global = here < there
    levels = (
        (host, npus + host // hosts),
        ((npus + group * routers + one)[is_local], (npus + group * routers + other)[is_local]),
        (
            (npus + here * routers + port // global_links)[is_global],
            (npus + there * routers + (groups - 2 - port) // global_links)[is_global],
        ),
    )
    names = [f"router {group_of}.{router}" for group_of, router in np.ndindex(groups, routers)]
    members = {f"group {index}": span(index, routers * hosts) for index in range(groups)}
    return joined_levels(name, npus, names, levels, constants, members)


def rail(name: str, nodes: int, gpus: int, constants: Constants) -> Topology:
    """Nodes of GPUs behind one NVSwitch each, and one switch per rail: GPU i of every node hangs at rail switch i.

    nodes * gpus NPUs, nodes + gpus switches, 4 * nodes * gpus directed links. There is no spine: between GPUs of
    different nodes and indices, routes pass a GPU of the sender's node, as NCCL's PXN does. NPU id =
    node * gpus + index. Switch ids: NVSwitches, rails. `constants`: NVSwitch and rail links.
    """
    npus = nodes * gpus
    npu = np.arange(npus, dtype=np.int64)
    levels = ((npu, npus + npu // gpus), (npu, npus + nodes + npu % gpus))
    names = [f"nvswitch {node}" for node in range(nodes)] + [
        f"rail {index}" for index in range(gpus)
    ]
    members = {f"node {node}": span(node, gpus) for node in range(nodes)}
    return joined_levels(name, npus, names, levels, constants, members)


def span(index: int, size: int) -> tuple[int, ...]:
    """The NPUs of group `index` where groups of `size` stand one after the other."""
    return tuple(range(index * size, (index + 1) * size))


def joined_levels(
    name: str,
    npus: int,
    switch_names: Sequence[str],
    levels: Sequence[tuple[Int64Array, Int64Array]],
    constants: Constants,
    groups: dict[str, tuple[int, ...]],
) -> Topology:
    """A network of levels: every (low, high) pair is a link each way; links in the order of their sources."""
    parts = [
        Links.uniform(np.concatenate([low, high]), np.concatenate([high, low]), *pair)
        for (low, high), pair in zip(levels, constants, strict=True)
    ]
    links = Links.joined(parts)
    order = np.argsort(links.source, kind="stable")
    names = (*(str(npu) for npu in range(npus)), *switch_names)
    return links.topology(
        name, npus, npus + len(switch_names), order=order, node_names=names, groups=groups
    )
