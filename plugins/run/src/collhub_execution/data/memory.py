"""One flat array for the buffers of all ranks: where records read and write, what goes in, out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_execution.data.checked_inputs import AnyArray
from collhub_execution.data.element_types import Array
from collhub_execution.levelling.program import LevelledProgram, RecordKind
from collhub_execution.request_levelling import LevelledRequest
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Buffer


@dataclass(frozen=True, slots=True)
class RecordMoves:
    """Per record, in elements of the flat array: first one read, first one written, how many.

    A RECV reads the sender's region, -1 where it has no sender: the message is never anywhere else.
    A SEND writes nothing, -1. `reduces`: whether what is written is reduced with what is read.
    """

    source: Int64Array
    destination: Int64Array
    length: Int64Array
    reduces: BoolArray


def find_moves(program: LevelledProgram, elements: int) -> RecordMoves:
    """Address every record of a program whose blocks have `elements` elements."""
    source, destination = program.addresses()
    send, receive = program.message_ends()
    # By number, not by place: programs that lack an end of a message are run, to see them stall.
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
    """Per RECV the REDUCE that empties the slot which the RECV fills, -1 where there is none.

    Both serve one step and stand in one level, nothing else reads the slot, and no other record of
    the level touches what the REDUCE writes: so a message may be reduced straight out of the
    sender's memory, before the other messages of the level are there.
    """
    program, steps = request.program, request.algorithm.steps
    # A step has at most one RECV, which its row therefore names.
    receive_of_row = np.full(len(steps), -1, np.int64)
    receives = np.flatnonzero(program.kind == RecordKind.RECV)
    receive_of_row[program.row[receives]] = receives
    reductions = np.flatnonzero(program.kind == RecordKind.REDUCE)
    partner = receive_of_row[program.row[reductions]]
    # A REDUCE step has no RECV; a staged one has it in an earlier level, whose sender is gone.
    fits = (partner >= 0) & (program.level[partner] == program.level[reductions])
    fits &= _is_through_slot(request, partner, reductions)
    fits &= _is_alone(program, reductions)
    fused = np.full(len(program), -1, np.int64)
    fused[partner[fits]] = reductions[fits]
    return fused


def _is_alone(program: LevelledProgram, reductions: Int64Array) -> BoolArray:
    """Whether no other record of its level touches what each REDUCE writes.

    Two ranks that exchange a unit and add it to their own send it in the level in which they write
    it: what is added must wait for the send.
    """
    # Regions of all records on one line, level by level: those of other levels are apart.
    source, destination = program.addresses()
    origin = program.level.astype(np.int64) * (program.layout.total + 1)
    starts = np.concatenate([(origin + side)[side >= 0] for side in (source, destination)])
    counts = np.concatenate([program.count[side >= 0] for side in (source, destination)])
    first = (origin + destination)[reductions]
    # Regions that begin before the end, less those that end before the begin; one is its own.
    begun = np.searchsorted(np.sort(starts), first + program.count[reductions], "left")
    ended = np.searchsorted(np.sort(starts + counts), first, "right")
    is_alone: BoolArray = begun - ended == 1
    return is_alone


def _is_through_slot(
    request: LevelledRequest, receives: Int64Array, reductions: Int64Array
) -> BoolArray:
    """Whether each REDUCE reads the slot, behind the algorithm's SCRATCH, that its RECV fills."""
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
    """The moves in which receives do the reductions of `fused`, and which of all records are done.

    `fused`: see `fused_reductions`.
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
    """How many elements of its memory each rank uses, from the first on, int64[num_ranks].

    Slots whose reductions are done on the way stand at the end, and nobody touches them. `moves`,
    `is_done`: by record; `elements`: of a block.
    """
    base, size = program.layout.base, program.layout.size
    outer = [Buffer.INPUT, Buffer.OUTPUT]
    ends = (base + size)[:, outer].max(axis=1) * elements
    # The region that a RECV reads is its sender's, and so is the end of its SEND.
    is_receive = program.kind == RecordKind.RECV
    is_unread = is_receive | is_done | (moves.source < 0)
    is_unwritten = is_done | (moves.destination < 0)
    read = np.where(is_unread, 0, moves.source + moves.length)
    written = np.where(is_unwritten, 0, moves.destination + moves.length)
    np.maximum.at(ends, program.rank, np.maximum(read, written))
    found: Int64Array = ends - base.min(axis=1) * elements
    return found


def fill_rank(memory: Array, request: LevelledRequest, rank: int, used: int | None = None) -> None:
    """Put a rank's memory in the state before a run: INPUT, and the background elsewhere.

    `used`: how many of its elements are, from the first on, None for all.
    """
    # The background first: in place, INPUT may lie inside OUTPUT.
    elements = request.elements
    own = request.program.rank_memory(rank)
    first = own.start * elements
    end = own.stop * elements if used is None else first + used
    memory[first:end] = request.background
    start = int(request.program.layout.base[rank, Buffer.INPUT]) * elements
    values = request.inputs[rank]
    memory[start : start + values.size] = values


def output_of(memory: Array, request: LevelledRequest, rank: int) -> Array:
    """OUTPUT of a rank, a view."""
    # In place this lies inside INPUT, or INPUT inside it.
    layout, elements = request.program.layout, request.elements
    start = int(layout.base[rank, Buffer.OUTPUT]) * elements
    size = int(layout.size[rank, Buffer.OUTPUT]) * elements
    return memory[start : start + size]


def all_outputs(memory: Array, request: LevelledRequest) -> tuple[AnyArray, ...]:
    """OUTPUT of all ranks, views."""
    outputs = []
    for rank in range(request.program.num_ranks):
        outputs.append(output_of(memory, request, rank))
    return tuple(outputs)


def step_times(
    request: LevelledRequest, starts: Int64Array, ends: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Start and end of every step from those of the records, ns from the first start.

    Input: int64[records], start -1 for those not timed. Output: int64 a row of the step table, -1
    for steps without timed records.
    """
    timed = np.flatnonzero(starts >= 0)
    origin = int(starts[timed].min()) if len(timed) else 0
    rows = request.program.row[timed]
    steps = len(request.algorithm.steps)
    # A step lasts from the start of its first record to the end of its last.
    step_start = np.full(steps, np.iinfo(np.int64).max)
    step_end = np.full(steps, -1, np.int64)
    np.minimum.at(step_start, rows, starts[timed] - origin)
    np.maximum.at(step_end, rows, ends[timed] - origin)
    step_start[step_end < 0] = -1
    return step_start, step_end
