"""Tags of messages: GOAL matches by (peer, tag) in any order, the hub by channel in FIFO order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, Int64Array, run_mask
from hub_core.model import InputError, StepTable

Int32Array = npt.NDArray[np.int32]


class _MessageSides(NamedTuple):
    """One side of all messages, sorted by (source, destination, channel), then by step."""

    row: Int64Array
    source: Int32Array
    destination: Int32Array
    channel: Int32Array


def assign_tags(steps: StepTable) -> Int64Array:
    """Tag of every step: int64, 0 for local steps.

    The channels, if they distinguish all messages of each pair of ranks; else a unique number per
    message. Raises `InputError` if sends and receives do not match.
    """
    sends = _sort_sides(steps, steps.sends, steps.rank, steps.peer)
    receives = _sort_sides(steps, steps.receives, steps.peer, steps.rank)
    # Both are sorted equally, so the k-th send matches the k-th receive.
    for send_column, receive_column in zip(sends[1:], receives[1:], strict=True):
        if not np.array_equal(send_column, receive_column):
            raise InputError(
                "sends and receives do not match: the simulation could not finish",
                cure="see the output of 'collhub verify'",
                code="unmatched-message",
            )
    tags = steps.channel.astype(np.int64)
    # txt2bin interprets -1 as any tag, and accepts no other negative number.
    if _has_equal_messages(sends) or int(tags.min(initial=0)) < 0:
        number = np.arange(len(sends.row))
        tags[sends.row] = number
        tags[receives.row] = number
    return tags


def _sort_sides(
    steps: StepTable,
    is_side: BoolArray,
    source: Int32Array,
    destination: Int32Array,
) -> _MessageSides:
    """Sorted send or receive sides of messages: the steps marked in `is_side`.

    `is_side`, `source`, `destination`: by step.
    """
    rows = np.flatnonzero(is_side)
    # The last key is the primary one; equal keys stay in the order of steps.
    keys = (
        steps.channel[rows],
        destination[rows],
        source[rows],
    )
    row = rows[np.lexsort(keys)]
    return _MessageSides(
        row,
        source[row],
        destination[row],
        steps.channel[row],
    )


def _has_equal_messages(sides: _MessageSides) -> bool:
    """Whether two messages have equal source, destination and channel."""
    is_distinct = run_mask(sides.source, sides.destination, sides.channel)
    return not bool(is_distinct.all())
