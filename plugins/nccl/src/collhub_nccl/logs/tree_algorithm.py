"""Build the all-reduce that NCCL runs over the trees of a log, one per channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from collhub_nccl_records import TreeNode

from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Collective, CollectiveKind, JsonValue, Provenance
from hub_core.schedules import Chunks, Transfers, algorithm_of

# (source, target, round, whether it reduces)
_Hop = tuple[int, int, int, bool]


def tree_algorithm(
    trees: Sequence[Mapping[int, TreeNode]],
    provenance: Provenance | None = None,
    extensions: Mapping[str, JsonValue] | None = None,
    *,
    chunks: int = 1,
    npus: Sequence[int] | None = None,
    num_npus: int | None = None,
    collective_bytes: int | None = None,
) -> Algorithm:
    """Build an all-reduce: each tree reduces its share to the root and broadcasts the result.

    `trees`: nodes by rank; every tree spans the same ranks 0..n-1. Tree c uses channel c. A tree
    sends `chunks` equal parts of its share in a pipeline, in both directions at the same time.
    `npus[r]` is the NPU of rank r (default: r) of `num_npus`.
    """
    count, ranks = len(trees), len(trees[0])
    collective = Collective(
        CollectiveKind.ALL_REDUCE, ranks, count * chunks, None, in_place=True, out_of_place=True
    )
    # Channels with equal trees share one list of messages.
    hops_of: dict[tuple[tuple[int, int], ...], Int64Array] = {}
    columns = []
    for channel, tree in enumerate(trees):
        key = tuple((rank, node.parent) for rank, node in sorted(tree.items()))
        if key not in hops_of:
            hops_of[key] = np.array(_list_hops(tree), np.int64)
        hops = hops_of[key]
        columns.append(np.column_stack([hops, np.full(len(hops), channel)]))
    source, target, start, reduces, channel_of = np.concatenate(columns).T
    chunk = np.repeat(np.arange(chunks), len(source))
    source, target, start, reduces, channel_of = (
        np.tile(column, chunks) for column in (source, target, start, reduces, channel_of)
    )
    start = start + chunk
    transfers = Transfers(
        channel_of * chunks + chunk,
        source,
        target,
        link=channel_of * ranks * ranks + source * ranks + target,
        start=start,
        finish=start + 1,
        reduces=reduces.astype(np.bool_),
        window=np.ones(len(source), np.int64),
        channel=channel_of,
    )
    return algorithm_of(
        collective,
        Chunks.cut(collective, np.ones(count * chunks, np.int64)),
        transfers,
        npus=npus,
        num_npus=num_npus,
        provenance=provenance,
        collective_bytes=collective_bytes,
        extensions=extensions,
    )


def _list_hops(tree: Mapping[int, TreeNode]) -> list[_Hop]:
    """List the messages of one tree: up to the root, deepest ranks first, then down."""
    levels = [[rank for rank, node in sorted(tree.items()) if node.parent < 0]]
    while levels[-1]:
        levels.append([child for rank in levels[-1] for child in tree[rank].children])
    depth = len(levels) - 2
    up = [
        (rank, tree[rank].parent, depth - level, True)
        for level in range(depth, 0, -1)
        for rank in levels[level]
    ]
    down = [
        (tree[rank].parent, rank, depth + level - 1, False)
        for level in range(1, depth + 1)
        for rank in levels[level]
    ]
    return up + down
