"""Model how long the thread blocks of a file take, to compare ways to write one algorithm.

A thread block runs its steps in order. A step takes the time of its chunks, of each operand anew in
a run of reductions. It begins when its block is free, when the step that it waits for is done, and
where it receives, when the step that sends has begun: fused steps stream. Links have room for all.
Cost: linear in steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array, topological_levels

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.dependencies import find_first_flagged
from collhub_msccl.reading.fusion import fuse_reductions
from collhub_msccl.thread_block_program import RECEIVING, SENDING, StepType, ThreadBlockProgram
from hub_core.model import Diagnostic, connection_keys, pair_in_order


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """What a file asks of a runtime.

    `makespan`: in the time of one chunk; `blocks`: of the rank that has most; `longest`: steps of
    the longest thread block, nops included; `executed`: steps of all ranks that move data, where a
    run of reductions counts once; `fused`: steps of all ranks that do the work of several.
    """

    makespan: int
    blocks: int
    channels: int
    longest: int
    executed: int
    fused: int


def block_figures(program: ThreadBlockProgram) -> BlockFigures:
    """The figures of a program that can run to its end."""
    fusion = fuse_reductions(program, FileFindings("", _ignore))
    is_nop = program.is_type(StepType.NOP)
    duration = np.where(is_nop, 0, fusion.count)
    waiting = np.flatnonzero(program.depid >= 0)
    parent = find_first_flagged(program, fusion, waiting)
    # A wait for the own block is over, one that nothing ends is the reader's to refuse.
    is_real = (parent >= 0) & (program.block[parent] != program.block[waiting])
    follows = np.flatnonzero(program.block[1:] == program.block[:-1])
    ends = (
        np.concatenate([follows, parent[is_real]]),
        np.concatenate([follows + 1, waiting[is_real]]),
    )
    is_fused = program.is_type(
        StepType.RECV_COPY_SEND, StepType.RECV_REDUCE_SEND, StepType.RECV_REDUCE_COPY_SEND
    )
    begin = begin_times(duration, ends, _messages(program))
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


def _messages(program: ThreadBlockProgram) -> Edges:
    """(sending, receiving) steps of every message."""
    block, rank = program.block, program.rank
    sends = np.flatnonzero(program.is_type(*SENDING))
    receives = np.flatnonzero(program.is_type(*RECEIVING))
    source = np.concatenate([rank[sends], program.recv[block[receives]]])
    destination = np.concatenate([program.send[block[sends]], rank[receives]])
    channel = program.channel[block[np.concatenate([sends, receives])]]
    keys = connection_keys(source, destination, channel)
    messages = pair_in_order(sends, receives, keys[: len(sends)], keys[len(sends) :])
    return messages.send, messages.receive


def begin_times(duration: Int64Array, ends: Edges, messages: Edges) -> Int64Array:
    """When each step begins, int64. `ends`: (step, step that begins after its end).

    `messages`: (sending, receiving) steps; a receive begins no earlier than its send.
    """
    parents = np.concatenate([ends[0], messages[0]])
    children = np.concatenate([ends[1], messages[1]])
    # Of a message, only the beginning of the sending step is waited for.
    lasting = np.concatenate([duration[ends[0]], np.zeros(len(messages[0]), np.int64)])
    order = topological_levels(len(duration), parents, children)
    by_parent = np.argsort(order.position[parents], kind="stable")
    begin = [0] * len(duration)
    rows = (column[by_parent].tolist() for column in (parents, children, lasting))
    # In order of execution, so that a step's beginning is final when it is passed on.
    for parent, child, time in zip(*rows, strict=True):
        begin[child] = max(begin[child], begin[parent] + time)
    return np.asarray(begin, np.int64)


def _ignore(_diagnostic: Diagnostic) -> None:
    """The reader's warnings are for who asked for the file."""
