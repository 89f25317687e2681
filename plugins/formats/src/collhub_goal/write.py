"""Write an algorithm for one size, or a flat job, as a GOAL schedule, and list the losses.

A flat job has only computations and messages. The losses of an algorithm are the properties that
differ after the written schedule has been read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from collhub_goal.plugin import GoalWriteOptions
from collhub_goal.read import build_algorithm
from collhub_goal.schedule import (
    MAX_RESOURCES,
    GoalOperation,
    GoalSchedule,
    assign_tags,
    format_goal,
    number_cpus,
    number_nics,
)
from hub_core.columns import BoolArray, Int64Array, first_positions, labels
from hub_core.model import (
    Algorithm,
    Loss,
    NodeKind,
    StepKind,
    StepTable,
    UsageError,
    Workload,
    message_bytes,
)
from hub_core.plugin_api import Artifact, NoOptions, WriteResult
from hub_core.schedules import work_times_ns

DEFAULT_BYTES = 1 << 20


# 18 digits: the maximum that the grammar of `collhub_goal.schedule` reads.
MAX_BYTES = 10**18 - 1


_MESSAGES = (NodeKind.SEND, NodeKind.RECV)


# Feature, consequence, and the fields of an algorithm of which at least one changes.
_FIELD_LOSSES: Sequence[tuple[str, str, frozenset[str]]] = (
    (
        "steps: buffers, offsets and kinds of local work",
        "GOAL contains only sizes and times; "
        "the file can be read back and simulated, but not verified or run",
        frozenset(
            {
                "kind",
                "src_buffer",
                "src_offset",
                "dst_buffer",
                "dst_offset",
                "count",
                "rank",
                "rank_indptr",
            }
        ),
    ),
    (
        "collective: kind, root, contract, unit count, in place, out of place, reduce op",
        "a schedule does not define its result; it is read back as custom, one unit per byte",
        frozenset({"root", "contract", "unit_count", "in_place", "out_of_place", "reduce_op"}),
    ),
    ("scratch units", "there are no buffers", frozenset({"scratch_units"})),
    (
        "collective bytes",
        "the size is not written; it is read back as the most bytes that a rank moves",
        frozenset({"collective_bytes"}),
    ),
    ("extensions", "GOAL cannot contain them", frozenset({"extensions"})),
)


_RENUMBERED = (
    f"LogGOPSim distinguishes {MAX_RESOURCES} {{0}}s, so those of each rank are renumbered, "
    f"and if a rank has more {{1}} than that, some share a {{0}}"
)


def write(algorithm: Algorithm, options: GoalWriteOptions) -> WriteResult:
    """Write an algorithm as one GOAL file, for the option `size` (bytes) or else its own size.

    An algorithm without a size is written for 1 MiB (`DEFAULT_BYTES`), which is reported as the
    last loss. The other losses are those of `find_losses`, in its order. The result has one
    artifact named "", whose text is formatted when it is loaded. It declares that source lines are
    replaced by those of the file.

    Errors are raised here, not on loading. It is `UsageError` if the data of a step are too large
    for GOAL (`MAX_BYTES`). It is `InputError` for sends and receives that do not match
    (`unmatched-message`) and for the other errors of `build_schedule`.
    """
    size = options.size or algorithm.collective_bytes
    schedule = build_schedule(algorithm, DEFAULT_BYTES if size is None else size, options)
    losses = list(find_losses(algorithm, schedule, options))
    if size is None:
        cure = "the algorithm has no size, so it is written for 1 MiB; choose one with -O size="
        losses.append(Loss("size", "all messages", cure))
    return WriteResult([Artifact("", partial(format_goal, schedule))], losses, ("source line",))


def write_job(workload: Workload, options: NoOptions) -> WriteResult:
    """Write a job as one GOAL file, in which every node is one operation.

    Sends and receives stay messages. All other nodes become a `calc` of their duration, 0 for a
    marker without one. Raises `UsageError` for the first collective (code `collective`), which GOAL
    does not have, otherwise for the first computation, load or store without a duration (code
    `duration`).

    The losses are, in this order, each only if the content exists: names; process groups; numbers
    of operations; kinds of loads, stores and markers; control dependencies, which are written like
    data dependencies. The result has one artifact named "", whose text is formatted when it is
    loaded. A job without nodes gives empty blocks of all ranks.
    """
    schedule = build_job_schedule(workload)
    # List the kinds of content of a job that the schedule does not represent, each only if present.
    nodes = workload.nodes
    losses = []
    if workload.names:
        losses.append(Loss("names", "all nodes", "lines have labels by number"))
    if workload.groups:
        losses.append(Loss("process groups", "all", "no message belongs to one"))
    if (nodes.operations >= 0).any():
        losses.append(Loss("operations", "computations", "only their durations are written"))
    if nodes.is_kind(NodeKind.LOAD, NodeKind.STORE, NodeKind.MARKER).any():
        losses.append(Loss("kinds", "loads, stores and markers", "written as calculations"))
    if len(nodes.control_indices):
        losses.append(Loss("control dependencies", "all", "written like data dependencies"))
    return WriteResult([Artifact("", partial(format_goal, schedule))], losses)


def build_schedule(algorithm: Algorithm, size: int, options: GoalWriteOptions) -> GoalSchedule:
    """Build the GOAL schedule of an algorithm for a collective of `size` bytes, in step order.

    A step becomes a send, a recv, or a calc for local work. A reducing receive becomes a recv, then
    a calc on the same cpu, for which successors wait. All dependencies become `requires`.

    - message: ceil(count x `size` / unit count) bytes, tag of `assign_tags`, nic of `number_nics`
    - calc: ns of the step. Without a duration, a COPY or reduction takes bytes / bandwidth of the
      options (at least 1), any other work 1. Peer and nic are -1, the tag is 0.
    - cpu: that of `number_cpus`

    Raises `UsageError` if a step has more than `MAX_BYTES` bytes, and `InputError`:
    `unmatched-message`, `size-range` (2^63 bytes in total), `too-long` (work of 2^62 ns).
    """
    steps = algorithm.steps
    # Bytes of every step, for `size` bytes in total.
    count, unit_count = algorithm.steps.count, algorithm.collective.unit_count
    # In Python's integers, because the product may exceed int64.
    if int(count.max(initial=0)) * size // unit_count > MAX_BYTES:
        raise UsageError(
            "a message has more bytes than GOAL can represent",
            cure="choose a smaller size",
        )
    sizes = message_bytes(size, unit_count, count)
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


def build_job_schedule(workload: Workload) -> GoalSchedule:
    """Convert every node of a flat job to one operation, in the order of the nodes.

    - Sends and receives keep bytes and peer, and have cpu -1. Their tag is the number of their pair
      (tag, bytes): all pairs of the job's nodes are numbered from 0 in ascending order, so messages
      with equal pairs have equal tags.
    - All other nodes become a calc of their duration in ns; a marker without a duration takes 0.
      The cpu is 1 for nodes on the host, otherwise 0. The tag is 0, the peer -1.

    No operation has a nic or a line (-1). Data and control dependencies become `requires`. Raises
    `UsageError`: code `collective` for the first collective, then code `duration` for the first
    computation, load or store without a duration. The workload is not changed.
    """
    nodes = workload.nodes
    # Refuse the first collective, or the first work without a duration (-1).
    is_collective = nodes.is_kind(NodeKind.COLLECTIVE)
    if is_collective.any():
        node = nodes.identity[np.argmax(is_collective)]
        message = f"node {node} is a collective, which GOAL does not have"
        raise UsageError(message, cure="run 'collhub expand' first", code="collective")
    is_work = nodes.is_kind(NodeKind.COMPUTE, NodeKind.LOAD, NodeKind.STORE)
    is_timeless = is_work & (nodes.duration_ns < 0)
    if is_timeless.any():
        node = nodes.identity[np.argmax(is_timeless)]
        message = f"node {node} has no duration"
        cure = "create the job with durations: GOAL has no rates of operations"
        raise UsageError(message, cure=cure, code="duration")
    is_message = nodes.is_kind(*_MESSAGES)
    operation = np.full(len(nodes), int(GoalOperation.CALC), np.int64)
    operation[nodes.is_kind(NodeKind.SEND)] = GoalOperation.SEND
    operation[nodes.is_kind(NodeKind.RECV)] = GoalOperation.RECV
    parent, child = nodes.edges()
    unstated = np.full(len(nodes), -1, np.int64)
    no_edges = np.zeros(0, np.int64)
    return GoalSchedule(
        workload.num_ranks,
        rank=nodes.rank.astype(np.int64),
        operation=operation,
        amount=np.where(is_message, nodes.bytes, nodes.duration_ns.clip(0)),
        peer=np.where(is_message, nodes.peer, -1).astype(np.int64),
        # Messages of one pair match in order, and those of jobs by size too.
        tag=np.where(is_message, labels(nodes.tag, nodes.bytes), 0),
        # One computation at a time on the device, and one on the host, as in ASTRA-sim.
        cpu=np.where(is_message, -1, np.where(nodes.on_host, 1, 0)).astype(np.int64),
        nic=unstated,
        line=unstated,
        parent=parent,
        child=child,
        early_parent=no_edges,
        early_child=no_edges,
    )


def find_losses(
    algorithm: Algorithm, schedule: GoalSchedule, options: GoalWriteOptions
) -> Iterator[Loss]:
    """Yield the losses of writing an algorithm as this schedule; errors are raised on iteration.

    The schedule is read back (`build_algorithm`, with its errors). First comes a loss for each
    entry of `_FIELD_LOSSES` with a field that differs. Then, each only if its number is above 0:

    1. `channel`: steps whose channel is not their tag (`assign_tags`). Raises `InputError`
       (`unmatched-message`) if sends and receives do not match.
    2. `control dependencies`: all of them; they become data dependencies.
    3. `lane`: with `cpu=lane`, steps whose lane is not their cpu, as a lane of 255 or more
       renumbers all lanes; otherwise all steps with a lane of 0 or more.
    4. `nic`, only with `nic=channel`: messages whose channel is not their nic, as a channel of 255
       or more renumbers all channels.
    5. `duration`: local steps and reducing receives without a duration.
    """
    read_back = build_algorithm(schedule, None, algorithm.provenance)
    changed = set(algorithm.differences(read_back))
    for feature, consequence, parts in _FIELD_LOSSES:
        if changed & parts:
            yield Loss(feature, "the entire schedule", consequence)
    steps = algorithm.steps
    renumbered = np.count_nonzero(assign_tags(steps) != steps.channel)
    if renumbered:
        yield Loss(
            "channel",
            f"{renumbered} steps",
            "every message gets a unique tag, which is read back as its channel",
        )
    controls = len(steps.control_indices)
    if controls:
        yield Loss(
            "control dependencies",
            f"{controls} dependencies",
            "every dependency is written as requires, and read back as data",
        )
    has_lane = steps.lane >= 0
    lanes = np.count_nonzero(has_lane)
    if lanes and options.cpu != "lane":
        yield Loss("lane", f"{lanes} steps", "not written because of the option cpu")
    elif renumbered := np.count_nonzero(has_lane & (number_cpus(steps, options) != steps.lane)):
        yield Loss("lane", f"{renumbered} steps", _RENUMBERED.format("cpu", "lanes"))
    is_message = steps.sends | steps.receives
    is_moved = is_message & (number_nics(steps, options) != steps.channel)
    if options.nic == "channel" and is_moved.any():
        where = f"{np.count_nonzero(is_moved)} messages"
        yield Loss("nic", where, _RENUMBERED.format("nic", "channels"))
    # A reducing receive is both a message and local work.
    is_only_message = steps.sends | steps.is_kind(StepKind.RECV)
    has_no_time: BoolArray = steps.duration_ns < 0
    untimed = np.count_nonzero(~is_only_message & has_no_time)
    if untimed:
        yield Loss(
            "duration",
            f"{untimed} steps",
            "the time of local work without a duration is computed from its bytes, "
            "or 1 ns if no bandwidth is given",
        )


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
        """Decide which operations (rows) the steps become, in their order.

        A RECV_REDUCE becomes two rows: first its message, then its sum. Any other step becomes one
        row. `is_message` is True for the rows of sends, receives and of the message of a
        RECV_REDUCE. `first` and `last` of a step are equal unless it becomes two rows.
        """
        is_fused = steps.is_kind(StepKind.RECV_REDUCE)
        rows_of_step = 1 + is_fused.astype(np.int64)
        first = first_positions(rows_of_step)
        last = first + is_fused
        step = np.repeat(np.arange(len(steps)), rows_of_step)
        is_message = np.zeros(len(step), np.bool_)
        is_message[first[steps.sends | steps.receives]] = True
        return cls(step, is_message, first, last)

    def edges(self, steps: StepTable) -> tuple[Int64Array, Int64Array]:
        """Return the dependencies between rows as two int64 arrays (parent, child).

        First come the dependencies of the steps, in the order of `StepTable.edges`: from the
        last row of the parent to the first row of the child. Then, for each reducing receive,
        its sum depends on its message.
        """
        parent, child = steps.edges()
        is_fused = self.first < self.last
        return (
            np.concatenate([self.last[parent], self.first[is_fused]]),
            np.concatenate([self.first[child], self.last[is_fused]]),
        )
