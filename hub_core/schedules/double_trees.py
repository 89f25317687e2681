"""Two binary trees over the same ranks in which hardly any rank has children in both.

Shape of NCCL's `ncclGetDtree` (Sanders, Speck and Traff, Two-Tree Algorithms for Full Bandwidth
Broadcast, Reduction and Scan, 2009): half of the data is sent along each tree.
"""

from __future__ import annotations

import numpy as np

from hub_core.columns import Int64Array

NO_RANK = -1
"""Parent of the root of a tree."""


def find_tree_parents(num_ranks: int) -> Int64Array:
    """Return the parent of every rank in the first tree: int64[ranks], -1 for rank 0, its root.

    Let b be the value of the lowest set bit of rank r. The parent is (r ^ b) | (2 * b) with
    bitwise operators, if that is below `num_ranks`; otherwise it is r ^ b. Empty for 0
    ranks.
    """
    rank = np.arange(num_ranks)
    bit = rank & -rank
    above = (rank ^ bit) | (bit << 1)
    parent = np.where(above < num_ranks, above, rank ^ bit)
    return np.where(rank == 0, NO_RANK, parent)


def find_second_tree_parents(num_ranks: int) -> Int64Array:
    """Return the parent of every rank in the second tree: int64[ranks], -1 for its root.

    The second tree is the first one with other rank numbers: rank r of n becomes n - 1 - r
    if n is even, else (r + 1) modulo n. So the root is rank n - 1 if n is even, else rank 1
    (0 for one rank).
    """
    rank = np.arange(num_ranks)
    image = num_ranks - 1 - rank if num_ranks % 2 == 0 else (rank + 1) % num_ranks
    parent = find_tree_parents(num_ranks)
    second_parent = np.full(num_ranks, NO_RANK)
    second_parent[image] = np.where(parent >= 0, image[np.maximum(parent, 0)], NO_RANK)
    return second_parent
