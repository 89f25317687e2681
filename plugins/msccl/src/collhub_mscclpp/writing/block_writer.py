"""Write operations of one thread block, with the block barriers between them that they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collhub_mscclpp.plans.operations import BUFFER_TYPES
from collhub_mscclpp.writing.segments import (
    MEMORY,
    PORT,
    RankTables,
    Segment,
    in_eights,
    semaphore,
    synchronisation,
)

NOP = '{"name":"nop"}'


@dataclass(frozen=True, slots=True)
class Range:
    """A range of chunks, in the buffer of `rank`, or of the own rank (-1).

    `group`: number of the group of a switch in whose buffers it lies, else -1.
    """

    buffer: int
    index: int
    size: int
    rank: int = -1
    group: int = -1


@dataclass(slots=True)
class BlockWriter:
    """A thread block under construction.

    `part`: of `parts` that share the work of the block, each with its own channels.
    """

    tables: RankTables
    part: int
    parts: int
    segments: list[Segment] = field(default_factory=lambda: [Segment()])
    # Whether threads must meet before they touch data, and before they announce it.
    has_waited: bool = False
    has_moved: bool = False
    # Channels on which the handshake of the launch is done.
    waited_for: dict[str, set[int]] = field(default_factory=lambda: {MEMORY: set(), PORT: set()})
    greeted: dict[str, set[int]] = field(default_factory=lambda: {MEMORY: set(), PORT: set()})
    # Channels, in memory, of what this block has pulled, and of what is pulled from its rank.
    pulled: dict[int, None] = field(default_factory=dict)
    lent: dict[int, None] = field(default_factory=dict)

    @property
    def _last(self) -> Segment:
        return self.segments[-1]

    def meet(self) -> None:
        """Let all threads of the block wait for each other, if anything was done since."""
        if self.has_waited or self.has_moved:
            self._last.ops.append(NOP)
        self.has_waited = self.has_moved = False

    def greet(self, channel_type: str, channel: int) -> None:
        """Tell the sender of a channel that it may begin, before all else."""
        self._make_room(channel_type, [channel])
        last = self._last
        last.channel(channel_type, channel)
        greeted = last.greeted[channel_type]
        greeted.append(channel)

    def wait(self, name: str, channel_type: str, channel: int) -> None:
        """Wait for the next signal on a channel."""
        self._make_room(channel_type, [channel])
        place = self._last.channel(channel_type, channel)
        self._last.ops.append(synchronisation(name, channel_type, [place]))
        self.has_waited = True

    def signal(self, channel_type: str, channels: Sequence[int]) -> None:
        """Announce what was put on these channels, all different."""
        self.meet()
        for some in in_eights(channels):
            self._make_room(channel_type, some)
            places = [self._last.channel(channel_type, channel) for channel in some]
            self._last.ops.append(synchronisation("signal", channel_type, places))

    def acquire(self, numbers: Sequence[int]) -> None:
        """Wait for semaphores that other blocks of the rank release."""
        for some in in_eights(numbers):
            self._make_room()
            self._last.ops.append(semaphore("sem_acquire", some))
            self.has_waited = True

    def release(self, numbers: Sequence[int]) -> None:
        """Tell other blocks of the rank that what came before is done."""
        if numbers:
            self.meet()
        for some in in_eights(numbers):
            self._make_room()
            self._last.ops.append(semaphore("sem_release", some))

    def move(
        self,
        name: str,
        src: Sequence[Range],
        dst: Sequence[Range],
        channel_type: str = "",
        channels: Sequence[int] = (),
    ) -> None:
        """An operation on data. `channels`: for those that name them, one a destination.

        The threads meet before it only where the caller says so, by `meet`.
        """
        remote = [self._remote(one, channel_type) for one in [*src, *dst] if one.rank >= 0]
        groups = [self.tables.groups.index(one.group) for one in [*src, *dst] if one.group >= 0]
        self._make_room(channel_type, [*channels, *groups], remote)
        words = [f'"name":"{name}"']
        if channel_type:
            words.append(f'"channel_type":"{channel_type}"')
        if channels:
            places = [self._last.channel(channel_type, channel) for channel in channels]
            words.append(f'"channel_ids":{places}')
        words.append(f'"src_buff":[{self._texts(src, channel_type)}]')
        words.append(f'"dst_buff":[{self._texts(dst, channel_type)}]')
        if self.parts > 1:
            words.append(f'"tbg_info":{{"tb_id":{self.part},"tbg_size":{self.parts}}}')
        self._last.ops.append(f"{{{','.join(words)}}}")
        self.has_moved = True

    def flush(self, channel: int, target: Range) -> None:
        """Wait until the proxy has done all that was put through a port channel.

        `target`: any range that was put there; the executor counts channels by it.
        """
        self._make_room(PORT, [channel], [self._remote(target, PORT)])
        place = self._last.channel(PORT, channel)
        text = self._texts([target], PORT)
        operation = synchronisation("flush", PORT, [place])
        self._last.ops.append(f'{operation[:-1]},"dst_buff":[{text}]}}')
        # One thread waits: the others may not overwrite the source before they meet.
        self.has_waited = True

    def finish(self) -> None:
        """Tell senders that they may go, and wait for the receivers of what stayed here.

        All tell before they wait, so that nobody waits in a circle.
        """
        if self.pulled:
            self.signal(MEMORY, list(self.pulled))
        for channel in self.lent:
            self.wait("wait", MEMORY, channel)

    def in_slices(self, slice_bytes: int, chunks: int, write: Callable[[], None]) -> None:
        """Make a pipeline over so many chunks of the operations that `write` adds."""
        self.meet()
        before, count = self._last.copy(), len(self.segments)
        start = len(before.ops)
        write()
        if len(self.segments) > count:
            # A pipeline stands in one block: all of it goes to the next.
            self.tables.semaphores -= len(self.segments) - count
            self.segments[count - 1 :] = [before]
            self.has_waited = self.has_moved = False
            self._go_on()
            start = len(self._last.ops)
            write()
        self._last.join(start, slice_bytes, chunks)

    def _remote(self, one: Range, channel_type: str) -> int:
        return self.tables.buffer(one.rank, one.buffer, channel_type)

    def _texts(self, ranges: Sequence[Range], channel_type: str) -> str:
        """Entries of src_buff or dst_buff."""
        return ",".join(self._text(one, channel_type) for one in ranges)

    def _text(self, one: Range, channel_type: str) -> str:
        where = f'"index":{one.index},"size":{one.size}'
        if one.group >= 0:
            place = self._last.channel(channel_type, self.tables.groups.index(one.group))
            return f'{{"switch_channel_id":{place},{where}}}'
        if one.rank < 0:
            return f'{{"type":"{BUFFER_TYPES[one.buffer]}",{where}}}'
        place = self._last.buffer(channel_type, self._remote(one, channel_type))
        return f'{{"buffer_id":{place},{where}}}'

    def _make_room(
        self,
        channel_type: str = "",
        channels: Sequence[int] = (),
        buffers: Sequence[int] = (),
    ) -> None:
        """Go on in another thread block where the tables of this one are full."""
        if not self._last.takes(channel_type, channels, buffers):
            self._go_on()

    def _go_on(self) -> None:
        """Begin another thread block, which waits for this one."""
        self.meet()
        number = self.tables.another_semaphore()
        self._last.ops.append(semaphore("sem_release", [number]))
        self.segments.append(Segment())
        self._last.ops.append(semaphore("sem_acquire", [number]))
        self.has_waited = True
        # Whoever asked for room goes on as if nothing had been between.
        self._last.ops.append(NOP)
        self.has_waited = False
