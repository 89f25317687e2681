"""Double binary tree: two trees in which hardly a rank is inner twice (Sanders, Speck and Traff).

The shape is NCCL's (`ncclGetDtree`): half of the data goes up and down either tree, in chunks.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from collhub_columns import Int64Array

from collhub_classic.costs import AlphaBetaCost
from collhub_classic.message_plan import MessagePlan, PlanBuilder, beside

NO_RANK = -1


def tree_parents(num_ranks: int) -> Int64Array:
    """The parent of every rank in the first tree; rank 0 is its root and has none, -1.

    A rank r with the lowest bit b hangs below (r xor b) or 2 b where that is a rank, else below
    r xor b.
    """
    rank = np.arange(num_ranks)
    bit = rank & -rank
    above = (rank ^ bit) | (bit << 1)
    parent = np.where(above < num_ranks, above, rank ^ bit)
    return np.where(rank == 0, NO_RANK, parent)


def second_tree_parents(num_ranks: int) -> Int64Array:
    """The second tree: mirrored for an even number of ranks, else shifted by one."""
    rank = np.arange(num_ranks)
    other = num_ranks - 1 - rank if num_ranks % 2 == 0 else (rank + 1) % num_ranks
    parent = tree_parents(num_ranks)
    moved = np.full(num_ranks, NO_RANK)
    moved[other] = np.where(parent >= 0, other[np.maximum(parent, 0)], NO_RANK)
    return moved


def double_tree_all_reduce(num_ranks: int, chunks: int) -> MessagePlan:
    """Up both trees, then down again, chunk behind chunk; `chunks` on each tree."""
    return beside(
        [
            _up_and_down(parent, chunks)
            for parent in (tree_parents(num_ranks), second_tree_parents(num_ranks))
        ]
    )


def double_tree_cost(num_ranks: int, chunks: int) -> AlphaBetaCost:
    """2 D alpha + (2 D + c - 1) m beta / 2 c, where D is the depth of the deeper tree.

    On links of their own, as far as the trees send over no link at the same time.
    """
    parents = tree_parents(num_ranks), second_tree_parents(num_ranks)
    depth = max(int(_depths(parent).max()) for parent in parents)
    return AlphaBetaCost(2 * depth, Fraction(2 * depth + chunks - 1, 2 * chunks))


def _up_and_down(parent: Int64Array, chunks: int) -> MessagePlan:
    """A reduce to the root of a tree and a broadcast from it.

    Chunk k leaves a rank for its parent in round k + height, and a parent for its children as soon
    as it is whole.
    """
    depth = _depths(parent)
    last = int(depth.max())
    child = np.flatnonzero(parent >= 0)
    builder = PlanBuilder(len(parent), chunks)
    for round_ in range(2 * last + chunks - 1):
        builder.next_round()
        # Going up, a rank of depth d sends chunk k in round k + last - d.
        chunk = round_ - (last - depth[child])
        up = (chunk >= 0) & (chunk < chunks)
        builder.send(child[up], parent[child[up]], chunk[up], reduces=True)
        chunk = round_ - (last + depth[child] - 1)
        down = (chunk >= 0) & (chunk < chunks)
        builder.send(parent[child[down]], child[down], chunk[down])
    return builder.build()


def _depths(parent: Int64Array) -> Int64Array:
    """Links from the root to every rank."""
    depth = np.zeros(len(parent), np.int64)
    above = parent.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[np.maximum(above, 0)], NO_RANK)
    return depth
