"""Model the execution time of a file, to compare variants of one algorithm.

On links without limits: a thread block executes its steps in order. A step takes the time of its
chunks; a chain of reductions takes the time of all operands. A step begins when its block is free,
when the step that it waits for is finished, and, if it receives, when the sending step has begun:
fused steps stream. Links are never a bottleneck. Cost: linear in steps.

On links that messages share: only the ranks of the machine are known, so each rank has one link to
a switch and one back. A thread block executes its steps in order. A message queues for the link of
its rank (first come, first served), crosses it completely, then the link to its receiver in the
same way; its block waits until it has arrived. Local work takes no time. Among steps that begin at
once, those of lower thread blocks come first. Cost: n log n in steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.dependencies import find_first_flagged, fuse_reductions
from collhub_msccl.thread_block_program import RECEIVING, SENDING, StepType, ThreadBlockProgram
from collhub_msccl.writing.list_kernels import NONE, as_array, run
from collhub_msccl.writing.time_kernels import (
    LinkState,
    LinkSteps,
    relax_begins,
    simulate_links,
)
from hub_core.columns import Int64Array, csr, topological_levels
from hub_core.model import (
    Algorithm,
    StepKind,
    connection_keys,
    matched_messages,
    pair_in_order,
)

# Edges of which the begins take as long as one node of list scheduling, in plain Python.
_EDGES_PER_NODE = 1 << 6


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
    """Compute the resources of a terminating program, and its time without contention.

    Times are in units of data. A step takes its `cnt`, but each `re` of a fused chain takes the
    `cnt` of the chain's last `re`: a chain of 3 with `cnt` 4 takes 12. A nop takes 0, and links
    take no time. A step begins after the end of the previous step of its thread block, and of
    the step of another block for which it waits. A receive also begins no earlier than its send
    begins. The k-th send of a (source, destination, channel) is matched with its k-th receive.
    Warnings about chains are not reported. All results are 0 for an empty program:

    - makespan: end of the last step
    - blocks: maximum number of thread blocks of a rank
    - channels: number of different channel numbers of blocks with a peer, over all ranks
    - longest: maximum number of steps of a block, including nops
    - executed: steps except nops and `re` steps joined to an earlier one
    - fused: steps `rcs`, `rrs` and `rrcs`, and `re` steps joined to an earlier one
    """
    # The file is written, not read: the reader's warnings do not apply.
    fusion = fuse_reductions(program, FileFindings("", lambda diagnostic: None))
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
    block, rank = program.block, program.rank
    sends = np.flatnonzero(program.is_type(*SENDING))
    receives = np.flatnonzero(program.is_type(*RECEIVING))
    source = np.concatenate([rank[sends], program.recv[block[receives]]])
    destination = np.concatenate([program.send[block[sends]], rank[receives]])
    channel = program.channel[block[np.concatenate([sends, receives])]]
    keys = connection_keys(source, destination, channel)
    messages = pair_in_order(sends, receives, keys[: len(sends)], keys[len(sends) :])
    begin = compute_begin_times(duration, waits, (messages.send, messages.receive))
    return BlockFigures(
        makespan=int((begin + duration).max(initial=0)),
        blocks=int(np.diff(program.block_indptr).max(initial=0)),
        channels=len(np.unique(program.channel[((program.send >= 0) | (program.recv >= 0))])),
        longest=int(np.bincount(program.block).max(initial=0)),
        executed=int(np.count_nonzero(~is_nop & ~fusion.joins)),
        fused=int(np.count_nonzero(is_fused) + np.count_nonzero(fusion.joins)),
    )


def compute_begin_times(duration: Int64Array, ends: Edges, messages: Edges) -> Int64Array:
    """Return the earliest time at which each step can begin: int64, in units of `duration`.

    `duration`: int64 per step. `ends`: pairs (steps, steps that begin after their end). `messages`:
    pairs (sending steps, receiving steps); a receive begins no earlier than its send begins. A step
    without predecessors begins at 0. The pairs must have no cycle (not checked).
    """
    parents = np.concatenate([ends[0], messages[0]])
    children = np.concatenate([ends[1], messages[1]])
    # A receive waits only for the beginning of the sending step.
    lasting = np.concatenate([duration[ends[0]], np.zeros(len(messages[0]), np.int64)])
    order = topological_levels(len(duration), parents, children)
    by_parent = np.argsort(order.position[parents], kind="stable")
    # In order of execution, so that the beginning of a step is final before it is used.
    rows = (column[by_parent] for column in (parents, children, lasting))
    begin = np.zeros(len(duration), np.int64)
    return as_array(run(relax_begins, len(parents) // _EDGES_PER_NODE, *rows, begin))


_BUFFER_TIME = 1 << 30
# Latencies of a link: half the time of a buffer, as in small calls, and almost none.
_LATENCIES = _BUFFER_TIME >> 1, _BUFFER_TIME >> 10


def compute_link_times(algorithm: Algorithm) -> tuple[int, ...]:
    """Return the simulated times of a small and of a large call on links that messages share.

    A time is that at which the last message arrives; it is 0 without messages. Each rank has one
    link to a switch and one back. The unit is 2^-30 of the time in which one full buffer crosses a
    link. The calls differ only in the latency of links, given by `_LATENCIES`: half of that time
    for the small call, 2^-10 of it for the large one. The lanes of `algorithm` are thread blocks;
    their order must be part of the control dependencies (not checked). Unmatched messages are not
    reported.
    """
    steps, size = algorithm.steps, len(algorithm.steps)
    messages = matched_messages(steps)
    partner = np.full(size, NONE, np.int64)
    partner[messages.send], partner[messages.receive] = messages.receive, messages.send
    parents, waiting = steps.edges()
    child_start, children = csr(parents, waiting, size)
    unit_time = max(_BUFFER_TIME // algorithm.collective.unit_count, 1)
    link_steps = LinkSteps(
        steps.rank.astype(np.int64),
        steps.is_kind(StepKind.SEND).astype(np.int64),
        steps.count.astype(np.int64) * unit_time,
        partner,
        np.bincount(waiting, minlength=size),
        child_start,
        children,
        algorithm.num_ranks,
    )
    times = []
    for latency in _LATENCIES:
        missing, ready, has_begun, has_arrived = np.zeros((4, size), np.int64)
        free = np.zeros(2 * algorithm.num_ranks, np.int64)
        state = LinkState(missing, ready, has_begun, has_arrived, free)
        times.append(int(run(simulate_links, size, link_steps, state, latency)))
    return tuple(times)
