"""Make a program of one way to share steps among thread blocks, within a runtime's limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from collhub_columns import Int64Array

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.runtimes.known_runtimes import (
    MAX_BLOCKS_PER_CHANNEL,
    MAX_DEPENDENCY_BLOCK,
    MAX_NODES,
    MAX_OFFSET,
    Runtime,
)
from collhub_msccl.thread_block_program import ThreadBlockProgram
from collhub_msccl.writing.blocks import Blocks, Cuts, cut_lanes
from collhub_msccl.writing.channels import find_channels
from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.emission import Memory, emit
from collhub_msccl.writing.emission_order import arrange, neighbours
from collhub_msccl.writing.thread_blocks import Lanes

# Lanes are parted, then cut further and further; cuts grow by a quarter, so this is far.
_MOST_ROUNDS = 12
_CIRCLE = "its thread blocks would wait for each other in a circle"
_CUT_CIRCLE = "its thread blocks, cut to the limit of steps, would wait for each other in a circle"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to make thread blocks.

    `may_cut`: those with too many steps may become several; `is_merging`: reductions may be done in
    one pass, behind the waits of all, in given lanes where that delays nothing; `is_new`: the
    thread blocks are not the producer's; `is_enough`: what is found up to here is good enough if
    it is safe; `joined`: (row, later row) that become one step, where that is settled;
    `limits_time`: programs that take longer than this one are not chosen.
    """

    draft: StepDraft
    lanes: Lanes
    may_cut: bool
    is_fusing: bool
    is_merging: bool = True
    is_new: bool = False
    is_enough: bool = False
    joined: Edges | None = None
    limits_time: bool = False


class NoProgramError(Exception):
    """An attempt fails; the text says which limit is not kept."""


def assemble(
    attempt: Attempt,
    memory: Memory,
    limits: Runtime,
) -> ThreadBlockProgram:
    """The program of an attempt. Raises `NoProgramError` where it keeps not all limits.

    `limits`: of the runtime, or a copy of it with those that the user asks for.
    """
    return _Assembly(attempt, memory, limits).program()


class _Assembly:
    """One attempt, round by round.

    Each round makes the whole program and looks at what it exceeds: lanes are parted where channels
    need it, and cut where thread blocks are too long. Nothing is ever joined again, so it ends.
    """

    def __init__(
        self,
        attempt: Attempt,
        memory: Memory,
        limits: Runtime,
    ) -> None:
        self._draft = attempt.draft
        self._may_cut = attempt.may_cut
        self._is_fusing = attempt.is_fusing
        self._is_merging = attempt.is_merging
        self._joined = attempt.joined
        self._memory = memory
        self._limits = limits
        self._start_with(attempt.lanes)

    def program(self) -> ThreadBlockProgram:
        """A program within the limits. Raises `NoProgramError` where there is none."""
        reason = ""
        for _ in range(_MOST_ROUNDS):
            blocks = self._cut()
            channel = self._channels(blocks)
            if channel is None:
                continue
            program = self._emitted(replace(blocks, channel=channel))
            length = np.bincount(program.block, minlength=len(blocks))
            reason = _excess_of_steps(length, self._limits)
            if not reason:
                return program
            if not self._may_cut:
                break
            self._cut_more(blocks, length)
        raise NoProgramError(reason)

    def _start_with(self, lanes: Lanes) -> None:
        """Begin anew with uncut lanes."""
        self._lanes = lanes
        self._cuts = Cuts.none(lanes)
        fusable = self._fusable()
        arrangement = arrange(self._draft, *lanes.program_order(), fusable)
        if arrangement is None:
            raise NoProgramError(_CIRCLE)
        self._arrangement = arrangement

    def _cut(self) -> Blocks:
        """Thread blocks by the cuts so far; local steps are shared out in the last order."""
        draft, lanes = self._draft, self._lanes
        blocks = cut_lanes(draft, lanes, self._cuts, self._arrangement.position)
        if not self._cuts.is_any:
            return blocks
        first, second = self._fusable()
        is_inside = blocks.of_row[first] == blocks.of_row[second]
        # Parts of a given lane run side by side: its order holds within each.
        order = lanes.program_order()
        if lanes.is_given:
            order = neighbours(blocks.of_row, np.arange(len(draft)))
        arrangement = arrange(draft, *order, (first[is_inside], second[is_inside]))
        if arrangement is None:
            raise NoProgramError(_CUT_CIRCLE)
        self._arrangement = arrangement
        return blocks

    def _fusable(self) -> Edges:
        """(row, row fused into it) that may become one step."""
        if self._joined is not None:
            first, second = self._joined
            is_inside = self._lanes.of_row[first] == self._lanes.of_row[second]
            return first[is_inside], second[is_inside]
        nothing = np.zeros(0, np.int64), np.zeros(0, np.int64)
        forwarded = self._lanes.fusable(self._draft) if self._is_fusing else nothing
        runs = self._lanes.runs(self._draft, forwarded) if self._is_merging else nothing
        return np.concatenate([runs[0], forwarded[0]]), np.concatenate([runs[1], forwarded[1]])

    def _channels(self, blocks: Blocks) -> Int64Array | None:
        """Channels of the connections; None if lanes had to be parted for them instead.

        The producer's where lanes are and the runtime takes them.
        """
        most = self._limits.max_channels
        if self._lanes.is_given and not self._cuts.is_any and _are_usable(blocks, most):
            return blocks.channel
        channel, parted = find_channels(blocks, most)
        if channel is None and not len(parted):
            # Blocks that both send and receive tie connections to one channel.
            parted = np.unique(blocks.lane[(blocks.send >= 0) & (blocks.recv >= 0)])
        if len(parted):
            self._start_with(self._lanes.parted(self._draft, parted))
            return None
        if channel is None:
            needed = f"more than the {most} channels that it has"
            raise NoProgramError(f"its connections need {needed}")
        return channel

    def _emitted(self, blocks: Blocks) -> ThreadBlockProgram:
        """The program, which keeps all limits but perhaps that of steps in a thread block."""
        has_fused_steps = self._limits.has_fused_steps
        program = emit(self._draft, blocks, self._arrangement, self._memory, has_fused_steps)
        reason = _excess(program, self._limits)
        if reason:
            raise NoProgramError(reason)
        return program

    def _cut_more(self, blocks: Blocks, length: Int64Array) -> None:
        """More thread blocks for the lanes that have one too long."""
        is_local = self._draft.partner < 0
        of_row, size = self._lanes.of_row, self._lanes.size
        local_rows = np.bincount(of_row[is_local], minlength=size)
        share = local_rows / np.maximum(np.bincount(of_row), 1)
        total = np.bincount(blocks.lane, weights=length, minlength=size).astype(np.int64)
        # Cuts are asked for lane by lane; blocks of a cut lane share its number.
        is_long = length > self._limits.max_steps
        messages, local = self._cuts.messages.copy(), self._cuts.local.copy()
        for lane in np.unique(blocks.lane[is_long]).tolist():
            wanted = _wanted_blocks(int(total[lane]), float(share[lane]), self._limits)
            present = int(messages[lane]), int(local[lane])
            messages[lane], local[lane] = _grown(present, wanted, has_local=share[lane] > 0)
        self._cuts = Cuts(messages, local)


def _wanted_blocks(
    steps: int,
    local_share: float,
    limits: Runtime,
) -> tuple[int, int]:
    """Thread blocks that a lane of so many steps needs for its messages and its local steps."""
    # Cutting adds waits at the borders, and with them nops.
    room = max(limits.max_steps - 2, 1)
    in_messages = -(-int(steps * (1 - local_share)) // room)
    in_local = -(-int(steps * local_share) // room)
    return in_messages, in_local


def _grown(
    present: tuple[int, int],
    wanted: tuple[int, int],
    has_local: bool,
) -> tuple[int, int]:
    """Cuts of a lane in messages and local steps, at least one more but the first time.

    A quarter more each round: waits that cutting adds cannot be foretold, and rounds are few.
    """
    messages, local = present
    is_first = messages == 1 and local == 0
    more = 0 if is_first else max(1, max(messages, local) // 4)
    grown_messages = max(messages + more, wanted[0], 1)
    grown_local = max(local + more, wanted[1]) if has_local else 0
    return grown_messages, grown_local


def _are_usable(blocks: Blocks, limit: int) -> bool:
    """Whether the producer's channels are below the limit, with few enough peers on each."""
    channel = blocks.channel
    if not len(channel):
        return True
    if int(channel.min()) < 0 or int(channel.max()) >= limit:
        return False
    for end in (blocks.source, blocks.destination):
        # Peers of every (rank, channel) at this end.
        _, load = np.unique(end * limit + channel, return_counts=True)
        if int(load.max()) > MAX_BLOCKS_PER_CHANNEL:
            return False
    return True


def _excess_of_steps(length: Int64Array, limits: Runtime) -> str:
    """The limit of steps, if a thread block exceeds it, else empty. `length`: int64 per block."""
    longest = int(length.max(initial=0))
    if longest <= limits.max_steps:
        return ""
    limit = f"the {limits.max_steps} that it takes"
    return f"a thread block has {longest} steps, more than {limit}"


def _excess(program: ThreadBlockProgram, limits: Runtime) -> str:
    """The first other limit that the program exceeds, else empty."""
    per_rank = np.diff(program.block_indptr)
    steps = np.bincount(program.block_rank[program.block], minlength=program.num_ranks)
    # <algo>, every <gpu>, and the rank's own thread blocks and steps.
    nodes = 1 + program.num_ranks + per_rank + steps
    rules = (
        (per_rank, limits.max_blocks, "thread blocks"),
        (nodes, MAX_NODES, "XML elements that it reads for one rank"),
    )
    for found, most, what in rules:
        rank = int(found.argmax())
        if int(found[rank]) > most:
            needed = f"{int(found[rank])} {what}"
            return f"rank {rank} needs {needed}, more than the {most} that it takes"
    if int(program.depid.max(initial=0)) > MAX_DEPENDENCY_BLOCK:
        return f"steps wait for thread blocks above {MAX_DEPENDENCY_BLOCK}, which it cannot name"
    highest = _highest_offset(program)
    if highest > MAX_OFFSET:
        return f"chunk {highest} is beyond the {MAX_OFFSET} that its offsets reach"
    return ""


def _highest_offset(program: ThreadBlockProgram) -> int:
    """The largest end of a buffer, used or declared, in chunks."""
    ends = (
        program.src_offset + program.count,
        program.dst_offset + program.count,
        program.scratch_chunks,
    )
    return max(int(column.max(initial=0)) for column in ends)
