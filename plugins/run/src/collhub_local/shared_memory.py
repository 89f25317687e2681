"""The executor `shared-memory`: one process a rank on anonymous shared memory."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from multiprocessing.context import ForkContext
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_execution import (
    NOT_STARTED,
    LevelledRequest,
    RankPlans,
    RecordKind,
    all_outputs,
    execute_levelled,
    fused_reductions,
    step_times,
)

from collhub_local.forked_ranks import ForkedRanks
from collhub_local.rank_process import RankPair, SharedBoard
from hub_core.model import PluginError, UsageError
from hub_core.plugin_api import ExecutionRequest, ExecutionResult, NoOptions

Array = npt.NDArray[Any]

_MAX_RANKS = 256
# Each pair of ranks takes two semaphores, and each of these a mapping of the process, of which
# Linux allows 65530 (vm.max_map_count).
_MAX_PAIRS = 1 << 14


def execute(request: ExecutionRequest, options: NoOptions) -> ExecutionResult:
    """Run with true concurrency, one process a rank.

    A receiver waits for the sender's post, copies straight out of its memory, and acknowledges; a
    sender goes on when all its messages are acknowledged. What a message is only reduced with is
    reduced on the way, without a copy in scratch.

    Nothing has a name: when the processes end, however they end, no shared memory and no semaphore
    is left.
    """
    return execute_levelled(request, run_in_processes)


def run_in_processes(request: LevelledRequest) -> ExecutionResult:
    """Run a levelled request; see `execute`."""
    board = _board(request, _fork_context(request))
    ranks = ForkedRanks(request, board)
    try:
        # Before the fork, so that the plans of all ranks are made once.
        ranks.start(RankPlans(request.program, request.elements, fused_reductions(request)))
        for _ in range(request.runs):
            ranks.await_all()
            ranks.let_go()
        ranks.await_all()
    finally:
        ranks.end()
    return _result(request, board)


def _result(request: LevelledRequest, board: SharedBoard) -> ExecutionResult:
    # From the first start to the last end, on the clock that all processes of a machine share.
    starts, ends = board.times
    spans = (ends.max(axis=1) - starts.min(axis=1)).tolist()
    step_start = step_end = None
    if request.wants_step_times:
        step_start, step_end = step_times(request, *board.record_times)
    return ExecutionResult(
        outputs=all_outputs(board.memory, request),
        repeat_times_s=tuple(spans[request.warmups : request.warmups + request.repeats]),
        step_start_ns=step_start,
        step_end_ns=step_end,
    )


def _fork_context(request: LevelledRequest) -> ForkContext:
    """Refuse what this machine cannot start."""
    ranks = request.program.num_ranks
    if "fork" not in multiprocessing.get_all_start_methods():
        message = "the executor shared-memory needs a system that can fork"
        raise PluginError(message, cure="use the executor numpy")
    if ranks > _MAX_RANKS:
        message = (
            f"the executor shared-memory runs at most {_MAX_RANKS} ranks, "
            f"this algorithm has {ranks}"
        )
        raise UsageError(message, cure="use the executor numpy", code="too-many-ranks")
    return multiprocessing.get_context("fork")


def _board(request: LevelledRequest, context: ForkContext) -> SharedBoard:
    """What all processes share; made before the fork, so that they inherit it."""
    ranks = request.program.num_ranks
    times = _shared(2 * request.runs * ranks, np.float64)
    board = SharedBoard(
        memory=_shared(request.flat_size, request.dtype),
        at=_shared(ranks, np.int64),
        times=times.reshape(2, request.runs, ranks),
        record_times=_shared(2 * len(request.program), np.int64).reshape(2, -1),
        pairs=_pairs(request, context),
        ready=context.Semaphore(0),
        go=[context.Semaphore(0) for _ in range(ranks)],
        failures=context.SimpleQueue(),
        context=context,
        starter=os.getpid(),
    )
    board.at.fill(NOT_STARTED)
    if request.wants_step_times:
        board.record_times.fill(-1)
    return board


def _pairs(request: LevelledRequest, context: ForkContext) -> dict[tuple[int, int], RankPair]:
    """The rendezvous of every pair of ranks between which messages travel."""
    program = request.program
    # Only pairs that exchange something: semaphores of all pairs would be too many.
    sends = program.kind == RecordKind.SEND
    ends = np.stack([program.rank[sends], program.peer[sends]], axis=1)
    pairs = np.unique(ends, axis=0).tolist()
    if len(pairs) > _MAX_PAIRS:
        message = (
            f"{len(pairs)} pairs of ranks exchange messages, "
            f"the executor shared-memory can serve {_MAX_PAIRS}"
        )
        raise UsageError(message, cure="use the executor numpy", code="too-many-pairs")
    return {(source, destination): RankPair.at_start(context) for source, destination in pairs}


def _shared(elements: int, dtype: npt.DTypeLike) -> Array:
    """Zeros in memory that forked processes share."""
    # Anonymous and shared: it needs no name, and goes when the last process has gone.
    kind: np.dtype[Any] = np.dtype(dtype)
    # An empty mapping is refused by the system.
    mapping = mmap.mmap(-1, max(1, elements * kind.itemsize))
    return np.frombuffer(mapping, kind, elements)
