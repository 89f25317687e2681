"""Find a program for an algorithm that keeps a runtime's limits: the producer's thread blocks, those cut, or new ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collhub_msccl.runtimes.known_runtimes import (
    BLOCKS_PER_CHANNEL,
    MOST_COUNT,
    MOST_DEPENDENCY_BLOCK,
    MOST_NODES,
    MOST_OFFSET,
    Runtime,
)
from collhub_msccl.thread_block_program import ThreadBlockProgram
from collhub_msccl.writing.blocks import Blocks, Cuts, cut_lanes, find_channels
from collhub_msccl.writing.draft import StepDraft, cut_counts, draft_of
from collhub_msccl.writing.emission import Memory, emit
from collhub_msccl.writing.emission_order import Arrangement, arrange, neighbours
from collhub_msccl.writing.thread_blocks import Lanes, assign_lanes, given_lanes
from hub_core.algorithm import Algorithm
from hub_core.diagnostics import InputError, Location
from hub_core.verification import verify

Int64Array = npt.NDArray[np.int64]

_MOST_ROUNDS = 12
_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What a program must keep: the runtime's limits, or what the user asks for. `is_fusing`: steps may be fused."""

    runtime: Runtime
    max_blocks: int
    max_steps: int
    max_channels: int
    is_fusing: bool


@dataclass(frozen=True, slots=True)
class _AssemblyAttempt:
    draft: StepDraft
    lanes: Lanes
    may_cut: bool


def assemble(algorithm: Algorithm, memory: Memory, limits: ProgramLimits) -> ThreadBlockProgram:
    """The first program that keeps all limits. Raises `InputError` that names the limit where none does."""
    reason = "the order of its connections makes steps wait for each other in a circle"
    for attempt in _attempts(algorithm):
        chosen = replace(memory, is_compact=memory.is_compact or not attempt.lanes.is_given)
        found = _fitted(attempt, chosen, limits)
        if isinstance(found, ThreadBlockProgram):
            return found
        reason = found
    raise InputError(
        f"cannot be written for {limits.runtime.title}: {reason}",
        location=Location(algorithm.provenance.source_name or None),
        code="runtime-limit",
    )


def _attempts(algorithm: Algorithm) -> Iterator[_AssemblyAttempt]:
    full = cut_counts(draft_of(algorithm, with_control=True), MOST_COUNT)
    given = given_lanes(full)
    if given is not None:
        yield _AssemblyAttempt(full, given, may_cut=False)
    free = _without_control(algorithm, full)
    if given is not None:
        yield _AssemblyAttempt(free, given, may_cut=True)
    yield _AssemblyAttempt(free, assign_lanes(free, is_tight=False), may_cut=True)
    yield _AssemblyAttempt(free, assign_lanes(free, is_tight=True), may_cut=True)


def _without_control(algorithm: Algorithm, full: StepDraft) -> StepDraft:
    """Only data dependencies, if they alone keep the algorithm right: program order would cost waits."""
    steps = algorithm.steps
    if not len(steps.control_indices):
        return full
    relaxed = replace(
        algorithm,
        steps=replace(
            steps,
            control_indptr=np.zeros(len(steps) + 1, np.int64),
            control_indices=_NOTHING.copy(),
        ),
    )
    return (
        cut_counts(draft_of(algorithm, with_control=False), MOST_COUNT)
        if verify(relaxed).ok
        else full
    )


def _fitted(
    attempt: _AssemblyAttempt, memory: Memory, limits: ProgramLimits
) -> ThreadBlockProgram | str:
    """A program within the limits, or why there is none."""
    draft, lanes = attempt.draft, attempt.lanes
    arrangement = _arranged(draft, lanes, None, limits)
    if arrangement is None:
        return "its thread blocks would wait for each other in a circle"
    cuts, reason = Cuts.none(lanes), ""
    for _ in range(_MOST_ROUNDS):
        blocks = cut_lanes(draft, lanes, cuts, arrangement.position)
        if cuts.is_any:
            arrangement = _arranged(draft, lanes, blocks, limits)
            if arrangement is None:
                return "its thread blocks, cut to the limit of steps, would wait for each other in a circle"
        channel, parted = _channels(blocks, lanes, limits, cuts.is_any)
        if channel is None and not len(parted):
            parted = np.unique(blocks.lane[(blocks.send >= 0) & (blocks.recv >= 0)])
        if len(parted):
            lanes = lanes.parted(draft, parted)
            arrangement = _arranged(draft, lanes, None, limits)
            if arrangement is None:
                return "its thread blocks would wait for each other in a circle"
            cuts = Cuts.none(lanes)
            continue
        if channel is None:
            return f"its connections need more than the {limits.max_channels} channels that it has"
        program = emit(
            draft,
            replace(blocks, channel=channel),
            arrangement,
            memory,
            limits.runtime.has_fused_steps,
        )
        if reason := _excess(program, limits):
            return reason
        longest = np.bincount(program.block, minlength=len(blocks))
        if int(longest.max(initial=0)) <= limits.max_steps:
            return program
        reason = f"a thread block has {int(longest.max())} steps, more than the {limits.max_steps} that it takes"
        if not attempt.may_cut:
            return reason
        cuts = _more_cuts(draft, lanes, cuts, blocks, longest, limits)
    return reason


def _arranged(
    draft: StepDraft, lanes: Lanes, blocks: Blocks | None, limits: ProgramLimits
) -> Arrangement | None:
    first, second = lanes.fusable(draft) if limits.is_fusing else (_NOTHING, _NOTHING)
    order = lanes.program_order()
    if blocks is not None:
        inside = blocks.of_row[first] == blocks.of_row[second]
        first, second = first[inside], second[inside]
        order = neighbours(blocks.of_row, np.arange(len(draft))) if lanes.is_given else order
    return arrange(draft, *order, (first, second))


def _channels(
    blocks: Blocks, lanes: Lanes, limits: ProgramLimits, is_cut: bool
) -> tuple[Int64Array | None, Int64Array]:
    """Channels of the connections; the producer's where lanes are and the runtime takes them."""
    if lanes.is_given and not is_cut and _are_usable(blocks, limits.max_channels):
        return blocks.channel, _NOTHING
    return find_channels(blocks, limits.max_channels)


def _are_usable(blocks: Blocks, limit: int) -> bool:
    channel = blocks.channel
    if not len(channel):
        return True
    loads = [
        np.unique(end * limit + channel, return_counts=True)[1].max()
        for end in (blocks.source, blocks.destination)
    ]
    return (
        int(channel.min()) >= 0
        and int(channel.max()) < limit
        and int(max(loads)) <= BLOCKS_PER_CHANNEL
    )


def _excess(program: ThreadBlockProgram, limits: ProgramLimits) -> str:
    """Which limit the program exceeds, other than that of steps in a thread block; empty for none."""
    per_rank = np.diff(program.block_indptr)
    steps = np.bincount(program.block_rank[program.block], minlength=program.num_ranks)
    nodes = 1 + program.num_ranks + per_rank + steps
    offsets = np.concatenate(
        [
            program.src_offset + program.count,
            program.dst_offset + program.count,
            program.scratch_chunks,
        ]
    )
    rules = (
        (per_rank, limits.max_blocks, "thread blocks"),
        (nodes, MOST_NODES, "XML elements that it reads for one rank"),
    )
    for found, most, what in rules:
        if int(found.max(initial=0)) > most:
            rank = int(found.argmax())
            return (
                f"rank {rank} needs {int(found[rank])} {what}, more than the {most} that it takes"
            )
    if int(program.depid.max(initial=0)) > MOST_DEPENDENCY_BLOCK:
        return f"steps wait for thread blocks above {MOST_DEPENDENCY_BLOCK}, which it cannot name"
    if int(offsets.max(initial=0)) > MOST_OFFSET:
        return f"chunk {int(offsets.max())} is beyond the {MOST_OFFSET} that its offsets reach"
    return ""


def _more_cuts(
    draft: StepDraft,
    lanes: Lanes,
    cuts: Cuts,
    blocks: Blocks,
    longest: Int64Array,
    limits: ProgramLimits,
) -> Cuts:
    """More thread blocks for the lanes that have one too long."""
    room = max(limits.max_steps - 2, 1)
    is_local = draft.partner < 0
    total = np.bincount(blocks.lane, weights=longest, minlength=lanes.size).astype(np.int64)
    share = np.bincount(lanes.of_row[is_local], minlength=lanes.size) / np.maximum(
        np.bincount(lanes.of_row), 1
    )
    messages, local = cuts.messages.copy(), cuts.local.copy()
    for lane in np.unique(blocks.lane[longest > limits.max_steps]).tolist():
        in_messages = -(-int(total[lane] * (1 - share[lane])) // room)
        in_local = -(-int(total[lane] * share[lane]) // room)
        is_first = messages[lane] == 1 and local[lane] == 0
        more = 0 if is_first else max(1, int(max(messages[lane], local[lane])) // 4)
        messages[lane] = max(int(messages[lane]) + more, in_messages, 1)
        local[lane] = max(int(local[lane]) + more, in_local) if share[lane] > 0 else 0
    return Cuts(messages, local)
