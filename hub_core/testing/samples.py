"""Small and large correct algorithms, built directly as step tables, for tests and benchmarks."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from hub_core.columns import BoolArray, Int64Array
from hub_core.model.algorithm import Algorithm, Provenance
from hub_core.model.collectives import Collective, Contributions
from hub_core.model.kinds import Buffer, CollectiveKind, StepKind
from hub_core.model.steps import StepTable
from hub_core.testing.contracts import custom_collective
from hub_core.testing.custom_steps import CustomSteps
from hub_core.testing.sample_draft import BufferPlace, SampleDraft

_PROVENANCE = Provenance(producer="collhub-samples", producer_version="1")
_IN, _OUT, _TMP = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


def all_samples(num_ranks: int = 4) -> dict[str, Algorithm]:
    """Every sample for `num_ranks` ranks (2 or more), by name.

    Those for powers of two only where that holds. Every kind of collective occurs, in place and out
    of place where that makes sense, all of them correct.
    """
    makers = [*_MAKERS]
    is_power_of_two = num_ranks & (num_ranks - 1) == 0
    if is_power_of_two:
        makers.append(halving_doubling_all_reduce)
    return {make.__name__.replace("_", "-"): make(num_ranks) for make in makers}


def ring_all_reduce(num_ranks: int) -> Algorithm:
    """In-place ring all-reduce (Patarasuk and Yuan, JPDC 2009).

    N - 1 reducing steps, then n - 1 copying steps, one unit each, 4 (n - 1) steps a rank.

    Rank r sends to r + 1 and receives from r - 1 (mod n), steps alternate SEND, RECV. A SEND waits
    for what it forwards (data); a RECV waits for the SEND of the unit that it overwrites (data,
    from the second half on). Columns are computed at once: 1024 ranks (4.2 million steps) take a
    few seconds.
    """
    n = num_ranks
    grid = np.meshgrid(np.arange(n), np.arange(2 * (n - 1)), [0, 1], indexing="ij")
    rank, half_step, turn = (axis.ravel() for axis in grid)
    sends: BoolArray = turn == 0
    receives: BoolArray = turn == 1
    reduces = receives & (half_step < n - 1)
    received_as = np.where(reduces, StepKind.RECV_REDUCE, StepKind.RECV)
    # In a half step a rank sends one unit and receives the one before it.
    unit = (rank - half_step - turn) % n
    steps = StepTable.from_columns(
        n,
        {
            "rank": rank,
            "kind": np.where(sends, StepKind.SEND, received_as),
            "peer": (rank + np.where(receives, -1, 1)) % n,
            # The local operand of a RECV_REDUCE is what its result replaces.
            "src_buffer": np.where(sends | reduces, _OUT, Buffer.UNKNOWN),
            "src_offset": np.where(sends | reduces, unit, 0),
            "dst_buffer": np.where(receives, _OUT, Buffer.UNKNOWN),
            "dst_offset": np.where(receives, unit, 0),
            "count": np.ones(len(rank), np.int64),
            # One thread block a rank does it all.
            "lane": np.zeros(len(rank), np.int64),
        },
        data=_ring_edges(sends, half_step, n),
    )
    collective = Collective(CollectiveKind.ALL_REDUCE, n, n, in_place=True, out_of_place=False)
    return Algorithm(collective, steps, np.zeros(n, np.int64), _PROVENANCE)


def _ring_edges(
    sends: BoolArray,
    half_step: Int64Array,
    num_ranks: int,
) -> tuple[Int64Array, Int64Array]:
    """Dependencies of `ring_all_reduce` as (parent row, child row)."""
    forwarding = np.flatnonzero(sends & (half_step > 0))
    # The RECV of half step k >= n - 1 overwrites what the SEND of half step k - (n - 1) read:
    # 2n - 1 rows earlier.
    overwriting = np.flatnonzero(~sends & (half_step >= num_ranks - 1))
    # What a SEND forwards has come with the RECV of the row before.
    parents = np.concatenate([forwarding - 1, overwriting + 1 - 2 * num_ranks])
    return parents, np.concatenate([forwarding, overwriting])


def ring_all_gather(num_ranks: int) -> Algorithm:
    """Ring all-gather, both modes.

    Each rank copies its own unit to OUTPUT, then forwards what it received last.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    for rank in range(n):
        draft.copy(rank, (_IN, 0), (_OUT, rank))
    for hop in range(n - 1):
        for rank in range(n):
            unit = (rank - hop) % n
            draft.message(rank, (_OUT, unit), (rank + 1) % n, (_OUT, unit))
    return _finished(draft, Collective(CollectiveKind.ALL_GATHER, n, n, in_place=True))


def ring_reduce_scatter(num_ranks: int) -> Algorithm:
    """Ring reduce-scatter, both modes.

    Unit u starts at rank u + 1 and gathers one contribution a hop, in SCRATCH.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    for hop in range(n - 1):
        for rank in range(n):
            unit = (rank - 1 - hop) % n
            # Sums of every hop have a place of their own: none waits until another has been sent.
            source = (_IN, unit) if hop == 0 else (_TMP, hop - 1)
            target = (_OUT, 0) if hop == n - 2 else (_TMP, hop)
            draft.message(rank, source, (rank + 1) % n, target, add=(_IN, unit))
    collective = Collective(CollectiveKind.REDUCE_SCATTER, n, n, in_place=True)
    return _finished(draft, collective, scratch=max(n - 2, 0))


def halving_doubling_all_reduce(num_ranks: int) -> Algorithm:
    """In-place recursive halving, then doubling (Thakur et al., IJHPCA 2005).

    The number of ranks is a power of two.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    distances = _doubling_distances(n)
    for distance in reversed(distances):
        _exchange_blocks(draft, n, distance, add=True)
    for distance in distances:
        _exchange_blocks(draft, n, distance, add=False)
    collective = Collective(CollectiveKind.ALL_REDUCE, n, n, in_place=True, out_of_place=False)
    return _finished(draft, collective)


def _exchange_blocks(draft: SampleDraft, num_ranks: int, distance: int, add: bool) -> None:
    """Each rank sends to the rank `distance` away that rank's block (halving), or its own."""
    blocks = []
    for rank in range(num_ranks):
        owner = rank ^ distance if add else rank
        # Blocks are as long as the distance, and begin at multiples of it.
        blocks.append((_OUT, owner // distance * distance))
    # All sends first, so that both ways of an exchange run at once in program order too.
    for rank, block in enumerate(blocks):
        draft.send(rank, block, rank ^ distance, distance)
    for rank, block in enumerate(blocks):
        operand = block if add else None
        draft.receive(rank ^ distance, rank, block, distance, add=operand)


def all_pairs_all_reduce(num_ranks: int) -> Algorithm:
    """All-pairs all-reduce, both modes.

    Rank u reduces unit u of all ranks through SCRATCH and sends the result to all. In place, a
    result overwrites a unit that was sent away before: only the messages order the two.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    pairs = list(permutations(range(n), 2))
    for rank, peer in pairs:
        draft.message(rank, (_IN, peer), peer, (_TMP, rank))
    for rank in range(n):
        draft.copy(rank, (_IN, rank), (_OUT, rank))
    for rank, peer in pairs:
        draft.reduce(rank, (_TMP, peer), (_OUT, rank))
    for rank, peer in pairs:
        draft.message(rank, (_OUT, rank), peer, (_OUT, rank))
    return _finished(draft, Collective(CollectiveKind.ALL_REDUCE, n, n, in_place=True), scratch=n)


def direct_all_to_all(num_ranks: int) -> Algorithm:
    """Direct all-to-all, out of place: one message for every pair of ranks."""
    n, draft = num_ranks, SampleDraft(num_ranks)
    for rank in range(n):
        draft.copy(rank, (_IN, rank), (_OUT, rank))
        # Everybody begins with another receiver, so that nobody is flooded.
        for distance in range(1, n):
            peer = (rank + distance) % n
            draft.message(rank, (_IN, peer), peer, (_OUT, rank))
    return _finished(draft, Collective(CollectiveKind.ALL_TO_ALL, n, n))


def staged_all_to_all(num_ranks: int) -> Algorithm:
    """All-to-all, both modes.

    Units arrive in SCRATCH and move to OUTPUT once their place has been sent.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    pairs = list(permutations(range(n), 2))
    for rank, peer in pairs:
        draft.message(rank, (_IN, peer), peer, (_TMP, rank))
    for rank in range(n):
        draft.copy(rank, (_IN, rank), (_OUT, rank))
    for rank, peer in pairs:
        # In place, INPUT and OUTPUT are one: the unit must have been sent before it is overwritten.
        draft.copy(rank, (_TMP, peer), (_OUT, peer), after=(_IN, peer))
    return _finished(draft, Collective(CollectiveKind.ALL_TO_ALL, n, n, in_place=True), scratch=n)


def binomial_broadcast(num_ranks: int, root: int = 0) -> Algorithm:
    """Binomial-tree broadcast of two units, both modes.

    Who has the data sends it on, at doubling distances.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    draft.copy(root, (_IN, 0), (_OUT, 0), count=2)
    for distance in _doubling_distances(n):
        # As many have the data as the distance is long.
        for place in range(min(distance, n - distance)):
            sender, receiver = (root + place) % n, (root + place + distance) % n
            draft.message(sender, (_OUT, 0), receiver, (_OUT, 0), count=2)
    return _finished(draft, Collective(CollectiveKind.BROADCAST, n, 2, root, in_place=True))


def binomial_reduce(num_ranks: int, root: int = 0) -> Algorithm:
    """Binomial-tree reduce of two units, both modes.

    Partial sums in OUTPUT at the root, in SCRATCH elsewhere.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    # Where each place holds what it has added up so far: at first nothing but its own.
    partial: list[BufferPlace] = [(_IN, 0)] * n
    for distance in reversed(_doubling_distances(n)):
        for place in range(min(distance, n - distance)):
            sum_so_far = (_OUT, 0) if place == 0 else (_TMP, 0)
            sender, receiver = (root + place + distance) % n, (root + place) % n
            sent, operand = partial[place + distance], partial[place]
            draft.message(sender, sent, receiver, sum_so_far, count=2, add=operand)
            partial[place] = sum_so_far
    return _finished(draft, Collective(CollectiveKind.REDUCE, n, 2, root, in_place=True), scratch=2)


def _doubling_distances(num_ranks: int) -> list[int]:
    """1, 2, 4, ... below the number of ranks."""
    # As many as digits of the highest rank.
    rounds = (num_ranks - 1).bit_length()
    return [1 << number for number in range(rounds)]


def direct_gather(num_ranks: int, root: int = 0) -> Algorithm:
    """Gather, both modes: every rank sends its unit to the root."""
    n, draft = num_ranks, SampleDraft(num_ranks)
    draft.copy(root, (_IN, 0), (_OUT, root))
    for rank in range(n):
        if rank != root:
            draft.message(rank, (_IN, 0), root, (_OUT, rank))
    return _finished(draft, Collective(CollectiveKind.GATHER, n, n, root, in_place=True))


def direct_scatter(num_ranks: int, root: int = 0) -> Algorithm:
    """Scatter, both modes: the root sends every rank its unit."""
    n, draft = num_ranks, SampleDraft(num_ranks)
    draft.copy(root, (_IN, root), (_OUT, 0))
    for rank in range(n):
        if rank != root:
            draft.message(root, (_IN, rank), rank, (_OUT, 0))
    return _finished(draft, Collective(CollectiveKind.SCATTER, n, n, root, in_place=True))


def weighted_broadcast(num_ranks: int) -> Algorithm:
    """Broadcast from rank 0 along the ring in both directions, weights 3:1.

    Three units one way, one the other way.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    draft.copy(0, (_IN, 0), (_OUT, 0), count=4)
    # Direction, first unit and number of units: a channel each.
    for channel, (direction, first, count) in enumerate(((1, 0, 3), (-1, 3, 1))):
        units = (_OUT, first)
        for hop in range(n - 1):
            sender, receiver = hop * direction % n, (hop + 1) * direction % n
            draft.message(sender, units, receiver, units, count=count, channel=channel)
    return _finished(draft, Collective(CollectiveKind.BROADCAST, n, 4, 0, in_place=True))


def shift_to_next(num_ranks: int) -> Algorithm:
    """A custom collective, out of place.

    Every rank but the last sends its INPUT of two units to the next one.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    for rank in range(n - 1):
        draft.message(rank, (_IN, 0), rank + 1, (_OUT, 0), count=2)
    receiver = np.repeat(np.arange(1, n, dtype=np.int64), 2)
    unit = np.tile(np.arange(2, dtype=np.int64), n - 1)
    moved = Contributions(receiver, unit, receiver - 1, unit)
    return _finished(draft, custom_collective(n, 2, moved))


def flooding_exchange(messages: int, count: int = 1) -> Algorithm:
    """A custom collective of two ranks, which send all their messages before they receive any.

    Every message has the same `count` units, as INPUT and OUTPUT have: with room for fewer messages
    in a connection, both ranks wait for ever.
    """
    steps = CustomSteps(2, count)
    for rank in (0, 1):
        last: list[int] = []
        for add in (steps.send, steps.receive):
            for _ in range(messages):
                last = [add(rank, 1 - rank, count=count, control=last)]
    return steps.algorithm(scratch_units=0)


def _finished(draft: SampleDraft, collective: Collective, scratch: int = 0) -> Algorithm:
    """The algorithm of a draft, with `scratch` units of SCRATCH at every rank."""
    return draft.algorithm(collective, _PROVENANCE, scratch)


_MAKERS = (
    all_pairs_all_reduce,
    binomial_broadcast,
    binomial_reduce,
    direct_all_to_all,
    direct_gather,
    direct_scatter,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    shift_to_next,
    staged_all_to_all,
    weighted_broadcast,
)
