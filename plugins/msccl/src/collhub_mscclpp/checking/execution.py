"""Run a plan launch after launch, and say what happened."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_mscclpp.checking.contents import Contents
from collhub_mscclpp.checking.lowering import Counters, block_ranks
from collhub_mscclpp.checking.memory import PlanMemory, buffer_cells
from collhub_mscclpp.checking.program import (
    FIRST_PROXY,
    FREE_CLOCKS,
    FREE_READS,
    NEXT_READ,
    RACES,
    Program,
    State,
)
from collhub_mscclpp.plans.operations import Role
from collhub_mscclpp.plans.records import Plan
from hub_core.columns import BoolArray, Int64Array, UInt8Array, UInt64Array
from hub_core.model import Buffer

_FIRST_POOL = 64
_MOST_RACES = 256


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses to a cell without an order.

    `operation`, `other`: rows of operations, -1 for the host, which fills inputs and reads outputs;
    `host_rank`: of the host, if it takes part, else -1; `launch` and `other_launch` from 0.
    `is_late`: the other one is a put that a proxy may do later than it was asked to, and the first
    one overwrites its source.
    """

    operation: int
    other: int
    launch: int
    other_launch: int
    cell: int
    host_rank: int
    is_late: bool


@dataclass(frozen=True, slots=True, eq=False)
class LaunchResult:
    """One launch. `blocked`: rows of the operations at which thread blocks stand for ever.

    `exposed`: races of puts with the host, which may overwrite their sources when the kernel of its
    rank has ended; only a caller that does so gets wrong data. `races`: all others. `wrong`:
    bool[outputs] of `Contents`; `value`, `is_defined`: of all cells after it, where some are wrong,
    else empty; `order`: operations as they were done.
    """

    blocked: Int64Array
    races: tuple[Race, ...]
    exposed: tuple[Race, ...]
    wrong: BoolArray
    value: UInt64Array
    is_defined: UInt8Array
    order: Int64Array


class Execution:
    """A plan in memory, ready for its next launch."""

    def __init__(
        self,
        plan: Plan,
        memory: PlanMemory,
        program: Program,
        counters: Counters,
        proxies: int,
        contents: Contents,
        launches: int,
        has_host: bool,
        late: frozenset[int] = frozenset(),
    ) -> None:
        """Lay memory and counters out.

        `proxies`: number of port channels that may lag behind; `has_host`: whether the accesses of
        the host to inputs and outputs are judged; `late`: counters whose raises have no order.
        """
        self.memory = memory
        self.contents = contents
        self._plan = plan
        self._program = program
        self._has_host = has_host
        self._rank_of_block = block_ranks(plan)
        self._blocks = len(plan.blocks)
        self._launch = 0
        self.counters = counters
        self.state = _new_state(plan, memory, program, counters, proxies, launches)
        self.state.is_late[list(late)] = 1

    def unordered_counters(self) -> frozenset[int]:
        """Counters that were raised by thread blocks without an order, and were not known to be."""
        return frozenset(np.flatnonzero(self.state.is_late == 2).tolist())

    def rank_of(
        self,
        operation: int,
    ) -> int:
        """Rank that an operation runs on."""
        return int(self._rank_of_block[self._plan.operations.block[operation]])

    def launch(self) -> LaunchResult:
        """Do one launch on all ranks, until all is done or nothing moves."""
        self._begin()
        done = self._run()
        state, last = self.state, self._program.block_first[1:]
        blocked = state.position[state.position < last]
        if not len(blocked):
            self._end()
        wrong = self.contents.wrong(state.value, state.is_defined)
        # Copies for messages only: most launches are right.
        shown = slice(None) if wrong.any() else slice(0)
        races = self._races()
        result = LaunchResult(
            blocked,
            tuple(race for race in races if not (race.is_late and race.host_rank >= 0)),
            tuple(race for race in races if race.is_late and race.host_rank >= 0),
            wrong,
            state.value[shown].copy(),
            state.is_defined[shown].copy(),
            state.order[:done].copy(),
        )
        self._launch += 1
        return result

    def _begin(self) -> None:
        """Fill the inputs, and start all thread blocks of a rank behind all of its last launch."""
        state, contents = self.state, self.contents
        state.is_defined[:] = 0
        state.value[contents.inputs] = contents.words
        state.is_defined[contents.inputs] = 1
        state.position[:] = self._program.block_first[:-1]
        state.item_at[:] = 0
        state.arrived[:] = -1
        state.scalars[RACES] = 0
        state.taken[:] = 0
        self._join_ranks(2 * self._launch + 1)
        self._host(Buffer.INPUT, 2 * self._launch + 1, True)

    def _end(self) -> None:
        """Read the outputs behind all thread blocks of their rank."""
        self._join_ranks(2 * self._launch + 2)
        self._host(Buffer.OUTPUT, 2 * self._launch + 2, False)
        self._note_late_reads()
        self._free_clocks()

    def _join_ranks(
        self,
        time: int,
    ) -> None:
        """The stream of a rank: whatever comes next knows all that its thread blocks did."""
        clocks = self.state.clocks
        for rank in range(self._plan.num_ranks):
            host = self._blocks + rank
            actors = np.append(np.flatnonzero(self._rank_of_block == rank), host)
            joined = clocks[actors].max(axis=0)
            joined[host] = time
            clocks[actors] = joined

    def _host(
        self,
        buffer: Buffer,
        time: int,
        is_write: bool,
    ) -> None:
        from collhub_mscclpp.checking.kernel import host_access

        if not self._has_host:
            return
        rank, cells = buffer_cells(self.memory, buffer)
        for one in range(self._plan.num_ranks):
            mine = cells[rank == one]
            self._reserve_reads(len(mine))
            host_access(self.state, mine, self._blocks + one, time, self._launch, is_write)

    def _note_late_reads(self) -> None:
        """Find puts whose sources the caller of their rank gets back before they are done."""
        from collhub_mscclpp.checking.kernel import late_reads

        for buffer in (Buffer.INPUT, Buffer.OUTPUT):
            rank, cells = buffer_cells(self.memory, buffer)
            for one in range(self._plan.num_ranks):
                late_reads(self.state, cells[rank == one], self._blocks + one, self._launch)

    def _run(self) -> int:
        """Run to the end, enlarging pools on the way; returns how many operations were done."""
        # Imported here: it loads numba, which takes a second.
        from collhub_mscclpp.checking.kernel import POOL_OF_CLOCKS, POOL_OF_READS, run

        done = 0
        while True:
            reason, done = run(self._program, self.state, self._launch, done)
            if reason == POOL_OF_CLOCKS:
                self._more_clocks()
            elif reason == POOL_OF_READS:
                self._more_reads(len(self.state.read_next))
            else:
                return done

    def _more_clocks(self) -> None:
        kept = self.state.kept
        rows = len(kept)
        free = np.zeros(2 * rows, np.int64)
        left = int(self.state.scalars[FREE_CLOCKS])
        free[:left] = self.state.free_clocks[:left]
        free[left : left + rows] = np.arange(rows, 2 * rows)
        self.state.scalars[FREE_CLOCKS] = left + rows
        self.state = self.state._replace(
            kept=np.concatenate([kept, np.zeros_like(kept)]), free_clocks=free
        )

    def _reserve_reads(
        self,
        count: int,
    ) -> None:
        lacking = count - int(self.state.scalars[FREE_READS])
        if lacking > 0:
            self._more_reads(max(lacking, len(self.state.read_next)))

    def _more_reads(
        self,
        count: int,
    ) -> None:
        state = self.state
        rows = len(state.read_next)
        # New entries are linked in a row, the last one to those that are free already.
        added = np.arange(rows + 1, rows + count + 1, dtype=np.int32)
        added[-1] = state.scalars[NEXT_READ]
        state.scalars[NEXT_READ] = rows
        state.scalars[FREE_READS] += count
        empty = np.zeros(count, np.int32)
        self.state = state._replace(
            read_actor=np.concatenate([state.read_actor, empty]),
            read_time=np.concatenate([state.read_time, empty]),
            read_next=np.concatenate([state.read_next, added]),
        )

    def _free_clocks(self) -> None:
        """Free the clocks of packets, which the next launch does not read."""
        state = self.state
        in_use = np.zeros(len(state.kept), np.bool_)
        for first, head, tail in zip(state.queue_first, state.head, state.tail, strict=False):
            rows = state.queue[first + head : first + tail]
            in_use[rows[rows >= 0]] = True
        free = np.flatnonzero(~in_use)
        state.free_clocks[: len(free)] = free
        state.scalars[FREE_CLOCKS] = len(free)

    def _races(self) -> tuple[Race, ...]:
        """The races of this launch, one for every two operations."""
        found: dict[tuple[int, ...], Race] = {}
        hosts = range(self._blocks, int(self.state.scalars[FIRST_PROXY]))
        for launch, operation, cell, actor, time, own, is_late in self.state.races[
            : self.state.scalars[RACES]
        ].tolist():
            del launch
            other, other_launch = self._operation_at(actor, time)
            host = next((one - self._blocks for one in (actor, own) if one in hosts), -1)
            race = Race(operation, other, self._launch, other_launch, cell, host, bool(is_late))
            found.setdefault((operation, other, other_launch, race.host_rank), race)
        return tuple(found.values())

    def _operation_at(
        self,
        actor: int,
        time: int,
    ) -> tuple[int, int]:
        """(operation, launch) of the operation that an actor did at a time; -1 for the host."""
        state = self.state
        if actor >= state.scalars[FIRST_PROXY]:
            request = int(state.request_first[actor - state.scalars[FIRST_PROXY]]) + time - 1
            actor, time = int(state.request_block[request]), int(state.request_time[request])
        if actor >= self._blocks:
            return -1, (time - 1) // 2
        first, last = self._program.block_first[actor : actor + 2].tolist()
        launch, place = divmod(time - 1, last - first)
        return first + place, launch


def _new_state(
    plan: Plan,
    memory: PlanMemory,
    program: Program,
    counters: Counters,
    proxies: int,
    launches: int,
) -> State:
    """The state before the first launch."""
    blocks = len(plan.blocks)
    actors = blocks + plan.num_ranks + proxies
    cells = memory.layout.total
    number = len(counters.names)
    initial, capacity = _queues(program, counters, launches)
    queue_first = np.concatenate([[0], np.cumsum(capacity)])
    barriers = int(program.barrier.max(initial=-1)) + 1
    is_lagging = program.write_proxy >= 0
    requests = launches * np.bincount(program.write_proxy[is_lagging], minlength=proxies)
    request_first = np.concatenate([[0], np.cumsum(requests)]).astype(np.int64)
    return State(
        clocks=np.zeros((actors, actors), np.int32),
        kept=np.zeros((_FIRST_POOL, actors), np.int32),
        free_clocks=np.arange(_FIRST_POOL),
        value=np.zeros(cells, np.uint64),
        is_defined=np.zeros(cells, np.uint8),
        packet=np.zeros(cells, np.int32),
        packet_clock=np.zeros(cells, np.int32),
        write_actor=np.full(cells, -1, np.int32),
        write_time=np.zeros(cells, np.int32),
        reads=np.full(cells, -1, np.int32),
        read_actor=np.zeros(_FIRST_POOL, np.int32),
        read_time=np.zeros(_FIRST_POOL, np.int32),
        read_next=np.append(np.arange(1, _FIRST_POOL), -1).astype(np.int32),
        position=program.block_first[:-1].copy(),
        item_at=np.zeros(blocks, np.int64),
        arrived=np.full(blocks, -1, np.int64),
        uses=np.full((number, 4), -1, np.int32),
        is_late=np.zeros(number, np.uint8),
        late=np.zeros((number, actors), np.int32),
        taken=np.zeros(number, np.int64),
        # What is there at first is counted too, and nobody raised it: then nothing is known.
        raised=np.where(counters.initial > 0, 0, uses_of_counters(program, counters)[0]),
        head=np.zeros(number, np.int64),
        tail=initial,
        queue_first=queue_first,
        queue=np.full(int(queue_first[-1]), -1, np.int64),
        generation=np.zeros(barriers, np.int64),
        waiting=np.zeros(barriers, np.int64),
        gathered=np.zeros((barriers, actors), np.int32),
        released=np.zeros((barriers, actors), np.int32),
        order=np.zeros(len(plan.operations), np.int64),
        races=np.zeros((_MOST_RACES, 7), np.int64),
        request_first=request_first[:proxies],
        request_block=np.zeros(int(request_first[-1]), np.int64),
        request_time=np.zeros(int(request_first[-1]), np.int64),
        scalars=np.asarray([_FIRST_POOL, _FIRST_POOL, 0, 0, blocks + plan.num_ranks], np.int64),
    )


def _queues(
    program: Program,
    counters: Counters,
    launches: int,
) -> tuple[Int64Array, Int64Array]:
    """Counts that are there at first, and the most that are there ever, of every counter."""
    raised, awaited = uses_of_counters(program, counters)
    # Of a large initial value only what can be taken matters.
    initial = np.minimum(counters.initial, awaited * launches)
    return initial, initial + raised * launches


def uses_of_counters(
    program: Program,
    counters: Counters,
) -> tuple[Int64Array, Int64Array]:
    """(raised, awaited): how often a launch raises, and awaits, every counter."""
    operation = np.repeat(np.arange(len(program.role)), np.diff(program.item_first))
    role = program.role[operation]
    is_taken = (role == Role.WAIT) | (role == Role.ACQUIRE)
    is_paired = counters.of_item >= 0
    number = len(counters.names)
    raised = np.bincount(counters.of_item[is_paired & ~is_taken], minlength=number)
    awaited = np.bincount(counters.of_item[is_paired & is_taken], minlength=number)
    return raised, awaited
