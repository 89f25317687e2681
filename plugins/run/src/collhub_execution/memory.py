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
    """Compute source, destination and length of every record in elements of the flat memory.

    The source of a receive is that of its message's SEND, -1 if the program lacks the SEND.
    `elements`: per block.
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
    """Return per record the REDUCE that reads the slot which this RECV fills, -1 if there is none.

    The result is int64, -1 for all records that are no RECV. Both implement one step in one level,
    no other record reads the slot, and no other record of the level accesses the destination of the
    REDUCE: the message may then be reduced directly from the sender's memory, before the other
    messages of the level have arrived.
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
    """Return for each pair whether its REDUCE reads exactly the slot that its RECV fills.

    bool[pairs]; `receives`, `reductions`: rows of the records of each pair. Slots are blocks of
    SCRATCH after those that the algorithm declares.
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
    """Let receives reduce directly into the target of the REDUCE that follows.

    `fused`: row of the REDUCE per record, -1 for none, see `fused_reductions`. Returns the changed
    moves, and the mask of the REDUCE records that need not run any more.
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
    """Return the number of elements of its memory that each rank uses: int64[ranks].

    It ends with INPUT, OUTPUT and the last element that a record reads or writes; slots of fused
    reductions after it are unused. `moves`: ranges by record; `is_done`: records that are fused;
    `elements`: per block.
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
    """Set a rank's memory to its state before a run: INPUT, and the background elsewhere.

    `memory`: flat memory of all ranks, which is modified. `used`: number of elements of the rank to
    set to the background, from the first on, None for all; INPUT is always written completely, and
    last, since in place it may be inside OUTPUT.
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

    In place it may overlap with INPUT. Empty for a rank without OUTPUT.
    """
    # In place, OUTPUT may be inside INPUT, or INPUT inside OUTPUT.
    layout, elements = request.program.layout, request.elements
    start = int(layout.base[rank, Buffer.OUTPUT]) * elements
    size = int(layout.size[rank, Buffer.OUTPUT]) * elements
    return memory[start : start + size]


def all_outputs(memory: Array, request: LevelledRequest) -> tuple[AnyArray, ...]:
    """Return the OUTPUT of every rank, in order of ranks, as views of the flat memory."""
    outputs = []
    for rank in range(request.program.num_ranks):
        outputs.append(get_output(memory, request, rank))
    return tuple(outputs)


def step_times(
    request: LevelledRequest, starts: Int64Array, ends: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return start and end of every step, from those of the records, in ns from the first start.

    Input: int64[records], start -1 if not timed. Output: int64 per row of the step table, -1 for
    steps without timed records.
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
