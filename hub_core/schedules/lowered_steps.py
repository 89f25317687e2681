"""Steps of a schedule: messages with their SCRATCH memory, copies, and start-up times of planes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, Int64Array, first_positions
from hub_core.model import COLUMN_DEFAULTS, COLUMN_DTYPES, Buffer, StepKind
from hub_core.schedules.message_ends import ChunkHolders, MessageEnds, RowPairs
from hub_core.schedules.transfers import Transfers

StepColumns = dict[str, npt.NDArray[np.generic]]
"""Columns of equal length by name; the names are `COLUMN_NAMES`."""


# A schedule has neither thread blocks nor source lines.
COLUMN_NAMES = tuple(name for name in COLUMN_DTYPES if name not in ("lane", "source_line"))


def build_columns(kind: StepKind, values: Mapping[str, npt.NDArray[np.generic]]) -> StepColumns:
    """Return the columns of steps of one kind, by name; the names are `COLUMN_NAMES`.

    `values`: columns by name, which must include `rank`; its length is the number of steps.
    Given columns are not copied or converted. Missing columns get their default value.
    Other names, such as `lane` and `source_line`, are ignored. A column `kind` in `values`
    replaces `kind`.
    """
    rows = len(values["rank"])
    columns: StepColumns = {"kind": np.full(rows, kind)}
    for name in COLUMN_NAMES:
        if name in values:
            columns[name] = values[name]
        elif name != "kind":
            columns[name] = np.full(rows, COLUMN_DEFAULTS[name])
    return columns


def concatenate_columns(parts: Sequence[StepColumns]) -> StepColumns:
    """Concatenate the rows of all parts in order; return the columns by name.

    The result has the columns `COLUMN_NAMES` (all except `lane` and `source_line`). If only
    one part has rows, all of its columns are returned, without copies. There must be at
    least one part.
    """
    filled = [part for part in parts if len(part["rank"])]
    if len(filled) == 1:
        return dict(filled[0])
    return {name: np.concatenate([part[name] for part in parts]) for name in COLUMN_NAMES}


def build_startup_steps(
    message_ends: MessageEnds, channel: Int64Array, startup_ns: Int64Array
) -> tuple[StepColumns, RowPairs]:
    """Build COMPUTE steps for the start-up times of planes, and control edges to their sends.

    `channel`: int64 per row of `message_ends`; channel c belongs to plane c mod
    `len(startup_ns)`. `startup_ns`: int64 per plane; empty means one plane that is ready at 0.

    Only sends that read INPUT wait, and only if their plane has a start-up time above 0. Each pair
    of rank and plane with such a send gets one step with this time as duration, sorted by rank,
    then by plane. An edge leads from it to each of these sends, in the order of their rows. In the
    edges, the n start-up steps have rows 0 to n - 1, and row r of `message_ends` has row n + r.
    """
    times = startup_ns if len(startup_ns) else np.zeros(1, np.int64)
    planes = len(times)
    plane = channel % planes

    # Only the sends that read INPUT wait; sends of arrived chunks come later anyway.
    waits = message_ends.is_send & ~message_ends.has_arrived & (times[plane] > 0)
    sends = np.flatnonzero(waits)
    key = message_ends.rank[sends] * planes + plane[sends]
    distinct, step = np.unique(key, return_inverse=True)
    rank, plane_of_step = np.divmod(distinct, planes)
    columns = build_columns(
        StepKind.COMPUTE,
        {"rank": rank, "duration_ns": times[plane_of_step]},
    )
    return columns, (step.astype(np.int64), sends + len(rank))


def build_copies(message_ends: MessageEnds, holders: ChunkHolders) -> tuple[StepColumns, RowPairs]:
    """Build COPY steps from INPUT to OUTPUT for chunks that stay at their only contributor.

    A chunk gets a copy if exactly one NPU contributes to it and this NPU also needs it,
    even at equal offsets. If `message_ends.wanted` is not None, only these NPUs get copies.
    Chunks that are adjacent both in INPUT and in OUTPUT of an NPU share one step. The steps
    are sorted by NPU, then by offset in INPUT.

    Returns (columns, edges). The columns are those of `build_columns`, in units. They are
    empty without such chunks. The edges are (rows of sends, rows of copies), in the order
    of the sends. A send of a copied chunk that precedes the first arrival of the chunk at
    its NPU reads INPUT. It gets an edge, so that a copy in place does not overwrite INPUT
    too early. The edges number row r of `message_ends` as r, and copy k as
    `len(message_ends) + k`.
    """
    chunks = holders.chunks
    npu, chunk = holders.find_local_chunks()
    if message_ends.wanted is not None:
        is_wanted = np.isin(npu, message_ends.wanted)
        npu, chunk = npu[is_wanted], chunk[is_wanted]
    order = np.lexsort((chunks.input_offset[chunk], npu))
    npu, chunk = npu[order], chunk[order]
    # One step copies a chunk together with that of the row before, if they are adjacent.
    is_adjacent = np.zeros(len(npu), np.bool_)
    is_adjacent[1:] = npu[1:] == npu[:-1]
    for offsets in (chunks.input_offset, chunks.output_offset):
        offset = offsets[chunk]
        end = offset + chunks.count[chunk]
        is_adjacent[1:] &= offset[1:] == end[:-1]
    is_head = ~is_adjacent
    head = np.flatnonzero(is_head)
    copy = np.cumsum(is_head) - 1
    units = np.bincount(copy, chunks.count[chunk], len(head))
    columns = build_columns(
        StepKind.COPY,
        {
            "rank": npu[head],
            "src_buffer": np.full(len(head), Buffer.INPUT),
            "src_offset": chunks.input_offset[chunk[head]],
            "dst_buffer": np.full(len(head), Buffer.OUTPUT),
            "dst_offset": chunks.output_offset[chunk[head]],
            "count": units.astype(np.int64),
        },
    )
    # In place, a copy may overwrite data that messages still read.
    reads = _order_after_reads(message_ends, len(chunks), npu, chunk, len(message_ends) + copy)
    return columns, reads


def build_message_steps(
    message_ends: MessageEnds,
    transfers: Transfers,
    holders: ChunkHolders,
    needs: BoolArray,
    slot: Int64Array,
    channel: Int64Array,
) -> StepColumns:
    """Return the columns (`COLUMN_NAMES`) of the steps of all messages; row r is that of end r.

    An end is the send or the receive of a message. `needs`: bool per end, whether its rank
    must have the chunk after the collective. `slot`: int64 per end, offset in SCRATCH.
    `channel`: int64 per end. Inputs are not checked.

    - Memory of the chunk: OUTPUT at the chunk's output offset if `needs`, otherwise SCRATCH
      at `slot`.
    - Operand: this memory, if the chunk arrived at the rank in an earlier row. Otherwise
      INPUT at the chunk's input offset.
    - Send: a SEND from the operand, without a destination.
    - Receive: a RECV_REDUCE of the operand into the memory, if the transfer reduces, and the
      chunk arrived earlier or the rank has it (or a contribution) from the start. Otherwise
      a RECV into the memory, without a source.

    A missing source or destination is `Buffer.UNKNOWN` with offset 0. `peer` is the NPU at
    the other end, `count` the units of the chunk, and `duration_ns` is -1.
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
    """Allocate SCRATCH for chunks that a rank receives but does not need after the collective.

    An end is the sending or the receiving side of a transfer. `needs`: bool[ends], whether the rank
    of the end must have the chunk after the collective. Returns (offset, size) in units, int64:
    `offset[ends]` is the place of the chunk in SCRATCH, `size[num_npus]` the total of each rank.

    These ends get no slot, and have offset 0: ends with `needs`, and sends before the first arrival
    of their chunk at the rank (they read INPUT). All remaining ends of one rank and chunk share
    one slot, and slots are never reused. The slots of a rank begin at 0 and are consecutive by
    chunk number. A slot has the size of its chunk (`holders.chunks.count`).
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


def _order_after_reads(
    message_ends: MessageEnds, num_chunks: int, npu: Int64Array, chunk: Int64Array, copy: Int64Array
) -> RowPairs:
    """Return control edges by which copies into INPUT wait for sends that read the same chunk.

    `npu`, `chunk`, `copy`: the copied chunks and the rows of their copies, int64. Each pair of NPU
    and chunk occurs once. A send reads INPUT if its chunk has not arrived at its rank before
    (`has_arrived` is False). Each such send of a copied chunk has one edge.

    The result is (rows of sends, rows of their copies) in the order of the sends. It is empty
    without copied chunks.
    """
    # Sends of arrived chunks read OUTPUT or SCRATCH, which these copies do not overwrite.
    sends = np.flatnonzero(message_ends.is_send & ~message_ends.has_arrived)
    if not len(npu):
        return sends[:0], sends[:0]
    sent = message_ends.rank[sends] * num_chunks + message_ends.chunk[sends]
    copied = npu * num_chunks + chunk
    order = np.argsort(copied)
    position = np.searchsorted(copied[order], sent)
    match = order[np.minimum(position, len(copied) - 1)]
    is_copied = copied[match] == sent
    return sends[is_copied], copy[match[is_copied]]
