"""Assign nodes to levels such that every edge leads to a later level; cycles have no level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns.groups import Int64Array, csr, distinct, gather, positions_in, row_pointer

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
    """Compute levels by Kahn's algorithm: the level is the length of the longest path to a node.

    Edge i leads from `parents[i]` to `children[i]`; a repeated edge counts repeatedly. Each step
    processes a level: the nodes whose last parent was in the previous level. Narrow and deep graphs
    continue node by node. Cost: linear in nodes and edges.
    """
    indptr, successors = csr(parents, children, nodes)
    missing = np.bincount(children, minlength=nodes)
    frontier = np.flatnonzero(missing == 0)
    levels: list[Int64Array] = []
    done = 0
    while len(frontier):
        levels.append(frontier)
        done += len(frontier)
        # Decided late, because most graphs have a narrow start.
        if len(levels) >= _LEVELS_BEFORE_DECISION and done < _MIN_MEAN_WIDTH * len(levels):
            levels += _compute_narrow_levels(frontier, indptr, successors, missing)
            break
        reached = gather(indptr, successors, frontier)
        # A child can be reached over several edges in one step, which `-=` would count once.
        np.subtract.at(missing, reached, 1)
        # A node is processed after its last parent, exactly once for any order of edges.
        frontier = distinct(reached[missing[reached] == 0])
    order = np.concatenate(levels) if levels else np.zeros(0, np.int64)
    return Order(order, row_pointer([len(level) for level in levels]), positions_in(order, nodes))


def _compute_narrow_levels(
    frontier: Int64Array, indptr: Int64Array, successors: Int64Array, missing: Int64Array
) -> list[Int64Array]:
    """Compute the levels after `frontier` node by node."""
    # Single entries of lists are read several times as fast as those of arrays.
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
        # Ascending, as in the levels that numpy computes.
        current = sorted(following)
        flat += current
        widths.append(len(current))
    # The last level is empty; it ended the loop.
    borders = row_pointer(widths[:-1])[1:-1]
    return np.split(np.asarray(flat, np.int64), borders) if flat else []
