"""Both ends of every transfer in chronological order, and the ranks that have or need a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Int64Array,
    positions_in,
    run_lengths,
    run_starts,
    stable_order,
    stable_order_by,
)
from hub_core.model import ALL_RANKS, InputError
from hub_core.schedules.transfers import NO_RANK, Chunks, Transfers


@dataclass(frozen=True, slots=True, eq=False)
class ChunkHolders:
    """Which NPUs have a chunk before the collective, and which must have it afterwards.

    `members`: int64[num_ranks], the NPU of every rank; `rank_of`: int64[num_npus], the rank of
    every NPU, -1 for NPUs that only relay.
    """

    chunks: Chunks
    members: Int64Array
    rank_of: Int64Array

    @classmethod
    def from_members(cls, chunks: Chunks, members: Int64Array, num_npus: int) -> ChunkHolders:
        """The holders of chunks if rank r is NPU `members[r]`."""
        return cls(chunks, members, positions_in(members, num_npus))

    @property
    def num_npus(self) -> int:
        """Number of NPUs, relays included."""
        return len(self.rank_of)

    def has_before(self, npu: Int64Array, chunk: Int64Array) -> BoolArray:
        """Whether NPU `npu[i]` initially has chunk `chunk[i]` or a contribution to it, bool per
        row.

        `npu`, `chunk`: int64 columns of equal length.
        """
        return self._is_one_of(self.chunks.origin, npu, chunk)

    def needs(self, npu: Int64Array, chunk: Int64Array) -> BoolArray:
        """Whether NPU `npu[i]` must have chunk `chunk[i]` afterwards, bool per row.

        `npu`, `chunk`: int64 columns of equal length.
        """
        return self._is_one_of(self.chunks.target, npu, chunk)

    def find_local_chunks(self) -> tuple[Int64Array, Int64Array]:
        """(npu, chunk) of chunks of which one rank is the only contributor and a target, int64."""
        origin, target = self.chunks.origin, self.chunks.target
        # With a single rank, a reduction is a copy of its contribution.
        single_rank = 0 if len(self.members) == 1 else NO_RANK
        contributor = np.where(origin == ALL_RANKS, single_rank, origin)
        is_target = (target == ALL_RANKS) | (target == contributor)
        chunk = np.flatnonzero(is_target & (contributor >= 0))
        return self.members[contributor[chunk]], chunk

    def _is_one_of(self, ranks: Int64Array, npu: Int64Array, chunk: Int64Array) -> BoolArray:
        """Whether `npu[i]` has a rank and `ranks[chunk[i]]` is that rank or `ALL_RANKS`."""
        rank = self.rank_of[npu]
        chunk_rank = ranks[chunk]
        # `ALL_RANKS` does not include relays, whose rank is -1.
        matches: BoolArray = (rank >= 0) & ((chunk_rank == ALL_RANKS) | (chunk_rank == rank))
        return matches


@dataclass(frozen=True, slots=True, eq=False)
class MessageEnds(ColumnTable):
    """Both ends of every transfer, by rank and then by time, as columns of equal length.

    `transfer`, `rank`, `chunk`: int64; `is_send`: whether this is the sending end. `previous`:
    int64, the row of the last arrival of the chunk at the rank before this end, or -1. `wanted`:
    the ranks whose ends are included, None for all.
    """

    transfer: Int64Array
    is_send: BoolArray
    rank: Int64Array
    chunk: Int64Array
    previous: Int64Array
    wanted: Int64Array | None

    @classmethod
    def from_transfers(
        cls, transfers: Transfers, num_chunks: int, wanted: Sequence[int] | None
    ) -> MessageEnds:
        """Build the ends of all transfers at the ranks `wanted` (None: all), by rank and time.

        At one time, arrivals precede sends, so that a chunk can be forwarded at once; simultaneous
        ends of one kind are sorted by the time of the opposite end. Cost: three sorts.
        """
        # Until they are sorted, transfer i is sent in row i and received in row count + i.
        count = len(transfers)
        end = np.arange(2 * count, dtype=np.int64)
        rank = np.concatenate([transfers.source, transfers.destination])
        time = np.concatenate([transfers.start, transfers.finish])
        peer_time = np.concatenate([transfers.finish, transfers.start])
        ranks = None
        if wanted is not None:
            ranks = np.asarray(wanted, np.int64)
            # Before sorting, since one rank of a large network has few ends.
            end = end[np.isin(rank, ranks)]

        # Simultaneous ends of one kind are ordered by the time of the opposite end: messages of a
        # channel can start simultaneously if their first link takes no time, and must arrive in the
        # order in which they were sent.
        end = end[stable_order(peer_time[end])]
        is_send = end < count
        # Arrivals precede simultaneous sends, so that a chunk can be forwarded at once.
        order = stable_order_by(rank[end], 2 * time[end] + is_send)
        end, is_send = end[order], is_send[order]
        transfer = end % max(count, 1)
        chunk = transfers.chunk[transfer]
        previous = _find_last_arrivals(rank[end] * num_chunks + chunk, is_send)
        return cls(transfer, is_send, rank[end], chunk, previous, ranks)

    @property
    def has_arrived(self) -> BoolArray:
        """Whether the chunk arrived at the rank before this end, so it is not read from INPUT."""
        arrived: BoolArray = self.previous >= 0
        return arrived


def check_causality(message_ends: MessageEnds, transfers: Transfers, holders: ChunkHolders) -> None:
    """Raise `InputError` for a chunk that is sent before its source has it.

    The times of receives need no check: a receive may be arbitrarily early.
    """
    is_available = message_ends.has_arrived | holders.has_before(
        message_ends.rank, message_ends.chunk
    )
    is_premature = message_ends.is_send & ~is_available
    if not is_premature.any():
        return
    row = int(np.argmax(is_premature))
    chunk, npu = int(message_ends.chunk[row]), int(message_ends.rank[row])
    start = int(transfers.start[message_ends.transfer[row]])
    message = f"chunk {chunk} from NPU {npu} at time {start}"
    raise InputError(
        f"the schedule sends {message}, before the chunk has arrived there",
        code="schedule-acausal",
    )


def _find_last_arrivals(key: Int64Array, is_send: BoolArray) -> Int64Array:
    """Per end, the row of the last arrival with the same key before it, or -1, int64.

    `key`: int64, unique for every (rank, chunk).
    """
    # A stable sort preserves the chronological order of the rows of a key.
    rows = len(key)
    order = stable_order(key)
    starts = run_starts(key[order])
    first = np.repeat(starts, run_lengths(starts, rows))

    # The running maximum over the rows of arrivals is the last arrival. A value of a previous key
    # is less than the first row of this key, and is discarded below.
    arrivals = np.where(is_send[order], -1, np.arange(rows))
    latest = np.maximum.accumulate(arrivals)
    before = np.append(-1, latest)[:rows]
    last = np.where(before >= first, order[before], -1)
    previous = np.empty(rows, np.int64)
    previous[order] = last
    return previous
