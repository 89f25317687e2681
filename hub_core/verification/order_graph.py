"""The order of steps as a graph on positions, in the forms in which paths are searched."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from collhub_columns import BoolArray, Int64Array, csr

from hub_core.model import StepTable
from hub_core.verification.step_order import HappensBefore


class OrderGraph:
    """The steps that run; a node is the position of a step in a linear extension.

    `position`: that of every row, -1 for rows that never run. `rank`, `lane`: of every node.
    `parents`, `children`: int64, all edges, the `num_dependencies` dependencies first. Edges lead
    to later nodes. `level_indptr`: the nodes of level k are `level_indptr[k]:level_indptr[k + 1]`.
    `indptr`, `indices`: the parents of every node.
    """

    def __init__(self, steps: StepTable, relation: HappensBefore) -> None:
        order = relation.order
        # A row that runs has parents that run, so that its position is enough.
        parents, children = order.position[relation.parents], order.position[relation.children]
        runs = children >= 0
        self.position = order.position
        self.rank = steps.rank[order.nodes].astype(np.int64)
        self.lane = steps.lane[order.nodes].astype(np.int64)
        self.parents, self.children = parents[runs], children[runs]
        self.num_dependencies = int(np.count_nonzero(runs[: relation.num_dependencies]))
        self.level_indptr = order.level_indptr
        self.indptr, self.indices = csr(self.children, self.parents, len(order.nodes))

    def __len__(self) -> int:
        return len(self.rank)

    def edges(self, *, within_rank: bool) -> tuple[Int64Array, Int64Array]:
        """The parents of every node, `within_rank` without messages: (indptr, indices)."""
        if not within_rank:
            return self.indptr, self.indices
        last = self.num_dependencies
        return csr(self.children[:last], self.parents[:last], len(self))

    @cached_property
    def program_chain(self) -> Int64Array:
        """The chain of every node in a cover by dependencies, those within a lane preferred.

        A chain is named by its first node; consecutive nodes of a chain are joined by an edge.
        """
        split = self.num_dependencies
        parents, children = self.parents[:split], self.children[:split]
        # Lane -1 is no opinion, and so no lane.
        lane = self.lane[children]
        same_lane = self.lane[parents] == lane
        is_preferred = same_lane & (lane >= 0)
        return _chains(len(self), parents, children, is_preferred)

    @cached_property
    def flow_chain(self) -> Int64Array:
        """The chain of every node in a cover by all edges.

        Messages are preferred: what a rank passes on is mostly what it just got.
        """
        is_message = np.arange(len(self.parents)) >= self.num_dependencies
        return _chains(len(self), self.parents, self.children, is_message)

    @cached_property
    def only_child(self) -> Int64Array:
        """The child of every node that has one alone, -1 for the others."""
        return _only(len(self), self.parents, self.children)

    @cached_property
    def only_parent(self) -> Int64Array:
        """The parent of every node that has one alone, -1 for the others."""
        return _only(len(self), self.children, self.parents)

    @cached_property
    def partners(self) -> tuple[Int64Array, Int64Array]:
        """The receive of every send and the send of every receive; other nodes: themselves."""
        sends = self.parents[self.num_dependencies :]
        receives = self.children[self.num_dependencies :]
        receive_of, send_of = np.arange(len(self)), np.arange(len(self))
        receive_of[sends] = receives
        send_of[receives] = sends
        return receive_of, send_of


def _chains(
    nodes: int, parents: Int64Array, children: Int64Array, is_preferred: BoolArray
) -> Int64Array:
    """Cover the graph with chains greedily: the name of the chain of every node.

    Every child asks for one parent, a preferred one or the latest; every parent grants one child, a
    preferred one or the earliest. Heads are then found by pointer jumping, in as many rounds as the
    logarithm of the longest chain.
    """
    # The largest wish wins: preferred parents are put above all others.
    wanted = np.full(nodes, -1, np.int64)
    np.maximum.at(wanted, children, parents + is_preferred * np.int64(nodes))
    asks = np.flatnonzero(wanted >= 0)
    liked, parent = np.divmod(wanted[asks], max(nodes, 1))
    # The least grant wins: children that prefer this parent come first.
    granted = np.full(nodes, np.iinfo(np.int64).max)
    np.minimum.at(granted, parent, asks + (1 - liked) * nodes)
    is_served = granted[parent] % max(nodes, 1) == asks
    head = np.arange(nodes)
    head[asks[is_served]] = parent[is_served]
    # Each round doubles how far a name has come along its chain.
    while True:
        further = head[head]
        if np.array_equal(further, head):
            return head
        head = further


def _only(nodes: int, keys: Int64Array, values: Int64Array) -> Int64Array:
    """The value of every key that occurs once: int64[nodes], -1 for the others."""
    only = np.full(nodes, -1, np.int64)
    # Whatever is written last; keys that occur twice are taken back.
    only[keys] = values
    only[np.bincount(keys, minlength=nodes) != 1] = -1
    return only
