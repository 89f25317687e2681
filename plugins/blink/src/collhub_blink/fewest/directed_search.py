"""Kernel: choose parents in all trees of given weights, so that every tree reaches all nodes.

Algorithm: depth-first search with backtracking over the nodes except the root, in a given order. At
a node, one pattern after the other is tried: its parents in all trees at once, such that the
in-arcs have room for the weights. A branch is left as soon as a tree, in which undecided nodes may
still have any parent, cannot reach all nodes within the depth. Trees of equal weight whose parents
are equal so far are interchangeable; of two such twins the first takes the smaller parent, which
leaves one of every set of packings that differ only in names.

Invariant: below `level` every single tree can be completed; all patterns before the chosen one are
exhausted. So FOUND is a packing and EXHAUSTED a proof that there is none.

Cost: exponential in the nodes at worst; one breadth-first search per tree and step.

The kernel is longer than other functions: a depth-first search without recursion that can stop and
resume.
"""

from __future__ import annotations

import numpy as np
from collhub_packing.compiling import kernel, part

from hub_core.columns import Int64Array

STOPPED, FOUND, EXHAUSTED = 0, 1, 2


@part
def _reaches_all(
    parent: Int64Array,
    first: Int64Array,
    head: Int64Array,
    root: int,
    max_depth: int,
    queue: Int64Array,
    depth: Int64Array,
) -> bool:
    """Whether all nodes are within `max_depth` of the root.

    Nodes with a parent (`parent[v] >= 0`) are reached from it only, the remaining ones over any
    arc. `queue` and `depth` are scratch arrays of one entry per node.
    """
    depth[:] = -1
    depth[root] = 0
    queue[0] = root
    begin, end = 0, 1
    while begin < end:
        node = queue[begin]
        begin += 1
        # All later nodes of the queue are at least as deep.
        if depth[node] == max_depth:
            break
        for arc in range(first[node], first[node + 1]):
            child = head[arc]
            if depth[child] < 0 and (parent[child] < 0 or parent[child] == node):
                depth[child] = depth[node] + 1
                queue[end] = child
                end += 1
    return end == len(parent)


@kernel
def search_directed(
    first: Int64Array,
    head: Int64Array,
    order: Int64Array,
    indptr: Int64Array,
    patterns: Int64Array,
    root: int,
    max_depth: int,
    parents: Int64Array,
    twins: Int64Array,
    choice: Int64Array,
    state: Int64Array,
    steps: int,
) -> int:
    """Run or resume the search for at most `steps` steps; return FOUND, EXHAUSTED or STOPPED.

    `head[first[v]:first[v + 1]]`: ends of the arcs of node v. `order`: nodes except the root.
    `patterns[indptr[i]:indptr[i + 1]]`: parents of `order[i]`, one column per tree.

    State of the search, changed in place: `parents[tree, node]` (-1: undecided), `choice[level]`
    and `state[0]` (the level); all -1, 0 and 0 at the start. `twins[level]`: bit t means that tree
    t has the weight and, below `level`, the parents of tree t - 1. All arrays are int64.
    """
    trees = parents.shape[0]
    queue = np.empty(parents.shape[1], np.int64)
    depth = np.empty(parents.shape[1], np.int64)
    level = state[0]
    for _ in range(steps):
        if level == len(order):
            state[0] = level
            return FOUND
        node = order[level]
        if indptr[level] + choice[level] == indptr[level + 1]:
            # All patterns of this node are exhausted: next pattern of the previous node.
            choice[level] = 0
            parents[:, node] = -1
            level -= 1
            if level < 0:
                return EXHAUSTED
            choice[level] += 1
            continue
        row = indptr[level] + choice[level]
        fits = True
        active_twins = twins[level]
        for tree in range(trees):
            parents[tree, node] = patterns[row, tree]
            # The twins differ from here on.
            if active_twins >> tree & 1 and patterns[row, tree] != patterns[row, tree - 1]:
                active_twins ^= 1 << tree
                fits = fits and patterns[row, tree] > patterns[row, tree - 1]
        for tree in range(trees):
            fits = fits and _reaches_all(parents[tree], first, head, root, max_depth, queue, depth)
        if fits:
            twins[level + 1] = active_twins
            level += 1
        else:
            parents[:, node] = -1
            choice[level] += 1
    state[0] = level
    return STOPPED
