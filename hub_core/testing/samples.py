"""Correct sample algorithms of any size, built directly as step tables."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from hub_core.columns import BoolArray
from hub_core.model.algorithm import Algorithm, Provenance
from hub_core.model.collectives import Collective, Contributions
from hub_core.model.counts import UnitCounts
from hub_core.model.kinds import Buffer, CollectiveKind, StepKind
from hub_core.model.steps import StepTable
from hub_core.testing.sample_builders import (
    BufferPlace,
    CustomSteps,
    SampleDraft,
    custom_collective,
)

_PROVENANCE = Provenance(producer="collhub-samples", producer_version="1")
_IN, _OUT, _TMP = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


def all_samples(num_ranks: int = 4) -> dict[str, Algorithm]:
    """Build the correct sample algorithms for `num_ranks` ranks (2 or more), by name.

    A name is that of the building function with hyphens, such as `ring-all-reduce`. Recursive
    halving and doubling, only for a power of two, is the last one. Every kind is covered except the
    uneven kinds, which have a table of counts. Every standard kind has a sample for calls in place
    and one for calls out of place; the custom sample supports only calls out of place. With 1 rank
    some samples are incorrect. Raise `InputError` for 0 ranks.
    """
    builders = [*_BUILDERS]
    is_power_of_two = num_ranks & (num_ranks - 1) == 0
    if is_power_of_two:
        builders.append(halving_doubling_all_reduce)
    return {build.__name__.replace("_", "-"): build(num_ranks) for build in builders}


def ring_all_reduce(num_ranks: int) -> Algorithm:
    """Build an in-place ring all-reduce, one unit per rank (Patarasuk and Yuan, JPDC 2009).

    n - 1 reducing rounds, then n - 1 copying rounds; 4 (n - 1) steps per rank. In round k (from
    0), rank r sends unit r - k to r + 1 and receives unit r - k - 1 from r - 1 (mod n), in OUTPUT
    and lane 0. Rows are by rank, then round, SEND first. A SEND has a data dependency on the RECV
    of the last round; in the second half, a RECV has one on the earlier SEND of its unit.
    """
    n = num_ranks
    grid = np.meshgrid(np.arange(n), np.arange(2 * (n - 1)), [0, 1], indexing="ij")
    rank, round_index, position = (axis.ravel() for axis in grid)
    sends: BoolArray = position == 0
    receives: BoolArray = position == 1
    reduces = receives & (round_index < n - 1)
    received_as = np.where(reduces, StepKind.RECV_REDUCE, StepKind.RECV)
    # In a round a rank sends one unit and receives the preceding one.
    unit = (rank - round_index - position) % n
    # A SEND forwards the unit of the RECV in the preceding row. The RECV of round k >= n - 1
    # overwrites the unit that the SEND of round k - (n - 1) read, 2n - 1 rows earlier.
    forwarding = np.flatnonzero(sends & (round_index > 0))
    overwriting = np.flatnonzero(receives & (round_index >= n - 1))
    parents = np.concatenate([forwarding - 1, overwriting + 1 - 2 * n])
    steps = StepTable.from_columns(
        n,
        {
            "rank": rank,
            "kind": np.where(sends, StepKind.SEND, received_as),
            "peer": (rank + np.where(receives, -1, 1)) % n,
            # A RECV_REDUCE replaces its local operand.
            "src_buffer": np.where(sends | reduces, _OUT, Buffer.UNKNOWN),
            "src_offset": np.where(sends | reduces, unit, 0),
            "dst_buffer": np.where(receives, _OUT, Buffer.UNKNOWN),
            "dst_offset": np.where(receives, unit, 0),
            "count": np.ones(len(rank), np.int64),
            "lane": np.zeros(len(rank), np.int64),
        },
        data=(parents, np.concatenate([forwarding, overwriting])),
    )
    collective = Collective(CollectiveKind.ALL_REDUCE, n, n, in_place=True, out_of_place=False)
    return Algorithm(collective, steps, np.zeros(n, np.int64), _PROVENANCE)


def ring_all_gather(num_ranks: int) -> Algorithm:
    """Build a ring all-gather for calls in place and out of place, with one unit per rank.

    Each of n ranks copies its unit to OUTPUT and sends it to the next rank (mod n). In n - 2
    further rounds it forwards the unit that it received last. A single rank only copies.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    for rank in range(n):
        draft.copy(rank, (_IN, 0), (_OUT, rank))
    for hop in range(n - 1):
        for rank in range(n):
            unit = (rank - hop) % n
            draft.message(rank, (_OUT, unit), (rank + 1) % n, (_OUT, unit))
    return _build_algorithm(draft, Collective(CollectiveKind.ALL_GATHER, n, n, in_place=True))


def ring_reduce_scatter(num_ranks: int) -> Algorithm:
    """Build a ring reduce-scatter for calls in place and out of place, one unit per rank.

    Unit u starts at rank u + 1 and moves to the next rank (mod n) n - 1 times; each receiver adds
    its contribution; rank u has the sum. Partial sums are in SCRATCH, with one unit for each hop
    except the last (n - 2 units). A single rank gets no steps, which is incorrect.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    for hop in range(n - 1):
        for rank in range(n):
            unit = (rank - 1 - hop) % n
            # Every hop has a separate SCRATCH unit, so that none waits for an earlier send.
            source = (_IN, unit) if hop == 0 else (_TMP, hop - 1)
            target = (_OUT, 0) if hop == n - 2 else (_TMP, hop)
            draft.message(rank, source, (rank + 1) % n, target, add=(_IN, unit))
    collective = Collective(CollectiveKind.REDUCE_SCATTER, n, n, in_place=True)
    return _build_algorithm(draft, collective, scratch=max(n - 2, 0))


def halving_doubling_all_reduce(num_ranks: int) -> Algorithm:
    """Build an in-place all-reduce by recursive halving and doubling, with one unit per rank.

    First, ranks exchange and reduce blocks at the distances n / 2, n / 4, ..., 1, of as many units
    as the distance; then complete blocks at the distances 1, 2, ..., n / 2. `num_ranks` must be a
    power of two, which is not checked. Source: Thakur et al., IJHPCA 2005.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    distances = _list_doubling_distances(n)
    for distance in reversed(distances):
        _exchange_blocks(draft, n, distance, add=True)
    for distance in distances:
        _exchange_blocks(draft, n, distance, add=False)
    collective = Collective(CollectiveKind.ALL_REDUCE, n, n, in_place=True, out_of_place=False)
    return _build_algorithm(draft, collective)


def _exchange_blocks(draft: SampleDraft, num_ranks: int, distance: int, add: bool) -> None:
    """Add an exchange of OUTPUT blocks between each rank and its partner, rank XOR `distance`.

    A block has `distance` units, starts at a multiple of it, and is the rank's if it contains the
    unit with its number. With `add` (halving), a rank sends its partner's block, which the partner
    adds; otherwise (doubling) its own, which replaces that of the partner. Sends are added first.
    """
    blocks = []
    for rank in range(num_ranks):
        owner = rank ^ distance if add else rank
        blocks.append((_OUT, owner // distance * distance))
    # All sends first, so that both directions overlap also in program order.
    for rank, block in enumerate(blocks):
        draft.send(rank, block, rank ^ distance, distance)
    for rank, block in enumerate(blocks):
        operand = block if add else None
        draft.receive(rank ^ distance, rank, block, distance, add=operand)


def all_pairs_all_reduce(num_ranks: int) -> Algorithm:
    """Build an all-pairs all-reduce for both modes, one unit per rank.

    Each rank r sends INPUT unit u to each other rank u, into SCRATCH unit r. It adds the received
    units, in the order of ranks, to its INPUT unit r in OUTPUT unit r, and sends it to all others.
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
    return _build_algorithm(
        draft, Collective(CollectiveKind.ALL_REDUCE, n, n, in_place=True), scratch=n
    )


def direct_all_to_all(num_ranks: int) -> Algorithm:
    """Build an out-of-place all-to-all: one unit and one message per ordered pair of ranks.

    A rank copies its own unit, then sends to the ranks at distance 1, 2, ... after it (mod n).
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    for rank in range(n):
        draft.copy(rank, (_IN, rank), (_OUT, rank))
        # Ranks begin with different receivers, so that no receiver is overloaded.
        for distance in range(1, n):
            peer = (rank + distance) % n
            draft.message(rank, (_IN, peer), peer, (_OUT, rank))
    return _build_algorithm(draft, Collective(CollectiveKind.ALL_TO_ALL, n, n))


def uneven_all_to_all(num_ranks: int) -> Algorithm:
    """Build a direct all-to-all-v: rank r sends (r + 2 t) mod 3 units to rank t, itself included.

    Pairs without units send no message; units that stay on their rank are copied. INPUT is
    ordered by receiver, OUTPUT by sender. Only out-of-place mode is supported. Raises `InputError`
    (`invalid-counts`) for fewer than two ranks.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    table = (np.arange(n)[:, None] + 2 * np.arange(n)) % 3
    counts = UnitCounts.from_table(table, is_per_pair=True)
    sent, received = counts.first_units()
    for rank, peer in zip(*(side.tolist() for side in np.nonzero(table)), strict=True):
        source, target = (_IN, int(sent[rank, peer])), (_OUT, int(received[rank, peer]))
        if rank == peer:
            draft.copy(rank, source, target, count=int(table[rank, peer]))
        else:
            draft.message(rank, source, peer, target, count=int(table[rank, peer]))
    collective = Collective(CollectiveKind.ALL_TO_ALL_V, n, counts.total, counts=counts)
    return _build_algorithm(draft, collective)


def uneven_all_gather(num_ranks: int) -> Algorithm:
    """Build an out-of-place all-gather-v in which rank r contributes r units.

    Each rank except 0 copies its units to OUTPUT and sends them directly to every other rank in one
    message, first to the next (mod n). Raise `InputError` for fewer than two ranks (no units).
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    counts = UnitCounts.from_table(np.arange(n), is_per_pair=False)
    first = counts.first_units()[0].tolist()
    for rank in range(1, n):
        draft.copy(rank, (_IN, 0), (_OUT, first[rank]), count=rank)
        for distance in range(1, n):
            draft.message(rank, (_IN, 0), (rank + distance) % n, (_OUT, first[rank]), count=rank)
    collective = Collective(CollectiveKind.ALL_GATHER_V, n, counts.total, counts=counts)
    return _build_algorithm(draft, collective)


def staged_all_to_all(num_ranks: int) -> Algorithm:
    """Build an all-to-all for both modes, with one message and one unit per ordered pair of ranks.

    Received units go to SCRATCH (`num_ranks` units), then to OUTPUT. In place, a copy waits for the
    send of the INPUT unit that it overwrites. A rank's unit for itself is copied directly.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    pairs = list(permutations(range(n), 2))
    for rank, peer in pairs:
        draft.message(rank, (_IN, peer), peer, (_TMP, rank))
    for rank in range(n):
        draft.copy(rank, (_IN, rank), (_OUT, rank))
    for rank, peer in pairs:
        # In place, INPUT and OUTPUT are the same memory: send a unit before overwriting it.
        draft.copy(rank, (_TMP, peer), (_OUT, peer), after=(_IN, peer))
    return _build_algorithm(
        draft, Collective(CollectiveKind.ALL_TO_ALL, n, n, in_place=True), scratch=n
    )


def binomial_broadcast(num_ranks: int, root: int = 0) -> Algorithm:
    """Build a binomial-tree broadcast of two units for calls in place and out of place.

    First the root copies INPUT to OUTPUT. With n ranks, in round d (1, 2, 4, ... below n), rank
    root + i sends both units to rank root + i + d (mod n), for each i < d with i + d < n.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    draft.copy(root, (_IN, 0), (_OUT, 0), count=2)
    for distance in _list_doubling_distances(n):
        # `distance` ranks have the data already.
        for index in range(min(distance, n - distance)):
            sender, receiver = (root + index) % n, (root + index + distance) % n
            draft.message(sender, (_OUT, 0), receiver, (_OUT, 0), count=2)
    return _build_algorithm(draft, Collective(CollectiveKind.BROADCAST, n, 2, root, in_place=True))


def binomial_reduce(num_ranks: int, root: int = 0) -> Algorithm:
    """Build a binomial-tree reduce of two units for both modes; two ranks or more.

    Position p is rank (root + p) mod n. Each power of two d below n, the largest first, is a round:
    for p below d, position p + d (if below n) sends its partial sum to position p. Partial sums are
    in INPUT at first, then in OUTPUT at the root and in SCRATCH (two units) elsewhere.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    # Location of the partial sum, by distance from the root; initially the rank's input.
    partial: list[BufferPlace] = [(_IN, 0)] * n
    for distance in reversed(_list_doubling_distances(n)):
        for index in range(min(distance, n - distance)):
            target = (_OUT, 0) if index == 0 else (_TMP, 0)
            sender, receiver = (root + index + distance) % n, (root + index) % n
            source, operand = partial[index + distance], partial[index]
            draft.message(sender, source, receiver, target, count=2, add=operand)
            partial[index] = target
    return _build_algorithm(
        draft, Collective(CollectiveKind.REDUCE, n, 2, root, in_place=True), scratch=2
    )


def _list_doubling_distances(num_ranks: int) -> list[int]:
    """Return the powers of two below `num_ranks`, ascending; [1, 2, 4] for 5 to 8, [] for 1."""
    rounds = (num_ranks - 1).bit_length()
    return [1 << number for number in range(rounds)]


def direct_gather(num_ranks: int, root: int = 0) -> Algorithm:
    """Build a gather for both modes, in which every rank sends its one unit to the root.

    Unit r of the root's OUTPUT is that of rank r; the root copies its own. Raise `InputError`
    (`rank-range`) if `root` is not a rank.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    draft.copy(root, (_IN, 0), (_OUT, root))
    for rank in range(n):
        if rank != root:
            draft.message(rank, (_IN, 0), root, (_OUT, rank))
    return _build_algorithm(draft, Collective(CollectiveKind.GATHER, n, n, root, in_place=True))


def direct_scatter(num_ranks: int, root: int = 0) -> Algorithm:
    """Build a direct scatter of one unit per rank, correct in place and out of place.

    The root sends unit r of its INPUT to unit 0 of OUTPUT of every other rank r, and copies its
    own unit to its OUTPUT. Raise `InputError` (`rank-range`) if `root` is not a rank.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    draft.copy(root, (_IN, root), (_OUT, 0))
    for rank in range(n):
        if rank != root:
            draft.message(root, (_IN, rank), rank, (_OUT, 0))
    return _build_algorithm(draft, Collective(CollectiveKind.SCATTER, n, n, root, in_place=True))


def weighted_broadcast(num_ranks: int) -> Algorithm:
    """Build a broadcast of four units from rank 0, for calls in place and out of place.

    Rank 0 copies INPUT to OUTPUT. Units 0 to 2 then pass upwards around the ring on channel 0, unit
    3 downwards on channel 1, to all other ranks (n - 1 hops, with one message each).
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    draft.copy(0, (_IN, 0), (_OUT, 0), count=4)
    # Per channel: direction, first unit, number of units.
    for channel, (direction, first, count) in enumerate(((1, 0, 3), (-1, 3, 1))):
        units = (_OUT, first)
        for hop in range(n - 1):
            sender, receiver = hop * direction % n, (hop + 1) * direction % n
            draft.message(sender, units, receiver, units, count=count, channel=channel)
    return _build_algorithm(draft, Collective(CollectiveKind.BROADCAST, n, 4, 0, in_place=True))


def shift_to_next(num_ranks: int) -> Algorithm:
    """Build an out-of-place custom collective: INPUT (two units) moves to the next rank's OUTPUT.

    The last rank sends no message; OUTPUT of rank 0 has no postcondition. Raises `ValueError` for
    less than one rank.
    """
    n, draft = num_ranks, SampleDraft(num_ranks)
    for rank in range(n - 1):
        draft.message(rank, (_IN, 0), rank + 1, (_OUT, 0), count=2)
    receiver = np.repeat(np.arange(1, n, dtype=np.int64), 2)
    unit = np.tile(np.arange(2, dtype=np.int64), n - 1)
    moved = Contributions(receiver, unit, receiver - 1, unit)
    return _build_algorithm(draft, custom_collective(n, 2, moved))


def flooding_exchange(messages: int, count: int = 1) -> Algorithm:
    """Build a custom collective in which two ranks send all `messages`, then receive them.

    A message has `count` units, as INPUT and OUTPUT, so each overwrites the last one. There is no
    postcondition. Each step has a control dependency on the preceding step of its rank. If a
    connection can buffer fewer messages, both ranks deadlock.
    """
    steps = CustomSteps(2, count)
    for rank in (0, 1):
        previous: list[int] = []
        for add in (steps.send, steps.receive):
            for _ in range(messages):
                previous = [add(rank, 1 - rank, count=count, control=previous)]
    return steps.algorithm(scratch_units=0)


def _build_algorithm(draft: SampleDraft, collective: Collective, scratch: int = 0) -> Algorithm:
    """Build the algorithm of a draft, with `scratch` units of SCRATCH at every rank."""
    return draft.algorithm(collective, _PROVENANCE, scratch)


_BUILDERS = (
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
