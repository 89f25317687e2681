"""Write an algorithm as a GOAL schedule for one size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from collhub_columns import BoolArray, Int64Array, first_positions
from collhub_schedules import work_times_ns

from collhub_goal.losses import losses_of
from collhub_goal.options import GoalWriteOptions
from collhub_goal.resources import cpus_of, nics_of
from collhub_goal.schedule import GoalOperation, GoalSchedule
from collhub_goal.tags import tags_of
from collhub_goal.text import goal_text
from hub_core.model import Algorithm, Loss, StepKind, StepTable, UsageError, message_bytes
from hub_core.plugin_api import Artifact, WriteResult

DEFAULT_BYTES = 1 << 20
# 18 digits, the most that the grammar of `collhub_goal.grammar` reads.
LARGEST_BYTES = 10**18 - 1


def write(algorithm: Algorithm, options: GoalWriteOptions) -> WriteResult:
    """Writer of the format `goal`: one file.

    Losses are whatever the algorithm that would be read back differs in. Raises `InputError` where
    sends and receives do not match, `UsageError` for a size that GOAL cannot state.
    """
    size = options.size or algorithm.collective_bytes
    schedule = schedule_of(algorithm, DEFAULT_BYTES if size is None else size, options)
    losses = list(losses_of(algorithm, schedule, options))
    if size is None:
        cure = "the algorithm states no size, so it is written for 1 MiB; choose one with -O size="
        losses.append(Loss("size", "all messages", cure))
    return WriteResult([Artifact("", partial(goal_text, schedule))], losses, ("source line",))


def schedule_of(algorithm: Algorithm, size: int, options: GoalWriteOptions) -> GoalSchedule:
    """The schedule of an algorithm for `size` bytes.

    A reducing receive becomes a recv, and a calc after it for which others wait. Raises
    `InputError` where sends and receives do not match, `UsageError` for a size that GOAL cannot
    state.
    """
    steps = algorithm.steps
    sizes = _sizes(algorithm, size)
    work_ns = work_times_ns(steps, sizes, options.reduce_bandwidth, options.copy_bandwidth)
    tags = tags_of(steps)
    rows = _OperationRows.of(steps)
    step, is_message = rows.step, rows.is_message
    # A message of a fused step is its receive, which this finds as no send.
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
        # A calc of a fused step runs on the cpu of its recv.
        cpu=cpus_of(steps, options)[step],
        nic=np.where(is_message, nics_of(steps, options)[step], -1),
        line=np.full(len(step), -1, np.int64),
        parent=parent,
        child=child,
        early_parent=nothing,
        early_child=nothing,
    )


def _sizes(algorithm: Algorithm, size: int) -> Int64Array:
    """Bytes of every step, for `size` bytes in all. Raises `UsageError`."""
    count, unit_count = algorithm.steps.count, algorithm.collective.unit_count
    # In Python's integers, as the product may be larger than any column holds.
    if int(count.max(initial=0)) * size // unit_count > LARGEST_BYTES:
        raise UsageError(
            "a message has more bytes than GOAL can state",
            cure="choose a smaller size",
        )
    return message_bytes(size, unit_count, count)


@dataclass(frozen=True, slots=True)
class _OperationRows:
    """Rows of a schedule for the steps of an algorithm: two for a reducing receive, else one.

    `step`: int64, the step of every row. `is_message`: bool, by row. `first`, `last`: int64, the
    rows of every step.
    """

    step: Int64Array
    is_message: BoolArray
    first: Int64Array
    last: Int64Array

    @classmethod
    def of(cls, steps: StepTable) -> _OperationRows:
        """The rows of all steps, in their order."""
        is_fused = steps.is_kind(StepKind.RECV_REDUCE)
        rows_of_step = 1 + is_fused.astype(np.int64)
        first = first_positions(rows_of_step)
        last = first + is_fused
        step = np.repeat(np.arange(len(steps)), rows_of_step)
        is_message = np.zeros(len(step), np.bool_)
        is_message[first[steps.sends | steps.receives]] = True
        return cls(step, is_message, first, last)

    def edges(self, steps: StepTable) -> tuple[Int64Array, Int64Array]:
        """(parent, child) of all dependencies of an algorithm, and within its fused steps.

        A step begins with its first row and has ended with its last one.
        """
        parent, child = steps.edges()
        is_fused = self.first < self.last
        return (
            np.concatenate([self.last[parent], self.first[is_fused]]),
            np.concatenate([self.first[child], self.last[is_fused]]),
        )
