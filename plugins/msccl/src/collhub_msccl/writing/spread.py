"""Distribute steps without thread blocks over those of a runtime, in an efficient order.

Rows that may become one step are forwarded messages and chains of reductions. Ideal times are those
of steps that have separate thread blocks and channels and share only links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.writing.draft import STEP_COLUMNS, Arrangement, StepDraft, arrange
from collhub_msccl.writing.placement import BlockPlacement, PlacementLimits, place_chains
from collhub_msccl.writing.reduction_runs import NEVER, ReductionTimes, find_reduction_chains
from collhub_msccl.writing.thread_blocks import Lanes, match_one_to_one, number_lanes
from collhub_msccl.writing.work_graph import (
    WorkGraph,
    build_work_graph,
    find_first_senders,
    schedule_nodes,
)
from hub_core.columns import BoolArray, Int64Array, inverse
from hub_core.model import StepKind

_NO_ROWS = np.zeros(0, np.int64)


def arrange_freely(draft: StepDraft, joined: Edges, is_free: bool) -> Arrangement | None:
    """Find an order of execution of the rows, and fuse the given pairs where possible.

    `joined`: (row, row that may be fused into it); pairs that would close a cycle are not
    fused. The order respects the dependencies, and messages of one connection keep the
    order of rows. With `is_free`, channels are not assigned yet: every message counts as a
    connection of its own, without an order relative to other messages. Return None if the
    rows form a cycle even without these pairs.
    """
    if is_free:
        separate_channel = np.minimum(np.arange(len(draft)), draft.partner)
        draft = replace(draft, channel=separate_channel)
    return arrange(draft, _NO_ROWS, _NO_ROWS, joined)


def compute_ideal_begins(graph: WorkGraph, is_free: bool) -> Int64Array:
    """Return the time at which every node (step) begins if each has a thread block of its own.

    The times (int64, in units of data) are those of `schedule_nodes`: links into and out of a rank
    are shared, and a connection holds any number of messages. If the connections block each other,
    so that not all nodes can be scheduled, the times without limits (`graph.start`) are returned.

    `is_free`: False for the channels of `graph`. True for new ones: every chain of forwarded
    messages has its own channel. A chain begins with a node that only sends. It goes on with each
    node that receives a message of the chain. `graph` is not changed.
    """
    if is_free:
        # A separate channel for every message together with the steps that forward it.
        graph = replace(graph, channel=find_first_senders(graph))
    nodes = np.arange(len(graph))
    schedule = schedule_nodes(graph, nodes, len(graph), max(len(graph), 1))
    return graph.start if schedule is None else schedule[1]


class Fusing(Enum):
    """Which steps to fuse: receives with the send that forwards their data, and chains of
    reductions.

    ALL: all of them. PROMPT: only fusions that delay no other step: steps that need the received
    data begin no later, and a chain waits for no operand later than its first. NONE: no receives,
    but all chains of reductions.
    """

    ALL = "all"
    PROMPT = "prompt"
    NONE = "none"


def find_fusable_pairs(draft: StepDraft, is_free: bool, fusing: Fusing, latency: int) -> Edges:
    """Find the pairs of rows that may be fused into one step: arrays of rows and later rows.

    First come the pairs of reduction chains, then the pairs of forwarding:

    - Reduction: (first row of a chain, each later row). It is independent of `fusing`.
    - Forwarding, unless `fusing` is NONE: (receive, send), ascending by receive. The send
      depends directly on the receive, has the same channel, and sends exactly the received
      region. Each row is in at most one pair.

    ALL gives all of these. PROMPT is for the execution without fusions, and drops fusions
    that delay another step: a pair of forwarding if a step other than the send depends on
    the receive and begins before the send has finished; and the rest of a chain from a
    reduction whose operands are ready later than those of the first reduction. If the steps
    have no order of execution, PROMPT equals ALL.

    `is_free`: channels are not assigned yet. `latency`: of a link, in units of time. Both
    arrays may be empty.
    """
    first, second = draft.parents, draft.children
    runs = find_reduction_chains(draft, first, second)
    is_pair = draft.is_forwarding(first, second) & (draft.channel[first] == draft.channel[second])
    is_pair &= fusing is not Fusing.NONE
    unfused = None
    if fusing is Fusing.PROMPT:
        unfused = arrange_freely(draft, (_NO_ROWS, _NO_ROWS), is_free)
    if unfused is not None:
        graph = build_work_graph(draft, unfused, latency)
        # A fusion is harmless if no step except the send begins before both would have finished.
        start = compute_ideal_begins(graph, is_free)[graph.node_of_row]
        duration = graph.nodes.duration[graph.node_of_row]
        # A receive takes one crossing of a link, a send two.
        end_of_both = start + 3 * duration
        is_early: BoolArray = start[draft.children] < end_of_both[draft.parents]
        early = np.bincount(draft.parents[is_early], minlength=len(draft))
        is_harmless: BoolArray = early[draft.parents] == is_early
        is_pair &= is_harmless
        # A chain may begin no later than when its first operand is ready.
        end = graph.start + graph.nodes.duration
        parents, children = draft.parents, draft.children
        is_sum = draft.is_kind(StepKind.REDUCE)[parents]
        for column in (draft.dst_buffer, draft.dst_offset):
            is_sum &= column[parents] == column[children]
        ready = np.zeros(len(draft), np.int64)
        np.maximum.at(ready, children[~is_sum], end[graph.node_of_row[parents[~is_sum]]])
        times = ReductionTimes(ready, begin=ready, end=ready, needed=np.full(len(draft), NEVER))
        runs = find_reduction_chains(draft, first, second, times)
    forwarded = match_one_to_one(first[is_pair], second[is_pair])
    return np.concatenate([runs[0], forwarded[0]]), np.concatenate([runs[1], forwarded[1]])


@dataclass(frozen=True, slots=True)
class RowDistribution:
    """Rows with channels, in a possible order of execution, and their lanes.

    `joined`: (row, later row fused with it).
    """

    draft: StepDraft
    lanes: Lanes
    joined: Edges


@dataclass(frozen=True, slots=True)
class PlacedSteps:
    """Rows with blocks and channels, before list scheduling.

    `draft`: rows with their channels. `placement`: block of every row. `arrangement`: a possible
    order of execution, with the fused rows. `latency`: of a link, in units of time.
    """

    draft: StepDraft
    placement: BlockPlacement
    arrangement: Arrangement
    latency: int


def iterate_placed_steps(
    draft: StepDraft, limits: Iterable[PlacementLimits], joined: Edges, latency: int
) -> Iterator[PlacedSteps]:
    """Choose channels and thread blocks for all rows, for each of several limits.

    `joined`: (row, later row that may be fused with it). `latency`: of a link, in units of time.
    `limits`: at least one; `is_free` is that of the first for all. `draft` is not changed.

    Pairs of `joined` that would close a cycle of waits are not fused. Start times are computed once
    for all limits, with one thread block per step. For each of `limits`, in order:

    1. `place_chains` chooses blocks and channels. If it fails, it is repeated with `is_tight`, so
       that the receiving and sending sides of unrelated data may share a block.
    2. No result if both attempts fail, or if the placement equals the last one that did not fail.
    3. Pairs on different blocks are not fused. No result if the steps have no order of execution.

    If the steps already have no order before the first placement, there are no results at all.
    """
    first_limits, *further_limits = limits
    is_free = first_limits.is_free
    ideal = arrange_freely(draft, joined, is_free)
    if ideal is None:
        return
    graph = build_work_graph(draft, ideal, latency)
    begin = compute_ideal_begins(graph, is_free)
    first, second = _get_fused_pairs(ideal)
    previous: BlockPlacement | None = None
    for each in (first_limits, *further_limits):
        placement = place_chains(draft, graph, begin, each)
        placement = placement or place_chains(draft, graph, begin, replace(each, is_tight=True))
        if placement is None or (previous is not None and placement.equals(previous)):
            continue
        previous = placement
        placed = replace(draft, channel=placement.channel)
        is_inside = placement.block[first] == placement.block[second]
        inside = first[is_inside], second[is_inside]
        arrangement = arrange_freely(placed, inside, is_free)
        if arrangement is not None:
            yield PlacedSteps(placed, placement, arrangement, latency)


def schedule_steps(steps: PlacedSteps, capacity: int) -> RowDistribution:
    """Choose the order of placed steps by list scheduling.

    `capacity`: number of messages that a connection buffers. Of the steps whose predecessors have
    finished, the next is that with the earliest possible begin, of equal ones that with the longest
    remaining work (`schedule_nodes` has further ties).

    The result has the rows, the lanes (one per thread block) and the fused pairs (row, later row).
    The rows of each rank are sorted by this order, and references between rows are renumbered. A
    rank's lanes are numbered by their first step, and `lanes.is_given` is True.

    If full connections block all remaining steps, the rows keep their order. Lanes then have the
    order of the blocks, and `lanes.is_given` is False. The arguments are not changed.
    """
    placement, arrangement = steps.placement, steps.arrangement
    graph = build_work_graph(steps.draft, arrangement, steps.latency)
    block = np.zeros(len(graph), np.int64)
    block[graph.node_of_row] = placement.block
    blocks = int(placement.block.max(initial=-1)) + 1
    schedule = schedule_nodes(graph, block, blocks, capacity)
    if schedule is None:
        # The existing row order with the connections' order is always possible.
        lanes = number_lanes(steps.draft, placement.block, is_given=False)
        return RowDistribution(steps.draft, lanes, _get_fused_pairs(arrangement))
    order = inverse(schedule[0])[graph.node_of_row]
    return _sort_rows(steps.draft, placement, _get_fused_pairs(arrangement), order)


def _get_fused_pairs(arrangement: Arrangement) -> Edges:
    """Return the pairs of rows that become one step of a file: (first rows, rows fused into them).

    Both are int64, in ascending order of the fused rows.
    """
    second = np.flatnonzero(arrangement.fused_into >= 0)
    return arrangement.fused_into[second], second


def _sort_rows(
    draft: StepDraft,
    placement: BlockPlacement,
    joined: Edges,
    order: Int64Array,
) -> RowDistribution:
    """Return the rows sorted by rank, then by `order`, with their lanes and fused pairs.

    `order`: int64, position of each row in the schedule; the rows of a fused pair have equal
    positions. Rows of one rank with equal positions keep their order. Row numbers are global;
    in `partner`, `parents`, `children` and `joined` they are replaced by the new ones (a
    partner of -1 remains). Column `lane` of the draft is only reordered.

    The lanes of the result are the thread blocks of `placement`, with `is_given` True. They are
    numbered from 0 over all ranks: by rank, and within a rank by the smallest `order` of the
    block. The channels of `placement` are not used. The arguments are not changed.
    """
    rows = np.lexsort((np.arange(len(draft)), order, draft.rank))
    new_index = inverse(rows)
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
    return RowDistribution(sorted_draft, lanes, (new_index[joined[0]], new_index[joined[1]]))
