"""Sets of nodes out of which an all-gather comes slowest in whole messages, found by flows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from collhub_packing.flows import Cut, FlowNetwork

from collhub_tacos.bounds.link_groups import LinkGroups
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from hub_core.columns import BoolArray, Int64Array


def slowest_sets(
    network: LinkNetwork, times: LinkTimes, members: Int64Array, share: int
) -> Iterator[BoolArray]:
    """Yield sets of nodes, bool[nodes], ever slower ones; then for each member what is slowest.

    `share`: chunks of every member. By Newton's iteration (Dinkelbach 1967): flows from all members
    to each, over links that carry as many messages as arrive by the time of the last set, tell a
    set out of which more must come. Cost: a few flows to every member.
    """
    flows = _MessageFlows(network, times, members, share)
    time_ps, cut = 0, flows.least_cut(0, members)
    while cut is not None:
        nodes = cut.side[:-1]
        yield nodes
        time_ps = flows.time_ps(nodes)
        cut = flows.least_cut(time_ps, members)
    # As slow as the slowest, or nearly: after these chunks may have farther to go.
    for member in members:
        cut = flows.least_cut(time_ps - 1, np.asarray([member]))
        if cut is not None:
            yield cut.side[:-1]


class _MessageFlows:
    """Flows from all members to one, whose links carry what arrives by some time."""

    def __init__(
        self, network: LinkNetwork, times: LinkTimes, members: Int64Array, share: int
    ) -> None:
        self._network = network
        self._times = times
        self._members = members
        self._share = share
        self._flows = FlowNetwork.fed(
            network.num_nodes,
            network.source,
            network.destination,
            members,
        )

    def least_cut(self, time_ps: int, sinks: Int64Array) -> Cut | None:
        """The least cut that holds something back at one of the sinks, None where none does."""
        total = self._share * len(self._members)
        arrived = (time_ps - self._times.arrival) // self._times.busy + 1
        # More than all chunks together are of no use, and might not add up.
        arcs = np.clip(arrived, 0, total)
        own = np.full(len(self._members), self._share)
        capacity = np.concatenate([arcs, own])
        return self._flows.least_cut(capacity, self._network.num_nodes, sinks, total)

    def time_ps(self, nodes: BoolArray) -> int:
        """Least time by which what must leave a set can do so."""
        network = self._network
        leaves = nodes[network.source] & ~nodes[network.destination]
        inside = int(nodes[self._members].sum())
        return LinkGroups.one(leaves, self._share * inside).time_ps(self._times)
