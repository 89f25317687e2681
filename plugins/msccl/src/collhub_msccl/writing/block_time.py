"""Model the execution time of a file's thread blocks, to compare variants of one algorithm.

A thread block executes its steps in order. A step takes the time of its chunks; a chain of
reductions takes the time of all operands. A step begins when its block is free, when the step that
it waits for is finished, and, if it receives, when the sending step has begun: fused steps stream.
Links are never a bottleneck. Cost: linear in steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.dependencies import find_first_flagged
from collhub_msccl.reading.fusion import fuse_reductions
from collhub_msccl.thread_block_program import RECEIVING, SENDING, StepType, ThreadBlockProgram
from hub_core.columns import BoolArray, Int64Array, topological_levels
from hub_core.model import Diagnostic, connection_keys, pair_in_order


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """Resources and time that a file requires.

    `makespan`: in units of the time of one chunk; `blocks`: thread blocks of the rank with the
    most; `channels`: channels in use; `longest`: steps of the longest thread block, including nops;
    `executed`: steps of all ranks that move data, a chain of reductions counted once; `fused`:
    steps of all ranks that do the work of several.
    """

    makespan: int
    blocks: int
    channels: int
    longest: int
    executed: int
    fused: int


def compute_block_figures(program: ThreadBlockProgram) -> BlockFigures:
    """Compute the figures of a program that terminates."""
    fusion = fuse_reductions(program, FileFindings("", _ignore_diagnostic))
    is_nop = program.is_type(StepType.NOP)
    duration = np.where(is_nop, 0, fusion.count)
    waiting = np.flatnonzero(program.depid >= 0)
    parent = find_first_flagged(program, fusion, waiting)
    # A wait within a block is already satisfied; the reader refuses waits that never finish.
    is_real = (parent >= 0) & (program.block[parent] != program.block[waiting])
    follows = np.flatnonzero(program.block[1:] == program.block[:-1])
    waits = (
        np.concatenate([follows, parent[is_real]]),
        np.concatenate([follows + 1, waiting[is_real]]),
    )
    is_fused = program.is_type(
        StepType.RECV_COPY_SEND, StepType.RECV_REDUCE_SEND, StepType.RECV_REDUCE_COPY_SEND
    )
    begin = compute_begin_times(duration, waits, _match_messages(program))
    return BlockFigures(
        makespan=int((begin + duration).max(initial=0)),
        blocks=int(np.diff(program.block_indptr).max(initial=0)),
        channels=len(np.unique(program.channel[_has_peer(program)])),
        longest=int(np.bincount(program.block).max(initial=0)),
        executed=int(np.count_nonzero(~is_nop & ~fusion.joins)),
        fused=int(np.count_nonzero(is_fused) + np.count_nonzero(fusion.joins)),
    )


def _has_peer(program: ThreadBlockProgram) -> BoolArray:
    """Mask of the thread blocks that send or receive."""
    return (program.send >= 0) | (program.recv >= 0)


def _match_messages(program: ThreadBlockProgram) -> Edges:
    """(sending, receiving) step of every message, as two int64 columns."""
    block, rank = program.block, program.rank
    sends = np.flatnonzero(program.is_type(*SENDING))
    receives = np.flatnonzero(program.is_type(*RECEIVING))
    source = np.concatenate([rank[sends], program.recv[block[receives]]])
    destination = np.concatenate([program.send[block[sends]], rank[receives]])
    channel = program.channel[block[np.concatenate([sends, receives])]]
    keys = connection_keys(source, destination, channel)
    messages = pair_in_order(sends, receives, keys[: len(sends)], keys[len(sends) :])
    return messages.send, messages.receive


def compute_begin_times(duration: Int64Array, ends: Edges, messages: Edges) -> Int64Array:
    """Time at which each step begins, int64. `ends`: (step, step that begins after its end).

    `duration`: int64 per step; `messages`: (sending, receiving) steps; a receive begins no earlier
    than its send.
    """
    parents = np.concatenate([ends[0], messages[0]])
    children = np.concatenate([ends[1], messages[1]])
    # A receive waits only for the beginning of the sending step.
    lasting = np.concatenate([duration[ends[0]], np.zeros(len(messages[0]), np.int64)])
    order = topological_levels(len(duration), parents, children)
    by_parent = np.argsort(order.position[parents], kind="stable")
    begin = [0] * len(duration)
    rows = (column[by_parent].tolist() for column in (parents, children, lasting))
    # In order of execution, so that the beginning of a step is final before it is used.
    for parent, child, time in zip(*rows, strict=True):
        begin[child] = max(begin[child], begin[parent] + time)
    return np.asarray(begin, np.int64)


def _ignore_diagnostic(_diagnostic: Diagnostic) -> None:
    """Discard a diagnostic: the file is written, not read, so the reader's warnings do not
    apply."""
