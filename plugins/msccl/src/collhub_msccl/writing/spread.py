"""Spread steps that state no thread blocks over those that a runtime has, in a good order."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import numpy as np
from collhub_columns import Int64Array

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.writing.draft import STEP_COLUMNS, StepDraft
from collhub_msccl.writing.emission_order import Arrangement, arrange
from collhub_msccl.writing.list_order import ListScheduler
from collhub_msccl.writing.placement import Placement, PlacementLimits, place
from collhub_msccl.writing.reduction_runs import reduction_runs
from collhub_msccl.writing.thread_blocks import Lanes, numbered_lanes, one_to_one
from collhub_msccl.writing.work_graph import WorkGraph, work_graph

_NOTHING = np.zeros(0, np.int64)


class Fusing(Enum):
    """Which receives become one step with a send of what they got.

    All, those that nothing else waits for, which leaves the others free to go to another block, or
    none.
    """

    ALL = "all"
    SOLE = "sole"
    NONE = "none"


def spread(
    draft: StepDraft,
    limits: PlacementLimits,
    fusing: Fusing,
    capacity: int,
) -> tuple[StepDraft, Lanes] | None:
    """The same rows with channels and lanes, in their order; None where the limits forbid it.

    `capacity`: messages that a connection holds.
    """
    ideal = _arranged(draft, draft, np.zeros(len(draft), np.int64), limits.is_free, fusing)
    if ideal is None:
        return None
    graph = work_graph(draft, ideal.position, ideal.fused_into)
    begin = _ideal_begins(graph, limits.is_free)
    tight = replace(limits, is_tight=True)
    placement = place(draft, graph, begin, limits) or place(draft, graph, begin, tight)
    if placement is None:
        return None
    placed = replace(draft, channel=placement.channel)
    arrangement = _arranged(draft, placed, placement.block, limits.is_free, fusing)
    if arrangement is None:
        return None
    order = _list_order(placed, placement, arrangement, capacity)
    if order is None:
        # As the rows stand, with the connections' order, there is one.
        return placed, numbered_lanes(placed, placement.block, is_given=False)
    return _in_order(placed, placement, order)


def _arranged(
    draft: StepDraft,
    placed: StepDraft,
    block: Int64Array,
    is_free: bool,
    fusing: Fusing,
) -> Arrangement | None:
    """What can be one step, where rows of one block and channel may be."""
    first, second = draft.parents, draft.children
    is_inside = block[first] == block[second]
    first, second = first[is_inside], second[is_inside]
    groups = [reduction_runs(placed, first, second)]
    if fusing is not Fusing.NONE:
        groups.append(_passed_on(placed, first, second, fusing))
    into, fused = (np.concatenate(rows) for rows in zip(*groups, strict=True))
    # Every message is a connection of its own where its channel is still open.
    alone = np.minimum(np.arange(len(draft)), draft.partner)
    loose = replace(placed, channel=alone) if is_free else placed
    return arrange(loose, _NOTHING, _NOTHING, (into, fused))


def _passed_on(
    draft: StepDraft,
    first: Int64Array,
    second: Int64Array,
    fusing: Fusing,
) -> Edges:
    """(receive, send) pairs of one channel that may be one step."""
    is_pair = draft.forwards(first, second) & (draft.channel[first] == draft.channel[second])
    if fusing is Fusing.SOLE:
        followers = np.bincount(draft.parents, minlength=len(draft))
        is_pair &= followers[first] == 1
    return one_to_one(first[is_pair], second[is_pair])


def _ideal_begins(graph: WorkGraph, is_free: bool) -> list[int]:
    """When every node begins if it has a block of its own, but shares links."""
    if is_free:
        graph = replace(graph, channel=_chain_numbers(graph))
    nodes = list(range(len(graph)))
    scheduler = ListScheduler(graph, nodes, len(nodes), len(nodes))
    return graph.start if scheduler.order() is None else scheduler.begin


def _chain_numbers(graph: WorkGraph) -> list[int]:
    """A number for every message and all that passes it on, as if it had a channel of its own."""
    numbers = list(range(len(graph)))
    # Nodes stand in a possible order of execution, so those that send are first.
    for node, source in enumerate(graph.source):
        if source >= 0:
            numbers[node] = numbers[source]
    return numbers


def _list_order(
    placed: StepDraft,
    placement: Placement,
    arrangement: Arrangement,
    capacity: int,
) -> Int64Array | None:
    """When each row's step begins, as its place among all steps."""
    graph = work_graph(placed, arrangement.position, arrangement.fused_into)
    block = np.zeros(len(graph), np.int64)
    block[graph.node_of_row] = placement.block
    blocks = int(placement.block.max(initial=-1)) + 1
    nodes = ListScheduler(graph, block.tolist(), blocks, capacity).order()
    if nodes is None:
        return None
    place_of_node = np.empty(len(graph), np.int64)
    place_of_node[nodes] = np.arange(len(nodes))
    return place_of_node[graph.node_of_row]


def _in_order(
    draft: StepDraft,
    placement: Placement,
    order: Int64Array,
) -> tuple[StepDraft, Lanes]:
    """Rows of every rank in this order; what is one step stays in the order that it had."""
    rows = np.lexsort((np.arange(len(draft)), order, draft.rank))
    new = np.empty(len(rows), np.int64)
    new[rows] = np.arange(len(rows))
    columns = {name: getattr(draft, name)[rows] for name in STEP_COLUMNS}
    partner = draft.partner[rows]
    sorted_draft = StepDraft(
        num_ranks=draft.num_ranks,
        partner=np.where(partner >= 0, new[partner], -1),
        parents=new[draft.parents],
        children=new[draft.children],
        **columns,
    )
    return sorted_draft, numbered_lanes(sorted_draft, placement.block[rows], is_given=True)
