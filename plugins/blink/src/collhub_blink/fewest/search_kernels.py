"""Kernels of exhaustive searches for trees: parents per tree, or trees per link.

Both are depth-first searches with backtracking, without recursion, that can stop and resume. They
are longer than other functions for this reason. A result FOUND is a packing, EXHAUSTED a proof that
there is none.

`search_directed` chooses parents in all trees of given weights, so that every tree reaches all
nodes. At a node, one pattern after the other is tried: its parents in all trees at once, such that
the in-arcs have room for the weights. A branch is left as soon as a tree, in which undecided nodes
may still have any parent, cannot reach all nodes within the depth. Trees of equal weight whose
parents are equal so far are interchangeable; of two such twins the first takes the smaller parent,
which leaves one of every set of packings that differ only in names. Invariant: below `level` every
single tree can be completed; all patterns before the chosen one are exhausted. Cost: exponential in
the nodes at worst; one breadth-first search per tree and step.

`search_undirected` chooses for every link the trees that use it, so that each tree spans without a
cycle. At a link, one set of trees that may share it is tried after the other. A branch is left as
soon as a link joins two nodes of a tree that are already joined, or the remaining links cannot join
all components of a tree. Trees of equal weight that use the same links so far are interchangeable;
of two such twins the first takes a link first. Invariant: `parts[level]` are the components of
every tree after the links below `level` are decided; all sets before the chosen one are exhausted.
Cost: exponential in the links at worst; a step takes at most links times nodes for each tree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
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


Int8Array = npt.NDArray[np.int8]


@part
def _join_components(part_of: Int8Array, first_node: int, second_node: int) -> bool:
    """Join the components of two nodes in place; False if they are in one component already.

    For few nodes relabelling is faster than a union-find forest, and the labels can be copied.
    """
    label, old_label = part_of[first_node], part_of[second_node]
    if label == old_label:
        return False
    for node in range(len(part_of)):
        if part_of[node] == old_label:
            part_of[node] = label
    return True


@part
def _can_span(
    part_of: Int8Array,
    scratch: Int8Array,
    first: Int64Array,
    second: Int64Array,
    level: int,
) -> bool:
    """Whether the links from `level` on can join all components of a tree. Overwrites `scratch`."""
    scratch[:] = part_of
    for link in range(level, len(first)):
        _join_components(scratch, first[link], second[link])
    return bool(np.all(scratch == scratch[0]))


@kernel
def search_undirected(
    first: Int64Array,
    second: Int64Array,
    indptr: Int64Array,
    masks: Int64Array,
    parts: Int8Array,
    scratch: Int8Array,
    twins: Int64Array,
    choice: Int64Array,
    state: Int64Array,
    steps: int,
) -> int:
    """Run or resume the search for at most `steps` steps; return FOUND, EXHAUSTED or STOPPED.

    `first`, `second`: ends of every link. `masks[indptr[i]:indptr[i + 1]]`: sets of trees that may
    share link i, one bit per tree.

    State of the search, changed in place: `parts[level, tree, node]`: component of a node in a tree
    after the links below `level` are decided; `choice[level]` and `state[0]` (the level). At the
    start `parts[0]` holds the nodes' numbers, `choice` and `state` zeros. `twins[level]`: bit t
    means that tree t has the weight and, below `level`, the links of tree t - 1. `scratch`: one
    entry per node. All arrays are int64, except `parts` and `scratch` (int8).
    """
    trees = parts.shape[1]
    links = len(first)
    level = state[0]
    for _ in range(steps):
        if level == links:
            state[0] = level
            return FOUND
        if indptr[level] + choice[level] == indptr[level + 1]:
            # All sets of this link are exhausted: next set of the previous link.
            choice[level] = 0
            level -= 1
            if level < 0:
                return EXHAUSTED
            choice[level] += 1
            continue
        mask = masks[indptr[level] + choice[level]]
        parts[level + 1] = parts[level]
        # The second of two twins does not take a link without the first.
        fits = mask & twins[level] & ~(mask << 1) == 0
        for tree in range(trees):
            if not fits:
                break
            if mask >> tree & 1:
                fits = _join_components(parts[level + 1, tree], first[level], second[level])
            elif parts[level, tree, first[level]] != parts[level, tree, second[level]]:
                # Only a link that would have joined two components can be missed.
                fits = _can_span(parts[level, tree], scratch, first, second, level + 1)
        if fits:
            # Twins differ from here on if only one of them takes the link.
            twins[level + 1] = twins[level] & ~(mask ^ (mask << 1))
            level += 1
        else:
            choice[level] += 1
    state[0] = level
    return STOPPED
