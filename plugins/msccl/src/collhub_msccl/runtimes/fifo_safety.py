"""From which size of transfers on the bounded buffers of connections cannot deadlock."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hub_core.model import Algorithm, Findings, InputError, match_messages
from hub_core.verification import FifoBuffers

# Transfers that the search goes through before it ends, in all.
MAX_TRANSFERS = 1 << 24


@dataclass(frozen=True, slots=True)
class FifoSafety:
    """For which sizes bounded buffers cannot deadlock.

    `min_units`: no deadlock where every transfer takes this many units or more (1: safe at every
    size), None where there is a deadlock even if each step is one transfer. `capacity`: transfers
    that a connection holds. `is_exact`: False where the search ended after `MAX_TRANSFERS`
    transfers; `min_units` is then safe, but maybe not the least.
    """

    min_units: int | None
    capacity: int
    is_exact: bool = True


def fifo_safety(algorithm: Algorithm, capacity: int) -> FifoSafety:
    """The least number of units a transfer such that no number from it on deadlocks.

    Every way in which the counts can split is tried once, from the largest transfers down. A step
    of c units in transfers of u is ceil(c / u) transfers. Raises `InputError` for algorithms whose
    messages do not match.
    """
    findings = Findings()
    messages = match_messages(algorithm.steps, findings)
    if findings.has_errors():
        raise InputError(list(findings))
    buffers = FifoBuffers(algorithm.steps, messages)
    safe: int | None = None
    examined = 0
    counts = np.maximum(algorithm.steps.count[messages.send], 1)
    for units in _distinct_splits(np.unique(counts).tolist()):
        examined += int((-(-counts // units)).sum())
        # The first way is always tried, so that there is an answer.
        if safe is not None and examined > MAX_TRANSFERS:
            return FifoSafety(safe, capacity, is_exact=False)
        if buffers.cycle(capacity, units):
            return FifoSafety(safe, capacity)
        safe = units
    return FifoSafety(1 if safe is None else safe, capacity)


def _distinct_splits(counts: list[int]) -> Iterator[int]:
    """The least units a transfer of every different way to split, largest transfers first.

    Made as they are asked for, since a count near 2^62 has 2^32 of them.
    """
    latest = 0
    ways = [_splits(count) for count in counts]
    for units in heapq.merge(*ways, reverse=True):
        if units != latest:
            latest = units
            yield units


def _splits(count: int) -> Iterator[int]:
    """The least u of every value of ceil(count / u), descending from count to 1."""
    units = count
    while units >= 1:
        pieces = -(-count // units)
        units = -(-count // pieces)
        yield units
        units -= 1
