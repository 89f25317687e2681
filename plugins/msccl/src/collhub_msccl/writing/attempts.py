"""List assignments of an algorithm's steps to thread blocks, in the order of preference.

The producer's thread blocks come first, unchanged, then cut if they have too many steps: an
imported file is written back unchanged. Then come new ones, in several variants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import tee

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.runtimes.known_runtimes import (
    FIFO_CAPACITY,
    MAX_COUNT,
    RESIDENT_BLOCKS,
    RuntimeRules,
)
from collhub_msccl.writing.assemble import BlockAssignment, has_too_many_elements
from collhub_msccl.writing.draft import StepDraft, build_draft, cut_counts
from collhub_msccl.writing.emission import Memory
from collhub_msccl.writing.placement import PlacementLimits
from collhub_msccl.writing.scratch import rename_scratch_values
from collhub_msccl.writing.spread import (
    Fusing,
    PlacedSteps,
    find_fusable_pairs,
    iterate_placed_steps,
    schedule_steps,
)
from collhub_msccl.writing.thread_blocks import assign_lanes, find_given_lanes
from hub_core.model import Algorithm, Collective, StepKind
from hub_core.verification import verify

# Rows above which the first variant that is safe at every size is chosen: further variants cost
# seconds.
MAX_ROWS_FOR_ALL_ATTEMPTS = 1 << 14
# Transfer time of a buffer, in latencies, when steps are distributed: a small call, because more
# thread blocks gain most there, but larger than that of the shared links, so that large calls lose
# little.
_BUFFER_TIME_IN_LATENCIES = 8


@dataclass(frozen=True, slots=True)
class WritingTask:
    """The algorithm to write, and the limits of the file.

    `collective`: with the modes that the file claims; `channels`: number of channels to distribute
    steps over, None to keep the producer's.
    """

    algorithm: Algorithm
    collective: Collective
    protocol: str
    memory: Memory
    limits: RuntimeRules
    channels: int | None


def _list_fusing_options(task: WritingTask) -> tuple[bool, ...]:
    """Values of `is_fusing` to try, fused first.

    A fused step receives only when it can send, which can close a cycle of waits.
    """
    return (True, False) if task.limits.has_fused_steps else (False,)


def iterate_faithful_attempts(task: WritingTask, full: StepDraft) -> Iterator[BlockAssignment]:
    """Yield attempts that keep the thread blocks of the producer, the most faithful one first.

    Yields no attempt if the producer has no usable thread blocks. The first half keeps the program
    order (`full`); the second half may cut blocks, and has only the data dependencies if these
    suffice. Each half first merges chains of reductions, then does not. Within these, the kinds of
    fusing of `_list_fusing_options` vary.
    """
    producer_lanes = find_given_lanes(full)
    if producer_lanes is None:
        return
    for draft, may_cut in ((full, False), (_draft_without_control(task.algorithm, full), True)):
        # A chain of reductions needs nops for its waits, which may exceed the limit of steps.
        for is_merging in (True, False):
            for is_fusing in _list_fusing_options(task):
                yield BlockAssignment(draft, producer_lanes, may_cut, is_fusing, is_merging)


def iterate_new_attempts(task: WritingTask, draft: StepDraft) -> Iterator[BlockAssignment]:
    """Yield attempts with new thread blocks, in the order in which they should be tried.

    Each attempt is built when it is requested. Steps 1 and 4 give one attempt per placement of the
    steps, possibly none (`_iterate_placed_steps`). Steps 3, 5 and 6 give one attempt with fused
    steps, if the runtime has them, and one without.

    1. List scheduling; a connection holds as many messages as the protocol's FIFO.
    2. The assignment of MSCCLang's public compiler. Skipped if the task requests a number of
       channels, or the draft has more than `MAX_ROWS_FOR_ALL_ATTEMPTS` rows.
    3. One thread block for several connections of a rank; a chain of reductions is on one block.
    4. List scheduling on the blocks and channels of step 1; a connection holds one message.
    5. As step 3, with more connections per block (`is_tight`).
    6. As step 5, without blocks for chains of reductions. Skipped without reductions.
    """
    placed = tee(_iterate_placed_steps(task, draft))
    yield from _iterate_distributed(placed[0], FIFO_CAPACITY[task.protocol])
    if task.channels is None and len(draft) <= MAX_ROWS_FOR_ALL_ATTEMPTS:
        yield _build_public_compiler_attempt(task, draft)
    yield from iterate_joined_attempts(task, draft, is_tight=False, is_merging=True)
    # For messages that take several transfers each.
    yield from _iterate_distributed(placed[1], 1)
    yield from iterate_joined_attempts(task, draft, is_tight=True, is_merging=True)
    # Without reductions these are the same attempts.
    if draft.is_kind(StepKind.REDUCE).any():
        yield from iterate_joined_attempts(task, draft, is_tight=True, is_merging=False)


def _iterate_placed_steps(
    task: WritingTask, draft: StepDraft
) -> Iterator[tuple[Fusing, PlacedSteps]]:
    """Yield (kind of fusion, placed steps): steps with thread blocks and channels.

    The kinds are tried in the order ALL, PROMPT, NONE. The order is reversed if the rank with the
    most steps has more than half of what its blocks can contain (blocks per rank times steps per
    block). If the runtime has no fused steps, only NONE is tried. A kind is skipped if it fuses
    the same pairs as an earlier one, or if too many steps remain (`has_too_many_elements`).

    Each kind gives at most two results. In the first one, steps finish as early as possible; the
    second one uses few new blocks. A result is omitted if it does not fit into the limits, or if
    it equals the first one of its kind. So there may be no results at all.

    A rank gets at most 64 (`RESIDENT_BLOCKS`) thread blocks, or the runtime's limit if that is
    lower. If `task.channels` is None, messages keep their channels. Otherwise the channel of every
    message is chosen anew among so many.
    """
    limits = task.limits
    channels = limits.max_channels if task.channels is None else task.channels
    blocks = min(limits.max_blocks, RESIDENT_BLOCKS)
    is_free = task.channels is not None
    latency = _compute_latency(task)
    fusings = tuple(Fusing) if limits.has_fused_steps else (Fusing.NONE,)
    most = int(np.bincount(draft.rank).max(initial=0))
    if 2 * most > blocks * limits.max_steps:
        fusings = fusings[::-1]
    tried: list[Edges] = []
    for fusing in fusings:
        joined = find_fusable_pairs(draft, is_free, fusing, latency)
        if any(np.array_equal(joined, pairs) for pairs in tried):
            continue
        tried.append(joined)
        if has_too_many_elements(draft, joined[1], limits):
            continue
        placing = [PlacementLimits(blocks, channels, is_free, one) for one in (False, True)]
        for placed in iterate_placed_steps(draft, placing, joined, latency):
            yield fusing, placed


def _iterate_distributed(
    placed: Iterator[tuple[Fusing, PlacedSteps]], capacity: int
) -> Iterator[BlockAssignment]:
    """Yield an attempt for each placement of the steps, with an order from list scheduling.

    `capacity`: transfers that a connection holds. All attempts are new and may be cut.
    """
    for fusing, steps in placed:
        distribution = schedule_steps(steps, capacity)
        yield BlockAssignment(
            distribution.draft,
            distribution.lanes,
            may_cut=True,
            is_fusing=fusing is not Fusing.NONE,
            is_new=True,
            joined=distribution.joined,
        )


def _build_public_compiler_attempt(task: WritingTask, draft: StepDraft) -> BlockAssignment:
    """Build the attempt with the thread blocks that MSCCLang's public compiler would choose.

    Each side of a connection gets a thread block. An incoming and an outgoing connection of a rank
    share a block if fused steps forward data of the first on the second (PROMPT fusion). If the
    runtime has no fused steps, no connections share a block. Fusable pairs of steps are fused if
    both are in one block. Steps keep the channels of `draft`, because MSCCLang's assignment of
    channels is not reproduced.

    The attempt permits cuts of long blocks, and its blocks count as not given by the algorithm
    (`is_new`). It is marked `limits_time`: if it gives a safe program, candidates with a longer
    makespan are excluded. `draft` is not changed.
    """
    fusing = Fusing.PROMPT if task.limits.has_fused_steps else Fusing.NONE
    first, second = find_fusable_pairs(draft, False, fusing, _compute_latency(task))
    is_forwarded = draft.receives[first] & draft.sends[second]
    lanes = assign_lanes(draft, forwarded=(first[is_forwarded], second[is_forwarded]))
    is_inside = lanes.of_row[first] == lanes.of_row[second]
    return BlockAssignment(
        draft,
        lanes,
        may_cut=True,
        is_fusing=fusing is not Fusing.NONE,
        is_new=True,
        joined=(first[is_inside], second[is_inside]),
        limits_time=True,
    )


def iterate_joined_attempts(
    task: WritingTask,
    draft: StepDraft,
    is_tight: bool,
    is_merging: bool,
) -> Iterator[BlockAssignment]:
    """Yield attempts in which each side of a connection has a thread block, some of them shared.

    The lanes are those of `assign_lanes` with `is_tight` (more sides share a block) and
    `is_merging` (a chain of reductions is on one block). The first attempt fuses steps, if the
    runtime has fused steps; the last one does not. Blocks count as not given by the algorithm
    (`is_new`) and may be cut. With `is_tight` all attempts are marked `is_enough`, otherwise only
    the one without fusion.
    """
    lanes = assign_lanes(draft, is_tight, is_merging)
    for is_fusing in _list_fusing_options(task):
        yield BlockAssignment(
            draft,
            lanes,
            may_cut=True,
            is_fusing=is_fusing,
            is_merging=is_merging,
            is_new=True,
            is_enough=is_tight or not is_fusing,
        )


def _compute_latency(task: WritingTask) -> int:
    """Latency of a link when steps are distributed, in units of the time of one chunk."""
    return max(task.collective.unit_count // _BUFFER_TIME_IN_LATENCIES, 1)


def build_free_draft(algorithm: Algorithm, full: StepDraft) -> StepDraft:
    """Return the steps with as few dependencies as possible, for new thread blocks.

    `full`: the draft with control dependencies, as producers order the steps. The result has data
    dependencies only. Every value has separate scratch if values can be renamed
    (`rename_scratch_values`) and the algorithm is correct before and after that; its steps are cut
    to at most `MAX_COUNT` units. Otherwise it is that of `_draft_without_control`. Raises the
    errors of `build_draft`.
    """
    # Without reused scratch, fewer steps must wait for each other.
    renamed = rename_scratch_values(algorithm)
    if renamed is not None and verify(algorithm).ok and verify(renamed).ok:
        return cut_counts(build_draft(renamed, with_control=False), MAX_COUNT)
    return _draft_without_control(algorithm, full)


def _draft_without_control(algorithm: Algorithm, full: StepDraft) -> StepDraft:
    """Return the steps with data dependencies only, as a draft; `full` if these do not suffice.

    `full`: the draft with control dependencies, such as program order, which would cause
    unnecessary waits between new thread blocks. It is returned itself if the algorithm has no
    control dependencies, or if the algorithm without them fails the verification. Otherwise the
    result is a new draft, whose steps are cut to at most `MAX_COUNT` units. Raises the errors of
    `build_draft`. The algorithm is not changed.
    """
    steps = algorithm.steps
    if not len(steps.control_indices):
        return full
    # The verifier decides whether the steps are correct without program order.
    relaxed_steps = replace(
        steps,
        control_indptr=np.zeros(len(steps) + 1, np.int64),
        control_indices=np.zeros(0, np.int64),
    )
    if not verify(replace(algorithm, steps=relaxed_steps)).ok:
        return full
    return cut_counts(build_draft(algorithm, with_control=False), MAX_COUNT)
