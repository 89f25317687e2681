"""Tags of messages: GOAL matches by (peer, tag) in any order, the hub by channel in FIFO order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from collhub_columns import BoolArray, Int64Array, run_mask

from hub_core.model import InputError, StepTable

Int32Array = npt.NDArray[np.int32]


class _TaggedEnds(NamedTuple):
    """One end of all messages, by (source, destination, channel), then in the order of steps."""

    row: Int64Array
    source: Int32Array
    destination: Int32Array
    channel: Int32Array


def tags_of(steps: StepTable) -> Int64Array:
    """Tag of every step: int64, 0 for local steps.

    Channels where they tell all messages of a pair of ranks apart, else a number of its own for
    every message. Raises `InputError` where sends and receives do not match.
    """
    sends = _ends(steps, steps.sends, steps.rank, steps.peer)
    receives = _ends(steps, steps.receives, steps.peer, steps.rank)
    # Sorted alike, the k-th send belongs to the k-th receive.
    for one, other in zip(sends[1:], receives[1:], strict=True):
        if not np.array_equal(one, other):
            raise InputError(
                "sends and receives do not match: GOAL could not be simulated to its end",
                cure="see what 'collhub verify' says",
                code="unmatched-message",
            )
    tags = steps.channel.astype(np.int64)
    # txt2bin takes -1 for any tag, and no other negative number.
    if _has_twins(sends) or int(tags.min(initial=0)) < 0:
        number = np.arange(len(sends.row))
        tags[sends.row] = number
        tags[receives.row] = number
    return tags


def _ends(
    steps: StepTable,
    is_end: BoolArray,
    source: Int32Array,
    destination: Int32Array,
) -> _TaggedEnds:
    """The ends of messages that are steps of one direction.

    `is_end`, `source`, `destination`: by step.
    """
    rows = np.flatnonzero(is_end)
    # The last key is the first to sort by; equal keys stay in the order of steps.
    keys = (
        steps.channel[rows],
        destination[rows],
        source[rows],
    )
    row = rows[np.lexsort(keys)]
    return _TaggedEnds(
        row,
        source[row],
        destination[row],
        steps.channel[row],
    )


def _has_twins(ends: _TaggedEnds) -> bool:
    """Whether two messages have source, destination and channel in common."""
    differs_from_the_one_before = run_mask(ends.source, ends.destination, ends.channel)
    return not bool(differs_from_the_one_before.all())
