"""Broadcasts and reduces on several trees at once, each with a part of the data, chunk by chunk.

On a torus or mesh, trees use no link twice (`torus_trees`): the root sends a different part over
every link. On other networks, the two binary trees of NCCL (Sanders, Speck, Traeff, Parallel
Computing 35, 2009), in which every rank forwards only one half of the data; on many servers with
links of their own, such trees for each card of a server. A reduce uses the trees of a broadcast in
the opposite direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from collhub_classic.torus_trees import compute_depths, compute_heights
from hub_core.columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    expanded_ranges,
    inverse,
    run_mask,
)
from hub_core.model import Buffer, StepKind, StepTable
from hub_core.schedules import find_second_tree_parents, find_tree_parents

# Chunks of a message within a group: larger messages delay the last data more than they save.
_MAX_GROUP_GRAIN = 32
# Sizes of messages that are tried for each of several edge-disjoint trees.
_TRIED_SCALES = 160
# Chunks by which a broadcast's root sends ahead within its group, in addition to the latency.
_AHEAD_IN_GROUP = 4


@dataclass(frozen=True, eq=False)
class RootedTrees:
    """Trees of a broadcast or reduce, and the structure of the network that they follow.

    `parents`: int64[trees, ranks], -1 at the root. `is_disjoint`: whether no two trees use the same
    link, as `find_grid_trees`. `group_size`: ranks per group for `find_group_trees`, otherwise 1.
    `turns`: order of the children of a rank in each tree, int64[trees, ranks], see
    `build_broadcast_steps`.
    """

    parents: Int64Array
    is_disjoint: bool = False
    group_size: int = 1
    turns: Int64Array | None = None

    @cached_property
    def depth(self) -> int:
        """Return the largest number of messages from the root to a rank, over all trees.

        It is 0 without trees or with one rank. Every tree must lead to the root, whose parent is
        negative.
        """
        return max((int(compute_depths(parent).max()) for parent in self.parents), default=0)


def find_binary_trees(num_ranks: int, root: int) -> Int64Array:
    """Return the parent of every rank in NCCL's two binary trees: int64[2, ranks], -1 at `root`.

    They are the trees of `find_tree_parents` and `find_second_tree_parents`. In each of
    them `root` and the rank that NCCL has as the root swap their positions. A rank that has
    children in one tree is a leaf of the other, except the root and the ranks that swapped
    with it.
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


def move_root(parents: Int64Array, sizes: Sequence[int], root: int) -> Int64Array:
    """Renumber the ranks of trees with root 0, so that `root` is their root; return new trees.

    `parents`: int64[trees, ranks], the parent of every rank in every tree, -1 at the root. The
    result has the same shape. `sizes`: ranks per group of each level, the innermost level first;
    their product must be the number of ranks.

    A rank has one coordinate per level; that of the first level varies fastest. The new number of
    a rank has in every level the sum of the coordinates of the old rank and of `root`, modulo the
    size. So ranks of one group remain in one group. The distance between two groups (the
    difference of coordinates, modulo the size) remains equal, too: switches with routes by
    distance are used as evenly as for root 0.
    """
    rank = np.arange(parents.shape[1])
    moved, stride = np.zeros_like(rank), 1
    for size in sizes:
        moved += (rank // stride + root // stride) % size * stride
        stride *= size
    result = np.full_like(parents, -1)
    result[:, moved] = np.where(parents < 0, -1, moved[parents])
    return result


def find_turns(parents: Int64Array) -> Int64Array:
    """Return for each rank in two trees whether its parent sends to it first (0) or second (1).

    `parents`: int64[2, ranks], -1 at the root, which both trees share. The result has this shape.
    It is 0 at the root; an only child can have 1. With this order and equal times of messages, no
    message waits for another one at its sender or receiver.

    The edges of both trees are coloured 0 and 1 (Sanders, Speck, Traeff 2009):

    - The two edges to a rank, one per tree, have different colours. So do the two edges from a rank
      to its children. More than two are paired in order of tree, then child.
    - Chains of such pairs are coloured from their ends, then cycles. The edge with the smallest
      (sender, tree, child) that has no colour gets 0.

    A child of the root gets the colour of its edge. Any other rank gets 0 if its edge has the
    colour of the edge to its parent in the same tree, else 1.
    """
    trees, ranks = parents.shape
    tree, child = np.nonzero(parents >= 0)
    # Edge e ends at rank e % ranks in tree e // ranks; its partner at the sender, or none.
    edges = (tree * ranks + child)[np.lexsort((child, tree, parents[tree, child]))]
    sender = parents.ravel()[edges]
    place = counted_positions(np.bincount(sender, minlength=ranks))
    is_pair = (place[1:] % 2 == 1) & (sender[1:] == sender[:-1])
    partner = np.full(trees * ranks, -1)
    partner[edges[:-1][is_pair]] = edges[1:][is_pair]
    partner[edges[1:][is_pair]] = edges[:-1][is_pair]
    colour = np.full(trees * ranks, -1)
    # Paths begin at an edge without a partner; what remains are cycles.
    for start in [*edges[partner[edges] < 0].tolist(), *edges.tolist()]:
        edge, next_colour = start, 0
        while edge >= 0 and colour[edge] < 0:
            other = (edge + ranks) % (trees * ranks)
            colour[edge], colour[other] = next_colour, 1 - next_colour
            edge = int(partner[other])
    colour = colour.reshape(parents.shape)
    own = colour[np.arange(trees)[:, None], np.maximum(parents, 0)]
    # The root sends to one child in each tree: that of colour 0 first.
    is_of_root = parents == int(np.flatnonzero(parents[0] < 0)[0])
    turns = np.where(is_of_root, colour, colour != own).astype(np.int64)
    return np.where(parents < 0, 0, turns)


def find_group_trees(size: int, num_ranks: int, root: int) -> Int64Array:
    """Return parents in broadcast trees over groups of ranks: int64[2 * size, num_ranks].

    A group is `size` consecutive ranks, such as the NPUs of a server; member k is its rank with
    rank % size = k. `num_ranks` must be a multiple of `size` (not checked). Member m has the trees
    2 m and 2 m + 1, which connect groups like the first and second tree of `find_binary_trees`,
    rooted at the group of `root`. The first rule gives the parent of a rank in both trees:

    1. `root`: -1.
    2. Member m of the group of `root`: `root`. Member m of another group: member m of the parent
       group.
    3. Member k of the group of `root`, if `root` is member m: member (k - 1) % size (a chain).
    4. Any other rank: member m of its group.

    Example: size 2, 8 ranks and root 2 give the tree 0 (4, 0, -1, 2, 2, 4, 4, 6).
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


def find_group_turns(size: int, num_ranks: int, root: int) -> Int64Array:
    """Return for each tree and rank whether its parent sends to it first (0) or second (1).

    The result is int64[2 * size, num_ranks], for the trees of `find_group_trees` with the same
    arguments. In the trees 2 m and 2 m + 1, the ranks with rank % size = m get the data of other
    groups. They have the values that `find_turns` gives their groups in the two trees over groups.
    All other ranks have 0.
    """
    group, member = np.divmod(np.arange(num_ranks), size)
    turns = find_turns(find_binary_trees(num_ranks // size, root // size))[:, group]
    sender = np.repeat(np.arange(size), 2)[:, None]
    return np.where(member == sender, np.tile(turns, (size, 1)), 0)


def choose_group_messages(
    size: int, num_ranks: int, depth: int, max_chunks: int, max_messages: int
) -> tuple[int, int]:
    """Choose the chunks per tree and per message within a group, for trees over groups of ranks.

    Returns (c, g): chunks per tree, and chunks per message within a group. Messages between
    groups have one chunk. `size`: ranks per group. `depth`: messages on the longest path of a
    tree.

    For each g from 1 to 32, c is max_messages / (2 * `size` * m), rounded down, then limited
    to 1 to `max_chunks`. Here m = groups + (ranks - groups) / g is the number of messages per
    chunk and tree. The pair with the smallest (1.5 (depth + g) + c) / c is chosen; of equal
    ones the one with the smallest g. This is about the time relative to the time of the data
    without delays.
    """
    groups = num_ranks // size
    inside = num_ranks - groups
    best = float("inf"), 1, 1
    for grain in range(1, _MAX_GROUP_GRAIN + 1):
        chunks = int(max_messages / (2 * size) / (groups + inside / grain))
        chunks = max(1, min(chunks, max_chunks))
        best = min(best, ((1.5 * (depth + grain) + chunks) / chunks, grain, chunks))
    return best[2], best[1]


def build_group_grains(size: int, num_ranks: int, grain: int) -> Int64Array:
    """Return the chunks of a message to each rank of `find_group_trees`: int64[2 * size, ranks].

    Rank r is member r % size of its group. In the trees 2 m and 2 m + 1, member m of every group
    has the entry 1, all other ranks have `grain`. For example, with size 3 the row of trees 2 and 3
    is `grain, 1, grain` in each group. `num_ranks` must be a multiple of `size` (not checked).

    Member m receives the data of these trees from another group; in the group of the root, it is
    the root or receives them from the root. The root receives no messages, so its entries have no
    meaning.
    """
    # Trees 2 m and 2 m + 1 use the links of rank m of every group.
    sender = np.repeat(np.arange(size), 2)[:, None]
    return np.where(np.arange(num_ranks) % size == sender, 1, grain)


def choose_grains(
    parents: Int64Array, chunks: int, latency_chunks: float, max_messages: int
) -> Int64Array | None:
    """Choose the number of chunks per message to each rank, for several trees over all ranks.

    `parents`: int64[trees, ranks], -1 at the root. `chunks`: per tree. `latency_chunks`: latency of
    a message, in times of a chunk. Returns int64[trees, ranks] with 1 to `chunks`; 1 at the root,
    without meaning. Returns None if at most `max_messages` messages are not possible.

    The height of a rank is its largest distance to a leaf below it. Ranks of equal height in a
    tree have the same number. A tree can have each list of numbers of `_list_sizes`. The delay
    of a list is the sum, over the heights below the root, of number plus `latency_chunks`.

    The delays of all lists are tried as limits in ascending order. Each tree takes the list with
    the fewest messages among those within the limit, of equal ones the first. The first limit is
    used at which every tree has a list, and all messages together are at most `max_messages`.
    """
    heights = [compute_heights(parent) for parent in parents]
    # The root, the highest rank, receives no message.
    populations = [np.bincount(height)[:-1] for height in heights]
    choices = []
    for population in populations:
        sizes = _list_sizes(population, chunks)
        messages = [int((population * -(-chunks // grains)).sum()) for grains in sizes]
        delays = [int(grains.sum()) + latency_chunks * len(grains) for grains in sizes]
        # By ascending delay, with fewer and fewer messages.
        choices.append(sorted(zip(delays, messages, range(len(sizes)), sizes, strict=True)))
    for limit in sorted({choice[0] for tree in choices for choice in tree}):
        within = [[choice for choice in tree if choice[0] <= limit] for tree in choices]
        if all(within):
            best = [min(tree, key=lambda choice: choice[1:3]) for tree in within]
            if sum(choice[1] for choice in best) <= max_messages:
                grains = [
                    np.append(choice[3], 1)[height]
                    for choice, height in zip(best, heights, strict=True)
                ]
                return np.asarray(grains)
    return None


def _list_sizes(population: Int64Array, chunks: int) -> list[Int64Array]:
    """List possible sizes of messages by height of their receiver in a tree, in chunks.

    The result has 160 arrays int64[heights]. Entry h is the size of a message to a rank of height
    h; leaves have height 0. `population` is the number of ranks of each height below the root's,
    each at least 1. Each array belongs to a scale s. The scales grow geometrically from 1 to a
    scale at which all entries are `chunks`. Arrays may be equal.

    The entries are computed from the greatest height down, from s * sqrt(population[h] /
    population[0]). This number is rounded down to a multiple of the entry for height h + 1, but is
    at least that entry. For the greatest height it is rounded down to an integer, but is at least
    1. At the end, entries above `chunks` become `chunks`.
    """
    weights = np.sqrt(population / population[0])
    # At the last scale, all messages have all chunks.
    scales = np.geomspace(1, 2 * chunks / weights.min(), _TRIED_SCALES)
    sizes = []
    for scale in scales.tolist():
        grains = [1]
        for ideal in (scale * weights[::-1]).tolist():
            grains.append(grains[-1] * max(1, int(ideal / grains[-1])))
        sizes.append(np.minimum(grains[:0:-1], chunks))
    return sizes


@dataclass(frozen=True, eq=False)
class _TreeMessages:
    """Messages on the edges of trees, edge by edge in the order of (tree, child), then by chunk.

    All arrays are int64[messages], except `first_of`: the first message of an edge, int64[trees,
    ranks] by its child. `first`: first chunk, `size`: number of chunks, `offset`: first unit.
    """

    tree: Int64Array
    child: Int64Array
    parent: Int64Array
    first: Int64Array
    size: Int64Array
    offset: Int64Array
    first_of: Int64Array

    @classmethod
    def cut(cls, parents: Int64Array, chunks: int, grains: Int64Array) -> _TreeMessages:
        """Cut the data of each tree into messages, and return them.

        Each edge of a tree, from a parent to a child, carries all `chunks` chunks of the
        tree, in messages of `grains[tree, child]` chunks. Its last message has the
        remaining chunks, which may be fewer. The messages are in the order of tree, then
        child, then chunk.

        `parents`: int64[trees, ranks], the parent of each child, -1 at the root. The
        root's entry in `grains` is not used; the other entries must be at least 1 (not
        checked).
        """
        tree, child = np.nonzero(parents >= 0)
        count = -(-chunks // grains[tree, child])
        first_of = np.zeros_like(parents)
        first_of[tree, child] = np.cumsum(count) - count
        edge = np.repeat(np.arange(len(tree)), count)
        tree, child = tree[edge], child[edge]
        first = counted_positions(count) * grains[tree, child]
        size = np.minimum(grains[tree, child], chunks - first)
        offset = tree * chunks + first
        return cls(tree, child, parents[tree, child], first, size, offset, first_of)

    def find_windows(
        self, is_first: BoolArray, grains: Int64Array, latency_chunks: float
    ) -> tuple[Int64Array, Int64Array]:
        """Return pairs (message, later message of the same edge that must wait for its arrival).

        The pairs limit the messages of an edge that are on the way at the same time: messages that
        are ready together would start in any order. Let f be `latency_chunks` (latency of a
        message, in times of a chunk) divided by the chunks of a message to the child, `grains[tree,
        child]`, rounded up. Message n of an edge, counted from 0, waits for message n - 1 - f;
        the first f + 1 messages do not wait.

        `is_first`: bool[messages], the later messages that get a pair, such as messages of the
        root. Both results are int64[pairs] of message numbers; the later ones ascend.
        """
        number = np.arange(len(self.tree)) - self.first_of[self.tree, self.child]
        fitting = np.ceil(latency_chunks / grains[self.tree, self.child]).astype(np.int64)
        later = np.flatnonzero(is_first & (number > fitting))
        return later - 1 - fitting[later], later

    def find_clock(
        self, is_outside: BoolArray, is_inside: BoolArray, lead: int
    ) -> tuple[Int64Array, Int64Array]:
        """Return pairs (message of the root to another group, later message in the root's group).

        The later message waits for the arrival of the first one, so that messages inside the group
        do not overtake those to other groups. `is_outside`: bool[messages], the messages of the
        root to other groups, which must have one chunk each. `is_inside`: bool[messages], those of
        the root inside its group.

        Trees with even and with odd numbers are treated separately. For each parity, the clock is
        the edge (parent to child) of the first message in `is_outside`. A message in `is_inside`
        with last chunk c waits for the message of chunk c - `lead` on the clock. It gets no pair if
        c < `lead`, or if the parity has no message in `is_outside`. Both results are int64[pairs]
        of message numbers: pairs of even trees first, then by ascending later message.
        """
        earlier, later = [], []
        for parity in range(2):
            outside = np.flatnonzero(is_outside & (self.tree % 2 == parity))
            if not outside.size:
                continue
            first = outside[0]
            inside = np.flatnonzero(is_inside & (self.tree % 2 == parity))
            chunk = (self.first + self.size)[inside] - 1 - lead
            earlier.append(first + chunk[chunk >= 0])
            later.append(inside[chunk >= 0])
        empty = np.zeros(0, np.int64)
        return np.concatenate([empty, *earlier]), np.concatenate([empty, *later])


def build_broadcast_steps(
    parents: Int64Array,
    chunks: int,
    grains: Int64Array | None = None,
    latency_chunks: float = 0.0,
    turns: Int64Array | None = None,
    group_size: int = 1,
) -> StepTable:
    """Build the steps of a broadcast of `chunks` chunks on each tree.

    `parents`: int64[trees, ranks], -1 at the common root. Unit t * chunks + c is chunk c of tree t.
    `grains[tree, rank]`: units of a message to a rank, a multiple of those to its parent (not
    checked), 1 for None; the last message may have fewer.

    - The root copies INPUT to OUTPUT in one step. Sends read OUTPUT, receives write it, on channel
      0.
    - Data dependencies: a send waits for the receives of its units, at the root for the copy.
    - Control dependencies, only with `grains`: message n of a link of the root waits for message n
      - 1 - f, f = `latency_chunks` / grain rounded up. With `group_size` above 1
      (`find_group_trees`) only messages to other groups do; those in the root's group wait for such
      a message (`find_clock`).
    - Order: by rank; the copy first. Then by last chunk of the message, tree, receives before
      sends, `turns` of the receiver (int64[trees, ranks], None: all equal), receiver.
    """
    trees, ranks = parents.shape
    has_windows = grains is not None
    if grains is None:
        grains = np.ones_like(parents)
    root = int(np.flatnonzero(parents[0] < 0)[0])
    # Per message a row that receives, and a row that sends after the receives of the sender.
    each = _TreeMessages.cut(parents, chunks, grains)
    messages = len(each.tree)
    end = each.first + each.size
    rank = np.concatenate([[root], each.child, each.parent])
    turn = np.zeros(messages, np.int64) if turns is None else turns[each.tree, each.child]
    order = np.lexsort(
        (
            np.concatenate([[-1], each.child, each.child]),
            np.concatenate([[-1], turn, turn]),
            np.repeat([0, 0, 1], [1, messages, messages]),
            np.concatenate([[-1], each.tree, each.tree]),
            np.concatenate([[-1], end, end]),
            rank,
        )
    )
    kind = np.repeat([StepKind.COPY, StepKind.RECV, StepKind.SEND], [1, messages, messages])
    offsets = np.concatenate([[0], each.offset, each.offset])
    columns = {
        "rank": rank,
        "kind": kind,
        "peer": np.concatenate([[-1], each.parent, each.child]),
        "count": np.concatenate([[trees * chunks], each.size, each.size]),
        "src_buffer": np.repeat(
            [Buffer.INPUT, Buffer.UNKNOWN, Buffer.OUTPUT], [1, messages, messages]
        ),
        "src_offset": np.where(kind == StepKind.SEND, offsets, 0),
        "dst_buffer": np.repeat(
            [Buffer.OUTPUT, Buffer.OUTPUT, Buffer.UNKNOWN], [1, messages, messages]
        ),
        "dst_offset": np.where(kind == StepKind.RECV, offsets, 0),
    }
    position = inverse(order)
    # The receives of the sender in the range of a message are consecutive; those of the root are
    # its copy.
    is_of_root = each.parent == root
    received_size = np.where(is_of_root, each.size, grains[each.tree, each.parent])
    needed = -(-each.size // received_size)
    received = 1 + each.first_of[each.tree, each.parent] + each.first // received_size
    before = position[expanded_ranges(np.where(is_of_root, 0, received), needed)]
    after = np.repeat(position[1 + messages :], needed)
    is_outside = is_of_root & (each.child // group_size != root // group_size)
    is_inside = is_of_root & ~is_outside
    earlier, later = each.find_windows(is_outside & has_windows, grains, latency_chunks)
    if group_size > 1 and has_windows:
        lead = _AHEAD_IN_GROUP + ceil(latency_chunks)
        clock, clocked = each.find_clock(is_outside, is_inside, lead)
        earlier, later = np.concatenate([earlier, clock]), np.concatenate([later, clocked])
    return StepTable.from_columns(
        ranks,
        {name: column[order] for name, column in columns.items()},
        (before, after),
        (position[1 + messages + earlier], position[1 + messages + later]),
    )


def build_reduce_steps(
    parents: Int64Array,
    chunks: int,
    grains: Int64Array | None = None,
    latency_chunks: float = 0.0,
    *,
    chunks_per_level: int = 0,
) -> StepTable:
    """Build the steps of a reduce on several trees, each with `chunks` chunks of one unit.

    The messages are those of `build_broadcast_steps` in the opposite direction. Each message to a
    parent has `grains` units (None: 1). `grains` of siblings must be multiples of each other; this
    is not checked.

    - A leaf sends its INPUT.
    - Any other rank adds the messages of its children, those with larger `grains` first, ties by
      rank. The first message is added to INPUT, each further one to the partial sum. The partial
      sum is in SCRATCH, at the root in OUTPUT.
    - A rank sends the partial sum to its parent after the message of its last child is added.

    `latency_chunks` and `chunks_per_level` only add dependencies that delay sends. Steps are sorted
    by rank, first chunk, tree, receives before sends, then children. With a single rank there are
    no steps, so OUTPUT is not written.
    """
    ranks = parents.shape[1]
    if grains is None:
        grains = np.ones_like(parents)
    root = int(np.flatnonzero(parents[0] < 0)[0])
    each = _TreeMessages.cut(parents, chunks, grains)
    messages = len(each.tree)
    # The child whose message is added before that of a child, and the last one of every rank; -1
    # without one.
    tree, child = np.nonzero(parents >= 0)
    order = np.lexsort((child, -grains[tree, child], parents[tree, child], tree))
    tree, child, parent = tree[order], child[order], parents[tree, child][order]
    is_first = run_mask(tree, parent)
    before_child = np.full_like(parents, -1)
    before_child[tree, child] = np.where(is_first, -1, np.roll(child, 1))
    number_of = np.zeros_like(parents)
    number_of[tree, child] = np.arange(len(tree))
    last_child = np.full_like(parents, -1)
    is_last = np.roll(is_first, -1)
    last_child[tree[is_last], parent[is_last]] = child[is_last]
    # Per message a row that sends, and a row that adds.
    previous = np.concatenate(
        [last_child[each.tree, each.child], before_child[each.tree, each.child]]
    )
    rank = np.concatenate([each.child, each.parent])
    is_sum = np.repeat([False, True], messages)
    both = np.tile(each.tree, 2)
    number = np.tile(number_of[each.tree, each.child], 2)
    order = np.lexsort((number, ~is_sum, both, np.tile(each.first, 2), rank))
    offsets = np.tile(each.offset, 2)
    partial = np.where(rank == root, Buffer.OUTPUT, Buffer.SCRATCH)
    columns = {
        "rank": rank,
        "kind": np.where(is_sum, StepKind.RECV_REDUCE, StepKind.SEND),
        "peer": np.concatenate([each.parent, each.child]),
        "count": np.tile(each.size, 2),
        "src_buffer": np.where(previous < 0, Buffer.INPUT, partial),
        "src_offset": offsets,
        "dst_buffer": np.where(is_sum, partial, Buffer.UNKNOWN),
        "dst_offset": np.where(is_sum, offsets, 0),
    }
    position = inverse(order)
    after = np.flatnonzero(previous >= 0)
    source = previous[after]
    of_child = each.first_of[both[after], source]
    before = messages + of_child + np.tile(each.first, 2)[after] // grains[both[after], source]
    earlier, later = each.find_windows(previous[:messages] < 0, grains, latency_chunks)
    if chunks_per_level:
        per_level = chunks_per_level + latency_chunks / 2
        paces, paced = _find_paces(each, parents, grains, last_child, per_level)
        earlier, later = np.concatenate([earlier, messages + paces]), np.concatenate([later, paced])
    return StepTable.from_columns(
        ranks,
        {name: column[order] for name, column in columns.items()},
        (position[before], position[after]),
        (position[earlier], position[later]),
    )


def _find_paces(
    messages: _TreeMessages,
    parents: Int64Array,
    grains: Int64Array,
    last_child: Int64Array,
    per_level: float,
) -> tuple[Int64Array, Int64Array]:
    """Return pairs (awaited message, waiting message) of a reduce on pairs of trees.

    Both are int64 arrays of message numbers; waiting messages ascend. A waiting message leaves rank
    r in tree t; "other" is the second tree of the pair. It waits until r has added a message in the
    other tree. So a rank that has its data at once in tree t does not delay partial sums of the
    other tree, on which the end depends. All of these must hold:

    - The messages of r in tree t have one chunk (`grains`: int64[trees, ranks], their chunks).
    - The height of r (links to the deepest rank below it) is lower in tree t than in the other.
    - r has a child in the other tree (`last_child`: int64[trees, ranks], added last, or -1).

    With chunk c in the waiting message, the awaited message from this child has chunk c - lead, or
    the last chunk if that is lower. With c < lead there is no pair. The lead is `per_level` *
    (depth of r in tree t - its depth in the other tree), rounded up, plus 1; it may be negative.
    `parents`: int64[trees, ranks], -1 at the root.
    """
    depths = np.asarray([compute_depths(parent) for parent in parents])
    heights = np.asarray([compute_heights(parent) for parent in parents])
    tree, child = messages.tree, messages.child
    other = tree ^ 1
    lead = np.ceil(per_level * (depths[tree, child] - depths[other, child])).astype(np.int64) + 1
    last_chunk = (messages.first + messages.size).max(initial=0) - 1
    chunk = np.minimum(messages.first - lead, last_chunk)
    last = last_child[other, child]
    is_lower = heights[tree, child] < heights[other, child]
    paced = np.flatnonzero(is_lower & (grains[tree, child] == 1) & (last >= 0) & (chunk >= 0))
    other, last = other[paced], last[paced]
    return messages.first_of[other, last] + chunk[paced] // grains[other, last], paced
