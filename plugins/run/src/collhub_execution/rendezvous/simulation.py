"""Simulate the messages of a program, without data, on a transport without buffers."""

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

    A rank posts the messages of its level, in order, and continues when all of them have been
    matched; messages of one pair of ranks are matched in the order in which they are posted. `seed`
    shuffles the order of ranks, which must not affect the result. One Python step per record: for
    programs that may be wrong, and for tests. Raises `InputError` with the position of every rank
    if all are blocked, and for two ends of a message that differ in size.
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
        message = f"{count} of {program.num_ranks} ranks wait for each other and never finish"
        raise deadlock(algorithm, program, stuck, message)
    return np.asarray(ranks.order, np.int64)


class _SimulatedRanks:
    """The state of every rank: its next record, and the open messages of its level.

    A message is open at a rank from its post until both ends have been matched.
    """

    def __init__(self, program: LevelledProgram) -> None:
        """All ranks are before their first records."""
        # Lists, because single elements of numpy arrays are slow to read.
        self._kind, self._level = program.kind.tolist(), program.level.tolist()
        self._peer, self._count = program.peer.tolist(), program.count.tolist()
        self._next = program.rank_indptr[:-1].tolist()
        self._end = program.rank_indptr[1:].tolist()
        self._open: list[list[int]] = [[] for _ in self._next]
        # (source, destination, kind of end) to the records that wait for their other end.
        self._posted: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self.order: list[int] = []

    def advance(self, rank: int) -> Iterator[int]:
        """Run a rank while it has no open message; yield the ranks that may be unblocked."""
        while not self._open[rank] and self._next[rank] < self._end[rank]:
            record = self._next[rank]
            if self._is_local(record):
                self.order.append(record)
                self._next[rank] += 1
            else:
                yield from self._post_level(rank, self._level[record])

    def _is_local(self, record: int) -> bool:
        """Return whether a record needs no other rank."""
        is_local: bool = self._kind[record] >= RecordKind.COPY
        return is_local

    def _post_level(self, rank: int, level: int) -> Iterator[int]:
        """Post all messages of a level; yield the ranks that this may have unblocked."""
        record = self._next[rank]
        while self._is_message_of(level, record, self._end[rank]):
            self._open[rank].append(record)
            record += 1
        self._next[rank] = record
        # A copy, because matching removes messages.
        for posted in list(self._open[rank]):
            yield from self._meet(rank, posted)

    def _is_message_of(self, level: int, record: int, end: int) -> bool:
        """Return whether a record is a message of this level;

        `end`: one past the rank's last record.
        """
        return record < end and self._level[record] == level and not self._is_local(record)

    def _meet(self, rank: int, record: int) -> Iterator[int]:
        """Post one end of a message, and complete the message if the other end is posted."""
        peer, kind = self._peer[record], self._kind[record]
        pair = (rank, peer) if kind == RecordKind.SEND else (peer, rank)
        # SEND is 0 and RECV is 1.
        other_kind = RecordKind.RECV - kind
        candidates = self._posted[(*pair, other_kind)]
        if not candidates:
            self._posted[(*pair, kind)].append(record)
            return
        match = candidates.popleft()
        self._check_counts(rank, record, match, pair)
        self.order.append(record if kind == RecordKind.RECV else match)
        self._open[rank].remove(record)
        self._open[peer].remove(match)
        if not self._open[peer]:
            yield peer

    def _check_counts(self, rank: int, record: int, match: int, pair: tuple[int, int]) -> None:
        """Raise `InputError` if the matched ends differ in size."""
        count, matched_count = self._count[record], self._count[match]
        if count != matched_count:
            counts = f"{count} blocks at rank {rank}, {matched_count} at rank {self._peer[record]}"
            message = f"a message from rank {pair[0]} to rank {pair[1]} has {counts}"
            raise InputError(message, code="count-mismatch")

    def waiting(self) -> list[int | None]:
        """Return per rank the first record for which it waits, None if it has finished."""
        return [self._awaited(rank) for rank in range(len(self._next))]

    def _awaited(self, rank: int) -> int | None:
        """Return the first record for which a rank waits, None if it has finished."""
        if self._open[rank]:
            return self._open[rank][0]
        at: int = self._next[rank]
        return at if at < self._end[rank] else None
