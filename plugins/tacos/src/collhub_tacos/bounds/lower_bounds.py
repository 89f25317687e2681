"""Lower bounds of a collective on a network: what must cross a set of nodes, and how far it must go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.distances import diameter_ps, total_hops
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from hub_core.collectives import Collective, CollectiveKind
from hub_core.topology import Occupancy

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def lower_bounds_ps(
    collective: Collective,
    network: LinkNetwork,
    members: Int64Array,
    chunk_bytes: int,
    occupancy: Occupancy,
    node_sets: Sequence[BoolArray] = (),
) -> dict[str, int]:
    """Picoseconds below which nothing gets that sends one unit of `collective`, `chunk_bytes`, a message.

    `ingress`, `egress`: what must enter or leave some node; `cut`: the same of slabs along the dimensions, of the
    topology's groups and of `node_sets` (bool[nodes]); `diameter`: the longest way that some data must go;
    `bandwidth`: all messages that there must be, on all links: of an all-to-all over the fewest hops, of an all-reduce
    2(n - 1) for each chunk, also between slabs. A link is counted with whole messages, as many as arrive by then.
    `fluid`: the largest of these for messages of any size, latency left out. The network must be connected.
    """
    times = network.link_times(chunk_bytes, occupancy)
    crowds = {
        name: list(found)
        for name, found in _crowds(_Demand.of(collective, network, members), network, node_sets)
    }
    bounds = {
        name: max((crowd.time_ps(times) for crowd in found), default=0)
        for name, found in crowds.items()
    }
    bounds["diameter"] = diameter_ps(collective, network, members, times)
    rate = network.topology.bandwidth_bytes_per_s[network.row]
    fluid = max(crowd.fluid_s(rate, chunk_bytes) for found in crowds.values() for crowd in found)
    return {name: time for name, time in bounds.items() if time} | {"fluid": int(fluid * 1e12)}


@dataclass(frozen=True, slots=True, eq=False)
class _LinkGroups:
    """Groups of links, each with the number of messages that must go over it: group i is `links[indptr[i]:indptr[i + 1]]`."""

    links: Int64Array
    indptr: Int64Array
    needed: Int64Array

    @classmethod
    def one(cls, is_member: BoolArray, needed: int) -> _LinkGroups:
        links = np.flatnonzero(is_member)
        return cls(links, np.asarray([0, len(links)]), np.asarray([needed]))

    def of_links(self) -> _LinkGroups:
        """Without the groups that nothing must cross, and those that nothing can."""
        size = np.diff(self.indptr)
        kept = (self.needed > 0) & (size > 0)
        links = self.links[np.repeat(kept, size)]
        return _LinkGroups(links, np.concatenate([[0], np.cumsum(size[kept])]), self.needed[kept])

    def time_ps(self, times: LinkTimes) -> int:
        """The least time by which all groups can deliver what they must, by bisection."""
        crowd = self.of_links()
        if not len(crowd.needed):
            return 0
        busy, arrival = times.busy[crowd.links], times.arrival[crowd.links]
        low, high = 0, int(arrival.max() + (crowd.needed.max() - 1) * busy.max())
        while low < high:
            middle = (low + high) // 2
            delivered = np.where(middle < arrival, 0, (middle - arrival) // busy + 1)
            if np.all(np.add.reduceat(delivered, crowd.indptr[:-1]) >= crowd.needed):
                high = middle
            else:
                low = middle + 1
        return low

    def fluid_s(self, rate: npt.NDArray[np.float64], chunk_bytes: int) -> float:
        """Bytes by bandwidth of the slowest group."""
        crowd = self.of_links()
        if not len(crowd.needed):
            return 0.0
        return float(
            np.max(
                crowd.needed * chunk_bytes / np.add.reduceat(rate[crowd.links], crowd.indptr[:-1])
            )
        )


_Count = Callable[[Int64Array, Int64Array, BoolArray], Int64Array]
# Chunks of one share that must leave a set of nodes with `inside` members, `outside` ones beyond it, and the root or not.
_LEAVING: Mapping[CollectiveKind, _Count] = {
    CollectiveKind.ALL_GATHER: lambda inside, outside, has_root: inside * (outside > 0),
    CollectiveKind.REDUCE_SCATTER: lambda inside, outside, has_root: outside * (inside > 0),
    CollectiveKind.ALL_REDUCE: lambda inside, outside, has_root: (
        (inside > 0) & (outside > 0)
    ).astype(np.int64),
    CollectiveKind.BROADCAST: lambda inside, outside, has_root: (has_root & (outside > 0)).astype(
        np.int64
    ),
    CollectiveKind.REDUCE: lambda inside, outside, has_root: (~has_root & (inside > 0)).astype(
        np.int64
    ),
    CollectiveKind.GATHER: lambda inside, outside, has_root: inside * ~has_root,
    CollectiveKind.SCATTER: lambda inside, outside, has_root: outside * has_root,
    CollectiveKind.ALL_TO_ALL: lambda inside, outside, has_root: inside * outside,
}


@dataclass(frozen=True, slots=True, eq=False)
class _Demand:
    """A collective of the members: bool[nodes], and its root as a node, -1 for none."""

    collective: Collective
    is_member: BoolArray
    root: int

    @classmethod
    def of(cls, collective: Collective, network: LinkNetwork, members: Int64Array) -> _Demand:
        is_member = np.zeros(network.num_nodes, np.bool_)
        is_member[members] = True
        return cls(
            collective, is_member, -1 if collective.root is None else int(members[collective.root])
        )

    @property
    def num_members(self) -> int:
        return int(self.is_member.sum())

    def leaving(self, inside: Int64Array, has_root: BoolArray) -> Int64Array:
        """Messages that must leave sets with `inside` members each."""
        count = _LEAVING[self.collective.kind](inside, self.num_members - inside, has_root)
        return count * self.collective.units_per_rank

    def leaving_set(self, nodes: BoolArray) -> int:
        inside = np.asarray([np.count_nonzero(self.is_member & nodes)])
        return int(self.leaving(inside, np.asarray([self.root >= 0 and bool(nodes[self.root])]))[0])


def _crowds(
    demand: _Demand, network: LinkNetwork, node_sets: Sequence[BoolArray]
) -> Iterator[tuple[str, Iterator[_LinkGroups]]]:
    nodes, inside = np.arange(network.num_nodes), demand.is_member.astype(np.int64)
    is_root = nodes == demand.root
    entering = demand.leaving(demand.num_members - inside, ~is_root & (demand.root >= 0))
    yield "ingress", iter([_LinkGroups(np.arange(network.num_links), network.indptr, entering)])
    by_source = np.argsort(network.source, kind="stable")
    indptr = np.searchsorted(network.source[by_source], np.arange(network.num_nodes + 1))
    yield "egress", iter([_LinkGroups(by_source, indptr, demand.leaving(inside, is_root))])
    yield "cut", _cuts(demand, network, node_sets)
    yield "bandwidth", _totals(demand, network)


def _cuts(
    demand: _Demand, network: LinkNetwork, node_sets: Sequence[BoolArray]
) -> Iterator[_LinkGroups]:
    for nodes in (*_slabs(network), *_groups(network), *node_sets):
        for side in (nodes, ~nodes):
            yield _LinkGroups.one(
                side[network.source] & ~side[network.destination], demand.leaving_set(side)
            )


def _totals(demand: _Demand, network: LinkNetwork) -> Iterator[_LinkGroups]:
    """All links together, or all between slabs."""
    kind, share, n = demand.collective.kind, demand.collective.units_per_rank, demand.num_members
    leaves_npu = network.source < network.num_npus
    if kind is CollectiveKind.ALL_REDUCE:
        yield _LinkGroups.one(leaves_npu, 2 * (n - 1) * share)
        for place in _coordinates(network):
            blocks = len(np.unique(place[: network.num_npus][demand.is_member[: network.num_npus]]))
            between = place[network.source] != place[network.destination]
            yield _LinkGroups.one(between & leaves_npu, 2 * (blocks - 1) * share)
    if kind is CollectiveKind.ALL_TO_ALL:
        hops = total_hops(network, np.flatnonzero(demand.is_member))
        yield _LinkGroups.one(np.ones(network.num_links, np.bool_), hops * share)


def _coordinates(network: LinkNetwork) -> Iterator[Int64Array]:
    """The place of every node along each dimension of a regular network without switches."""
    if network.num_nodes > network.num_npus:
        return
    stride = 1
    for dimension in network.topology.dimensions:
        yield np.arange(network.num_nodes) // stride % dimension.size
        stride *= dimension.size


def _slabs(network: LinkNetwork) -> Iterator[BoolArray]:
    for place in _coordinates(network):
        for end in range(1, int(place.max()) + 1):
            yield place < end


def _groups(network: LinkNetwork) -> Iterator[BoolArray]:
    for members in network.topology.groups.values():
        nodes = np.zeros(network.num_nodes, np.bool_)
        nodes[list(members)] = True
        yield nodes
