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

import heapq
from collections import deque
from dataclasses import dataclass
from itertools import count

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.dependencies import find_first_flagged, fuse_reductions
from collhub_msccl.thread_block_program import RECEIVING, SENDING, StepType, ThreadBlockProgram
from hub_core.columns import Int64Array, topological_levels
from hub_core.model import (
    Algorithm,
    StepKind,
    connection_keys,
    matched_messages,
    pair_in_order,
)


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
    begin = [0] * len(duration)
    rows = (column[by_parent].tolist() for column in (parents, children, lasting))
    # In order of execution, so that the beginning of a step is final before it is used.
    for parent, child, time in zip(*rows, strict=True):
        begin[child] = max(begin[child], begin[parent] + time)
    return np.asarray(begin, np.int64)


_BUFFER_TIME = 1 << 30
# Latencies of a link: half the time of a buffer, as in small calls, and almost none.
_LATENCIES = _BUFFER_TIME >> 1, _BUFFER_TIME >> 10


def compute_link_times(algorithm: Algorithm) -> tuple[int, ...]:
    """Return the simulated times of a small and of a large call on links that messages share.

    A time ends when the last message arrives; it is 0 without messages. Each rank has one
    link to a switch and one back. The unit is 2^-30 of the time in which one full buffer
    crosses a link. The calls differ only in the latency of links, given by `_LATENCIES`:
    half of that time for the small call, 2^-10 of it for the large one. The lanes of
    `algorithm` are thread blocks; their order must be part of the control dependencies (not
    checked).
    """
    steps = _list_steps(algorithm)
    return tuple(_LinkRun(steps, latency).simulate() for latency in _LATENCIES)


@dataclass(frozen=True, slots=True)
class _LinkSteps:
    """Steps as lists with one entry per step.

    `time`: on a link; `partner`: step at the other side of a message, -1 for none; `waits`: number
    of steps that it waits for; `children`: steps that wait for it.
    """

    num_ranks: int
    rank: list[int]
    is_send: list[bool]
    time: list[int]
    partner: list[int]
    waits: list[int]
    children: list[list[int]]


def _list_steps(algorithm: Algorithm) -> _LinkSteps:
    """Convert the steps of an algorithm to lists, because single look-ups in arrays are slower.

    Each list has one entry per step, in the order of the rows:

    - `rank`, and `is_send`: whether the step sends
    - `time`: number of units times the time of a unit, also for steps that do not send. A unit
      takes `_BUFFER_TIME` // `unit_count`, at least 1
    - `partner`: row of the other side of its message, -1 if it has none
    - `waits`: number of its data and control dependencies. They must include the program order
      of the lanes (not checked); the send of a receive is not counted
    - `children`: rows of the steps that depend on it, ascending

    Unmatched messages are not reported.
    """
    steps = algorithm.steps
    messages = matched_messages(steps)
    partner = np.full(len(steps), -1, np.int64)
    partner[messages.send], partner[messages.receive] = messages.receive, messages.send
    parents, waiting = steps.edges()
    children: list[list[int]] = [[] for _ in range(len(steps))]
    for parent, child in zip(parents.tolist(), waiting.tolist(), strict=True):
        children[parent].append(child)
    unit_time = max(_BUFFER_TIME // algorithm.collective.unit_count, 1)
    return _LinkSteps(
        algorithm.num_ranks,
        steps.rank.tolist(),
        steps.is_kind(StepKind.SEND).tolist(),
        [count * unit_time for count in steps.count.tolist()],
        partner.tolist(),
        np.bincount(waiting, minlength=len(steps)).tolist(),
        children,
    )


class _LinkRun:
    """Simulation of the steps with one latency for all links; it can run only once."""

    def __init__(self, steps: _LinkSteps, latency: int) -> None:
        self._steps = steps
        self._latency = latency
        self._now = 0
        self._missing = steps.waits.copy()
        self._ready = deque(step for step, waits in enumerate(steps.waits) if not waits)
        # Times at which the links from and to every rank become free.
        self._from_rank = [0] * steps.num_ranks
        self._to_rank = [0] * steps.num_ranks
        # Messages in transit: (arrival time, number, sending step, whether on the link to the
        # receiver).
        self._events: list[tuple[int, int, int, bool]] = []
        self._numbers = count()
        self._begun = [False] * len(steps.rank)
        self._arrived = [False] * len(steps.rank)

    def simulate(self) -> int:
        """Run the simulation; return the time at which the last message arrives, or 0.

        The result is 0 without messages. The unit is that of `_LinkSteps.time`. A message
        crosses the link out of its sender, then the link into its receiver. It occupies each
        link for its `time`, and reaches the end of the link one latency later. Each link
        carries one message at a time, in the order in which messages reach it; at equal times
        the message that was queued first for its previous link comes first. A send step ends
        when its message has arrived. A receive ends when its message has arrived and the steps
        before it have ended. Local steps take no time. Steps that can never begin are ignored.
        Every send needs a matching receive (not checked). May be called once per object.
        """
        self._start_ready_steps()
        while self._events:
            self._now, _, step, is_to_rank = heapq.heappop(self._events)
            if is_to_rank:
                # Finish a send, and its receive if that has begun.
                receiver = self._steps.partner[step]
                self._arrived[receiver] = True
                if self._begun[receiver]:
                    self._finish_step(receiver)
                self._finish_step(step)
            else:
                receiver = self._steps.partner[step]
                self._queue_crossing(self._to_rank, self._steps.rank[receiver], step)
            self._start_ready_steps()
        return self._now

    def _start_ready_steps(self) -> None:
        """Start all ready steps in the order in which they became ready, until none is left.

        A local step, or a receive whose message has arrived, finishes immediately, which can make
        further steps ready. A send is queued for the link out of its rank. A receive whose message
        has not arrived is marked as begun and finishes later.
        """
        steps = self._steps
        while self._ready:
            step = self._ready.popleft()
            self._begun[step] = True
            if steps.is_send[step]:
                self._queue_crossing(self._from_rank, steps.rank[step], step)
            elif steps.partner[step] < 0 or self._arrived[step]:
                self._finish_step(step)

    def _queue_crossing(self, free: list[int], rank: int, step: int) -> None:
        """Occupy a link of a rank with the message of a sending step, after the earlier messages.

        `free`: times at which the links of one direction become free. The link is occupied for
        the time of the step, from now or from the time at which it becomes free, if that is
        later; `free[rank]` becomes the end of this time. An event is added for the arrival of
        the message, one latency later.
        """
        free[rank] = max(free[rank], self._now) + self._steps.time[step]
        event = free[rank] + self._latency, next(self._numbers), step, free is self._to_rank
        heapq.heappush(self._events, event)

    def _finish_step(self, step: int) -> None:
        """Finish a step; children that wait for no further step become ready."""
        for child in self._steps.children[step]:
            self._missing[child] -= 1
            if not self._missing[child]:
                self._ready.append(child)
