"""Reference for the races, deadlocks and contents of a plan: each event knows all earlier events.

The model runs a plan once, block by block; each block runs until it has to wait. Every executed
operation is an event, and the bits of an integer are the set of events that happen before it in
every possible run. The checker uses vector clocks, pools and compiled columns instead, and shares
no code with this model, so that a comparison shows the errors of either. The ranges come from the
model of the loader (`executor_plan`), not from the plugin.

Cells are units of 16 bytes. Pipelines are executed once, without slices.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from executor_plan import Call, Json, Operand, Operation, load_plan
from executor_verdicts import PROMISES

UNIT = 16
# A cell: rank, buffer ("io" if both share memory, "p" for packets), half of the scratch, unit.
Cell = tuple[int, str, int, int]
# Cells of one operand on one rank.
Cells = list[Cell]
# A race: operation, other operation (rows, -1 for the host), launch, launch of the other one, and
# rank of the host or -1.
Race = tuple[int, int, int, int, int]
_RAISES = frozenset(("signal", "rlxsignal", "sem_release", "pws", "pwsf"))
_TAKES = frozenset(("wait", "rlxwait", "sem_acquire"))
# Values are words of 32 bits, as in the promises of the executor model.
_MODULUS = 1 << 32
# More counts than any plan of the tests takes.
_MAX_INITIAL_COUNT = 1000


@dataclass(frozen=True, slots=True)
class Event:
    """An executed operation.

    `row`: of the operation, -1 for the host; `before`: the set of events that happen before it;
    `host_rank`: rank of the host, else -1; `request`: the event that asked the proxy for it, -1 if
    no proxy executes it.
    """

    row: int
    launch: int
    before: int
    host_rank: int = -1
    request: int = -1


@dataclass(slots=True)
class Launch:
    """Result of one launch.

    `blocked`: rows at which blocks wait forever. `races`: whether the first race of two operations
    is that of a writer with a proxy that was asked to read. `exposed`: rows whose proxy may read
    after the kernel has ended. `wrong`: (rank, unit) of wrong outputs.
    """

    blocked: set[int] = field(default_factory=set)
    races: dict[Race, bool] = field(default_factory=dict)
    exposed: set[int] = field(default_factory=set)
    wrong: set[tuple[int, int]] = field(default_factory=set)


@dataclass(slots=True)
class _Block:
    """A thread block. `arrival`: generation of the barrier at which it waits, or -1."""

    number: int
    rank: int
    rows: list[tuple[int, Operation]]
    position: int = 0
    items_done: int = 0
    arrival: int = -1


@dataclass(slots=True)
class _Counter:
    """A signal or semaphore. `queue`: for each count, the events before its raise; -1: unknown."""

    queue: deque[int] = field(default_factory=deque)
    last_raise: int = -1
    last_take: int = -1
    taken: int = 0
    all_raises: int = 0
    raises_per_launch: int = 0
    has_initial_count: bool = False


@dataclass(slots=True)
class _Barrier:
    """`gathered`: events before all arrivals; `released`: those at the last release."""

    gathered: int = 0
    released: int = 0
    waiting: int = 0
    generation: int = 0


class OrderedModel:
    """Consecutive launches of a plan; `late`: counters whose raises are known to have no order."""

    def __init__(self, plan: Json, late: frozenset[object] = frozenset()) -> None:
        self.plan = plan
        parts = [
            op.get("tbg_info", {}).get("tbg_size", 1)
            for gpu in plan["gpus"]
            for block in gpu["threadblocks"]
            for outer in block["ops"]
            for op in (outer, *outer.get("ops", ()))
        ]
        self.chunk_units = math.lcm(*parts, 1)
        chunk = self.chunk_units * UNIT
        plan = {key: plan[key] for key in plan if "message_size" not in key}
        plan["buffer_alignment"] = UNIT
        self.in_place = bool(plan["inplace"])
        gpus = plan["gpus"]
        call = Call(
            tuple(gpu["input_chunks"] * chunk for gpu in gpus),
            tuple(gpu["output_chunks"] * chunk for gpu in gpus),
            self.in_place,
        )
        self.sizes = [
            (gpu["input_chunks"] * self.chunk_units, gpu["output_chunks"] * self.chunk_units)
            for gpu in gpus
        ]
        self.is_double = bool(plan.get("use_double_scratch_buffer", False))
        self.loaded = load_plan(plan, call)
        self.has_host = plan["collective"] in PROMISES
        self.blocks: list[_Block] = []
        row = 0
        for rank, loaded in enumerate(self.loaded):
            for ops in loaded.blocks:
                flat = [
                    inner
                    for op in ops
                    for inner in (op, *(op.body if op.name == "pipeline" else ()))
                ]
                self.blocks.append(_Block(len(self.blocks), rank, list(enumerate(flat, row))))
                row += len(flat)
        self.channel_ends = {
            (kind, rank, peer, ordinal)
            for rank, loaded in enumerate(self.loaded)
            for (kind, _), (peer, ordinal) in loaded.connections.items()
        }
        self.known: dict[object, int] = defaultdict(int)
        self.events: list[Event] = []
        self.values: dict[Cell, int] = {}
        self.last_write: dict[Cell, int] = {}
        self.reads: dict[Cell, list[int]] = defaultdict(list)
        self.packets: dict[Cell, tuple[int, int]] = {}
        self.counters: dict[object, _Counter] = defaultdict(_Counter)
        self.late, self.unordered = late, set[object]()
        self.barriers: dict[object, _Barrier] = defaultdict(_Barrier)
        self.launch_number = 0
        draw = np.random.default_rng(7)
        self.inputs = [draw.integers(0, _MODULUS, size[0], np.uint32) for size in self.sizes]
        self._count_raises()

    # Launches.

    def launch(self) -> Launch:
        """Run one launch until no block can go on."""
        self.result = Launch()
        self.values.clear()
        for counter in self.counters.values():
            counter.taken = 0
        self._meet_hosts(is_start=True)
        for block in self.blocks:
            block.position = block.items_done = 0
            block.arrival = -1
        is_moving = True
        while is_moving:
            is_moving = False
            for block in self.blocks:
                while block.position < len(block.rows) and self._perform(block):
                    block.position += 1
                    block.items_done = 0
                    is_moving = True
        stuck = [block for block in self.blocks if block.position < len(block.rows)]
        self.result.blocked = {block.rows[block.position][0] for block in stuck}
        if not stuck:
            self._meet_hosts(is_start=False)
            self._expose_late_reads()
        self.result.wrong = self._wrong_outputs()
        self.launch_number += 1
        return self.result

    def _meet_hosts(self, *, is_start: bool) -> None:
        """Order each rank's blocks by its stream; the host fills inputs or reads outputs."""
        for rank in range(len(self.loaded)):
            actors = [block.number for block in self.blocks if block.rank == rank]
            joined = self.known["host", rank]
            for actor in actors:
                joined |= self.known[actor]
            event = self._add_event(Event(-1, self.launch_number, joined, rank))
            for key in (("host", rank), *actors):
                self.known[key] = joined | 1 << event
            for unit in range(self.sizes[rank][0 if is_start else 1]):
                cell = self._cell(rank, "i" if is_start else "o", 0, unit)
                if is_start:
                    self.values[cell] = int(self.inputs[rank][unit])
                if self.has_host and is_start:
                    self._write(cell, event)
                elif self.has_host:
                    self._read(cell, event)

    def _expose_late_reads(self) -> None:
        """Note requests whose source the caller gets back before the proxy has read it."""
        for rank, sizes in enumerate(self.sizes):
            for name, size in zip("io", sizes, strict=True):
                for unit in range(size):
                    for read in self.reads[self._cell(rank, name, 0, unit)]:
                        is_ahead = not self.known["host", rank] >> read & 1
                        if self.events[read].request >= 0 and is_ahead:
                            self.result.exposed.add(self.events[read].row)

    def _wrong_outputs(self) -> set[tuple[int, int]]:
        if not self.has_host:
            return set()
        promised = PROMISES[self.plan["collective"]](self.inputs)
        return {
            (rank, unit)
            for rank, (_, words) in enumerate(promised)
            for unit, word in enumerate(words.tolist())
            if self.values.get(self._cell(rank, "o", 0, unit)) != word
        }

    # Events and accesses.

    def _add_event(self, event: Event) -> int:
        self.events.append(event)
        return len(self.events) - 1

    def _is_ordered(self, earlier: int, event: int) -> bool:
        """Whether an event is another one, or happens before it; True for -1, no event."""
        return earlier in (-1, event) or bool(self.events[event].before >> earlier & 1)

    def _note_race(self, other: int, event: int, *, is_late: bool = False) -> None:
        first, second = self.events[other], self.events[event]
        host = max(first.host_rank, second.host_rank)
        race = (second.row, first.row, self.launch_number, first.launch, host)
        self.result.races.setdefault(race, is_late)

    def _read(self, cell: Cell, event: int) -> int | None:
        """Note a race with an unordered write; return the value, None if it is undefined."""
        self._order_after_write(cell, event)
        # Reads that are before this one need no comparison with later writes.
        unordered = [read for read in self.reads[cell] if not self._is_ordered(read, event)]
        self.reads[cell] = [*unordered, event]
        return self.values.get(cell)

    def _order_after_write(self, cell: Cell, event: int) -> None:
        """Note a race if the last write of a cell is not before an event."""
        writer = self.last_write.get(cell, -1)
        if not self._is_ordered(writer, event):
            self._note_race(writer, event)

    def _write(self, cell: Cell, event: int) -> None:
        """Note races with an unordered write and with unordered reads."""
        self._order_after_write(cell, event)
        for read in self.reads[cell]:
            if self._is_ordered(read, event):
                continue
            request = self.events[read].request
            is_late = request >= 0 and self._is_ordered(request, event)
            # The host that overwrites an input too early is noted at the end of the launch.
            if self.events[event].row >= 0 or not is_late:
                self._note_race(read, event, is_late=is_late)
        self.reads[cell] = []
        self.last_write[cell] = event

    # Operations.

    def _perform(self, block: _Block) -> bool:
        """Execute the block's next operation; False if it has to wait."""
        row, op = block.rows[block.position]
        if op.name in _TAKES:
            return self._take(block, row, op)
        if op.name == "barrier" and not self._pass_barrier(block, row, op):
            return False
        moves = list(self._moves(block.rank, op))
        read_cells = [cell for reads, _ in moves for cells in reads for cell in cells]
        if not all(self._is_ready(cell) for cell in read_cells):
            return False
        for cell in read_cells:
            if cell[1] == "p":
                self.known[block.number] |= self.packets[cell][1]
        event = self._step(block, row)
        by_port = op.channel_type == "port"
        for at, (reads, writes) in enumerate(moves):
            if not by_port:
                self._move(reads, writes, event)
                continue
            for position, target in enumerate(writes):
                channel = op.channels[at if len(moves) > 1 else position]
                self._move(reads, [target], self._request(block, channel, event))
        if op.name in _RAISES:
            self._raise(block, op, event)
        if by_port and op.name in ("flush", "pwsf"):
            # The executor counts the channels of a flush by its destinations.
            count = len(op.targets) if op.name == "flush" else len(op.channels)
            for channel in op.channels[:count]:
                self.known[block.number] |= self.known["proxy", block.rank, channel]
        return True

    def _step(self, block: _Block, row: int) -> int:
        """Add an event of a block, which all later ones of the block follow."""
        event = self._add_event(Event(row, self.launch_number, self.known[block.number]))
        self.known[block.number] |= 1 << event
        return event

    def _request(self, block: _Block, channel: int, request: int) -> int:
        """Add the event of a proxy: one move, after the request and all requests before it."""
        key = ("proxy", block.rank, channel)
        self.known[key] |= self.known[block.number]
        asked = self.events[request]
        event = self._add_event(Event(asked.row, asked.launch, self.known[key], request=request))
        self.known[key] |= 1 << event
        return event

    def _is_ready(self, cell: Cell) -> bool:
        if cell[1] != "p":
            return True
        launch, _ = self.packets.get(cell, (-1, 0))
        return launch == self.launch_number

    def _move(self, reads: list[Cells], writes: list[Cells], event: int) -> None:
        """Add the cells of all sources and store the sum to all targets."""
        for at, first in enumerate(reads[0]):
            total: int | None = 0
            for cells in reads:
                word = self._read(cells[at], event)
                total = None if total is None or word is None else (total + word) % _MODULUS
            for cells in writes:
                cell = cells[at]
                if len(reads) == 1 and cell == first:
                    continue
                if cell[1] == "p" and self._is_ready(cell):
                    # Its reader takes the first packet or this one, whatever their order.
                    self._note_race(self.last_write[cell], event)
                self._write(cell, event)
                self.values.pop(cell, None)
                if total is not None:
                    self.values[cell] = total
                if cell[1] == "p":
                    self.packets[cell] = (
                        self.launch_number,
                        self.events[event].before | 1 << event,
                    )

    # Synchronisation.

    def _raised_keys(self, rank: int, op: Operation) -> Iterator[tuple[object, int]]:
        """(counter, channel) of each counter that is raised; channel -1 for semaphores."""
        if op.name == "sem_release":
            for number in op.semaphores:
                yield ("semaphore", rank, number), -1
        elif op.name not in ("pws", "pwsf") or op.channel_type == "port":
            for channel in op.channels:
                peer, ordinal = self.loaded[rank].connections[op.channel_type, channel]
                if peer != rank and (op.channel_type, peer, rank, ordinal) in self.channel_ends:
                    yield (op.channel_type, rank, peer, ordinal), channel

    def _taken_keys(self, rank: int, op: Operation) -> list[object]:
        """The counters that are taken, in order."""
        if op.name == "sem_acquire":
            return [("semaphore", rank, number) for number in op.semaphores]
        connections = [
            self.loaded[rank].connections[op.channel_type, channel] for channel in op.channels
        ]
        return [(op.channel_type, peer, rank, ordinal) for peer, ordinal in connections]

    def _count_raises(self) -> None:
        """Set the counts of semaphores before the first launch, and the raises per launch."""
        for rank, loaded in enumerate(self.loaded):
            for number, initial in enumerate(loaded.semaphores):
                counter = self.counters["semaphore", rank, number]
                counter.queue.extend([-1] * min(initial, _MAX_INITIAL_COUNT))
                counter.has_initial_count = initial > 0
        for block in self.blocks:
            for _, op in block.rows:
                if op.name in _RAISES:
                    for key, _ in self._raised_keys(block.rank, op):
                        self.counters[key].raises_per_launch += 1

    def _raise(self, block: _Block, op: Operation, event: int) -> None:
        """Raise the counters of an operation; a port channel raises them by its proxy."""
        for key, channel in self._raised_keys(block.rank, op):
            counter, known = self.counters[key], self.known[block.number]
            if op.channel_type == "port" and channel >= 0:
                proxy = ("proxy", block.rank, channel)
                self.known[proxy] |= known
                known = self.known[proxy]
            if not self._is_ordered(counter.last_raise, event):
                self.unordered.add(key)
            counter.last_raise = event
            counter.all_raises |= known
            counter.queue.append(known)

    def _take(self, block: _Block, row: int, op: Operation) -> bool:
        """Take one count of each channel or semaphore; a block that waits keeps those taken."""
        for key in self._taken_keys(block.rank, op)[block.items_done :]:
            counter = self.counters[key]
            if not counter.queue:
                return False
            raised = counter.queue.popleft()
            block.items_done += 1
            counter.taken += 1
            take = self._step(block, row)
            if not self._is_ordered(counter.last_take, take):
                self._note_race(counter.last_take, take)
            counter.last_take = take
            if key not in self.late:
                self.known[block.number] |= max(raised, 0)
            elif counter.taken == counter.raises_per_launch and not counter.has_initial_count:
                # The last count of a launch proves all raises, unless initial counts were left.
                self.known[block.number] |= counter.all_raises
        self._step(block, row)
        return True

    def _pass_barrier(self, block: _Block, row: int, op: Operation) -> bool:
        """Arrive at a barrier of the rank, or leave it when all blocks have arrived."""
        barrier = self.barriers[block.rank, op.barrier]
        if block.arrival < 0:
            self._step(block, row)
            barrier.gathered |= self.known[block.number]
            block.arrival = barrier.generation
            barrier.waiting += 1
            if barrier.waiting == op.num_blocks:
                barrier.released, barrier.waiting = barrier.gathered, 0
                barrier.generation += 1
        if barrier.generation == block.arrival:
            return False
        block.arrival = -1
        self.known[block.number] |= barrier.released
        return True

    # Ranges.

    def _cell(self, rank: int, buffer: str, half: int, unit: int) -> Cell:
        if buffer in "io" and self.in_place:
            sizes = dict(zip("io", self.sizes[rank], strict=True))
            # The smaller buffer is the rank's part of the larger one.
            is_part = sizes[buffer] < max(sizes.values())
            return rank, "io", 0, unit + (rank * sizes[buffer] if is_part else 0)
        return rank, buffer, half, unit

    def _cells(
        self, rank: int, operand: Operand, size: int, *, is_packet: bool, is_port: bool
    ) -> list[Cells]:
        """The cells of an operand on each rank that has a part of it."""
        is_own = operand.rank is None and not operand.group
        half = 0
        if operand.buffer == "s" and self.is_double and (is_packet or (is_own and not is_port)):
            half = self.launch_number % 2
        buffer = "p" if is_packet else operand.buffer
        owners = operand.group or (rank if operand.rank is None else operand.rank,)
        first, count = operand.offset // UNIT, size // UNIT
        return [
            [self._cell(owner, buffer, half, unit) for unit in range(first, first + count)]
            for owner in owners
        ]

    def _moves(self, rank: int, op: Operation) -> Iterator[tuple[list[Cells], list[Cells]]]:
        """(cells of each source, cells of each target) of every move."""
        is_port = op.channel_type == "port"
        for sources, targets in _ranges(op):
            size = sources[0][0].size
            reads, writes = (
                [
                    cells
                    for operand, is_packet in side
                    for cells in self._cells(
                        rank, operand, size, is_packet=is_packet, is_port=is_port
                    )
                ]
                for side in (sources, targets)
            )
            yield reads, writes


_WITHOUT_RANGES = _TAKES | {
    "signal", "rlxsignal", "sem_release", "nop", "barrier", "flush", "pipeline",
}  # fmt: skip
# An operand, and whether it is read or written as packets.
_Ranges = list[tuple[Operand, bool]]
# Positions of the first source and of the first target that are packets.
_FIRST_PACKETS = {"ppkt": (9, 0), "cpkt": (9, 0), "upkt": (0, 9), "rppkt": (0, 0),
                  "repkt": (1, 9), "respkt": (1, 1), "recpkt": (1, 1), "recspkt": (1, 1),
                  "gstorepkt": (0, 0)}  # fmt: skip


def _ranges(op: Operation) -> Iterator[tuple[_Ranges, _Ranges]]:
    """The sources and targets of every move of an operation, as the kernel resolves them."""
    if op.name in _WITHOUT_RANGES:
        return
    reads, writes = _FIRST_PACKETS.get(op.name, (9, 9))
    sources = [(operand, position >= reads) for position, operand in enumerate(op.sources)]
    targets = [(operand, position >= writes) for position, operand in enumerate(op.targets)]
    if op.name in ("put", "pws", "pwsf", "ppkt"):
        is_memory = op.channel_type != "port"
        for (source, is_packet), target in zip(sources, targets, strict=True):
            # On memory channels the kernel reads all sources from the buffer of the first one.
            buffer = op.sources[0].buffer if is_memory else source.buffer
            yield [(Operand(buffer, source.offset, source.size), is_packet)], [target]
    elif op.name == "get":
        # Each side has the offset of the other one.
        for far, near in zip(op.sources, op.targets, strict=True):
            remote = Operand(far.buffer, near.offset, far.size, far.rank)
            local = Operand(near.buffer, far.offset, far.size)
            yield [(remote, False)], [(local, False)]
    else:
        yield sources, targets


def run_launches(plan: Json, launches: int) -> list[Launch]:
    """Run consecutive launches, up to the first that does not end.

    If raises of a counter turn out to have no order, all launches are repeated with it in `late`.
    """
    late: frozenset[object] = frozenset()
    while True:
        model = OrderedModel(plan, late)
        results: list[Launch] = []
        while len(results) < launches and not (results and results[-1].blocked):
            results.append(model.launch())
        if model.unordered <= late:
            return results
        late |= model.unordered
