"""Which rows may be one step: messages that are passed on, and runs of reductions."""

from __future__ import annotations

from enum import Enum

import numpy as np
from collhub_columns import BoolArray

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.ideal_times import arranged, ideal_begins
from collhub_msccl.writing.reduction_runs import NEVER, RunTimes, reduction_runs
from collhub_msccl.writing.thread_blocks import one_to_one
from collhub_msccl.writing.work_graph import WorkGraph, work_graph
from hub_core.model import StepKind

_NOTHING = np.zeros(0, np.int64)


class Fusing(Enum):
    """Which receives become one step with a send of what they got, and which reductions one run.

    All; those that make nothing wait: whatever else needs what was received begins no later, and a
    run needs nothing that comes later than its first operand; or no receives, and all runs.
    """

    ALL = "all"
    PROMPT = "prompt"
    NONE = "none"


def joins(draft: StepDraft, is_free: bool, fusing: Fusing, latency: int) -> Edges:
    """(row, later row that may be one step with it).

    `is_free`: channels are open; `latency`: of a link, in units of time.
    """
    first, second = draft.parents, draft.children
    runs = reduction_runs(draft, first, second)
    is_pair = draft.forwards(first, second) & (draft.channel[first] == draft.channel[second])
    is_pair &= fusing is not Fusing.NONE
    apart = arranged(draft, (_NOTHING, _NOTHING), is_free) if fusing is Fusing.PROMPT else None
    if apart is not None:
        graph = work_graph(draft, apart, latency)
        is_pair &= _makes_nothing_wait(draft, graph, ideal_begins(graph, is_free))
        runs = reduction_runs(draft, first, second, _operand_times(draft, graph))
    passed_on = one_to_one(first[is_pair], second[is_pair])
    return np.concatenate([runs[0], passed_on[0]]), np.concatenate([runs[1], passed_on[1]])


def _makes_nothing_wait(draft: StepDraft, graph: WorkGraph, begin: list[int]) -> BoolArray:
    """Mask of the dependencies on a receive that may be one step with the send that depends on it.

    Whatever else waits for the receive then waits for the send. Meaningful for such pairs alone;
    `graph`: with a node a row.
    """
    start = np.asarray(begin, np.int64)[graph.node_of_row]
    duration = np.asarray(graph.duration, np.int64)[graph.node_of_row]
    # A receive takes one crossing of a link, a send two.
    end_of_both = start + 3 * duration
    is_early: BoolArray = start[draft.children] < end_of_both[draft.parents]
    early = np.bincount(draft.parents[is_early], minlength=len(draft))
    # Nobody is early but perhaps the send itself.
    found: BoolArray = early[draft.parents] == is_early
    return found


def _operand_times(draft: StepDraft, graph: WorkGraph) -> RunTimes:
    """Times where a run begins as soon as its first operand is there, and only that counts."""
    end = np.asarray(graph.start, np.int64) + np.asarray(graph.duration, np.int64)
    parents, children = draft.parents, draft.children
    is_sum = draft.is_kind(StepKind.REDUCE)[parents]
    for column in (draft.dst_buffer, draft.dst_offset):
        is_sum &= column[parents] == column[children]
    ready = np.zeros(len(draft), np.int64)
    np.maximum.at(ready, children[~is_sum], end[graph.node_of_row[parents[~is_sum]]])
    return RunTimes(ready, begin=ready, end=ready, needed=np.full(len(draft), NEVER))
