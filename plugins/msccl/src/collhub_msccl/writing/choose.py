"""Choose how the steps of an algorithm are shared among thread blocks.

The producer's thread blocks come first, as they are, then cut where they have too many steps: what
was imported is written back as it was. Else new ones are made in several ways, and the best is
taken: safe from full FIFOs at every size before safe at some, then that of the least product of the
steps to execute, the time on links that have room for all (`block_time`), and those of a small and
of a large call on links that messages share (`link_time`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.lowering import lower
from collhub_msccl.runtimes.fifo_safety import FifoSafety, compute_fifo_safety
from collhub_msccl.runtimes.known_runtimes import FIFO_CAPACITY, MAX_COUNT, Runtime
from collhub_msccl.thread_block_program import ThreadBlockProgram
from collhub_msccl.writing.assemble import Attempt, NoProgramError, assemble
from collhub_msccl.writing.block_time import BlockFigures, block_figures
from collhub_msccl.writing.draft import StepDraft, cut_counts, draft_of
from collhub_msccl.writing.emission import Memory
from collhub_msccl.writing.joins import Fusing, joins
from collhub_msccl.writing.link_time import link_times
from collhub_msccl.writing.placement import PlacementLimits
from collhub_msccl.writing.scratch_values import with_own_places
from collhub_msccl.writing.spread import SpreadWay, spread
from collhub_msccl.writing.thread_blocks import assign_lanes, given_lanes
from hub_core.model import Algorithm, Collective, Diagnostic, InputError, Location, StepTable
from hub_core.verification import verify

# All thread blocks of a rank wait for each other, so that a GPU must run them at once: fewer than
# any of its multiprocessors, and what the runtime with the lowest limit takes.
RESIDENT_BLOCKS = 64
# Of larger programs the first way that is safe at every size is taken: others cost seconds.
_MANY_ROWS = 1 << 14
# A buffer crosses a link in so many latencies where steps are spread: a small call, since more
# blocks gain most there, but larger than that of `link_time`, so that large calls lose little.
_LATENCIES_OF_A_BUFFER = 8


@dataclass(frozen=True, slots=True)
class ChosenProgram:
    """A program, its figures, its times on links, and the sizes at which it cannot deadlock.

    `has_channels`: it has no more channels than were asked for; `source_blocks`: thread blocks that
    the producer states for the rank that has most; 0: none.
    """

    program: ThreadBlockProgram
    figures: BlockFigures
    link_times: tuple[int, ...]
    safety: FifoSafety
    has_channels: bool
    source_blocks: int

    @property
    def cost(self) -> tuple[bool, bool, int, int, int]:
        """The lower the better.

        Times and executed steps count alike: no model knows the cost of a step, or of memory.
        """
        figures = self.figures
        is_limited = self.safety.min_units != 1 or figures.blocks > RESIDENT_BLOCKS
        product = prod((figures.makespan, figures.executed, *self.link_times))
        return is_limited, not self.has_channels, product, figures.makespan, figures.blocks


@dataclass(frozen=True, slots=True)
class WritingTask:
    """What is to be written, and for whom.

    `collective`: with the modes that the file claims; `channels`: to spread over, None where the
    producer's hold.
    """

    algorithm: Algorithm
    collective: Collective
    protocol: str
    memory: Memory
    limits: Runtime
    channels: int | None


def choose_program(task: WritingTask) -> ChosenProgram:
    """The best program that was found.

    Raises `InputError` that names the limit where none keeps all, or the deadlock where all end in
    one.
    """
    full = cut_counts(draft_of(task.algorithm, with_control=True), MAX_COUNT)
    chooser = _Chooser(task)
    for attempt in _faithful(task, full):
        found = chooser.tried(attempt)
        if found is not None:
            return found
    candidates: list[ChosenProgram] = []
    longest: int | None = None
    free = _without_reuse(task.algorithm) or _without_control(task.algorithm, full)
    for attempt in _new(task, free):
        found = chooser.tried(attempt)
        if found is not None:
            candidates.append(found)
            if attempt.limits_time and not found.cost[0]:
                longest = found.figures.makespan
        is_enough = attempt.is_enough or len(free) > _MANY_ROWS
        if is_enough and any(not candidate.cost[0] for candidate in candidates):
            break
    if not candidates:
        raise chooser.error()
    eligible = [each for each in candidates if longest is None or each.figures.makespan <= longest]
    return min(eligible, key=lambda candidate: candidate.cost)


class _Chooser:
    """Makes programs, and remembers why there is none."""

    def __init__(self, task: WritingTask) -> None:
        self._task = task
        self._reason = "the order of its connections makes steps wait for each other in a circle"
        self._is_deadlock = False
        self._source_blocks = _stated_blocks(task.algorithm.steps)

    def tried(self, attempt: Attempt) -> ChosenProgram | None:
        """The program of an attempt, None where there is none that runs at any size."""
        task = self._task
        # New thread blocks run in another order, so scratch is used in another order too.
        is_compact = task.memory.is_compact or attempt.is_new
        try:
            chosen = replace(task.memory, is_compact=is_compact)
            program = assemble(attempt, chosen, task.limits)
        except NoProgramError as error:
            self._reason = str(error)
            return None
        # What is judged is the file, not the algorithm that it was made of.
        lowered = _lowered(program, task.collective)
        safety = compute_fifo_safety(lowered, FIFO_CAPACITY[task.protocol])
        if safety.min_units is None:
            self._is_deadlock = True
            return None
        figures = block_figures(program)
        has_channels = task.channels is None or figures.channels <= task.channels
        times = link_times(lowered)
        return ChosenProgram(program, figures, times, safety, has_channels, self._source_blocks)

    def error(self) -> InputError:
        """Why there is no program."""
        task = self._task
        title = task.limits.title
        place = Location(task.algorithm.provenance.source_name or None)
        if not self._is_deadlock:
            message = f"cannot be written for {title}: {self._reason}"
            return InputError(message, location=place, code="runtime-limit")
        is_simple = task.protocol == "Simple"
        return InputError(
            f"cannot be written for {title}: it deadlocks at every size,"
            f" as a connection holds only {FIFO_CAPACITY[task.protocol]} transfers"
            f" in the protocol {task.protocol}",
            location=place,
            cure="choose -O proto=LL or LL128"
            if is_simple
            else "let receives come before further sends",
            code="fifo-deadlock",
        )


def _stated_blocks(steps: StepTable) -> int:
    """Most lanes of a rank."""
    has_lane = steps.lane >= 0
    pairs = np.stack([steps.rank[has_lane], steps.lane[has_lane]])
    ranks = np.unique(pairs, axis=1)[0]
    return int(np.bincount(ranks).max(initial=0))


def _ways_to_fuse(task: WritingTask) -> tuple[bool, ...]:
    """With fused steps first: one receives only when it can send, which can close a circle."""
    return (True, False) if task.limits.has_fused_steps else (False,)


def _faithful(task: WritingTask, full: StepDraft) -> Iterator[Attempt]:
    """With the producer's thread blocks, if there are any; the most faithful first."""
    given = given_lanes(full)
    if given is None:
        return
    for draft, may_cut in ((full, False), (_without_control(task.algorithm, full), True)):
        # The waits of reductions in one pass take steps, of which there may be too many.
        for is_merging in (True, False):
            for is_fusing in _ways_to_fuse(task):
                yield Attempt(draft, given, may_cut, is_fusing, is_merging)


def _new(task: WritingTask, draft: StepDraft) -> Iterator[Attempt]:
    """With new thread blocks, the most promising first; each is made when it is asked for."""
    capacity = FIFO_CAPACITY[task.protocol]
    yield from _spread(task, draft, capacity)
    if task.channels is None and len(draft) <= _MANY_ROWS:
        yield _as_public_compiler(task, draft)
    yield from _joined(task, draft, is_tight=False, is_merging=True)
    # For messages that take several transfers each.
    yield from _spread(task, draft, 1)
    yield from _joined(task, draft, is_tight=True, is_merging=True)
    yield from _joined(task, draft, is_tight=True, is_merging=False)


def _spread(task: WritingTask, draft: StepDraft, capacity: int) -> Iterator[Attempt]:
    """The attempts of list scheduling, if limits permit them."""
    limits = task.limits
    channels = limits.max_channels if task.channels is None else task.channels
    blocks = min(limits.max_blocks, RESIDENT_BLOCKS)
    is_free = task.channels is not None
    latency = _latency(task)
    fusings = tuple(Fusing) if limits.has_fused_steps else (Fusing.NONE,)
    tried: list[Edges] = []
    for fusing in fusings:
        joined = joins(draft, is_free, fusing, latency)
        if any(np.array_equal(joined, other) for other in tried):
            continue
        tried.append(joined)
        for is_sparing in (False, True):
            placing = PlacementLimits(blocks, channels, is_free, is_sparing)
            found = spread(draft, SpreadWay(placing, joined, capacity, latency))
            if found is not None:
                yield Attempt(
                    found.draft,
                    found.lanes,
                    may_cut=True,
                    is_fusing=fusing is not Fusing.NONE,
                    is_new=True,
                    joined=found.joined,
                )


def _as_public_compiler(task: WritingTask, draft: StepDraft) -> Attempt:
    """The thread blocks of MSCCLang for stated channels; other programs must not take longer.

    A block for each end of a connection, or for two where everything that is received is only sent
    on. With open channels its assignment of channels would have to be repeated, too.
    """
    fusing = Fusing.PROMPT if task.limits.has_fused_steps else Fusing.NONE
    first, second = joins(draft, False, fusing, _latency(task))
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


def _joined(
    task: WritingTask,
    draft: StepDraft,
    is_tight: bool,
    is_merging: bool,
) -> Iterator[Attempt]:
    """Attempts with a thread block for each end of a connection, or for two that belong together.

    What is found up to their last is good enough if it is safe.
    """
    for is_fusing in _ways_to_fuse(task):
        yield Attempt(
            draft,
            assign_lanes(draft, is_tight, is_merging),
            may_cut=True,
            is_fusing=is_fusing,
            is_merging=is_merging,
            is_new=True,
            is_enough=is_tight or not is_fusing,
        )


def _latency(task: WritingTask) -> int:
    """Latency of a link where steps are spread, in the time of one unit."""
    return max(task.collective.unit_count // _LATENCIES_OF_A_BUFFER, 1)


def _without_reuse(algorithm: Algorithm) -> StepDraft | None:
    """Only what data ask for, with a place in scratch for every value; None if that is not right.

    What is wrong as it stands stays so: to put its conflicts in order would hide that.
    """
    own = with_own_places(algorithm)
    if own is None or not verify(algorithm).ok or not verify(own).ok:
        return None
    return cut_counts(draft_of(own, with_control=False), MAX_COUNT)


def _without_control(algorithm: Algorithm, full: StepDraft) -> StepDraft:
    """Only data dependencies, if they alone keep the algorithm right.

    Between new thread blocks program order would cost waits.
    """
    steps = algorithm.steps
    if not len(steps.control_indices):
        return full
    # Right without program order is a question for the verifier, not for rules of thumb.
    relaxed_steps = replace(
        steps,
        control_indptr=np.zeros(len(steps) + 1, np.int64),
        control_indices=np.zeros(0, np.int64),
    )
    if not verify(replace(algorithm, steps=relaxed_steps)).ok:
        return full
    return cut_counts(draft_of(algorithm, with_control=False), MAX_COUNT)


def _lowered(program: ThreadBlockProgram, collective: Collective) -> Algorithm:
    """The file as its reader would have it, but for dependencies that follow from others."""
    lowered = lower(program, False, FileFindings("", _ignore))
    table = StepTable.from_columns(
        program.num_ranks,
        lowered.columns,
        lowered.data,
        lowered.control,
    )
    return Algorithm(collective, table, lowered.scratch_units)


def _ignore(_diagnostic: Diagnostic) -> None:
    """The reader's warnings are about the file of somebody else."""
