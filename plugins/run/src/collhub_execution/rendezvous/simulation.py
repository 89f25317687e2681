"""Run the messages of a program, without data, as a transport without buffers would."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

import numpy as np

from collhub_execution.levelling.program import LevelledProgram, RecordKind
from collhub_execution.rendezvous.positions import deadlock
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, InputError


def simulate_rendezvous(
    algorithm: Algorithm, program: LevelledProgram, seed: int | None = None
) -> Int64Array:
    """Run the messages strictly; return RECV, COPY and REDUCE records in order of completion.

    A rank posts the messages of its level, in order, and goes on when all of them have met their
    other end; messages of one pair of ranks meet in the order in which they are posted. `seed`
    shuffles which rank goes first, which must not matter. One Python step a record: for programs
    that may be wrong, and for tests. Raises `InputError` with the position of every rank where all
    stand still, and for two ends of a message that differ in size.
    """
    ranks = _SimulatedRanks(program)
    ready = list(range(program.num_ranks))
    generator = None if seed is None else np.random.default_rng(seed)
    while ready:
        if generator is not None:
            generator.shuffle(ready)
        ready = [freed for rank in ready for freed in ranks.advance(rank)]
    stuck = ranks.waiting()
    count = sum(record is not None for record in stuck)
    if count:
        what = f"{count} of {program.num_ranks} ranks wait for each other and never end"
        raise deadlock(algorithm, program, stuck, what)
    return np.asarray(ranks.order, np.int64)


class _SimulatedRanks:
    """Where every rank stands: its next record, and the messages of its level under way.

    A message is open at a rank from its post there until both ends have met.
    """

    def __init__(self, program: LevelledProgram) -> None:
        """All ranks stand before their first records."""
        # Lists: single elements of numpy arrays are slow to read.
        self._kind, self._level = program.kind.tolist(), program.level.tolist()
        self._peer, self._count = program.peer.tolist(), program.count.tolist()
        self._next = program.rank_indptr[:-1].tolist()
        self._end = program.rank_indptr[1:].tolist()
        self._open: list[list[int]] = [[] for _ in self._next]
        # (source, destination, which end) to the records that wait for their other end.
        self._posted: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self.order: list[int] = []

    def advance(self, rank: int) -> Iterator[int]:
        """Go on while no message of the rank is open; yield the ranks that this may have freed."""
        while not self._open[rank] and self._next[rank] < self._end[rank]:
            record = self._next[rank]
            if self._is_local(record):
                self.order.append(record)
                self._next[rank] += 1
            else:
                yield from self._post_level(rank, self._level[record])

    def _is_local(self, record: int) -> bool:
        """Whether a record needs no other rank."""
        is_local: bool = self._kind[record] >= RecordKind.COPY
        return is_local

    def _post_level(self, rank: int, level: int) -> Iterator[int]:
        """Post all messages of a level, whose ends may free others as they meet."""
        record = self._next[rank]
        while self._is_message_of(level, record, self._end[rank]):
            self._open[rank].append(record)
            record += 1
        self._next[rank] = record
        # A copy: meeting closes messages.
        for posted in list(self._open[rank]):
            yield from self._meet(rank, posted)

    def _is_message_of(self, level: int, record: int, end: int) -> bool:
        """Whether a record is a message of this level; `end`: behind the rank's last record."""
        return record < end and self._level[record] == level and not self._is_local(record)

    def _meet(self, rank: int, record: int) -> Iterator[int]:
        """Post one end of a message, and complete the message where the other end is there."""
        peer, kind = self._peer[record], self._kind[record]
        pair = (rank, peer) if kind == RecordKind.SEND else (peer, rank)
        # SEND is 0 and RECV is 1.
        other_kind = RecordKind.RECV - kind
        others = self._posted[(*pair, other_kind)]
        if not others:
            self._posted[(*pair, kind)].append(record)
            return
        other = others.popleft()
        self._check_counts(rank, record, other, pair)
        self.order.append(record if kind == RecordKind.RECV else other)
        self._open[rank].remove(record)
        self._open[peer].remove(other)
        if not self._open[peer]:
            yield peer

    def _check_counts(self, rank: int, record: int, other: int, pair: tuple[int, int]) -> None:
        """Raise `InputError` where the ends that have met differ in size."""
        mine, theirs = self._count[record], self._count[other]
        if mine != theirs:
            counts = f"{mine} blocks at rank {rank}, {theirs} at rank {self._peer[record]}"
            message = f"a message from rank {pair[0]} to rank {pair[1]} has {counts}"
            raise InputError(message, code="count-mismatch")

    def waiting(self) -> list[int | None]:
        """Per rank the first record for which it waits, None where it is done."""
        return [self._awaited(rank) for rank in range(len(self._next))]

    def _awaited(self, rank: int) -> int | None:
        """The first record for which a rank waits."""
        if self._open[rank]:
            return self._open[rank][0]
        at: int = self._next[rank]
        return at if at < self._end[rank] else None
