"""Steps of the messages: what a SEND reads, and where a receive puts what arrives."""

from __future__ import annotations

import numpy as np

from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Buffer, StepKind
from hub_core.schedules.lowering.columns import StepColumns
from hub_core.schedules.lowering.holders import ChunkHolders
from hub_core.schedules.lowering.message_ends import MessageEnds
from hub_core.schedules.transfers import Transfers


def message_steps(
    ends: MessageEnds,
    transfers: Transfers,
    holders: ChunkHolders,
    needs: BoolArray,
    slot: Int64Array,
    channel: Int64Array,
) -> StepColumns:
    """One SEND, RECV or RECV_REDUCE an end.

    `needs`: per end, whether its rank must have the chunk after. `slot`: its offset in SCRATCH
    where it does not. `channel`: of the message.
    """
    reads = _what_is_read(ends, holders, needs, slot)
    adds = _adds(ends, transfers, holders)
    is_reading = ends.is_send | adds
    writes = _where_it_arrives(ends, holders, needs, slot)
    return {
        "rank": ends.rank,
        "kind": _kinds(ends.is_send, adds),
        "peer": _peers(ends, transfers),
        "channel": channel,
        "src_buffer": np.where(is_reading, reads[0], Buffer.UNKNOWN),
        "src_offset": np.where(is_reading, reads[1], 0),
        "dst_buffer": np.where(ends.is_send, Buffer.UNKNOWN, writes[0]),
        "dst_offset": np.where(ends.is_send, 0, writes[1]),
        "count": holders.chunks.count[ends.chunk],
        "duration_ns": np.full(len(ends), -1),
    }


def _where_it_arrives(
    ends: MessageEnds, holders: ChunkHolders, needs: BoolArray, slot: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """(buffer, offset) of a chunk that has arrived: its final place, if the rank has one for it."""
    buffer = np.where(needs, Buffer.OUTPUT, Buffer.SCRATCH)
    final = holders.chunks.output_offset[ends.chunk]
    return buffer, np.where(needs, final, slot)


def _what_is_read(
    ends: MessageEnds, holders: ChunkHolders, needs: BoolArray, slot: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """(buffer, offset) of a chunk at its rank: what has arrived, else the rank's own in INPUT."""
    buffer, offset = _where_it_arrives(ends, holders, needs, slot)
    own = holders.chunks.input_offset[ends.chunk]
    has_arrived = ends.has_arrived
    return (
        np.where(has_arrived, buffer, Buffer.INPUT),
        np.where(has_arrived, offset, own),
    )


def _adds(ends: MessageEnds, transfers: Transfers, holders: ChunkHolders) -> BoolArray:
    """Whether what arrives is added to what is there, bool per end."""
    # A relay without a contribution has nothing to add to: it receives first, and adds then.
    has_operand = ends.has_arrived | holders.has_before(ends.rank, ends.chunk)
    reduces = transfers.reduces[ends.transfer]
    adds: BoolArray = reduces & has_operand & ~ends.is_send
    return adds


def _kinds(is_send: BoolArray, adds: BoolArray) -> Int64Array:
    """`StepKind` of every end."""
    # A reduction is done while receiving.
    receives = np.where(adds, StepKind.RECV_REDUCE, StepKind.RECV)
    return np.where(is_send, StepKind.SEND, receives)


def _peers(ends: MessageEnds, transfers: Transfers) -> Int64Array:
    """The NPU at the other end."""
    return np.where(
        ends.is_send,
        transfers.destination[ends.transfer],
        transfers.source[ends.transfer],
    )
