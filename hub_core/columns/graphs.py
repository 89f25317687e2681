"""Directed graphs as columns: levels, components, chain covers, links by pair of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hub_core.columns.arcs import keep_last_entries
from hub_core.columns.groups import (
    csr,
    gather,
    group_of_entry,
    positions_in,
    row_pointer,
    rows_of,
)
from hub_core.columns.orders import (
    BoolArray,
    Float64Array,
    Int64Array,
    stable_order,
)

# Below this mean width of a level, a numpy call is slower than a loop over its nodes.
_MIN_MEAN_WIDTH = 24

_LEVELS_BEFORE_DECISION = 256


@dataclass(frozen=True, slots=True)
class Order:
    """A linear extension of a partial order.

    `nodes`: nodes that are not in or after a cycle, ordered by (level, node). `level_indptr`: nodes
    of level k are `nodes[level_indptr[k]:level_indptr[k + 1]]`. `position`: position of each node
    in `nodes`, -1 for nodes in or after a cycle. All int64.
    """

    nodes: Int64Array
    level_indptr: Int64Array
    position: Int64Array

    @property
    def is_complete(self) -> bool:
        """Whether every node has a level, so that there is no cycle."""
        return len(self.nodes) == len(self.position)


def topological_levels(nodes: int, parents: Int64Array, children: Int64Array) -> Order:
    """Order the nodes of a graph by level: the length of the longest path to a node.

    Edge i leads from `parents[i]` to `children[i]`; a repeated edge has no effect. A node without
    parents has level 0. The result is ordered by level, then by node. It also has the limits of the
    levels and the position of each node. Nodes in a cycle, and nodes that such a node leads to, are
    missing in `nodes` of the result and have position -1. Without nodes the result is empty. Cost:
    linear in nodes and edges, apart from one sort by level.
    """
    indptr, successors = csr(parents, children, nodes)
    missing = np.bincount(children, minlength=nodes)
    frontier = np.flatnonzero(missing == 0)
    parts = [np.zeros(0, np.int64)]
    widths: list[int] = []
    done = 0
    last_entry = np.empty(nodes, np.int64)
    while len(frontier):
        parts.append(frontier)
        widths.append(len(frontier))
        done += len(frontier)
        # Decided late, because most graphs have a narrow start.
        if len(widths) >= _LEVELS_BEFORE_DECISION and done < _MIN_MEAN_WIDTH * len(widths):
            following, narrow = _compute_narrow_levels(frontier, indptr, successors, missing)
            parts.append(following)
            widths += narrow
            break
        reached = gather(indptr, successors, frontier)
        # A child can be reached over several edges in one step, which `-=` would count once.
        np.subtract.at(missing, reached, 1)
        # A node is processed after its last parent, exactly once for any order of edges.
        frontier = keep_last_entries(reached[missing[reached] == 0], last_entry)
    level_indptr = row_pointer(widths)
    # One stable sort of all nodes by level; a sort in every level takes three times as long.
    level_of_node = np.full(nodes, -1, np.int64)
    level_of_node[np.concatenate(parts)] = group_of_entry(level_indptr)
    reachable = np.flatnonzero(level_of_node >= 0)
    order = reachable[stable_order(level_of_node[reachable])]
    return Order(order, level_indptr, positions_in(order, nodes))


def connected_parts(parents: Int64Array, children: Int64Array, nodes: int) -> Int64Array:
    """Return the component of every node: int64[nodes], the smallest node of the component.

    Edge i joins `parents[i]` and `children[i]`, regardless of direction; a node without edges is
    its own component. The arguments are not modified. Cost: edges times a logarithm.
    """
    head = np.arange(nodes)
    while True:
        parent_head, child_head = head[parents], head[children]
        separate = np.flatnonzero(parent_head != child_head)
        if not len(separate):
            return head
        parent_head, child_head = parent_head[separate], child_head[separate]
        # Each round joins every component to its lowest neighbour.
        lower, higher = np.minimum(parent_head, child_head), np.maximum(parent_head, child_head)
        np.minimum.at(head, higher, lower)
        head = find_heads(head)
        parents, children = parents[separate], children[separate]


def chain_cover(
    nodes: int, parents: Int64Array, children: Int64Array, is_preferred: BoolArray
) -> Int64Array:
    """Cover a graph with chains greedily; return the first node of the chain of every node.

    int64[nodes]. Consecutive nodes of a chain are connected by an edge; a node may be a chain of
    its own. Edges must lead to later nodes; `is_preferred`: bool per edge. Every child selects one
    parent: the latest parent of its preferred edges or, without such edges, its latest parent.
    Every parent accepts one of the children that selected it: the earliest one that did so by a
    preferred edge, else the earliest one. Children without a parent, and those not accepted, start
    chains.
    """
    # The largest value wins: preferred parents are above all others.
    choice = np.full(nodes, -1, np.int64)
    np.maximum.at(choice, children, parents + is_preferred * np.int64(nodes))
    asks = np.flatnonzero(choice >= 0)
    liked, parent = np.divmod(choice[asks], max(nodes, 1))
    # The smallest value wins: children that prefer this parent come first.
    granted = np.full(nodes, np.iinfo(np.int64).max)
    np.minimum.at(granted, parent, asks + (1 - liked) * nodes)
    is_served = granted[parent] % max(nodes, 1) == asks
    head = np.arange(nodes)
    head[asks[is_served]] = parent[is_served]
    return find_heads(head)


def values_of_single_keys(nodes: int, keys: Int64Array, values: Int64Array) -> Int64Array:
    """Return, for each node 0..nodes-1, the value whose key is the node: int64[nodes].

    The result is -1 for a node that is no key, or the key of several values. `keys` (each in
    0..nodes-1) and `values` have equal lengths.
    """
    only = np.full(nodes, -1, np.int64)
    # Repeated keys keep the last value, which is removed in the next line.
    only[keys] = values
    only[np.bincount(keys, minlength=nodes) != 1] = -1
    return only


class NetworkLinks(Protocol):
    """Links as columns, one row per link; their ends are nodes 0..num_nodes-1."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""

    @property
    def source(self) -> Int64Array:
        """Source node of each link."""

    @property
    def destination(self) -> Int64Array:
        """Destination node of each link."""

    @property
    def plane(self) -> Int64Array:
        """Plane of each link, in networks of several planes."""

    @property
    def bandwidth_bytes_per_s(self) -> Float64Array:
        """Bandwidth of each link."""

    @property
    def latency_s(self) -> Float64Array:
        """Latency of each link."""


class NodePairs:
    """Links merged by plane and ordered pair of nodes, as columns of equal length.

    `source`, `destination`, `count`: int64. `bandwidth_bytes_per_s`: sum over parallel links.
    `latency_s`: minimum over parallel links. `back`: the row of the reverse pair on the same plane,
    -1 if there is none.
    """

    def __init__(self, network: NetworkLinks) -> None:
        """Merge the links of equal plane, source and destination into pairs, sorted in this order.

        A pair has the number of its links, the sum of their bandwidths, the smallest of their
        latencies, and the index of the reverse pair on the same plane (-1 without one). A link from
        a node to itself is its own reverse pair. The plane is not stored. A network without links
        gives no pairs. The caller ensures that `num_nodes`^2 times the number of planes is below
        2^63; it is not checked. Cost: O(links log links).
        """
        nodes = network.num_nodes
        square = nodes**2
        # One number per (plane, source, destination), so that one sort finds parallel links.
        pair = network.source * nodes + network.destination
        key = network.plane * square + pair
        keys, row, self.count = np.unique(key, return_inverse=True, return_counts=True)
        self.source, self.destination = np.divmod(keys % square, nodes)
        rates = np.bincount(row, network.bandwidth_bytes_per_s, len(keys))
        self.bandwidth_bytes_per_s = rates.astype(np.float64)
        # Bandwidths of parallel links add up; the first message takes the fastest link.
        self.latency_s = np.full(len(keys), np.inf)
        np.minimum.at(self.latency_s, row, network.latency_s)
        # The key of the reverse pair on the same plane.
        first_of_plane = keys // square * square
        self.back = rows_of(first_of_plane + self.destination * nodes + self.source, keys)

    def __len__(self) -> int:
        return len(self.source)

    def differs_from_back(self) -> BoolArray:
        """Return which pairs have a reverse pair with another bandwidth or latency: bool[pairs].

        False for a pair without a reverse pair on its plane.
        """
        rates, latencies = self.bandwidth_bytes_per_s, self.latency_s
        # Without a reverse pair, -1 compares with the last row, which is masked below.
        is_different = (rates != rates[self.back]) | (latencies != latencies[self.back])
        differs: BoolArray = (self.back >= 0) & is_different
        return differs


def _compute_narrow_levels(
    frontier: Int64Array, indptr: Int64Array, successors: Int64Array, missing: Int64Array
) -> tuple[Int64Array, list[int]]:
    """Return the nodes of all levels after the level `frontier`, and the width of each level.

    The nodes are int64, level by level, without those of `frontier`; within a level they are in no
    particular order. Both results are empty if no level follows. Nodes in a cycle, and nodes after
    a cycle, are omitted.

    `indptr`, `successors`: children of every node as a CSR table. `missing`: per node, the number
    of its edges from parents that are in `frontier` or in no level yet; it is not changed. The
    nodes are processed one by one in lists, because single entries of lists are read several times
    as fast as those of arrays.
    """
    starts, targets, left = indptr.tolist(), successors.tolist(), missing.tolist()
    current = frontier.tolist()
    flat: list[int] = []
    widths: list[int] = []
    while current:
        following = []
        for node in current:
            for child in targets[starts[node] : starts[node + 1]]:
                left[child] -= 1
                if not left[child]:
                    following.append(child)
        current = following
        flat += current
        widths.append(len(current))
    # The last level is empty; it ended the loop.
    return np.asarray(flat, np.int64), widths[:-1]


def find_heads(above: Int64Array) -> Int64Array:
    """Return the root of every node, reached by following parents: int64[nodes].

    `above`: the parent of each node; a root is its own parent. Longer cycles are not
    allowed: the call may then not return. The argument is not modified, but is
    returned itself if all parents are roots. Each round of pointer jumping doubles the distance
    covered.
    """
    # Each round doubles the distance to the known ancestor.
    while not np.array_equal(further := above[above], above):
        above = further
    return above
