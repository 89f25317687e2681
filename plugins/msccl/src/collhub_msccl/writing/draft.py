"""The steps of an algorithm as the writer works on them: plain columns, order, and messages."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from collhub_columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    first_positions,
    group_of_entry,
    row_pointer,
)

from collhub_msccl.conflicts.accesses import Edges
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

    All columns int64. `partner`: the other end of a message, -1 for local steps. `parents`,
    `children`: pairs of rows of one rank, the order that must hold. Messages of one (source,
    destination, channel) match in row order.
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
        # One look-up a row, however many kinds.
        wanted = np.zeros(len(StepKind), np.bool_)
        wanted[list(kinds)] = True
        return wanted[self.kind]

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
        """Number of each row's connection, int64 per row (-1: local), and what connections are.

        Connections are int64[connections, 3], (source, destination, channel) in ascending order.
        """
        rows = np.flatnonzero(self.partner >= 0)
        is_send = self.sends[rows]
        rank, peer = self.rank[rows], self.peer[rows]
        source = np.where(is_send, rank, peer)
        destination = np.where(is_send, peer, rank)
        channel = self.channel[rows]
        keys = connection_keys(source, destination, channel)
        _, first, number = np.unique(keys, return_index=True, return_inverse=True)
        found = np.full(len(self), -1, np.int64)
        found[rows] = number.reshape(-1)
        return found, np.stack([source, destination, channel], axis=1)[first]

    def forwards(self, first: Int64Array, second: Int64Array) -> BoolArray:
        """Of pairs of rows, which are a receive and a send of just what that wrote."""
        is_pair = self.receives[first] & self.sends[second]
        is_pair &= self.count[first] == self.count[second]
        is_pair &= self.dst_buffer[first] == self.src_buffer[second]
        is_pair &= self.dst_offset[first] == self.src_offset[second]
        return is_pair

    def forwarding(self) -> Edges:
        """(receive, send) rows where the send waits for the receive and passes on what it wrote."""
        is_pair = self.forwards(self.parents, self.children)
        return self.parents[is_pair], self.children[is_pair]


# Columns that a table of steps has by the same name.
STEP_COLUMNS = sorted(
    {field.name for field in fields(StepDraft)} - {"num_ranks", "partner", "parents", "children"}
)


def draft_of(algorithm: Algorithm, with_control: bool) -> StepDraft:
    """Take over the steps.

    `with_control`: program order kept by the producer is order too. Raises `InputError` for what is
    no complete program: UNKNOWN buffers, opaque work, lonely messages.
    """
    steps = algorithm.steps
    findings = Findings(algorithm.provenance.source_name or None)
    _refuse_opaque(algorithm)
    messages = match_messages(steps, findings)
    check_regions(algorithm, findings)
    # Everything below takes complete messages and regions inside their buffers for granted.
    if findings.has_errors():
        raise InputError(list(findings))
    partner = np.full(len(steps), -1, np.int64)
    partner[messages.send] = messages.receive
    partner[messages.receive] = messages.send
    parents, children = steps.edges() if with_control else _data_edges(steps)
    return StepDraft(
        num_ranks=steps.num_ranks,
        partner=partner,
        parents=parents,
        children=children,
        **{name: getattr(steps, name).astype(np.int64) for name in STEP_COLUMNS},
    )


def _data_edges(steps: StepTable) -> Edges:
    """Pairs (parent, child) of the data dependencies alone."""
    return steps.data_indices, group_of_entry(steps.data_indptr)


def _refuse_opaque(algorithm: Algorithm) -> None:
    """Raise `InputError` for steps that move no data that is known."""
    place = Location(algorithm.provenance.source_name or None)
    if not algorithm.has_contents:
        raise InputError(
            "the steps do not say which units they touch (a timing-only trace),"
            " so no program can be written from them",
            location=place,
            code="timing-only",
        )
    opaque = np.flatnonzero(algorithm.steps.is_kind(StepKind.COMPUTE))
    if len(opaque):
        raise InputError(
            f"{len(opaque)} steps are opaque work (COMPUTE), which MSCCL-IR has no step for",
            location=algorithm.steps.location(int(opaque[0]), place.file),
            code="opaque-step",
        )


def cut_counts(draft: StepDraft, most: int) -> StepDraft:
    """The same program in which no step moves more than `most` units.

    Both ends of a message are cut at the same places. Forwarding goes piece by piece, so that it
    can be fused; everything else waits for the whole.
    """
    # Rounded up.
    pieces = -(-draft.count // most)
    if not len(draft) or int(pieces.max()) <= 1:
        return draft
    first = first_positions(pieces)
    last = first + pieces - 1
    receive, send = draft.forwarding()
    whole = len(draft)
    # Pairs as single numbers, so that membership is one search.
    forward_keys = receive * whole + send
    is_forward = np.isin(draft.parents * whole + draft.children, forward_keys)
    of_pair, piece = _pieces_of(pieces[receive])
    _, within = _pieces_of(pieces)
    # Pieces of one step follow each other.
    inner = np.flatnonzero(within > 0)
    waits_of_whole = last[draft.parents[~is_forward]], first[draft.children[~is_forward]]
    waits_of_piece = first[receive[of_pair]] + piece, first[send[of_pair]] + piece
    return StepDraft(
        num_ranks=draft.num_ranks,
        parents=np.concatenate([waits_of_whole[0], waits_of_piece[0], inner - 1]),
        children=np.concatenate([waits_of_whole[1], waits_of_piece[1], inner]),
        **_cut_columns(draft, pieces, most),
    )


def _pieces_of(count: Int64Array) -> tuple[Int64Array, Int64Array]:
    """For things of so many pieces, one after the other: the thing of each piece, and its place."""
    return group_of_entry(row_pointer(count)), counted_positions(count)


def _cut_columns(
    draft: StepDraft,
    pieces: Int64Array,
    most: int,
) -> dict[str, Int64Array]:
    """Columns of the pieces of all rows."""
    row, within = _pieces_of(pieces)
    columns = {name: getattr(draft, name)[row] for name in (*STEP_COLUMNS, "partner")}
    for side in ("src", "dst"):
        # A side that a step does not use keeps its offset of 0.
        is_used = columns[f"{side}_buffer"] != Buffer.UNKNOWN
        columns[f"{side}_offset"] = columns[f"{side}_offset"] + np.where(is_used, within * most, 0)
    # All pieces are as large as they may be, but the last.
    columns["count"] = np.minimum(most, columns["count"] - within * most)
    first = first_positions(pieces)
    partner = columns["partner"]
    columns["partner"] = np.where(partner >= 0, first[partner] + within, -1)
    return columns
