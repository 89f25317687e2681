"""The steps of an algorithm as the writer works on them: plain columns, what orders them, and which messages match."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.algorithm import Algorithm
from hub_core.collectives import Buffer
from hub_core.diagnostics import InputError, Location
from hub_core.steps import StepKind
from hub_core.verification.matching import match_messages
from hub_core.verification.regions import check_regions
from hub_core.verification.report import Findings

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

READS_SRC = (StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)
WRITES_DST = (StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)


@dataclass(frozen=True)
class StepDraft:
    """Plain steps, one row each, grouped by rank in a possible order of execution; all columns int64.

    `partner`: the other end of a message, -1 for local steps. `parents`, `children`: pairs of rows of one rank, the
    order that must hold. Messages of one (source, destination, channel) match in row order.
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
        """Number of each row's connection (-1: local), ordered by (source, destination, channel), and these triples."""
        rows = np.flatnonzero(self.partner >= 0)
        is_send = self.sends[rows]
        rank, peer = self.rank[rows], self.peer[rows]
        channels, channel = np.unique(self.channel[rows], return_inverse=True)
        pair = np.where(is_send, rank * self.num_ranks + peer, peer * self.num_ranks + rank)
        keys, number = np.unique(
            pair * max(len(channels), 1) + channel.reshape(-1), return_inverse=True
        )
        found = np.full(len(self), -1, np.int64)
        found[rows] = number.reshape(-1)
        pair, channel = np.divmod(keys, max(len(channels), 1))
        source, destination = np.divmod(pair, self.num_ranks)
        return found, np.stack([source, destination, channels[channel]], axis=1)

    def forwarding(self) -> tuple[Int64Array, Int64Array]:
        """(receive, send) rows where the send waits for the receive and passes on just what that wrote."""
        first, second = self.parents, self.children
        is_pair = (
            self.receives[first] & self.sends[second] & (self.count[first] == self.count[second])
        )
        is_pair &= (self.dst_buffer[first] == self.src_buffer[second]) & (
            self.dst_offset[first] == self.src_offset[second]
        )
        return first[is_pair], second[is_pair]


def draft_of(algorithm: Algorithm, with_control: bool) -> StepDraft:
    """Take over the steps. Raises `InputError` for what is no complete program: UNKNOWN buffers, opaque work, lonely messages."""
    steps = algorithm.steps
    findings = Findings(algorithm.provenance.source_name or None)
    _refuse_opaque(algorithm)
    messages = match_messages(steps, findings)
    check_regions(algorithm, findings)
    if findings.has_errors():
        raise InputError(list(findings))
    partner = np.full(len(steps), -1, np.int64)
    partner[messages.send] = messages.receive
    partner[messages.receive] = messages.send
    if with_control:
        parents, children = steps.edges()
    else:
        parents, children = (
            steps.data_indices,
            np.repeat(np.arange(len(steps)), np.diff(steps.data_indptr)),
        )
    names = {field.name for field in fields(StepDraft)} - {
        "num_ranks",
        "partner",
        "parents",
        "children",
    }
    columns = {name: getattr(steps, name).astype(np.int64) for name in sorted(names)}
    return StepDraft(
        num_ranks=steps.num_ranks, partner=partner, parents=parents, children=children, **columns
    )


def _refuse_opaque(algorithm: Algorithm) -> None:
    place = Location(algorithm.provenance.source_name or None)
    if not algorithm.has_contents:
        raise InputError(
            "the steps do not say which units they touch (a timing-only trace), so no program can be written from them",
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
    """The same program in which no step moves more than `most` units; both ends of a message are cut at the same places."""
    pieces = -(-draft.count // most)
    if not len(draft) or int(pieces.max()) <= 1:
        return draft
    first = np.cumsum(pieces) - pieces
    last = first + pieces - 1
    row = np.repeat(np.arange(len(draft)), pieces)
    within = np.arange(len(row)) - first[row]
    columns: dict[str, Array] = {
        field.name: getattr(draft, field.name)[row]
        for field in fields(StepDraft)
        if field.name not in ("num_ranks", "parents", "children")
    }
    for side in ("src", "dst"):
        is_used = columns[f"{side}_buffer"] != Buffer.UNKNOWN
        columns[f"{side}_offset"] = columns[f"{side}_offset"] + np.where(is_used, within * most, 0)
    columns["count"] = np.minimum(most, columns["count"] - within * most)
    columns["partner"] = np.where(columns["partner"] >= 0, first[columns["partner"]] + within, -1)
    # Forwarding goes piece by piece, so that it can be fused; everything else waits for the whole.
    receive, send = draft.forwarding()
    piecewise = np.repeat(np.arange(len(receive)), pieces[receive])
    piece = np.arange(len(piecewise)) - np.repeat(
        np.cumsum(pieces[receive]) - pieces[receive], pieces[receive]
    )
    is_forward = np.isin(draft.parents * len(draft) + draft.children, receive * len(draft) + send)
    inner = np.flatnonzero(within > 0)
    return StepDraft(
        num_ranks=draft.num_ranks,
        **columns,
        parents=np.concatenate(
            [last[draft.parents[~is_forward]], first[receive[piecewise]] + piece, inner - 1]
        ),
        children=np.concatenate(
            [first[draft.children[~is_forward]], first[send[piecewise]] + piece, inner]
        ),
    )
