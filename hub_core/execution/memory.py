"""One flat array for the buffers of all ranks: where records read and write in it, how it is filled, what is read out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.execution.data import check_memory
from hub_core.execution.program import LevelledProgram, RecordKind
from hub_core.model.kinds import Buffer, ReduceOp
from hub_core.plugin_api.executor import ExecutionRequest

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]
Reduction = Callable[..., object]

REDUCTIONS: dict[ReduceOp, Reduction] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


@dataclass(frozen=True, slots=True)
class Moves:
    """Per record, in elements of the flat array: first one read, first one written, how many; -1 where a SEND writes.

    A RECV reads the sender's region: the message is never anywhere else.
    """

    source: Int64Array
    destination: Int64Array
    length: Int64Array
    reduces: npt.NDArray[np.bool_]


def elements_of_block(request: ExecutionRequest) -> int:
    """Elements of a block, from the sizes of the inputs."""
    blocks = request.program.layout.size[:, Buffer.INPUT].tolist()
    elements: int = max(
        array.size // size for array, size in zip(request.inputs, blocks, strict=True) if size
    )
    return elements


def flat_size(request: ExecutionRequest) -> int:
    """Elements of the flat array. Raises `UsageError` where this machine has not that much memory."""
    elements = elements_of_block(request)
    check_memory(request.program, elements, request.inputs[0].dtype)
    return request.program.layout.total * elements


def find_moves(program: LevelledProgram, elements: int) -> Moves:
    """Address every record; messages that lack an end read nowhere."""
    source, destination = program.addresses()
    send, receive = program.message_ends()
    sender = np.full(int(program.message.max(initial=-1)) + 1, -1, np.int64)
    sender[program.message[send]] = source[send]
    source[receive] = sender[program.message[receive]]
    return Moves(
        source * elements,
        destination * elements,
        program.count * elements,
        program.kind == RecordKind.REDUCE,
    )


def fused_reductions(request: ExecutionRequest) -> Int64Array:
    """Per RECV the REDUCE that empties the slot which the RECV fills, -1 where there is none or in another level.

    Both serve one step, and nothing else reads the slot, so that a message may be reduced straight out of the sender's
    memory. It may be done before the other messages of the level are there: the step writes nothing that these touch.
    """
    program, algorithm = request.program, request.algorithm
    receive = np.full(len(algorithm.steps), -1, np.int64)
    receives = np.flatnonzero(program.kind == RecordKind.RECV)
    receive[program.row[receives]] = receives
    reductions = np.flatnonzero(program.kind == RecordKind.REDUCE)
    partner = receive[program.row[reductions]]
    own_scratch = algorithm.scratch_units[program.rank[reductions]] // program.block_units
    fits = (partner >= 0) & (program.level[partner] == program.level[reductions])
    fits &= (program.src_buffer[reductions] == Buffer.SCRATCH) & (
        program.dst_buffer[partner] == Buffer.SCRATCH
    )
    fits &= (program.src_offset[reductions] == program.dst_offset[partner]) & (
        program.src_offset[reductions] >= own_scratch
    )
    fused = np.full(len(program), -1, np.int64)
    fused[partner[fits]] = reductions[fits]
    return fused


def fill(memory: Array, request: ExecutionRequest, rank: int) -> None:
    """Put the memory of a rank in the state before a run: inputs, and the background everywhere else."""
    elements = elements_of_block(request)
    own = request.program.rank_memory(rank)
    memory[own.start * elements : own.stop * elements] = request.background
    start = int(request.program.layout.base[rank, Buffer.INPUT]) * elements
    memory[start : start + request.inputs[rank].size] = request.inputs[rank]


def output_of(memory: Array, request: ExecutionRequest, rank: int) -> Array:
    """OUTPUT of a rank, a view."""
    elements = elements_of_block(request)
    start = int(request.program.layout.base[rank, Buffer.OUTPUT]) * elements
    return memory[start : start + int(request.program.layout.size[rank, Buffer.OUTPUT]) * elements]


def step_times(
    request: ExecutionRequest, starts: Int64Array, ends: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Start and end of every step from those of the records, ns from the first start; -1 for steps without records.

    A record that was not timed has a start of -1.
    """
    timed = np.flatnonzero(starts >= 0)
    rows, origin = request.program.row[timed], int(starts[timed].min()) if len(timed) else 0
    step_start = np.full(len(request.algorithm.steps), np.iinfo(np.int64).max)
    step_end = np.full(len(step_start), -1, np.int64)
    np.minimum.at(step_start, rows, starts[timed] - origin)
    np.maximum.at(step_end, rows, ends[timed] - origin)
    return np.where(step_end < 0, -1, step_start), step_end
