"""Write the operations of one thread block and the block barriers that they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collhub_mscclpp.plan_records import BUFFER_TYPES
from collhub_mscclpp.writing.segments import (
    MEMORY,
    PORT,
    RankTables,
    Segment,
    format_semaphore,
    format_synchronisation,
    split_into_eights,
)

NOP = '{"name":"nop"}'


@dataclass(frozen=True, slots=True)
class Range:
    """A range of chunks in a buffer of `rank`; -1 for the rank of the thread block.

    `group`: number of the switch group whose buffers contain the range, else -1.
    """

    buffer: int
    index: int
    size: int
    rank: int = -1
    group: int = -1


@dataclass(slots=True)
class BlockWriter:
    """A thread block under construction; `segments` are the thread blocks of the plan.

    `part`: number of this thread block among `parts` that share the work; each has separate
    channels.
    """

    tables: RankTables
    part: int
    parts: int
    segments: list[Segment] = field(default_factory=lambda: [Segment()])
    # Whether a barrier is needed before the next access to data, and before its announcement.
    has_waited: bool = False
    has_moved: bool = False
    # Channels whose handshake of this launch is done, as sender and as receiver.
    waited_for: dict[str, set[int]] = field(default_factory=lambda: {MEMORY: set(), PORT: set()})
    greeted: dict[str, set[int]] = field(default_factory=lambda: {MEMORY: set(), PORT: set()})
    # Memory channels of messages that this block pulls, and of messages pulled from its rank.
    pulled: dict[int, None] = field(default_factory=dict)
    lent: dict[int, None] = field(default_factory=dict)

    @property
    def _last(self) -> Segment:
        return self.segments[-1]

    def add_barrier(self) -> None:
        """Add a barrier of the block's threads (nop), if they may have diverged since the last one.

        This is the case if the block has waited or moved data since then. Otherwise no barrier is
        added.
        """
        if self.has_waited or self.has_moved:
            self._last.ops.append(NOP)
        self.has_waited = self.has_moved = False

    def greet(self, channel_type: str, channel: int) -> None:
        """Add a signal at the beginning of the current segment: the receiver has begun the launch.

        A segment is one of the thread blocks of the plan into which this thread block is divided.
        The sender at the other side of `channel`, a key of a channel of type `channel_type`, waits
        for the signal before it writes data. A new segment is begun first if the current one has
        no room. Signals of a segment are in the order of the calls; a repeated call adds a second
        signal.
        """
        self._make_room(channel_type, [channel])
        self._last.channel(channel_type, channel)
        self._last.greeted[channel_type].append(channel)

    def wait(self, name: str, channel_type: str, channel: int) -> None:
        """Add an operation that waits for the next signal on a channel; no barrier precedes it.

        `name`: name of the operation, such as `wait` or `rlxwait`. `channel`: key of the channel.
        A new segment (thread block of the plan) is begun first if the current one has no room for
        the operation or the channel. The next `add_barrier` then adds a barrier.
        """
        self._make_room(channel_type, [channel])
        position = self._last.channel(channel_type, channel)
        self._last.ops.append(format_synchronisation(name, channel_type, [position]))
        self.has_waited = True

    def signal(self, channel_type: str, channels: Sequence[int]) -> None:
        """Add signals on channels, which announce that the data put so far is complete.

        A block barrier comes first if needed, also if `channels` is empty. Each operation signals
        at most 8 channels, in the given order. `channels`: keys of different channels; this is not
        checked. A new segment (thread block of the plan) is begun before an operation for which
        the current one has no room.
        """
        self.add_barrier()
        for batch in split_into_eights(channels):
            self._make_room(channel_type, batch)
            places = [self._last.channel(channel_type, channel) for channel in batch]
            self._last.ops.append(format_synchronisation("signal", channel_type, places))

    def acquire(self, numbers: Sequence[int]) -> None:
        """Add operations that acquire semaphores, which other thread blocks of the rank release."""
        for batch in split_into_eights(numbers):
            self._make_room()
            self._last.ops.append(format_semaphore("sem_acquire", batch))
            self.has_waited = True

    def release(self, numbers: Sequence[int]) -> None:
        """Add operations that release semaphores of the rank; an empty list has no effect.

        A block barrier comes first if needed, so that all earlier operations are finished. Each
        operation releases at most 8 semaphores. A new segment (thread block of the plan) is begun
        before an operation for which the current one has no room.
        """
        if numbers:
            self.add_barrier()
        for batch in split_into_eights(numbers):
            self._make_room()
            self._last.ops.append(format_semaphore("sem_release", batch))

    def move(
        self,
        name: str,
        src: Sequence[Range],
        dst: Sequence[Range],
        channel_type: str = "",
        channels: Sequence[int] = (),
    ) -> None:
        """Add an operation that moves data to the current segment (a thread block of the plan).

        If the channel or buffer lists of the segment have no room, a new segment is begun first. No
        barrier is added, but `has_moved` is set, so that the next `add_barrier` adds one. The
        operation is a JSON object with these members, in this order:

        - `name`; `channel_type` and `channel_ids` (positions in the segment's channel list), each
          only if not empty
        - `src_buff`, `dst_buff`; `tbg_info` only if several thread blocks share the work

        `channels`: keys, one per destination. A range with `group` >= 0 is in a switch group,
        otherwise one with `rank` >= 0 is remote, otherwise local. New channels and remote buffers
        are added to the lists. Raises `ValueError` for a group that the rank has not joined, and
        `KeyError` for a remote or switch range without `channel_type`.
        """
        remote = [
            self._find_remote(operand, channel_type)
            for operand in [*src, *dst]
            if operand.rank >= 0
        ]
        groups = [
            self.tables.groups.index(operand.group)
            for operand in [*src, *dst]
            if operand.group >= 0
        ]
        self._make_room(channel_type, [*channels, *groups], remote)
        words = [f'"name":"{name}"']
        if channel_type:
            words.append(f'"channel_type":"{channel_type}"')
        if channels:
            places = [self._last.channel(channel_type, channel) for channel in channels]
            words.append(f'"channel_ids":{places}')
        words.append(f'"src_buff":[{self._format_ranges(src, channel_type)}]')
        words.append(f'"dst_buff":[{self._format_ranges(dst, channel_type)}]')
        if self.parts > 1:
            words.append(f'"tbg_info":{{"tb_id":{self.part},"tbg_size":{self.parts}}}')
        self._last.ops.append(f"{{{','.join(words)}}}")
        self.has_moved = True

    def flush(self, channel: int, target: Range) -> None:
        """Add a wait until the proxy has executed all puts through a port channel.

        `target`: any range that was put. The executor counts the channels to flush by the
        entries of dst_buff, so the operation needs one. Begins a new segment if the last one
        has no room. No barrier precedes the operation; the next `add_barrier` then adds one.
        """
        self._make_room(PORT, [channel], [self._find_remote(target, PORT)])
        position = self._last.channel(PORT, channel)
        text = self._format_ranges([target], PORT)
        operation = format_synchronisation("flush", PORT, [position])
        self._last.ops.append(f'{operation[:-1]},"dst_buff":[{text}]}}')
        # Only one thread waits; other threads may overwrite the source only after a barrier.
        self.has_waited = True

    def finish(self) -> None:
        """Signal the senders of pulled messages, then wait for the ranks that pull from this rank.

        A receiver pulls a message by reading the sender's memory, so the sender must not finish its
        launch before. The channels are those in `pulled` (signals, after a block barrier if needed)
        and in `lent` (one wait each), in the order in which they were added. Every block signals
        before it waits, so the blocks cannot wait for each other in a cycle. Without such channels
        no operation is added.
        """
        if self.pulled:
            self.signal(MEMORY, list(self.pulled))
        for channel in self.lent:
            self.wait("wait", MEMORY, channel)

    def write_pipeline(self, slice_bytes: int, chunks: int, write: Callable[[], None]) -> None:
        """Call `write`, and make the operations that it adds one pipeline over `chunks` chunks.

        A pipeline repeats its operations for every slice of `slice_bytes` bytes. First a
        barrier is added if one is needed; it is no part of the pipeline. A pipeline cannot be
        divided among segments (thread blocks of the plan). If `write` begins a new segment
        because the current one has no room, all its operations, segments and semaphores are
        removed. Then one new segment is begun and `write` is called a second time. It must fit
        into an empty segment; this is not checked.

        Other changes of the first call are kept, such as remote buffers of the rank. If `write`
        adds no operation, the pipeline is empty. Errors of `write` pass through.
        """
        self.add_barrier()
        before, count = self._last.copy(), len(self.segments)
        start = len(before.ops)
        write()
        if len(self.segments) > count:
            # A pipeline cannot be divided between thread blocks.
            self.tables.semaphores -= len(self.segments) - count
            self.segments[count - 1 :] = [before]
            self.has_waited = self.has_moved = False
            self._begin_segment()
            start = len(self._last.ops)
            write()
        self._last.join(start, slice_bytes, chunks)

    def _find_remote(self, operand: Range, channel_type: str) -> int:
        return self.tables.buffer(operand.rank, operand.buffer, channel_type)

    def _format_ranges(self, ranges: Sequence[Range], channel_type: str) -> str:
        """Return entries of src_buff or dst_buff as JSON, with index and size in chunks.

        A range with a group names the switch channel, a range without a rank (negative) the type of
        its buffer, any other range the remote buffer. Channels and remote buffers are given by
        their position in the thread block, whose lists they join at their first use. Entries are
        separated by commas, without brackets; without ranges the text is "".
        """
        texts = []
        for operand in ranges:
            if operand.group >= 0:
                group = self.tables.groups.index(operand.group)
                where = f'"switch_channel_id":{self._last.channel(channel_type, group)}'
            elif operand.rank < 0:
                where = f'"type":"{BUFFER_TYPES[operand.buffer]}"'
            else:
                remote = self._find_remote(operand, channel_type)
                where = f'"buffer_id":{self._last.buffer(channel_type, remote)}'
            texts.append(f'{{{where},"index":{operand.index},"size":{operand.size}}}')
        return ",".join(texts)

    def _make_room(
        self,
        channel_type: str = "",
        channels: Sequence[int] = (),
        buffers: Sequence[int] = (),
    ) -> None:
        """Continue in another thread block if the tables of this one have no room for these
        entries.
        """
        if not self._last.has_room(channel_type, channels, buffers):
            self._begin_segment()

    def _begin_segment(self) -> None:
        """Continue this thread block in a further thread block of the plan, after a semaphore.

        The current segment (part in one thread block of the plan) ends with a barrier, unless it
        has neither waited nor moved data since the last one, and releases a new semaphore of the
        rank. The new segment acquires it and adds a barrier. Further operations are added to the
        new segment.
        """
        self.add_barrier()
        number = self.tables.add_semaphore()
        self._last.ops.append(format_semaphore("sem_release", [number]))
        self.segments.append(Segment())
        self._last.ops.append(format_semaphore("sem_acquire", [number]))
        self.has_waited = True
        # The caller continues as if it still wrote to the first block.
        self._last.ops.append(NOP)
        self.has_waited = False
