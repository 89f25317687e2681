"""Kernel: choose for every link the trees that use it, so that each spans and none has a cycle.

Algorithm: depth-first search with backtracking over the links, in a given order. At a link, one
set of trees after the other is tried that may share it. A branch is left as soon as a link joins
two nodes of a tree that are joined already, or as the links that are left can no longer join all
parts of a tree. Trees of equal weight that use the same links so far are interchangeable; of two
such twins the first takes a link first.
Invariant: `parts[level]` are the components of every tree once the links below `level` are
settled; all sets before the chosen one are done. So FOUND is a packing and EXHAUSTED a proof that
there is none.
Cost: exponential in the links at worst; a step takes at most links times nodes for each tree.

One function is longer than the rest of the project's: a depth-first search without recursion,
which stops and goes on.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from collhub_columns import Int64Array
from collhub_packing.compiling import kernel, part

from collhub_blink.fewest.directed_search import EXHAUSTED, FOUND, STOPPED

Int8Array = npt.NDArray[np.int8]


@part
def _joined(part_of: Int8Array, one: int, other: int) -> bool:
    """Join the parts of two nodes; False where they are one already.

    For few nodes relabelling is faster than trees of representatives, and it can be copied.
    """
    kept, gone = part_of[one], part_of[other]
    if kept == gone:
        return False
    for node in range(len(part_of)):
        if part_of[node] == gone:
            part_of[node] = kept
    return True


@part
def _can_span(
    part_of: Int8Array,
    scratch: Int8Array,
    first: Int64Array,
    second: Int64Array,
    level: int,
) -> bool:
    """Whether the links from `level` on can join all parts of a tree."""
    scratch[:] = part_of
    for link in range(level, len(first)):
        _joined(scratch, first[link], second[link])
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
    """Go on with the search for at most `steps` steps: FOUND, EXHAUSTED or STOPPED.

    `first`, `second`: ends of every link. `masks[indptr[i]:indptr[i + 1]]`: sets of trees that
    may share link i, one bit a tree. `parts[level, tree, node]`: to which part of the tree a node
    belongs once the links below `level` are settled; `parts[0]` holds the nodes' own numbers,
    `choice` and `state[0]` (the level) zeros to start with. `twins[level]`: bit t says that tree
    t has the weight and, below `level`, the links of tree t - 1. int64, `parts` int8.
    """
    trees = parts.shape[1]
    links = len(first)
    level = state[0]
    for _ in range(steps):
        if level == links:
            state[0] = level
            return FOUND
        if indptr[level] + choice[level] == indptr[level + 1]:
            # All sets for this link are done: back to the link before, and its next set.
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
                fits = _joined(parts[level + 1, tree], first[level], second[level])
            elif parts[level, tree, first[level]] != parts[level, tree, second[level]]:
                # Only a link that would have joined two parts can be missed.
                fits = _can_span(parts[level, tree], scratch, first, second, level + 1)
        if fits:
            # Twins part where only one of them takes the link.
            twins[level + 1] = twins[level] & ~(mask ^ (mask << 1))
            level += 1
        else:
            choice[level] += 1
    state[0] = level
    return STOPPED
