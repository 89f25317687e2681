"""Build the algorithms that NCCL runs over rings, trees and NVSwitches, one per channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from collhub_nccl_records import TreeNode

from collhub_nccl.graphs.ring_graphs import Ring
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Algorithm, Collective, CollectiveKind, JsonValue, Provenance
from hub_core.schedules import Chunks, Transfers, algorithm_of


def ring_algorithm(
    kind: CollectiveKind,
    rings: Sequence[Ring],
    root: int | None = None,
    provenance: Provenance | None = None,
    extensions: Mapping[str, JsonValue] | None = None,
    *,
    chunks: int = 1,
    npus: Sequence[int] | None = None,
    num_npus: int | None = None,
    collective_bytes: int | None = None,
) -> Algorithm:
    """Build the algorithm of a collective over `rings`, with one channel per ring.

    Each ring contains every rank once and carries an equal share of the data.

    - Reduce-scatter and all-gather: every block passes once along the ring.
    - All-reduce: the block of each rank is reduced along the ring up to that rank, then sent along
      the same ring (Patarasuk and Yuan, JPDC 2009).
    - Broadcast: a chain from `root`. Reduce: a chain that ends at `root`.

    `root` must be None for collectives without a root. A ring sends its share as `chunks` equal
    parts, one after the other; a chain starts a part each round. `npus[r]` is the NPU of rank r, by
    default r, among `num_npus` NPUs. The result is for calls in place and out of place. `kind` must
    be one of these collectives; without `root`, another one raises `KeyError`, with `root` it is
    not checked. Raises `ValueError` for a root outside of a ring.
    """
    ranks, count = len(rings[0]), len(rings)
    is_rooted = kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)
    blocks = 1 if is_rooted else ranks
    parts = count * chunks
    collective = Collective(kind, ranks, blocks * parts, root, in_place=True, out_of_place=True)
    hops = [_build_hops(kind, ring, number, root) for number, ring in enumerate(rings)]
    block, source, target, start, reduces, channel = map(np.concatenate, zip(*hops, strict=True))
    rounds = 1 if is_rooted else int(start.max()) + 1
    chunk = np.repeat(np.arange(chunks), len(block))
    block, source, target, start, reduces, channel = (
        np.tile(column, chunks) for column in (block, source, target, start, reduces, channel)
    )
    start = start + chunk * rounds
    transfers = Transfers(
        block * parts + channel * chunks + chunk,
        *_locate_ranks(npus, source, target),
        link=channel * ranks + source,
        start=start,
        finish=start + 1,
        reduces=reduces.astype(np.bool_),
        window=np.ones(len(block), np.int64),
        channel=channel,
    )
    # The shares of an all-reduce do not belong to ranks: the vector is divided into all of its
    # chunks.
    return algorithm_of(
        collective,
        Chunks.cut(collective, np.ones(collective.units_per_rank, np.int64)),
        transfers,
        npus=npus,
        num_npus=num_npus,
        provenance=provenance,
        collective_bytes=collective_bytes,
        extensions=extensions,
    )


def _locate_ranks(
    npus: Sequence[int] | None, source: Int64Array, target: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the NPUs of two columns of ranks; if `npus` is None, rank r is on NPU r."""
    if npus is None:
        return source, target
    members = np.asarray(npus, np.int64)
    return members[source], members[target]


_Hops = tuple[Int64Array, Int64Array, Int64Array, Int64Array, BoolArray, Int64Array]


def _build_hops(kind: CollectiveKind, ring: Ring, channel: int, root: int | None) -> _Hops:
    """Return the messages of one ring as columns (block, source, target, round, reduces, channel).

    Without a root, each rank sends one message per round to the next rank of the ring. A
    reduce-scatter reduces, an all-gather gathers, in rounds 0 to n - 2; an all-reduce does both, in
    rounds 0 to 2n - 3. With a root, block 0 passes along n - 1 hops, one per round: from the root
    for a broadcast, or from the rank after the root to the root for a reduce, which reduces on the
    way. `channel` is repeated in every row. Raises `KeyError` for other collectives without a root.
    """
    order, ranks = np.asarray(ring, np.int64), len(ring)
    if root is None:
        round_, position = (axis.ravel() for axis in np.indices((ranks - 1, ranks)))
        # Both phases send from each position to the next one. The block of position p starts the
        # reduce-scatter at p + 1 and ends at p, where the all-gather starts.
        scattered, gathered = (
            order[(position - 1 - round_) % ranks],
            order[(position - round_) % ranks],
        )
        phases = {
            CollectiveKind.REDUCE_SCATTER: [(scattered, True)],
            CollectiveKind.ALL_GATHER: [(gathered, False)],
            CollectiveKind.ALL_REDUCE: [(scattered, True), (gathered, False)],
        }[kind]
    else:
        root_position = ring.index(root)
        # The chain starts at the root (broadcast) or after it, and omits the link that closes the
        # ring.
        first = root_position if kind is CollectiveKind.BROADCAST else root_position + 1
        round_ = np.arange(ranks - 1)
        position = (first + round_) % ranks
        phases = [(np.zeros(ranks - 1, np.int64), kind is CollectiveKind.REDUCE)]
    parts = len(phases)
    return (
        np.concatenate([block for block, _ in phases]),
        np.tile(order[position], parts),
        np.tile(order[(position + 1) % ranks], parts),
        np.concatenate([round_ + phase * (ranks - 1) for phase in range(parts)]),
        np.repeat([reduces for _, reduces in phases], len(round_)),
        np.full(parts * len(round_), channel),
    )


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
    """Build an all-reduce over trees, with one channel per tree.

    Each tree reduces its share to the root and then broadcasts the result. `trees` has the nodes by
    rank. There must be at least one tree, and all must span the same ranks 0 to n - 1. All shares
    are equal. A tree sends its share as `chunks` equal parts, in a pipeline that uses both
    directions at the same time: part k starts k rounds after part 0. `npus[r]` is the NPU of rank
    r, by default r, among `num_npus` NPUs. The algorithm is for calls in place and out of place.
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
        *_locate_ranks(npus, source, target),
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
    """Return the messages of one tree: first up to the root, the deepest ranks first, then down.

    A message is (source, target, round, reduces). With depth d, the messages in rounds 0 to d - 1
    go to the parent and reduce. Those in rounds d to 2d - 1 go to the children. Roots are the ranks
    whose parent is negative. Ranks that no root reaches are left out.
    """
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


def nvls_algorithm(
    kind: CollectiveKind,
    ranks: int,
    channels: int,
    provenance: Provenance | None = None,
    extensions: Mapping[str, JsonValue] | None = None,
    *,
    chunks: int = 1,
    npus: Sequence[int] | None = None,
    num_npus: int | None = None,
    collective_bytes: int | None = None,
) -> Algorithm:
    """Build the algorithm of NVLS, where switches add up the block of every rank and multicast it.

    The block of a rank has this rank as its head. Sum: all other ranks send their block to the
    head, which reduces. Multicast: the head sends its block to all other ranks. A reduce-scatter
    sums, an all-gather multicasts, an all-reduce sums and then multicasts; other collectives raise
    `KeyError`. Each channel carries an equal share of every block, as `chunks` equal parts, one
    after the other. A switch that can add up or multicast carries each part as one message; other
    switches carry the message of every rank. `npus[r]` is the NPU of rank r, by default r, among
    `num_npus` NPUs. Source: src/device/all_reduce.h of NCCL.
    """
    phases = {
        CollectiveKind.REDUCE_SCATTER: [True],
        CollectiveKind.ALL_GATHER: [False],
        CollectiveKind.ALL_REDUCE: [True, False],
    }[kind]
    parts = channels * chunks
    collective = Collective(kind, ranks, ranks * parts, None, in_place=True, out_of_place=True)
    axes = (chunks, len(phases), channels, ranks, ranks - 1)
    chunk, phase, channel, head, other = (axis.ravel() for axis in np.indices(axes))
    peer = (head + 1 + other) % ranks
    reduces = np.asarray(phases)[phase]
    source, target = np.where(reduces, peer, head), np.where(reduces, head, peer)
    start = chunk + phase
    transfers = Transfers(
        head * parts + channel * chunks + chunk,
        *_locate_ranks(npus, source, target),
        link=(channel * ranks + source) * ranks + target,
        start=start,
        finish=start + 1,
        reduces=reduces,
        # No order between messages: each multicast and each sum is one operation of a switch.
        window=np.zeros(len(start), np.int64),
        channel=channel,
    )
    return algorithm_of(
        collective,
        Chunks.cut(collective, np.ones(collective.units_per_rank, np.int64)),
        transfers,
        npus=npus,
        num_npus=num_npus,
        provenance=provenance,
        collective_bytes=collective_bytes,
        extensions=extensions,
    )
