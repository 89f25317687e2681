"""Room in SCRATCH for chunks that a rank only forwards."""

from __future__ import annotations

import numpy as np

from hub_core.columns import BoolArray, Int64Array, first_positions
from hub_core.schedules.lowering.holders import ChunkHolders
from hub_core.schedules.lowering.message_ends import MessageEnds


def scratch_slots(
    ends: MessageEnds, needs: BoolArray, holders: ChunkHolders
) -> tuple[Int64Array, Int64Array]:
    """Per end, the offset in SCRATCH of a chunk that its rank does not need; and the sizes.

    `needs`: bool per end, whether its rank must have the chunk after. The offsets are int64 per
    end, the sizes int64[num_npus].
    """
    count = holders.chunks.count
    # A first send reads INPUT, where the rank has the chunk: no slot for that.
    reads_input = ends.is_send & ~ends.has_arrived
    relayed = ~needs & ~reads_input

    # One slot a (rank, chunk): what is forwarded twice, or reduced on the way, stays where it is.
    place = ends.rank * len(count) + ends.chunk
    distinct, slot_of_end = np.unique(place[relayed], return_inverse=True)
    rank, chunk = np.divmod(distinct, max(len(count), 1))
    sizes = count[chunk]
    units = np.bincount(rank, sizes, holders.num_npus).astype(np.int64)

    # Slots are numbered rank by rank: less the ranks before, that is the place within a rank.
    first_of_rank = first_positions(units)
    within_rank = first_positions(sizes) - first_of_rank[rank]
    slot = np.zeros(len(ends), np.int64)
    slot[relayed] = within_rank[slot_of_end]
    return slot, units
