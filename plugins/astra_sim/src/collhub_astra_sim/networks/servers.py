"""Servers of a network, as SimAI's header counts them: NVSwitches, and the NPUs behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.model import UsageError
from hub_core.network import Topology


@dataclass(frozen=True, slots=True)
class Servers:
    """`npus`: of every server, consecutive; `nvswitches`: nodes that join NPUs of one alone."""

    npus: int
    nvswitches: list[int]


def servers_of(topology: Topology) -> Servers:
    """Find the switches that only join consecutive NPUs, which have other links besides.

    Without any, every NPU is a server. Raises `UsageError` for servers that SimAI cannot number:
    it divides the number of an NPU by their size.
    """
    npus = topology.num_npus
    ends = np.unique(np.stack([topology.source, topology.destination]), axis=1)
    links = np.bincount(ends[0], minlength=topology.num_nodes)
    found: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    for switch in range(npus, topology.num_nodes):
        near = ends[1][ends[0] == switch]
        # A leaf joins switches, a rail one NPU of each server, a lone switch NPUs of one link.
        is_inside = len(near) > 1 and near[-1] < npus and links[near].min() > 1
        if is_inside and near[-1] - near[0] == len(near) - 1:
            found[switch] = near
    # A switch of all NPUs joins servers, unless there is one server alone.
    inner = {switch: near for switch, near in found.items() if len(near) < npus}
    found = inner or found
    if not found:
        return Servers(1, [])
    size = max(len(near) for near in found.values())
    for switch, near in found.items():
        if len(near) != size or near[0] % size:
            name = topology.node_name(switch)
            message = f"{name} joins NPUs {near[0]} to {near[-1]}, others {size} NPUs of a server"
            cure = "leave out -O header=simai: its servers have one size, and follow each other"
            raise UsageError(message, cure=cure, code="uneven-servers")
    return Servers(size, list(found))
