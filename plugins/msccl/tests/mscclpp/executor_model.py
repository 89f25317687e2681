"""CPU model of the MSCCL++ executor: launches of one plan, thread by thread, in adversarial order.

Written from the rules of microsoft/mscclpp (release 1f5f065d), not from the plugin's checker, so
that an error in one of them shows. What is modelled:

- threads of a block that only `nop` and `barrier` bring together: an operation is divided among
  them differently every time, thread i performs the synchronisation of channel or semaphore i;
- memory per rank with the caller's buffer offsets: a remote address is the peer's allocation plus
  the *local* rank's offset; a port reads at the offset from the start of its allocation; in odd
  launches half of the *sender's* scratch is added to addresses of packets;
- packets of 8 bytes of data and two flags, ready when both flags equal the number of the launch;
- requests to ports, done in order per channel by a proxy at any later time;
- stores over memory channels that become visible at any time until a signal, a release or the end
  (those through a switch at once: the official plans announce them by relaxed signals);
- the caller, who fills the inputs, and overwrites them as soon as the kernel has ended.

Not modelled: reads that happen before a relaxed wait, `reuse_resources`, sizes above 4 GiB.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from executor_plan import (
    Call,
    LoadedRank,
    Operand,
    Operation,
)
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Steps = Generator[Hashable, None, None]
# Bytes of an element: 32-bit integers, whose sums wrap around.
WORD = 4
# Garbage is no flag of a launch, and no input.
_GARBAGE = np.uint32(0xDEAD)
_SMALLEST_INPUT = 1 << 20
# Events that an actor waits for because of the plan; others follow from these.
_CAUSES = frozenset(("signal", "packets", "semaphore", "barrier", "flush"))
_RELEASES = frozenset(("signal", "sem_release", "barrier"))


class OutOfBoundsError(Exception):
    """An access outside the memory of a rank."""


@dataclass(frozen=True, slots=True)
class Role:
    """An actor: `kind` is thread, stores, caller or proxy."""

    kind: str
    rank: int
    block: int = 0
    thread: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """An order of actors: those of a lower level run while any of them can; 0 to 3."""

    name: str
    level: Callable[[Role], int]
    seed: int = 0


def schedules(num_ranks: int, random_orders: int = 2) -> list[Schedule]:
    """Random and adversarial orders, the same for the same number of ranks."""

    def kinds(**levels: int) -> Callable[[Role], int]:
        return lambda role: levels.get(role.kind, 0)

    def where(is_late: Callable[[Role], bool]) -> Callable[[Role], int]:
        return lambda role: int(is_late(role))

    return [
        *(Schedule(f"random {seed}", kinds(), seed) for seed in range(random_orders)),
        Schedule("proxies last", kinds(stores=1, proxy=2)),
        Schedule("stores last", kinds(stores=3, proxy=1)),
        Schedule("callers last", kinds(caller=1)),
        Schedule(
            "first threads last", where(lambda role: role.kind == "thread" and not role.thread)
        ),
        Schedule(
            "even blocks last", where(lambda role: role.kind == "thread" and not role.block % 2)
        ),
        Schedule("odd blocks last", where(lambda role: role.block % 2 == 1)),
        *(
            Schedule(f"rank {slow} last", where(lambda role, slow=slow: role.rank == slow))
            for slow in sorted({0, num_ranks // 2, num_ranks - 1})
        ),
    ]


class _Actor:
    """A generator that yields None to go on later, or the key of the event that it waits for."""

    __slots__ = ("level", "name", "steps")

    def __init__(self, name: str, level: int, steps: Steps) -> None:
        self.name, self.level, self.steps = name, level, steps


class _Scheduler:
    """Runs actors in an order drawn from the schedule's seed."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.draw = random.Random(schedule.seed)
        self.runnable: list[list[_Actor]] = [[] for _ in range(4)]
        self.waiting: dict[Hashable, list[_Actor]] = defaultdict(list)

    def add(self, name: str, role: Role, steps: Steps) -> None:
        level = self.schedule.level(role)
        self.runnable[level].append(_Actor(name, level, steps))

    def notify(self, key: Hashable) -> None:
        for actor in self.waiting.pop(key, ()):
            self.runnable[actor.level].append(actor)

    def run(self) -> None:
        while (ready := self._next_level()) is not None:
            at = int(self.draw.random() * len(ready))
            ready[at], ready[-1] = ready[-1], ready[at]
            actor = ready.pop()
            try:
                key = next(actor.steps)
            except StopIteration:
                continue
            if key is None:
                ready.append(actor)
            else:
                self.waiting[key].append(actor)

    def _next_level(self) -> list[_Actor] | None:
        """The runnable actors of the lowest level that has any."""
        for actors in self.runnable:
            if actors:
                return actors
        return None


class _Block:
    """A thread block of a launch: its threads meet at `nop`."""

    def __init__(
        self, rank: int, number: int, launch: int, operations: Sequence[Operation]
    ) -> None:
        self.rank, self.operations = rank, operations
        self.name = f"block {number} of rank {rank} in launch {launch + 1}"
        self.arrived = self.generation = 0
        self.stores: deque[Callable[[], None]] = deque()
        flat = [one for op in operations for one in (op, *op.body)]
        wide = [len(op.channels) + len(op.semaphores) for op in flat]
        wide += [len(op.targets) for op in flat if op.channel_type == "port"]
        self.num_threads = max([2, *wide])

    def show_stores(self) -> None:
        """Make everything that the block has stored at other ranks visible."""
        while self.stores:
            self.stores.popleft()()


@cache
def _positions(count: int, phase: int, num_threads: int) -> NDArray[np.int64]:
    """Units of a thread: every `num_threads`th one."""
    return np.arange(phase, count, num_threads, dtype=np.int64)


@cache
def _words(size: int, phase: int, num_threads: int) -> NDArray[np.int64]:
    """Words of a thread in a range of bytes: units of 16 bytes, and the rest by one thread."""
    units = size // 16
    words = (_positions(units, phase, num_threads)[:, None] * 4 + np.arange(4)).ravel()
    rest = np.arange(units * 4, size // WORD)
    return np.concatenate([words, rest]) if phase == 0 else words


class Execution:
    """Consecutive launches of a loaded plan under one schedule."""

    def __init__(
        self,
        loaded: Sequence[LoadedRank],
        call: Call,
        schedule: Schedule,
        *,
        launches: int = 3,
        double_scratch: bool = False,
        buffer_offset: int = 0,
    ) -> None:
        self.loaded, self.call, self.launches = loaded, call, launches
        self.scheduler = _Scheduler(schedule)
        self.double_scratch = double_scratch
        self.values = np.random.default_rng(schedule.seed)
        # rank -> buffer -> (allocation, first word of the buffer)
        self.memory = [self._allocated(rank, buffer_offset) for rank in range(len(loaded))]
        self.inputs: list[list[Words]] = []
        self.blocks: list[list[_Block]] = [[] for _ in loaded]
        self.outputs: list[list[Words | None]] = [[None] * len(loaded) for _ in range(launches)]
        self.counted: dict[Hashable, int] = defaultdict(int)
        self.awaited: dict[Hashable, int] = defaultdict(int)
        self.requests: dict[tuple[int, int], deque[Callable[[], None]]] = defaultdict(deque)
        self.queued: dict[tuple[int, int], int] = defaultdict(int)
        self.finished_requests: dict[tuple[int, int], int] = defaultdict(int)
        self.semaphores = [list(one.semaphores) for one in loaded]
        self.barriers: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        self.running = [0] * len(loaded)
        self.partner = self._partners()

    def run(self) -> str:
        """Run all launches; the reason of a hang, or an empty text."""
        self.inputs = [
            [
                self.values.integers(_SMALLEST_INPUT, 2**32, size // WORD, dtype=np.uint32)
                for size in self.call.input_bytes
            ]
            for _ in range(self.launches)
        ]
        for rank, one in enumerate(self.loaded):
            role = Role("caller", rank)
            self.scheduler.add(f"caller of rank {rank}", role, self._caller(rank))
            for kind, number in one.connections:
                if kind == "port":
                    steps = self._proxy(rank, number)
                    self.scheduler.add(f"proxy of rank {rank}", Role("proxy", rank), steps)
        self.scheduler.run()
        if all(output is not None for row in self.outputs for output in row):
            return ""
        waiting = {
            f"{actor.name} waits for {' '.join(map(str, key))}"
            for key, actors in self.scheduler.waiting.items()
            for actor in actors
            if isinstance(key, tuple) and key[0] in _CAUSES
        }
        return "; ".join(sorted(waiting)[:3])

    # Memory.

    def _allocated(self, rank: int, offset: int) -> dict[str, tuple[Words, int]]:
        one, first = self.loaded[rank], offset // WORD
        sizes = {"i": one.input_bytes // WORD, "o": one.output_bytes // WORD}
        places = {"i": first, "o": first}
        if self.call.shares_memory(rank):
            shared = np.full(first + max(sizes.values()), _GARBAGE)
            # The smaller buffer is the rank's part of the larger one, as in NCCL.
            smaller = min(sizes, key=lambda name: sizes[name])
            if sizes["i"] != sizes["o"]:
                places[smaller] += rank * sizes[smaller]
            buffers = dict.fromkeys(("i", "o"), shared)
        else:
            buffers = {name: np.full(first + size, _GARBAGE) for name, size in sizes.items()}
        memory = {name: (buffers[name], places[name]) for name in ("i", "o")}
        memory["s"] = (np.full(one.scratch_bytes // WORD, _GARBAGE), 0)
        return memory

    def _half(self, rank: int, launch: int) -> int:
        """Words that `rank` adds to addresses in scratch: half of its own in odd launches."""
        is_odd = self.double_scratch and launch % 2
        return (self.loaded[rank].scratch_bytes >> 1) // WORD if is_odd else 0

    def _place(
        self, rank: int, one: Operand, launch: int, *, scale: int = 1, size: int | None = None
    ) -> tuple[int, Words, int]:
        """(rank, allocation, first word) of an operand of `rank`; packets have `scale` 2."""
        owner = rank if one.rank is None else one.rank
        base = self.memory[rank][one.buffer][1]
        # Plain remote accesses do not add the half of the scratch; packets and own ones do.
        if one.buffer == "s" and (one.rank is None or scale == 2):
            base += self._half(rank, launch)
        first = base + one.offset * scale // WORD
        array = self.memory[owner][one.buffer][0]
        length = (one.size if size is None else size) * scale // WORD
        self._check(owner, one.buffer, array, first, length)
        return owner, array, first

    def _members(
        self, rank: int, one: Operand, launch: int, *, scale: int = 1, size: int | None = None
    ) -> list[tuple[int, Words, int]]:
        """The range of a switch channel in the memory of every member of its group."""
        base = self.memory[rank][one.buffer][1]
        if one.buffer == "s" and scale == 2:
            base += self._half(rank, launch)
        first = base + one.offset * scale // WORD
        length = (one.size if size is None else size) * scale // WORD
        places = []
        for member in one.group:
            array = self.memory[member][one.buffer][0]
            self._check(member, one.buffer, array, first, length)
            places.append((member, array, first))
        return places

    def _check(self, rank: int, buffer: str, array: Words, first: int, length: int) -> None:
        if length and not 0 <= first <= first + length <= len(array):
            where = f"words {first}..{first + length} of {len(array)}"
            raise OutOfBoundsError(f"buffer {buffer} of rank {rank}: {where}")

    # Actors.

    def _caller(self, rank: int) -> Steps:
        """Fill the input, launch, wait for the kernel, read the output, overwrite everything."""
        memory = self.memory[rank]
        source, target = memory["i"], memory["o"]
        one = self.loaded[rank]
        for launch in range(self.launches):
            data = self.inputs[launch][rank]
            target[0][target[1] :] = _GARBAGE
            source[0][source[1] : source[1] + len(data)] = data
            yield None
            self._launch(rank, launch)
            while self.running[rank]:
                yield ("kernel", rank)
            last = target[1] + one.output_bytes // WORD
            if not self.call.shares_memory(rank):
                source[0][source[1] :] = _GARBAGE
            yield None
            self.outputs[launch][rank] = target[0][target[1] : last].copy()
            for array, first in (source, target):
                array[first:] = _GARBAGE
            yield None

    def _launch(self, rank: int, launch: int) -> None:
        blocks = [_Block(rank, at, launch, ops) for at, ops in enumerate(self.loaded[rank].blocks)]
        self.blocks[rank] = blocks
        self.running[rank] = sum(block.num_threads for block in blocks)
        for number, block in enumerate(blocks):
            for thread in range(block.num_threads):
                steps = self._thread(block, thread, launch)
                self.scheduler.add(block.name, Role("thread", rank, number, thread), steps)
            self.scheduler.add(block.name, Role("stores", rank, number), self._stores(block))

    def _stores(self, block: _Block) -> Steps:
        """Make stores to other ranks visible, one at a time."""
        while True:
            while not block.stores:
                yield ("stores", block.name)
            block.stores.popleft()()
            yield None

    def _store(
        self,
        block: _Block,
        place: tuple[int, Words, int],
        at: object,
        data: Words,
        *,
        is_multicast: bool = False,
    ) -> None:
        """A plain store, delayed if it is to another rank over a memory channel."""
        rank, array, first = place

        def perform() -> None:
            array[first + at] = data  # type: ignore[operator]
            self.scheduler.notify(("packets", rank))

        if rank == block.rank or is_multicast:
            perform()
        else:
            block.stores.append(perform)
            self.scheduler.notify(("stores", block.name))

    def _proxy(self, rank: int, channel: int) -> Steps:
        """Do the requests of a port channel in order."""
        key = (rank, channel)
        while True:
            while not self.requests[key]:
                yield ("requests", *key)
            self.requests[key].popleft()()
            self.finished_requests[key] += 1
            self.scheduler.notify(("flush", *key))
            yield None

    def _request(self, rank: int, channel: int, perform: Callable[[], None]) -> None:
        self.requests[rank, channel].append(perform)
        self.queued[rank, channel] += 1
        self.scheduler.notify(("requests", rank, channel))

    def _thread(self, block: _Block, thread: int, launch: int) -> Steps:
        """All operations of a thread."""
        for at, op in enumerate(block.operations):
            if op.name != "pipeline":
                yield from self._perform(block, thread, launch, op, at)
                continue
            for turn in range(op.num_slices):
                for inner in op.body:
                    window = (turn * op.slice_bytes, op.slice_bytes)
                    sliced = _in_slice(inner, window)
                    yield from self._perform(block, thread, launch, sliced, at + turn)
        self.running[block.rank] -= 1
        if not self.running[block.rank]:
            for ended in self.blocks[block.rank]:
                ended.show_stores()
            self.scheduler.notify(("kernel", block.rank))

    def _perform(self, block: _Block, thread: int, launch: int, op: Operation, at: int) -> Steps:
        """The part of one thread in an operation, which another thread has next time."""
        if op.name in _RELEASES:
            block.show_stores()
        phase = (thread + at * 7) % block.num_threads
        if op.name in _SYNCHRONISATION:
            return _SYNCHRONISATION[op.name](self, block, thread, launch, op)
        if op.name in _PACKET_OPERATIONS:
            return _PACKET_OPERATIONS[op.name](self, block, thread, launch, op, phase)
        return self._plain(block, thread, launch, op, phase)

    # Synchronisation.

    def _meet(self, block: _Block) -> Steps:
        """All threads of the block."""
        generation = block.generation
        block.arrived += 1
        if block.arrived == block.num_threads:
            block.arrived = 0
            block.generation += 1
            self.scheduler.notify(("nop", block.name))
        while block.generation == generation:
            yield ("nop", block.name)

    def _nop(self, block: _Block, thread: int, launch: int, op: Operation) -> Steps:
        del thread, launch, op
        yield from self._meet(block)

    def _barrier(self, block: _Block, thread: int, launch: int, op: Operation) -> Steps:
        del launch
        yield from self._meet(block)
        key = (block.rank, op.barrier)
        state = self.barriers[key]
        if thread == 0:
            generation = state[1]
            state[0] += 1
            if state[0] == op.num_blocks:
                state[0] = 0
                state[1] += 1
                self.scheduler.notify(("barrier", *key))
            while state[1] == generation:
                yield ("barrier", *key)
        yield from self._meet(block)

    def _signal(self, block: _Block, thread: int, launch: int, op: Operation) -> Steps:
        del launch
        if thread < len(op.channels):
            self._raise(block.rank, op.channel_type, op.channels[thread])
            yield None

    def _raise(self, rank: int, kind: str, channel: int) -> None:
        """Count at the peer, for port channels by the proxy."""
        key = self.partner.get((kind, rank, channel))
        if kind == "port":
            self._request(rank, channel, lambda: self._count(key))
        else:
            self._count(key)

    def _count(self, key: Hashable) -> None:
        self.counted[key] += 1
        self.scheduler.notify(key)

    def _wait(self, block: _Block, thread: int, launch: int, op: Operation) -> Steps:
        del launch
        if thread < len(op.channels):
            key = ("signal", op.channel_type, block.rank, op.channels[thread])
            self.awaited[key] += 1
            expected = self.awaited[key]
            while self.counted[key] < expected:
                yield key
            yield None

    def _flush(self, block: _Block, thread: int, launch: int, op: Operation) -> Steps:
        del launch
        # The kernel takes the number of channels from dst_buff.
        if thread < len(op.targets) and thread < len(op.channels):
            yield from self._flushed(block.rank, op.channels[thread])

    def _flushed(self, rank: int, channel: int) -> Steps:
        key = (rank, channel)
        expected = self.queued[key]
        while self.finished_requests[key] < expected:
            yield ("flush", *key)

    def _acquire(self, block: _Block, thread: int, launch: int, op: Operation) -> Steps:
        del launch
        if thread < len(op.semaphores):
            number = op.semaphores[thread]
            values = self.semaphores[block.rank]
            while values[number] <= 0:
                yield ("semaphore", block.rank, number)
            values[number] -= 1
            yield None

    def _release(self, block: _Block, thread: int, launch: int, op: Operation) -> Steps:
        del launch
        if thread < len(op.semaphores):
            number = op.semaphores[thread]
            self.semaphores[block.rank][number] += 1
            self.scheduler.notify(("semaphore", block.rank, number))
            yield None

    def _partners(self) -> dict[tuple[str, int, int], Hashable]:
        """The counter that a signal on (type, rank, channel) raises: j-th pairs with j-th."""
        numbers = {
            (kind, rank, peer, ordinal): channel
            for rank, one in enumerate(self.loaded)
            for (kind, channel), (peer, ordinal) in one.connections.items()
        }
        return {
            (kind, rank, channel): ("signal", kind, peer, numbers.get((kind, peer, rank, ordinal)))
            for (kind, rank, peer, ordinal), channel in numbers.items()
        }

    # Plain data.

    def _plain(self, block: _Block, thread: int, launch: int, op: Operation, phase: int) -> Steps:
        if op.channel_type == "port":
            yield from self._port_put(block, thread, launch, op)
            return
        if op.name in ("put", "pws", "pwsf"):
            # One source buffer for all ranges: that of the first.
            first = op.sources[0].buffer if op.sources else "i"
            pairs = [
                (Operand(first, source.offset, target.size), target)
                for source, target in zip(op.sources, op.targets, strict=True)
            ]
        elif op.name == "get":
            # The kernel adds the offset of each end to the address of the other.
            pairs = [
                (
                    Operand(source.buffer, target.offset, source.size, source.rank),
                    Operand(target.buffer, source.offset, source.size),
                )
                for source, target in zip(op.sources, op.targets, strict=True)
            ]
        elif op.name in ("copy", "gstore"):
            pairs = [(op.sources[0], op.targets[0])]
        elif op.name == "glres":
            yield from self._switch_sum(block, launch, op, phase)
            return
        else:
            yield from self._sum(block, launch, op, phase)
            return
        for source, target in pairs:
            _, array, first_word = self._place(block.rank, source, launch)
            places = (
                self._members(block.rank, target, launch, size=source.size)
                if target.group
                else [self._place(block.rank, target, launch, size=source.size)]
            )
            words = _words(source.size, phase, block.num_threads)
            if len(words):
                data = array[first_word + words]
                for place in places:
                    self._store(block, place, words, data, is_multicast=bool(target.group))
                yield None

    def _sum(self, block: _Block, launch: int, op: Operation, phase: int) -> Steps:
        """re, res, rre, rres: the first source is local, the first target too."""
        size = op.sources[0].size
        whole = size // 16 * 16
        # Addresses are truncated to 16 bytes.
        sources = [_aligned(one) for one in op.sources]
        targets = [_aligned(one) for one in op.targets]
        read = [self._place(block.rank, one, launch, size=whole) for one in sources]
        written = [self._place(block.rank, one, launch, size=whole) for one in targets]
        words = _words(whole, phase, block.num_threads)
        if not op.name.endswith("s"):
            written = written[:1]
        if len(words):
            total = sum(
                (array[first + words] for _, array, first in read[1:]),
                start=read[0][1][read[0][2] + words],
            )
            for place in written:
                self._store(block, place, words, total)
            yield None
        if size != whole and phase == 0:
            self._sum_rest(block, launch, op, whole)
            yield None

    def _sum_rest(self, block: _Block, launch: int, op: Operation, whole: int) -> None:
        """Bytes after the last 16: from input to output, whatever the types, at one index."""
        offset = op.sources[0].offset + whole
        rest = op.sources[0].size - whole
        _, array, first = self._place(block.rank, Operand("i", offset, rest), launch)
        total = array[first : first + rest // WORD].copy()
        for one in op.sources[1:]:
            moved = Operand(one.buffer, one.offset + offset, rest, one.rank)
            _, array, first = self._place(block.rank, moved, launch)
            total += array[first : first + rest // WORD]
        ends = [Operand("o", offset, rest)]
        if op.name.endswith("s"):
            ends += [
                Operand(one.buffer, one.offset + offset, rest, one.rank) for one in op.targets[1:]
            ]
        for one in ends:
            place = self._place(block.rank, one, launch)
            self._store(block, place, np.arange(rest // WORD), total)

    def _switch_sum(self, block: _Block, launch: int, op: Operation, phase: int) -> Steps:
        """glres: the sum over all members of the group, stored to all members of the group."""
        source, target = op.sources[0], op.targets[0]
        read = self._members(block.rank, source, launch)
        written = self._members(block.rank, target, launch, size=source.size)
        words = _words(source.size, phase, block.num_threads)
        if len(words):
            total = np.zeros(len(words), np.uint32)
            for _, array, first in read:
                total += array[first + words]
            for place in written:
                self._store(block, place, words, total, is_multicast=True)
            yield None

    def _port_put(self, block: _Block, thread: int, launch: int, op: Operation) -> Steps:
        """Thread i asks the proxy for range i."""
        if thread >= len(op.targets):
            return
        source, target = op.sources[thread], op.targets[thread]
        channel = op.channels[thread]
        # The proxy counts from the start of the allocation, not from the caller's buffer.
        array, base = self.memory[block.rank][source.buffer]
        first = source.offset // WORD
        if source.buffer == "s":
            first += base + self._half(block.rank, launch)
        self._check(block.rank, source.buffer, array, first, target.size // WORD)
        self._ask_for_copy(block.rank, channel, (array, first), target, launch, 1)
        if op.name in ("pws", "pwsf"):
            self._raise(block.rank, "port", channel)
        yield None
        if op.name == "pwsf":
            yield from self._flushed(block.rank, channel)

    def _ask_for_copy(
        self,
        rank: int,
        channel: int,
        source: tuple[Words, int],
        target: Operand,
        launch: int,
        scale: int,
    ) -> None:
        owner, written, start = self._place(rank, target, launch, scale=scale)
        array, first = source
        length = target.size * scale // WORD

        def perform() -> None:
            written[start : start + length] = array[first : first + length]
            self.scheduler.notify(("packets", owner))

        self._request(rank, channel, perform)

    # Packets.

    def _packets(self, block: _Block, thread: int, launch: int, op: Operation, phase: int) -> Steps:
        """ppkt, rppkt, cpkt, upkt, repkt, respkt, recpkt, recspkt, gstorepkt on memory."""
        plain, read, written, ends = _roles(op)
        if op.channel_type == "port":
            yield from self._port_packets(block, thread, launch, op, phase)
            return
        if op.name == "ppkt":
            # Each range has its own source, all of the first source's buffer.
            for source, target in zip(op.sources, op.targets, strict=True):
                same = Operand(op.sources[0].buffer, source.offset, source.size)
                yield from self._flagged(block, launch, [same], [], [], [target], phase)
            return
        yield from self._flagged(block, launch, plain, read, written, ends, phase)

    def _flagged(
        self,
        block: _Block,
        launch: int,
        plain: Sequence[Operand],
        read: Sequence[Operand],
        written: Sequence[Operand],
        ends: Sequence[Operand],
        phase: int,
    ) -> Steps:
        """Sum of plain and read packets, stored plainly to `written`, as packets to `ends`."""
        flag = np.uint32(launch + 1)
        rank = block.rank
        size = (plain or read)[0].size
        reads = [self._place(rank, one, launch, scale=2, size=size) for one in read]
        plains = [self._place(rank, one, launch, size=size) for one in plain]
        stores = [self._place(rank, one, launch, size=size) for one in written]
        sends = [
            place
            for one in ends
            for place in (
                self._members(rank, one, launch, scale=2, size=size)
                if one.group
                else [self._place(rank, one, launch, scale=2, size=size)]
            )
        ]
        left = _positions(size // 8, phase, block.num_threads)
        while len(left):
            ready = np.ones(len(left), np.bool_)
            for _, array, first in reads:
                word = first + 4 * left
                ready &= (array[word + 1] == flag) & (array[word + 3] == flag)
            count = len(left) if ready.all() else int(ready.argmin())
            if not count:
                yield ("packets", rank)
                continue
            done, left = left[:count], left[count:]
            data = np.zeros((count, 2), np.uint32)
            for _, array, first in reads:
                word = first + 4 * done
                data[:, 0] += array[word]
                data[:, 1] += array[word + 2]
            for _, array, first in plains:
                data += array[(first + 2 * done)[:, None] + np.arange(2)]
            for _, array, first in stores:
                array[(first + 2 * done)[:, None] + np.arange(2)] = data
            for owner, array, first in sends:
                word = first + 4 * done
                array[word], array[word + 2] = data[:, 0], data[:, 1]
                array[word + 1] = array[word + 3] = flag
                self.scheduler.notify(("packets", owner))
            yield None

    def _port_packets(
        self, block: _Block, thread: int, launch: int, op: Operation, phase: int
    ) -> Steps:
        """rppkt and ppkt through ports: packets that lie in the own scratch are copied."""
        if op.name == "rppkt":
            yield from self._flagged(block, launch, [], op.sources[:1], [], [], phase)
            yield from self._meet(block)
        if thread < len(op.targets):
            source = op.sources[0 if op.name == "rppkt" else thread]
            target = op.targets[thread]
            _, array, first = self._place(block.rank, source, launch, scale=2)
            place = (array, first)
            self._ask_for_copy(block.rank, op.channels[thread], place, target, launch, 2)
            yield None


def _roles(
    op: Operation,
) -> tuple[Sequence[Operand], Sequence[Operand], Sequence[Operand], Sequence[Operand]]:
    """(plain sources, packet sources, plain targets, packet targets) of a packet operation."""
    sources, targets = op.sources, op.targets
    if op.name in ("cpkt", "ppkt"):
        return sources[:1], (), (), targets
    if op.name in ("rppkt", "gstorepkt"):
        return (), sources[:1], (), targets
    if op.name == "upkt":
        return (), sources[:1], targets[:1], ()
    packets = {"repkt": 1, "respkt": len(targets), "recpkt": 2, "recspkt": len(targets)}
    return sources[:1], sources[1:], targets[:1], targets[1 : packets[op.name]]


def _aligned(one: Operand) -> Operand:
    return Operand(one.buffer, one.offset // 16 * 16, one.size, one.rank, one.group)


def _in_slice(op: Operation, window: tuple[int, int]) -> Operation:
    """An operation of a pipeline in one slice; sizes are 32 bits without a sign."""
    if op.name in _SYNCHRONISATION or op.name in _PACKET_OPERATIONS:
        return op
    offset, most = window

    def cut(one: Operand) -> Operand:
        size = min((one.size - offset) % (1 << 32), most)
        return Operand(one.buffer, one.offset + offset, size, one.rank, one.group)

    return Operation(
        op.name,
        op.channel_type,
        op.channels,
        tuple(map(cut, op.sources)),
        tuple(map(cut, op.targets)),
    )


_SYNCHRONISATION: dict[str, Callable[[Execution, _Block, int, int, Operation], Steps]] = {
    "nop": Execution._nop,
    "barrier": Execution._barrier,
    "signal": Execution._signal,
    "rlxsignal": Execution._signal,
    "wait": Execution._wait,
    "rlxwait": Execution._wait,
    "flush": Execution._flush,
    "sem_acquire": Execution._acquire,
    "sem_release": Execution._release,
}
_PACKET_OPERATIONS = dict.fromkeys(
    ("ppkt", "rppkt", "cpkt", "upkt", "repkt", "respkt", "recpkt", "recspkt", "gstorepkt"),
    Execution._packets,
)
