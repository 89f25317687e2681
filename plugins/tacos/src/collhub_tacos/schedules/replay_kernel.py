"""Replay a lockstep all-gather step by step on a bit per node and chunk. Import it late: importing numba takes a second."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collhub_tacos.compiling import kernel

Int64Array = npt.NDArray[np.int64]


class Offence(IntEnum):
    """What can be wrong with a transfer."""

    NONE = 0
    NO_CHUNK = 1
    EARLY = 2
    TWICE = 3
    NO_LINK = 4


_NONE, _NO_CHUNK, _EARLY, _TWICE, _NO_LINK = (int(offence) for offence in Offence)


class Holdings(NamedTuple):
    """State of the replay; all arrays change in place.

    `log`: [nodes, chunks]; `have`: uint64[nodes, words], a bit per chunk that has arrived; `sent`, `arrived`:
    int64[nodes], entries of the log that have been put on a link to the node, and that have arrived there.
    """

    log: npt.NDArray[Any]
    have: npt.NDArray[np.uint64]
    sent: Int64Array
    arrived: Int64Array


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
    """Do steps `first_step..end_step-1`: what was sent `lag` steps before arrives, then what is sent now leaves.

    Returns the first offence with its link and the step in which it was sent.
    """
    log, have, sent, arrived = holdings
    num_chunks = log.shape[1]
    for step in range(first_step, end_step):
        for arrives in (True, False):
            row = step - lag if arrives else step
            if row < 0 or row >= carried.shape[0]:
                continue
            for byte in range(carried.shape[1]):
                bits = carried[row, byte]
                link = byte * 8
                while bits:
                    if bits & 1:
                        if link >= len(source):
                            return _NO_LINK, len(source) - 1, row
                        node = destination[link]
                        entry = arrived[node] if arrives else sent[node]
                        if entry >= num_chunks or log[node, entry] >= num_chunks:
                            return _NO_CHUNK, link, row
                        chunk = np.int64(log[node, entry])
                        bit = np.uint64(1) << np.uint64(chunk & 63)
                        if arrives:
                            if have[node, chunk >> 6] & bit:
                                return _TWICE, link, row
                            have[node, chunk >> 6] |= bit
                            arrived[node] += 1
                        else:
                            if not have[source[link], chunk >> 6] & bit:
                                return _EARLY, link, row
                            sent[node] += 1
                    bits >>= 1
                    link += 1
    return _NONE, 0, 0
