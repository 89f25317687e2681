"""Number the cpus and nics of a schedule, of which LogGOPSim tells 255 apart.

Source: txt2bin keeps each number in 8 bits, and the simulator the largest one plus 1 in 8 bits
again (Parser.hpp of LogGOPSim and ATLAHS): a cpu 256 would be cpu 0, and with a cpu 255 there
would be none.
"""

from __future__ import annotations

import numpy as np
from collhub_columns import Int64Array, ordinals

from collhub_goal.options import GoalWriteOptions
from collhub_goal.tags import Int32Array
from hub_core.model import StepTable

MOST_RESOURCES = 255


def cpus_of(steps: StepTable, options: GoalWriteOptions) -> Int64Array:
    """Number of the cpu of every step, -1 where none is stated."""
    # A cpu of GOAL does one thing at a time, as a thread block does.
    if options.cpu == "lane":
        return _folded(steps.rank, np.maximum(steps.lane, -1).astype(np.int64))
    return np.full(len(steps), -1, np.int64)


def nics_of(steps: StepTable, options: GoalWriteOptions) -> Int64Array:
    """Number of the nic of every message, -1 where none is stated."""
    # Messages of one nic go one after the other, as those of a channel do in NCCL's runtimes.
    if options.nic == "channel":
        return _folded(steps.rank, steps.channel.astype(np.int64))
    return np.full(len(steps), -1, np.int64)


def _folded(rank: Int32Array, number: Int64Array) -> Int64Array:
    """The same numbers where all fit, else those of each rank counted from 0, modulo 255.

    `number`: by step, -1 where none is stated.
    """
    if number.max(initial=-1) < MOST_RESOURCES:
        return number
    # Steps without a number share none, so that -1 stays.
    stated = number >= 0
    pairs = np.stack([rank[stated].astype(np.int64), number[stated]], axis=1)
    # Ascending by rank, then by number: equal numbers of a rank stay one resource.
    found, which = np.unique(pairs, axis=0, return_inverse=True)
    folded = number.copy()
    folded[stated] = (ordinals(found[:, 0]) % MOST_RESOURCES)[which.reshape(-1)]
    return folded
