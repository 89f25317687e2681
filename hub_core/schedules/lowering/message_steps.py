"""Steps of the messages of a schedule, and the SCRATCH memory for relayed chunks."""

from __future__ import annotations

import numpy as np

from hub_core.columns import BoolArray, Int64Array, first_positions
from hub_core.model import Buffer, StepKind
from hub_core.schedules.lowering.local_steps import StepColumns
from hub_core.schedules.lowering.message_ends import ChunkHolders, MessageEnds
from hub_core.schedules.transfers import Transfers


def build_message_steps(
    message_ends: MessageEnds,
    transfers: Transfers,
    holders: ChunkHolders,
    needs: BoolArray,
    slot: Int64Array,
    channel: Int64Array,
) -> StepColumns:
    """Build the columns of the messages: one SEND, RECV or RECV_REDUCE per end.

    `needs`: per end, whether its rank must have the chunk afterwards; then it is received into
    OUTPUT. `slot`: otherwise, its offset in SCRATCH. `channel`: per end, the channel of its
    message. A SEND reads the chunk from the location where it arrived, or from INPUT.
    """
    has_arrived = message_ends.has_arrived
    # A relay without a contribution has no operand: its first receive is a RECV.
    has_operand = has_arrived | holders.has_before(message_ends.rank, message_ends.chunk)
    adds: BoolArray = transfers.reduces[message_ends.transfer] & has_operand & ~message_ends.is_send
    reads = message_ends.is_send | adds
    buffer = np.where(needs, Buffer.OUTPUT, Buffer.SCRATCH)
    offset = np.where(needs, holders.chunks.output_offset[message_ends.chunk], slot)
    src_buffer = np.where(has_arrived, buffer, Buffer.INPUT)
    src_offset = np.where(has_arrived, offset, holders.chunks.input_offset[message_ends.chunk])
    receive_kind = np.where(adds, StepKind.RECV_REDUCE, StepKind.RECV)
    peers = (transfers.destination[message_ends.transfer], transfers.source[message_ends.transfer])
    return {
        "rank": message_ends.rank,
        "kind": np.where(message_ends.is_send, StepKind.SEND, receive_kind),
        "peer": np.where(message_ends.is_send, *peers),
        "channel": channel,
        "src_buffer": np.where(reads, src_buffer, Buffer.UNKNOWN),
        "src_offset": np.where(reads, src_offset, 0),
        "dst_buffer": np.where(message_ends.is_send, Buffer.UNKNOWN, buffer),
        "dst_offset": np.where(message_ends.is_send, 0, offset),
        "count": holders.chunks.count[message_ends.chunk],
        "duration_ns": np.full(len(message_ends), -1),
    }


def allocate_scratch(
    message_ends: MessageEnds, needs: BoolArray, holders: ChunkHolders
) -> tuple[Int64Array, Int64Array]:
    """Allocate SCRATCH for chunks that a rank receives but does not need afterwards.

    `needs`: bool per end, whether its rank must have the chunk afterwards. Returns the offset in
    SCRATCH per end (int64; 0 without a slot) and the size of SCRATCH per NPU (int64[num_npus]),
    both in units.
    """
    count = holders.chunks.count
    # Sends that precede any arrival of their chunk read INPUT and need no slot.
    reads_input = message_ends.is_send & ~message_ends.has_arrived
    relayed = ~needs & ~reads_input

    # One slot per (rank, chunk), also if the chunk is forwarded twice or reduced on the way.
    key = message_ends.rank * len(count) + message_ends.chunk
    distinct, slot_of_end = np.unique(key[relayed], return_inverse=True)
    rank, chunk = np.divmod(distinct, max(len(count), 1))
    sizes = count[chunk]
    units = np.bincount(rank, sizes, holders.num_npus).astype(np.int64)

    # Slots are ordered by rank; subtract the units of the preceding ranks.
    first_of_rank = first_positions(units)
    within_rank = first_positions(sizes) - first_of_rank[rank]
    slot = np.zeros(len(message_ends), np.int64)
    slot[relayed] = within_rank[slot_of_end]
    return slot, units
