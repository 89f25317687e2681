"""Addresses of data, and the tables of channels and remote buffers to which thread blocks refer.

A thread block that needs more entries than the executor's tables have is divided into several.

Remote addresses depend on the offsets of buffers in the caller's allocations: the executor adds the
offset of the *local* rank's buffer to the start of the peer's allocation, and a port channel reads
at the start of the local allocation, without any offset (release 1f5f065d). In place, one buffer is
a part of the other, at another offset on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from collhub_mscclpp.checking.limits import (
    MOST_CHANNELS,
    MOST_CHANNELS_OF_OPERATION,
    MOST_OPERATIONS,
    MOST_REMOTE_BUFFERS,
)
from collhub_mscclpp.writing.work import PlanWork
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Buffer, MemoryLayout

MEMORY = "memory"
PORT = "port"
SWITCH = "switch"


@dataclass(slots=True)
class RankTables:
    """One rank.

    `peers`: connected rank of every channel by type; `channels`: id of the channel of every
    connection; `buffers`: position of every remote (rank, buffer, type); `semaphores`: how many.
    `groups`: numbers of the groups of switches that the rank is in; a position is the id of its
    channel. All ranks list them in one order, as their set-up waits for all members.
    """

    peers: dict[str, list[int]] = field(default_factory=lambda: {MEMORY: [], PORT: []})
    channels: dict[int, int] = field(default_factory=dict)
    buffers: dict[tuple[int, int, str], int] = field(default_factory=dict)
    semaphores: int = 0
    groups: list[int] = field(default_factory=list)

    def join(self, group: int) -> None:
        """Take part in a group of a switch."""
        self.groups.append(group)

    def buffer(self, rank: int, buffer: int, channel_type: str) -> int:
        """Position of a buffer of another rank in the list of this one."""
        return self.buffers.setdefault((rank, buffer, channel_type), len(self.buffers))

    def another_semaphore(self) -> int:
        """The number of a further semaphore."""
        self.semaphores += 1
        return self.semaphores - 1

    def connect(self, number: int, peer: int, channel_type: str) -> None:
        """Give a connection the next channel of its type."""
        self.channels[number] = len(self.peers[channel_type])
        self.peers[channel_type].append(peer)


def tables_of(work: PlanWork, types: list[str], copies: int) -> list[RankTables]:
    """Tables of all ranks, with `copies` channels a connection.

    Both ranks of a connection list it in the order of connections, so that channels of equal
    ordinal between two ranks are its two ends. Channel `c * copies + k` is copy k of connection c.
    """
    tables = [RankTables() for _ in range(work.steps.num_ranks)]
    ends = zip(work.source.tolist(), work.destination.tolist(), strict=True)
    for connection, (source, destination) in enumerate(ends):
        for number in range(connection * copies, (connection + 1) * copies):
            tables[source].connect(number, destination, types[connection])
            tables[destination].connect(number, source, types[connection])
    return tables


def channel_types(work: PlanWork, domain: Int64Array) -> list[str]:
    """Type of every connection: port between domains, memory within; `domain`: int64[ranks]."""
    is_far = domain[work.source] != domain[work.destination]
    return np.where(is_far, PORT, MEMORY).tolist()  # type: ignore[no-any-return]


def memory_layouts(work: PlanWork) -> Iterator[MemoryLayout]:
    """Memories of all ranks in chunks, one for each mode that the algorithm claims."""
    collective, unit = work.algorithm.collective, work.unit
    for in_place in (True, False):
        if collective.in_place if in_place else collective.out_of_place:
            layout = collective.memory_layout(in_place, work.algorithm.scratch_units)
            yield MemoryLayout(layout.base // unit, layout.size // unit, layout.total // unit)


def buffer_offsets(layout: MemoryLayout) -> Int64Array:
    """Chunks between the start of an allocation and of a buffer in it: int64[ranks, 3].

    Only the smaller one of two buffers that share memory has an offset.
    """
    both = [int(Buffer.INPUT), int(Buffer.OUTPUT)]
    base, size = layout.base[:, both], layout.size[:, both]
    offsets = np.zeros_like(layout.base)
    shift = base - base.min(axis=1)[:, None]
    offsets[:, both] = np.where(_share_memory(base, size)[:, None], shift, 0)
    return offsets


def has_equal_scratch(layout: MemoryLayout) -> bool:
    """Whether equal chunk counts are equal bytes of scratch on all ranks.

    The executor takes the size of a chunk of scratch from the allocation that has the input. In a
    gather in place that of the root alone is larger than its input.
    """
    both = [int(Buffer.INPUT), int(Buffer.OUTPUT)]
    base, size = layout.base[:, both], layout.size[:, both]
    given = np.maximum(size[:, 0], 1)
    allocated = np.where(_share_memory(base, size), size.max(axis=1), given)
    return bool(np.all(allocated * given[0] == allocated[0] * given))


def _share_memory(base: Int64Array, size: Int64Array) -> BoolArray:
    """Whether the two buffers of a rank, columns of `base` and `size`, overlap: bool[ranks].

    Unrelated buffers follow one another in a layout, and are allocations of their own.
    """
    first = base.argmin(axis=1)
    end = (base + size)[np.arange(len(base)), first]
    return np.asarray((base.max(axis=1) < end) & (size > 0).all(axis=1), np.bool_)


def have_equal_offsets(
    work: PlanWork, row: Int64Array, peer_row: Int64Array, buffer: Int64Array
) -> BoolArray:
    """Whether the rank of `row` computes right addresses in a buffer of that of `peer_row`.

    For every pair of steps, in every mode that the algorithm claims.
    """
    rank = work.steps.rank
    is_equal = np.ones(len(row), np.bool_)
    for layout in memory_layouts(work):
        offsets = buffer_offsets(layout)
        is_equal &= offsets[rank[row], buffer] == offsets[rank[peer_row], buffer]
    return is_equal


def has_port_offset(work: PlanWork, rank: int, buffer: int) -> bool:
    """Whether a port channel misses this buffer by its offset, in some mode."""
    return any(buffer_offsets(layout)[rank, buffer] != 0 for layout in memory_layouts(work))


def containing_range(work: PlanWork, rank: int, buffer: int, index: int) -> tuple[int, int]:
    """(buffer, index) of a chunk in the buffer that starts its allocation.

    For algorithms that claim a single mode; in both modes there is no such buffer.
    """
    layouts = list(memory_layouts(work))
    if len(layouts) != 1 or not has_port_offset(work, rank, buffer):
        return buffer, index
    offset = int(buffer_offsets(layouts[0])[rank, buffer])
    other = Buffer.OUTPUT if buffer == Buffer.INPUT else Buffer.INPUT
    return int(other), index + offset


T = TypeVar("T")

# Behind the last operation of a part: a nop, and the release that starts the next part.
_ENDING = 2


@dataclass(slots=True)
class Segment:
    """A thread block: operations as JSON texts, the ids they count, and channels greeted first.

    `in_pipelines`: operations that stand within others.
    """

    ops: list[str] = field(default_factory=list)
    channels: dict[str, dict[int, int]] = field(
        default_factory=lambda: {MEMORY: {}, PORT: {}, SWITCH: {}}
    )
    buffers: dict[str, dict[int, int]] = field(
        default_factory=lambda: {MEMORY: {}, PORT: {}, SWITCH: {}}
    )
    greeted: dict[str, list[int]] = field(default_factory=lambda: {MEMORY: [], PORT: []})
    in_pipelines: int = 0

    def length(self) -> int:
        """Operations, greetings included."""
        greetings = [-(-len(ids) // MOST_CHANNELS_OF_OPERATION) for ids in self.greeted.values()]
        return len(self.ops) + self.in_pipelines + sum(greetings)

    def takes(self, channel_type: str, channels: Sequence[int], buffers: Sequence[int]) -> bool:
        """Whether the tables have room for these besides one more operation and a greeting."""
        if self.length() + 2 + _ENDING > MOST_OPERATIONS:
            return False
        if not channel_type:
            return True
        known, near = self.channels[channel_type], self.buffers[channel_type]
        return (
            len(known.keys() | set(channels)) <= MOST_CHANNELS
            and len(near.keys() | set(buffers)) <= MOST_REMOTE_BUFFERS
        )

    def channel(self, channel_type: str, channel: int) -> int:
        """Position of a channel among those of the block."""
        known = self.channels[channel_type]
        # Counted in the order of first use.
        return known.setdefault(channel, len(known))

    def buffer(self, channel_type: str, buffer: int) -> int:
        """Position of a remote buffer among those of the block."""
        known = self.buffers[channel_type]
        # Counted in the order of first use.
        return known.setdefault(buffer, len(known))

    def copy(self) -> Segment:
        """The same, which changes by itself."""
        channels = {kind: dict(ids) for kind, ids in self.channels.items()}
        buffers = {kind: dict(ids) for kind, ids in self.buffers.items()}
        greeted = {kind: list(ids) for kind, ids in self.greeted.items()}
        return Segment(list(self.ops), channels, buffers, greeted, self.in_pipelines)

    def join(self, start: int, slice_bytes: int, chunks: int) -> None:
        """Make one pipeline of the operations from `start` on."""
        body = self.ops[start:]
        self.in_pipelines += len(body)
        context = f'"iter_context":{{"unit_size":{slice_bytes},"num_chunks":{chunks}}}'
        self.ops[start:] = [f'{{"name":"pipeline",{context},"ops":[{",".join(body)}]}}']

    def greetings(self) -> list[str]:
        """Operations that tell senders that this launch has begun here."""
        texts = []
        for channel_type, channels in self.greeted.items():
            for some in in_eights(channels):
                ids = [self.channel(channel_type, channel) for channel in some]
                text = synchronisation("rlxsignal", channel_type, ids)
                texts.append(text)
        return texts


def in_eights(ids: Sequence[T]) -> list[Sequence[T]]:
    """The ids in as many operations as they need."""
    width = MOST_CHANNELS_OF_OPERATION
    return [ids[start : start + width] for start in range(0, len(ids), width)]


def synchronisation(name: str, channel_type: str, ids: Sequence[int]) -> str:
    """A signal or a wait on channels of a block."""
    return f'{{"name":"{name}","channel_type":"{channel_type}","channel_ids":{list(ids)}}}'


def semaphore(name: str, ids: Sequence[int]) -> str:
    """An acquire or a release of semaphores."""
    listed = list(ids)
    return f'{{"name":"{name}","semaphore_ids":{listed}}}'
