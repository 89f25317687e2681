"""Kernel: choose parents in all trees of given weights, so that every tree can reach all nodes.

Algorithm: depth-first search with backtracking over the nodes but the root, in a given order. At
a node, one pattern is tried after the other: its parents in all trees at once, such that the
in-arcs have room for the weights. A branch is left as soon as a tree, in which open nodes may
still hang anywhere, no longer reaches all nodes within the depth. Trees of equal weight whose
parents are equal so far are interchangeable; of two such twins the first takes the smaller
parent, which leaves one of every set of packings that differ by names only.
Invariant: below `level` all trees can be completed by themselves; all patterns before the chosen
one are done. So FOUND is a packing and EXHAUSTED a proof that there is none.
Cost: exponential in the nodes at worst; one breadth-first search a tree and step.

One function is longer than the rest of the project's: a depth-first search without recursion,
which stops and goes on.
"""

from __future__ import annotations

import numpy as np
from collhub_columns import Int64Array
from collhub_packing.compiling import kernel, part

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
    """Whether all nodes lie within `max_depth` of the root.

    Those with a parent hang there, the others anywhere.
    """
    depth[:] = -1
    depth[root] = 0
    queue[0] = root
    begin, end = 0, 1
    while begin < end:
        node = queue[begin]
        begin += 1
        # All that wait behind it are as deep or deeper.
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
    """Go on with the search for at most `steps` steps: FOUND, EXHAUSTED or STOPPED.

    `head[first[v]:first[v + 1]]`: ends of the arcs of node v. `order`: nodes but the root.
    `patterns[indptr[i]:indptr[i + 1]]`: parents of `order[i]`, one column a tree.
    `parents[tree, node]` (-1: open), `choice[level]` and `state[0]` (the level) belong to the
    search; all -1, 0 and 0 start it. `twins[level]`: bit t says that tree t has the weight and,
    below `level`, the parents of tree t - 1. All int64.
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
            # All patterns of this node are done: back to the node before, and its next pattern.
            choice[level] = 0
            parents[:, node] = -1
            level -= 1
            if level < 0:
                return EXHAUSTED
            choice[level] += 1
            continue
        row = indptr[level] + choice[level]
        fits = True
        alike = twins[level]
        for tree in range(trees):
            parents[tree, node] = patterns[row, tree]
            # Here a pair of twins parts, so that they are told apart from now on.
            if alike >> tree & 1 and patterns[row, tree] != patterns[row, tree - 1]:
                alike ^= 1 << tree
                fits = fits and patterns[row, tree] > patterns[row, tree - 1]
        for tree in range(trees):
            fits = fits and _reaches_all(parents[tree], first, head, root, max_depth, queue, depth)
        if fits:
            twins[level + 1] = alike
            level += 1
        else:
            parents[:, node] = -1
            choice[level] += 1
    state[0] = level
    return STOPPED
