"""The happens-before relation as a graph whose nodes are positions of steps, for path searches."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hub_core.columns import (
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
    """Graph of the steps that run; a node is the position of a step in one linear extension.

    `position`: int64[rows], node of every row, -1 for rows that never run. `rank`, `lane`:
    int64[nodes]. `parents`, `children`: int64[edges]; the first `num_dependencies` edges are
    dependencies, the rest messages; every edge leads to a later node. `level_indptr`: the nodes of
    level k are `level_indptr[k]:level_indptr[k + 1]`. `indptr`, `indices`: CSR table of the parents
    of every node.
    """

    def __init__(self, steps: StepTable, relation: HappensBefore) -> None:
        order = relation.order
        # All parents of a step that runs also run, so only the child is checked.
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
        """Return a CSR table (indptr, indices) of the parents in the same part as the node.

        `part`: int64[nodes], the number of the part of each node.
        """
        return csr_within(self.indptr, self.indices, part)

    @cached_property
    def flow(self) -> Int64Array:
        """Connected component of every node by data dependencies and messages: its first node."""
        edges = zip(self._data, (self.parents, self.children), strict=True)
        runs, split = self._data[1] >= 0, self.num_dependencies
        parents, children = (np.concatenate([data[runs], both[split:]]) for data, both in edges)
        return connected_parts(parents, children, len(self))

    @cached_property
    def program_chain(self) -> Int64Array:
        """Chain of every node, named by its first node: int64[nodes].

        The chains cover all nodes; consecutive nodes of a chain are joined by a dependency, one
        within a lane if possible.
        """
        split = self.num_dependencies
        parents, children = self.parents[:split], self.children[:split]
        # Lane -1 means that the producer gave no lane.
        lane = self.lane[children]
        same_lane = self.lane[parents] == lane
        is_preferred = same_lane & (lane >= 0)
        return chain_cover(len(self), parents, children, is_preferred)

    @cached_property
    def flow_chain(self) -> Int64Array:
        """Chain of every node as in `program_chain`, but with edges of all kinds.

        Messages are preferred, because a rank mostly forwards the data that it just received.
        """
        is_message = np.arange(len(self.parents)) >= self.num_dependencies
        return chain_cover(len(self), self.parents, self.children, is_message)

    @cached_property
    def only_child(self) -> Int64Array:
        """Child of every node with exactly one child, else -1: int64[nodes]."""
        return values_of_single_keys(len(self), self.parents, self.children)

    @cached_property
    def only_parent(self) -> Int64Array:
        """Parent of every node with exactly one parent, else -1: int64[nodes]."""
        return values_of_single_keys(len(self), self.children, self.parents)

    @cached_property
    def partners(self) -> tuple[Int64Array, Int64Array]:
        """(receive of every send, send of every receive): int64[nodes]; else the node itself."""
        sends = self.parents[self.num_dependencies :]
        receives = self.children[self.num_dependencies :]
        receive_of, send_of = np.arange(len(self)), np.arange(len(self))
        receive_of[sends] = receives
        send_of[receives] = sends
        return receive_of, send_of
