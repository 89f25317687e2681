"""Number tags of messages, cpus and nics of a schedule.

GOAL matches messages by (peer, tag) in any order, the hub by channel in FIFO order.

LogGOPSim distinguishes 255 cpus and nics. Source: txt2bin stores each number in 8 bits, and the
simulator stores the largest one plus 1 in 8 bits too (Parser.hpp of LogGOPSim and ATLAHS): cpu 256
would be cpu 0, and with a cpu 255 the number of cpus would be 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collhub_goal.options import GoalWriteOptions
from hub_core.columns import BoolArray, Int64Array, ordinals, run_mask
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


MAX_RESOURCES = 255


def number_cpus(steps: StepTable, options: GoalWriteOptions) -> Int64Array:
    """Number of the cpu of every step, int64; -1 for none."""
    # A cpu of GOAL executes one operation at a time, like a thread block.
    if options.cpu == "lane":
        return _fold_numbers(steps.rank, np.maximum(steps.lane, -1).astype(np.int64))
    return np.full(len(steps), -1, np.int64)


def number_nics(steps: StepTable, options: GoalWriteOptions) -> Int64Array:
    """Number of the nic of every step, int64; -1 for none."""
    # Messages of one nic are sent one after the other, like those of a channel in NCCL's runtimes.
    if options.nic == "channel":
        return _fold_numbers(steps.rank, steps.channel.astype(np.int64))
    return np.full(len(steps), -1, np.int64)


def _fold_numbers(rank: Int32Array, number: Int64Array) -> Int64Array:
    """The same numbers if all are below 255; else numbers of each rank counted from 0, modulo 255.

    `number`: int64 by step, -1 for none, which stays -1.
    """
    if number.max(initial=-1) < MAX_RESOURCES:
        return number
    has_number = number >= 0
    pairs = np.stack([rank[has_number].astype(np.int64), number[has_number]], axis=1)
    # Ascending by rank, then by number: equal numbers of a rank stay one resource.
    distinct_pairs, pair_of_step = np.unique(pairs, axis=0, return_inverse=True)
    folded = number.copy()
    folded[has_number] = (ordinals(distinct_pairs[:, 0]) % MAX_RESOURCES)[pair_of_step.reshape(-1)]
    return folded
