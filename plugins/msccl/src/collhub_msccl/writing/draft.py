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

        The send must depend directly on the receive and send exactly the region that the
        receive writes. The result is two equally long arrays of rows, in the order of the
        dependencies (`parents`, `children`).
        """
        is_pair = self.is_forwarding(self.parents, self.children)
        return self.parents[is_pair], self.children[is_pair]


# Columns with the same name in a step table.
STEP_COLUMNS = sorted(
    {field.name for field in fields(StepDraft)} - {"num_ranks", "partner", "parents", "children"}
)


def build_draft(algorithm: Algorithm, with_control: bool) -> StepDraft:
    """Return the steps of an algorithm as a draft: the same rows, with int64 columns.

    `partner` of a row is the other row of its message, -1 for local steps. The pairs `parents`,
    `children` are the data dependencies, `with_control` also the control dependencies. The order of
    rows alone adds no pairs.

    Raises the first `InputError` of: steps without known units (`timing-only`); COMPUTE steps
    (`opaque-step`, at the first one); all findings together for messages and regions. These are
    invalid peers, unmatched messages, messages with different counts, counts below 1, and regions
    outside their buffers.
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
    """Return a draft in which no step has more than `max_count` units, by splitting larger steps.

    Without larger steps, the draft itself is returned. The chunks of a step are consecutive rows
    with consecutive ranges. All but the last have `max_count` units: 10 units with `max_count` 4
    give 4, 4 and 2. Partners are chunks of equal number. The dependencies are, in this order:

    1. The first chunk of a step waits for the last chunk of each predecessor, except in case 2.
    2. A send can depend on a receive and forward exactly the region that the receive writes. Chunk
       k of the send then waits for chunk k of the receive, so that the two can be fused.
    3. Each chunk waits for the previous chunk of its step.
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
    row, within = _number_chunks(chunk_counts)
    columns = {name: getattr(draft, name)[row] for name in (*STEP_COLUMNS, "partner")}
    for side in ("src", "dst"):
        # An unused side keeps its offset of 0.
        is_used = columns[f"{side}_buffer"] != Buffer.UNKNOWN
        columns[f"{side}_offset"] = columns[f"{side}_offset"] + np.where(
            is_used, within * max_count, 0
        )
    columns["count"] = np.minimum(max_count, columns["count"] - within * max_count)
    partner = columns["partner"]
    columns["partner"] = np.where(partner >= 0, first[partner] + within, -1)
    # Consecutive chunks of one step are ordered.
    inner = np.flatnonzero(within > 0)
    full_waits = last[draft.parents[~is_forward]], first[draft.children[~is_forward]]
    chunk_waits = first[receive[of_pair]] + chunk, first[send[of_pair]] + chunk
    return StepDraft(
        num_ranks=draft.num_ranks,
        parents=np.concatenate([full_waits[0], chunk_waits[0], inner - 1]),
        children=np.concatenate([full_waits[1], chunk_waits[1], inner]),
        **columns,
    )


def _number_chunks(count: Int64Array) -> tuple[Int64Array, Int64Array]:
    """For rows with these numbers of chunks: row of each chunk, and its index within the row."""
    return group_of_entry(row_pointer(count)), counted_positions(count)


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
    """Order all rows of a draft for execution, with some rows fused into another row each.

    Dependencies, messages (send before receive), connections (rows of each side in order) and the
    pairs (`parents`, `children`) must be respected. `fusable`: pairs (target rows, rows to fuse
    into them); a fused row and its target count as one node.

    First, all pairs are fused. If this gives a cycle, the pairs whose node is in a cycle, or on a
    path between two cycles, are no longer fused, and the order is computed again. Returns None if
    there is a cycle without such a pair.

    In the result, `position` (int64, with gaps) is the place of the node: nodes are sorted by the
    longest path to them, then by row. `fused_into` is the target of a row, or -1.
    """
    sends = np.flatnonzero(draft.sends)
    receives = draft.partner[sends]
    connection, _ = draft.connections
    rows = np.arange(len(draft))
    # The k-th send of a connection is matched by its k-th receive: both sides keep their order.
    sent = find_neighbours(np.where(draft.sends, connection, -1), rows)
    received = find_neighbours(np.where(draft.receives, connection, -1), rows)
    # A message is an order too: its receive follows its send.
    all_parents = np.concatenate([draft.parents, sends, sent[0], received[0], parents])
    all_children = np.concatenate([draft.children, receives, sent[1], received[1], children])
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


def find_forwarded_sums(draft: StepDraft, arrangement: Arrangement) -> BoolArray:
    """Return which reducing receives need not store their sum, because only the fused send uses it.

    The result is bool[rows]; such a step becomes `rrs`. Candidates are reducing receives that write
    to SCRATCH and into which a row is fused. A candidate is removed if its operand is in SCRATCH,
    or if one of the units of its sum is also

    - accessed by any step that is neither a candidate nor fused into one, or
    - read as the operand of a reducing receive, even a candidate.

    The steps of a removed candidate then count as ordinary steps, so this is repeated until no
    candidate is removed. Several candidates may write to the same unit.
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
    """Return row, unit and direction of every access to a unit of SCRATCH, as three arrays.

    The arrays are int64 (row), int64 (unit) and bool (True for a read). A step of 3 units has 3
    entries, by ascending unit. All reads precede all writes; both are sorted by row. A row that
    reads and writes SCRATCH has entries in both.

    Accessed units of all ranks are numbered 0, 1, ... without gaps, by rank and offset, so equal
    numbers mean the same unit of the same rank. The arrays are empty if no step uses SCRATCH.
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

    `is_used`: mask of the selected rows. `offset`: first unit of each row, which accesses
    `draft.count` units. An address is rank * `width` + unit. Both results have one entry
    per unit, in the order of rows, then of units.
    """
    length = np.where(is_used, draft.count, 0)
    row = group_of_entry(row_pointer(length))
    return row, expanded_ranges(draft.rank * width + offset, length)
