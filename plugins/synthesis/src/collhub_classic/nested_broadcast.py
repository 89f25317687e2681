"""Broadcasts on several trees at once, each with a part of the data, chunk after chunk.

On a torus, two trees per dimension use no link twice (edge-disjoint spanning trees; Johnsson and
Ho, IEEE Transactions on Computers 38, 1989, for hypercubes): the root sends a different part over
every link. On other networks, the two binary trees of NCCL (Sanders, Speck, Traeff, Parallel
Computing 35, 2009), in which every rank forwards only one half of the data; on many servers with
links of their own, such trees for each card of a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from hub_core.columns import Int64Array, counted_positions, expanded_ranges
from hub_core.model import Buffer, StepKind, StepTable
from hub_core.schedules import find_second_tree_parents, find_tree_parents

# Chunks of a message within a group: larger messages delay the last data more than they save.
_MAX_GROUP_GRAIN = 32


@dataclass(frozen=True, eq=False)
class BroadcastTrees:
    """Trees of a broadcast, and the structure of the network that they follow.

    `parents`: int64[trees, ranks], -1 at the root. `rings`: sizes of the dimensions of a torus for
    `find_torus_trees`, otherwise (). `group_size`: ranks per group for `find_group_trees`,
    otherwise 1.
    """

    parents: Int64Array
    rings: tuple[int, ...] = ()
    group_size: int = 1

    @cached_property
    def depth(self) -> int:
        """Return the largest number of messages from the root to a rank, over all trees.

        It is 0 without trees or with one rank. Every tree must lead to the root, whose parent is
        negative.
        """
        depth = 0
        for parent in self.parents:
            above = parent
            hops = 0
            while (above >= 0).any():
                hops += 1
                above = np.where(above >= 0, parent[np.maximum(above, 0)], -1)
            depth = max(depth, hops)
        return depth


def _list_trees(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first dimension, direction) of every tree of a torus, as `find_torus_trees`."""
    return [
        (first, direction)
        for first, size in enumerate(sizes)
        for direction in ((1, -1) if size > 2 else (1,))
    ]


def find_torus_trees(sizes: Sequence[int], root: int) -> Int64Array:
    """Return the parent of every rank in each broadcast tree of a torus, -1 at `root`.

    The result is int64[trees, ranks], with trees in the order of `_list_trees`. `sizes`: ranks of
    each dimension, at least 2, the first varies fastest. There are two trees per dimension, one for
    each direction, but one for a dimension of two ranks. No two trees use the same link, unless
    only some of the dimensions have two ranks.

    In the tree of dimension a and direction s, data move from the root along a in direction s. From
    each rank displaced along a, they then move along the following dimensions, cyclically. A rank
    without a displacement along a receives from the rank before it along a, in direction s.
    """
    count = len(sizes)
    number = np.arange(prod(sizes))
    strides = [prod(sizes[:axis]) for axis in range(count)]
    place = [number // stride % size for stride, size in zip(strides, sizes, strict=True)]
    parents = []
    for first, direction in _list_trees(sizes):
        relative = [
            (coordinate - coordinate[root]) * direction % size
            for coordinate, size in zip(place, sizes, strict=True)
        ]
        # The dimension along which a rank receives: the last one with a displacement.
        axis_of = np.full(len(number), first)
        for offset in range(1, count):
            axis = (first + offset) % count
            axis_of[(relative[axis] > 0) & (relative[first] > 0)] = axis
        parent = np.empty_like(number)
        for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
            rows = axis_of == axis
            before = (place[axis] - direction) % size
            parent[rows] = (number + (before - place[axis]) * stride)[rows]
        parent[root] = -1
        parents.append(parent)
    return np.asarray(parents)


def find_binary_trees(num_ranks: int, root: int) -> Int64Array:
    """Return the parent of every rank in NCCL's two binary trees: int64[2, ranks], -1 at `root`.

    Inner ranks of one tree are leaves of the other. Exceptions are the root, and in each tree the
    rank that swapped its position with the root: NCCL's trees have a fixed rank as their root.
    """
    parents = []
    for parent in (find_tree_parents(num_ranks), find_second_tree_parents(num_ranks)):
        position = int(np.flatnonzero(parent < 0)[0])
        rank_of = np.arange(num_ranks)
        rank_of[[position, root]] = root, position
        renamed = np.full(num_ranks, -1)
        has_parent = parent >= 0
        renamed[rank_of[has_parent]] = rank_of[parent[has_parent]]
        parents.append(renamed)
    return np.asarray(parents)


def find_group_trees(size: int, num_ranks: int, root: int) -> Int64Array:
    """Return the parents in broadcast trees over groups of ranks, -1 at the root.

    The result is int64[2 * size, ranks]. Groups are `size` consecutive ranks, such as the cards of
    a server; `num_ranks` must be a multiple (not checked). Trees 2 m and 2 m + 1 reach other groups
    over the links of member m of every group only. These members form the two trees of
    `find_binary_trees`; the root of the trees sends to the first ones itself. Each such member then
    sends the data to all other members of its group.

    In the trees of the root's own member number, the data pass along a chain of the ranks of the
    root's group instead, because the root also sends the data of the other trees.
    """
    rank = np.arange(num_ranks)
    group, member = np.divmod(rank, size)
    parents = []
    for sender in range(size):
        for parent in find_binary_trees(num_ranks // size, root // size):
            outside = np.where(parent[group] < 0, root, parent[group] * size + sender)
            inside = np.full(num_ranks, sender)
            if sender == root % size:
                # The root also sends the data of the other trees: its own pass along a chain.
                inside[group == root // size] = (member[group == root // size] - 1) % size
            parents.append(np.where(member == sender, outside, group * size + inside))
            parents[-1][root] = -1
    return np.asarray(parents)


def choose_group_messages(
    size: int, num_ranks: int, depth: int, max_chunks: int, max_messages: int
) -> tuple[int, int]:
    """Choose the chunks per tree and per message within a group, for `find_group_trees`.

    Returns (chunks c per tree, chunks g of a message within a group); messages between groups have
    one chunk. For g = 1 to `_MAX_GROUP_GRAIN`, c is the largest number with at most about
    `max_messages` messages in all 2 * `size` trees, at least 1 and at most `max_chunks`. The pair
    with the smallest (depth + c + g) / c, which is about the time relative to that of the data, is
    chosen; of equal ones the smallest g.
    """
    groups = num_ranks // size
    inside = num_ranks - groups
    best = 1.0 + depth + 1, 1, 1
    for grain in range(1, _MAX_GROUP_GRAIN + 1):
        chunks = int(max_messages / (2 * size) / (groups + inside / grain))
        chunks = max(1, min(chunks, max_chunks))
        best = min(best, ((depth + chunks + grain) / chunks, grain, chunks))
    return best[2], best[1]


def build_group_grains(size: int, num_ranks: int, grain: int) -> Int64Array:
    """Return the chunks of a message to each rank of `find_group_trees`: int64[trees, ranks].

    Messages to the ranks that receive the data of a tree from other groups have one chunk, those to
    the other ranks of a group `grain`.
    """
    # Trees 2 m and 2 m + 1 use the links of rank m of every group.
    sender = np.repeat(np.arange(size), 2)[:, None]
    return np.where(np.arange(num_ranks) % size == sender, 1, grain)


def compute_torus_levels(sizes: Sequence[int], root: int) -> Int64Array:
    """Return the level of every rank in each tree of `find_torus_trees`: int64[trees, ranks].

    A tree uses the dimensions in a cyclic order. The level of a rank is the position in this order
    of the last dimension along which it is displaced from `root`: 0 for the first dimension. Ranks
    without a displacement along the first dimension (also the root) have the last level. Data for a
    level pass through ranks of earlier levels.
    """
    count = len(sizes)
    number = np.arange(prod(sizes))
    strides = [prod(sizes[:axis]) for axis in range(count)]
    is_moved = [
        (number // stride - root // stride) % size != 0
        for stride, size in zip(strides, sizes, strict=True)
    ]
    levels = []
    for first, _ in _list_trees(sizes):
        level = np.zeros(len(number), np.int64)
        for offset in range(1, count):
            level[is_moved[(first + offset) % count]] = offset
        level[~is_moved[first]] = count - 1
        levels.append(level)
    return np.asarray(levels)


def choose_grains(
    sizes: Sequence[int], levels: Int64Array, chunks: int, max_messages: int
) -> Int64Array:
    """Choose the number of chunks in a message to each rank of each tree of a torus.

    The result is int64[trees, ranks]. `sizes`: of the torus; `levels`: as of
    `compute_torus_levels`; `chunks`: per tree. Larger messages reduce their number, but the first
    data arrive later, by the sum over the levels of (length - 1) * chunks of a message.
    `_divide_fill` divides a delay into sizes of the levels, which are limited to `chunks`. The
    delay begins at one chunk per hop and grows by 10 % until all trees together have at most
    `max_messages` messages, or the messages of the first level have all `chunks` in every tree.
    """
    count = len(sizes)
    cycles = [
        [sizes[(first + offset) % count] for offset in range(count)]
        for first, _ in _list_trees(sizes)
    ]
    populations = [np.bincount(level, minlength=count) for level in levels]
    fill = float(sum(sizes) - count)
    while True:
        grain_of = [np.minimum(_divide_fill(lengths, fill), chunks) for lengths in cycles]
        messages = sum(
            int((population * -(-chunks // grains)).sum())
            for population, grains in zip(populations, grain_of, strict=True)
        )
        if messages <= max_messages or all(grains[0] == chunks for grains in grain_of):
            break
        fill *= 1.1
    return np.asarray([grains[level] for grains, level in zip(grain_of, levels, strict=True)])


def _divide_fill(lengths: Sequence[int], fill: float) -> Int64Array:
    """Return the number of chunks of a message on every level of a torus tree: int64[levels].

    `lengths`: ranks per level, at least 2. The sum over levels of (length - 1) * chunks should be
    about `fill`. The sizes that minimize the number of messages are proportional to sqrt(product of
    the lengths up to this level / (length - 1)). Each is rounded down to a multiple of the size of
    the level before, but is at least that; the last level uses the remainder of `fill`.
    """
    hops = np.asarray(lengths) - 1
    weights = np.sqrt(np.cumprod(lengths) / hops)
    ideal = weights * fill / (weights * hops).sum()
    grains: list[int] = []
    for level, size in enumerate(ideal.tolist()):
        before = grains[-1] if grains else 1
        if level == len(lengths) - 1:
            used = sum(int(hop) * grain for hop, grain in zip(hops, grains, strict=False))
            size = (fill - used) / int(hops[-1])
        grains.append(before * max(1, int(size / before)))
    return np.asarray(grains)


def build_broadcast_steps(
    parents: Int64Array, chunks: int, grains: Int64Array | None = None
) -> StepTable:
    """Build the steps of a broadcast of `chunks` chunks on each tree, with one unit per chunk.

    `parents`: int64[trees, ranks], -1 at the root, which is the same in all trees. Unit t * chunks
    + c is chunk c of tree t. A message to a rank has `grains[tree, rank]` units, which must be a
    multiple of those to its parent; the last message may have fewer. None means one unit per
    message.

    The root copies INPUT to OUTPUT first; all sends read OUTPUT. A send depends on the receives of
    its units. Steps of a rank are sorted by the end of the message's range of chunks, then tree,
    receives before sends, then receiver.
    """
    trees, ranks = parents.shape
    units = trees * chunks
    if grains is None:
        grains = np.ones_like(parents)
    root = int(np.flatnonzero(parents[0] < 0)[0])
    tree, child = np.nonzero(parents >= 0)
    # Per message of an edge a row that receives, and a row that sends after the receives of the
    # sender. Messages are numbered edge by edge.
    count = -(-chunks // grains[tree, child])
    edge = np.repeat(np.arange(len(tree)), count)
    tree, receiver, sender = tree[edge], child[edge], parents[tree, child][edge]
    first = counted_positions(count) * grains[tree, receiver]
    size = np.minimum(grains[tree, receiver], chunks - first)
    offset = tree * chunks + first
    messages = len(edge)
    rank = np.concatenate([[root], receiver, sender])
    end = first + size
    order = np.lexsort(
        (
            np.concatenate([[-1], receiver, receiver]),
            np.concatenate([[0], np.zeros(messages, np.int64), np.ones(messages, np.int64)]),
            np.concatenate([[-1], tree, tree]),
            np.concatenate([[-1], end, end]),
            rank,
        )
    )
    kind = np.repeat([StepKind.COPY, StepKind.RECV, StepKind.SEND], [1, messages, messages])
    offsets = np.concatenate([[0], offset, offset])
    columns = {
        "rank": rank,
        "kind": kind,
        "peer": np.concatenate([[-1], sender, receiver]),
        "count": np.concatenate([[units], size, size]),
        "src_buffer": np.repeat(
            [Buffer.INPUT, Buffer.UNKNOWN, Buffer.OUTPUT], [1, messages, messages]
        ),
        "src_offset": np.where(kind == StepKind.SEND, offsets, 0),
        "dst_buffer": np.repeat(
            [Buffer.OUTPUT, Buffer.OUTPUT, Buffer.UNKNOWN], [1, messages, messages]
        ),
        "dst_offset": np.where(kind == StepKind.RECV, offsets, 0),
    }
    position = np.empty(len(rank), np.int64)
    position[order] = np.arange(len(rank))
    # The receives of the sender in the range of a message are consecutive; those of the root are
    # its copy.
    first_message = np.zeros((trees, ranks), np.int64)
    begins = np.flatnonzero(first == 0)
    first_message[tree[begins], receiver[begins]] = begins
    received_size = np.where(sender == root, size, grains[tree, sender])
    needed = -(-size // received_size)
    source = np.where(sender == root, 0, 1 + first_message[tree, sender] + first // received_size)
    before = position[expanded_ranges(source, needed)]
    after = np.repeat(position[1 + messages :], needed)
    return StepTable.from_columns(
        ranks, {name: column[order] for name, column in columns.items()}, (before, after)
    )
