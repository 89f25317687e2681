"""Build the all-reduce that NCCL runs over the trees of a log, one per channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from collhub_nccl_records import TreeNode

from hub_core.model import Algorithm, Collective, CollectiveKind, JsonValue, Provenance
from hub_core.schedules import Chunks, Transfers, algorithm_of

# (chunk, source, target, round, whether it reduces)
_Hop = tuple[int, int, int, int, bool]


def tree_algorithm(
    trees: Sequence[Mapping[int, TreeNode]],
    provenance: Provenance | None = None,
    extensions: Mapping[str, JsonValue] | None = None,
) -> Algorithm:
    """Build an all-reduce: each tree reduces its share to the root and broadcasts the result.

    `trees`: nodes by rank; every tree spans the same ranks 0..n-1. Tree c uses channel c.
    """
    count, ranks = len(trees), len(trees[0])
    collective = Collective(
        CollectiveKind.ALL_REDUCE, ranks, count, None, in_place=True, out_of_place=True
    )
    hops = [hop for chunk, tree in enumerate(trees) for hop in _list_hops(chunk, tree)]
    chunk, source, target, start, reduces = map(np.array, zip(*hops, strict=True))
    transfers = Transfers(
        chunk,
        source,
        target,
        link=chunk * ranks * ranks + source * ranks + target,
        start=start,
        finish=start + 1,
        reduces=reduces.astype(np.bool_),
        window=np.ones(len(hops), np.int64),
        channel=chunk,
    )
    chunks = Chunks.cut(collective, np.ones(count, np.int64))
    return algorithm_of(collective, chunks, transfers, provenance=provenance, extensions=extensions)


def _list_hops(chunk: int, tree: Mapping[int, TreeNode]) -> list[_Hop]:
    """List the messages of one tree: up to the root, deepest ranks first, then down."""
    levels = [[rank for rank, node in sorted(tree.items()) if node.parent < 0]]
    while levels[-1]:
        levels.append([child for rank in levels[-1] for child in tree[rank].children])
    depth = len(levels) - 2
    up = [
        (chunk, rank, tree[rank].parent, depth - level, True)
        for level in range(depth, 0, -1)
        for rank in levels[level]
    ]
    down = [
        (chunk, tree[rank].parent, rank, depth + level - 1, False)
        for level in range(1, depth + 1)
        for rank in levels[level]
    ]
    return up + down
