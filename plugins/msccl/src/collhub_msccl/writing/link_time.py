"""Model how long a file takes on links that its messages share, to compare ways to write it.

Nothing is known of the machine but its ranks, so each has a link to one switch and one back. A
thread block runs its steps in order. A message waits for the link of its rank, first come, first
served, crosses it as a whole, then the link to its receiver likewise; until it has arrived, its
block waits. Local work takes no time. Of steps that begin at once, those of lower thread blocks are
first. Cost: n log n in steps.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from itertools import count

import numpy as np

from hub_core.model import Algorithm, Findings, StepKind, match_messages

_BUFFER_TIME = 1 << 30
# Latency of a link: half the time of a buffer, as in small calls, and next to nothing.
_LATENCIES = _BUFFER_TIME >> 1, _BUFFER_TIME >> 10


def link_times(algorithm: Algorithm) -> tuple[int, ...]:
    """Times of a small and of a large call, where a buffer takes 2^30 on a link.

    Lanes are thread blocks, whose order is among the control dependencies.
    """
    steps = _steps_of(algorithm)
    return tuple(_LinkRun(steps, latency).time() for latency in _LATENCIES)


@dataclass(frozen=True, slots=True)
class _LinkSteps:
    """Steps, lists of one entry each.

    `time`: on a link; `partner`: the other end of a message, -1 for none; `waits`: number of steps
    that it waits for; `children`: those that wait for it.
    """

    num_ranks: int
    rank: list[int]
    is_send: list[bool]
    time: list[int]
    partner: list[int]
    waits: list[int]
    children: list[list[int]]


def _steps_of(algorithm: Algorithm) -> _LinkSteps:
    """The steps as lists: single look-ups in arrays take several times as long."""
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
    """One run with one latency."""

    def __init__(self, steps: _LinkSteps, latency: int) -> None:
        self._steps = steps
        self._latency = latency
        self._now = 0
        self._missing = steps.waits.copy()
        self._ready = deque(step for step, waits in enumerate(steps.waits) if not waits)
        # When the links from and to every rank are free.
        self._from_rank = [0] * steps.num_ranks
        self._to_rank = [0] * steps.num_ranks
        # Messages on their way to the end of a link: (time, number, sending step, whether to rank).
        self._events: list[tuple[int, int, int, bool]] = []
        self._numbers = count()
        self._begun = [False] * len(steps.rank)
        self._arrived = [False] * len(steps.rank)

    def time(self) -> int:
        """When the last step ends."""
        self._begin_all()
        while self._events:
            self._now, _, step, is_to_rank = heapq.heappop(self._events)
            if is_to_rank:
                self._deliver(step)
            else:
                receiver = self._steps.partner[step]
                self._cross(self._to_rank, self._steps.rank[receiver], step)
            self._begin_all()
        return self._now

    def _begin_all(self) -> None:
        """Let all steps begin that can; local ones end at once."""
        steps = self._steps
        while self._ready:
            step = self._ready.popleft()
            self._begun[step] = True
            if steps.is_send[step]:
                self._cross(self._from_rank, steps.rank[step], step)
            elif steps.partner[step] < 0 or self._arrived[step]:
                self._end(step)

    def _cross(self, free: list[int], rank: int, step: int) -> None:
        """Put a message in the line for a rank's link."""
        free[rank] = max(free[rank], self._now) + self._steps.time[step]
        event = free[rank] + self._latency, next(self._numbers), step, free is self._to_rank
        heapq.heappush(self._events, event)

    def _deliver(self, step: int) -> None:
        """End a send, and its receive if that has begun."""
        receiver = self._steps.partner[step]
        self._arrived[receiver] = True
        if self._begun[receiver]:
            self._end(receiver)
        self._end(step)

    def _end(self, step: int) -> None:
        """End a step."""
        for child in self._steps.children[step]:
            self._missing[child] -= 1
            if not self._missing[child]:
                self._ready.append(child)
