"""Algorithms in logarithmic rounds: butterflies, Bruck's algorithms, and PAT.

In a butterfly each rank exchanges with one partner per round, and the data doubles or halves:
recursive doubling, and recursive halving and doubling (Rabenseifner; Thakur, Rabenseifner and
Gropp, IJHPCA 2005), whose partners differ in one bit; Swing, whose partners are alternately left
and right at short distances (De Sensi et al., NSDI 2024). Any number of ranks is reduced to a power
of two by folding: with p the largest power of two <= n and e = n - p, the first 2 e ranks form
pairs. The even rank sends its data to the odd one before, and receives the result after
(Rabenseifner and Traff, 2004).

All-gathers and all-to-alls for any number of ranks: Bruck et al., TPDS 1997. PAT, parallel
aggregated trees, is NCCL's all-gather with few rounds and bounded buffers: long distances come
first, while messages are small. It is a binomial tree for A blocks at once, then A trees at a time
in depth-first order (NCCL 2.23; Jeaugey, 2025). With the largest A, mirrored, it is SparBit (Loch
and Koslovski, 2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from collhub_classic.message_plan import AlphaBetaCost, MessagePlan, PlanBuilder, sum_rounds
from hub_core.columns import Int64Array


@dataclass(frozen=True, slots=True)
class Fold:
    """Map of `ranks` ranks to a power of two `virtual` ranks.

    The first `extra` represent a pair each.
    """

    ranks: int

    @property
    def virtual(self) -> int:
        """Number of virtual ranks: the largest power of two <= the number of ranks."""
        return 1 << (self.ranks.bit_length() - 1)

    @property
    def extra(self) -> int:
        """Number of ranks beyond the power of two, which is the number of pairs."""
        return self.ranks - self.virtual

    @property
    def rank_of(self) -> Int64Array:
        """Return the rank that acts for each virtual rank: int64[virtual].

        A fold maps the ranks to a power of two virtual ranks. The first `extra` virtual ranks are
        pairs of ranks, 2 v and 2 v + 1: the odd one acts. Any other virtual rank v is the single
        rank v + `extra`.
        """
        v = np.arange(self.virtual)
        return np.where(v < self.extra, 2 * v + 1, v + self.extra)

    @property
    def first_of(self) -> Int64Array:
        """Return the lowest rank that each virtual rank represents: int64[virtual].

        The first `extra` virtual ranks represent the pairs of ranks 2 v and 2 v + 1, all other
        virtual ranks the single rank v + `extra`.
        """
        v = np.arange(self.virtual)
        return np.where(v < self.extra, 2 * v, v + self.extra)

    @property
    def size_of(self) -> Int64Array:
        """Number of ranks that each virtual rank represents, int64: 2 for the first
        `extra`, else 1.
        """
        return np.where(np.arange(self.virtual) < self.extra, 2, 1)

    def count_ranks(self, virtual: int) -> int:
        """Count the ranks that the first `virtual` virtual ranks represent together."""
        return virtual + min(virtual, self.extra)


def extend_all_reduce(fold: Fold, inner: MessagePlan) -> MessagePlan:
    """Extend `inner`, an all-reduce among the virtual ranks of a fold, to all ranks.

    A fold unites ranks 2 v and 2 v + 1 to a pair, for v below `extra`. The odd rank of a pair
    acts for virtual rank v. Every other virtual rank v is the rank v + `extra`. `inner` runs
    on these acting ranks (`Fold.rank_of`); it is not changed.

    One round is added before it: the even rank of each pair sends all blocks to the odd rank,
    which reduces them. One round is added after it: the odd rank sends all blocks back to the
    even rank, which overwrites its blocks. If `extra` is 0, no round is added.
    """
    plan = inner.renamed(fold.rank_of, np.arange(inner.num_blocks))
    if not fold.extra:
        return plan
    even = np.arange(0, 2 * fold.extra, 2)
    before = PlanBuilder(fold.ranks, inner.num_blocks)
    before.next_round()
    before.send_ranges(even, even + 1, np.zeros_like(even), inner.num_blocks, reduces=True)
    after = PlanBuilder(fold.ranks, inner.num_blocks)
    after.next_round()
    after.send_ranges(even + 1, even, np.zeros_like(even), inner.num_blocks)
    return before.build().then(plan).then(after.build())


def compute_fold_cost(fold: Fold) -> AlphaBetaCost:
    """Compute the additional cost of a folded all-reduce: 2 (alpha + m beta) if there are pairs."""
    return AlphaBetaCost(2, Fraction(2)) if fold.extra else AlphaBetaCost(0, Fraction(0))


def extend_all_gather(fold: Fold, inner: MessagePlan) -> MessagePlan:
    """Extend an all-gather among the virtual ranks of a fold, `inner`, to all ranks.

    A fold unites the ranks 2 v and 2 v + 1 to one virtual rank, for v below `extra`; the odd
    rank acts for both. Any other virtual rank v is the rank v + `extra`. The result has one
    block per rank, and these rounds:

    1. The even rank of each pair sends its block to the odd rank.
    2. The rounds of `inner` among the acting ranks. The block of a virtual rank is replaced by
       the blocks of all ranks that it represents, so a message has one or two blocks for each.
    3. The odd rank of each pair sends all blocks except that of the even rank back to the even
       rank.

    Without pairs (`extra` 0), only the rounds of `inner` remain. `inner` is not changed.
    """
    plan = inner.expanded(fold.first_of, fold.size_of, fold.ranks)
    plan = plan.renamed(fold.rank_of, np.arange(fold.ranks))
    if not fold.extra:
        return plan
    even = np.arange(0, 2 * fold.extra, 2)
    before = PlanBuilder(fold.ranks, fold.ranks)
    before.next_round()
    before.send(even, even + 1, even)
    after = PlanBuilder(fold.ranks, fold.ranks)
    after.next_round()
    after.send_ranges(even + 1, even, even + 1, fold.ranks - 1)
    return before.build().then(plan).then(after.build())


def plan_doubling_all_gather(num_ranks: int) -> MessagePlan:
    """Plan an all-gather by recursive doubling, for any number of ranks, with one block per
    rank.

    At the distances d = 1, 2, 4, ... each rank r sends all its blocks to its partner r
    xor d, and receives as many. If the number of ranks is no power of two, some ranks are
    paired to virtual ranks, with one round before and one after (`extend_all_gather`).
    """
    fold = Fold(num_ranks)
    return extend_all_gather(fold, _plan_all_gather(fold.virtual))


def compute_doubling_all_gather_cost(num_ranks: int) -> AlphaBetaCost:
    """Return the cost of an all-gather by recursive doubling among n ranks, for m bytes in all.

    For a power of two it is alpha log2 n + m beta (n - 1) / n. Otherwise let p be the
    largest power of two below n, and e = n - p. The first 2 e ranks are paired, so that p
    virtual ranks remain, of which the first e represent two ranks each. The cost is the sum
    of these rounds, each alpha + beta times its bytes:

    1. m / n bytes.
    2. For each d = 1, 2, 4, ... below p: (d + min(d, e)) m / n bytes.
    3. m (n - 1) / n bytes.
    """
    fold = Fold(num_ranks)
    shares = [
        Fraction(fold.count_ranks(distance), num_ranks) for distance in _list_powers(fold.virtual)
    ]
    if fold.extra:
        shares = [Fraction(1, num_ranks), *shares, Fraction(num_ranks - 1, num_ranks)]
    return sum_rounds(*shares)


def plan_doubling_all_reduce(num_ranks: int) -> MessagePlan:
    """Plan an all-reduce by recursive doubling for any number of ranks, with one block in all.

    At the distances d = 1, 2, 4, ... each rank r exchanges its full vector with its partner r xor
    d; both reduce. If the number of ranks is no power of two, some ranks are paired to virtual
    ranks, with one round before and one after (`extend_all_reduce`).
    """
    fold = Fold(num_ranks)
    builder = PlanBuilder(fold.virtual, 1)
    rank = np.arange(fold.virtual)
    for distance in _list_powers(fold.virtual):
        builder.next_round()
        builder.send(rank, rank ^ distance, np.zeros_like(rank), reduces=True)
    return extend_all_reduce(fold, builder.build())


def compute_doubling_all_reduce_cost(num_ranks: int) -> AlphaBetaCost:
    """Return the cost (log2 p + 2 f) (alpha + m beta) of an all-reduce by recursive doubling.

    p: largest power of two up to the number of ranks; m: bytes of the vector; f: 1 if the number of
    ranks is no power of two, so that ranks are paired, else 0.
    """
    fold = Fold(num_ranks)
    return sum_rounds(*[1] * len(_list_powers(fold.virtual))) + compute_fold_cost(fold)


def plan_halving_all_reduce(num_ranks: int) -> MessagePlan:
    """Plan an all-reduce by recursive halving and doubling, for any number of ranks.

    It is a reduce-scatter, in which partners exchange halves of the remaining data (the
    most distant partners first), then an all-gather by doubling, with the same messages
    in reverse order and direction. The vector has one block per virtual rank. If the
    number of ranks is no power of two, some ranks are paired to virtual ranks, with one
    round before and one after (`extend_all_reduce`).
    """
    fold = Fold(num_ranks)
    gather = _plan_all_gather(fold.virtual)
    return extend_all_reduce(fold, gather.backwards(reduces=True).then(gather))


def compute_halving_all_reduce_cost(num_ranks: int) -> AlphaBetaCost:
    """Return the cost of an all-reduce by recursive halving and doubling.

    It is 2 alpha log2 p + 2 m beta (p - 1) / p + 2 f (alpha + m beta). p: largest power of two up
    to the number of ranks; m: bytes of the vector; f: 1 if the number of ranks is no power of two,
    so that ranks are paired, else 0.
    """
    fold = Fold(num_ranks)
    shares = [Fraction(distance, fold.virtual) for distance in _list_powers(fold.virtual)]
    return sum_rounds(*shares, *shares) + compute_fold_cost(fold)


def plan_swing_all_gather(num_ranks: int) -> MessagePlan:
    """Plan Swing's all-gather among n ranks, a power of two (not checked), in log2 n rounds.

    In step s = log2 n - 1, ..., 0 (the most distant partners first) each rank sends all blocks that
    it has to its partner. The partner of an even rank r is r + (1 - (-2)^(s + 1)) / 3 modulo n; an
    odd rank subtracts this distance. n = 1 gives no rounds.
    """
    builder = PlanBuilder(num_ranks, num_ranks)
    rank = np.arange(num_ranks)
    gathered_blocks = rank[:, None]
    for step in reversed(range(num_ranks.bit_length() - 1)):
        # The distance is 1, -1, 3, -5, ... in step 0, 1, 2, 3, ... Partners are mutual, because odd
        # ranks use the opposite.
        distance = (1 - (-2) ** (step + 1)) // 3
        partner = (rank + np.where(rank % 2 == 0, distance, -distance)) % num_ranks
        builder.next_round()
        builder.send(rank, partner, gathered_blocks)
        gathered_blocks = np.concatenate([gathered_blocks, gathered_blocks[partner]], axis=1)
    return builder.build()


def plan_swing_all_reduce(num_ranks: int) -> MessagePlan:
    """Plan an all-reduce by Swing, for any number of ranks.

    It is Swing's all-gather reversed with reductions (a reduce-scatter), then the all-gather. The
    vector has one block per virtual rank. If the number of ranks is no power of two, some ranks are
    paired to virtual ranks, with one round before and one after (`extend_all_reduce`).
    """
    fold = Fold(num_ranks)
    gather = plan_swing_all_gather(fold.virtual)
    return extend_all_reduce(fold, gather.backwards(reduces=True).then(gather))


def plan_bruck_all_gather(num_ranks: int) -> MessagePlan:
    """Plan Bruck's all-gather for any number of ranks n.

    There is one round for each distance d = 1, 2, 4, ... below n. In it rank r sends the
    consecutive blocks r, r + 1, ... to rank r - d: d blocks, or only the n - d missing ones
    if these are fewer, as can be in the last round. Ranks and blocks are modulo n. One rank
    gives no rounds.
    """
    builder = PlanBuilder(num_ranks, num_ranks)
    rank = np.arange(num_ranks)
    for distance in _list_distances(num_ranks):
        builder.next_round()
        # The last round completes the ring if the number of ranks is no power of two.
        count = min(distance, num_ranks - distance)
        builder.send_ranges(rank, (rank - distance) % num_ranks, rank, count)
    return builder.build()


def compute_bruck_all_gather_cost(num_ranks: int) -> AlphaBetaCost:
    """Return the cost of Bruck's all-gather among n ranks: alpha ceil(log2 n) + m beta (n - 1) / n.

    alpha: latency of a message; m: bytes of the full buffer; beta: time per byte. For one
    rank it is 0.
    """
    rounds = (num_ranks - 1).bit_length()
    return AlphaBetaCost(rounds, Fraction(num_ranks - 1, num_ranks))


def plan_bruck_all_to_all(num_ranks: int) -> MessagePlan:
    """Plan Bruck's all-to-all for any number of ranks n; one rank gives no rounds.

    The block from rank s to rank t has the number s * n + t, and the offset (t - s) modulo n. There
    is one round for each distance d = 1, 2, 4, ... below n. In a round every rank r sends one
    message to rank r + d, in the order of r. The message has one block for each offset i from 1 to
    n - 1 that contains the bit d, ascending: the block with this offset whose source is rank r - (i
    modulo d). Ranks are modulo n.
    """
    builder = PlanBuilder(num_ranks, num_ranks * num_ranks)
    rank = np.arange(num_ranks)
    for distance in _list_distances(num_ranks):
        offsets = _find_offsets_with(distance, num_ranks)
        source = (rank[:, None] - offsets % distance) % num_ranks
        builder.next_round()
        builder.send(
            rank,
            (rank + distance) % num_ranks,
            source * num_ranks + (source + offsets) % num_ranks,
        )
    return builder.build()


def compute_bruck_all_to_all_cost(num_ranks: int) -> AlphaBetaCost:
    """Compute the cost of Bruck's all-to-all.

    In the round of a bit, a rank sends the blocks whose offset has that bit: about half of its
    data.
    """
    return sum_rounds(
        *(
            Fraction(len(_find_offsets_with(distance, num_ranks)), num_ranks)
            for distance in _list_distances(num_ranks)
        )
    )


def _find_offsets_with(bit: int, num_ranks: int) -> Int64Array:
    """Return the offsets from 0 to `num_ranks` - 1 in which the bit `bit` is set, ascending.

    `bit`: value of the bit, a power of two. The array is empty if no offset has it.
    """
    offsets = np.arange(num_ranks)
    return offsets[(offsets & bit) > 0]


def _list_distances(num_ranks: int) -> list[int]:
    """List the powers of two 1, 2, 4, ... below the number of ranks; empty for one rank."""
    return [1 << bit for bit in range((num_ranks - 1).bit_length())]


def plan_pat_all_gather(num_ranks: int, aggregation: int) -> MessagePlan:
    """Plan PAT's all-gather (parallel aggregated trees) for any number n of ranks.

    P is the smallest power of two from n on. `aggregation` (A) is the largest number of blocks in a
    message: a power of two from 1 to max(1, P / 2), not checked. In each round every rank r sends
    one message to rank r - d, with blocks r + i (modulo n). Rounds, with d and offsets i:

    1. d = P / 2, P / 4, ... down to P / A, none for A = 1: i = 0, 2 d, 4 d, ... below n - d.
    2. One round per node v = 1..P / A - 1 of a binomial tree, depth first, largest child first (for
       P / A = 8: 4, 6, 7, 5, 2, 3, 1), without nodes from n on. d is the lowest set bit of v; i = v
       - d, v - d + P / A, v - d + 2 P / A, ... below n - d.

    One rank gives no rounds.
    """
    power = 1 << (num_ranks - 1).bit_length()
    depth = power // aggregation
    builder = PlanBuilder(num_ranks, num_ranks)
    distance = power // 2
    while distance >= depth:
        _send_round(builder, num_ranks, distance, range(0, num_ranks - distance, 2 * distance))
        distance //= 2
    for node in _generate_preorder(depth):
        if node < num_ranks:
            distance = node & -node
            blocks = range(node - distance, num_ranks - distance, depth)
            _send_round(builder, num_ranks, distance, blocks)
    return builder.build()


def compute_pat_cost(num_ranks: int, aggregation: int) -> AlphaBetaCost:
    """Return the cost (log2 A + D - 1) alpha + m beta (n - 1) / n of PAT among n ranks for m
    bytes.

    A is `aggregation`, a power of two. D = min(P / A, n), where P is the smallest power
    of two that is at least n: nodes of the tree that are no ranks take no rounds.
    """
    power = 1 << (num_ranks - 1).bit_length()
    rounds = aggregation.bit_length() - 1 + min(power // aggregation, num_ranks) - 1
    return AlphaBetaCost(rounds, Fraction(num_ranks - 1, num_ranks))


def find_largest_aggregation(num_ranks: int) -> int:
    """Compute the largest useful aggregation: half of the smallest power of two >= n, at
    least 1.
    """
    return max(1, (1 << (num_ranks - 1).bit_length()) // 2)


def plan_sparbit_all_gather(num_ranks: int) -> MessagePlan:
    """Plan SparBit's all-gather: PAT with the maximum aggregation, mirrored.

    Rank r and block r of PAT become -r modulo the number of ranks. So every rank sends to
    higher ranks (r + d) instead of lower ones (r - d).
    """
    mirrored = -np.arange(num_ranks) % num_ranks
    return plan_pat_all_gather(num_ranks, find_largest_aggregation(num_ranks)).renamed(
        mirrored, mirrored
    )


def _send_round(builder: PlanBuilder, num_ranks: int, distance: int, blocks: range) -> None:
    """Add a round to `builder` in which every rank r sends one message to rank r - `distance`.

    `blocks` lists offsets: the message has the blocks r + offset. Ranks and blocks are modulo the
    number of ranks.
    """
    rank = np.arange(num_ranks)
    builder.next_round()
    builder.send(rank, (rank - distance) % num_ranks, rank[:, None] + np.asarray(blocks))


def _generate_preorder(depth: int) -> Iterator[int]:
    """Yield the nodes 1 to depth - 1 of the binomial tree with root 0, each before its children.

    `depth`: number of nodes, a power of two. The largest child of a node comes first, with
    all its descendants: 4, 6, 7, 5, 2, 3, 1 for 8. None is yielded for 1.
    """

    def generate_below(node: int, span: int) -> Iterator[int]:
        """Yield the nodes below `node` in its subtree of `span` nodes, in the same order."""
        while span > 1:
            span //= 2
            yield node + span
            yield from generate_below(node + span, span)

    return generate_below(0, depth)


def _plan_all_gather(virtual: int) -> MessagePlan:
    """Plan an all-gather by recursive doubling among `virtual` ranks, a power of two (not checked).

    At the distances d = 1, 2, 4, ... rank r sends to rank r xor d the d blocks that it has: the
    blocks of all ranks that have the same quotient by d. One rank gives no rounds.
    """
    builder = PlanBuilder(virtual, virtual)
    rank = np.arange(virtual)
    for distance in _list_powers(virtual):
        builder.next_round()
        # The data of a rank begins at the multiple of the distance below it.
        builder.send_ranges(rank, rank ^ distance, rank & -distance, distance)
    return builder.build()


def _list_powers(virtual: int) -> list[int]:
    """List 1, 2, 4, ... below `virtual`, a power of two; empty for 1."""
    return [1 << bit for bit in range(virtual.bit_length() - 1)]
