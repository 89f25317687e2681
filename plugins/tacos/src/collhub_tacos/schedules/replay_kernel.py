"""Replay a lockstep all-gather step by step on a bit per node and chunk.

Algorithm: in every step the transfers that started `lag` steps before arrive, then those of the
step leave; what a link carries is read off the log of its destination, whose entries stand in the
order of steps and links. Invariant: `have` holds what has arrived before the present step, so that
a chunk is sent only from where it is. Written without looking at what makes the logs, as a check
of it. Cost: one look at every transfer where it starts and one where it ends, and at all bits.

Import it late: importing numba takes a second.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from collhub_packing.compiling import kernel, part

from hub_core.columns import Int64Array


class Offence(IntEnum):
    """What can be wrong with a transfer."""

    NONE = 0
    NO_CHUNK = 1
    EARLY = 2
    TWICE = 3
    NO_LINK = 4


# Compiled code takes the members as plain integers.
_NONE, _NO_CHUNK, _EARLY, _TWICE, _NO_LINK = (int(offence) for offence in Offence)


class Holdings(NamedTuple):
    """State of the replay; all arrays change in place.

    `log`: [nodes, chunks]; `have`: uint64[nodes, words], a bit per chunk that has arrived; `sent`,
    `arrived`: int64[nodes], entries of the log that have been put on a link to the node, and that
    have arrived there.
    """

    log: npt.NDArray[Any]
    have: npt.NDArray[np.uint64]
    sent: Int64Array
    arrived: Int64Array


@part
def _offence(
    log: npt.NDArray[Any],
    have: npt.NDArray[np.uint64],
    counted: Int64Array,
    node: int,
    source: int,
    arrives: bool,
) -> int:
    """Let one transfer to a node arrive or leave; return what is wrong with it.

    `counted`: entries of the logs before it, `arrived` or `sent`.
    """
    entry = counted[node]
    num_chunks = log.shape[1]
    if entry >= num_chunks or log[node, entry] >= num_chunks:
        return _NO_CHUNK
    # Logs are uint16 or uint32: one type from here on.
    chunk = np.int64(log[node, entry])
    bit = np.uint64(1) << np.uint64(chunk & 63)
    if arrives:
        if have[node, chunk >> 6] & bit:
            return _TWICE
        have[node, chunk >> 6] |= bit
    elif not have[source, chunk >> 6] & bit:
        return _EARLY
    counted[node] = entry + 1
    return _NONE


@kernel
def replay_steps(
    source: Int64Array,
    destination: Int64Array,
    holdings: Holdings,
    carried: npt.NDArray[np.uint8],
    lag: int,
    first_step: int,
    end_step: int,
) -> tuple[int, int, int]:
    """Do steps `first_step..end_step-1`.

    Returns the first offence with its link and the step in which it was sent.
    """
    log, have, sent, arrived = holdings
    for step in range(first_step, end_step):
        # What arrives in a step can go on in it: arrivals come first.
        for arrives in (True, False):
            row = step - lag if arrives else step
            if row < 0 or row >= carried.shape[0]:
                continue
            counted = arrived if arrives else sent
            for byte in range(carried.shape[1]):
                bits = carried[row, byte]
                link = byte * 8
                while bits:
                    if bits & 1:
                        # Bits behind the last link fill a byte; none may be set.
                        if link >= len(source):
                            return _NO_LINK, len(source) - 1, row
                        node = destination[link]
                        found = _offence(log, have, counted, node, source[link], arrives)
                        if found != _NONE:
                            return found, link, row
                    bits >>= 1
                    link += 1
    return _NONE, 0, 0
