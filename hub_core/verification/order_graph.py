"""The order of steps as a graph on positions, in the forms in which paths are searched."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from collhub_columns import (
    Int64Array,
    chain_cover,
    connected_parts,
    csr,
    csr_within,
    values_of_single_keys,
)

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
        self._data = tuple(order.position[rows] for rows in steps.data_edges)
        self.level_indptr = order.level_indptr
        self.indptr, self.indices = csr(self.children, self.parents, len(order.nodes))

    def __len__(self) -> int:
        return len(self.rank)

    def edges(self, part: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The parents of every node in its own part of the graph: (indptr, indices)."""
        return csr_within(self.indptr, self.indices, part)

    @cached_property
    def flow(self) -> Int64Array:
        """What every node is connected with by data and messages, named by its first node."""
        edges = zip(self._data, (self.parents, self.children), strict=True)
        runs, split = self._data[1] >= 0, self.num_dependencies
        parents, children = (np.concatenate([data[runs], both[split:]]) for data, both in edges)
        return connected_parts(parents, children, len(self))

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
        return chain_cover(len(self), parents, children, is_preferred)

    @cached_property
    def flow_chain(self) -> Int64Array:
        """The chain of every node in a cover by all edges.

        Messages are preferred: what a rank passes on is mostly what it just got.
        """
        is_message = np.arange(len(self.parents)) >= self.num_dependencies
        return chain_cover(len(self), self.parents, self.children, is_message)

    @cached_property
    def only_child(self) -> Int64Array:
        """The child of every node that has one alone, -1 for the others."""
        return values_of_single_keys(len(self), self.parents, self.children)

    @cached_property
    def only_parent(self) -> Int64Array:
        """The parent of every node that has one alone, -1 for the others."""
        return values_of_single_keys(len(self), self.children, self.parents)

    @cached_property
    def partners(self) -> tuple[Int64Array, Int64Array]:
        """The receive of every send and the send of every receive; other nodes: themselves."""
        sends = self.parents[self.num_dependencies :]
        receives = self.children[self.num_dependencies :]
        receive_of, send_of = np.arange(len(self)), np.arange(len(self))
        receive_of[sends] = receives
        send_of[receives] = sends
        return receive_of, send_of
