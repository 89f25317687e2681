"""Distribute steps without thread blocks over those of a runtime, in an efficient order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.writing.draft import STEP_COLUMNS, StepDraft
from collhub_msccl.writing.emission_order import Arrangement
from collhub_msccl.writing.ideal_times import arrange_freely, compute_ideal_begins
from collhub_msccl.writing.list_order import ListScheduler
from collhub_msccl.writing.placement import Placement, PlacementLimits, place_chains
from collhub_msccl.writing.thread_blocks import Lanes, number_lanes
from collhub_msccl.writing.work_graph import build_work_graph
from hub_core.columns import Int64Array


@dataclass(frozen=True, slots=True)
class Distribution:
    """Rows with channels, in a possible order of execution, and their lanes.

    `joined`: (row, later row fused with it).
    """

    draft: StepDraft
    lanes: Lanes
    joined: Edges


@dataclass(frozen=True, slots=True)
class DistributionOptions:
    """Parameters of a distribution.

    `joined`: (row, later row that may be fused with it); `capacity`: messages that a connection
    holds; `latency`: of a link, in units of time.
    """

    limits: PlacementLimits
    joined: Edges
    capacity: int
    latency: int


def distribute_steps(draft: StepDraft, distribution: DistributionOptions) -> Distribution | None:
    """Distribute the rows over channels and lanes; None if the limits do not permit it."""
    limits = distribution.limits
    ideal = arrange_freely(draft, distribution.joined, limits.is_free)
    if ideal is None:
        return None
    graph = build_work_graph(draft, ideal, distribution.latency)
    begin = compute_ideal_begins(graph, limits.is_free)
    tight = replace(limits, is_tight=True)
    placement = place_chains(draft, graph, begin, limits) or place_chains(
        draft, graph, begin, tight
    )
    if placement is None:
        return None
    placed = replace(draft, channel=placement.channel)
    joined = _select_inside(_get_fused_pairs(ideal), placement.block)
    arrangement = arrange_freely(placed, joined, limits.is_free)
    if arrangement is None:
        return None
    order = _schedule_rows(placed, placement, arrangement, distribution)
    if order is None:
        # The existing row order with the connections' order is always possible.
        lanes = number_lanes(placed, placement.block, is_given=False)
        return Distribution(placed, lanes, _get_fused_pairs(arrangement))
    return _sort_rows(placed, placement, _get_fused_pairs(arrangement), order)


def _select_inside(joined: Edges, block: Int64Array) -> Edges:
    """Pairs whose rows are in one block."""
    first, second = joined
    is_inside = block[first] == block[second]
    return first[is_inside], second[is_inside]


def _get_fused_pairs(arrangement: Arrangement) -> Edges:
    """Pairs (row, row fused into it) of an arrangement."""
    second = np.flatnonzero(arrangement.fused_into >= 0)
    return arrangement.fused_into[second], second


def _schedule_rows(
    draft: StepDraft,
    placement: Placement,
    arrangement: Arrangement,
    distribution: DistributionOptions,
) -> Int64Array | None:
    """Position of each row's step among all steps by list scheduling; None if it fails."""
    graph = build_work_graph(draft, arrangement, distribution.latency)
    block = np.zeros(len(graph), np.int64)
    block[graph.node_of_row] = placement.block
    blocks = int(placement.block.max(initial=-1)) + 1
    nodes = ListScheduler(graph, block.tolist(), blocks, distribution.capacity).schedule()
    if nodes is None:
        return None
    position_of_node = np.empty(len(graph), np.int64)
    position_of_node[nodes] = np.arange(len(nodes))
    return position_of_node[graph.node_of_row]


def _sort_rows(
    draft: StepDraft,
    placement: Placement,
    joined: Edges,
    order: Int64Array,
) -> Distribution:
    """Sort the rows of every rank by this order; fused rows keep their relative order."""
    rows = np.lexsort((np.arange(len(draft)), order, draft.rank))
    new_index = np.empty(len(rows), np.int64)
    new_index[rows] = np.arange(len(rows))
    columns = {name: getattr(draft, name)[rows] for name in STEP_COLUMNS}
    partner = draft.partner[rows]
    sorted_draft = StepDraft(
        num_ranks=draft.num_ranks,
        partner=np.where(partner >= 0, new_index[partner], -1),
        parents=new_index[draft.parents],
        children=new_index[draft.children],
        **columns,
    )
    # Lower thread blocks begin earlier, because the runtime prefers them among ready steps.
    block = placement.block[rows]
    first = np.full(int(block.max(initial=-1)) + 1, len(rows))
    np.minimum.at(first, block, order[rows])
    lanes = number_lanes(sorted_draft, first[block], is_given=True)
    return Distribution(sorted_draft, lanes, (new_index[joined[0]], new_index[joined[1]]))
