"""Small and large correct algorithms, built directly as step tables, for tests and benchmarks."""

from __future__ import annotations

import numpy as np

from hub_core.model.algorithm import Algorithm, Provenance
from hub_core.model.collectives import Collective, Contributions, CustomContract
from hub_core.model.kinds import Buffer, CollectiveKind, StepKind
from hub_core.model.steps import StepTable, StepTableBuilder

_PROVENANCE = Provenance(producer="collhub-samples", producer_version="1")


def all_samples(num_ranks: int = 4) -> dict[str, Algorithm]:
    """Every sample for `num_ranks` ranks (2 or more), by name.

    Those for powers of two only where that holds.

    Every kind of collective occurs, in place and out of place where that makes sense, all of them
    correct.
    """
    makers = [
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
    ]
    if num_ranks & (num_ranks - 1) == 0:
        makers.append(halving_doubling_all_reduce)
    return {make.__name__.replace("_", "-"): make(num_ranks) for make in makers}


def ring_all_reduce(num_ranks: int) -> Algorithm:
    """In-place ring all-reduce.

    N - 1 reducing steps, then n - 1 copying steps, one unit each, 4 (n - 1) steps a rank.

    Rank r sends to r + 1 and receives from r - 1 (mod n), steps alternate SEND, RECV. A SEND waits
    for what it forwards (data); a RECV waits for the SEND of the unit that it overwrites (data,
    from the second half on). Columns are computed at once: 1024 ranks (4.2 million steps) take a
    few seconds.
    """
    n = num_ranks
    grid = np.meshgrid(np.arange(n), np.arange(2 * (n - 1)), [0, 1], indexing="ij")
    rank, half_step, is_receive = (axis.ravel() for axis in grid)
    sent_unit = (rank - half_step) % n
    unit = np.where(is_receive == 1, (rank - half_step - 1) % n, sent_unit)
    reducing = (is_receive == 1) & (half_step < n - 1)
    kind = np.where(
        is_receive == 0, StepKind.SEND, np.where(reducing, StepKind.RECV_REDUCE, StepKind.RECV)
    )
    rows = np.arange(len(rank))
    forwards = np.flatnonzero((is_receive == 0) & (half_step > 0))
    # The RECV of half step k >= n - 1 overwrites what the SEND of half step k - (n - 1) read: 2n -
    # 1 rows earlier.
    overwrites = np.flatnonzero((is_receive == 1) & (half_step >= n - 1))
    table = StepTable.from_columns(
        n,
        {
            "rank": rank,
            "kind": kind,
            "peer": np.where(is_receive == 1, (rank - 1) % n, (rank + 1) % n),
            "src_buffer": np.where((is_receive == 0) | reducing, Buffer.OUTPUT, Buffer.UNKNOWN),
            "src_offset": np.where((is_receive == 0) | reducing, unit, 0),
            "dst_buffer": np.where(is_receive == 1, Buffer.OUTPUT, Buffer.UNKNOWN),
            "dst_offset": np.where(is_receive == 1, unit, 0),
            "count": np.ones(len(rank), np.int64),
            "lane": np.zeros(len(rank), np.int64),
        },
        data=(
            np.concatenate([forwards - 1, overwrites + 1 - 2 * n]),
            np.concatenate([rows[forwards], overwrites]),
        ),
    )
    collective = Collective(CollectiveKind.ALL_REDUCE, n, n, in_place=True, out_of_place=False)
    return Algorithm(collective, table, np.zeros(n, np.int64), _PROVENANCE)


def ring_all_gather(num_ranks: int) -> Algorithm:
    """Ring all-gather, both modes.

    Each rank copies its own unit to OUTPUT, then forwards what it received last.
    """
    n, draft = num_ranks, _Draft(num_ranks)
    for rank in range(n):
        draft.copy(rank, (_IN, 0), (_OUT, rank))
    for hop in range(n - 1):
        for rank in range(n):
            draft.message(rank, (_OUT, (rank - hop) % n), (rank + 1) % n, (_OUT, (rank - hop) % n))
    return draft.algorithm(Collective(CollectiveKind.ALL_GATHER, n, n, in_place=True))


def ring_reduce_scatter(num_ranks: int) -> Algorithm:
    """Ring reduce-scatter, both modes.

    Unit u starts at rank u + 1 and gathers one contribution a hop, in SCRATCH.
    """
    n, draft = num_ranks, _Draft(num_ranks)
    for hop in range(n - 1):
        for rank in range(n):
            unit, neighbour = (rank - 1 - hop) % n, (rank + 1) % n
            source = (_IN, unit) if hop == 0 else (_TMP, hop - 1)
            target = (_OUT, 0) if hop == n - 2 else (_TMP, hop)
            draft.message(rank, source, neighbour, target, add=(_IN, unit))
    return draft.algorithm(
        Collective(CollectiveKind.REDUCE_SCATTER, n, n, in_place=True), scratch=max(n - 2, 0)
    )


def halving_doubling_all_reduce(num_ranks: int) -> Algorithm:
    """In-place recursive halving, then doubling (Thakur et al., IJHPCA 2005).

    The number of ranks is a power of two.
    """
    n, draft = num_ranks, _Draft(num_ranks)
    distances = [1 << k for k in range(n.bit_length() - 1)]
    for distance in reversed(distances):
        _exchange_blocks(draft, n, distance, add=True)
    for distance in distances:
        _exchange_blocks(draft, n, distance, add=False)
    return draft.algorithm(
        Collective(CollectiveKind.ALL_REDUCE, n, n, in_place=True, out_of_place=False)
    )


def _exchange_blocks(draft: _Draft, num_ranks: int, distance: int, add: bool) -> None:
    """Each rank sends to the rank `distance` away that rank's block (halving), or its own."""
    blocks = [
        (_OUT, (rank ^ distance if add else rank) // distance * distance)
        for rank in range(num_ranks)
    ]
    for rank, block in enumerate(blocks):
        draft.send(rank, block, rank ^ distance, distance)
    for rank, block in enumerate(blocks):
        draft.receive(rank ^ distance, rank, block, distance, add=block if add else None)


def all_pairs_all_reduce(num_ranks: int) -> Algorithm:
    """All-pairs all-reduce, both modes.

    Rank u reduces unit u of all ranks through SCRATCH and sends the result to all.

    In place, a result overwrites a unit that was sent away before: only the messages order the two.
    """
    n, draft = num_ranks, _Draft(num_ranks)
    pairs = [(rank, peer) for rank in range(n) for peer in range(n) if rank != peer]
    for rank, peer in pairs:
        draft.message(rank, (_IN, peer), peer, (_TMP, rank))
    for rank in range(n):
        draft.copy(rank, (_IN, rank), (_OUT, rank))
    for rank, peer in pairs:
        draft.reduce(rank, (_TMP, peer), (_OUT, rank))
    for rank, peer in pairs:
        draft.message(rank, (_OUT, rank), peer, (_OUT, rank))
    return draft.algorithm(Collective(CollectiveKind.ALL_REDUCE, n, n, in_place=True), scratch=n)


def direct_all_to_all(num_ranks: int) -> Algorithm:
    """Direct all-to-all, out of place: one message for every pair of ranks."""
    n, draft = num_ranks, _Draft(num_ranks)
    for rank in range(n):
        draft.copy(rank, (_IN, rank), (_OUT, rank))
        for distance in range(1, n):
            draft.message(rank, (_IN, (rank + distance) % n), (rank + distance) % n, (_OUT, rank))
    return draft.algorithm(Collective(CollectiveKind.ALL_TO_ALL, n, n))


def staged_all_to_all(num_ranks: int) -> Algorithm:
    """All-to-all, both modes.

    Units arrive in SCRATCH and move to OUTPUT once their place has been sent.
    """
    n, draft = num_ranks, _Draft(num_ranks)
    pairs = [(rank, peer) for rank in range(n) for peer in range(n) if rank != peer]
    for rank, peer in pairs:
        draft.message(rank, (_IN, peer), peer, (_TMP, rank))
    for rank in range(n):
        draft.copy(rank, (_IN, rank), (_OUT, rank))
    for rank, peer in pairs:
        draft.copy(rank, (_TMP, peer), (_OUT, peer), after=(_IN, peer))
    return draft.algorithm(Collective(CollectiveKind.ALL_TO_ALL, n, n, in_place=True), scratch=n)


def binomial_broadcast(num_ranks: int, root: int = 0) -> Algorithm:
    """Binomial-tree broadcast of two units, both modes.

    Who has the data sends it on, at doubling distances.
    """
    n, draft = num_ranks, _Draft(num_ranks)
    draft.copy(root, (_IN, 0), (_OUT, 0), count=2)
    for distance in (1 << k for k in range((n - 1).bit_length())):
        for place in range(min(distance, n - distance)):
            draft.message(
                (root + place) % n, (_OUT, 0), (root + place + distance) % n, (_OUT, 0), count=2
            )
    return draft.algorithm(Collective(CollectiveKind.BROADCAST, n, 2, root, in_place=True))


def binomial_reduce(num_ranks: int, root: int = 0) -> Algorithm:
    """Binomial-tree reduce of two units, both modes.

    Partial sums in OUTPUT at the root, in SCRATCH elsewhere.
    """
    n, draft = num_ranks, _Draft(num_ranks)
    partial: list[tuple[Buffer, int]] = [(_IN, 0)] * n
    for distance in reversed([1 << k for k in range((n - 1).bit_length())]):
        for place in range(min(distance, n - distance)):
            sum_so_far = (_OUT, 0) if place == 0 else (_TMP, 0)
            sender, receiver = (root + place + distance) % n, (root + place) % n
            draft.message(
                sender, partial[place + distance], receiver, sum_so_far, count=2, add=partial[place]
            )
            partial[place] = sum_so_far
    return draft.algorithm(Collective(CollectiveKind.REDUCE, n, 2, root, in_place=True), scratch=2)


def direct_gather(num_ranks: int, root: int = 0) -> Algorithm:
    """Gather, both modes: every rank sends its unit to the root."""
    n, draft = num_ranks, _Draft(num_ranks)
    draft.copy(root, (_IN, 0), (_OUT, root))
    for rank in (rank for rank in range(n) if rank != root):
        draft.message(rank, (_IN, 0), root, (_OUT, rank))
    return draft.algorithm(Collective(CollectiveKind.GATHER, n, n, root, in_place=True))


def direct_scatter(num_ranks: int, root: int = 0) -> Algorithm:
    """Scatter, both modes: the root sends every rank its unit."""
    n, draft = num_ranks, _Draft(num_ranks)
    draft.copy(root, (_IN, root), (_OUT, 0))
    for rank in (rank for rank in range(n) if rank != root):
        draft.message(root, (_IN, rank), rank, (_OUT, 0))
    return draft.algorithm(Collective(CollectiveKind.SCATTER, n, n, root, in_place=True))


def weighted_broadcast(num_ranks: int) -> Algorithm:
    """Broadcast from rank 0 along the ring in both directions, weights 3:1.

    Three units one way, one the other way.
    """
    n, draft = num_ranks, _Draft(num_ranks)
    draft.copy(0, (_IN, 0), (_OUT, 0), count=4)
    for channel, (direction, first, count) in enumerate(((1, 0, 3), (-1, 3, 1))):
        for hop in range(n - 1):
            sender, receiver = hop * direction % n, (hop + 1) * direction % n
            draft.message(
                sender, (_OUT, first), receiver, (_OUT, first), count=count, channel=channel
            )
    return draft.algorithm(Collective(CollectiveKind.BROADCAST, n, 4, 0, in_place=True))


def shift_to_next(num_ranks: int) -> Algorithm:
    """A custom collective, out of place.

    Every rank but the last sends its INPUT of two units to the next one.
    """
    n, draft = num_ranks, _Draft(num_ranks)
    for rank in range(n - 1):
        draft.message(rank, (_IN, 0), rank + 1, (_OUT, 0), count=2)
    receiver = np.repeat(np.arange(1, n, dtype=np.int64), 2)
    unit = np.tile(np.arange(2, dtype=np.int64), n - 1)
    sizes = np.full(n, 2, np.int64)
    contract = CustomContract(
        sizes, sizes, np.ones(n, np.bool_), Contributions(receiver, unit, receiver - 1, unit)
    )
    return draft.algorithm(Collective(CollectiveKind.CUSTOM, n, 2, contract=contract))


_IN, _OUT, _TMP = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH
_Place = tuple[Buffer, int]


class _Draft:
    """Steps in program order.

    Each waits for the last conflicting accesses of its rank to the same buffer.
    """

    def __init__(self, num_ranks: int) -> None:
        self._builder = StepTableBuilder(num_ranks)
        self._num_ranks = num_ranks
        self._writer: dict[tuple[int, Buffer, int], int] = {}
        self._readers: dict[tuple[int, Buffer, int], list[int]] = {}

    def message(
        self,
        sender: int,
        source: _Place,
        receiver: int,
        target: _Place,
        count: int = 1,
        add: _Place | None = None,
        channel: int = 0,
    ) -> None:
        """A send and its receive, which reduces with `add` where given."""
        self.send(sender, source, receiver, count, channel)
        self.receive(receiver, sender, target, count, channel, add)

    def send(self, rank: int, source: _Place, peer: int, count: int = 1, channel: int = 0) -> int:
        """A SEND."""
        return self._step(rank, StepKind.SEND, source, None, count, peer=peer, channel=channel)

    def receive(
        self,
        rank: int,
        peer: int,
        target: _Place,
        count: int = 1,
        channel: int = 0,
        add: _Place | None = None,
    ) -> int:
        """A RECV, or a RECV_REDUCE with the local operand `add`."""
        kind = StepKind.RECV if add is None else StepKind.RECV_REDUCE
        return self._step(rank, kind, add, target, count, peer=peer, channel=channel)

    def copy(
        self, rank: int, source: _Place, target: _Place, count: int = 1, after: _Place | None = None
    ) -> int:
        """A COPY; it also waits for the accesses to `after`, an alias of `target`."""
        return self._step(rank, StepKind.COPY, source, target, count, after=after)

    def reduce(self, rank: int, source: _Place, target: _Place, count: int = 1) -> int:
        """A REDUCE."""
        return self._step(rank, StepKind.REDUCE, source, target, count)

    def algorithm(self, collective: Collective, scratch: int = 0) -> Algorithm:
        """The algorithm, with `scratch` units of SCRATCH at every rank."""
        return Algorithm(
            collective,
            self._builder.build(),
            np.full(self._num_ranks, scratch, np.int64),
            _PROVENANCE,
        )

    def _step(
        self,
        rank: int,
        kind: StepKind,
        source: _Place | None,
        target: _Place | None,
        count: int,
        after: _Place | None = None,
        **values: int,
    ) -> int:
        reads, writes, aliases = (_units(rank, place, count) for place in (source, target, after))
        parents = {self._writer[unit] for unit in reads + writes + aliases if unit in self._writer}
        parents.update(
            reader for unit in writes + aliases for reader in self._readers.get(unit, ())
        )
        if source is not None:
            values |= {"src_buffer": source[0], "src_offset": source[1]}
        if target is not None:
            values |= {"dst_buffer": target[0], "dst_offset": target[1]}
        step = self._builder.add(
            rank, kind, data=sorted(parents), control=(), count=count, **values
        )
        for unit in reads:
            self._readers.setdefault(unit, []).append(step)
        for unit in writes:
            self._writer[unit] = step
            self._readers[unit] = []
        return step


def _units(rank: int, place: _Place | None, count: int) -> list[tuple[int, Buffer, int]]:
    return [] if place is None else [(rank, place[0], place[1] + k) for k in range(count)]
