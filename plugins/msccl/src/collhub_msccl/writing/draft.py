"""Steps of an algorithm in the form that the writer processes: columns, messages, order, fusions.

The order of execution of all ranks' steps has no cyclic waits. Also finds reducing receives whose
sum is only forwarded: the `rrs` steps of a file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from collhub_msccl.accesses import Edges
from hub_core.columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    expanded_ranges,
    first_positions,
    group_of_entry,
    row_pointer,
    topological_levels,
)
from hub_core.model import (
    Algorithm,
    Buffer,
    Findings,
    InputError,
    Location,
    StepKind,
    connection_keys,
    match_messages,
)
from hub_core.verification import check_regions

READS_SRC = (StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)
WRITES_DST = (StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)


@dataclass(frozen=True)
class StepDraft:
    """Plain steps, one row each, grouped by rank in a possible order of execution.

    All columns are int64. `partner`: row at the other side of a message, -1 for local steps.
    `parents`, `children`: pairs of rows of one rank that must keep this order. The messages of one
    (source, destination, channel) match in row order.
    """

    num_ranks: int
    rank: Int64Array
    kind: Int64Array
    peer: Int64Array
    channel: Int64Array
    src_buffer: Int64Array
    src_offset: Int64Array
    dst_buffer: Int64Array
    dst_offset: Int64Array
    count: Int64Array
    lane: Int64Array
    partner: Int64Array
    parents: Int64Array
    children: Int64Array

    def __len__(self) -> int:
        return len(self.rank)

    def is_kind(self, *kinds: StepKind) -> BoolArray:
        """Return which rows have one of the given kinds: bool[rows].

        All are False without kinds.
        """
        # One look-up per row for any number of kinds.
        is_requested = np.zeros(len(StepKind), np.bool_)
        is_requested[list(kinds)] = True
        return is_requested[self.kind]

    @property
    def sends(self) -> BoolArray:
        """Mask of the sending rows."""
        return self.is_kind(StepKind.SEND)

    @property
    def receives(self) -> BoolArray:
        """Mask of the receiving rows."""
        return self.is_kind(StepKind.RECV, StepKind.RECV_REDUCE)

    @cached_property
    def connections(self) -> tuple[Int64Array, Int64Array]:
        """Return the connection of each row, and the table of connections.

        The first result is int64 per row: the row number in the table, or -1 for local rows
        (without a partner). The table is int64[connections, 3] with the columns source, destination
        and channel, in ascending order; a connection has all sends and receives with these three
        values.
        """
        rows = np.flatnonzero(self.partner >= 0)
        is_send = self.sends[rows]
        rank, peer = self.rank[rows], self.peer[rows]
        source = np.where(is_send, rank, peer)
        destination = np.where(is_send, peer, rank)
        channel = self.channel[rows]
        keys = connection_keys(source, destination, channel)
        _, first, number = np.unique(keys, return_index=True, return_inverse=True)
        connection_of_row = np.full(len(self), -1, np.int64)
        connection_of_row[rows] = number.reshape(-1)
        return connection_of_row, np.stack([source, destination, channel], axis=1)[first]

    def is_forwarding(self, first: Int64Array, second: Int64Array) -> BoolArray:
        """Return for which pairs of rows the second one sends exactly what the first one receives.

        Pair k is (`first[k]`, `second[k]`); the result is bool[pairs]. The first row must be a
        receive, with or without reduction, and write the buffer, offset and count that the second
        row, a send, reads. Ranks and channels are not compared.
        """
        is_pair = self.receives[first] & self.sends[second]
        is_pair &= self.count[first] == self.count[second]
        is_pair &= self.dst_buffer[first] == self.src_buffer[second]
        is_pair &= self.dst_offset[first] == self.src_offset[second]
        return is_pair

    def find_forwarding(self) -> Edges:
        """Return the pairs (receive, send) in which the send forwards the received data.

        The result is two equally long arrays of rows. The send must depend directly on the receive
        and send exactly the region that the receive writes.
        """
        is_pair = self.is_forwarding(self.parents, self.children)
        return self.parents[is_pair], self.children[is_pair]


# Columns with the same name in a step table.
STEP_COLUMNS = sorted(
    {field.name for field in fields(StepDraft)} - {"num_ranks", "partner", "parents", "children"}
)


def build_draft(algorithm: Algorithm, with_control: bool) -> StepDraft:
    """Convert the steps of an algorithm to a draft with int64 columns.

    `with_control`: include the program order in the dependencies; otherwise only data dependencies
    count. `partner` of a row is the other row of its message, -1 for local steps. Raises
    `InputError` for a timing-only trace (`timing-only`), for COMPUTE steps (`opaque-step`), and
    with all findings for unmatched messages and for regions outside their buffers.
    """
    steps = algorithm.steps
    findings = Findings(algorithm.provenance.source_name or None)
    location = Location(algorithm.provenance.source_name or None)
    if not algorithm.has_contents:
        raise InputError(
            "the steps do not specify the units that they access (a timing-only trace),"
            " so no program can be written from them",
            location=location,
            code="timing-only",
        )
    opaque = np.flatnonzero(algorithm.steps.is_kind(StepKind.COMPUTE))
    if len(opaque):
        raise InputError(
            f"{len(opaque)} steps are opaque work (COMPUTE), which MSCCL-IR has no step for",
            location=algorithm.steps.location(int(opaque[0]), location.file),
            code="opaque-step",
        )
    messages = match_messages(steps, findings)
    check_regions(algorithm, findings)
    # The code below assumes matched messages and regions inside their buffers.
    if findings.has_errors():
        raise InputError(list(findings))
    partner = np.full(len(steps), -1, np.int64)
    partner[messages.send] = messages.receive
    partner[messages.receive] = messages.send
    parents, children = steps.data_indices, group_of_entry(steps.data_indptr)
    if with_control:
        parents, children = steps.edges()
    return StepDraft(
        num_ranks=steps.num_ranks,
        partner=partner,
        parents=parents,
        children=children,
        **{name: getattr(steps, name).astype(np.int64) for name in STEP_COLUMNS},
    )


def cut_counts(draft: StepDraft, max_count: int) -> StepDraft:
    """Split the steps of more than `max_count` units; return the same draft if there are none.

    The parts of a step are consecutive rows; all but the last have `max_count` units, and each
    waits for the one before. Part k of a send that forwards exactly the data that a receive wrote,
    and depends on it, waits for part k of the receive only, so that the two can be fused. All other
    steps wait for the last part of each predecessor, in their first part.
    """
    chunk_counts = -(-draft.count // max_count)
    if not len(draft) or int(chunk_counts.max()) <= 1:
        return draft
    first = first_positions(chunk_counts)
    last = first + chunk_counts - 1
    receive, send = draft.find_forwarding()
    row_count = len(draft)
    # Pairs as single numbers, so that membership is one search.
    forward_keys = receive * row_count + send
    is_forward = np.isin(draft.parents * row_count + draft.children, forward_keys)
    of_pair, chunk = _number_chunks(chunk_counts[receive])
    _, within = _number_chunks(chunk_counts)
    # Consecutive chunks of one step are ordered.
    inner = np.flatnonzero(within > 0)
    full_waits = last[draft.parents[~is_forward]], first[draft.children[~is_forward]]
    chunk_waits = first[receive[of_pair]] + chunk, first[send[of_pair]] + chunk
    return StepDraft(
        num_ranks=draft.num_ranks,
        parents=np.concatenate([full_waits[0], chunk_waits[0], inner - 1]),
        children=np.concatenate([full_waits[1], chunk_waits[1], inner]),
        **_cut_columns(draft, chunk_counts, max_count),
    )


def _number_chunks(count: Int64Array) -> tuple[Int64Array, Int64Array]:
    """For rows with these numbers of chunks: row of each chunk, and its index within the row."""
    return group_of_entry(row_pointer(count)), counted_positions(count)


def _cut_columns(
    draft: StepDraft,
    chunk_counts: Int64Array,
    max_count: int,
) -> dict[str, Int64Array]:
    """Build the columns of the chunks of all rows; all chunks but the last have `max_count` units.

    `chunk_counts`: number of chunks of each row. The chunks of a row are consecutive, at increasing
    offsets; the offset of an unused side (UNKNOWN) is kept. `partner` is the row of the chunk with
    the same number in the partner's row, -1 if there is none. The draft is not changed.
    """
    row, within = _number_chunks(chunk_counts)
    columns = {name: getattr(draft, name)[row] for name in (*STEP_COLUMNS, "partner")}
    for side in ("src", "dst"):
        # An unused side keeps its offset of 0.
        is_used = columns[f"{side}_buffer"] != Buffer.UNKNOWN
        columns[f"{side}_offset"] = columns[f"{side}_offset"] + np.where(
            is_used, within * max_count, 0
        )
    # All chunks have the maximum size, except the last.
    columns["count"] = np.minimum(max_count, columns["count"] - within * max_count)
    first = first_positions(chunk_counts)
    partner = columns["partner"]
    columns["partner"] = np.where(partner >= 0, first[partner] + within, -1)
    return columns


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
    """Find an order of execution of all rows, and decide which rows are fused into other rows.

    The order respects dependencies, messages (receive after send), the order of each connection,
    and the pairs (`parents`, `children`). `fusable`: (rows, row that may be fused into each). A
    pair is fused unless that would close a cycle of waits. The result has the position of every row
    (that of the first row for a fused one) and the row into which it is fused, or -1. None if there
    is no order. Method: sort topologically with each fused pair as one node; if there is a cycle,
    stop fusing the pairs that are in or between cycles, and repeat.
    """
    sends = np.flatnonzero(draft.sends)
    receives = draft.partner[sends]
    earlier, later = _find_connection_order(draft)
    # A message is an order too: its receive follows its send.
    all_parents = np.concatenate([draft.parents, sends, earlier, parents])
    all_children = np.concatenate([draft.children, receives, later, children])
    into, fused = fusable
    while True:
        node = np.arange(len(draft))
        node[fused] = into
        from_node, to_node = node[all_parents], node[all_children]
        # Within a node the runtime keeps the order.
        is_apart = from_node != to_node
        from_node, to_node = from_node[is_apart], to_node[is_apart]
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


def find_neighbours(key: Int64Array, order: Int64Array) -> Edges:
    """Return the pairs (row, next row) of rows with the same key, as two arrays.

    `key`, `order`: one value per row. Rows with a negative key are left out. The rows of a key are
    sorted by `order`, then by row number, and each is paired with the following one. The pairs are
    sorted by key, then by `order`.
    """
    rows = np.flatnonzero(key >= 0)
    # Sorted by key, so that rows with equal keys are adjacent.
    rows = rows[np.lexsort((order[rows], key[rows]))]
    before, after = rows[:-1], rows[1:]
    is_same = key[before] == key[after]
    return before[is_same], after[is_same]


def _find_connection_order(draft: StepDraft) -> Edges:
    """Return the pairs of consecutive rows on each side of each connection, as two arrays.

    First the pairs of sends, then the pairs of receives. The k-th send is matched by the k-th
    receive, so both sides must keep the order of rows.
    """
    connection, _ = draft.connections
    rows = np.arange(len(draft))
    sends = find_neighbours(np.where(draft.sends, connection, -1), rows)
    receives = find_neighbours(np.where(draft.receives, connection, -1), rows)
    earlier = np.concatenate([sends[0], receives[0]])
    later = np.concatenate([sends[1], receives[1]])
    return earlier, later


def find_forwarded_sums(draft: StepDraft, arrangement: Arrangement) -> BoolArray:
    """Mark the reducing receives whose sum is not stored, as only their fused send uses it.

    The result is bool[rows]; such a step becomes `rrs`. The sum must be written to SCRATCH, and no
    other step may access its units, except for other sums of this kind. A candidate whose units are
    accessed otherwise, or read as the operand of a reducing receive, is removed; its own units then
    count as accessed, so this is repeated until no candidate is removed.
    """
    # Candidates: reducing receives into SCRATCH with a fused send.
    send = np.flatnonzero(arrangement.fused_into >= 0)
    receive = arrangement.fused_into[send]
    is_candidate = draft.kind[receive] == StepKind.RECV_REDUCE
    is_candidate &= draft.dst_buffer[receive] == Buffer.SCRATCH
    receive, send = receive[is_candidate], send[is_candidate]
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


def _find_scratch_accesses(draft: StepDraft) -> tuple[Int64Array, Int64Array, BoolArray]:
    """Return the row, the unit and whether it is a read, for every access to a unit of SCRATCH.

    All reads precede all writes; both are sorted by row. A row that reads and writes SCRATCH has
    entries in both. Accessed units of all ranks are numbered 0, 1, ... without gaps, by rank and
    offset, so equal numbers mean the same unit of the same rank.
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
    """Return the rows and addresses of all units that the selected rows access.

    `is_used`: mask of the selected rows. `offset`: first unit of each row. An address is rank *
    `width` + unit. Both results have one entry per unit, in the order of rows.
    """
    length = np.where(is_used, draft.count, 0)
    row = group_of_entry(row_pointer(length))
    return row, expanded_ranges(draft.rank * width + offset, length)
