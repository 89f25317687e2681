"""Builders of networks of several switches (trees, dragonflies, rails), and of hypercubes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hub_core.columns import Int64Array
from hub_core.network import (
    MAX_NODES,
    Dimension,
    DimensionKind,
    Links,
    Topology,
    TopologyText,
    grid,
)


def check_npus(text: TopologyText, npus: int) -> None:
    """Raise `UsageError` for more than `MAX_NODES // 2` NPUs: a network with switches has at least
    as many other nodes and links.
    """
    # There are at least equally many switches and links.
    if npus > MAX_NODES // 2:
        raise text.error("too large", f"stay below {MAX_NODES // 2} NPUs")


def list_group_npus(index: int, size: int) -> tuple[int, ...]:
    """List the NPUs of group `index`; groups of `size` NPUs are consecutive."""
    return tuple(range(index * size, (index + 1) * size))


def build_duplex_links(
    low: Int64Array, high: Int64Array, bandwidth_bytes_per_s: float, latency_s: float
) -> Links:
    """Build a link in each direction between `low[i]` and `high[i]`, all with equal constants.

    The links from `low` come first, then all links from `high`.
    """
    source, destination = np.concatenate([low, high]), np.concatenate([high, low])
    return Links.uniform(source, destination, bandwidth_bytes_per_s, latency_s)


def build_levels(
    name: str,
    npus: int,
    switch_names: Sequence[str],
    levels: Sequence[tuple[Int64Array, Int64Array]],
    constants: Sequence[tuple[float, float]],
    groups: Mapping[str, tuple[int, ...]],
) -> Topology:
    """Build a network from lists of pairs of nodes; every pair becomes a link in each direction.

    `levels`: arrays (low, high) of equal length, of which low[i] and high[i] are a pair.
    `constants`: (bandwidth in bytes/s, latency in s) of each level. NPUs are named by their
    numbers; `switch_names` are in the order of the switch ids, which follow the `npus`
    NPUs. `groups`: NPUs by name of the group. A repeated pair gives parallel links.

    The links are sorted by source. The links of one source are in the order of the levels;
    within a level, first the pairs in which the source is `low`, then those in which it is
    `high`. Raise `ValueError` if `levels` and `constants` differ in length.
    """
    parts = []
    for (low, high), (bandwidth, latency) in zip(levels, constants, strict=True):
        parts.append(build_duplex_links(low, high, bandwidth, latency))
    # The order of links decides ties in routing; the texts guarantee the order of sources.
    links = Links.joined(parts).by_source()
    names = (*map(str, range(npus)), *switch_names)
    nodes = npus + len(switch_names)
    return links.topology(name, npus, nodes, node_names=names, groups=groups)


# A hypercube of order 20 would have more links than the core supports.
_MAX_ORDER = 19


def build_hypercube(text: TopologyText) -> Topology:
    """Build `hypercube:3`: 2^3 NPUs with links between NPUs whose numbers differ in one bit.

    It is a regular network. The text may give one bandwidth and one latency for all
    dimensions (default 50 GB/s, 500 ns), or one per dimension. Raises `UsageError` unless
    there is exactly one number in 1..`_MAX_ORDER`, and for another number of bandwidths or
    latencies.
    """
    (order,) = text.parameters(1, "x", "hypercube:3 for 8 NPUs")
    if order > _MAX_ORDER:
        raise text.error(f"the order is not in 1..{_MAX_ORDER}", "hypercube:3 has 8 NPUs")
    # Lines of two are the same as rings of two, but clearer.
    constants = text.per_dimension(order)
    return grid(text.text, [Dimension(DimensionKind.LINE, 2, *pair) for pair in constants])


Ends = tuple[Int64Array, Int64Array]
"""Lower and upper ends of pairs of links, int64 columns of equal length."""

_MAX_PORTS = 64


def build_fat_tree(text: TopologyText) -> Topology:
    """Build `fat-tree:k`: the k-ary fat tree of switches with k ports, where k is even.

    There are k pods of k/2 edge and k/2 aggregation switches, k/2 NPUs per edge switch, and
    (k/2)^2 core switches. In total these are k^3/4 NPUs, 5k^2/4 switches and 3k^3/2 directed
    links. NPU h is linked to edge switch h // (k/2). Every edge switch is linked to all
    aggregation switches of its pod. Aggregation switch a of every pod is linked to the cores a
    * k/2 to (a + 1) * k/2 - 1. Each pair has one link in each direction.

    NPUs come first, then the switches: edge, aggregation (both pod by pod), core. Switches are
    named `edge P.I`, `aggregation P.I` and `core I`. The NPUs of pod P are the group `pod P`.
    Links are sorted by source, then destination. The text may give one bandwidth and one latency
    for all links (default 50 GB/s, 500 ns). It may also give one per level: NPU-edge,
    edge-aggregation, aggregation-core.

    Raises `UsageError` unless the text has exactly one even number from 2 to 64 and one or
    three values of bandwidth and latency. Source: Al-Fares, Loukissas, Vahdat, SIGCOMM 2008.
    """
    (ports,) = text.parameters(1, "x", "fat-tree:4 for 16 NPUs")
    if ports % 2 or ports > _MAX_PORTS:
        message = f"{ports} ports per switch are not an even number in 2..{_MAX_PORTS}"
        raise text.error(message, "fat-tree:4 has 16 NPUs")
    constants = text.per_dimension(3, what="levels of links")
    half = ports // 2
    hosts_per_pod = half * half
    hosts = hosts_per_pod * ports
    edge = hosts
    aggregation = edge + half * ports
    core = aggregation + half * ports
    host = np.arange(hosts, dtype=np.int64)
    pod_of_link, lower, upper = _list_coordinates(ports, half, half)
    first = pod_of_link * half
    levels = (
        (host, edge + host // half),
        (edge + first + lower, aggregation + first + upper),
        # Aggregation switch a of every pod is linked to the same cores, so that between two pods
        # there is one path per core.
        (aggregation + first + lower, core + lower * half + upper),
    )
    numbers = [f"{pod}.{index}" for pod, index in np.ndindex(ports, half)]
    names = [f"edge {number}" for number in numbers]
    names += [f"aggregation {number}" for number in numbers]
    names += [f"core {index}" for index in range(hosts_per_pod)]
    pods = {}
    for pod in range(ports):
        pods[f"pod {pod}"] = list_group_npus(pod, hosts_per_pod)
    return build_levels(text.text, hosts, names, levels, constants, pods)


def build_leaf_spine(text: TopologyText) -> Topology:
    """Build `leaf-spine:8,8,4`: 8 leaf switches, 8 NPUs per leaf, 4 spine switches.

    NPU n is linked to leaf n // (NPUs per leaf), and each leaf to each spine, with one link in
    each direction. NPUs come first, then the leaves (`leaf I`), then the spines (`spine I`).
    The NPUs of leaf I are the group `leaf I`. The text may give one bandwidth and one latency
    for all links (default 50 GB/s, 500 ns). It may also give two: for NPU-leaf and for
    leaf-spine.

    Raises `UsageError` in these cases:

    - other than three whole numbers of at least 1
    - more than 2^19 NPUs, or more than 2^20 spines or pairs of a leaf and a spine
    - a number of bandwidths or latencies other than one or two
    """
    leaves, hosts, spines = text.parameters(3, ",", "leaf-spine:8,8,4 for 64 NPUs")
    if max(leaves * hosts, leaves * spines, spines) > MAX_NODES:
        raise text.error("too large", "write for example leaf-spine:8,8,4 for 64 NPUs")
    constants = text.per_dimension(2, what="classes of links")
    npus = leaves * hosts
    check_npus(text, npus)
    host = np.arange(npus, dtype=np.int64)
    leaf, spine = _list_coordinates(leaves, spines)
    levels = ((host, npus + host // hosts), (npus + leaf, npus + leaves + spine))
    names = [f"leaf {index}" for index in range(leaves)]
    names += [f"spine {index}" for index in range(spines)]
    members = {f"leaf {index}": list_group_npus(index, hosts) for index in range(leaves)}
    return build_levels(text.text, npus, names, levels, constants, members)


def build_dragonfly(text: TopologyText) -> Topology:
    """Build `dragonfly:a,p,h`: the largest dragonfly of groups of `a` fully connected routers.

    Every router has p NPUs and h links to other groups. There are g = a * h + 1 groups, and one
    link in each direction between any two. NPU n is linked to router n // p, in both directions.
    Port j (0 to a * h - 1) of group i is at its router j // h, and leads to port a * h - 1 - j of
    group (i + j + 1) mod g.

    The a * p * g NPUs come first, then the a * g routers as switches by group, `router G.R`. The
    NPUs of group G are the group `group G`. Bandwidths and latencies (default 50 GB/s, 500 ns) are
    each one value, or three: for NPU-router, within groups, between groups.

    Raises `UsageError` unless there are three whole numbers of at least 1; if a, p, g, or a * g *
    max(a, p, h) is above 2^20; then for another number of bandwidths or latencies than one or
    three. Source: Kim, Dally, Scott, Abts, ISCA 2008.
    """
    example = "dragonfly:4,2,2 for 72 NPUs"
    routers, hosts, global_links = text.parameters(3, ",", example)
    groups = routers * global_links + 1
    # Checked first: the numbers may require more memory than available.
    size = groups * routers * max(hosts, routers, global_links)
    if max(routers, hosts, groups, size) > MAX_NODES:
        raise text.error("too large", f"write for example {example}")
    constants = text.per_dimension(3, what="classes of links")
    npus = groups * routers * hosts
    host = np.arange(npus, dtype=np.int64)
    # Routers are numbered after the NPUs. Every pair of routers of a group occurs twice, once from
    # each of them; so does every pair of groups below.
    group, low, high = _list_coordinates(groups, routers, routers)
    first_router = npus + group * routers
    is_local = low < high
    local_links = (first_router + low)[is_local], (first_router + high)[is_local]
    # Port j of one group is port a * h - 1 - j of its peer; a * h is the number of groups - 1.
    group, port = _list_coordinates(groups, groups - 1)
    peer_group = (group + port + 1) % groups
    peer_port = groups - 2 - port
    router = npus + group * routers + port // global_links
    peer_router = npus + peer_group * routers + peer_port // global_links
    is_global = group < peer_group
    levels = (
        (host, npus + host // hosts),
        local_links,
        (router[is_global], peer_router[is_global]),
    )
    names = [f"router {index}.{place}" for index, place in np.ndindex(groups, routers)]
    members = {}
    for index in range(groups):
        members[f"group {index}"] = list_group_npus(index, routers * hosts)
    return build_levels(text.text, npus, names, levels, constants, members)


def build_rail(text: TopologyText) -> Topology:
    """Build `rail:4x8`: 4 hosts of 8 GPUs with one NVSwitch per host, and one switch per rail.

    A GPU is an NPU with the number host * GPUs per host + index. It is linked in both
    directions to the NVSwitch of its host and to the rail switch of its index. So there are
    hosts * GPUs NPUs, hosts + GPUs switches and 4 * hosts * GPUs directed links. No spine joins
    the rails: a route between GPUs of different hosts and indices passes another GPU, as with
    NCCL's PXN.

    NPUs come first, then the NVSwitches (`nvswitch H`), then the rail switches (`rail I`). The
    NPUs of host H are the group `node H`. Default bandwidths are 450 GB/s for GPU-NVSwitch and
    50 GB/s for GPU-rail, the default latency is 500 ns. The text may replace each by one value
    for all links or by two, in this order.

    Raises `UsageError` for other than two whole numbers of at least 1, for more than 2^19 NPUs,
    and for another number of values.
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
        members[f"node {node}"] = list_group_npus(node, gpus)
    return build_levels(text.text, npus, names, levels, constants, members)


def _list_coordinates(*sizes: int) -> list[Int64Array]:
    """List the coordinates of all cells of a box in row order, one int64 column per axis."""
    return [axis.ravel() for axis in np.indices(sizes, dtype=np.int64)]
