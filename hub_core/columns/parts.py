"""Parts of a graph: connected components, covers by chains, and values of unique keys.

Edges are two columns, parents and children; nodes are 0..n-1. Heads are found by pointer jumping,
in a number of rounds that is the logarithm of the longest path.
"""

from __future__ import annotations

import numpy as np

from hub_core.columns.groups import BoolArray, Int64Array


def connected_parts(parents: Int64Array, children: Int64Array, nodes: int) -> Int64Array:
    """Return the component of every node, named by its first node: int64[nodes].

    Edges connect regardless of direction. Cost: edges times a logarithm.
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
        head = _find_heads(head)
        parents, children = parents[separate], children[separate]


def chain_cover(
    nodes: int, parents: Int64Array, children: Int64Array, is_preferred: BoolArray
) -> Int64Array:
    """Cover a graph with chains greedily; return the first node of the chain of every node.

    int64[nodes]. Consecutive nodes of a chain are connected by an edge. Edges lead to later nodes;
    `is_preferred`: bool per edge. Every child selects one parent, a preferred one or the latest;
    every parent accepts one child, a preferred one or the earliest.
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
    return _find_heads(head)


def values_of_single_keys(nodes: int, keys: Int64Array, values: Int64Array) -> Int64Array:
    """Return the value of every key that occurs once: int64[nodes], -1 for all other keys."""
    only = np.full(nodes, -1, np.int64)
    # Repeated keys keep the last value, which is removed in the next line.
    only[keys] = values
    only[np.bincount(keys, minlength=nodes) != 1] = -1
    return only


def _find_heads(above: Int64Array) -> Int64Array:
    """Return the top ancestor of every node; `above`: the parent of each node. int64[nodes]."""
    # Each round doubles the distance to the known ancestor.
    while not np.array_equal(further := above[above], above):
        above = further
    return above
