"""Choose the assignment of an algorithm's steps to thread blocks.

The producer's thread blocks are tried first, unchanged, then cut if they have too many steps: an
imported file is written back unchanged. Otherwise new ones are built in several variants. Variants
whose FIFOs cannot fill up at any size are preferred; among these, the one with the least product of
the executed steps, the time on unlimited links, and the times of a small and of a large call on
shared links (see `execution_times`) is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.lowering import lower
from collhub_msccl.runtimes.known_runtimes import (
    FIFO_CAPACITY,
    MAX_COUNT,
    RESIDENT_BLOCKS,
    Runtime,
)
from collhub_msccl.runtimes.load_check import FifoSafety, compute_fifo_safety
from collhub_msccl.thread_block_program import ThreadBlockProgram
from collhub_msccl.writing.assemble import Attempt, NoProgramError, assemble
from collhub_msccl.writing.draft import StepDraft, build_draft, cut_counts
from collhub_msccl.writing.emission import Memory
from collhub_msccl.writing.execution_times import (
    BlockFigures,
    compute_block_figures,
    compute_link_times,
)
from collhub_msccl.writing.placement import PlacementLimits
from collhub_msccl.writing.scratch import rename_scratch_values
from collhub_msccl.writing.spread import (
    DistributionOptions,
    Fusing,
    distribute_steps,
    find_fusable_pairs,
)
from collhub_msccl.writing.thread_blocks import assign_lanes, find_given_lanes
from hub_core.columns import labels
from hub_core.model import Algorithm, Collective, InputError, Location, StepTable
from hub_core.plugin_api import LimitError
from hub_core.verification import verify

# Rows above which the first variant that is safe at every size is chosen: further variants cost
# seconds.
_MAX_ROWS_FOR_ALL_ATTEMPTS = 1 << 14
# Transfer time of a buffer, in latencies, when steps are distributed: a small call, because more
# thread blocks gain most there, but larger than that of the shared links, so that large calls lose
# little.
_BUFFER_TIME_IN_LATENCIES = 8


@dataclass(frozen=True, slots=True)
class ChosenProgram:
    """A program, its figures, its times on links, and the sizes at which it cannot deadlock.

    `has_channels`: it uses at most the requested channels; `source_blocks`: lanes that the producer
    declares for the rank with the most, 0 for none.
    """

    program: ThreadBlockProgram
    figures: BlockFigures
    link_times: tuple[int, ...]
    safety: FifoSafety
    has_channels: bool
    source_blocks: int

    @property
    def cost(self) -> tuple[bool, bool, int, int, int]:
        """Return the key by which programs are compared; the lowest is best.

        Its entries, in order:

        - whether the program can deadlock at some size, or has more than `RESIDENT_BLOCKS`
          thread blocks on a rank
        - whether it uses more channels than requested
        - the product of the makespan, the executed steps, and the simulated times of a small
          and of a large call on shared links; all factors have equal weight, because no model
          has the cost of a step or of memory
        - the makespan (time without contention, in units of data)
        - the maximum number of thread blocks of a rank
        """
        figures = self.figures
        is_limited = self.safety.min_units != 1 or figures.blocks > RESIDENT_BLOCKS
        product = prod((figures.makespan, figures.executed, *self.link_times))
        return is_limited, not self.has_channels, product, figures.makespan, figures.blocks


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
    limits: Runtime
    channels: int | None


def choose_program(task: WritingTask, *, is_first: bool = False) -> ChosenProgram:
    """Choose the best program for an algorithm and a runtime.

    A program assigns the steps to thread blocks. Attempts with the producer's thread blocks come
    first; the first one that gives a program is returned, also if it is not safe (safe: no deadlock
    at any size, and at most `RESIDENT_BLOCKS` thread blocks on a rank). Otherwise attempts with new
    thread blocks are made, and the program with the lowest `cost` is returned, the first of equal
    ones.

    An attempt marked `limits_time` that gives a safe program sets a limit: programs with a longer
    makespan than its own are excluded, also earlier ones; of several such attempts the last one
    counts. Once there is a safe program, attempts end if `is_first`, if the attempt is marked
    `is_enough`, or if there are more than `_MAX_ROWS_FOR_ALL_ATTEMPTS` steps.

    Raises `InputError` if no attempt gives a program: `fifo-deadlock` if one deadlocks at every
    size, otherwise `runtime-limit` with the last exceeded limit; and the errors of `build_draft`.
    Nothing is attempted if connections need too many channels (`_count_necessary_channels`).
    """
    full = cut_counts(build_draft(task.algorithm, with_control=True), MAX_COUNT)
    chooser = _Chooser(task)
    if _count_necessary_channels(task, full) > task.limits.max_channels:
        raise chooser.build_error(NoProgramError.of_channels(task.limits.max_channels))
    for attempt in _iterate_faithful(task, full):
        candidate = chooser.try_attempt(attempt)
        if candidate is not None:
            return candidate
    candidates: list[ChosenProgram] = []
    longest: int | None = None
    free = _draft_without_reuse(task.algorithm) or _draft_without_control(task.algorithm, full)
    for attempt in _iterate_new(task, free):
        candidate = chooser.try_attempt(attempt)
        if candidate is not None:
            candidates.append(candidate)
            if attempt.limits_time and not candidate.cost[0]:
                longest = candidate.figures.makespan
        is_enough = attempt.is_enough or len(free) > _MAX_ROWS_FOR_ALL_ATTEMPTS or is_first
        if is_enough and any(not candidate.cost[0] for candidate in candidates):
            break
    if not candidates:
        raise chooser.build_error()
    eligible = [
        candidate
        for candidate in candidates
        if longest is None or candidate.figures.makespan <= longest
    ]
    return min(eligible, key=lambda candidate: candidate.cost)


def _count_necessary_channels(task: WritingTask, draft: StepDraft) -> int:
    """Return a number of channels that every assignment to thread blocks needs; 0 if unknown.

    If channels are not chosen freely, messages of different channels between the same two ranks
    stay on different connections, and connections between the same ranks need different channels.
    """
    if task.channels is not None:
        return 0
    source, destination, _ = draft.connections[1].T
    return int(np.bincount(source * draft.num_ranks + destination).max(initial=0))


def has_unstated_channels(algorithm: Algorithm) -> bool:
    """Return whether the producer of an algorithm declares that it assigned no channels."""
    extension = algorithm.extensions.get("msccl")
    return isinstance(extension, dict) and extension.get("channels") == "unstated"


def count_necessary_blocks(algorithm: Algorithm) -> int:
    """Return a number of thread blocks that some rank needs in every program of an algorithm.

    A thread block sends to at most one rank, receives from at most one, and serves one channel of
    the algorithm. If channels are chosen freely, only the ranks count.
    """
    steps = algorithm.steps
    channel = labels(steps.channel)
    if has_unstated_channels(algorithm):
        channel = np.zeros(len(steps), np.int64)
    channels = int(channel.max(initial=0)) + 1
    connections = []
    for rows in (np.flatnonzero(steps.sends), np.flatnonzero(steps.receives)):
        place = steps.rank[rows].astype(np.int64) * channels + channel[rows]
        pairs = np.unique(place * algorithm.num_ranks + steps.peer[rows])
        size = algorithm.num_ranks * channels
        connections.append(np.bincount(pairs // algorithm.num_ranks, minlength=size))
    needed = np.maximum(*connections).reshape(algorithm.num_ranks, channels)
    return int(needed.sum(axis=1).max(initial=0))


def find_any_program(task: WritingTask) -> ChosenProgram | None:
    """Return a safe program that is found without list scheduling; None if there is none.

    Safe: no deadlock at any size, and at most `RESIDENT_BLOCKS` thread blocks on a rank. It is the
    first one, not the best one, of the attempts with thread blocks that follow from the connections
    (`_iterate_joined`). List scheduling takes most of the time of `choose_program`. None also if
    the producer's thread blocks may be kept. Raises the errors of `build_draft`.
    """
    full = cut_counts(build_draft(task.algorithm, with_control=True), MAX_COUNT)
    is_impossible = _count_necessary_channels(task, full) > task.limits.max_channels
    if is_impossible or find_given_lanes(full) is not None:
        return None
    draft = _draft_without_reuse(task.algorithm) or _draft_without_control(task.algorithm, full)
    chooser = _Chooser(task)
    max_blocks = min(task.limits.max_blocks, RESIDENT_BLOCKS)
    for is_tight in (False, True):
        for attempt in _iterate_joined(task, draft, is_tight=is_tight, is_merging=True):
            # Lanes are cut and separated, but never joined again.
            if attempt.lanes.count_per_rank(draft) > max_blocks:
                break
            candidate = chooser.try_attempt(attempt)
            if candidate is not None and not candidate.cost[0]:
                return candidate
    return None


class _Chooser:
    """Builds programs for a task, and remembers the latest reason why an attempt gave none."""

    def __init__(self, task: WritingTask) -> None:
        self._task = task
        text = "the order of its connections makes steps wait for each other in a circle"
        self._reason = NoProgramError(text)
        self._is_deadlock = False
        # Maximum number of lanes of a rank; 0 without lanes.
        steps = task.algorithm.steps
        has_lane = steps.lane >= 0
        pairs = np.stack([steps.rank[has_lane], steps.lane[has_lane]])
        ranks = np.unique(pairs, axis=1)[0]
        self._source_blocks = int(np.bincount(ranks).max(initial=0))

    def try_attempt(self, attempt: Attempt) -> ChosenProgram | None:
        """Build and evaluate the program of an attempt; return None if it cannot be used.

        - The program exceeds a limit, or its connections wait for each other (`assemble`): None.
          The reason is stored for `build_error` and replaces an earlier one.
        - The program deadlocks at every size: None. This is stored for `build_error`, too.
        - Otherwise the program is returned with its figures, link times and safety. It may deadlock
          at some sizes or have more thread blocks than a GPU can run at once.

        Safety and link times are computed from the program as the reader reads it, but only with
        the data dependencies that the file declares. Scratch is allocated again if the attempt has
        new thread blocks or the task requests it. `has_channels` of the result is False if the
        program uses more channels than the task requests, and True if the task requests none.
        """
        task = self._task
        # New thread blocks change the order of execution, so scratch must be allocated again.
        is_compact = task.memory.is_compact or attempt.is_new
        try:
            chosen = replace(task.memory, is_compact=is_compact)
            program = assemble(attempt, chosen, task.limits)
        except NoProgramError as error:
            self._reason = error
            return None
        # Evaluate the file, as the reader would read it, but without implied true dependencies;
        # not the algorithm from which it was built. The reader's warnings do not apply.
        rows = lower(program, False, FileFindings("", lambda diagnostic: None))
        table = StepTable.from_columns(program.num_ranks, rows.columns, rows.data, rows.control)
        lowered = Algorithm(task.collective, table, rows.scratch_units)
        safety = compute_fifo_safety(lowered, FIFO_CAPACITY[task.protocol])
        if safety.min_units is None:
            self._is_deadlock = True
            return None
        figures = compute_block_figures(program)
        has_channels = task.channels is None or figures.channels <= task.channels
        times = compute_link_times(lowered)
        return ChosenProgram(program, figures, times, safety, has_channels, self._source_blocks)

    def build_error(self, reason: NoProgramError | None = None) -> InputError:
        """Return the error that no attempt gave a program; the caller raises it.

        - If any attempt deadlocked at every size, the code is `fifo-deadlock`. The message has the
          number of transfers that a connection holds. The cure is another protocol (`LL` or
          `LL128`) for the protocol Simple, otherwise another order of steps.
        - Otherwise it is a `LimitError` (`runtime-limit`) with `reason` and its resource, by
          default those of the last attempt. Without a stored reason, the message states that steps
          wait for each other in a circle.

        The error is located at the source file of the algorithm, if that is known.
        """
        task = self._task
        title = task.limits.title
        location = Location(task.algorithm.provenance.source_name or None)
        if not self._is_deadlock:
            reason = reason or self._reason
            message = f"cannot be written for {title}: {reason}"
            return LimitError(message, location=location).about(reason.resource)
        is_simple = task.protocol == "Simple"
        return InputError(
            f"cannot be written for {title}: it deadlocks at every size,"
            f" as a connection holds only {FIFO_CAPACITY[task.protocol]} transfers"
            f" in the protocol {task.protocol}",
            location=location,
            cure="choose -O proto=LL or LL128"
            if is_simple
            else "let receives come before further sends",
            code="fifo-deadlock",
        )


def _list_fusing_options(task: WritingTask) -> tuple[bool, ...]:
    """Values of `is_fusing` to try, fused first.

    A fused step receives only when it can send, which can close a cycle of waits.
    """
    return (True, False) if task.limits.has_fused_steps else (False,)


def _iterate_faithful(task: WritingTask, full: StepDraft) -> Iterator[Attempt]:
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
                yield Attempt(draft, producer_lanes, may_cut, is_fusing, is_merging)


def _iterate_new(task: WritingTask, draft: StepDraft) -> Iterator[Attempt]:
    """Yield attempts with new thread blocks, in the order in which they should be tried.

    - list scheduling with the FIFO capacity of the protocol
    - the assignment of MSCCLang's public compiler, only if the task requests no number of channels
      and the draft has at most `_MAX_ROWS_FOR_ALL_ATTEMPTS` rows
    - one thread block for several connections of a rank (`_iterate_joined`)
    - list scheduling with a capacity of one message
    - `_iterate_joined` with `is_tight`, first with and then without merging of reductions

    Each attempt is built when it is requested.
    """
    capacity = FIFO_CAPACITY[task.protocol]
    yield from _iterate_distributed(task, draft, capacity)
    if task.channels is None and len(draft) <= _MAX_ROWS_FOR_ALL_ATTEMPTS:
        yield _build_public_compiler_attempt(task, draft)
    yield from _iterate_joined(task, draft, is_tight=False, is_merging=True)
    # For messages that take several transfers each.
    yield from _iterate_distributed(task, draft, 1)
    yield from _iterate_joined(task, draft, is_tight=True, is_merging=True)
    yield from _iterate_joined(task, draft, is_tight=True, is_merging=False)


def _iterate_distributed(task: WritingTask, draft: StepDraft, capacity: int) -> Iterator[Attempt]:
    """Yield attempts with thread blocks from list scheduling, at most two for each kind of fusion.

    `capacity`: transfers that a connection holds. The kinds of fusion are tried in the order ALL,
    PROMPT, NONE. The order is reversed if the rank with the most steps has more than half of what
    its blocks can contain (blocks per rank times steps per block). Without fused steps in the
    runtime, only NONE is tried. A kind that fuses the same pairs as an earlier one is skipped.

    The first attempt of a kind lets steps finish as early as possible, the second one uses few
    new blocks. An attempt that does not fit into the limits is omitted, so that there may be
    none. A rank gets at most `RESIDENT_BLOCKS` thread blocks, or the runtime's limit if that is
    lower. If the task gives a number of channels, the channel of every message is chosen anew
    among them; otherwise the steps keep their channels. All attempts are new and may be cut.
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
        for is_sparing in (False, True):
            placing = PlacementLimits(blocks, channels, is_free, is_sparing)
            distribution = distribute_steps(
                draft, DistributionOptions(placing, joined, capacity, latency)
            )
            if distribution is not None:
                yield Attempt(
                    distribution.draft,
                    distribution.lanes,
                    may_cut=True,
                    is_fusing=fusing is not Fusing.NONE,
                    is_new=True,
                    joined=distribution.joined,
                )


def _build_public_compiler_attempt(task: WritingTask, draft: StepDraft) -> Attempt:
    """Build the attempt with the thread blocks that MSCCLang's public compiler would choose.

    Each side of a connection gets a thread block. An incoming and an outgoing connection of a rank
    share a block if data of the first are forwarded on the second by fused steps (PROMPT fusion).
    Without fused steps in the runtime, no connections share a block. Fusable pairs of steps are
    fused if both are in one block. Steps keep their channels, because MSCCLang's assignment of
    channels is not reproduced. The attempt is new, may be cut, and is marked `limits_time`: if it
    gives a safe program, candidates with a longer makespan are excluded.
    """
    fusing = Fusing.PROMPT if task.limits.has_fused_steps else Fusing.NONE
    first, second = find_fusable_pairs(draft, False, fusing, _compute_latency(task))
    is_forwarded = draft.receives[first] & draft.sends[second]
    lanes = assign_lanes(draft, forwarded=(first[is_forwarded], second[is_forwarded]))
    is_inside = lanes.of_row[first] == lanes.of_row[second]
    return Attempt(
        draft,
        lanes,
        may_cut=True,
        is_fusing=fusing is not Fusing.NONE,
        is_new=True,
        joined=(first[is_inside], second[is_inside]),
        limits_time=True,
    )


def _iterate_joined(
    task: WritingTask,
    draft: StepDraft,
    is_tight: bool,
    is_merging: bool,
) -> Iterator[Attempt]:
    """Yield attempts with a block for each side of a connection, or for two sides that belong
    together.

    `is_tight`: more sides are joined, see `assign_lanes`. One attempt per value of `is_fusing`;
    tight ones, and the last, are marked `is_enough`.
    """
    for is_fusing in _list_fusing_options(task):
        yield Attempt(
            draft,
            assign_lanes(draft, is_tight, is_merging),
            may_cut=True,
            is_fusing=is_fusing,
            is_merging=is_merging,
            is_new=True,
            is_enough=is_tight or not is_fusing,
        )


def _compute_latency(task: WritingTask) -> int:
    """Latency of a link when steps are distributed, in units of the time of one chunk."""
    return max(task.collective.unit_count // _BUFFER_TIME_IN_LATENCIES, 1)


def _draft_without_reuse(algorithm: Algorithm) -> StepDraft | None:
    """Return the steps with data dependencies only, and with separate scratch for every value.

    Without reused scratch, fewer steps must wait for each other. Steps are cut to at most
    `MAX_COUNT` units. None if values cannot be renamed, or if the algorithm or the result fails
    verification. Raises the errors of `build_draft`.
    """
    renamed = rename_scratch_values(algorithm)
    if renamed is None or not verify(algorithm).ok or not verify(renamed).ok:
        return None
    return cut_counts(build_draft(renamed, with_control=False), MAX_COUNT)


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
