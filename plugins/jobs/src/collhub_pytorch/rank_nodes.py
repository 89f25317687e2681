"""Nodes, idle times and groups of one rank, before the ranks are joined to a job."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from collhub_pytorch.calls import Call
from hub_core.columns import Int64Array
from hub_core.model import InputError, Location, NodeKind

# HolisticTraceAnalysis' delay between consecutive kernels; an option multiplies it.
KERNEL_DELAY_NS = 30


@dataclass(frozen=True, slots=True)
class StreamIdle:
    """Idle time of one stream in ns, from its first start to its last end."""

    device: int
    stream: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


def idle_by_stream(
    start: Int64Array,
    end: Int64Array,
    stream: Int64Array,
    issued_at: Int64Array,
    kernel_delay_ns: float,
    names: Sequence[tuple[int, int]],
) -> tuple[StreamIdle, ...]:
    """The idle time of every stream; columns int64[activities] by start, times in ns.

    `issued_at`: when each was launched, -1 where the launch is not recorded. `names`: device and
    stream by the numbers in `stream`.
    """
    found = []
    for number in np.unique(stream).tolist():
        rows = np.flatnonzero(stream == number)
        ready = end[rows[:-1]]
        gap = np.maximum(start[rows[1:]] - ready, 0)
        is_host_wait = issued_at[rows[1:]] > ready
        is_kernel_wait = ~is_host_wait & (gap < kernel_delay_ns)
        sums = [gap[is_host_wait], gap[is_kernel_wait], gap[~is_host_wait & ~is_kernel_wait]]
        found.append(StreamIdle(*names[number], *(int(one.sum()) for one in sums)))
    return tuple(found)


NONE = -1


def _column() -> array[int]:
    return array("q")


@dataclass(slots=True)
class RankFacts:
    """What one file shows besides its nodes.

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
    """Columns of nodes in order of time, and edges between their rows.

    `name`: index of `names`, `call`: index of `calls`, -1 for none. `duration_ns` -1 where the file
    states no time. `before`, `after`: ends of the edges; `is_stated`: 0 for those that are assumed.
    `facts`: what the file shows besides its nodes.
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
        """Append a node, of communication where `call` is one, and return its row."""
        kind = NodeKind.COMPUTE if call < 0 else self.calls[call].kind
        self.kind.append(int(kind))
        self.name.append(name)
        self.duration_ns.append(duration_ns)
        self.on_host.append(on_host)
        self.call.append(call)
        return len(self.kind) - 1

    def link(self, before: int, after: int, *, is_stated: bool = True) -> None:
        """Let the row `after` wait for the row `before`."""
        self.before.append(before)
        self.after.append(after)
        self.is_stated.append(is_stated)


START, HOST, LAUNCH, GAP = "start", "host", "launch", "gap"
PASSING_TIME = (START, HOST, LAUNCH, GAP)


def group_of_rank(
    call: Call, part: RankNodes, rank: int, world_size: int
) -> tuple[int, ...] | None:
    """The group in which `rank` does what the rank of `part` does by `call`.

    The same group where it is a member. Else the groups are taken to cut all ranks alike, as
    layouts by tensor, data and pipeline do: n ranks at equal distances d, in blocks of n d. Raises
    `InputError` where that does not fit, and for messages.
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
    """The group of a rank where groups have `count` ranks at this distance."""
    block = count * distance
    first = rank // block * block + rank % distance
    return tuple(first + distance * one for one in range(count))


def _message(call: Call, rank: int) -> str:
    """The message for a call whose group does not tell that of `rank`."""
    return f"the group of rank {rank} that is like {call.group.name!r} cannot be told"


def _unknown(message: str, part: RankNodes) -> InputError:
    """The error to raise, of code `missing-ranks`, at the file of `part`."""
    cure = "name the files of all ranks"
    return InputError(message, location=Location(part.file), cure=cure, code="missing-ranks")
