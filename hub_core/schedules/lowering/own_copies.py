"""Copies of chunks that a rank has before and needs after, from INPUT to OUTPUT."""

from __future__ import annotations

import numpy as np

from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Buffer, StepKind
from hub_core.schedules.chunks import Chunks
from hub_core.schedules.lowering.columns import RowPairs, StepColumns, steps_of_kind
from hub_core.schedules.lowering.holders import ChunkHolders
from hub_core.schedules.lowering.message_ends import MessageEnds


def own_copies(ends: MessageEnds, holders: ChunkHolders) -> tuple[StepColumns, RowPairs]:
    """The copies, neighbouring chunks as one, and the control edges that put them last.

    In the edges, the k-th copy has row `len(ends) + k`.
    """
    chunks = holders.chunks
    npu, chunk = _kept_chunks(ends, holders)
    is_head = ~_joins_the_one_before(npu, chunk, holders)
    head = np.flatnonzero(is_head)
    copy = np.cumsum(is_head) - 1
    units = np.bincount(copy, chunks.count[chunk], len(head))
    columns = _copy_columns(npu[head], chunk[head], units.astype(np.int64), chunks)
    # Called in place, a copy may overwrite what other messages still read.
    reads = _reads_before(ends, len(chunks), npu, chunk, len(ends) + copy)
    return columns, reads


def _copy_columns(
    npu: Int64Array, chunk: Int64Array, units: Int64Array, chunks: Chunks
) -> StepColumns:
    """Copies of `units` on these NPUs that begin with these chunks; int64 columns."""
    given = {
        "rank": npu,
        "src_buffer": np.full(len(npu), Buffer.INPUT),
        "src_offset": chunks.input_offset[chunk],
        "dst_buffer": np.full(len(npu), Buffer.OUTPUT),
        "dst_offset": chunks.output_offset[chunk],
        "count": units,
    }
    return steps_of_kind(StepKind.COPY, given)


def _kept_chunks(ends: MessageEnds, holders: ChunkHolders) -> tuple[Int64Array, Int64Array]:
    """(npu, chunk), int64, of what the wanted ranks keep.

    In the order of NPUs, and then of places in INPUT, so that neighbours stand side by side.
    """
    # What a rank has from the start, and keeps.
    npu, chunk = holders.kept_chunks()
    if ends.wanted is not None:
        is_wanted = np.isin(npu, ends.wanted)
        npu, chunk = npu[is_wanted], chunk[is_wanted]
    offset = holders.chunks.input_offset[chunk]
    order = np.lexsort((offset, npu))
    return npu[order], chunk[order]


def _joins_the_one_before(npu: Int64Array, chunk: Int64Array, holders: ChunkHolders) -> BoolArray:
    """Whether a chunk follows the one before it on the same NPU, bool per row.

    It must do so in INPUT and in OUTPUT: then one copy moves both.
    """
    joins = np.zeros(len(npu), np.bool_)
    joins[1:] = npu[1:] == npu[:-1]
    count = holders.chunks.count[chunk]
    for offsets in (holders.chunks.input_offset, holders.chunks.output_offset):
        offset = offsets[chunk]
        end = offset + count
        joins[1:] &= offset[1:] == end[:-1]
    return joins


def _reads_before(
    ends: MessageEnds, num_chunks: int, npu: Int64Array, chunk: Int64Array, copy: Int64Array
) -> RowPairs:
    """Control edges from the sends that read a kept chunk in INPUT to the copy of it.

    `npu`, `chunk`, `copy`: the kept chunks and the rows of their copies, int64.
    """
    # A send of what has arrived reads OUTPUT or SCRATCH, which no copy of an own chunk changes.
    sends = np.flatnonzero(ends.is_send & ~ends.has_arrived)
    if not len(npu):
        return sends[:0], sends[:0]
    sent = ends.rank[sends] * num_chunks + ends.chunk[sends]
    kept = npu * num_chunks + chunk
    order = np.argsort(kept)
    position = np.searchsorted(kept[order], sent)
    last = len(kept) - 1
    nearest = order[np.minimum(position, last)]
    is_kept = kept[nearest] == sent
    return sends[is_kept], copy[nearest[is_kept]]
