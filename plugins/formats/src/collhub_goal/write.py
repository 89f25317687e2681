"""Write an algorithm as a GOAL schedule for one size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from collhub_goal.losses import find_losses
from collhub_goal.options import GoalWriteOptions
from collhub_goal.resources import number_cpus, number_nics
from collhub_goal.schedule import GoalOperation, GoalSchedule
from collhub_goal.tags import assign_tags
from collhub_goal.text import format_goal
from hub_core.columns import BoolArray, Int64Array, first_positions
from hub_core.model import Algorithm, Loss, StepKind, StepTable, UsageError, message_bytes
from hub_core.plugin_api import Artifact, WriteResult
from hub_core.schedules import work_times_ns

DEFAULT_BYTES = 1 << 20
# 18 digits: the maximum that the grammar of `collhub_goal.grammar` reads.
MAX_BYTES = 10**18 - 1


def write(algorithm: Algorithm, options: GoalWriteOptions) -> WriteResult:
    """Writer of the format `goal`: one file.

    Losses are the differences to the algorithm that would be read back. Raises `InputError` if
    sends and receives do not match, and `UsageError` for a size that GOAL cannot represent.
    """
    size = options.size or algorithm.collective_bytes
    schedule = build_schedule(algorithm, DEFAULT_BYTES if size is None else size, options)
    losses = list(find_losses(algorithm, schedule, options))
    if size is None:
        cure = "the algorithm has no size, so it is written for 1 MiB; choose one with -O size="
        losses.append(Loss("size", "all messages", cure))
    return WriteResult([Artifact("", partial(format_goal, schedule))], losses, ("source line",))


def build_schedule(algorithm: Algorithm, size: int, options: GoalWriteOptions) -> GoalSchedule:
    """Schedule of an algorithm for `size` bytes.

    A reducing receive becomes a recv followed by a calc, on which its successors depend. Raises
    `InputError` if sends and receives do not match, and `UsageError` for a size that GOAL cannot
    represent.
    """
    steps = algorithm.steps
    sizes = _compute_sizes(algorithm, size)
    work_ns = work_times_ns(steps, sizes, options.reduce_bandwidth, options.copy_bandwidth)
    tags = assign_tags(steps)
    rows = _OperationRows.of(steps)
    step, is_message = rows.step, rows.is_message
    # The message of a reducing receive is a recv.
    kind = np.where(steps.sends[step], GoalOperation.SEND, GoalOperation.RECV)
    parent, child = rows.edges(steps)
    nothing = np.zeros(0, np.int64)
    return GoalSchedule(
        algorithm.num_ranks,
        rank=steps.rank[step].astype(np.int64),
        operation=np.where(is_message, kind, GoalOperation.CALC).astype(np.int64),
        amount=np.where(is_message, sizes[step], work_ns[step]),
        peer=np.where(is_message, steps.peer[step], -1).astype(np.int64),
        tag=np.where(is_message, tags[step], 0),
        # The calc of a reducing receive runs on the cpu of its recv.
        cpu=number_cpus(steps, options)[step],
        nic=np.where(is_message, number_nics(steps, options)[step], -1),
        line=np.full(len(step), -1, np.int64),
        parent=parent,
        child=child,
        early_parent=nothing,
        early_child=nothing,
    )


def _compute_sizes(algorithm: Algorithm, size: int) -> Int64Array:
    """Bytes of every step, for `size` bytes in total. Raises `UsageError` above 18 digits."""
    count, unit_count = algorithm.steps.count, algorithm.collective.unit_count
    # In Python's integers, because the product may exceed int64.
    if int(count.max(initial=0)) * size // unit_count > MAX_BYTES:
        raise UsageError(
            "a message has more bytes than GOAL can represent",
            cure="choose a smaller size",
        )
    return message_bytes(size, unit_count, count)


@dataclass(frozen=True, slots=True)
class _OperationRows:
    """Rows of a schedule for the steps of an algorithm: two per reducing receive, else one.

    `step`: int64, step of every row; `is_message`: bool by row; `first`, `last`: int64, first and
    last row of every step.
    """

    step: Int64Array
    is_message: BoolArray
    first: Int64Array
    last: Int64Array

    @classmethod
    def of(cls, steps: StepTable) -> _OperationRows:
        """Rows of all steps, in their order."""
        is_fused = steps.is_kind(StepKind.RECV_REDUCE)
        rows_of_step = 1 + is_fused.astype(np.int64)
        first = first_positions(rows_of_step)
        last = first + is_fused
        step = np.repeat(np.arange(len(steps)), rows_of_step)
        is_message = np.zeros(len(step), np.bool_)
        is_message[first[steps.sends | steps.receives]] = True
        return cls(step, is_message, first, last)

    def edges(self, steps: StepTable) -> tuple[Int64Array, Int64Array]:
        """(parent, child) of all dependencies of an algorithm, and within its reducing receives.

        A step begins with its first row and finishes with its last one.
        """
        parent, child = steps.edges()
        is_fused = self.first < self.last
        return (
            np.concatenate([self.last[parent], self.first[is_fused]]),
            np.concatenate([self.first[child], self.last[is_fused]]),
        )
