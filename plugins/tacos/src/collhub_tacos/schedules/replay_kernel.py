"""Compiled replay of a lockstep all-gather, step by step, on a bit per node and chunk.

Algorithm: in every step the transfers that started `lag` steps before arrive, then those of the
step start. The chunk that a link carries is read from the log of its destination, whose entries are
in order of steps and links. Invariant: `have` contains the chunks that arrived before the current
step, so a chunk is sent only after its arrival. The code is independent of the code that builds
logs, so that it verifies them. Cost: every transfer is examined at its start and at its end, and
all bits are read.

Import this module inside functions: numba takes a second to import.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from collhub_packing.compiling import kernel, part

from hub_core.columns import Int64Array


class Offence(IntEnum):
    """The fault of a transfer in a replay.

    NO_CHUNK: the log has no valid chunk for it; EARLY: the source does not hold the chunk yet;
    TWICE: the chunk has arrived at the node before; NO_LINK: its bit belongs to no link.
    """

    NONE = 0
    NO_CHUNK = 1
    EARLY = 2
    TWICE = 3
    NO_LINK = 4


# Compiled code needs plain integers.
_NONE, _NO_CHUNK, _EARLY, _TWICE, _NO_LINK = (int(offence) for offence in Offence)


class Holdings(NamedTuple):
    """State of the replay; all arrays are modified in place.

    `log`: [nodes, chunks]. `have`: uint64[nodes, words], a bit per arrived chunk. `sent`,
    `arrived`: int64[nodes], number of log entries that were sent to the node and that arrived
    there.
    """

    log: npt.NDArray[Any]
    have: npt.NDArray[np.uint64]
    sent: Int64Array
    arrived: Int64Array


@part
def _process_transfer(
    log: npt.NDArray[Any],
    have: npt.NDArray[np.uint64],
    counted: Int64Array,
    node: int,
    source: int,
    arrives: bool,
) -> int:
    """Process the arrival or the start of one transfer to `node`; return its fault.

    The chunk is the next entry of the node's log; `counted` is the number of entries so far (of
    arrivals or starts). The faults are a missing entry or chunk (`_NO_CHUNK`), a chunk that arrives
    twice (`_TWICE`), and a start before the source has the chunk (`_EARLY`). Without a fault
    (`_NONE`), the count increases, and an arriving chunk is marked in `have`.
    """
    entry = counted[node]
    num_chunks = log.shape[1]
    if entry >= num_chunks or log[node, entry] >= num_chunks:
        return _NO_CHUNK
    # Logs are uint16 or uint32; use one type from here on.
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
    """Process steps `first_step..end_step-1`, in each the arrivals before the starts.

    `carried`: per step one bit per link, eight links a byte, lowest bit first. Messages of a step
    arrive `lag` steps later. Returns (first fault, its link, the step in which the message
    started), or (`_NONE`, 0, 0). A bit after the last link is a fault too; its link is the last
    link.
    """
    log, have, sent, arrived = holdings
    for step in range(first_step, end_step):
        # Arrivals come first because a chunk can be forwarded in the step of its arrival.
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
                        # Bits after the last link only fill a byte; they must be 0.
                        if link >= len(source):
                            return _NO_LINK, len(source) - 1, row
                        node = destination[link]
                        fault = _process_transfer(log, have, counted, node, source[link], arrives)
                        if fault != _NONE:
                            return fault, link, row
                    bits >>= 1
                    link += 1
    return _NONE, 0, 0
