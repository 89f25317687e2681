"""Find reducing receives whose sum is sent on and needed nowhere else: the `rrs` of a file."""

from __future__ import annotations

import numpy as np
from collhub_columns import BoolArray, Int64Array, expanded_ranges, group_of_entry, row_pointer

from collhub_msccl.writing.draft import READS_SRC, WRITES_DST, StepDraft
from collhub_msccl.writing.emission_order import Arrangement
from hub_core.model import Buffer, StepKind


def forwarded_only(draft: StepDraft, arrangement: Arrangement) -> BoolArray:
    """Mask of reducing receives whose sum lies in SCRATCH for nothing but the send fused with them.

    No one else touches the units where their sums would stand. A candidate that shares a unit with
    something else stores its sum, and with that takes the unit from others: repeated until none is
    lost.
    """
    receive, send = _candidates(draft, arrangement)
    is_slot = np.zeros(len(draft), np.bool_)
    is_slot[receive] = True
    if not len(receive):
        return is_slot
    # Units used by anything that stays are taken; a slot must not share one.
    row, unit, is_read = _scratch_accesses(draft)
    receive_of_send = np.full(len(draft), -1, np.int64)
    receive_of_send[send] = receive
    # The fused send reads what its receive wrote: both are accesses of one step.
    owner = np.where(receive_of_send[row] >= 0, receive_of_send[row], row)
    # The operand of a reducing receive is a read of its own, which no slot may serve.
    is_operand = is_read & (draft.kind[row] == StepKind.RECV_REDUCE)
    while True:
        is_foreign = np.zeros(int(unit.max()) + 1, np.bool_)
        is_foreign[unit[~is_slot[owner] | is_operand]] = True
        lost = np.unique(owner[is_slot[owner] & is_foreign[unit]])
        if not len(lost):
            return is_slot
        is_slot[lost] = False


def _candidates(draft: StepDraft, arrangement: Arrangement) -> tuple[Int64Array, Int64Array]:
    """Reducing receives into SCRATCH that have a send fused with them, and these sends."""
    send = np.flatnonzero(arrangement.fused_into >= 0)
    receive = arrangement.fused_into[send]
    is_candidate = draft.kind[receive] == StepKind.RECV_REDUCE
    is_candidate &= draft.dst_buffer[receive] == Buffer.SCRATCH
    return receive[is_candidate], send[is_candidate]


def _scratch_accesses(draft: StepDraft) -> tuple[Int64Array, Int64Array, BoolArray]:
    """Row, unit and whether it reads, of every access to SCRATCH, reads first.

    Units are numbered through all ranks.
    """
    highest = np.maximum(draft.src_offset, draft.dst_offset) + draft.count
    width = int(highest.max(initial=0)) + 1
    reads = draft.is_kind(*READS_SRC) & (draft.src_buffer == Buffer.SCRATCH)
    writes = draft.is_kind(*WRITES_DST) & (draft.dst_buffer == Buffer.SCRATCH)
    read_rows, read_places = _each_place(draft, reads, draft.src_offset, width)
    write_rows, write_places = _each_place(draft, writes, draft.dst_offset, width)
    row = np.concatenate([read_rows, write_rows])
    places = np.concatenate([read_places, write_places])
    # Dense numbers, for a table of units in use.
    _, unit = np.unique(places, return_inverse=True)
    is_read = np.arange(len(row)) < len(read_rows)
    return row, unit.astype(np.int64).reshape(-1), is_read


def _each_place(
    draft: StepDraft,
    is_used: BoolArray,
    offset: Int64Array,
    width: int,
) -> tuple[Int64Array, Int64Array]:
    """Rows and places, rank * width + unit, of all units that the rows of `is_used` touch."""
    length = np.where(is_used, draft.count, 0)
    row = group_of_entry(row_pointer(length))
    return row, expanded_ranges(draft.rank * width + offset, length)
