"""Spread steps that state no thread blocks over those that a runtime has, in a good order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from collhub_columns import Int64Array

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.writing.draft import STEP_COLUMNS, StepDraft
from collhub_msccl.writing.emission_order import Arrangement
from collhub_msccl.writing.ideal_times import arranged, ideal_begins
from collhub_msccl.writing.list_order import ListScheduler
from collhub_msccl.writing.placement import Placement, PlacementLimits, place
from collhub_msccl.writing.thread_blocks import Lanes, numbered_lanes
from collhub_msccl.writing.work_graph import work_graph


@dataclass(frozen=True, slots=True)
class Spread:
    """Rows with channels, in a possible order of execution, and their lanes.

    `joined`: (row, later row that is one step with it).
    """

    draft: StepDraft
    lanes: Lanes
    joined: Edges


@dataclass(frozen=True, slots=True)
class SpreadWay:
    """A way to spread.

    `joined`: (row, later row that may be one step with it); `capacity`: messages that a connection
    holds; `latency`: of a link, in units of time.
    """

    limits: PlacementLimits
    joined: Edges
    capacity: int
    latency: int


def spread(draft: StepDraft, way: SpreadWay) -> Spread | None:
    """The same rows with channels and lanes; None where the limits forbid it."""
    limits = way.limits
    ideal = arranged(draft, way.joined, limits.is_free)
    if ideal is None:
        return None
    graph = work_graph(draft, ideal, way.latency)
    begin = ideal_begins(graph, limits.is_free)
    tight = replace(limits, is_tight=True)
    placement = place(draft, graph, begin, limits) or place(draft, graph, begin, tight)
    if placement is None:
        return None
    placed = replace(draft, channel=placement.channel)
    joined = _inside(_kept(ideal), placement.block)
    arrangement = arranged(placed, joined, limits.is_free)
    if arrangement is None:
        return None
    order = _list_order(placed, placement, arrangement, way)
    if order is None:
        # As the rows stand, with the connections' order, there is one.
        lanes = numbered_lanes(placed, placement.block, is_given=False)
        return Spread(placed, lanes, _kept(arrangement))
    return _in_order(placed, placement, _kept(arrangement), order)


def _inside(joined: Edges, block: Int64Array) -> Edges:
    """The pairs in one block."""
    first, second = joined
    is_inside = block[first] == block[second]
    return first[is_inside], second[is_inside]


def _kept(arrangement: Arrangement) -> Edges:
    """The pairs that are one step."""
    second = np.flatnonzero(arrangement.fused_into >= 0)
    return arrangement.fused_into[second], second


def _list_order(
    draft: StepDraft,
    placement: Placement,
    arrangement: Arrangement,
    way: SpreadWay,
) -> Int64Array | None:
    """When each row's step begins, as its place among all steps."""
    graph = work_graph(draft, arrangement, way.latency)
    block = np.zeros(len(graph), np.int64)
    block[graph.node_of_row] = placement.block
    blocks = int(placement.block.max(initial=-1)) + 1
    nodes = ListScheduler(graph, block.tolist(), blocks, way.capacity).order()
    if nodes is None:
        return None
    place_of_node = np.empty(len(graph), np.int64)
    place_of_node[nodes] = np.arange(len(nodes))
    return place_of_node[graph.node_of_row]


def _in_order(
    draft: StepDraft,
    placement: Placement,
    joined: Edges,
    order: Int64Array,
) -> Spread:
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
    # The lower a thread block, the earlier it begins: of steps that are ready at once, that of the
    # lower one is first.
    block = placement.block[rows]
    first = np.full(int(block.max(initial=-1)) + 1, len(rows))
    np.minimum.at(first, block, order[rows])
    lanes = numbered_lanes(sorted_draft, first[block], is_given=True)
    return Spread(sorted_draft, lanes, (new[joined[0]], new[joined[1]]))
