"""Algorithms by shape of the exchange: rings, direct exchanges, axes of a grid, and trees.

In rings, chains and neighbour exchange every rank exchanges messages with its neighbours only.
Reduce-scatter and all-gather rings as in Patarasuk and Yuan, JPDC 2009; a broadcast is a chain that
sends chunks one after another; neighbour exchange is an all-gather of pairs of blocks (Chen et al.,
2005).

In direct exchanges every rank sends to every other rank itself, to all at the same time or one
after another.

An all-gather along the axes of a grid of ranks uses one axis after another. Rings along the axes
give the algorithms of tori; exchanges of all pairs within a node and rings between nodes give the
hierarchical ones. Reversed, they are reduce-scatters.

Trees are binomial or k-nomial from rank 0, or NCCL's double binary tree (Sanders, Speck and Traff;
shape of NCCL's `ncclGetDtree`): hardly any rank has children in both trees; half of the data is
sent up and down either tree, in chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from collhub_classic.message_plan import (
    AlphaBetaCost,
    MessagePlan,
    PlanBuilder,
    combine_in_parallel,
    sum_rounds,
)
from hub_core.columns import Int64Array
from hub_core.schedules import NO_RANK, find_second_tree_parents, find_tree_parents

AxisPlan = Callable[[int], MessagePlan]


AxisCost = Callable[[int], AlphaBetaCost]


def plan_ring_all_gather(num_ranks: int, stride: int = 1) -> MessagePlan:
    """Plan a ring all-gather among n ranks in n - 1 rounds, one block per rank.

    In round k = 0, 1, ... rank r sends block r - k * stride to rank r + stride, both modulo n.
    Block b is the data of rank b. Reversed, it is a reduce-scatter in which rank r sends to rank r
    - stride. `stride` must have no common divisor with n; this is not checked.
    """
    builder = PlanBuilder(num_ranks, num_ranks)
    rank = np.arange(num_ranks)
    for k in range(num_ranks - 1):
        builder.next_round()
        builder.send(rank, (rank + stride) % num_ranks, rank - k * stride)
    return builder.build()


def compute_ring_cost(num_ranks: int) -> AlphaBetaCost:
    """Return the cost (n - 1) alpha + m beta (n - 1) / n of a ring reduce-scatter or all-gather.

    n: `num_ranks`; alpha: latency; beta: time per byte; m: bytes of the full buffer.
    """
    return AlphaBetaCost(num_ranks - 1, Fraction(num_ranks - 1, num_ranks))


def plan_chain_broadcast(num_ranks: int, chunks: int) -> MessagePlan:
    """Plan a broadcast of `chunks` blocks from rank 0 along the chain of ranks 0, 1, ..., n - 1.

    There are n - 2 + `chunks` rounds, from k = 0 on. In round k, rank r sends chunk k - r to rank r
    + 1, if this chunk and rank exist. Messages of a round are in the order of r. For one rank, the
    plan has no messages.
    """
    builder = PlanBuilder(num_ranks, chunks)
    for k in range(num_ranks - 2 + chunks):
        rank = np.arange(max(0, k - chunks + 1), min(k, num_ranks - 2) + 1)
        builder.next_round()
        builder.send(rank, rank + 1, k - rank)
    return builder.build()


def compute_chain_cost(num_ranks: int, chunks: int) -> AlphaBetaCost:
    """Return the cost (n - 2 + c) (alpha + m beta / c) of a chain broadcast with c chunks.

    n: number of ranks; m: bytes of the vector; alpha: latency; beta: time per byte. For
    one rank it is (c - 1) (alpha + m beta / c), although no message is sent.
    """
    rounds = num_ranks - 2 + chunks
    return AlphaBetaCost(rounds, Fraction(rounds, chunks))


def plan_neighbour_all_gather(num_ranks: int) -> MessagePlan:
    """Plan an all-gather by neighbour exchange among an even number n of ranks (not checked).

    The rounds are 0 to n / 2 - 1; in each, every rank sends one message, in the order of ranks.

    - Round 0: rank r exchanges its block r with its partner r ^ 1.
    - Odd rounds: r exchanges with its other neighbour on the ring 0..n - 1: an even r with r - 1,
      an odd r with r + 1, both modulo n.
    - Even rounds from 2 on: r exchanges with r ^ 1 again.

    From round 1 on, a message has the two blocks of a pair 2 p, 2 p + 1. In round 1 this is the
    pair of r and r ^ 1, later the pair that r received in the round before.
    """
    builder = PlanBuilder(num_ranks, num_ranks)
    rank = np.arange(num_ranks)
    builder.next_round()
    builder.send(rank, rank ^ 1, rank)
    pair = rank // 2
    # In odd rounds even ranks exchange with the previous rank, odd ranks with the next one.
    outward = (rank + np.where(rank % 2 == 0, -1, 1)) % num_ranks
    for k in range(1, num_ranks // 2):
        partner = outward if k % 2 else rank ^ 1
        builder.next_round()
        builder.send(rank, partner, np.stack([2 * pair, 2 * pair + 1], axis=1))
        # The pair received from the partner is sent next.
        pair = pair[partner]
    return builder.build()


def compute_neighbour_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost alpha n / 2 + m beta (n - 1) / n of neighbour exchange."""
    return AlphaBetaCost(num_ranks // 2, Fraction(num_ranks - 1, num_ranks))


def plan_direct_all_gather(num_ranks: int) -> MessagePlan:
    """Plan an all-gather in one round: every rank sends its block to all other ranks.

    Block r is that of rank r. Messages are in the order of `_list_pairs`; with one rank there are
    none.
    """
    source, destination = _list_pairs(num_ranks)
    builder = PlanBuilder(num_ranks, num_ranks)
    builder.next_round()
    builder.send(source, destination, source)
    return builder.build()


def plan_direct_all_to_all(num_ranks: int) -> MessagePlan:
    """Plan an all-to-all in one round: every rank sends each other rank its block.

    For n ranks, the block from source s to destination d has the number s * n + d. Ranks
    keep their own block without a message. Messages are sorted by source. The destinations
    of rank r are r + 1, r + 2, ... modulo n, in this order. With one rank there are no
    messages.
    """
    source, destination = _list_pairs(num_ranks)
    builder = PlanBuilder(num_ranks, num_ranks * num_ranks)
    # If ranks share links, the network orders the messages itself.
    builder.next_round()
    builder.send(source, destination, source * num_ranks + destination)
    return builder.build()


def plan_direct_broadcast(num_ranks: int) -> MessagePlan:
    """Plan a broadcast in one round: rank 0 sends the vector, a single block, to all other
    ranks.

    Messages are in the order of the receivers. For one rank, the plan has no messages.
    """
    receivers = np.arange(1, num_ranks)
    builder = PlanBuilder(num_ranks, 1)
    builder.next_round()
    builder.send(np.zeros_like(receivers), receivers, np.zeros_like(receivers))
    return builder.build()


def plan_direct_scatter(num_ranks: int) -> MessagePlan:
    """Plan a scatter in one round: rank 0 sends block r to rank r, for every other rank r.

    Rank 0 keeps block 0. Messages are in the order of the receivers. For one rank, the
    plan has no messages.
    """
    receivers = np.arange(1, num_ranks)
    builder = PlanBuilder(num_ranks, num_ranks)
    builder.next_round()
    builder.send(np.zeros_like(receivers), receivers, receivers)
    return builder.build()


def plan_pairwise_all_to_all(num_ranks: int) -> MessagePlan:
    """Plan an all-to-all among n ranks in n - 1 rounds, with one message from every rank in each.

    In round k = 1, 2, ... rank r sends to rank t = (r + k) mod n. The block from rank r to
    rank t has the number r * n + t. A rank sends no message for its own block, and one rank
    gives no rounds.
    """
    rank = np.arange(num_ranks)
    builder = PlanBuilder(num_ranks, num_ranks * num_ranks)
    for k in range(1, num_ranks):
        target = (rank + k) % num_ranks
        builder.next_round()
        builder.send(rank, target, rank * num_ranks + target)
    return builder.build()


def compute_direct_share_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost alpha + m beta (n - 1) / n: a share to, or from, every other rank."""
    return AlphaBetaCost(1, Fraction(num_ranks - 1, num_ranks))


def compute_direct_vector_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost alpha + (n - 1) m beta: the full vector to every other rank."""
    return AlphaBetaCost(1, Fraction(num_ranks - 1))


def compute_direct_reduce_cost() -> AlphaBetaCost:
    """Return the cost alpha + m beta of a direct reduce, for any number of ranks.

    All ranks send at once, each through its own port.
    """
    return AlphaBetaCost(1, Fraction(1))


def compute_direct_gather_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost alpha + m beta / n: all ranks send their share at once."""
    return AlphaBetaCost(1, Fraction(1, num_ranks))


def compute_pairwise_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost (n - 1) alpha + m beta (n - 1) / n of the pairwise all-to-all."""
    return AlphaBetaCost(num_ranks - 1, Fraction(num_ranks - 1, num_ranks))


def plan_grid_all_gather(
    sizes: Sequence[int], axes: Sequence[int], plan_of: Sequence[AxisPlan]
) -> MessagePlan:
    """Plan an all-gather on a grid of ranks: gather along each of `axes`, one after another.

    `plan_of[axis]` takes the size of the axis and plans the all-gather among the ranks of one line,
    which differ in this coordinate only. Instead of one block of that plan, a rank sends all blocks
    that it gathered along the previous axes. `axes` must contain each axis of more than one rank
    once; this is not checked. Rank number: c0 + s0 * (c1 + s1 * (c2 ...)) with coordinates c and
    `sizes` s.
    """
    ranks = int(np.prod(sizes))
    coordinate = np.stack(np.unravel_index(np.arange(ranks), tuple(sizes), order="F"))
    gathered = PlanBuilder(ranks, ranks).build()
    # The blocks of each rank so far: those of its lines along the previous axes.
    gathered_blocks = np.arange(ranks)[:, None]
    for axis in axes:
        line = plan_of[axis](sizes[axis])
        gathered = gathered.then(_plan_along_axis(line, axis, sizes, coordinate, gathered_blocks))
        gathered_blocks = gathered_blocks[_find_lines(axis, sizes, coordinate)].reshape(ranks, -1)
    return gathered


def compute_grid_cost(
    sizes: Sequence[int], axes: Sequence[int], cost_of: Sequence[AxisCost]
) -> AlphaBetaCost:
    """Return the sum of the costs of a grid all-gather along `axes`, in the order of gathering.

    `cost_of[axis]` takes the size of the axis, and gives the cost for all data. Of it, the
    part per byte is divided by the sizes of all later axes in `axes`, because only the last
    axis carries all data. Without axes the cost is 0.
    """
    total = AlphaBetaCost(0, Fraction(0))
    fraction = Fraction(1)
    # Backwards: the last axis carries all data.
    for axis in reversed(axes):
        cost = cost_of[axis](sizes[axis])
        total += AlphaBetaCost(cost.alphas, cost.betas * fraction)
        fraction /= sizes[axis]
    return total


def plan_knomial_broadcast(num_ranks: int, radix: int) -> MessagePlan:
    """Plan a broadcast from rank 0 on a k-nomial tree, with k = `radix` (at least 2).

    The vector is one block. With i ranks informed before a round, ranks 0 to i - 1, each
    rank r of them sends it to the ranks r + i, r + 2 i, ..., r + (k - 1) i, as far as these
    exist. So i is 1, k, k^2, ... below the number of ranks. One rank gives no rounds.
    """
    builder = PlanBuilder(num_ranks, 1)
    for informed in _list_informed_counts(num_ranks, radix):
        builder.next_round()
        for step in range(1, radix):
            rank = np.arange(min(informed, max(0, num_ranks - step * informed)))
            builder.send(rank, rank + step * informed, np.zeros_like(rank))
    return builder.build()


def compute_knomial_cost(num_ranks: int, radix: int) -> AlphaBetaCost:
    """Return the cost of a k-nomial broadcast from one root: R alpha + S m beta.

    `num_ranks`: number of ranks n; `radix`: k. R is the number of rounds, one per power of k (1, k,
    k^2, ...) below n; 0 for one rank. S is the number of messages that the root sends in all rounds
    together: min(k - 1, (n - 1) // p) in the round that begins with p ranks that have the data (p =
    1, k, k^2, ...). m is the size of the data, alpha the latency, beta the time per byte.
    """
    times = [
        min(radix - 1, (num_ranks - 1) // informed)
        for informed in _list_informed_counts(num_ranks, radix)
    ]
    return sum_rounds(*times)


def compute_knomial_reduce_cost(num_ranks: int, radix: int) -> AlphaBetaCost:
    """Return the cost of a k-nomial reduce: depth of the tree x (alpha + m beta).

    k is `radix` and m the bytes of the collective. The depth is the largest d for which 1 + k + ...
    + k^(d - 1) is below the number of ranks; 0 for one rank. Senders work at the same time, and a
    rank receives from several senders at once.
    """
    depth, first = 0, 0
    while first * radix + 1 < num_ranks:
        depth, first = depth + 1, first * radix + 1
    return sum_rounds(*[1] * depth)


def plan_binomial_scatter(num_ranks: int) -> MessagePlan:
    """Plan a scatter from rank 0 on a binomial tree, in ceil(log2 n) rounds for n ranks.

    Block r is the data for rank r. The distance d is halved in every round, from the largest power
    of two below n to 1. In a round, each rank r that is a multiple of 2 d sends the blocks r + d to
    r + 2 d - 1, as far as these ranks exist, to rank r + d.
    """
    builder = PlanBuilder(num_ranks, num_ranks)
    for bit in reversed(range((num_ranks - 1).bit_length())):
        distance = 1 << bit
        rank = np.arange(0, num_ranks - distance, 2 * distance)
        count = np.minimum(distance, num_ranks - rank - distance)
        builder.next_round()
        builder.send_ranges(rank, rank + distance, rank + distance, count)
    return builder.build()


def compute_binomial_scatter_cost(num_ranks: int) -> AlphaBetaCost:
    """Return the cost of a binomial scatter among n ranks: alpha ceil(log2 n) + m beta (n - 1) / n.

    alpha: latency of a message; m: bytes of the data of all ranks; beta: time per byte. For one
    rank it is 0.
    """
    rounds = (num_ranks - 1).bit_length()
    return AlphaBetaCost(rounds, Fraction(num_ranks - 1, num_ranks))


def compute_binomial_gather_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost of a binomial gather: alpha floor(log2 n), plus the shares on the slowest
    path.
    """
    return AlphaBetaCost(
        num_ranks.bit_length() - 1, Fraction(_count_shares_on_slowest_path(num_ranks), num_ranks)
    )


def _count_shares_on_slowest_path(num_ranks: int) -> int:
    """Return the blocks that are sent, one after another, on the slowest path of a binomial
    gather.

    A block is the data of one rank. Let c be the largest power of two below the number of
    ranks n. The result S(n) is the maximum of two numbers: c - 1 for the complete subtree
    of c ranks, and n - c + S(n - c) for the root's last child, whose subtree has the
    other n - c ranks. S(n) is 0 for fewer than two ranks.
    """
    if num_ranks < 2:
        return 0
    complete = 1 << ((num_ranks - 1).bit_length() - 1)
    remaining = num_ranks - complete
    return max(complete - 1, remaining + _count_shares_on_slowest_path(remaining))


def _list_informed_counts(num_ranks: int, radix: int) -> list[int]:
    """List the number of ranks that have the vector before each round: 1, k, k^2, ... below n.

    `radix` is k. The list is empty for one rank.
    """
    counts = []
    informed = 1
    while informed < num_ranks:
        counts.append(informed)
        informed *= radix
    return counts


def plan_double_tree_all_reduce(num_ranks: int, chunks: int) -> MessagePlan:
    """Plan an all-reduce on two trees that each carry half of the vector in `chunks` chunks.

    Each tree reduces to its root and then broadcasts; both trees work at the same time.
    """
    return combine_in_parallel(
        [
            _plan_reduce_and_broadcast(parent, chunks)
            for parent in (find_tree_parents(num_ranks), find_second_tree_parents(num_ranks))
        ]
    )


def compute_double_tree_cost(num_ranks: int, chunks: int) -> AlphaBetaCost:
    """Return the cost 2 D alpha + (2 D + c - 1) m beta / (2 c) of NCCL's double-tree all-reduce.

    D: depth of the deeper tree; c: chunks per tree; m: bytes. The cost is exact if the trees never
    send over the same link at the same time. For a single rank, D is 0 and the cost (c - 1) m beta
    / (2 c), although no message is sent.
    """
    parents = find_tree_parents(num_ranks), find_second_tree_parents(num_ranks)
    depth = max(int(_compute_depths(parent).max()) for parent in parents)
    return AlphaBetaCost(2 * depth, Fraction(2 * depth + chunks - 1, 2 * chunks))


def _plan_reduce_and_broadcast(parent: Int64Array, chunks: int) -> MessagePlan:
    """Plan a pipelined all-reduce on a tree: a reduce to its root, then a broadcast of the result.

    `parent`: int64[ranks], negative for the root. `chunks`: number of blocks of the vector, which
    are sent one after another. Let D be the depth of the tree, and d the depth of a rank (root 0).
    Rounds and chunks count from 0:

    - A rank of depth d > 0 sends chunk k to its parent in round k + D - d; the parent reduces it.
    - The parent sends the result of chunk k to this rank in round k + D + d - 1; it replaces the
      data.

    There are 2 D + chunks - 1 rounds; both directions overlap. A round has first the messages to
    parents, then those to children, each sorted by the child. A tree of one rank has no messages.
    """
    depth = _compute_depths(parent)
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


def _compute_depths(parent: Int64Array) -> Int64Array:
    """Return the number of links from the root to every rank; int64[ranks].

    `parent`: int64[ranks], the parent of every rank, negative for a root, whose depth is
    0. It must have no cycle, with which the function would not return.
    """
    depth = np.zeros(len(parent), np.int64)
    above = parent.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[np.maximum(above, 0)], NO_RANK)
    return depth


def _list_pairs(num_ranks: int) -> tuple[Int64Array, Int64Array]:
    """Return (sources, destinations) of all ordered pairs of different ranks, int64[n * (n -
    1)] each.

    Pairs are sorted by source. The destinations of rank r are r + 1, r + 2, ... modulo n,
    in this order, so that ranks start with different destinations. Both arrays are empty
    for one rank.
    """
    rank = np.repeat(np.arange(num_ranks), num_ranks - 1)
    step = np.tile(np.arange(1, num_ranks), num_ranks)
    return rank, (rank + step) % num_ranks


def _plan_along_axis(
    line: MessagePlan,
    axis: int,
    sizes: Sequence[int],
    coordinate: Int64Array,
    gathered_blocks: Int64Array,
) -> MessagePlan:
    """Plan the messages of one axis of a grid all-gather: the plan `line` on all lines at once.

    A line consists of the ranks that differ in the coordinate of `axis` only. `line`: plan of an
    all-gather among `sizes[axis]` ranks; its rank i and block i mean the rank with coordinate i.
    `coordinate`: int64[axes, ranks]. `gathered_blocks`: int64[ranks, width], the blocks that every
    rank has before.

    Each message of `line` becomes one message in every line, in the same round. In place of block
    i it has all `width` blocks of `gathered_blocks` of the line's rank with coordinate i. Messages
    are sorted by round, then by their order in `line`, then by the first rank of their line. The
    plan has as many blocks as ranks. `reduces` and channels of `line` are ignored. Arguments are
    not changed.
    """
    ranks, width = gathered_blocks.shape
    rank_at = _find_lines(axis, sizes, coordinate)
    first_ranks = np.flatnonzero(coordinate[axis] == 0)
    builder = PlanBuilder(ranks, ranks)
    for round_ in range(line.num_rounds):
        builder.next_round()
        for message in np.flatnonzero(line.round == round_).tolist():
            blocks = line.blocks[line.indptr[message] : line.indptr[message + 1]]
            owners = rank_at[first_ranks][:, blocks]
            builder.send(
                rank_at[first_ranks, line.source[message]],
                rank_at[first_ranks, line.destination[message]],
                gathered_blocks[owners].reshape(len(first_ranks), len(blocks) * width),
            )
    return builder.build()


def _find_lines(axis: int, sizes: Sequence[int], coordinate: Int64Array) -> Int64Array:
    """Return for every rank all ranks of its line along an axis of a grid.

    The result is int64[ranks, size of the axis]. A line consists of the ranks that differ in the
    coordinate of `axis` only; it is sorted by this coordinate and contains the rank itself.
    `coordinate`: int64[axes, ranks]. Ranks count the first axis fastest.
    """
    stride = int(np.prod(sizes[:axis]))
    first = np.arange(coordinate.shape[1]) - coordinate[axis] * stride
    ranks: Int64Array = first[:, None] + stride * np.arange(sizes[axis])
    return ranks
