"""One flat array for the buffers of all ranks: accesses of records, initialization and outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_execution.input_data import AnyArray, Array
from collhub_execution.levelling import LevelledRequest
from collhub_execution.program_levels import LevelledProgram, RecordKind
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Buffer


@dataclass(frozen=True, slots=True)
class RecordMoves:
    """Per record, in elements of the flat array: first one read, first one written, number.

    A RECV reads the sender's region, -1 if it has no sender: the message is stored nowhere else.
    The destination of a SEND is -1. `reduces`: whether the destination is reduced with the source.
    """

    source: Int64Array
    destination: Int64Array
    length: Int64Array
    reduces: BoolArray


def find_moves(program: LevelledProgram, elements: int) -> RecordMoves:
    """Compute the move of each record: source, destination and length in the memory.

    A record is an operation of a rank. All three are int64[records] in elements, in the one flat
    memory of all ranks; `elements`: number of elements per block. The source of a RECV is that of
    the SEND of its message, in the memory of another rank. A side that a record does not use, and
    the source of a RECV whose SEND is missing, is negative. The result also marks the records that
    reduce.
    """
    source, destination = program.addresses()
    send, receive = program.message_ends()
    # By message number: tests run programs without one end of a message, to see them block.
    sent_from = np.full(int(program.message.max(initial=-1)) + 1, -1, np.int64)
    sent_from[program.message[send]] = source[send]
    source[receive] = sent_from[program.message[receive]]
    return RecordMoves(
        source * elements,
        destination * elements,
        program.count * elements,
        program.kind == RecordKind.REDUCE,
    )


def fused_reductions(request: LevelledRequest) -> Int64Array:
    """Return for each receive the reduction that can be fused with it: int64[records].

    At a RECV it is the index of its REDUCE, at all other records and for receives that cannot
    be fused -1. Without fusion a RECV writes its message to a slot, which a REDUCE then reads.
    With fusion the message is reduced directly into the destination of the REDUCE. All of this
    must hold:

    - Both records implement the same step of the algorithm, in the same level.
    - The RECV writes the block of SCRATCH that the REDUCE reads. It is a slot: a block after
      those of SCRATCH that the algorithm itself uses.
    - No other record of that level, of any rank, reads or writes the destination of the REDUCE.
    """
    program, steps = request.program, request.algorithm.steps
    # A step has at most one RECV, which its row identifies.
    receive_of_row = np.full(len(steps), -1, np.int64)
    receives = np.flatnonzero(program.kind == RecordKind.RECV)
    receive_of_row[program.row[receives]] = receives
    reductions = np.flatnonzero(program.kind == RecordKind.REDUCE)
    partner = receive_of_row[program.row[reductions]]
    # A REDUCE step has no RECV; a staged one has it in an earlier level, in which the sender's data
    # may be overwritten later.
    fits = (partner >= 0) & (program.level[partner] == program.level[reductions])
    fits &= _is_through_slot(request, partner, reductions)
    # Whether no other record of its level accesses the destination of each REDUCE.
    # Regions of all records on one axis, level by level, so that those of different levels are
    # disjoint.
    source, destination = program.addresses()
    origin = program.level.astype(np.int64) * (program.layout.total + 1)
    starts = np.concatenate([(origin + side)[side >= 0] for side in (source, destination)])
    counts = np.concatenate([program.count[side >= 0] for side in (source, destination)])
    first = (origin + destination)[reductions]
    # Regions that begin before the end, minus those that finish before the beginning; one is the
    # REDUCE's region.
    begun = np.searchsorted(np.sort(starts), first + program.count[reductions], "left")
    ended = np.searchsorted(np.sort(starts + counts), first, "right")
    is_alone: BoolArray = begun - ended == 1
    fits &= is_alone
    fused = np.full(len(program), -1, np.int64)
    fused[partner[fits]] = reductions[fits]
    return fused


def _is_through_slot(
    request: LevelledRequest, receives: Int64Array, reductions: Int64Array
) -> BoolArray:
    """Return per pair of RECV and REDUCE whether the RECV fills the slot that the REDUCE reads.

    A slot is a block of SCRATCH after those that the algorithm itself uses on the rank.
    `receives`, `reductions`: the records (operations) of each pair, both of one rank. True if
    the RECV writes from the same block of SCRATCH on from which the REDUCE reads, and this block is
    a slot. The numbers of blocks are not compared. The result is bool[pairs]; it has no meaning for
    a pair without a RECV (-1).
    """
    program, algorithm = request.program, request.algorithm
    owner = program.rank[reductions]
    own_scratch = algorithm.scratch_units[owner] // program.block_units
    read = program.src_offset[reductions]
    is_scratch = program.src_buffer[reductions] == Buffer.SCRATCH
    is_scratch &= program.dst_buffer[receives] == Buffer.SCRATCH
    is_same = program.dst_offset[receives] == read
    is_slot: BoolArray = is_scratch & is_same & (read >= own_scratch)
    return is_slot


def fused_moves(moves: RecordMoves, fused: Int64Array) -> tuple[RecordMoves, BoolArray]:
    """Return moves in which each fused RECV reduces directly into the destination of its REDUCE.

    `fused`: for every record (operation) the REDUCE to fuse with it, -1 for none, as from
    `fused_reductions`. The second result is a mask of the REDUCE records, bool[records],
    that must no longer run; their moves are unchanged. `moves` is not changed.
    """
    receives = np.flatnonzero(fused >= 0)
    reductions = fused[receives]
    destination, reduces = moves.destination.copy(), moves.reduces.copy()
    destination[receives] = moves.destination[reductions]
    reduces[receives] = True
    is_done = np.zeros(len(fused), np.bool_)
    is_done[reductions] = True
    return RecordMoves(moves.source, destination, moves.length, reduces), is_done


def used_elements(
    program: LevelledProgram, moves: RecordMoves, is_done: BoolArray, elements: int
) -> Int64Array:
    """Return how many elements of its memory each rank uses in a run: int64[ranks].

    They are counted from the start of the rank's memory to the last of these ends: of INPUT, of
    OUTPUT, and of every region that a record (operation) of the rank reads or writes. Two kinds of
    regions do not count: the source of a RECV, which is in the memory of its sender, and both
    regions of the records in `is_done`. So blocks at the end that only fused reductions would use
    are left out.

    `moves`: by record, as from `fused_moves`, in elements. `is_done`: mask of the REDUCE records
    that do not run, because they are fused with a receive. `elements`: number of elements of a
    block.
    """
    base, size = program.layout.base, program.layout.size
    outer = [Buffer.INPUT, Buffer.OUTPUT]
    ends = (base + size)[:, outer].max(axis=1) * elements
    # A RECV reads the region of its sender, whose SEND already counts it.
    is_receive = program.kind == RecordKind.RECV
    is_unread = is_receive | is_done | (moves.source < 0)
    is_unwritten = is_done | (moves.destination < 0)
    read = np.where(is_unread, 0, moves.source + moves.length)
    written = np.where(is_unwritten, 0, moves.destination + moves.length)
    np.maximum.at(ends, program.rank, np.maximum(read, written))
    used: Int64Array = ends - base.min(axis=1) * elements
    return used


def fill_rank(memory: Array, request: LevelledRequest, rank: int, used: int | None = None) -> None:
    """Set a rank's memory to its state before a run: its INPUT, and the background value elsewhere.

    `memory`: flat memory of all ranks, modified in place. `used`: number of elements, from the
    rank's first one, that are set to the background (`request.background`); None for all. INPUT is
    written last and completely, because in place it may be inside OUTPUT.
    """
    # The background first, because in place INPUT may be inside OUTPUT.
    elements = request.elements
    memory_blocks = request.program.rank_memory(rank)
    first = memory_blocks.start * elements
    end = memory_blocks.stop * elements if used is None else first + used
    memory[first:end] = request.background
    start = int(request.program.layout.base[rank, Buffer.INPUT]) * elements
    values = request.inputs[rank]
    memory[start : start + values.size] = values


def get_output(memory: Array, request: LevelledRequest, rank: int) -> Array:
    """Return the OUTPUT of a rank as a view of the flat memory of all ranks.

    It is empty for a rank without OUTPUT. In place it may overlap with INPUT.
    """
    # In place, OUTPUT may be inside INPUT, or INPUT inside OUTPUT.
    layout, elements = request.program.layout, request.elements
    start = int(layout.base[rank, Buffer.OUTPUT]) * elements
    size = int(layout.size[rank, Buffer.OUTPUT]) * elements
    return memory[start : start + size]


def all_outputs(memory: Array, request: LevelledRequest) -> tuple[AnyArray, ...]:
    """Return the OUTPUT of every rank, in order of ranks.

    They are views of the flat memory of all ranks, which later runs change.
    """
    outputs = []
    for rank in range(request.program.num_ranks):
        outputs.append(get_output(memory, request, rank))
    return tuple(outputs)


def step_times(
    request: LevelledRequest, starts: Int64Array, ends: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the start and end of every algorithm step from the times of its records.

    A record is one operation of the program; `request.program.row` gives its step. `starts`,
    `ends`: int64[records] in ns. A record with a negative start was not timed and is ignored.

    Returns (starts, ends), int64[steps] each, in ns from the earliest timed start of all records.
    A step lasts from the earliest start to the latest end of its timed records. Both values are
    -1 for a step without timed records.
    """
    timed_records = np.flatnonzero(starts >= 0)
    origin = int(starts[timed_records].min()) if len(timed_records) else 0
    rows = request.program.row[timed_records]
    steps = len(request.algorithm.steps)
    # A step lasts from the start of its first record to the end of its last.
    step_start = np.full(steps, np.iinfo(np.int64).max)
    step_end = np.full(steps, -1, np.int64)
    np.minimum.at(step_start, rows, starts[timed_records] - origin)
    np.maximum.at(step_end, rows, ends[timed_records] - origin)
    step_start[step_end < 0] = -1
    return step_start, step_end
