"""Spread steps that state no thread blocks over those that a runtime has, in a good order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from collhub_columns import BoolArray, Int64Array, run_mask

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.writing.draft import STEP_COLUMNS, StepDraft
from collhub_msccl.writing.emission_order import Arrangement, arrange
from collhub_msccl.writing.list_order import ListScheduler
from collhub_msccl.writing.placement import Placement, PlacementLimits, place
from collhub_msccl.writing.reduction_runs import reduction_runs
from collhub_msccl.writing.thread_blocks import Lanes, numbered_lanes, one_to_one
from collhub_msccl.writing.work_graph import WorkGraph, work_graph
from hub_core.model import StepKind

_NOTHING = np.zeros(0, np.int64)


class Fusing(Enum):
    """Which receives become one step with a send of what they got.

    All, those where whatever else waits for them has time to wait for the send too, or none.
    """

    ALL = "all"
    TIMELY = "timely"
    NONE = "none"


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
    ideal = _arranged(draft, way.joined, limits.is_free)
    if ideal is None:
        return None
    graph = work_graph(draft, ideal, way.latency)
    begin = _ideal_begins(graph, limits.is_free)
    tight = replace(limits, is_tight=True)
    placement = place(draft, graph, begin, limits) or place(draft, graph, begin, tight)
    if placement is None:
        return None
    placed = replace(draft, channel=placement.channel)
    joined = _inside(_kept(ideal), placement.block)
    arrangement = _arranged(placed, joined, limits.is_free)
    if arrangement is None:
        return None
    order = _list_order(placed, placement, arrangement, way)
    if order is None:
        # As the rows stand, with the connections' order, there is one.
        lanes = numbered_lanes(placed, placement.block, is_given=False)
        return Spread(placed, lanes, _kept(arrangement))
    return _in_order(placed, placement, _kept(arrangement), order)


def joins(draft: StepDraft, is_free: bool, fusing: Fusing, latency: int) -> Edges:
    """(row, later row that may be one step with it): passed on messages, and runs of reductions.

    `is_free`: channels are open.
    """
    first, second = draft.parents, draft.children
    runs = reduction_runs(draft, first, second)
    is_pair = draft.forwards(first, second) & (draft.channel[first] == draft.channel[second])
    is_pair &= fusing is not Fusing.NONE
    if fusing is Fusing.TIMELY:
        nothing = _arranged(draft, (_NOTHING, _NOTHING), is_free)
        if nothing is not None:
            graph = work_graph(draft, nothing, latency)
            is_pair &= _is_timely(draft, graph, _ideal_begins(graph, is_free))
            runs = reduction_runs(draft, first, second, _operand_times(draft, graph))
    passed_on = one_to_one(first[is_pair], second[is_pair])
    return _both(runs, passed_on)


def _both(one: Edges, other: Edges) -> Edges:
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])


def _is_timely(draft: StepDraft, graph: WorkGraph, begin: list[int]) -> BoolArray:
    """Mask of the dependencies whose parent, made one step with the child, delays nothing.

    All else that waits for the parent would wait for the child's end. `graph`: with a node a row.
    """
    start, tail = np.asarray(begin, np.int64), np.asarray(graph.tail, np.int64)
    duration = np.asarray(graph.duration, np.int64)
    latest = start[graph.node_of_row[draft.children]]
    end = (start + duration)[graph.node_of_row]
    # Of each parent the child that must begin first, and the time of the next.
    order = np.lexsort((latest, draft.parents))
    parent = draft.parents[order]
    is_first = run_mask(parent)
    first = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
    following = np.minimum(first + 1, len(order) - 1)
    never = np.iinfo(np.int64).max
    following_time = np.where(parent[following] == parent, latest[order][following], never)
    following_time[following == first] = never
    limit = np.empty(len(order), np.int64)
    limit[order] = np.where(first == np.arange(len(order)), following_time, latest[order][first])
    child_duration = duration[graph.node_of_row[draft.children]]
    return end[draft.parents] + child_duration <= limit


def _operand_times(draft: StepDraft, graph: WorkGraph) -> Int64Array:
    """When all that each row waits for is done, but for sums in its own place, if links are free."""
    end = np.asarray(graph.start, np.int64) + np.asarray(graph.duration, np.int64)
    parents, children = draft.parents, draft.children
    is_sum = draft.is_kind(StepKind.REDUCE)[parents]
    for column in (draft.dst_buffer, draft.dst_offset):
        is_sum &= column[parents] == column[children]
    ready = np.zeros(len(draft), np.int64)
    np.maximum.at(ready, children[~is_sum], end[graph.node_of_row[parents[~is_sum]]])
    return ready


def _arranged(draft: StepDraft, joined: Edges, is_loose: bool) -> Arrangement | None:
    """An order with these pairs as one step. `is_loose`: channels are open."""
    if is_loose:
        # Every message is a connection of its own.
        alone = np.minimum(np.arange(len(draft)), draft.partner)
        draft = replace(draft, channel=alone)
    return arrange(draft, _NOTHING, _NOTHING, joined)


def _inside(joined: Edges, block: Int64Array) -> Edges:
    """The pairs in one block."""
    first, second = joined
    is_inside = block[first] == block[second]
    return first[is_inside], second[is_inside]


def _kept(arrangement: Arrangement) -> Edges:
    """The pairs that are one step."""
    second = np.flatnonzero(arrangement.fused_into >= 0)
    return arrangement.fused_into[second], second


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
