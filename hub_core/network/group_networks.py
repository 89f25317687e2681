"""The network for which the algorithm of a group of NPUs is synthesized."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from hub_core.model import InputError
from hub_core.network.topology import Topology


@dataclass(frozen=True, slots=True)
class GroupNetwork:
    """A network, the NPU of each position of the group, and a key.

    Groups with equal `identity` and equally many members can share an algorithm.
    """

    topology: Topology
    npus: tuple[int, ...]
    identity: Hashable


def group_network(topology: Topology, members: tuple[int, ...]) -> GroupNetwork:
    """Return the network restricted to the group; the full network if that is not connected.

    Connected means routes from and to the first member. Cost: building a subset of the topology.
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
