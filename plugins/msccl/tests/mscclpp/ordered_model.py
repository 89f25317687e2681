"""Reference of the races, deadlocks and contents of a plan, with explicit sets of earlier events.

One deterministic run, block by block, each as far as it gets. Every executed operation is an event,
and a set of events (bits of an integer) says which events happen before it in every run. This
replaces the vector clocks, pools and compiled columns of the checker, so that an error in one of
them shows. The ranges come from the model of the loader (`executor_plan`), not from the plugin.

Cells are units of 16 bytes. Pipelines are executed once, without slices.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from executor_plan import Call, Json, Operand, Operation, load_plan

UNIT = 16
# A cell: rank, buffer ("io" where both share memory, "p" for packets), half of the scratch, unit.
Cell = tuple[int, str, int, int]
# A race: operation, other operation (rows, -1 for the host), launch, launch of the other one, and
# rank of the host or -1.
Race = tuple[int, int, int, int, int]
_RAISES = frozenset(("signal", "rlxsignal", "sem_release", "pws", "pwsf"))
_TAKES = frozenset(("wait", "rlxwait", "sem_acquire"))
_MODULUS = 1 << 64
_NAMED = ("allreduce", "allgather", "reducescatter", "alltoall", "sendrecv")


@dataclass(frozen=True, slots=True)
class Event:
    """An executed operation: `row` -1 for the host; `request`: event that asked the proxy for it."""

    row: int
    launch: int
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
    rank: int
    rows: list[tuple[int, Operation]]
    position: int = 0
    items_done: int = 0
    generation: int = -1


@dataclass(slots=True)
class _Counter:
    """Raises that were not taken yet, as sets of events; `last_raise`, `last_take`: events."""

    queue: deque[int]
    last_raise: int = -1
    last_take: int = -1
    taken: int = 0
    all_raises: int = 0
    raised_per_launch: int = 0


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
        self.has_host = plan["collective"] in _NAMED
        self.blocks: list[_Block] = []
        row = 0
        for rank, one in enumerate(self.loaded):
            for ops in one.blocks:
                flat = [
                    inner
                    for op in ops
                    for inner in (op, *(op.body if op.name == "pipeline" else ()))
                ]
                self.blocks.append(_Block(rank, list(enumerate(flat, row))))
                row += len(flat)
        self.channel_ends = {
            (kind, rank, peer, ordinal): channel
            for rank, one in enumerate(self.loaded)
            for (kind, channel), (peer, ordinal) in one.connections.items()
        }
        self.known: dict[object, int] = defaultdict(int)
        self.events: list[Event] = []
        self.before: list[int] = []
        self.values: dict[Cell, int] = {}
        self.last_write: dict[Cell, int] = {}
        self.reads: dict[Cell, list[int]] = defaultdict(list)
        self.packets: dict[Cell, tuple[int, int]] = {}
        self.counters: dict[object, _Counter] = {}
        self.late, self.unordered = late, set[object]()
        self.barriers: dict[object, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        self.launch_number = 0
        draw = random.Random(7)
        self.inputs = [[draw.randrange(_MODULUS) for _ in range(size[0])] for size in self.sizes]
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
            block.generation = -1
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
            actors = [number for number, one in enumerate(self.blocks) if one.rank == rank]
            joined = self.known["host", rank]
            for actor in actors:
                joined |= self.known[actor]
            event = self._new_event(Event(-1, self.launch_number, rank), joined)
            for key in (("host", rank), *actors):
                self.known[key] = joined | 1 << event
            for unit in range(self.sizes[rank][0 if is_start else 1]):
                cell = self._cell(rank, "i" if is_start else "o", 0, unit)
                if is_start:
                    self.values[cell] = self.inputs[rank][unit]
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
        return {
            (rank, unit)
            for rank, wanted in enumerate(self._promised())
            for unit, word in enumerate(wanted)
            if self.values.get(self._cell(rank, "o", 0, unit)) != word
        }

    def _promised(self) -> list[list[int]]:
        name, inputs = self.plan["collective"], self.inputs
        ranks = range(len(inputs))
        if name not in _NAMED:
            return []
        if name == "allgather":
            return [[word for one in inputs for word in one] for _ in ranks]
        if name == "sendrecv":
            return [inputs[rank - 1] for rank in ranks]
        part = len(inputs[0]) // len(inputs)
        if name == "alltoall":
            return [
                [word for one in inputs for word in one[rank * part : (rank + 1) * part]]
                for rank in ranks
            ]
        sums = [sum(words) % _MODULUS for words in zip(*inputs, strict=True)]
        if name == "allreduce":
            return [sums for _ in ranks]
        return [sums[rank * part : (rank + 1) * part] for rank in ranks]

    # Events and accesses.

    def _new_event(self, event: Event, before: int) -> int:
        self.events.append(event)
        self.before.append(before)
        return len(self.events) - 1

    def _is_before(self, earlier: int, event: int) -> bool:
        return bool(self.before[event] >> earlier & 1)

    def _note_race(self, other: int, event: int, *, is_late: bool = False) -> None:
        first, second = self.events[other], self.events[event]
        host = max(first.host_rank, second.host_rank)
        race = (second.row, first.row, self.launch_number, first.launch, host)
        self.result.races.setdefault(race, is_late)

    def _read(self, cell: Cell, event: int) -> int | None:
        writer = self.last_write.get(cell, -1)
        if writer >= 0 and writer != event and not self._is_before(writer, event):
            self._note_race(writer, event)
        # Reads that are before this one need no comparison with later writes.
        kept = [one for one in self.reads[cell] if one != event and not self._is_before(one, event)]
        self.reads[cell] = [*kept, event]
        return self.values.get(cell)

    def _write(self, cell: Cell, event: int) -> None:
        writer = self.last_write.get(cell, -1)
        if writer >= 0 and writer != event and not self._is_before(writer, event):
            self._note_race(writer, event)
        for read in self.reads[cell]:
            if read == event or self._is_before(read, event):
                continue
            request = self.events[read].request
            is_late = request >= 0 and (request == event or self._is_before(request, event))
            # The host that overwrites an input too early is noted at the end of the launch.
            if self.events[event].row >= 0 or not is_late:
                self._note_race(read, event, is_late=is_late)
        self.reads[cell] = []
        self.last_write[cell] = event

    # Operations.

    def _perform(self, block: _Block) -> bool:
        """Execute the block's next operation; False if it has to wait."""
        number = self.blocks.index(block)
        row, op = block.rows[block.position]
        if op.name in _TAKES:
            return self._take(number, block, row, op)
        if op.name == "barrier" and not self._pass_barrier(number, block, row, op):
            return False
        moves = list(self._moves(block.rank, op))
        if not all(self._is_ready(cell) for reads, _ in moves for cells in reads for cell in cells):
            return False
        for reads, _ in moves:
            for cells in reads:
                for cell in cells:
                    if cell[1] == "p":
                        self.known[number] |= self.packets[cell][1]
        event = self._step(number, row)
        by_port = op.channel_type == "port"
        for at, (reads, writes) in enumerate(moves):
            if not by_port:
                self._move(reads, writes, event)
                continue
            for place, target in enumerate(writes):
                channel = op.channels[at if len(moves) > 1 else place]
                self._move(reads, [target], self._request(number, block.rank, channel, event))
        if op.name in _RAISES:
            self._raise(number, block.rank, op)
        if by_port and op.name in ("flush", "pwsf"):
            # The executor counts the channels of a flush by its destinations.
            count = len(op.targets) if op.name == "flush" else len(op.channels)
            for channel in op.channels[:count]:
                self.known[number] |= self.known["proxy", block.rank, channel]
        return True

    def _step(self, number: int, row: int) -> int:
        event = self._new_event(Event(row, self.launch_number), self.known[number])
        self.known[number] |= 1 << event
        return event

    def _request(self, number: int, rank: int, channel: int, event: int) -> int:
        """The event of a proxy that does one move behind the request and all requests before."""
        key = ("proxy", rank, channel)
        self.known[key] |= self.known[number]
        asked = self.events[event]
        done = self._new_event(Event(asked.row, asked.launch, -1, event), self.known[key])
        self.known[key] |= 1 << done
        return done

    def _is_ready(self, cell: Cell) -> bool:
        if cell[1] != "p":
            return True
        launch, _ = self.packets.get(cell, (-1, 0))
        return launch == self.launch_number

    def _move(self, reads: list[list[Cell]], writes: list[list[Cell]], event: int) -> None:
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
                    self.packets[cell] = (self.launch_number, self.before[event] | 1 << event)

    # Synchronisation.

    def _counter(self, key: object) -> _Counter:
        return self.counters.setdefault(key, _Counter(deque()))

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

    def _count_raises(self) -> None:
        for rank, one in enumerate(self.loaded):
            for number, initial in enumerate(one.semaphores):
                self._counter(("semaphore", rank, number)).queue.extend([-1] * min(initial, 1000))
        for block in self.blocks:
            for _, op in block.rows:
                if op.name in _RAISES:
                    for key, _ in self._raised_keys(block.rank, op):
                        self._counter(key).raised_per_launch += 1
        for rank, one in enumerate(self.loaded):
            for number, initial in enumerate(one.semaphores):
                if initial:
                    # Nobody raised the initial value, so the last count tells nothing.
                    self._counter(("semaphore", rank, number)).raised_per_launch = 0

    def _raise(self, number: int, rank: int, op: Operation) -> None:
        for key, channel in self._raised_keys(rank, op):
            counter, raiser = self._counter(key), self.known[number]
            if op.channel_type == "port" and channel >= 0:
                proxy = ("proxy", rank, channel)
                self.known[proxy] |= raiser
                raiser = self.known[proxy]
            last = len(self.events) - 1
            event = next(at for at in range(last, -1, -1) if self.events[at].request < 0)
            if counter.last_raise >= 0 and not self.known[number] >> counter.last_raise & 1:
                self.unordered.add(key)
            counter.last_raise = event
            counter.all_raises |= raiser
            counter.queue.append(raiser)

    def _take(self, number: int, block: _Block, row: int, op: Operation) -> bool:
        """Take one count of each channel or semaphore; those taken before a wait stay taken."""
        keys: list[object] = []
        if op.name == "sem_acquire":
            keys = [("semaphore", block.rank, one) for one in op.semaphores]
        for channel in op.channels if op.name != "sem_acquire" else ():
            peer, ordinal = self.loaded[block.rank].connections[op.channel_type, channel]
            keys.append((op.channel_type, peer, block.rank, ordinal))
        for key in keys[block.items_done :]:
            counter = self._counter(key)
            if not counter.queue:
                return False
            raiser = counter.queue.popleft()
            block.items_done += 1
            counter.taken += 1
            take = self._new_event(Event(row, self.launch_number), self.known[number])
            if counter.last_take >= 0 and not self._is_before(counter.last_take, take):
                self._note_race(counter.last_take, take)
            counter.last_take = take
            self.known[number] |= 1 << take
            if raiser >= 0 and key not in self.late:
                self.known[number] |= raiser
            if key in self.late and counter.taken == counter.raised_per_launch:
                self.known[number] |= counter.all_raises
        self._step(number, row)
        return True

    def _pass_barrier(self, number: int, block: _Block, row: int, op: Operation) -> bool:
        """Arrive at a barrier of the rank, or leave it when all blocks have arrived."""
        state = self.barriers[block.rank, op.barrier]
        if block.generation < 0:
            self._step(number, row)
            state[0] |= self.known[number]
            block.generation = state[3]
            state[2] += 1
            if state[2] == op.num_blocks:
                state[1], state[2] = state[0], 0
                state[3] += 1
        if state[3] == block.generation:
            return False
        block.generation = -1
        self.known[number] |= state[1]
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
        self, rank: int, one: Operand, size: int, *, is_packet: bool, is_port: bool = False
    ) -> list[list[Cell]]:
        """The cells of an operand on each rank that it lies on."""
        is_own = one.rank is None and not one.group
        half = 0
        if one.buffer == "s" and self.is_double and (is_packet or (is_own and not is_port)):
            half = self.launch_number % 2
        buffer = "p" if is_packet else one.buffer
        owners = one.group or (rank if one.rank is None else one.rank,)
        first, count = one.offset // UNIT, size // UNIT
        return [
            [self._cell(owner, buffer, half, unit) for unit in range(first, first + count)]
            for owner in owners
        ]

    def _moves(
        self, rank: int, op: Operation
    ) -> Iterator[tuple[list[list[Cell]], list[list[Cell]]]]:
        """(cells of each source, cells of each target) of every move."""
        for sources, targets in _ranges(op):
            size = sources[0][0].size
            is_port = op.channel_type == "port"
            cells = [
                [
                    place
                    for one, is_packet in side
                    for place in self._cells(rank, one, size, is_packet=is_packet, is_port=is_port)
                ]
                for side in (sources, targets)
            ]
            yield cells[0], cells[1]


# An operand, and whether it is read or written as packets.
_Ranges = list[tuple[Operand, bool]]
_FIRST_PACKETS = {"ppkt": (9, 0), "cpkt": (9, 0), "upkt": (0, 9), "rppkt": (0, 0),
                  "repkt": (1, 9), "respkt": (1, 1), "recpkt": (1, 1), "recspkt": (1, 1),
                  "gstorepkt": (0, 0)}  # fmt: skip


def _ranges(op: Operation) -> Iterator[tuple[_Ranges, _Ranges]]:
    """The sources and targets of every move of an operation, as the kernel resolves them."""
    if op.name in (*_TAKES, "signal", "rlxsignal", "sem_release", "nop", "barrier", "flush"):
        return
    if op.name == "pipeline":
        return
    reads, writes = _FIRST_PACKETS.get(op.name, (9, 9))
    sources = [(one, at >= reads) for at, one in enumerate(op.sources)]
    targets = [(one, at >= writes) for at, one in enumerate(op.targets)]
    if op.name in ("put", "pws", "pwsf", "ppkt"):
        is_memory = op.channel_type != "port"
        for (one, is_packet), written in zip(sources, targets, strict=True):
            buffer = op.sources[0].buffer if is_memory else one.buffer
            yield [(Operand(buffer, one.offset, one.size), is_packet)], [written]
    elif op.name == "get":
        # Each side has the offset of the other one.
        for far, near in zip(op.sources, op.targets, strict=True):
            source = Operand(far.buffer, near.offset, far.size, far.rank)
            target = Operand(near.buffer, far.offset, far.size)
            yield [(source, False)], [(target, False)]
    else:
        yield sources, targets


def run_launches(plan: Json, launches: int) -> list[Launch]:
    """Launch after launch, up to one that does not end; unordered counters are found by repeating."""
    late: frozenset[object] = frozenset()
    while True:
        model = OrderedModel(plan, late)
        results: list[Launch] = []
        while len(results) < launches and not (results and results[-1].blocked):
            results.append(model.launch())
        if model.unordered <= late:
            return results
        late |= model.unordered
