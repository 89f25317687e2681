"""One thread block of a draft, cut into as many as the executor's tables need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from collhub_mscclpp.checking.limits import (
    MOST_CHANNELS,
    MOST_CHANNELS_OF_OPERATION,
    MOST_OPERATIONS,
    MOST_REMOTE_BUFFERS,
)
from collhub_mscclpp.writing.rank_tables import MEMORY, PORT, SWITCH

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
