"""Number the cpus and nics of a schedule, of which LogGOPSim distinguishes 255.

Source: txt2bin stores each number in 8 bits, and the simulator stores the largest one plus 1 in 8
bits too (Parser.hpp of LogGOPSim and ATLAHS): cpu 256 would be cpu 0, and with a cpu 255 the number
of cpus would be 0.
"""

from __future__ import annotations

import numpy as np

from collhub_goal.options import GoalWriteOptions
from collhub_goal.tags import Int32Array
from hub_core.columns import Int64Array, ordinals
from hub_core.model import StepTable

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
