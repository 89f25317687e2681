"""Both ends of every transfer in the order in which each rank sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Int64Array,
    run_lengths,
    run_starts,
    stable_order,
    stable_order_by,
)
from hub_core.model import InputError
from hub_core.schedules.lowering.holders import ChunkHolders
from hub_core.schedules.transfers import Transfers


@dataclass(frozen=True, slots=True, eq=False)
class MessageEnds(ColumnTable):
    """Both ends of every transfer, by rank and then by time, as columns of equal length.

    `transfer`, `rank`, `chunk`: int64; `is_send`: whether this is the end that sends. `previous`:
    int64, the row of the last arrival of the chunk at the rank before this end, or -1. `wanted`:
    the ranks whose ends these are, None for all.
    """

    transfer: Int64Array
    is_send: BoolArray
    rank: Int64Array
    chunk: Int64Array
    previous: Int64Array
    wanted: Int64Array | None

    @classmethod
    def of(cls, transfers: Transfers, num_chunks: int, wanted: Sequence[int] | None) -> MessageEnds:
        """The ends of `transfers` at the ranks `wanted`. Cost: three sorts.

        Before the first, the k-th end is where transfer k starts; behind all of these, they end.
        """
        count = len(transfers)
        end = np.arange(2 * count, dtype=np.int64)
        rank = np.concatenate([transfers.source, transfers.destination])
        time = np.concatenate([transfers.start, transfers.finish])
        other_time = np.concatenate([transfers.finish, transfers.start])
        chosen = None
        if wanted is not None:
            chosen = np.asarray(wanted, np.int64)
            # Before the sort: of a large network, one rank's ends are few.
            end = end[np.isin(rank, chosen)]

        # Ends of one kind and moment are ordered by the time of the other end: messages of a
        # channel, which may start together if their first link takes no time, arrive in the order
        # in which they were sent.
        end = end[stable_order(other_time[end])]
        is_send = end < count
        # A chunk that arrives at the moment of a departure can leave with it: arrivals precede.
        order = stable_order_by(rank[end], 2 * time[end] + is_send)
        end, is_send = end[order], is_send[order]
        transfer = end % max(count, 1)
        chunk = transfers.chunk[transfer]
        place = rank[end] * num_chunks + chunk
        previous = _last_arrivals(place, is_send)
        return cls(transfer, is_send, rank[end], chunk, previous, chosen)

    @property
    def has_arrived(self) -> BoolArray:
        """Whether the chunk has come to the rank before, so that it does not read INPUT."""
        arrived: BoolArray = self.previous >= 0
        return arrived


def check_causality(ends: MessageEnds, transfers: Transfers, holders: ChunkHolders) -> None:
    """Raise `InputError` for a chunk that is sent before its source has it.

    Nothing else can go wrong in time: a receive may be as early as the schedule likes.
    """
    has_it = ends.has_arrived | holders.has_before(ends.rank, ends.chunk)
    lacks = ends.is_send & ~has_it
    if not lacks.any():
        return
    row = int(np.argmax(lacks))
    chunk, npu = int(ends.chunk[row]), int(ends.rank[row])
    start = int(transfers.start[ends.transfer[row]])
    sent = f"chunk {chunk} from NPU {npu} at time {start}"
    raise InputError(
        f"the schedule sends {sent}, before it is there",
        code="schedule-acausal",
    )


def _last_arrivals(place: Int64Array, is_send: BoolArray) -> Int64Array:
    """Per end, the row of the last arrival at the same place before it, or -1, int64.

    `place`: int64, one number a (rank, chunk).
    """
    # A stable sort by place keeps the order of time within each.
    rows = len(place)
    order = stable_order(place)
    starts = run_starts(place[order])
    first = np.repeat(starts, run_lengths(starts, rows))

    # A running maximum over the rows of arrivals carries the last one along. What it carries over
    # from the place before is less than the first row of the own place.
    arrivals = np.where(is_send[order], -1, np.arange(rows))
    latest = np.maximum.accumulate(arrivals)
    before = np.append(-1, latest)[:rows]
    last = np.where(before >= first, order[before], -1)
    previous = np.empty(rows, np.int64)
    previous[order] = last
    return previous
