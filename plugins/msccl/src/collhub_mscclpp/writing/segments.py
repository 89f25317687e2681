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

from collhub_mscclpp.checking.rules import (
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
    """Channels, remote buffers and semaphores of one rank.

    `peers`: connected rank of every channel by type; `channels`: id of the channel of every
    connection; `buffers`: position of every remote (rank, buffer, type); `semaphores`: number.
    `groups`: numbers of the switch groups of the rank; the index is the id of the switch channel.
    All ranks list groups in the same order, because their set-up waits for all members.
    """

    peers: dict[str, list[int]] = field(default_factory=lambda: {MEMORY: [], PORT: []})
    channels: dict[int, int] = field(default_factory=dict)
    buffers: dict[tuple[int, int, str], int] = field(default_factory=dict)
    semaphores: int = 0
    groups: list[int] = field(default_factory=list)

    def join(self, group: int) -> None:
        """Add the rank to a switch group."""
        self.groups.append(group)

    def buffer(self, rank: int, buffer: int, channel_type: str) -> int:
        """Return the position of a remote buffer in the list; append it at its first use."""
        return self.buffers.setdefault((rank, buffer, channel_type), len(self.buffers))

    def add_semaphore(self) -> int:
        """Add a semaphore to the rank and return its number, which counts from 0.

        Only the number of semaphores is stored.
        """
        self.semaphores += 1
        return self.semaphores - 1

    def connect(self, number: int, peer: int, channel_type: str) -> None:
        """Add a channel to rank `peer`, as the next one of its type.

        `number`: key of the channel, the connection and its copy. The position among the channels
        of this type is its id.
        """
        self.channels[number] = len(self.peers[channel_type])
        self.peers[channel_type].append(peer)


def build_tables(work: PlanWork, types: list[str], copies: int) -> list[RankTables]:
    """Build the tables of channels of all ranks, with `copies` channels per connection.

    Channel c * `copies` + k is copy k of connection c. `types`: channel type of each connection.
    Both ranks of a connection list their channels in the order of connections, so that the executor
    pairs the right ones.
    """
    tables = [RankTables() for _ in range(work.steps.num_ranks)]
    pairs = zip(work.source.tolist(), work.destination.tolist(), strict=True)
    for connection, (source, destination) in enumerate(pairs):
        for number in range(connection * copies, (connection + 1) * copies):
            tables[source].connect(number, destination, types[connection])
            tables[destination].connect(number, source, types[connection])
    return tables


def choose_channel_types(work: PlanWork, domain: Int64Array) -> list[str]:
    """Return the channel type of every connection: memory within a memory domain, else port.

    `domain` is the number of each rank's memory domain, int64[ranks].
    """
    is_far = domain[work.source] != domain[work.destination]
    return np.where(is_far, PORT, MEMORY).tolist()  # type: ignore[no-any-return]


def memory_layouts(work: PlanWork) -> Iterator[MemoryLayout]:
    """Yield the memory layout for each supported mode: in place, then out of place.

    Bases and sizes are in chunks. They are divisible by the unit of `work`, which is not
    checked: remainders are dropped. No layout if the collective supports neither mode.
    """
    collective, unit = work.algorithm.collective, work.unit
    for in_place in (True, False):
        if collective.in_place if in_place else collective.out_of_place:
            layout = collective.memory_layout(in_place, work.algorithm.scratch_units)
            yield MemoryLayout(layout.base // unit, layout.size // unit, layout.total // unit)


def buffer_offsets(layout: MemoryLayout) -> Int64Array:
    """Return the offset of every buffer in its allocation, in chunks: int64[ranks, 3].

    It is not 0 only for an input or output that begins inside the other one.
    """
    both = [int(Buffer.INPUT), int(Buffer.OUTPUT)]
    base, size = layout.base[:, both], layout.size[:, both]
    offsets = np.zeros_like(layout.base)
    shift = base - base.min(axis=1)[:, None]
    offsets[:, both] = np.where(_share_memory(base, size)[:, None], shift, 0)
    return offsets


def has_equal_scratch(layout: MemoryLayout) -> bool:
    """Return whether a chunk of scratch has the same number of bytes on all ranks.

    The executor derives the size of a chunk of scratch from the allocation that contains
    the input. So the number of chunks of this allocation, divided by the input chunks, must
    be equal on all ranks. It is 1 if input and output are separate, or if the rank has no
    input. For example, in a gather in place only the root's allocation is larger than its
    input.
    """
    both = [int(Buffer.INPUT), int(Buffer.OUTPUT)]
    base, size = layout.base[:, both], layout.size[:, both]
    input_chunks = np.maximum(size[:, 0], 1)
    allocated = np.where(_share_memory(base, size), size.max(axis=1), input_chunks)
    return bool(np.all(allocated * input_chunks[0] == allocated[0] * input_chunks))


def _share_memory(base: Int64Array, size: Int64Array) -> BoolArray:
    """Return whether the input and the output of each rank overlap: bool[ranks].

    `base`, `size`: int64[ranks, 2], first address and size of both. An empty buffer does not
    overlap.
    """
    first = base.argmin(axis=1)
    end = (base + size)[np.arange(len(base)), first]
    return np.asarray((base.max(axis=1) < end) & (size > 0).all(axis=1), np.bool_)


def have_equal_offsets(
    work: PlanWork, row: Int64Array, peer_row: Int64Array, buffer: Int64Array
) -> BoolArray:
    """Return whether a rank computes the right address in a buffer of its peer: bool[pairs].

    `row`, `peer_row`: a step of the rank and a step of the peer. `buffer`: buffer of the peer. True
    if the buffer has the same offset on both ranks in every mode that the algorithm supports.
    """
    rank = work.steps.rank
    is_equal = np.ones(len(row), np.bool_)
    for layout in memory_layouts(work):
        offsets = buffer_offsets(layout)
        is_equal &= offsets[rank[row], buffer] == offsets[rank[peer_row], buffer]
    return is_equal


def has_port_offset(work: PlanWork, rank: int, buffer: int) -> bool:
    """Whether the buffer has an offset, which port channels ignore, in a claimed mode."""
    return any(buffer_offsets(layout)[rank, buffer] != 0 for layout in memory_layouts(work))


def find_containing_range(work: PlanWork, rank: int, buffer: int, index: int) -> tuple[int, int]:
    """Return (buffer, index) of a chunk in the buffer at the start of its memory allocation.

    In place, input and output share an allocation, and the smaller one may begin at an
    offset inside the larger one. For a chunk of such a smaller buffer, the result is the
    larger buffer and `index` plus the offset in chunks. The arguments are returned
    unchanged in all other cases: the buffer has no offset, or the algorithm supports both
    modes or neither.
    """
    layouts = list(memory_layouts(work))
    if len(layouts) != 1 or not has_port_offset(work, rank, buffer):
        return buffer, index
    offset = int(buffer_offsets(layouts[0])[rank, buffer])
    container = Buffer.OUTPUT if buffer == Buffer.INPUT else Buffer.INPUT
    return int(container), index + offset


T = TypeVar("T")

# Operations after the last one of a part: a nop, and the release that starts the next part.
_ENDING = 2


@dataclass(slots=True)
class Segment:
    """A thread block of the plan.

    `ops`: operations as JSON texts; `channels`, `buffers`: by type, positions in the block's lists;
    `greeted`: channels that are signalled first; `in_pipelines`: number of operations in pipelines.
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

    def count_operations(self) -> int:
        """Return the number of operations of the thread block, for the executor's limit.

        Included are the signals at its begin (greetings, up to 8 channels each), pipelines, and
        the operations inside of them.
        """
        greeting_counts = [
            -(-len(ids) // MOST_CHANNELS_OF_OPERATION) for ids in self.greeted.values()
        ]
        return len(self.ops) + self.in_pipelines + sum(greeting_counts)

    def has_room(self, channel_type: str, channels: Sequence[int], buffers: Sequence[int]) -> bool:
        """Return whether a thread block of the plan has room for one more operation.

        True if the limits of a block are kept with the new operation:

        - Operations: three more places are reserved, one for a signal at the begin and two for
          the end of the block.
        - Channels and remote buffers of type `channel_type`: at most 16 each. Those of the
          operation that the block already lists need no room.

        If `channel_type` is "", only the number of operations counts.
        """
        if self.count_operations() + 2 + _ENDING > MOST_OPERATIONS:
            return False
        if not channel_type:
            return True
        known, known_buffers = self.channels[channel_type], self.buffers[channel_type]
        return (
            len(known.keys() | set(channels)) <= MOST_CHANNELS
            and len(known_buffers.keys() | set(buffers)) <= MOST_REMOTE_BUFFERS
        )

    def channel(self, channel_type: str, channel: int) -> int:
        """Return the position of a channel in the block's list of channels of this type, from 0.

        The channel is appended at its first use; operations refer to this position. The length
        of the list is not limited here (`has_room`).
        """
        known = self.channels[channel_type]
        return known.setdefault(channel, len(known))

    def buffer(self, channel_type: str, buffer: int) -> int:
        """Return the position, from 0, of a remote buffer in the block's list for the type.

        The buffer is appended at its first use; operations refer to this position. The length
        of the list is not limited here (`has_room`).
        """
        known = self.buffers[channel_type]
        return known.setdefault(buffer, len(known))

    def copy(self) -> Segment:
        """Return a copy of the segment; changes of one do not affect the other."""
        channels = {kind: dict(ids) for kind, ids in self.channels.items()}
        buffers = {kind: dict(ids) for kind, ids in self.buffers.items()}
        greeted = {kind: list(ids) for kind, ids in self.greeted.items()}
        return Segment(list(self.ops), channels, buffers, greeted, self.in_pipelines)

    def join(self, start: int, slice_bytes: int, chunks: int) -> None:
        """Replace the operations from `start` on by one pipeline with these operations.

        `slice_bytes`: bytes of a slice. `chunks`: number of chunks that the pipeline processes. The
        operations are still counted, in `in_pipelines`.
        """
        body = self.ops[start:]
        self.in_pipelines += len(body)
        context = f'"iter_context":{{"unit_size":{slice_bytes},"num_chunks":{chunks}}}'
        self.ops[start:] = [f'{{"name":"pipeline",{context},"ops":[{",".join(body)}]}}']

    def format_greetings(self) -> list[str]:
        """Return the operations that signal to senders that this launch has begun, as JSON texts.

        They are relaxed signals of at most eight channels each, by channel type, in the order of
        the greetings. The channels are added to the lists of the segment.
        """
        texts = []
        for channel_type, channels in self.greeted.items():
            for batch in split_into_eights(channels):
                ids = [self.channel(channel_type, channel) for channel in batch]
                text = format_synchronisation("rlxsignal", channel_type, ids)
                texts.append(text)
        return texts


def split_into_eights(ids: Sequence[T]) -> list[Sequence[T]]:
    """Divide a sequence into parts of at most 8, the number of channels of one operation.

    Only the last part may be shorter; an empty sequence has no parts.
    """
    width = MOST_CHANNELS_OF_OPERATION
    return [ids[start : start + width] for start in range(0, len(ids), width)]


def format_synchronisation(name: str, channel_type: str, ids: Sequence[int]) -> str:
    """Format a signal, wait or flush of channels of a block."""
    return f'{{"name":"{name}","channel_type":"{channel_type}","channel_ids":{list(ids)}}}'


def format_semaphore(name: str, ids: Sequence[int]) -> str:
    """Return an operation on semaphores as JSON text.

    `name`: name of the operation, `sem_acquire` or `sem_release`. `ids`: numbers of the
    rank's semaphores, in this order; their number is not checked.
    """
    listed = list(ids)
    return f'{{"name":"{name}","semaphore_ids":{listed}}}'
