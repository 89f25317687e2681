"""Find the transfer size from which on the bounded FIFOs of connections cannot deadlock."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hub_core.model import Algorithm, Findings, InputError, match_messages
from hub_core.verification import FifoBuffers

# Total number of transfers that the search examines.
MAX_TRANSFERS = 1 << 24


@dataclass(frozen=True, slots=True)
class FifoSafety:
    """Transfer sizes for which bounded FIFOs cannot deadlock.

    `min_units`: no deadlock if every transfer moves at least this many units (1: safe at every
    size); None if there is a deadlock even with one transfer per step. `capacity`: transfers that a
    connection holds. `is_exact`: False if the search stopped after `MAX_TRANSFERS` transfers;
    `min_units` is then safe, but possibly not the minimum.
    """

    min_units: int | None
    capacity: int
    is_exact: bool = True


def compute_fifo_safety(algorithm: Algorithm, capacity: int) -> FifoSafety:
    """Find the minimum number of units per transfer from which on no number causes a deadlock.

    `capacity`: transfers that a connection holds. Tries each distinct partition of the counts into
    transfers once, from the largest transfers down, until one deadlocks. A step of c units in
    transfers of u units is ceil(c / u) transfers. Raises `InputError` for algorithms with unmatched
    messages.
    """
    findings = Findings()
    messages = match_messages(algorithm.steps, findings)
    if findings.has_errors():
        raise InputError(list(findings))
    buffers = FifoBuffers(algorithm.steps, messages)
    safe: int | None = None
    examined = 0
    counts = np.maximum(algorithm.steps.count[messages.send], 1)
    for units in _iterate_distinct_splits(np.unique(counts).tolist()):
        examined += int((-(-counts // units)).sum())
        # The first partition is always tried, so that there is a result.
        if safe is not None and examined > MAX_TRANSFERS:
            return FifoSafety(safe, capacity, is_exact=False)
        if buffers.cycle(capacity, units):
            return FifoSafety(safe, capacity)
        safe = units
    return FifoSafety(1 if safe is None else safe, capacity)


def _iterate_distinct_splits(counts: list[int]) -> Iterator[int]:
    """Yield, descending, the smallest units per transfer of each distinct split of the counts.

    With u units per transfer, a count c is split into ceil(c / u) transfers. For every distinct
    list of these numbers, over all counts, the smallest u that gives it is yielded once: first the
    largest count, last 1. `counts`: distinct, at least 1; yields nothing without counts. A
    generator, because a count near 2^62 has about 2^32 such numbers.
    """
    latest = 0
    partitions = [_iterate_splits(count) for count in counts]
    for units in heapq.merge(*partitions, reverse=True):
        if units != latest:
            latest = units
            yield units


def _iterate_splits(count: int) -> Iterator[int]:
    """Yield the minimum u for every value of ceil(count / u), descending from `count` to 1.

    For count 5: 5, 3, 2, 1 (1, 2, 3 and 5 transfers). Nothing for a count below 1.
    """
    units = count
    while units >= 1:
        transfer_count = -(-count // units)
        units = -(-count // transfer_count)
        yield units
        units -= 1
