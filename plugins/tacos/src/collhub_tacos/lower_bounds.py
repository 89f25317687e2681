"""Lower bounds of a collective by the messages that must enter, leave or cross sets of nodes.

Cuts are groups of links that messages must cross.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.symmetry import compute_diameter_ps, count_total_hops
from hub_core.columns import BoolArray, Float64Array, Int64Array, row_pointer
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy

_LeavingChunks = Callable[[Int64Array, Int64Array, BoolArray], Int64Array]


# Chunks of one share that must leave each set of nodes, by the numbers of members inside and
# outside of the set, and whether it contains the root. A product with 1 converts a mask to numbers.
_COUNT_LEAVING: Mapping[CollectiveKind, _LeavingChunks] = {
    CollectiveKind.ALL_GATHER: lambda inside, outside, has_root: inside * (outside > 0),
    CollectiveKind.REDUCE_SCATTER: lambda inside, outside, has_root: outside * (inside > 0),
    CollectiveKind.ALL_REDUCE: lambda inside, outside, has_root: 1 * ((inside > 0) & (outside > 0)),
    CollectiveKind.BROADCAST: lambda inside, outside, has_root: 1 * (has_root & (outside > 0)),
    CollectiveKind.REDUCE: lambda inside, outside, has_root: 1 * (~has_root & (inside > 0)),
    CollectiveKind.GATHER: lambda inside, outside, has_root: inside * ~has_root,
    CollectiveKind.SCATTER: lambda inside, outside, has_root: outside * has_root,
    CollectiveKind.ALL_TO_ALL: lambda inside, outside, has_root: inside * outside,
}


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveDemand:
    """Collective with its members, bool[nodes], and the node of its root, -1 for none."""

    collective: Collective
    is_member: BoolArray
    root: int

    @classmethod
    def of(
        cls, collective: Collective, network: LinkNetwork, members: Int64Array
    ) -> CollectiveDemand:
        """Build the demand of a collective whose rank r is NPU `members[r]`.

        Its `is_member` (bool[nodes of `network`]) is True for every node in `members`, also if the
        collective needs no message of it. Its `root` is the node of the collective's root rank, or
        -1 if the collective has no root.
        """
        is_member = np.zeros(network.num_nodes, np.bool_)
        is_member[members] = True
        root = -1
        if collective.root is not None:
            root = int(members[collective.root])
        return cls(collective, is_member, root)

    @property
    def num_members(self) -> int:
        """Number of participating nodes."""
        return int(self.is_member.sum())

    def count_leaving(self, inside: Int64Array, has_root: BoolArray) -> Int64Array:
        """Return the number of messages of one unit that must leave each set of nodes: int64[sets].

        `inside`: i, the number of ranks' NPUs in each set; the other o ranks are outside.
        `has_root`: bool[sets], whether a set contains the root. The result is `units_per_rank`
        times:

        - all-gather: i if o > 0, else 0; reduce-scatter: o if i > 0, else 0
        - all-reduce: 1 if i > 0 and o > 0, else 0
        - broadcast: 1 if the root is inside and o > 0, else 0
        - reduce: 1 if the root is outside and i > 0, else 0
        - gather: i if the root is outside, else 0; scatter: o if the root is inside, else 0
        - all-to-all: i * o

        Raises `KeyError` for other kinds.
        """
        outside = self.num_members - inside
        chunks = _COUNT_LEAVING[self.collective.kind](inside, outside, has_root)
        return chunks * self.collective.units_per_rank

    def count_leaving_set(self, nodes: BoolArray) -> int:
        """Return the number of messages of one unit that must leave one set, given as bool[nodes].

        It depends only on the number of members in the set, and on whether it contains the root.
        """
        inside = np.count_nonzero(self.is_member & nodes)
        # Index -1 would select the last node.
        has_root = self.root >= 0 and bool(nodes[self.root])
        leaving = self.count_leaving(np.asarray([inside]), np.asarray([has_root]))
        return int(leaving[0])

    def count_between(self, sources: BoolArray, targets: BoolArray) -> int:
        """Return how many one-unit messages must get from nodes `sources` to nodes `targets`.

        Both are disjoint bool[nodes]; other nodes may forward. The result is `units_per_rank`
        times a number of chunks. With a members in `sources` and b members in `targets`, it is:

        - all-gather: a if b > 0; reduce-scatter: b if a > 0; all-to-all: a b
        - all-reduce: 1 if a > 0 and b > 0
        - broadcast: 1 if b > 0, and scatter: b, both only if the root is in `sources`
        - reduce: 1 if a > 0, and gather: a, both only if the root is in `targets`

        In all other cases it is 0.
        """
        inside = int(np.sum(sources & self.is_member))
        outside = int(np.sum(targets & self.is_member))
        # If data go to the root, the root counts as inside unless it is a target.
        near_side = ~targets if self.collective.kind.traits.to_root else sources
        has_root = self.root >= 0 and bool(near_side[self.root])
        chunks = _COUNT_LEAVING[self.collective.kind](
            np.asarray([inside]), np.asarray([outside]), np.asarray([has_root])
        )
        return int(chunks[0]) * self.collective.units_per_rank

    def get_senders_and_receivers(self) -> tuple[BoolArray, BoolArray]:
        """Return (members that send data, members that receive data): bool[nodes] each.

        In a broadcast or scatter, only the root sends, and all members receive. In a reduce or
        gather, all members send, and only the root receives. In other collectives all members do
        both.
        """
        is_root = np.arange(len(self.is_member)) == self.root
        traits = self.collective.kind.traits
        senders = is_root if traits.is_rooted and not traits.to_root else self.is_member
        receivers = is_root if traits.to_root else self.is_member
        return senders, receivers


_PS_PER_S = 1e12


def compute_lower_bounds_ps(
    collective: Collective,
    network: LinkNetwork,
    members: Int64Array,
    chunk_bytes: int,
    occupancy: Occupancy,
    node_sets: Sequence[BoolArray] = (),
) -> dict[str, int]:
    """Return lower bounds in ps, by name, for algorithms whose messages all carry one unit.

    A unit has `chunk_bytes` bytes. `members[r]`: NPU of rank r. The network must be
    connected. Bounds of 0 are omitted, except `fluid`.

    - `ingress`, `egress`: messages that must enter or leave some node
    - `cut`: messages that must leave a slab along a dimension, a group of the topology, one
      of `node_sets` (bool[nodes] each), or the complement of one of these
    - `diameter`: the longest of the shortest paths that data must take
    - `bandwidth`: only for an all-to-all (messages on shortest paths on all links) and an
      all-reduce (2(b - 1) per chunk on the links between b blocks of nodes)
    - `fluid`: the maximum of these except `diameter`, without latency and for messages of
      any size, rounded down; in the other bounds a link carries only entire messages
    """
    times = network.link_times(chunk_bytes, occupancy)
    demand = CollectiveDemand.of(collective, network, members)
    inside = demand.is_member.astype(np.int64)
    is_root = np.arange(network.num_nodes) == demand.root
    # Messages that enter a node leave the set of all other nodes.
    other_members = demand.num_members - inside
    root_is_other = ~is_root & (demand.root >= 0)
    entering = demand.count_leaving(other_members, root_is_other)
    leaving = demand.count_leaving(inside, is_root)
    out_indptr, out_links = network.out_links()
    known_sets = (*list_known_sets(network), *node_sets)
    sides = [side for nodes in known_sets for side in (nodes, ~nodes)]
    # Groups of links with the number of messages that must cross them: one per node, side or total.
    crossings = {
        "ingress": LinkGroups(np.arange(network.num_links), network.indptr, entering),
        "egress": LinkGroups(out_links, out_indptr, leaving),
        "cut": build_exits(demand, network, sides),
        "bandwidth": LinkGroups.joined(list(_build_totals(demand, network))),
    }
    bounds = {name: groups.time_ps(times) for name, groups in crossings.items()}
    bounds["diameter"] = compute_diameter_ps(collective, network, members, times)
    rate = network.topology.bandwidth_bytes_per_s[network.row]
    fluid_s = max(groups.fluid_s(rate, chunk_bytes) for groups in crossings.values())
    positive_bounds = {name: time for name, time in bounds.items() if time}
    return positive_bounds | {"fluid": int(fluid_s * _PS_PER_S)}


def build_exits(
    demand: CollectiveDemand, network: LinkNetwork, sets: Sequence[BoolArray]
) -> LinkGroups:
    """Return one group of links for each node set, in order: the links that lead out of the set.

    `sets`: bool[nodes] each. A link out of a set leads from a node of the set to a node outside.
    The group has the number of one-unit messages that must leave the set (`count_leaving_set`). It
    has no links if none leads out of the set.
    """
    source, destination = network.source, network.destination
    return LinkGroups.joined(
        [
            LinkGroups.one(nodes[source] & ~nodes[destination], demand.count_leaving_set(nodes))
            for nodes in sets
        ]
    )


def _build_totals(demand: CollectiveDemand, network: LinkNetwork) -> Iterator[LinkGroups]:
    """Yield groups of links that all messages together must cross, with the number of messages.

    A unit is one of the `units_per_rank` of the collective. The groups depend on its kind:

    - all-reduce: nothing if switches multicast or reduce. Otherwise first all links that leave an
      NPU, with 2 (members - 1) messages per unit. On networks without switches, one group follows
      for each dimension: the links between nodes whose coordinates in it differ. It has 2 (b - 1)
      messages per unit, where b is the number of different coordinates of the members in this
      dimension.
    - all-to-all: one group of all links. Its number of messages is the sum of the shortest
      distances (in links) of all ordered pairs of members, times the units. A pair without a path
      counts 0.
    - other collectives: nothing
    """
    kind, topology = demand.collective.kind, network.topology
    is_multiplied = bool(topology.multicast or topology.reduction)
    if kind is CollectiveKind.ALL_REDUCE and not is_multiplied:
        # 2(blocks - 1) messages per chunk cross the links between the blocks of a partition
        # (Nash-Williams, Tutte 1961): each NPU is a block, or each slab along a dimension.
        share = demand.collective.units_per_rank
        npus = network.num_npus
        # Forwarding by a switch does not count as another message.
        leaves_npu = network.source < npus
        between_npus = 2 * (demand.num_members - 1)
        yield LinkGroups.one(leaves_npu, between_npus * share)
        # Switches do not belong to a block.
        is_member = demand.is_member[:npus]
        for coordinate in _compute_coordinates(network):
            blocks = len(np.unique(coordinate[:npus][is_member]))
            is_between = coordinate[network.source] != coordinate[network.destination]
            yield LinkGroups.one(is_between & leaves_npu, 2 * (blocks - 1) * share)
    if kind is CollectiveKind.ALL_TO_ALL:
        hops = count_total_hops(network, np.flatnonzero(demand.is_member))
        every_link = np.ones(network.num_links, np.bool_)
        yield LinkGroups.one(every_link, hops * demand.collective.units_per_rank)


def _compute_coordinates(network: LinkNetwork) -> Iterator[Int64Array]:
    """Yield the coordinates of all nodes along each dimension, for networks without switches.

    The first dimension changes fastest. Nothing is yielded with switches or without dimensions.
    """
    if network.num_nodes > network.num_npus:
        return
    stride = 1
    for dimension in network.topology.dimensions:
        yield np.arange(network.num_nodes) // stride % dimension.size
        stride *= dimension.size


def list_known_sets(network: LinkNetwork) -> Iterator[BoolArray]:
    """Yield sets of nodes (bool[nodes]) that slow links may separate from the other nodes.

    First come the slabs along each dimension of a network without switches: the nodes
    with a coordinate below 1, below 2, and so on, up to the largest coordinate. Then
    follow the NPUs of each group of the topology, in its order. No set is yielded without
    dimensions and groups.
    """
    # On meshes and tori these cuts have the fewest links for their number of nodes.
    for coordinate in _compute_coordinates(network):
        for end in range(1, int(coordinate.max()) + 1):
            yield coordinate < end
    # Topologies name the units that slow links connect: boards, racks, pairs.
    for members in network.topology.groups.values():
        nodes = np.zeros(network.num_nodes, np.bool_)
        nodes[list(members)] = True
        yield nodes


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
        """Return one group with the links for which `is_member` (bool[links]) is True.

        `needed`: number of messages that must cross these links.
        """
        links = np.flatnonzero(is_member)
        return cls(links, row_pointer([len(links)]), np.asarray([needed]))

    @property
    def is_crossed(self) -> BoolArray:
        """Whether a group has links and needs at least one message: bool[groups]."""
        return (self.needed > 0) & (np.diff(self.indptr) > 0)

    def without_empty_groups(self) -> LinkGroups:
        """Return the groups with at least one link and one needed message, in the same order.

        The other groups are removed with their links (`is_crossed`); this table is not changed.
        """
        size, is_kept = np.diff(self.indptr), self.is_crossed
        links = self.links[np.repeat(is_kept, size)]
        return LinkGroups(links, row_pointer(size[is_kept]), self.needed[is_kept])

    @classmethod
    def joined(cls, groups: Sequence[LinkGroups]) -> LinkGroups:
        """Return the groups of all tables in one table, in their order.

        Without tables, it has no groups. The given tables are unchanged; equal groups are kept
        separately.
        """
        empty = np.zeros(0, np.int64)
        sizes = np.concatenate([empty, *(np.diff(table.indptr) for table in groups)])
        links = np.concatenate([empty, *(table.links for table in groups)])
        needed = np.concatenate([empty, *(table.needed for table in groups)])
        return cls(links, row_pointer(sizes), needed)

    def time_ps(self, times: LinkTimes) -> int:
        """Return the earliest time in ps by which every group can have carried its messages.

        It is the maximum of `list_times_ps`, 0 without groups.
        """
        return int(self.list_times_ps(times).max(initial=0))

    def list_times_ps(self, times: LinkTimes) -> Int64Array:
        """Return for each group the earliest time in ps at which its messages can have crossed.

        The result is int64[groups], 0 for a group without links or with `needed` 0. For other
        groups it is the smallest time at which the links have delivered at least `needed` messages
        together. A link has delivered none before its arrival time, then the first one, and one
        more after each busy time: 2 at arrival + busy. A link with a busy time of 0 delivers all at
        its arrival time. Links that occur twice in a group count twice.
        """
        result = np.zeros(len(self.needed), np.int64)
        # `reduceat` does not support empty groups.
        groups = self.without_empty_groups()
        if not len(groups.needed):
            return result
        busy, arrival = times.busy[groups.links], times.arrival[groups.links]
        first, size = groups.indptr[:-1], np.diff(groups.indptr)
        if np.ptp(busy) == 0 and np.ptp(arrival) == 0:
            # Equal links of a group share the messages evenly.
            rounds = -(-groups.needed // size)
            low = arrival[0] + (rounds - 1) * busy[0]
        else:
            low = np.zeros(len(size), np.int64)
            # The time of the slowest link if it carries all messages.
            slowest_busy = np.maximum.reduceat(busy, first)
            high = np.maximum.reduceat(arrival, first) + (groups.needed - 1) * slowest_busy
            needed_of_link = np.repeat(groups.needed, size)
            while np.any(low < high):
                middle = (low + high) // 2
                middle_of_link = np.repeat(middle, size)
                # A link delivers its first message after `arrival` and the following ones every
                # `busy`; all at the same time if a message takes less than half a picosecond.
                messages = (middle_of_link - arrival) // np.maximum(busy, 1) + 1
                messages = np.where(busy > 0, messages, needed_of_link)
                delivered = np.where(middle_of_link < arrival, 0, messages)
                is_delivered = np.add.reduceat(delivered, first) >= groups.needed
                high = np.where(is_delivered, middle, high)
                low = np.where(is_delivered, low, np.minimum(middle + 1, high))
        result[self.is_crossed] = low
        return result

    def fluid_s(
        self,
        rate: Float64Array,
        chunk_bytes: int,
    ) -> float:
        """Return the seconds that the slowest group needs: its bytes divided by its bandwidth.

        `rate`: float64[links], bytes/s. Each message has `chunk_bytes` bytes. Groups without links
        or messages are ignored; 0.0 if there are no other groups.
        """
        groups = self.without_empty_groups()
        if not len(groups.needed):
            return 0.0
        group_rate = np.add.reduceat(rate[groups.links], groups.indptr[:-1])
        seconds = groups.needed * chunk_bytes / group_rate
        return float(np.max(seconds))
