"""Choose the assignment of an algorithm's steps to thread blocks.

The producer's thread blocks are used if they give a program. Otherwise new ones are built in
several variants (`attempts`). Variants whose FIFOs cannot fill up at any size are preferred; among
these, the one with the least product of the executed steps, the time on unlimited links, and the
times of a small and of a large call on shared links (see `execution_times`) is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.lowering import LoweredRows, lower
from collhub_msccl.runtimes.known_runtimes import FIFO_CAPACITY, MAX_COUNT, RESIDENT_BLOCKS
from collhub_msccl.runtimes.load_check import FifoSafety, compute_fifo_safety
from collhub_msccl.thread_block_program import ThreadBlockProgram
from collhub_msccl.writing.assemble import BlockAssignment, NoProgramError, assemble
from collhub_msccl.writing.attempts import (
    MAX_ROWS_FOR_ALL_ATTEMPTS,
    WritingTask,
    build_free_draft,
    iterate_faithful_attempts,
    iterate_joined_attempts,
    iterate_new_attempts,
)
from collhub_msccl.writing.draft import StepDraft, build_draft, cut_counts
from collhub_msccl.writing.execution_times import (
    BlockFigures,
    compute_block_figures,
    compute_link_times,
)
from collhub_msccl.writing.list_kernels import as_array, run
from collhub_msccl.writing.thread_blocks import find_given_lanes
from collhub_msccl.writing.time_kernels import order_rows
from hub_core.columns import Int64Array, csr, inverse, labels
from hub_core.model import Algorithm, InputError, Location, StepTable
from hub_core.plugin_api import LimitError

# Rows that are sorted in the time of one node of list scheduling, in plain Python.
_ROWS_PER_NODE = 1 << 3


@dataclass(frozen=True)
class ChosenProgram:
    """A program, its figures, and the sizes at which it cannot deadlock.

    `lowered`: the steps of the program as an algorithm. `has_channels`: it uses at most the
    requested channels; `source_blocks`: lanes that the producer declares for the rank with the
    most, 0 for none.
    """

    program: ThreadBlockProgram
    lowered: Algorithm
    figures: BlockFigures
    safety: FifoSafety
    has_channels: bool
    source_blocks: int

    @property
    def is_safe(self) -> bool:
        """Whether it deadlocks at no size, and has at most `RESIDENT_BLOCKS` blocks of a rank."""
        return self.safety.min_units == 1 and self.figures.blocks <= RESIDENT_BLOCKS

    @cached_property
    def cost(self) -> tuple[bool, bool, int, int, int]:
        """Return the key by which programs are compared; the lowest is best.

        Its entries, in order:

        - whether the program is not safe (`is_safe`)
        - whether it uses more channels than requested
        - the product of the makespan, the executed steps, and the simulated times of a small
          and of a large call on shared links; all factors have equal weight, because no model
          has the cost of a step or of memory
        - the makespan (time without contention, in units of data)
        - the maximum number of thread blocks of a rank

        The link times are simulated at the first use, which takes n log n in steps.
        """
        figures = self.figures
        product = prod((figures.makespan, figures.executed, *compute_link_times(self.lowered)))
        return not self.is_safe, not self.has_channels, product, figures.makespan, figures.blocks


class ProgramSearch:
    """Search for the programs of a task: for any safe program, or for the best one.

    Raises the errors of `build_draft`. The results of attempts are kept, so that both searches can
    be used one after the other, and equal attempts are made once.
    """

    def __init__(self, task: WritingTask) -> None:
        self._task = task
        self._full = cut_counts(build_draft(task.algorithm, with_control=True), MAX_COUNT)
        self._known: dict[bytes, ChosenProgram | NoProgramError] = {}
        # Maximum number of lanes of a rank; 0 without lanes.
        steps = task.algorithm.steps
        has_lane = steps.lane >= 0
        pairs = np.stack([steps.rank[has_lane], steps.lane[has_lane]])
        ranks = np.unique(pairs, axis=1)[0]
        self._source_blocks = int(np.bincount(ranks).max(initial=0))

    def find_any(self) -> ChosenProgram | None:
        """Return the first safe program that needs no list scheduling; None if there is none.

        A program is safe if it has no deadlock at any size and at most `RESIDENT_BLOCKS` thread
        blocks on a rank. Returns None at once in two cases: the limits are provably too low
        (`_find_impossibility`), or the thread blocks that the producer gave can be kept
        (`find_given_lanes`).

        The attempts are those of `iterate_joined_attempts` with chains of reductions on one block,
        first with `is_tight` False, then True. For each value, the attempts end at the first with
        more blocks on a rank than `RESIDENT_BLOCKS` or the limit of the task. Attempts with too
        many elements per block are skipped. Outcomes are stored for later searches (`_try_once`).
        """
        task = self._task
        is_impossible = self._find_impossibility() is not None
        if is_impossible or find_given_lanes(self._full) is not None:
            return None
        max_blocks = min(task.limits.max_blocks, RESIDENT_BLOCKS)
        for is_tight in (False, True):
            for attempt in iterate_joined_attempts(
                task, self._free, is_tight=is_tight, is_merging=True
            ):
                # Lanes are cut and separated, but never joined again.
                if attempt.lanes.count_per_rank(self._free) > max_blocks:
                    break
                if attempt.needs_too_many_elements(task.limits):
                    continue
                outcome = self._try_once(attempt)
                if isinstance(outcome, ChosenProgram) and outcome.is_safe:
                    return outcome
        return None

    def choose(self, *, is_first: bool = False) -> ChosenProgram:
        """Choose the best program for the task, i.e. assign its steps to thread blocks.

        1. Attempts with the producer's thread blocks come first. The first one that gives a
           program is returned, also if it is unsafe.
        2. Otherwise attempts with new thread blocks follow. The program with the lowest `cost` is
           returned, the first of equal ones; unsafe programs cost more than safe ones. Attempts
           that certainly exceed a limit are skipped (`BlockAssignment.needs_too_many_elements`).

        A safe program of an attempt with `limits_time` in step 2 limits the makespan: programs
        with a longer one are not eligible, also earlier ones. The last such attempt counts. Step 2
        ends after an attempt if there is a safe program and one of these holds: `is_first`, the
        attempt has `is_enough`, or there are more than `MAX_ROWS_FOR_ALL_ATTEMPTS` steps.

        Raises `InputError` if no attempt gives a program: `fifo-deadlock` if one deadlocks at
        every size, otherwise `runtime-limit` with the last reason. It is raised before any attempt
        if each program needs too many channels or thread blocks (`_find_impossibility`).
        """
        impossibility = self._find_impossibility()
        if impossibility is not None:
            raise self._build_error(impossibility)
        reason = NoProgramError(
            "the order of its connections makes steps wait for each other in a circle"
        )
        is_deadlock = False
        for attempt in iterate_faithful_attempts(self._task, self._full):
            outcome = self._try(attempt)
            if isinstance(outcome, ChosenProgram):
                return outcome
            is_deadlock |= outcome.is_deadlock
        candidates: list[ChosenProgram] = []
        longest: int | None = None
        left_out: BlockAssignment | None = None
        is_large = len(self._free) > MAX_ROWS_FOR_ALL_ATTEMPTS
        for attempt in iterate_new_attempts(self._task, self._free):
            left_out = None
            if attempt.needs_too_many_elements(self._task.limits):
                left_out = attempt
            else:
                outcome = self._try_once(attempt)
                if isinstance(outcome, ChosenProgram):
                    candidates.append(outcome)
                    if attempt.limits_time and outcome.is_safe:
                        longest = outcome.figures.makespan
                elif outcome.is_deadlock:
                    is_deadlock = True
                else:
                    reason = outcome
            if (is_first or is_large or attempt.is_enough) and any(
                candidate.is_safe for candidate in candidates
            ):
                break
        if not candidates:
            if left_out is not None and not is_deadlock:
                # The message has the exact number of the last attempt.
                outcome = self._try_once(left_out)
                assert isinstance(outcome, NoProgramError)
                reason = outcome
            raise self._build_error(reason, is_deadlock=is_deadlock)
        eligible = [one for one in candidates if longest is None or one.figures.makespan <= longest]
        # A single safe program is best without its cost, because all unsafe ones cost more.
        safe = [one for one in eligible if one.is_safe] or eligible
        return safe[0] if len(safe) == 1 else min(safe, key=lambda one: one.cost)

    @cached_property
    def _free(self) -> StepDraft:
        """The steps with as few dependencies as possible."""
        return build_free_draft(self._task.algorithm, self._full)

    def _find_impossibility(self) -> NoProgramError | None:
        """Return an error if every assignment to thread blocks exceeds a limit; None if not proven.

        A connection is an ordered pair of ranks that exchange messages. Unless channels are chosen
        freely (`task.channels` is not None), each channel of the pair counts separately. Checked in
        this order, an error results if the number is above its limit:

        1. Most connections between the same two ranks; limit `max_channels`. Not checked if
           channels are chosen freely. The error names no ranks.
        2. Incoming or outgoing connections of a rank, whichever are more; limit `max_blocks`. The
           error names the rank with the most, of equal ones the lowest.
        """
        task, limits = self._task, self._task.limits
        if task.channels is None:
            # Messages of different channels stay on different connections, and connections
            # between the same ranks need different channels.
            source, destination, _ = self._full.connections[1].T
            connections = np.bincount(source * self._full.num_ranks + destination)
            if int(connections.max(initial=0)) > limits.max_channels:
                return NoProgramError.of_channels(limits.max_channels)
        needed = _count_blocks_per_rank(task.algorithm, task.channels is not None)
        rank = int(needed.argmax())
        if int(needed[rank]) > limits.max_blocks:
            return NoProgramError(
                f"rank {rank} needs at least {needed[rank]} thread blocks, more than the"
                f" {limits.max_blocks} that it accepts",
                "blocks",
            )
        return None

    def _try_once(self, attempt: BlockAssignment) -> ChosenProgram | NoProgramError:
        """Return the result of `_try`, which is called only once for equal attempts."""
        digest = attempt.compute_digest()
        outcome = self._known.get(digest)
        if outcome is None:
            outcome = self._known[digest] = self._try(attempt)
        return outcome

    def _try(self, attempt: BlockAssignment) -> ChosenProgram | NoProgramError:
        """Build and evaluate the program of an attempt; return it or why it cannot be used.

        A `NoProgramError` is returned, not raised, for the first of these reasons: an exceeded
        limit or connections that wait for each other (`assemble`); a deadlock at every size, with
        `is_deadlock`. A returned program may deadlock at some sizes, or have more thread blocks
        than a GPU can run at once.

        Safety is computed from the program as the reader reads it, but only with the data
        dependencies that the file declares. Scratch is allocated again if the attempt has new
        thread blocks, or if `task.memory.is_compact`. `has_channels` of the result is False if the
        program uses more channels than the task requests, and True if the task requests none.
        """
        task = self._task
        # New thread blocks change the order of execution, so scratch must be allocated again.
        is_compact = task.memory.is_compact or attempt.is_new
        try:
            chosen = replace(task.memory, is_compact=is_compact)
            program = assemble(attempt, chosen, task.limits)
        except NoProgramError as error:
            return error.with_traceback(None)
        # Evaluate the file, as the reader would read it, but without implied true dependencies;
        # not the algorithm from which it was built. The reader's warnings do not apply.
        rows = lower(program, False, FileFindings("", lambda diagnostic: None))
        table = StepTable.from_columns(program.num_ranks, *_sort_rows(rows))
        lowered = Algorithm(task.collective, table, rows.scratch_units)
        safety = compute_fifo_safety(lowered, FIFO_CAPACITY[task.protocol])
        if safety.min_units is None:
            return NoProgramError("it deadlocks at every size", is_deadlock=True)
        figures = compute_block_figures(program)
        has_channels = task.channels is None or figures.channels <= task.channels
        return ChosenProgram(program, lowered, figures, safety, has_channels, self._source_blocks)

    def _build_error(self, reason: NoProgramError, *, is_deadlock: bool = False) -> InputError:
        """Return the error that no attempt gave a program; the caller raises it.

        - With `is_deadlock`, an attempt deadlocked at every size: the code is `fifo-deadlock`. The
          message has the number of transfers that a connection holds. The cure is another protocol
          (`LL` or `LL128`) for the protocol Simple, otherwise another order of steps.
        - Otherwise it is a `LimitError` (`runtime-limit`) with `reason` and its resource.

        The error is located at the source file of the algorithm, if that is known.
        """
        task = self._task
        title = task.limits.title
        location = Location(task.algorithm.provenance.source_name or None)
        if not is_deadlock:
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


def _sort_rows(rows: LoweredRows) -> tuple[dict[str, Int64Array], Edges, Edges]:
    """Return (columns, data, control dependencies) of rows in the order that a step table has.

    That is the order of `StepTable.from_columns`: every row follows those that it waits for, and of
    the ready rows of a rank the lowest one is next. Rows must be grouped by rank, with dependencies
    only within a rank. Dependencies are (parent rows, child rows), renumbered. A table would sort
    its rows itself, but in plain Python.

    If any rows wait for each other in a cycle, the columns and dependencies of `rows` are returned
    unchanged. `rows` itself is not changed.
    """
    columns, size = rows.columns, len(rows.columns["rank"])
    parents = np.concatenate([rows.data[0], rows.control[0]])
    children = np.concatenate([rows.data[1], rows.control[1]])
    # Dependencies stay within a rank and rows are grouped by rank: one order serves all ranks.
    waits = np.bincount(children, minlength=size)
    arguments = (waits, *csr(parents, children, size), np.zeros(size, np.int64))
    order = as_array(run(order_rows, size // _ROWS_PER_NODE, *arguments))
    if len(order) < size:
        return columns, rows.data, rows.control
    position = inverse(order)
    return (
        {name: column[order] for name, column in columns.items()},
        (position[rows.data[0]], position[rows.data[1]]),
        (position[rows.control[0]], position[rows.control[1]]),
    )


def has_unstated_channels(algorithm: Algorithm) -> bool:
    """Return whether the producer of an algorithm declares that it assigned no channels."""
    extension = algorithm.extensions.get("msccl")
    return isinstance(extension, dict) and extension.get("channels") == "unstated"


def count_necessary_blocks(algorithm: Algorithm) -> int:
    """Return a number of thread blocks that some rank needs in every program of an algorithm.

    A thread block sends to at most one rank and receives from at most one, and messages of
    different channels are on different connections. If channels are chosen freely, only the ranks
    count.
    """
    return int(_count_blocks_per_rank(algorithm, has_unstated_channels(algorithm)).max(initial=0))


def _count_blocks_per_rank(algorithm: Algorithm, is_free: bool) -> Int64Array:
    """Return for every rank the larger number of its connections in one direction: int64[ranks].

    No two connections of a direction share a thread block. A connection has all messages between
    two ranks; without `is_free` (channels are chosen freely), those of one channel. Thread blocks
    can serve an incoming and an outgoing connection of different channels, because channels are
    numbered again. Cost: n log n in steps.
    """
    steps = algorithm.steps
    channel = np.zeros(len(steps), np.int64) if is_free else labels(steps.channel)
    channels = int(channel.max(initial=0)) + 1
    numbers = []
    for rows in (np.flatnonzero(steps.sends), np.flatnonzero(steps.receives)):
        place = steps.rank[rows].astype(np.int64) * channels + channel[rows]
        connections = np.unique(place * algorithm.num_ranks + steps.peer[rows])
        rank = connections // algorithm.num_ranks // channels
        numbers.append(np.bincount(rank, minlength=algorithm.num_ranks))
    return np.maximum(*numbers)
