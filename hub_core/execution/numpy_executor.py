"""The executor `numpy`: all ranks in one process and one thread, on one flat memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.execution.memory import (
    REDUCTIONS,
    Moves,
    Reduction,
    elements_of_block,
    fill,
    find_moves,
    flat_size,
    output_of,
    step_times,
)
from hub_core.execution.rendezvous import RunOrder, run_order
from hub_core.model.diagnostics import InputError
from hub_core.plugin_api.contract import Options
from hub_core.plugin_api.executor import ExecutionRequest, ExecutionResult

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]
_Move = tuple[int, int, int, bool]

# Below this mean size of a move, all moves of a level by one indexed copy are faster than one copy each.
_INDEXED_BYTES = 2048
_MAX_INDEXED_BLOCKS = 1 << 24


def execute(request: ExecutionRequest, options: Options) -> ExecutionResult:
    """Run the program in an order in which a transport without buffers could, and refuse one for which there is none.

    A message is copied straight from the sender's memory into the receiver's. `timeout_s` is observed between runs.
    """
    program = request.program
    order = run_order(request.algorithm, program)
    memory = np.empty(flat_size(request), request.inputs[0].dtype)
    run = _runner(request, order, memory)
    times, deadline = [], time.monotonic() + request.timeout_s
    with np.errstate(all="ignore"):
        for _ in range(request.warmups + request.repeats):
            _fill_all(memory, request, deadline)
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        starts, ends = (
            _run_timed(request, order.records, memory) if request.wants_step_times else (None, None)
        )
    outputs = tuple(output_of(memory, request, rank) for rank in range(program.num_ranks))
    return ExecutionResult(
        outputs, tuple(times[request.warmups :]), step_start_ns=starts, step_end_ns=ends
    )


def _fill_all(memory: Array, request: ExecutionRequest, deadline: float = float("inf")) -> None:
    if time.monotonic() > deadline:
        raise InputError(
            f"the runs take more than {request.timeout_s:g} s",
            cure="allow more time",
            code="timeout",
        )
    for rank in range(request.program.num_ranks):
        fill(memory, request, rank)


def _runner(request: ExecutionRequest, order: RunOrder, memory: Array) -> Callable[[], None]:
    """One run of all moves, in the way that suits their size."""
    reduction, elements = REDUCTIONS[request.reduce_op], elements_of_block(request)
    blocks = request.program.count[order.records]
    mean_bytes = blocks.mean() * elements * memory.itemsize if len(blocks) else 0
    if mean_bytes < _INDEXED_BYTES and int(blocks.sum()) < _MAX_INDEXED_BLOCKS:
        indexed = _index_batches(find_moves(request.program, 1), order)
        return lambda: _run_indexed(memory.reshape(-1, elements), indexed, reduction)
    listed = _listed(find_moves(request.program, elements), order.records)
    return lambda: _run_singly(memory, listed, reduction)


def _listed(moves: Moves, records: Int64Array) -> list[_Move]:
    columns = (moves.destination, moves.source, moves.length, moves.reduces)
    return list(zip(*(column[records].tolist() for column in columns), strict=True))


def _run_singly(memory: Array, moves: Iterable[_Move], reduction: Reduction) -> None:
    for destination, source, length, reduces in moves:
        written = memory[destination : destination + length]
        if reduces:
            reduction(written, memory[source : source + length], out=written)
        else:
            written[:] = memory[source : source + length]


def _index_batches(moves: Moves, order: RunOrder) -> list[tuple[Int64Array, Int64Array, bool]]:
    """Per batch the blocks that it writes, those that it reads, and whether it reduces."""
    length = moves.length[order.records]
    ends = np.concatenate([[0], np.cumsum(length)])
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], length)
    written, read = (
        np.repeat(column[order.records], length) + within
        for column in (moves.destination, moves.source)
    )
    borders = ends[order.batches].tolist()
    reduces = moves.reduces[order.records[order.batches[:-1]]].tolist()
    return [
        (written[low:high], read[low:high], r)
        for low, high, r in zip(borders, borders[1:], reduces, strict=False)
    ]


def _run_indexed(
    blocks: Array, batches: Iterable[tuple[Int64Array, Int64Array, bool]], reduction: Reduction
) -> None:
    for written, read, reduces in batches:
        blocks[written] = reduction(blocks[written], blocks[read]) if reduces else blocks[read]


def _run_timed(
    request: ExecutionRequest, records: Int64Array, memory: Array
) -> tuple[Int64Array, Int64Array]:
    """One more run, move by move; a message takes both its ends as long as its copy."""
    _fill_all(memory, request)
    reduction, program = REDUCTIONS[request.reduce_op], request.program
    clock = [time.perf_counter_ns()]
    for move in _listed(find_moves(program, elements_of_block(request)), records):
        _run_singly(memory, (move,), reduction)
        clock.append(time.perf_counter_ns())
    starts, ends = np.full((2, len(program)), -1, np.int64)
    starts[records], ends[records] = clock[:-1], clock[1:]
    send, receive = program.message_ends()
    starts[send], ends[send] = starts[receive], ends[receive]
    return step_times(request, starts, ends)
