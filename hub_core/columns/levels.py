"""Put steps in levels so that every edge goes to a later level; what is in a cycle has none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns.groups import Int64Array, csr, distinct, gather, positions_in, row_pointer

# Below this mean width a numpy call costs more than the nodes of a level one by one.
_NARROW = 24
_LEVELS_BEFORE_JUDGING = 256


@dataclass(frozen=True, slots=True)
class Order:
    """A linear extension of a partial order.

    `nodes`: those that are in no cycle and behind none, by (level, node). `level_indptr`: nodes of
    level k are `nodes[level_indptr[k]:level_indptr[k + 1]]`. `position`: where each node stands in
    `nodes`, -1 for the others. All int64.
    """

    nodes: Int64Array
    level_indptr: Int64Array
    position: Int64Array

    @property
    def is_complete(self) -> bool:
        """Whether every node has its place, so that there is no cycle."""
        return len(self.nodes) == len(self.position)


def topological_levels(nodes: int, parents: Int64Array, children: Int64Array) -> Order:
    """Levels by Kahn's algorithm; the level of a node is the length of the longest path to it.

    Edge i leads from `parents[i]` to `children[i]`; an edge that is given twice counts twice. A
    level is treated at once, and takes the nodes whose last parent was in the level before; graphs
    that turn out narrow and deep go on node by node. Cost: linear in nodes and edges.
    """
    indptr, successors = csr(parents, children, nodes)
    missing = np.bincount(children, minlength=nodes)
    frontier = np.flatnonzero(missing == 0)
    levels: list[Int64Array] = []
    done = 0
    while len(frontier):
        levels.append(frontier)
        done += len(frontier)
        # Judged late, as most graphs begin with a narrow start.
        if len(levels) >= _LEVELS_BEFORE_JUDGING and done < _NARROW * len(levels):
            levels += _narrow_levels(frontier, indptr, successors, missing)
            break
        reached = gather(indptr, successors, frontier)
        # A child can be reached over several edges at once, so that -= would count one.
        np.subtract.at(missing, reached, 1)
        # A node is done when its last parent is: exactly once, whatever the order of edges.
        frontier = distinct(reached[missing[reached] == 0])
    order = np.concatenate(levels) if levels else np.zeros(0, np.int64)
    return Order(order, row_pointer([len(level) for level in levels]), positions_in(order, nodes))


def _narrow_levels(
    frontier: Int64Array, indptr: Int64Array, successors: Int64Array, missing: Int64Array
) -> list[Int64Array]:
    """The levels after `frontier`, node by node."""
    # Indexing lists is several times as fast as indexing arrays one by one.
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
        # As np.unique leaves wide levels: ascending.
        current = sorted(following)
        flat += current
        widths.append(len(current))
    # The last level is empty: its end is what stopped the loop.
    borders = row_pointer(widths[:-1])[1:-1]
    return np.split(np.asarray(flat, np.int64), borders) if flat else []
