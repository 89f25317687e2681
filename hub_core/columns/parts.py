"""Parts of a graph: what is connected, chains that cover it, and neighbours that are alone.

Edges are two columns, of parents and of children; nodes are 0..n-1. Heads are found by pointer
jumping, in as many rounds as the logarithm of the longest way.
"""

from __future__ import annotations

import numpy as np

from hub_core.columns.groups import BoolArray, Int64Array


def connected_parts(parents: Int64Array, children: Int64Array, nodes: int) -> Int64Array:
    """The part of every node, named by its first node: int64[nodes]. Cost: edges times a logarithm.

    Edges connect whatever their direction.
    """
    head = np.arange(nodes)
    while True:
        one, other = head[parents], head[children]
        apart = np.flatnonzero(one != other)
        if not len(apart):
            return head
        one, other = one[apart], other[apart]
        # Each round joins every part to its lowest neighbour.
        np.minimum.at(head, np.maximum(one, other), np.minimum(one, other))
        head = _heads(head)
        # What is joined stays so.
        parents, children = parents[apart], children[apart]


def chain_cover(
    nodes: int, parents: Int64Array, children: Int64Array, is_preferred: BoolArray
) -> Int64Array:
    """Cover a graph with chains greedily: the first node of the chain of every node, int64[nodes].

    Consecutive nodes of a chain are joined by an edge; `is_preferred`: of every edge. Edges lead to
    later nodes. Every child asks for one parent, a preferred one or the latest; every parent grants
    one child, a preferred one or the earliest.
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
    return _heads(head)


def values_of_single_keys(nodes: int, keys: Int64Array, values: Int64Array) -> Int64Array:
    """The value of every key that occurs once: int64[nodes], -1 for the others."""
    only = np.full(nodes, -1, np.int64)
    # Whatever is written last; keys that occur twice are taken back.
    only[keys] = values
    only[np.bincount(keys, minlength=nodes) != 1] = -1
    return only


def _heads(above: Int64Array) -> Int64Array:
    """The uppermost node over every node, from the one next above: int64[nodes]."""
    # Each round doubles how far a name has come.
    while not np.array_equal(further := above[above], above):
        above = further
    return above
