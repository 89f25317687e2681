"""Cuts of a network: groups of links that messages must cross, and node sets found by flows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from collhub_packing.flows import Cut, FlowNetwork

from collhub_tacos.link_network import LinkNetwork, LinkTimes
from hub_core.columns import BoolArray, Float64Array, Int64Array, row_pointer


@dataclass(frozen=True, slots=True, eq=False)
class LinkGroups:
    """Groups of links, each with the number of messages that must cross it; int64 columns.

    Group i is `links[indptr[i]:indptr[i + 1]]`, which `needed[i]` messages must cross.
    """

    links: Int64Array
    indptr: Int64Array
    needed: Int64Array

    @classmethod
    def one(cls, is_member: BoolArray, needed: int) -> LinkGroups:
        """Return one group: the links for which `is_member` (bool per link) is set.

        `needed`: number of messages that must cross it.
        """
        links = np.flatnonzero(is_member)
        return cls(links, row_pointer([len(links)]), np.asarray([needed]))

    def without_empty_groups(self) -> LinkGroups:
        """Return the groups that have links and that messages must cross, in the same order."""
        size = np.diff(self.indptr)
        # `reduceat` does not support empty groups.
        is_kept = (self.needed > 0) & (size > 0)
        links = self.links[np.repeat(is_kept, size)]
        return LinkGroups(links, row_pointer(size[is_kept]), self.needed[is_kept])

    def time_ps(self, times: LinkTimes) -> int:
        """Return the earliest picosecond by which every group can have carried its messages.

        Each link sends one message per busy time; the first arrives after the arrival time. 0 if no
        message must cross. Groups that need none are ignored.
        """
        groups = self.without_empty_groups()
        if not len(groups.needed):
            return 0
        busy, arrival = times.busy[groups.links], times.arrival[groups.links]
        first = groups.indptr[:-1]
        if np.ptp(busy) == 0 and np.ptp(arrival) == 0:
            # Equal links of a group share the messages evenly.
            rounds = -(-groups.needed // np.diff(groups.indptr))
            return int(arrival[0] + (rounds.max() - 1) * busy[0])
        low = 0
        # The time of the slowest link if it carries all messages.
        high = int(arrival.max() + (groups.needed.max() - 1) * busy.max())
        while low < high:
            middle = (low + high) // 2
            # A link delivers its first message after `arrival` and the following ones every `busy`;
            # all at the same time if a message takes less than half a picosecond.
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
        """Return the seconds of the slowest group: its bytes divided by the bandwidth of its links.

        `rate`: bytes/s per link; each message has `chunk_bytes` bytes. 0 if no message must cross.
        """
        groups = self.without_empty_groups()
        if not len(groups.needed):
            return 0.0
        group_rate = np.add.reduceat(rate[groups.links], groups.indptr[:-1])
        seconds = groups.needed * chunk_bytes / group_rate
        return float(np.max(seconds))


def find_slowest_sets(
    network: LinkNetwork, times: LinkTimes, members: Int64Array, share: int
) -> Iterator[BoolArray]:
    """Yield node sets (bool[nodes]) that bound an all-gather from below, for use as cut bounds.

    The time of a set is the earliest at which all chunks that start in it can have left it. The
    first sets have strictly increasing times, up to the slowest set. Then, for each member that
    cannot have received everything one picosecond before that time, one more set that proves it.

    `share`: chunks that every member starts with. Method: Newton's iteration (Dinkelbach 1967).
    Each link has a capacity of as many messages as can arrive by the time of the last set; if some
    member then cannot receive all chunks, the minimum cut is a slower set. Cost: a few maximum
    flows per member.
    """
    flows = _MessageFlows(network, times, members, share)
    time_ps, cut = 0, flows.find_limiting_cut(0, members)
    while cut is not None:
        nodes = cut.side[:-1]
        yield nodes
        time_ps = flows.time_ps(nodes)
        cut = flows.find_limiting_cut(time_ps, members)
    # These sets are about as slow as the slowest. Chunks may have longer paths after leaving them.
    for member in members:
        cut = flows.find_limiting_cut(time_ps - 1, np.asarray([member]))
        if cut is not None:
            yield cut.side[:-1]


class _MessageFlows:
    """Flows from all members to one member over links with the capacity of a given time."""

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

    def find_limiting_cut(self, time_ps: int, sinks: Int64Array) -> Cut | None:
        """Return a minimum cut that keeps a sink from receiving all chunks by `time_ps`.

        None if all `sinks` can receive everything by then.
        """
        total = self._share * len(self._members)
        arrived = (time_ps - self._times.arrival) // self._times.busy + 1
        # Larger capacities have no effect, and their sum might overflow.
        arcs = np.clip(arrived, 0, total)
        start = np.full(len(self._members), self._share)
        capacity = np.concatenate([arcs, start])
        return self._flows.least_cut(capacity, self._network.num_nodes, sinks, total)

    def time_ps(self, nodes: BoolArray) -> int:
        """Return the earliest picosecond by which all chunks that start in a set can have left it.

        `nodes`: the set, bool[nodes].
        """
        network = self._network
        leaves = nodes[network.source] & ~nodes[network.destination]
        inside = int(nodes[self._members].sum())
        return LinkGroups.one(leaves, self._share * inside).time_ps(self._times)
