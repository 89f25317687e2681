"""What a collective must bring out of a set of nodes, in messages of one chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Collective, CollectiveKind

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
