"""Kernel: choose for every link the trees that use it, so that each tree spans and none closes a cycle.

One function is longer than the rest of the project's: a depth-first search without recursion, which stops and goes on.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from collhub_blink.fewest.directed_search import EXHAUSTED, FOUND, STOPPED

Int64Array = npt.NDArray[np.int64]
Int8Array = npt.NDArray[np.int8]


@numba.njit(cache=True, nogil=True)
def _joined(part: Int8Array, one: int, other: int) -> bool:
    """Join the parts of two nodes; False where they are one already."""
    kept, gone = part[one], part[other]
    if kept == gone:
        return False
    for node in range(len(part)):
        if part[node] == gone:
            part[node] = kept
    return True


@numba.njit(cache=True, nogil=True)
def _can_span(
    part: Int8Array, scratch: Int8Array, first: Int64Array, second: Int64Array, level: int
) -> bool:
    """Whether the links from `level` on can join all parts of a tree."""
    scratch[:] = part
    for link in range(level, len(first)):
        _joined(scratch, first[link], second[link])
    return bool(np.all(scratch == scratch[0]))


@numba.njit(cache=True, nogil=True)
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

    `first`, `second`: ends of every link. `masks[indptr[i]:indptr[i + 1]]`: sets of trees that may share link i, one bit a
    tree. `parts[level, tree, node]`: to which part of the tree a node belongs once the links below `level` are settled;
    `parts[0]` holds the nodes' own numbers, `choice` and `state[0]` (the level) zeros to start with. `twins[level]`: bit t
    says that tree t has the weight and, below `level`, the links of tree t - 1; of two twins the first takes a link first.
    """
    trees = parts.shape[1]
    links = len(first)
    level = state[0]
    for _ in range(steps):
        if level == links:
            state[0] = level
            return FOUND
        if indptr[level] + choice[level] == indptr[level + 1]:
            choice[level] = 0
            level -= 1
            if level < 0:
                return EXHAUSTED
            choice[level] += 1
            continue
        mask = masks[indptr[level] + choice[level]]
        parts[level + 1] = parts[level]
        fits = mask & twins[level] & ~(mask << 1) == 0
        for tree in range(trees):
            if not fits:
                break
            if mask >> tree & 1:
                fits = _joined(parts[level + 1, tree], first[level], second[level])
            elif parts[level, tree, first[level]] != parts[level, tree, second[level]]:
                fits = _can_span(parts[level, tree], scratch, first, second, level + 1)
        if fits:
            twins[level + 1] = twins[level] & ~(mask ^ (mask << 1))
            level += 1
        else:
            choice[level] += 1
    state[0] = level
    return STOPPED
