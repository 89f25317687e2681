"""What a collective must bring out of a set of nodes, in messages of one chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collhub_tacos.bounds.cuts import LinkGroups
from collhub_tacos.networks.distances import diameter_ps, total_hops
from collhub_tacos.networks.link_network import LinkNetwork
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy

_LeavingChunks = Callable[[Int64Array, Int64Array, BoolArray], Int64Array]


def _inside_if_outside(inside: Int64Array, outside: Int64Array, has_root: BoolArray) -> Int64Array:
    """All-gather: a chunk of every member inside, if there is one outside; int64[sets]."""
    return inside * (outside > 0)


def _outside_if_inside(inside: Int64Array, outside: Int64Array, has_root: BoolArray) -> Int64Array:
    """Reduce-scatter: a chunk for every member outside, if there is one inside; int64[sets]."""
    return outside * (inside > 0)


def _one_if_both(inside: Int64Array, outside: Int64Array, has_root: BoolArray) -> Int64Array:
    """All-reduce: a chunk where there are members on both sides; int64[sets]."""
    is_divided = (inside > 0) & (outside > 0)
    return is_divided.astype(np.int64)


def _one_from_root(inside: Int64Array, outside: Int64Array, has_root: BoolArray) -> Int64Array:
    """Broadcast: a chunk where the root has members outside; int64[sets]."""
    leaves = has_root & (outside > 0)
    return leaves.astype(np.int64)


def _one_to_root(inside: Int64Array, outside: Int64Array, has_root: BoolArray) -> Int64Array:
    """Reduce: a chunk of those inside where the root is not among them; int64[sets]."""
    leaves = ~has_root & (inside > 0)
    return leaves.astype(np.int64)


def _inside_to_root(inside: Int64Array, outside: Int64Array, has_root: BoolArray) -> Int64Array:
    """Gather: a chunk of every member inside, unless the root is inside; int64[sets]."""
    return inside * ~has_root


def _outside_from_root(inside: Int64Array, outside: Int64Array, has_root: BoolArray) -> Int64Array:
    """Scatter: a chunk for every member outside, if the root is inside; int64[sets]."""
    return outside * has_root


def _all_pairs(inside: Int64Array, outside: Int64Array, has_root: BoolArray) -> Int64Array:
    """All-to-all: a chunk for every pair of a member inside and one outside; int64[sets]."""
    return inside * outside


# Chunks of one share that must leave a set of nodes with `inside` members, `outside` ones beyond
# it, and the root or not.
_LEAVING: Mapping[CollectiveKind, _LeavingChunks] = {
    CollectiveKind.ALL_GATHER: _inside_if_outside,
    CollectiveKind.REDUCE_SCATTER: _outside_if_inside,
    CollectiveKind.ALL_REDUCE: _one_if_both,
    CollectiveKind.BROADCAST: _one_from_root,
    CollectiveKind.REDUCE: _one_to_root,
    CollectiveKind.GATHER: _inside_to_root,
    CollectiveKind.SCATTER: _outside_from_root,
    CollectiveKind.ALL_TO_ALL: _all_pairs,
}


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveDemand:
    """Collective of the members: bool[nodes], and its root as a node, -1 for none."""

    collective: Collective
    is_member: BoolArray
    root: int

    @classmethod
    def of(
        cls, collective: Collective, network: LinkNetwork, members: Int64Array
    ) -> CollectiveDemand:
        """Demand of a collective whose rank r is NPU `members[r]`."""
        is_member = np.zeros(network.num_nodes, np.bool_)
        is_member[members] = True
        # Most collectives have none.
        root = -1
        if collective.root is not None:
            root = int(members[collective.root])
        return cls(collective, is_member, root)

    @property
    def num_members(self) -> int:
        """Number of nodes that take part."""
        return int(self.is_member.sum())

    def leaving(self, inside: Int64Array, has_root: BoolArray) -> Int64Array:
        """Messages that must leave sets with `inside` members each."""
        outside = self.num_members - inside
        chunks = _LEAVING[self.collective.kind](inside, outside, has_root)
        return chunks * self.collective.units_per_rank

    def leaving_set(self, nodes: BoolArray) -> int:
        """Messages that must leave one set: bool[nodes]."""
        inside = np.count_nonzero(self.is_member & nodes)
        # Node -1 would be the last one.
        has_root = self.root >= 0 and bool(nodes[self.root])
        leaving = self.leaving(np.asarray([inside]), np.asarray([has_root]))
        return int(leaving[0])

    def between(self, begins: BoolArray, ends: BoolArray) -> int:
        """Messages that must get from some nodes to others, both bool[nodes] and disjoint."""
        inside = int(np.sum(begins & self.is_member))
        outside = int(np.sum(ends & self.is_member))
        # Who sends to the root is outside of what holds it, wherever else that may be.
        places = ~ends if self.collective.kind.traits.to_root else begins
        has_root = self.root >= 0 and bool(places[self.root])
        chunks = _LEAVING[self.collective.kind](
            np.asarray([inside]), np.asarray([outside]), np.asarray([has_root])
        )
        return int(chunks[0]) * self.collective.units_per_rank

    def ends(self) -> tuple[BoolArray, BoolArray]:
        """Members from which data go, and those to which, bool[nodes] each."""
        is_root = np.arange(len(self.is_member)) == self.root
        traits = self.collective.kind.traits
        begins = is_root if traits.is_rooted and not traits.to_root else self.is_member
        ends = is_root if traits.to_root else self.is_member
        return begins, ends


_PS_PER_S = 1e12


def lower_bounds_ps(
    collective: Collective,
    network: LinkNetwork,
    members: Int64Array,
    chunk_bytes: int,
    occupancy: Occupancy,
    node_sets: Sequence[BoolArray] = (),
) -> dict[str, int]:
    """Picoseconds below which nothing gets that sends one unit of `collective` a message.

    A unit has `chunk_bytes`. `ingress`, `egress`: what must enter or leave some node; `cut`: the
    same of slabs along the dimensions, of the topology's groups and of `node_sets` (bool[nodes]);
    `diameter`: the longest path that some data must go; `bandwidth`: all messages that there must
    be, on all links: of an all-to-all over the fewest hops, of an all-reduce 2(n - 1) for each
    chunk, also between slabs. A link is counted with whole messages, as many as arrive by then.
    `fluid`: the largest of these for messages of any size, latency left out. The network must be
    connected.
    """
    times = network.link_times(chunk_bytes, occupancy)
    demand = CollectiveDemand.of(collective, network, members)
    crossings = _crossings(demand, network, node_sets)
    bounds = {}
    for name, found in crossings.items():
        bounds[name] = max((groups.time_ps(times) for groups in found), default=0)
    bounds["diameter"] = diameter_ps(collective, network, members, times)
    rate = network.topology.bandwidth_bytes_per_s[network.row]
    fluid_s = 0.0
    for found in crossings.values():
        for groups in found:
            fluid_s = max(fluid_s, groups.fluid_s(rate, chunk_bytes))
    binding = {name: time for name, time in bounds.items() if time}
    return binding | {"fluid": int(fluid_s * _PS_PER_S)}


def _crossings(
    demand: CollectiveDemand,
    network: LinkNetwork,
    node_sets: Sequence[BoolArray],
) -> Mapping[str, list[LinkGroups]]:
    """Groups of links that messages must cross, by the name of the bound that they give."""
    inside = demand.is_member.astype(np.int64)
    is_root = np.arange(network.num_nodes) == demand.root
    # What enters a node leaves all others.
    others = demand.num_members - inside
    others_have_root = ~is_root & (demand.root >= 0)
    entering = demand.leaving(others, others_have_root)
    leaving = demand.leaving(inside, is_root)
    # One group a node; nodes that nothing must leave are left out later.
    out_indptr, out_links = network.out_links()
    return {
        "ingress": [LinkGroups(np.arange(network.num_links), network.indptr, entering)],
        "egress": [LinkGroups(out_links, out_indptr, leaving)],
        "cut": list(_cuts(demand, network, node_sets)),
        "bandwidth": list(_totals(demand, network)),
    }


def _cuts(
    demand: CollectiveDemand, network: LinkNetwork, node_sets: Sequence[BoolArray]
) -> Iterator[LinkGroups]:
    """Links out of node sets and out of their complements."""
    for nodes in (*known_sets(network), *node_sets):
        for side in (nodes, ~nodes):
            leaves = side[network.source] & ~side[network.destination]
            yield LinkGroups.one(leaves, demand.leaving_set(side))


def _totals(demand: CollectiveDemand, network: LinkNetwork) -> Iterator[LinkGroups]:
    """All links together, or all between slabs."""
    kind, topology = demand.collective.kind, network.topology
    is_multiplied = bool(topology.multicast or topology.reduction)
    if kind is CollectiveKind.ALL_REDUCE and not is_multiplied:
        yield from _all_reduce_totals(demand, network)
    if kind is CollectiveKind.ALL_TO_ALL:
        hops = total_hops(network, np.flatnonzero(demand.is_member))
        every_link = np.ones(network.num_links, np.bool_)
        yield LinkGroups.one(every_link, hops * demand.collective.units_per_rank)


def _all_reduce_totals(demand: CollectiveDemand, network: LinkNetwork) -> Iterator[LinkGroups]:
    """Links between the blocks of a partition, over which 2(blocks - 1) messages go a chunk.

    Each NPU a block, and the slabs along each dimension. For all-reduces without reduction in the
    network (Nash-Williams, Tutte 1961, for trees that carry them).
    """
    share = demand.collective.units_per_rank
    npus = network.num_npus
    # A switch passes on what an NPU sent: that is one message.
    leaves_npu = network.source < npus
    between_npus = 2 * (demand.num_members - 1)
    yield LinkGroups.one(leaves_npu, between_npus * share)
    # Switches are in no block.
    is_member = demand.is_member[:npus]
    for place in _coordinates(network):
        blocks = len(np.unique(place[:npus][is_member]))
        is_between = place[network.source] != place[network.destination]
        yield LinkGroups.one(is_between & leaves_npu, 2 * (blocks - 1) * share)


def _coordinates(network: LinkNetwork) -> Iterator[Int64Array]:
    """Place of every node along each dimension of a regular network without switches."""
    if network.num_nodes > network.num_npus:
        return
    stride = 1
    for dimension in network.topology.dimensions:
        yield np.arange(network.num_nodes) // stride % dimension.size
        stride *= dimension.size


def known_sets(network: LinkNetwork) -> Iterator[BoolArray]:
    """Sets that narrow links may divide from the rest: slabs and named groups, bool[nodes]."""
    yield from _slabs(network)
    yield from _groups(network)


def _slabs(network: LinkNetwork) -> Iterator[BoolArray]:
    """Nodes up to each place along each dimension: bool[nodes]."""
    # On meshes and tori these are the cuts with the fewest links for their nodes.
    for place in _coordinates(network):
        for end in range(1, int(place.max()) + 1):
            yield place < end


def _groups(network: LinkNetwork) -> Iterator[BoolArray]:
    """Groups of the topology: bool[nodes]."""
    # A topology names what its narrow links divide: boards, racks, pairs.
    for members in network.topology.groups.values():
        nodes = np.zeros(network.num_nodes, np.bool_)
        nodes[list(members)] = True
        yield nodes
