"""Find an order of execution of all ranks' steps without cyclic waits, and decide fusions.

Also finds reducing receives whose sum is only forwarded: the `rrs` steps of a file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.writing.draft import READS_SRC, WRITES_DST, StepDraft
from hub_core.columns import (
    BoolArray,
    Int64Array,
    expanded_ranges,
    group_of_entry,
    row_pointer,
    topological_levels,
)
from hub_core.model import Buffer, StepKind


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """An order of execution, and the fusions.

    `position`: int64 per row, possible order of execution of all ranks; `fused_into`: int64 per
    row, the receive with which a send is fused, or the first reduction of the chain to which a
    reduction belongs (fused rows have equal positions), else -1.
    """

    position: Int64Array
    fused_into: Int64Array


def arrange(
    draft: StepDraft,
    parents: Int64Array,
    children: Int64Array,
    fusable: Edges,
) -> Arrangement | None:
    """Order rows by dependencies, messages, connection order and the pairs (`parents`, `children`).

    `fusable`: (row, row fused into it); pairs whose fusion would close a cycle of waits are not
    fused. None if there is a cycle without any fusion. Each round sorts topologically with each
    fused pair as one node, and drops the pairs in a cycle; a round is linear in pairs, and in
    practice there are few rounds.
    """
    all_parents, all_children = _collect_waits(draft, parents, children)
    into, fused = fusable
    while True:
        node = np.arange(len(draft))
        node[fused] = into
        from_node, to_node = _drop_inner_pairs(node[all_parents], node[all_children])
        order = topological_levels(len(draft), from_node, to_node)
        if order.is_complete:
            fused_into = np.full(len(draft), -1, np.int64)
            fused_into[fused] = into
            return Arrangement(order.position[node], fused_into)
        # In a cycle, or between two cycles: reached neither from the start nor, backwards, from the
        # end.
        backwards = topological_levels(len(draft), to_node, from_node)
        is_circular: BoolArray = (order.position < 0) & (backwards.position < 0)
        is_kept = ~is_circular[into]
        if bool(is_kept.all()):
            return None
        into, fused = into[is_kept], fused[is_kept]


def _collect_waits(
    draft: StepDraft,
    parents: Int64Array,
    children: Int64Array,
) -> Edges:
    """All pairs (earlier row, later row) of the program."""
    sends = np.flatnonzero(draft.sends)
    receives = draft.partner[sends]
    earlier, later = _find_connection_order(draft)
    # A message is an order too: its receive follows its send.
    all_parents = np.concatenate([draft.parents, sends, earlier, parents])
    all_children = np.concatenate([draft.children, receives, later, children])
    return all_parents, all_children


def _drop_inner_pairs(from_node: Int64Array, to_node: Int64Array) -> Edges:
    """Pairs of different nodes; within a node the runtime keeps the order."""
    is_apart = from_node != to_node
    return from_node[is_apart], to_node[is_apart]


def find_neighbours(key: Int64Array, order: Int64Array) -> Edges:
    """Consecutive rows among the rows with the same key (0 or more), ordered by `order`."""
    rows = np.flatnonzero(key >= 0)
    # Sorted by key, so that rows with equal keys are adjacent.
    rows = rows[np.lexsort((order[rows], key[rows]))]
    before, after = rows[:-1], rows[1:]
    is_same = key[before] == key[after]
    return before[is_same], after[is_same]


def _find_connection_order(draft: StepDraft) -> Edges:
    """Row order on both sides of each connection: the k-th send is matched by the k-th receive."""
    connection, _ = draft.connections
    rows = np.arange(len(draft))
    sends = find_neighbours(np.where(draft.sends, connection, -1), rows)
    receives = find_neighbours(np.where(draft.receives, connection, -1), rows)
    earlier = np.concatenate([sends[0], receives[0]])
    later = np.concatenate([sends[1], receives[1]])
    return earlier, later


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
