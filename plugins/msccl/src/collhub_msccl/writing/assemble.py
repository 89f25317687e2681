"""Build a program from one assignment of steps to thread blocks, within the limits of a runtime."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.runtimes.known_runtimes import (
    MAX_BLOCKS_PER_CHANNEL,
    MAX_DEPENDENCY_BLOCK,
    MAX_NODES,
    MAX_OFFSET,
    RuntimeRules,
)
from collhub_msccl.thread_block_program import ThreadBlockProgram
from collhub_msccl.writing.blocks import Blocks, Cuts, cut_lanes, find_channels
from collhub_msccl.writing.draft import STEP_COLUMNS, StepDraft, arrange, find_neighbours
from collhub_msccl.writing.emission import Memory, emit
from collhub_msccl.writing.thread_blocks import Lanes
from hub_core.columns import Int64Array

# Rounds of separating and cutting lanes; cuts grow by a quarter per round, so the limit is rarely
# reached.
_MAX_ROUNDS = 12
_CIRCLE = "its thread blocks would wait for each other in a cycle"
_CUT_CIRCLE = "its thread blocks, cut to the limit of steps, would wait for each other in a cycle"


@dataclass(frozen=True, slots=True)
class BlockAssignment:
    """One assignment of steps to thread blocks.

    `may_cut`: thread blocks with too many steps may be cut; `is_fusing`: a receive may be fused
    with the send that forwards its data; `is_merging`: reductions may be fused to chains that wait
    for all operands first (in given lanes only if that delays no step); `is_new`: the thread blocks
    are not the producer's; `is_enough`: no further attempt is needed if a safe program exists by
    now; `joined`: (row, later row) that become one step, if already decided; `limits_time`:
    programs with a longer makespan than this one's are not chosen.
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

    def needs_too_many_elements(self, limits: RuntimeRules) -> bool:
        """Return whether no program of the attempt can have few enough XML elements of a rank.

        The sends that may be fused are those of `joined`, else, with `is_fusing`, all that forward
        received data (`has_too_many_elements`). False does not mean that there is a program.
        """
        if self.joined is not None:
            fused = self.joined[1]
        else:
            fused = self.draft.find_forwarding()[1] if self.is_fusing else np.zeros(0, np.int64)
        return has_too_many_elements(self.draft, fused, limits)

    def compute_digest(self) -> bytes:
        """Return a digest of all that determines the program of this attempt, as 32 bytes.

        It covers the steps and their dependencies, the assignment to thread blocks, the pairs
        to join (or, if they are not decided, whether receives are fused and reductions merged),
        and whether blocks may be cut and are new. `is_enough` and `limits_time` do not count,
        since they do not change the program. Attempts with equal digests have the same program,
        or fail for the same reason. Cost: linear in rows.
        """
        draft, lanes, joined = self.draft, self.lanes, self.joined
        # Given pairs replace the search for fusable pairs.
        search = (self.is_fusing, self.is_merging) if joined is None else ()
        flags = draft.num_ranks, lanes.is_given, self.may_cut, self.is_new, search
        content = hashlib.sha256(repr(flags).encode())
        columns = [getattr(draft, name) for name in (*STEP_COLUMNS, *_RELATIONS)]
        for column in (*columns, lanes.of_row, *(joined or ())):
            content.update(len(column).to_bytes(8, "little"))
            content.update(np.ascontiguousarray(column).data)
        return content.digest()


# Columns of a draft that refer to rows.
_RELATIONS = ("partner", "parents", "children")


class NoProgramError(Exception):
    """An attempt fails; the text names the exceeded limit.

    `resource`: name of the limited resource (`hub_core.plugin_api.RESOURCES`), "" for other limits.
    `is_deadlock`: the program deadlocks at every size.
    """

    def __init__(self, text: str, resource: str = "", *, is_deadlock: bool = False) -> None:
        super().__init__(text)
        self.resource = resource
        self.is_deadlock = is_deadlock

    @classmethod
    def of_channels(cls, limit: int) -> NoProgramError:
        """Build the error that connections need more channels than the runtime has (`limit`)."""
        return cls(f"its connections need more than the {limit} channels that it has", "channels")


def assemble(
    attempt: BlockAssignment,
    memory: Memory,
    limits: RuntimeRules,
) -> ThreadBlockProgram:
    """Build the program of an attempt. Raises `NoProgramError` if it exceeds a limit.

    `limits`: rules of the runtime, possibly with limits set by the user.
    """
    return _Assembly(attempt, memory, limits).build_program()


class _Assembly:
    """One attempt, in rounds.

    Each round builds the complete program and checks the limits: lanes are separated if channels
    require it, and cut if thread blocks are too long. Lanes are never merged again, so the rounds
    terminate.
    """

    def __init__(
        self,
        attempt: BlockAssignment,
        memory: Memory,
        limits: RuntimeRules,
    ) -> None:
        self._draft = attempt.draft
        self._may_cut = attempt.may_cut
        self._is_fusing = attempt.is_fusing
        self._is_merging = attempt.is_merging
        self._joined = attempt.joined
        self._memory = memory
        self._limits = limits
        self._restart(attempt.lanes)

    def build_program(self) -> ThreadBlockProgram:
        """Return a program (thread blocks and their steps) within the limits of the runtime.

        A lane is a sequence of steps of one rank, for one or more thread blocks. At most 12 rounds
        are tried, and each changes this object. A round:

        1. Divides the lanes into thread blocks, and chooses channels. If the lanes had to be
           divided anew for this (`_choose_channels`), the next round begins.
        2. Builds the program. Raises `NoProgramError` for a limit that it exceeds.
        3. Returns the program if each thread block has at most `max_steps` steps.
        4. Otherwise cuts the lanes that are too long into more blocks (`_cut_more`), if `may_cut`.

        Without `may_cut`, or after the last round, raises `NoProgramError` with the resource
        `block_operations` and the number of steps, both empty if no program was built. It is also
        raised if steps wait for each other in a cycle, or if there are too few channels.
        """
        reason = ""
        for _ in range(_MAX_ROUNDS):
            blocks = self._cut_blocks()
            channel = self._choose_channels(blocks)
            if channel is None:
                continue
            program = emit(
                self._draft,
                replace(blocks, channel=channel),
                self._arrangement,
                self._memory,
                self._limits.has_fused_steps,
            )
            excess = _find_excess(program, self._limits)
            if excess:
                raise excess
            length = np.bincount(program.block, minlength=len(blocks))
            longest, limit = int(length.max(initial=0)), self._limits.max_steps
            if longest <= limit:
                return program
            reason = f"a thread block has {longest} steps, more than the {limit} that it accepts"
            if not self._may_cut:
                break
            self._cut_more(blocks, length)
        raise NoProgramError(reason, "block_operations" if reason else "")

    def _restart(self, lanes: Lanes) -> None:
        """Replace the lanes (step sequences of ranks), remove all cuts, and arrange the steps.

        The new arrangement may fuse the pairs of `_find_fusable` and keeps the order of the lanes
        (`find_program_order`). Raises `NoProgramError`, if the steps would wait for each other in a
        cycle. Lanes and cuts are replaced also in this case; the old arrangement remains.
        """
        self._lanes = lanes
        self._cuts = Cuts.build_uncut(lanes)
        fusable = self._find_fusable()
        arrangement = arrange(self._draft, *lanes.find_program_order(), fusable)
        if arrangement is None:
            raise NoProgramError(_CIRCLE)
        self._arrangement = arrangement

    def _cut_blocks(self) -> Blocks:
        """Divide the lanes into thread blocks and return these; arrange the steps again if needed.

        A lane is a sequence of steps of one rank, which `cut_lanes` divides. `self._cuts` has, per
        lane, the number of blocks for messages and that of further blocks for local steps (0: these
        stay with the messages). If no lane has more than 1 and 0, nothing changes. Otherwise a new
        arrangement (pairs to fuse, and an order of all steps) replaces `self._arrangement`:

        - Two fusable steps are fused only if both are in one thread block.
        - If the producer gave the lanes, the steps of a thread block keep the order of their rows;
          steps in different blocks of a lane are no longer ordered.
        - Otherwise the order is that of `find_program_order`.

        Raises `NoProgramError` if steps would wait for each other in a cycle; nothing changes then.
        """
        draft, lanes = self._draft, self._lanes
        blocks = cut_lanes(draft, lanes, self._cuts, self._arrangement.position)
        if not self._cuts.is_any:
            return blocks
        first, second = self._find_fusable()
        is_inside = blocks.of_row[first] == blocks.of_row[second]
        # Parts of a given lane run in parallel: its order is kept only within each part.
        order = lanes.find_program_order()
        if lanes.is_given:
            order = find_neighbours(blocks.of_row, np.arange(len(draft)))
        arrangement = arrange(draft, *order, (first[is_inside], second[is_inside]))
        if arrangement is None:
            raise NoProgramError(_CUT_CIRCLE)
        self._arrangement = arrangement
        return blocks

    def _find_fusable(self) -> Edges:
        """Return pairs of rows of one lane that may be fused to one step, as two int64 arrays.

        The first array has the earlier row of each pair, the second the row that is fused into it.

        1. If the attempt gives the pairs (`joined`), these are returned in their order. Pairs whose
           rows are in different lanes are left out.
        2. Otherwise: first the chains of reductions (`find_chains`), if merging is enabled. Then
           the pairs of a receive and the send that forwards its data (`find_fusable`), if fusing is
           enabled.

        Without pairs both arrays are empty. Nothing is changed.
        """
        if self._joined is not None:
            first, second = self._joined
            is_inside = self._lanes.of_row[first] == self._lanes.of_row[second]
            return first[is_inside], second[is_inside]
        nothing = np.zeros(0, np.int64), np.zeros(0, np.int64)
        forwarded = self._lanes.find_fusable(self._draft) if self._is_fusing else nothing
        runs = self._lanes.find_chains(self._draft, forwarded) if self._is_merging else nothing
        return np.concatenate([runs[0], forwarded[0]]), np.concatenate([runs[1], forwarded[1]])

    def _choose_channels(self, blocks: Blocks) -> Int64Array | None:
        """Return the channel of every connection part (int64), or None after a new division.

        A lane is a sequence of steps of one rank, for one or more thread blocks. A connection
        part is the traffic of a block to or from one peer, numbered as in `blocks`. Rules, the
        first that applies:

        1. The algorithm gives lanes and channels, no lane is cut into several blocks, and
           `_are_usable` accepts the channels: they are returned.
        2. Lanes have a block that cannot use one channel for its receives and its sends
           (`find_channels`): the sends of these lanes become separate lanes.
        3. `max_channels` channels do not suffice, and some blocks both send and receive: the
           sends of all lanes with such a block become separate lanes.
        4. They do not suffice otherwise: raises `NoProgramError`.
        5. The channels of `find_channels` are returned.

        After 2 and 3 all cuts are removed, the steps are arranged again (`_restart`), and the
        result is None: the caller begins again. Raises `NoProgramError` if lanes then wait in a
        cycle.
        """
        max_channels = self._limits.max_channels
        if self._lanes.is_given and not self._cuts.is_any and _are_usable(blocks, max_channels):
            return blocks.channel
        channel, parted = find_channels(blocks, max_channels)
        if channel is None and not len(parted):
            # Blocks that both send and receive restrict two connections to one channel.
            parted = np.unique(blocks.lane[(blocks.send >= 0) & (blocks.recv >= 0)])
        if len(parted):
            self._restart(self._lanes.separate_sends(self._draft, parted))
            return None
        if channel is None:
            raise NoProgramError.of_channels(max_channels)
        return channel

    def _cut_more(self, blocks: Blocks, length: Int64Array) -> None:
        """Increase the cuts (numbers of thread blocks) of each lane with a too long block.

        `length`: steps of each thread block; too long is above `max_steps`. For each such lane:
        1. The steps of all its blocks are added. They are divided into messages and local steps
           in proportion to the rows of both kinds.
        2. Each number is divided by `max_steps` - 2 (at least 1) and rounded up. The results are
           the required numbers of blocks, at least 1 for messages.
        3. If the lane was cut before, both numbers also grow by at least a quarter of the larger
           one, and at least 1. Without local steps the second number is 0.

        Only `self._cuts` changes, for the next round. Other lanes keep their numbers.
        """
        is_local = self._draft.partner < 0
        of_row, size = self._lanes.of_row, self._lanes.size
        local_rows = np.bincount(of_row[is_local], minlength=size)
        share = local_rows / np.maximum(np.bincount(of_row), 1)
        total = np.bincount(blocks.lane, weights=length, minlength=size).astype(np.int64)
        # Cuts are per lane; the blocks of a cut lane share its number.
        is_long = length > self._limits.max_steps
        messages, local = self._cuts.messages.copy(), self._cuts.local.copy()
        for lane in np.unique(blocks.lane[is_long]).tolist():
            steps, local_share = int(total[lane]), float(share[lane])
            # Cutting adds waits at the borders, and therefore nops.
            room = max(self._limits.max_steps - 2, 1)
            in_messages = -(-int(steps * (1 - local_share)) // room)
            in_local = -(-int(steps * local_share) // room)
            present_messages, present_local = int(messages[lane]), int(local[lane])
            is_first = present_messages == 1 and present_local == 0
            # Each division adds an unknown number of waits.
            more = 0 if is_first else max(1, max(present_messages, present_local) // 4)
            messages[lane] = max(present_messages + more, in_messages, 1)
            local[lane] = max(present_local + more, in_local) if local_share > 0 else 0
        self._cuts = Cuts(messages, local)


def _are_usable(blocks: Blocks, limit: int) -> bool:
    """Return whether the channels that the producer assigned can be kept.

    `blocks` has one channel per connection part, i.e. the traffic of one thread block to or from
    one peer. The result is True if both conditions hold:

    - Every channel is in 0..`limit` - 1.
    - At most `MAX_BLOCKS_PER_CHANNEL` (32) parts have the same source and channel, and at most 32
      have the same destination and channel.

    The result is also True without connection parts.
    """
    channel = blocks.channel
    if not len(channel):
        return True
    if int(channel.min()) < 0 or int(channel.max()) >= limit:
        return False
    for rank in (blocks.source, blocks.destination):
        # Peers of every (rank, channel) on this side.
        _, load = np.unique(rank * limit + channel, return_counts=True)
        if int(load.max()) > MAX_BLOCKS_PER_CHANNEL:
            return False
    return True


def has_too_many_elements(draft: StepDraft, fused: Int64Array, limits: RuntimeRules) -> bool:
    """Return whether every program of a draft has too many XML elements of a rank (`MAX_NODES`).

    `fused`: rows that may be fused into a receive; those that are no sends are ignored. All other
    rows, and also fused reductions, are steps of the file. They need at least one thread block for
    every `max_steps` steps. Elements are counted by `_count_elements`. Cost: linear in rows.
    """
    is_step = np.ones(len(draft), np.bool_)
    is_step[fused[draft.sends[fused]]] = False
    steps = np.bincount(draft.rank[is_step], minlength=draft.num_ranks)
    blocks = -(-steps // limits.max_steps)
    return int(_count_elements(draft.num_ranks, blocks, steps).max(initial=0)) > MAX_NODES


def _count_elements(num_ranks: int, blocks: Int64Array, steps: Int64Array) -> Int64Array:
    """Return the number of XML elements that each rank reads: int64[ranks].

    They are <algo>, the <gpu> of every rank, and the rank's thread blocks and steps. `blocks`,
    `steps`: their numbers by rank.
    """
    return 1 + num_ranks + blocks + steps


def _find_excess(program: ThreadBlockProgram, limits: RuntimeRules) -> NoProgramError | None:
    """Return (not raise) an error about the first limit that a program exceeds; None otherwise.

    A value that equals its limit is allowed. The limits in order:

    1. Thread blocks of a rank: that of the runtime (`max_blocks`, resource `blocks`).
    2. XML elements that a rank reads: `MAX_NODES`. They are 1 + the number of ranks + the thread
       blocks and the steps of this rank.
    3. Number of the thread block that a step waits for: `MAX_DEPENDENCY_BLOCK`.
    4. End of a range that a step accesses, and of the scratch of a rank, in chunks: `MAX_OFFSET`.

    Errors of 1 and 2 name the rank with the highest value, of equal ones the lowest rank. The
    number of steps of a thread block is not checked.
    """
    per_rank = np.diff(program.block_indptr)
    steps = np.bincount(program.block_rank[program.block], minlength=program.num_ranks)
    nodes = _count_elements(program.num_ranks, per_rank, steps)
    rules = (
        (per_rank, limits.max_blocks, "thread blocks", "blocks"),
        (nodes, MAX_NODES, "XML elements that it reads for one rank", ""),
    )
    for numbers, limit, noun, resource in rules:
        rank = int(numbers.argmax())
        if int(numbers[rank]) > limit:
            needed = f"{int(numbers[rank])} {noun}"
            text = f"rank {rank} needs {needed}, more than the {limit} that it accepts"
            return NoProgramError(text, resource)
    if int(program.depid.max(initial=0)) > MAX_DEPENDENCY_BLOCK:
        text = f"steps wait for thread blocks above {MAX_DEPENDENCY_BLOCK}, which it cannot name"
        return NoProgramError(text)
    # Maximum end of a buffer, used or declared, in chunks.
    buffer_ends = (
        program.src_offset + program.count,
        program.dst_offset + program.count,
        program.scratch_chunks,
    )
    highest = max(int(column.max(initial=0)) for column in buffer_ends)
    if highest > MAX_OFFSET:
        text = f"chunk {highest} is beyond the {MAX_OFFSET} that its offsets reach"
        return NoProgramError(text)
    return None
