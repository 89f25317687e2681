"""Nodes, idle times and groups of one rank, before the ranks are joined to a job.

Idle times are defined as in `get_idle_time_breakdown` of facebookresearch/HolisticTraceAnalysis.
A gap between two consecutive kernels or copies of a stream is

- host wait, if the second one was launched after the first one ended: the queue was empty;
- kernel wait, if it was queued and the gap is below the usual delay between two kernels;
- other: it was queued and waited longer, usually for another stream.

A rank without a file is assumed to do the same as a rank with a file, in its corresponding groups.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from collhub_pytorch.calls import Call
from hub_core.columns import Int64Array
from hub_core.model import InputError, Location, NodeKind

# Delay between consecutive kernels in HolisticTraceAnalysis; an option multiplies it.
KERNEL_DELAY_NS = 30


@dataclass(frozen=True, slots=True)
class StreamIdle:
    """Idle time of one stream in ns, from its first start to its last end."""

    device: int
    stream: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


def measure_idle_times(
    start: Int64Array,
    end: Int64Array,
    stream: Int64Array,
    issued_at: Int64Array,
    kernel_delay_ns: float,
    names: Sequence[tuple[int, int]],
) -> tuple[StreamIdle, ...]:
    """Measure the idle time in ns of every stream of a rank, by reason.

    Idle time is a gap between an activity of a stream and the next one by start. Activities
    that overlap have no gap. The first rule that applies gives the reason:

    1. host wait: the second activity was launched after the first one ended
    2. kernel wait: the gap is below `kernel_delay_ns`, the usual delay between kernels
    3. other

    `start`, `end`, `stream`, `issued_at` (launch): int64[activities], sorted by start,
    times in ns. A launch of -1 (unknown) is no host wait. `names`: (device, stream) of each
    number in `stream`. The result has one entry per number that occurs, ascending. A stream
    with one activity has the times 0.
    """
    idle_times = []
    for number in np.unique(stream).tolist():
        rows = np.flatnonzero(stream == number)
        ready = end[rows[:-1]]
        gap = np.maximum(start[rows[1:]] - ready, 0)
        is_host_wait = issued_at[rows[1:]] > ready
        is_kernel_wait = ~is_host_wait & (gap < kernel_delay_ns)
        sums = [gap[is_host_wait], gap[is_kernel_wait], gap[~is_host_wait & ~is_kernel_wait]]
        idle_times.append(StreamIdle(*names[number], *(int(gaps.sum()) for gaps in sums)))
    return tuple(idle_times)


NONE = -1


def _column() -> array[int]:
    return array("q")


@dataclass(slots=True)
class RankFacts:
    """Facts about one file besides its nodes.

    `has_device`: it records the work of a device. `unknown_kernels`: kernels of communication whose
    collective is unknown; `unrecorded`: collectives without a recorded time; `host_calls`:
    collectives of libraries of the host next to a device; `unknown_calls`:
    annotations of communication that name no known collective, counted by name.
    `memory_names`, `communication_names`: names of nodes that copy or set memory, and of nodes that
    communicate although their collective is unknown. `idle`: idle time by stream, None without a
    device.
    """

    has_device: bool = False
    unknown_kernels: int = 0
    unrecorded: int = 0
    host_calls: int = 0
    unknown_calls: dict[str, int] = field(default_factory=dict)
    memory_names: frozenset[str] = frozenset()
    communication_names: frozenset[str] = frozenset()
    idle: tuple[StreamIdle, ...] | None = None


@dataclass(slots=True)
class RankNodes:
    """Columns of nodes in time order, and edges between their rows.

    `name`: index of `names`, `call`: index of `calls`, -1 without one. `duration_ns`: -1 without a
    recorded time. `before`, `after`: ends of the edges; `is_stated`: 0 for those that are assumed.
    `facts`: facts about the file besides its nodes.
    """

    file: str
    rank: int
    world_size: int | None
    names: Sequence[str]
    calls: Sequence[Call]
    kind: array[int] = field(default_factory=_column)
    name: array[int] = field(default_factory=_column)
    duration_ns: array[int] = field(default_factory=_column)
    on_host: array[int] = field(default_factory=_column)
    call: array[int] = field(default_factory=_column)
    before: array[int] = field(default_factory=_column)
    after: array[int] = field(default_factory=_column)
    is_stated: array[int] = field(default_factory=_column)
    facts: RankFacts = field(default_factory=RankFacts)

    def add(self, name: int, duration_ns: int, *, on_host: bool, call: int = NONE) -> int:
        """Append a node and return its row.

        `name`: index in `names`, -1 for none. `duration_ns`: -1 if unknown. `call`: index in
        `calls`; with a call it is a node of communication, of the call's kind, without (-1) a
        computation. The node has no dependencies until `link` adds them.
        """
        kind = NodeKind.COMPUTE if call < 0 else self.calls[call].kind
        self.kind.append(int(kind))
        self.name.append(name)
        self.duration_ns.append(duration_ns)
        self.on_host.append(on_host)
        self.call.append(call)
        return len(self.kind) - 1

    def link(self, before: int, after: int, *, is_stated: bool = True) -> None:
        """Add an edge by which the node in row `after` depends on the node in row `before`.

        `is_stated`: true if the trace states the dependency, false if it is only assumed. The
        edge is appended without a check: repeated edges are kept, and rows are not compared.
        """
        self.before.append(before)
        self.after.append(after)
        self.is_stated.append(is_stated)


# Names of nodes for time in which the device does no work of the job.
START, HOST, LAUNCH, GAP = "start", "host", "launch", "gap"
PASSING_TIME = (START, HOST, LAUNCH, GAP)


def translate_group(
    call: Call, part: RankNodes, rank: int, world_size: int
) -> tuple[int, ...] | None:
    """Return the group in which `rank`, which has no file, makes a call that another rank recorded.

    `part`: nodes of the rank that recorded the call, whose group is `call.group.ranks`. The first
    rule that applies gives the result:

    1. The call is not a collective: `InputError`.
    2. The ranks of the group are unknown: None.
    3. `rank` is a member: the same ranks in the same order.
    4. Groups are assumed to divide all ranks regularly, as tensor, data and pipeline parallelism
       do. A group has n ranks, and d is the second minus the first (1 for a single rank). Blocks of
       n x d consecutive ranks have d groups each, with ranks at distance d. The result is the group
       of `rank`, ascending. With 8 ranks, the group (0, 2) gives (5, 7) for rank 5.

    Raises `InputError` (`missing-ranks`), located at the file of `part`, in rules 1 and 4. In rule
    4 this is so if d is below 1, if n x d does not divide `world_size`, or if the recorded ranks
    are not the regular group of `part.rank`.
    """
    ranks = call.group.ranks
    if call.kind is not NodeKind.COLLECTIVE:
        message = "a message between two ranks says nothing of the ranks that are missing"
        raise _unknown(message, part)
    if ranks is None or rank in ranks:
        return ranks
    distance = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if distance < 1 or world_size % (len(ranks) * distance):
        raise _unknown(_message(call, rank), part)
    if _of(part.rank, len(ranks), distance) != ranks:
        raise _unknown(_message(call, rank), part)
    return _of(rank, len(ranks), distance)


def _of(rank: int, count: int, distance: int) -> tuple[int, ...]:
    """Return the ranks of the regular group that contains `rank`, ascending.

    The ranks are divided into blocks of count x distance consecutive ranks, and each block
    into `distance` groups of `count` ranks at equal distance. Rank 5 with `count` 2 and
    `distance` 2 gives (5, 7). Raises `ZeroDivisionError` if `count` or `distance` is 0.
    """
    block = count * distance
    first = rank // block * block + rank % distance
    return tuple(first + distance * index for index in range(count))


def _message(call: Call, rank: int) -> str:
    """Format the message for a call whose group does not determine the group of `rank`."""
    return f"the group of rank {rank} that is like {call.group.name!r} cannot be told"


def _unknown(message: str, part: RankNodes) -> InputError:
    """Create (not raise) the error `missing-ranks`, located at the file of `part`.

    The cure is to name the files of all ranks.
    """
    cure = "name the files of all ranks"
    return InputError(message, location=Location(part.file), cure=cure, code="missing-ranks")
