"""Find reducing receives whose sum is only forwarded: the `rrs` steps of a file."""

from __future__ import annotations

import numpy as np

from collhub_msccl.writing.draft import READS_SRC, WRITES_DST, StepDraft
from collhub_msccl.writing.emission_order import Arrangement
from hub_core.columns import BoolArray, Int64Array, expanded_ranges, group_of_entry, row_pointer
from hub_core.model import Buffer, StepKind


def find_forwarded_sums(draft: StepDraft, arrangement: Arrangement) -> BoolArray:
    """Mask of reducing receives whose sum in SCRATCH is used only by the send fused with them.

    No other step may access the units of the sum. A candidate that shares a unit with another
    access must store its sum, which makes its units unavailable for the remaining candidates:
    repeated until no candidate is removed.
    """
    receive, send = _find_candidates(draft, arrangement)
    is_slot = np.zeros(len(draft), np.bool_)
    is_slot[receive] = True
    if not len(receive):
        return is_slot
    # Units accessed by steps that store their data are unavailable for slots.
    row, unit, is_read = _find_scratch_accesses(draft)
    receive_of_send = np.full(len(draft), -1, np.int64)
    receive_of_send[send] = receive
    # The fused send reads the data of its receive: both are accesses of one step.
    owner = np.where(receive_of_send[row] >= 0, receive_of_send[row], row)
    # The operand of a reducing receive is a separate read, for which a slot cannot be used.
    is_operand = is_read & (draft.kind[row] == StepKind.RECV_REDUCE)
    while True:
        is_foreign = np.zeros(int(unit.max()) + 1, np.bool_)
        is_foreign[unit[~is_slot[owner] | is_operand]] = True
        lost = np.unique(owner[is_slot[owner] & is_foreign[unit]])
        if not len(lost):
            return is_slot
        is_slot[lost] = False


def _find_candidates(draft: StepDraft, arrangement: Arrangement) -> tuple[Int64Array, Int64Array]:
    """Reducing receives into SCRATCH with a fused send, and these sends."""
    send = np.flatnonzero(arrangement.fused_into >= 0)
    receive = arrangement.fused_into[send]
    is_candidate = draft.kind[receive] == StepKind.RECV_REDUCE
    is_candidate &= draft.dst_buffer[receive] == Buffer.SCRATCH
    return receive[is_candidate], send[is_candidate]


def _find_scratch_accesses(draft: StepDraft) -> tuple[Int64Array, Int64Array, BoolArray]:
    """Row, unit and read flag of every access to SCRATCH, reads first.

    Units are numbered across all ranks.
    """
    highest = np.maximum(draft.src_offset, draft.dst_offset) + draft.count
    width = int(highest.max(initial=0)) + 1
    reads = draft.is_kind(*READS_SRC) & (draft.src_buffer == Buffer.SCRATCH)
    writes = draft.is_kind(*WRITES_DST) & (draft.dst_buffer == Buffer.SCRATCH)
    read_rows, read_places = _expand_units(draft, reads, draft.src_offset, width)
    write_rows, write_places = _expand_units(draft, writes, draft.dst_offset, width)
    row = np.concatenate([read_rows, write_rows])
    places = np.concatenate([read_places, write_places])
    # Dense numbers, for a table of used units.
    _, unit = np.unique(places, return_inverse=True)
    is_read = np.arange(len(row)) < len(read_rows)
    return row, unit.astype(np.int64).reshape(-1), is_read


def _expand_units(
    draft: StepDraft,
    is_used: BoolArray,
    offset: Int64Array,
    width: int,
) -> tuple[Int64Array, Int64Array]:
    """Rows and addresses (rank * width + unit) of all units that the rows of `is_used` access."""
    length = np.where(is_used, draft.count, 0)
    row = group_of_entry(row_pointer(length))
    return row, expanded_ranges(draft.rank * width + offset, length)
