"""Servers of a network, as in SimAI's header: NVSwitches, and the NPUs below them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.model import UsageError
from hub_core.network import Topology


@dataclass(frozen=True, slots=True)
class Servers:
    """`npus`: consecutive NPUs of each server;

    `nvswitches`: nodes that connect only NPUs of one server.
    """

    npus: int
    nvswitches: list[int]


def servers_of(topology: Topology) -> Servers:
    """Find the switches that connect only consecutive NPUs, which also have other links.

    Without any, every NPU is a server. Raises `UsageError` for servers that SimAI cannot number: it
    divides the number of an NPU by the server size.
    """
    npus = topology.num_npus
    ends = np.unique(np.stack([topology.source, topology.destination]), axis=1)
    links = np.bincount(ends[0], minlength=topology.num_nodes)
    npus_of_switch: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    for switch in range(npus, topology.num_nodes):
        neighbours = ends[1][ends[0] == switch]
        # A leaf connects switches, a rail one NPU per server, a single switch NPUs with one link.
        is_inside = len(neighbours) > 1 and neighbours[-1] < npus and links[neighbours].min() > 1
        if is_inside and neighbours[-1] - neighbours[0] == len(neighbours) - 1:
            npus_of_switch[switch] = neighbours
    # A switch of all NPUs connects servers, unless there is only one server.
    inner = {
        switch: neighbours
        for switch, neighbours in npus_of_switch.items()
        if len(neighbours) < npus
    }
    npus_of_switch = inner or npus_of_switch
    if not npus_of_switch:
        return Servers(1, [])
    size = max(len(neighbours) for neighbours in npus_of_switch.values())
    for switch, neighbours in npus_of_switch.items():
        if len(neighbours) != size or neighbours[0] % size:
            name = topology.node_name(switch)
            message = (
                f"{name} joins NPUs {neighbours[0]} to {neighbours[-1]}, "
                f"others {size} NPUs of a server"
            )
            cure = "leave out -O header=simai: its servers have one size, and follow each other"
            raise UsageError(message, cure=cure, code="uneven-servers")
    return Servers(size, list(npus_of_switch))
