"""Order the steps of a program so that no thread block waits for what comes later, and fuse what may be one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_msccl.writing.draft import READS_SRC, WRITES_DST, StepDraft
from hub_core.collectives import Buffer
from hub_core.steps import StepKind
from hub_core.verification.order import topological_levels

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """`position`: int64 per row, a possible order of execution of all ranks; `fused_into`: int64 per row, the receiving
    row that a send is one step with (both have one position), or -1."""

    position: Int64Array
    fused_into: Int64Array


def arrange(
    draft: StepDraft,
    parents: Int64Array,
    children: Int64Array,
    fusable: tuple[Int64Array, Int64Array],
) -> Arrangement | None:
    """Order the rows by their dependencies, messages, the order of each connection and these further pairs.

    Of `fusable` (receive, send) pairs, those stay apart whose fusion would close a circle of waits. None where there
    is a circle already: no order exists.
    """
    sends = np.flatnonzero(draft.sends)
    in_order = _connection_order(draft)
    all_parents = np.concatenate([draft.parents, sends, in_order[0], parents])
    all_children = np.concatenate([draft.children, draft.partner[sends], in_order[1], children])
    first, second = fusable
    while True:
        node = np.arange(len(draft))
        node[second] = first
        from_node, to_node = node[all_parents], node[all_children]
        apart = from_node != to_node
        from_node, to_node = from_node[apart], to_node[apart]
        order = topological_levels(len(draft), from_node, to_node)
        if order.is_complete:
            fused_into = np.full(len(draft), -1, np.int64)
            fused_into[second] = first
            return Arrangement(order.position[node], fused_into)
        circular = (order.position < 0) & (
            topological_levels(len(draft), to_node, from_node).position < 0
        )
        kept = ~circular[first]
        if bool(kept.all()):
            return None
        first, second = first[kept], second[kept]


def neighbours(key: Int64Array, order: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Rows that follow each other among the rows of one key (0 or more), ordered by `order`."""
    rows = np.flatnonzero(key >= 0)
    rows = rows[np.lexsort((order[rows], key[rows]))]
    same = key[rows[1:]] == key[rows[:-1]]
    return rows[:-1][same], rows[1:][same]


def _connection_order(draft: StepDraft) -> tuple[Int64Array, Int64Array]:
    """What keeps the k-th send of a connection with its k-th receive."""
    connection, _ = draft.connections
    rows = np.arange(len(draft))
    pairs = [
        neighbours(np.where(side, connection, -1), rows) for side in (draft.sends, draft.receives)
    ]
    return np.concatenate([pairs[0][0], pairs[1][0]]), np.concatenate([pairs[0][1], pairs[1][1]])


def forwarded_only(draft: StepDraft, arrangement: Arrangement) -> BoolArray:
    """Mask of reducing receives whose sum lies in SCRATCH for nothing but the send that they are fused with.

    Those are `rrs`: no one else touches the units where their sums would stand.
    """
    second = np.flatnonzero(arrangement.fused_into >= 0)
    first = arrangement.fused_into[second]
    is_candidate = (draft.kind[first] == StepKind.RECV_REDUCE) & (
        draft.dst_buffer[first] == Buffer.SCRATCH
    )
    first, second = first[is_candidate], second[is_candidate]
    found = np.zeros(len(draft), np.bool_)
    found[first] = True
    if not len(first):
        return found
    row, unit = _scratch_accesses(draft)
    partner = np.full(len(draft), -1, np.int64)
    partner[second] = first
    owner = np.where(partner[row] >= 0, partner[row], row)
    # The operand of a reducing receive is a read of its own, which no slot may serve.
    is_operand = (draft.kind[row] == StepKind.RECV_REDUCE) & (
        np.arange(len(row)) < int(_lengths(draft, "src").sum())
    )
    while True:
        is_foreign = np.zeros(int(unit.max()) + 1, np.bool_)
        is_foreign[unit[~found[owner] | is_operand]] = True
        lost = np.unique(owner[found[owner] & is_foreign[unit]])
        if not len(lost):
            return found
        found[lost] = False


def _lengths(draft: StepDraft, side: str) -> Int64Array:
    is_used = draft.is_kind(*(READS_SRC if side == "src" else WRITES_DST))
    buffer: Int64Array = getattr(draft, f"{side}_buffer")
    return np.where(is_used & (buffer == Buffer.SCRATCH), draft.count, 0)


def _scratch_accesses(draft: StepDraft) -> tuple[Int64Array, Int64Array]:
    """(row, unit) of every access to SCRATCH, reads first; units count through all ranks."""
    rows, units = [], []
    highest = np.maximum(draft.src_offset, draft.dst_offset) + draft.count
    width = int(highest.max(initial=0)) + 1
    for side in ("src", "dst"):
        length = _lengths(draft, side)
        row = np.repeat(np.arange(len(draft)), length)
        within = np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)
        rows.append(row)
        units.append(draft.rank[row] * width + getattr(draft, f"{side}_offset")[row] + within)
    unit = np.unique(np.concatenate(units), return_inverse=True)[1]
    return np.concatenate(rows), unit.astype(np.int64).reshape(-1)
