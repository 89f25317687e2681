"""Groups of links over which messages must go, and the time below which they cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from collhub_packing import CapacityGraph
from collhub_packing.flows import Cut, FlowNetwork

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from hub_core.columns import BoolArray, Float64Array, Int64Array, inverse, row_pointer
from hub_core.model import InputError


@dataclass(frozen=True, slots=True, eq=False)
class LinkGroups:
    """Groups of links, each with the number of messages that must go over it; int64 columns.

    Group i is `links[indptr[i]:indptr[i + 1]]`, over which `needed[i]` messages must go.
    """

    links: Int64Array
    indptr: Int64Array
    needed: Int64Array

    @classmethod
    def one(cls, is_member: BoolArray, needed: int) -> LinkGroups:
        """One group: the links for which `is_member` (bool per link) holds."""
        links = np.flatnonzero(is_member)
        return cls(links, row_pointer([len(links)]), np.asarray([needed]))

    def crossed(self) -> LinkGroups:
        """Without the groups that nothing must cross, and those that nothing can."""
        size = np.diff(self.indptr)
        # `reduceat` takes no empty groups.
        is_kept = (self.needed > 0) & (size > 0)
        links = self.links[np.repeat(is_kept, size)]
        return LinkGroups(links, row_pointer(size[is_kept]), self.needed[is_kept])

    def time_ps(self, times: LinkTimes) -> int:
        """Least time by which all groups can deliver what they must, by bisection if need be."""
        groups = self.crossed()
        if not len(groups.needed):
            return 0
        busy, arrival = times.busy[groups.links], times.arrival[groups.links]
        first = groups.indptr[:-1]
        if np.ptp(busy) == 0 and np.ptp(arrival) == 0:
            # Alike links of a group take turns.
            rounds = -(-groups.needed // np.diff(groups.indptr))
            return int(arrival[0] + (rounds.max() - 1) * busy[0])
        low = 0
        # By one link of a group alone, the slowest.
        high = int(arrival.max() + (groups.needed.max() - 1) * busy.max())
        while low < high:
            middle = (low + high) // 2
            # A link delivers its first message after `arrival`, the next ones every `busy`; all at
            # the same time if a message takes less than half a picosecond.
            messages = (middle - arrival) // np.maximum(busy, 1) + 1
            messages = np.where(busy > 0, messages, groups.needed.max())
            delivered = np.where(middle < arrival, 0, messages)
            if np.all(np.add.reduceat(delivered, first) >= groups.needed):
                high = middle
            else:
                low = middle + 1
        return low

    def fluid_s(
        self,
        rate: Float64Array,
        chunk_bytes: int,
    ) -> float:
        """Seconds of the slowest group, its bytes by its bandwidth; `rate`: bytes/s per link."""
        groups = self.crossed()
        if not len(groups.needed):
            return 0.0
        together = np.add.reduceat(rate[groups.links], groups.indptr[:-1])
        seconds = groups.needed * chunk_bytes / together
        return float(np.max(seconds))


def tightest_sets(network: LinkNetwork, members: Int64Array) -> list[BoolArray]:
    """Node set of least bandwidth out of it by members in it: bool[nodes], for `lower_bounds_ps`.

    Empty where bandwidths have no common unit, which exact flows need. Cost: several flows to each
    member, so it is for hundreds of nodes. Raises `InputError` where members cannot reach one
    another.
    """
    # Imports numba, which takes a second.
    from collhub_packing import all_gather_rate

    try:
        graph = CapacityGraph.of(network.topology)
    except InputError:
        return []
    relays = np.setdiff1d(np.arange(network.num_nodes), members)
    order = np.concatenate([members, relays])
    cut = all_gather_rate(_renumbered(graph, order, len(members))).cut
    nodes = np.zeros(network.num_nodes, np.bool_)
    nodes[order[list(cut)]] = True
    return [nodes]


def _renumbered(graph: CapacityGraph, order: Int64Array, num_members: int) -> CapacityGraph:
    """Graph whose node i is node `order[i]` of the given one; those after the members relay."""
    number = inverse(order)
    # NPUs that only relay are to the flows what switches are: they need nothing themselves.
    return replace(
        graph,
        num_compute=num_members,
        source=number[graph.source],
        destination=number[graph.destination],
    )


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
