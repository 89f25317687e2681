"""Build the algorithms that NCCL runs over rings, trees and NVSwitches, one per channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from collhub_nccl_records import TreeNode

from collhub_nccl.graphs.ring_graphs import Ring
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import (
    Algorithm,
    Collective,
    CollectiveKind,
    JsonValue,
    Provenance,
    UsageError,
)
from hub_core.schedules import Chunks, Transfers, algorithm_of


def choose_root(kind: CollectiveKind, stated: int | None, ranks: int) -> int | None:
    """Return the root of a broadcast or reduce, 0 if the option is not given; None for other kinds.

    `stated`: the option `root`, None if it is not given. Raises `UsageError` unless it is 0 to
    `ranks` - 1, and for a root of a collective that has none.
    """
    if not kind.traits.is_rooted:
        if stated is not None:
            raise UsageError(f"option root: {kind} has no root", cure="leave it out")
        return None
    if stated is not None and not 0 <= stated < ranks:
        raise UsageError(
            f"option root: {stated} is not one of {ranks} ranks", cure=f"use 0 to {ranks - 1}"
        )
    return stated or 0


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
    """Return the algorithm of a collective over rings; it is valid in place and out of place.

    Each ring has every rank once. Ring i uses channel i and carries an equal share of the data, as
    `chunks` parts.

    - All-gather, reduce-scatter: the block of each rank passes once along the ring.
    - All-reduce: the block of rank r is reduced along the ring up to r, then sent along it again.
    - Broadcast, reduce: a chain along the ring that starts at `root`, or ends there.

    A part starts when the previous one is complete, in a chain one round after it. A unit has the
    number (block * rings + ring) * `chunks` + part. Block r belongs to rank r; with a root there is
    only block 0. `npus[r]`: NPU of rank r, by default r. `num_npus`: by default the highest NPU +
    1. The collective becomes custom unless `npus` is 0 to `num_npus` - 1.

    Raises `InputError` for a broadcast or reduce without a valid `root`, for another collective
    with one, and for gather and scatter. Raises `KeyError` for other kinds without a root,
    `IndexError` without rings, and `ValueError` for rings of one rank, except for a broadcast or
    reduce.
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
    """Return the messages of one ring as six columns of equal length.

    The columns are (block, source, target, round, reduces, channel): int64, and bool for
    `reduces`. n is the number of ranks. Messages are in the order of the rounds, within a round
    in the order of the senders on the ring.

    Without a root, each rank sends one message per round to the next rank of the ring. Blocks
    are numbered by rank. In a reduce-scatter (rounds 0 to n - 2) all messages reduce; the block
    of each rank starts at the next rank and ends at its own. In an all-gather (rounds 0 to n -
    2) no message reduces, and the block of each rank starts there. An all-reduce has the
    messages of a reduce-scatter, then those of an all-gather in rounds n - 1 to 2n - 3.

    With a root, there are n - 1 messages of block 0, one per round. A broadcast starts at the
    root. Every other kind starts at the rank after the root and ends at the root; only a reduce
    reduces. `channel` is repeated in every row. One rank gives no rows.

    Raises `KeyError` for other collectives without a root, and `ValueError` for a root that is
    not in the ring.
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
    """Return the algorithm of an all-reduce over trees: tree number i sends on channel i.

    Each tree (nodes by rank) reduces an equal share of the data to its root, then broadcasts the
    result. All trees must span the same ranks 0 to n - 1, which is not checked. A tree sends its
    share as `chunks` equal parts, in a pipeline that uses both directions at the same time: part k
    starts k rounds after part 0. Unit numbers are tree * `chunks` + part.

    `npus[r]` is the NPU of rank r, by default r, among `num_npus` NPUs (by default the highest
    + 1). The collective becomes custom unless `npus` is 0 to `num_npus` - 1 in this order. The
    algorithm is for calls in place and out of place. `collective_bytes`, `provenance` and
    `extensions` are stored; None means empty for the last two.

    Raises `IndexError` without trees, `ValueError` for trees of one rank, and `InputError`
    (`schedule-acausal`) if a rank would send data before they arrive.
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
    """Return the messages of one tree: first up to the root, then down to the leaves.

    A message is (source, target, round, reduces). The depth d of the tree is the largest
    distance of a rank from the root. A rank at distance k sends to its parent in round d - k,
    which reduces. The parent sends to it in round d + k - 1, which does not reduce. So rounds 0
    to d - 1 go up, and rounds d to 2d - 1 go down.

    Messages are in the order of the rounds. Within a round, they follow the parents in their
    order, then the children as `TreeNode.children` lists them. Roots are the ranks whose parent
    is negative, ascending. Ranks that are no descendants of a root are left out. A single rank
    gives []. A rank that is its own descendant is not noticed: the function does not end.
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
    """Return the algorithm of NVLS, where switches add up the blocks and multicast them.

    The block of a rank has this rank as its head. In a sum, all other ranks send their block
    to the head, which reduces. In a multicast, the head sends its block to all other ranks. A
    reduce-scatter sums, an all-gather multicasts, an all-reduce does both in this order;
    another `kind` raises `KeyError`. A message goes from rank to rank; a simulator may replace
    the messages of a part by one at a switch that can add up or multicast.

    Channels are 0 to `channels` - 1. Each carries an equal share of every block, as `chunks`
    equal parts. Unit numbers are (head * `channels` + channel) * `chunks` + part. Part k
    starts in round k, and its multicast one round after its sum. There is no order among the
    messages of a part.

    `npus[r]`: NPU of rank r, default r. `num_npus`: default the highest NPU + 1. The
    collective becomes custom unless `npus` are 0 to `num_npus` - 1. It serves calls in place
    and out of place. The other arguments are stored. Source: src/device/all_reduce.h of NCCL.
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
