"""Find rows that may become one step: forwarded messages and chains of reductions."""

from __future__ import annotations

from enum import Enum

import numpy as np

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.ideal_times import arrange_freely, compute_ideal_begins
from collhub_msccl.writing.reduction_runs import NEVER, RunTimes, find_reduction_chains
from collhub_msccl.writing.thread_blocks import match_one_to_one
from collhub_msccl.writing.work_graph import WorkGraph, build_work_graph
from hub_core.columns import BoolArray
from hub_core.model import StepKind

_NO_ROWS = np.zeros(0, np.int64)


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
    """Pairs (row, later row that may be fused with it).

    `is_free`: channels are open; `latency`: of a link, in units of time.
    """
    first, second = draft.parents, draft.children
    runs = find_reduction_chains(draft, first, second)
    is_pair = draft.is_forwarding(first, second) & (draft.channel[first] == draft.channel[second])
    is_pair &= fusing is not Fusing.NONE
    unfused = (
        arrange_freely(draft, (_NO_ROWS, _NO_ROWS), is_free) if fusing is Fusing.PROMPT else None
    )
    if unfused is not None:
        graph = build_work_graph(draft, unfused, latency)
        is_pair &= _find_harmless_fusions(draft, graph, compute_ideal_begins(graph, is_free))
        runs = find_reduction_chains(draft, first, second, _compute_operand_times(draft, graph))
    forwarded = match_one_to_one(first[is_pair], second[is_pair])
    return np.concatenate([runs[0], forwarded[0]]), np.concatenate([runs[1], forwarded[1]])


def _find_harmless_fusions(draft: StepDraft, graph: WorkGraph, begin: list[int]) -> BoolArray:
    """Mask of the dependencies (receive, send) whose fusion delays no other step.

    The other steps that wait for the receive would then wait for the send. Valid only for
    forwarding pairs; `graph`: with one node per row.
    """
    start = np.asarray(begin, np.int64)[graph.node_of_row]
    duration = np.asarray(graph.duration, np.int64)[graph.node_of_row]
    # A receive takes one crossing of a link, a send two.
    end_of_both = start + 3 * duration
    is_early: BoolArray = start[draft.children] < end_of_both[draft.parents]
    early = np.bincount(draft.parents[is_early], minlength=len(draft))
    # No early step except possibly the send itself.
    is_harmless: BoolArray = early[draft.parents] == is_early
    return is_harmless


def _compute_operand_times(draft: StepDraft, graph: WorkGraph) -> RunTimes:
    """Times for which a chain may begin no later than when its first operand is ready."""
    end = np.asarray(graph.start, np.int64) + np.asarray(graph.duration, np.int64)
    parents, children = draft.parents, draft.children
    is_sum = draft.is_kind(StepKind.REDUCE)[parents]
    for column in (draft.dst_buffer, draft.dst_offset):
        is_sum &= column[parents] == column[children]
    ready = np.zeros(len(draft), np.int64)
    np.maximum.at(ready, children[~is_sum], end[graph.node_of_row[parents[~is_sum]]])
    return RunTimes(ready, begin=ready, end=ready, needed=np.full(len(draft), NEVER))
