"""The network of a plan: memory domains, and members of switches.

Memory channels need memory that threads of another rank can address: within a host, and among the
hosts of one NVLink domain (MNNVL, for example the trays of a GB200 rack). A topology does not name
its media, so domains are derived from its structure. NPUs are in one domain

1. if they are in one host (a group of the topology), or a link joins them directly,
2. if links to one switch, of one bandwidth, are the fastest medium of each,
3. if they are in a group whose name contains "nvlink" or "domain" (the reader of Topograph).

Between hosts, rule 2 needs evidence that the switch is no network switch: the NPUs have a slower
medium too, the bandwidth is above that of network ports, or the name contains "nvswitch" or
"nvlink". If a topology has no groups for hosts, rule 2 treats switches as one that are joined by
links as fast as those of the NPUs. All other pairs use port channels, which would work within a
domain too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hub_core.columns import Int64Array, connected_parts
from hub_core.model import UsageError
from hub_core.network import Topology

_NVLINK_GROUP = re.compile(r"nvlink|domain", re.IGNORECASE)
_NVLINK_SWITCH = re.compile(r"nvlink|nv-?switch", re.IGNORECASE)
_HOST_GROUP = re.compile(r"(host|node|machine)\b", re.IGNORECASE)

MAX_NETWORK_BANDWIDTH_BYTES_PER_S = 100e9
"""Bandwidth of one port of InfiniBand or Ethernet: 800 Gbit/s."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanNetwork:
    """The network of a plan, rank i on NPU i.

    `domain`: int64[ranks], number of the memory domain. `topology`: None if only the number of
    hosts is known.
    """

    domain: Int64Array
    topology: Topology | None = None

    def switch_members(self, switch: int) -> frozenset[int]:
        """Return the NPUs that have links to and from a switch.

        `switch`: node number of the switch. Neighbours that are not NPUs are omitted. The set is
        empty without a topology.
        """
        topology = self.topology
        if topology is None:
            return frozenset()
        up = topology.source[topology.destination == switch]
        down = topology.destination[topology.source == switch]
        neighbours = set(up.tolist()) & set(down.tolist())
        return frozenset(npu for npu in neighbours if npu < topology.num_npus)


def find_network(num_ranks: int, topology: Topology | None, hosts: int) -> PlanNetwork:
    """Build the network of a plan from a topology, or from a number of hosts without one.

    It has the memory domain of every rank, int64[ranks]. Ranks of one domain can address each
    other's memory. With a topology, the domains are those of `find_memory_domains`, and known
    NVSwitches (from H100 on) also multicast and add in the network. Without one (None), the ranks
    are divided into `hosts` equal hosts of consecutive ranks; each is a domain. Raises `UsageError`
    if the topology does not have as many NPUs as there are ranks.
    """
    if topology is None:
        return PlanNetwork(np.arange(num_ranks) * hosts // num_ranks)
    if topology.num_npus != num_ranks:
        message = f"the topology has {topology.num_npus} NPUs, the algorithm {num_ranks} ranks"
        cure = "choose NPUs by npus=, as in dgx-h100:2?npus=0-3,8-11"
        raise UsageError(message, cure=cure)
    return PlanNetwork(find_memory_domains(topology), topology.with_measured_switches())


def find_memory_domains(topology: Topology) -> Int64Array:
    """Number the memory domain of every NPU from 0: int64[npus].

    The NPUs of a domain can address each other's memory. Two NPUs share a domain, directly or over
    other NPUs of it, in these cases:

    - They are in one host (`_find_hosts`), or in one group whose name contains "nvlink" or "domain"
      (any case).
    - No hosts are known, and a link leads from one to the other.
    - Their fastest media have equal bandwidth and lead to one switch (`_find_switched`).

    Domains are numbered by their lowest NPU.
    """
    npus = topology.num_npus
    from_npu = topology.source < npus
    columns = (topology.source, topology.destination, topology.bandwidth_bytes_per_s)
    links = list(zip(*(column[from_npu].tolist() for column in columns), strict=True))
    hosts = _find_hosts(topology.groups, npus)
    nvlink = [members for name, members in topology.groups.items() if _NVLINK_GROUP.search(name)]
    joined: list[Sequence[int]] = [*hosts, *nvlink]
    if not hosts:
        # Between known hosts, a link of two NPUs is a network.
        joined += [(source, node) for source, node, _ in links if node < npus]
    domain = _number_parts(joined, npus).tolist()

    # Bandwidth of the fastest medium of each NPU: a link to a switch, or all of its links to other
    # NPUs of its domain.
    direct: dict[int, float] = {}
    fastest: dict[int, float] = {}
    for source, node, rate in links:
        if node >= npus:
            fastest[source] = max(fastest.get(source, 0.0), rate)
        elif domain[source] == domain[node]:
            direct[source] = direct.get(source, 0.0) + rate
    for npu, rate in direct.items():
        fastest[npu] = max(fastest.get(npu, 0.0), rate)
    switched = _find_switched(topology, fastest, is_with_hosts=bool(hosts))
    domain_of_npu = _number_parts([*joined, *switched], npus)
    return np.unique(domain_of_npu, return_inverse=True)[1].astype(np.int64)


def _number_parts(groups: Iterable[Sequence[int]], count: int) -> Int64Array:
    """Return the part of every node, named by its lowest node: int64[count].

    Nodes of one group, or of several groups that overlap in a chain, are one part. Groups may be
    empty; a node in no group is a part of its own.
    """
    pairs = [(members[0], node) for members in groups for node in members[1:]]
    first, second = np.asarray(pairs, np.int64).reshape(-1, 2).T
    return connected_parts(first, second, count)


def _find_hosts(groups: Mapping[str, tuple[int, ...]], npus: int) -> list[tuple[int, ...]]:
    """Return the groups of NPUs that are hosts; [] if they cannot be determined.

    These are the groups whose names begin with the word host, node or machine, in any case
    and not directly followed by a letter, digit or `_` ("host 0", not "host0"). If these
    groups do not contain every NPU exactly once, all groups are returned, under the same
    condition. The order is that of `groups`.
    """
    named = [members for name, members in groups.items() if _HOST_GROUP.match(name)]
    for candidates in (named, list(groups.values())):
        if sorted(npu for members in candidates for npu in members) == list(range(npus)):
            return candidates
    return []


def _find_switched(
    topology: Topology, fastest: Mapping[int, float], *, is_with_hosts: bool
) -> list[list[int]]:
    """List the groups of NPUs whose fastest links have one bandwidth and lead to one switch.

    `fastest`: for each NPU the largest bandwidth in bytes/s of a link to a switch, or if higher the
    sum of its links to other NPUs. A link from an NPU to a switch counts if its bandwidth is at
    least this value. NPUs whose links count, have exactly equal bandwidth and lead to one switch
    are a group.

    - With known hosts (`is_with_hosts`), a link counts only if it is also NVLink. This holds if the
      NPU has a slower link, if the link has more than 100e9 bytes/s, or if the name of the switch
      contains `nvlink`, `nvswitch` or `nv-switch` (any case).
    - Without hosts, switches that are connected by links, also over several switches, are one
      switch. These links must be at least as fast as the fastest link that counts.

    Groups are in the order of their first links. A group may have one member. An NPU with several
    links that count is listed once per link.
    """
    npus = topology.num_npus
    columns = (topology.source, topology.destination, topology.bandwidth_bytes_per_s)
    links = list(zip(*(column.tolist() for column in columns), strict=True))
    # An NPU whose only links lead to NPUs of other hosts has no fastest link.
    has_slower = {npu for npu, _, rate in links if npu < npus and rate < fastest.get(npu, 0.0)}
    attached = [
        (npu, node, rate)
        for npu, node, rate in links
        if npu < npus <= node and rate >= fastest[npu]
    ]
    switch = list(range(topology.num_nodes))
    if is_with_hosts:
        attached = [
            (npu, node, rate)
            for npu, node, rate in attached
            if npu in has_slower
            or rate > MAX_NETWORK_BANDWIDTH_BYTES_PER_S
            or _NVLINK_SWITCH.search(topology.node_name(node))
        ]
    else:
        npu_rate = max((rate for *_, rate in attached), default=0.0)
        pairs = [
            (source, node)
            for source, node, rate in links
            if source >= npus and node >= npus and rate >= npu_rate
        ]
        switch = _number_parts(pairs, topology.num_nodes).tolist()
    members: dict[tuple[int, float], list[int]] = {}
    for npu, node, rate in attached:
        members.setdefault((switch[node], rate), []).append(npu)
    return list(members.values())
