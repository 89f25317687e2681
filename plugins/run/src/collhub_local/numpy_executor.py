"""The executor `numpy`: all ranks in one process and one thread, in one flat memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_execution import (
    REDUCTIONS,
    LevelledRequest,
    RecordMoves,
    Reduction,
    RunOrder,
    all_outputs,
    execute_levelled,
    fill_rank,
    find_moves,
    fused_moves,
    fused_reductions,
    run_order,
    step_times,
    used_elements,
)

from hub_core.columns import Int64Array, expanded_ranges, row_pointer
from hub_core.model import InputError
from hub_core.plugin_api import ExecutionRequest, ExecutionResult, NoOptions

Array = npt.NDArray[Any]

# (first element written, first read, number of elements, whether it reduces).
_Move = tuple[int, int, int, bool]
# (blocks written, blocks read, whether it reduces).
_Batch = tuple[Int64Array, Int64Array, bool]

# Below this mean size of a move, one indexed copy per level is faster than one copy per move.
_INDEXED_BYTES = 2048
# The indices take 16 bytes per block.
_MAX_INDEXED_BLOCKS = 1 << 24


def execute(request: ExecutionRequest, options: NoOptions) -> ExecutionResult:
    """Run in an order in which a transport without buffers could run.

    A program without such an order is refused (`InputError`). A message is copied directly from the
    sender's memory to the receiver's. `timeout_s` is checked between runs. This is the reference:
    it reduces in the order of the schedule.
    """
    return execute_levelled(request, run_in_one_thread)


def run_in_one_thread(request: LevelledRequest) -> ExecutionResult:
    """Run a request in this thread: warm-ups, repeats and, if requested, a run with times of steps.

    All runs use one memory. It is set up anew before every run, outside the measured time. The
    result has:

    - `outputs`: OUTPUT of every rank after the last run of all kinds
    - `repeat_times_s`: the time of each repeat in s, in order, without warm-ups
    - `step_start_ns`, `step_end_ns`: as from `_run_timed`, None if step times are not requested

    Raises `InputError` before any run for a program that would deadlock or in which a message has
    different sizes at its ends (`run_order`). Raises `InputError` (`timeout`) if more than
    `timeout_s` seconds have passed when a warm-up or repeat would start. A started run is not
    interrupted. The run with step times is always started. Numerical warnings are suppressed.
    """
    order = run_order(request.algorithm, request.program)
    memory = np.empty(request.flat_size, request.dtype)
    runner = _make_runner(request, order, memory)
    deadline = time.monotonic() + request.timeout_s
    times = []
    step_start_ns = step_end_ns = None
    # Undefined memory may overflow; warnings must not interrupt a run.
    with np.errstate(all="ignore"):
        for _ in range(request.warmups + request.repeats):
            if time.monotonic() > deadline:
                message = f"the runs take more than {request.timeout_s:g} s"
                raise InputError(message, cure="allow more time", code="timeout")
            _init_memory(memory, request, runner.used)
            start = time.perf_counter()
            runner.run()
            times.append(time.perf_counter() - start)
        if request.wants_step_times:
            step_start_ns, step_end_ns = _run_timed(request, order.records, memory)
    return ExecutionResult(
        outputs=all_outputs(memory, request),
        repeat_times_s=tuple(times[request.warmups :]),
        step_start_ns=step_start_ns,
        step_end_ns=step_end_ns,
    )


def _init_memory(memory: Array, request: LevelledRequest, used: Sequence[int | None]) -> None:
    """Set the memory to its state before a run; `used`: elements of every rank, see `fill_rank`."""
    for rank, used_by_rank in enumerate(used):
        fill_rank(memory, request, rank, used_by_rank)


def _list_full_use(request: LevelledRequest) -> Sequence[int | None]:
    """Return the argument of `_init_memory` for the entire memory of every rank."""
    return [None] * request.program.num_ranks


@dataclass(frozen=True, slots=True)
class _Runner:
    """One run of all moves, and the elements of every rank's memory that it uses."""

    run: Callable[[], None]
    used: Sequence[int | None]


def _make_runner(request: LevelledRequest, order: RunOrder, memory: Array) -> _Runner:
    """Choose how the program is run, by the mean size of its moves, and build the runner.

    The moves are those of the RECV, COPY and REDUCE records in `order`. The runner works on
    `memory` each time when it is called. It has one of two forms:

    - One indexed numpy call per batch (a set of independent moves). This form is used if the mean
      size is below `_INDEXED_BYTES` bytes, and all moves together have fewer than
      `_MAX_INDEXED_BLOCKS` blocks; so also without moves. `used` is None for every rank: its entire
      memory must be set up.
    - Otherwise one call per move, in order. Where possible, a received message is reduced directly
      from the sender's memory, and its REDUCE record is left out (`fused_reductions`). `used` is
      the number of elements that each rank uses, from the start of its memory.
    """
    reduction = REDUCTIONS[request.reduce_op]
    # Small moves cost more as calls of numpy than as bytes: then one call per batch is faster.
    blocks = request.program.count[order.records]
    mean_blocks = blocks.mean() if len(blocks) else 0
    mean_bytes = mean_blocks * request.elements * memory.itemsize
    if mean_bytes < _INDEXED_BYTES and int(blocks.sum()) < _MAX_INDEXED_BLOCKS:
        moves = find_moves(request.program, 1)
        # Indices of all batches are created at once and then divided, in time linear in blocks.
        length = moves.length[order.records]
        written = expanded_ranges(moves.destination[order.records], length)
        read = expanded_ranges(moves.source[order.records], length)
        borders = row_pointer(length)[order.batches].tolist()
        # All records of a batch are of one kind.
        reduces_of_batch = moves.reduces[order.records[order.batches[:-1]]]
        batches = []
        for number, reduces in enumerate(reduces_of_batch.tolist()):
            part = slice(borders[number], borders[number + 1])
            batches.append((written[part], read[part], reduces))
        rows = memory.reshape(-1, request.elements)
        return _Runner(lambda: _run_indexed(rows, batches, reduction), _list_full_use(request))
    # A message that is only reduced is reduced from the sender's memory, so it needs no slot.
    moves = find_moves(request.program, request.elements)
    moves, is_done = fused_moves(moves, fused_reductions(request))
    listed = _list_moves(moves, order.records[~is_done[order.records]])
    used = used_elements(request.program, moves, is_done, request.elements)
    return _Runner(lambda: _run_singly(memory, listed, reduction), used.tolist())


def _list_moves(moves: RecordMoves, records: Int64Array) -> list[_Move]:
    """Return the moves of `records` (destination, source, length, reduces), in their order.

    They are tuples of Python integers, because slicing with numpy integers is slow.
    """
    return list(
        zip(
            moves.destination[records].tolist(),
            moves.source[records].tolist(),
            moves.length[records].tolist(),
            moves.reduces[records].tolist(),
            strict=True,
        )
    )


def _run_singly(memory: Array, moves: Iterable[_Move], reduction: Reduction) -> None:
    """Run the moves one by one, in order, on `memory`; this is the measured part.

    A move reads `length` elements from its source. If it reduces, they are combined with the
    destination by `reduction`, in place, with the destination as first operand; otherwise they
    replace it.
    """
    for destination, source, length, reduces in moves:
        # Reduced in place: a separate result would cost another pass through memory.
        written = memory[destination : destination + length]
        if reduces:
            reduction(written, memory[source : source + length], out=written)
        else:
            written[:] = memory[source : source + length]


def _run_indexed(blocks: Array, batches: Iterable[_Batch], reduction: Reduction) -> None:
    """Run batch by batch, in order, on `blocks` (one row per block), which is modified.

    A reducing batch combines the written rows with the read ones, in this order of operands; any
    other copies. Records of a batch are independent, so numpy may use any order.
    """
    for written, read, reduces in batches:
        if reduces:
            blocks[written] = reduction(blocks[written], blocks[read])
        else:
            blocks[written] = blocks[read]


def _run_timed(
    request: LevelledRequest, records: Int64Array, memory: Array
) -> tuple[Int64Array, Int64Array]:
    """Run the program once more and time every move; return the start and end of every step.

    Both are int64 by step of the algorithm, in ns from the start of the first move. A step that has
    no record in the program has -1 in both.

    The memory is initialized first, and contains the results of this run at the end. The records
    run one at a time in the order of `records`, without fused reductions. Each starts when the
    previous one ends. A SEND record has the times of its RECV, because a message is one move. A
    step of several records lasts from the first start to the last end.
    """
    _init_memory(memory, request, _list_full_use(request))
    program, reduction = request.program, REDUCTIONS[request.reduce_op]
    # One timestamp per move: the end of a move is the start of the next one.
    clock = [time.perf_counter_ns()]
    for move in _list_moves(find_moves(program, request.elements), records):
        _run_singly(memory, (move,), reduction)
        clock.append(time.perf_counter_ns())
    start_ns, end_ns = np.full((2, len(program)), -1, np.int64)
    start_ns[records] = clock[:-1]
    end_ns[records] = clock[1:]
    send, receive = program.message_ends()
    start_ns[send] = start_ns[receive]
    end_ns[send] = end_ns[receive]
    return step_times(request, start_ns, end_ns)
