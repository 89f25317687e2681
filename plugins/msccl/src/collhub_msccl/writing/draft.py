"""Steps of an algorithm in the form that the writer processes: columns, order, and messages."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from collhub_msccl.conflicts.accesses import Edges
from hub_core.columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    first_positions,
    group_of_entry,
    row_pointer,
)
from hub_core.model import (
    Algorithm,
    Buffer,
    Findings,
    InputError,
    Location,
    StepKind,
    StepTable,
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
        """Mask of the rows of one of these kinds."""
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
        """Connection of each row, int64 per row (-1: local), and the table of connections.

        The table is int64[connections, 3]: (source, destination, channel) in ascending order.
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
        """Mask of the pairs of rows that are a receive and a send of exactly the received data."""
        is_pair = self.receives[first] & self.sends[second]
        is_pair &= self.count[first] == self.count[second]
        is_pair &= self.dst_buffer[first] == self.src_buffer[second]
        is_pair &= self.dst_offset[first] == self.src_offset[second]
        return is_pair

    def find_forwarding(self) -> Edges:
        """(receive, send) rows where the send depends on the receive and forwards the received
        data."""
        is_pair = self.is_forwarding(self.parents, self.children)
        return self.parents[is_pair], self.children[is_pair]


# Columns with the same name in a step table.
STEP_COLUMNS = sorted(
    {field.name for field in fields(StepDraft)} - {"num_ranks", "partner", "parents", "children"}
)


def build_draft(algorithm: Algorithm, with_control: bool) -> StepDraft:
    """Convert an algorithm's steps to a draft.

    `with_control`: include program order in the order to keep. Raises `InputError` for incomplete
    programs: UNKNOWN buffers, opaque work, unmatched messages.
    """
    steps = algorithm.steps
    findings = Findings(algorithm.provenance.source_name or None)
    _refuse_opaque(algorithm)
    messages = match_messages(steps, findings)
    check_regions(algorithm, findings)
    # The code below assumes matched messages and regions inside their buffers.
    if findings.has_errors():
        raise InputError(list(findings))
    partner = np.full(len(steps), -1, np.int64)
    partner[messages.send] = messages.receive
    partner[messages.receive] = messages.send
    parents, children = steps.edges() if with_control else _get_data_edges(steps)
    return StepDraft(
        num_ranks=steps.num_ranks,
        partner=partner,
        parents=parents,
        children=children,
        **{name: getattr(steps, name).astype(np.int64) for name in STEP_COLUMNS},
    )


def _get_data_edges(steps: StepTable) -> Edges:
    """Pairs (parent, child) of the data dependencies only."""
    return steps.data_indices, group_of_entry(steps.data_indptr)


def _refuse_opaque(algorithm: Algorithm) -> None:
    """Raise `InputError` for steps whose data movement is unknown."""
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


def cut_counts(draft: StepDraft, max_count: int) -> StepDraft:
    """Split steps, so that no step moves more than `most` units.

    Both sides of a message are split at the same offsets. A forwarding send waits for its chunk
    only, so that the two can be fused; all other steps wait for all chunks of their predecessor.
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
    """Columns of the chunks of all rows."""
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
