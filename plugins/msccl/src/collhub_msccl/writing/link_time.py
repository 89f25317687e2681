"""Model the time of a file on links that its messages share, to compare variants.

Only the ranks of the machine are known, so each rank has one link to a switch and one back. A
thread block executes its steps in order. A message queues for the link of its rank (first come,
first served), crosses it completely, then the link to its receiver in the same way; its block waits
until it has arrived. Local work takes no time. Among steps that begin at once, those of lower
thread blocks come first. Cost: n log n in steps.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from itertools import count

import numpy as np

from hub_core.model import Algorithm, Findings, StepKind, match_messages

_BUFFER_TIME = 1 << 30
# Latencies of a link: half the time of a buffer, as in small calls, and almost none.
_LATENCIES = _BUFFER_TIME >> 1, _BUFFER_TIME >> 10


def compute_link_times(algorithm: Algorithm) -> tuple[int, ...]:
    """Time of a small and of a large call, where a buffer takes 2^30 time units on a link.

    The lanes of `algorithm` are thread blocks, whose order must be among the control dependencies.
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
    """Steps of an algorithm as lists: single look-ups in arrays take several times as long."""
    steps = algorithm.steps
    messages = match_messages(steps, Findings(None))
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
    """Simulation with one latency."""

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
        """Run the simulation; time at which the last step finishes."""
        self._start_ready_steps()
        while self._events:
            self._now, _, step, is_to_rank = heapq.heappop(self._events)
            if is_to_rank:
                self._deliver(step)
            else:
                receiver = self._steps.partner[step]
                self._queue_crossing(self._to_rank, self._steps.rank[receiver], step)
            self._start_ready_steps()
        return self._now

    def _start_ready_steps(self) -> None:
        """Begin all ready steps; local ones finish at once."""
        steps = self._steps
        while self._ready:
            step = self._ready.popleft()
            self._begun[step] = True
            if steps.is_send[step]:
                self._queue_crossing(self._from_rank, steps.rank[step], step)
            elif steps.partner[step] < 0 or self._arrived[step]:
                self._finish_step(step)

    def _queue_crossing(self, free: list[int], rank: int, step: int) -> None:
        """Queue a message for a rank's link."""
        free[rank] = max(free[rank], self._now) + self._steps.time[step]
        event = free[rank] + self._latency, next(self._numbers), step, free is self._to_rank
        heapq.heappush(self._events, event)

    def _deliver(self, step: int) -> None:
        """Finish a send, and its receive if that has begun."""
        receiver = self._steps.partner[step]
        self._arrived[receiver] = True
        if self._begun[receiver]:
            self._finish_step(receiver)
        self._finish_step(step)

    def _finish_step(self, step: int) -> None:
        """Finish a step, and make its children ready that wait for no further step."""
        for child in self._steps.children[step]:
            self._missing[child] -= 1
            if not self._missing[child]:
                self._ready.append(child)
