"""Find an order of execution of all ranks' steps without cyclic waits, and decide fusions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.writing.draft import StepDraft
from hub_core.columns import BoolArray, Int64Array, topological_levels


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
