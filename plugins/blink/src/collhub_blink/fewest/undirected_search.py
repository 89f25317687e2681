"""Kernel: choose for every link the trees that use it, so that each tree spans without a cycle.

Algorithm: depth-first search with backtracking over the links, in a given order. At a link, one set
of trees that may share it is tried after the other. A branch is left as soon as a link joins two
nodes of a tree that are already joined, or the remaining links cannot join all components of a
tree. Trees of equal weight that use the same links so far are interchangeable; of two such twins
the first takes a link first.

Invariant: `parts[level]` are the components of every tree after the links below `level` are
decided; all sets before the chosen one are exhausted. So FOUND is a packing and EXHAUSTED a proof
that there is none.

Cost: exponential in the links at worst; a step takes at most links times nodes for each tree.

The kernel is longer than other functions: a depth-first search without recursion that can stop and
resume.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from collhub_packing.compiling import kernel, part

from collhub_blink.fewest.directed_search import EXHAUSTED, FOUND, STOPPED
from hub_core.columns import Int64Array

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
