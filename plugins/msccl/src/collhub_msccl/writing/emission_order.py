"""Order the steps of all ranks, so that no thread block waits for what comes later, and fuse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array, topological_levels

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.writing.draft import StepDraft


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """An order of execution, and what is one step.

    `position`: int64 per row, a possible order of execution of all ranks; `fused_into`: int64 per
    row, the receive that a send is one step with, the first reduction of the run that a reduction
    belongs to (both have one position), or -1.
    """

    position: Int64Array
    fused_into: Int64Array


def arrange(
    draft: StepDraft,
    parents: Int64Array,
    children: Int64Array,
    fusable: Edges,
) -> Arrangement | None:
    """Order rows by dependencies, messages, the order of connections and these further pairs.

    Of `fusable` (row, row fused into it), those stay apart whose fusion would close a circle of
    waits.
    None where there is a circle already: no order exists. Each round sorts topologically with the
    pairs as one node each, and gives up those in a circle; it costs time linear in pairs, and in
    practice there are few rounds.
    """
    all_parents, all_children = _waits(draft, parents, children)
    into, fused = fusable
    while True:
        node = np.arange(len(draft))
        node[fused] = into
        from_node, to_node = _between(node[all_parents], node[all_children])
        order = topological_levels(len(draft), from_node, to_node)
        if order.is_complete:
            fused_into = np.full(len(draft), -1, np.int64)
            fused_into[fused] = into
            return Arrangement(order.position[node], fused_into)
        # In a circle, or between two: reached neither from the start nor, backwards, from the end.
        backwards = topological_levels(len(draft), to_node, from_node)
        is_circular: BoolArray = (order.position < 0) & (backwards.position < 0)
        is_kept = ~is_circular[into]
        if bool(is_kept.all()):
            return None
        into, fused = into[is_kept], fused[is_kept]


def _waits(
    draft: StepDraft,
    parents: Int64Array,
    children: Int64Array,
) -> Edges:
    """All pairs (earlier row, later row) of the program."""
    sends = np.flatnonzero(draft.sends)
    receives = draft.partner[sends]
    earlier, later = _connection_order(draft)
    # A message is an order too: its receive is after its send.
    all_parents = np.concatenate([draft.parents, sends, earlier, parents])
    all_children = np.concatenate([draft.children, receives, later, children])
    return all_parents, all_children


def _between(from_node: Int64Array, to_node: Int64Array) -> Edges:
    """Only the pairs of two nodes: within one, the runtime keeps the order."""
    is_apart = from_node != to_node
    return from_node[is_apart], to_node[is_apart]


def neighbours(key: Int64Array, order: Int64Array) -> Edges:
    """Rows that follow each other among the rows of one key (0 or more), ordered by `order`."""
    rows = np.flatnonzero(key >= 0)
    # Sorted by key, so that neighbours of one key stand side by side.
    rows = rows[np.lexsort((order[rows], key[rows]))]
    before, after = rows[:-1], rows[1:]
    is_same = key[before] == key[after]
    return before[is_same], after[is_same]


def _connection_order(draft: StepDraft) -> Edges:
    """Row order at both ends of each connection: the k-th send is matched by the k-th receive."""
    connection, _ = draft.connections
    rows = np.arange(len(draft))
    sends = neighbours(np.where(draft.sends, connection, -1), rows)
    receives = neighbours(np.where(draft.receives, connection, -1), rows)
    earlier = np.concatenate([sends[0], receives[0]])
    later = np.concatenate([sends[1], receives[1]])
    return earlier, later
