"""Simulate consecutive launches of a plan: deadlocks, races and contents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_mscclpp.checking.lowering import Counters, block_ranks
from collhub_mscclpp.checking.memory import CellContents, PlanMemory, buffer_cells
from collhub_mscclpp.checking.program import (
    FIRST_PROXY,
    FREE_CLOCKS,
    FREE_READS,
    NEXT_READ,
    RACES,
    LaunchState,
    PlanColumns,
)
from collhub_mscclpp.plan_records import Plan, Role
from hub_core.columns import (
    BoolArray,
    Int64Array,
    UInt8Array,
    UInt64Array,
    group_of_entry,
    row_pointer,
)
from hub_core.model import Buffer

_FIRST_POOL = 64
_MOST_RACES = 256


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses to a cell without an order.

    `operation`, `other`: rows of operations, -1 for the host, which fills inputs and reads outputs;
    `host_rank`: rank of the host if it takes part, else -1; `launch`, `other_launch`: from 0.
    `is_late`: `other` is a put that a proxy may execute after its request, and `operation`
    overwrites its source.
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
    """Result of one launch. `blocked`: rows of operations at which thread blocks wait for ever.

    `exposed`: races of puts with the host, which may overwrite their sources after the end of the
    kernel of its rank; data is wrong only if the caller does so. `races`: all remaining races.
    `wrong`: bool[outputs] of `CellContents`; `value`, `is_defined`: contents of all cells if some
    are wrong, else empty; `order`: operations in execution order.
    """

    blocked: Int64Array
    races: tuple[Race, ...]
    exposed: tuple[Race, ...]
    wrong: BoolArray
    value: UInt64Array
    is_defined: UInt8Array
    order: Int64Array


class PlanState:
    """The state of a plan between launches."""

    def __init__(
        self,
        plan: Plan,
        memory: PlanMemory,
        program: PlanColumns,
        counters: Counters,
        proxies: int,
        contents: CellContents,
        launches: int,
        has_host: bool,
        late: frozenset[int] = frozenset(),
    ) -> None:
        """Prepare the state of a plan before its first launch; no operation is executed.

        - `memory`, `contents`: layout of the buffers in cells, and the values of the inputs and
          expected outputs; neither is changed
        - `program`, `counters`: operations of the plan, and its semaphores and signals
        - `proxies`: number of port channels with a proxy, a thread of the host that may execute a
          request after the thread block that made it continues
        - `launches`: maximum number of launches, for the sizes of the tables
        - `has_host`: accesses of the host to inputs and outputs are checked for races
        - `late`: numbers of counters that are known to be incremented without an order
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
        """Return counters, not yet in `late`, that thread blocks incremented without an order."""
        return frozenset(np.flatnonzero(self.state.is_late == 2).tolist())

    def rank_of(
        self,
        operation: int,
    ) -> int:
        """Return the rank that executes an operation."""
        return int(self._rank_of_block[self._plan.operations.block[operation]])

    def launch(self) -> LaunchResult:
        """Simulate one launch on all ranks, until no thread block can execute another operation.

        At the start the host fills the inputs, and all other cells become undefined. Counters and
        clocks keep their state for the next launch. If all blocks finish, the host reads the
        outputs and may then overwrite INPUT and OUTPUT. Races with the overwriting are recorded,
        and with `has_host` also races with the filling and reading. The result has:

        - `blocked`: the next operation of each block that waits forever; empty if all finished
        - `order`: the executed operations, in this order
        - `wrong`: bool per output, also if blocks wait forever; `value` and `is_defined` are copies
          of all cells if one output is wrong, otherwise empty
        - `exposed`: races of the host with a put whose source a proxy may still read
        - `races`: all other races. Both lists are in the order of recording, without duplicates.
        """
        self._begin()
        done = self._run()
        state, last = self.state, self._program.block_first[1:]
        blocked = state.position[state.position < last]
        if not len(blocked):
            # The host reads the outputs of each rank after all its thread blocks.
            self._join_ranks(2 * self._launch + 2)
            self._host(Buffer.OUTPUT, 2 * self._launch + 2, False)
            # Imported here: it loads numba, which takes a second.
            from collhub_mscclpp.checking.kernel import late_reads

            # The caller may overwrite the source of a put before the proxy has read it.
            for buffer in (Buffer.INPUT, Buffer.OUTPUT):
                rank, cells = buffer_cells(self.memory, buffer)
                for host_rank in range(self._plan.num_ranks):
                    late_reads(
                        self.state, cells[rank == host_rank], self._blocks + host_rank, self._launch
                    )
            self._free_clocks()
        wrong = self.contents.wrong(state.value, state.is_defined)
        # Contents are copied only for error messages.
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
        """Start a launch: fill the inputs, undefine all other cells, and reset the thread blocks.

        The host writes the inputs after the thread blocks of its rank have finished the previous
        launch, and before those of this launch start. Counters, clocks and packets are kept; the
        races of the previous launch are deleted.
        """
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

    def _join_ranks(
        self,
        time: int,
    ) -> None:
        """Order all thread blocks and the host of each rank after all their earlier accesses.

        This is the order of launches on a stream. For each rank, the vector clock of each block and
        of the host becomes the element-wise maximum of all of them, with `time` as the entry of the
        host.
        """
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
        for host_rank in range(self._plan.num_ranks):
            mine = cells[rank == host_rank]
            lacking = len(mine) - int(self.state.scalars[FREE_READS])
            if lacking > 0:
                self._more_reads(max(lacking, len(self.state.read_next)))
            host_access(self.state, mine, self._blocks + host_rank, time, self._launch, is_write)

    def _run(self) -> int:
        """Execute operations until none can proceed; return the number of executed operations.

        Clocks (of signals and packets) and reads are stored in pools of rows. If a pool is full, it
        is doubled with its contents kept, and the execution continues; `state` is then another
        object.
        """
        # Imported here: it loads numba, which takes a second.
        from collhub_mscclpp.checking.kernel import POOL_OF_CLOCKS, POOL_OF_READS, run

        done = 0
        while True:
            reason, done = run(self._program, self.state, self._launch, done)
            if reason == POOL_OF_CLOCKS:
                clocks = self.state.kept
                rows = len(clocks)
                free = np.zeros(2 * rows, np.int64)
                left = int(self.state.scalars[FREE_CLOCKS])
                free[:left] = self.state.free_clocks[:left]
                free[left : left + rows] = np.arange(rows, 2 * rows)
                self.state.scalars[FREE_CLOCKS] = left + rows
                self.state = self.state._replace(
                    kept=np.concatenate([clocks, np.zeros_like(clocks)]), free_clocks=free
                )
            elif reason == POOL_OF_READS:
                self._more_reads(len(self.state.read_next))
            else:
                return done

    def _more_reads(
        self,
        count: int,
    ) -> None:
        state = self.state
        rows = len(state.read_next)
        # New entries form a list; the last one is linked to the entries that are already free.
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
        """Free the stored clocks that no later launch needs.

        A clock records which operations precede a signal or packet. Clocks of signals that are
        still in the queue of a counter are kept. All other clocks are freed, also those of packets,
        because the next launch does not read them. The list of free rows is replaced, in ascending
        order.
        """
        state = self.state
        in_use = np.zeros(len(state.kept), np.bool_)
        for first, head, tail in zip(state.queue_first, state.head, state.tail, strict=False):
            rows = state.queue[first + head : first + tail]
            in_use[rows[rows >= 0]] = True
        free = np.flatnonzero(~in_use)
        state.free_clocks[: len(free)] = free
        state.scalars[FREE_CLOCKS] = len(free)

    def _races(self) -> tuple[Race, ...]:
        """List the races of this launch without duplicates.

        Races with equal operations, launch of the other operation and host are listed once, as
        first recorded. Only the first 256 races of a launch are recorded. `host_rank` is the rank
        of the host if one of the two actors is a host, otherwise -1.
        """
        races: dict[tuple[int, ...], Race] = {}
        hosts = range(self._blocks, int(self.state.scalars[FIRST_PROXY]))
        rows = self.state.races[: self.state.scalars[RACES]].tolist()
        for _, operation, cell, actor, time, current_actor, is_late in rows:
            other_operation, other_launch = self._operation_at(actor, time)
            host_actors = [actor for actor in (actor, current_actor) if actor in hosts]
            host = host_actors[0] - self._blocks if host_actors else -1
            race = Race(
                operation, other_operation, self._launch, other_launch, cell, host, bool(is_late)
            )
            races.setdefault((operation, other_operation, other_launch, race.host_rank), race)
        return tuple(races.values())

    def _operation_at(
        self,
        actor: int,
        time: int,
    ) -> tuple[int, int]:
        """Return (operation, launch) that an actor executed at a time of its own clock.

        An actor is a thread block, a host or a proxy; launches count from 0. For a thread block,
        time t is its t-th operation over all launches, from 1. For a host, the operation is -1, and
        the times 2k + 1 and 2k + 2 belong to launch k. For a proxy, the result is the operation of
        the thread block that made its request number `time`.
        """
        state = self.state
        if actor >= state.scalars[FIRST_PROXY]:
            request = int(state.request_first[actor - state.scalars[FIRST_PROXY]]) + time - 1
            actor, time = int(state.request_block[request]), int(state.request_time[request])
        if actor >= self._blocks:
            return -1, (time - 1) // 2
        first, last = self._program.block_first[actor : actor + 2].tolist()
        launch, offset = divmod(time - 1, last - first)
        return first + offset, launch


def _new_state(
    plan: Plan,
    memory: PlanMemory,
    program: PlanColumns,
    counters: Counters,
    proxies: int,
    launches: int,
) -> LaunchState:
    """Create the state of a simulation before the first of `launches` launches.

    Actors, which have a clock each, are the thread blocks, then one host per rank, then the
    proxies. Clocks are 0, contents undefined, and blocks are at their first operation.

    The queue of a counter has room for its initial value and for the signals of all launches. The
    initial value is limited to the number of waits in all launches. `raised` of a counter is the
    number of its signals in a launch. It is 0 for a counter with an initial value, because the last
    signal of a launch cannot be identified there.

    The pools of clocks and of reads start with 64 entries. At most 256 races are stored.
    """
    blocks = len(plan.blocks)
    actors = blocks + plan.num_ranks + proxies
    cells = memory.layout.total
    number = len(counters.names)
    raised, awaited = uses_of_counters(program, counters)
    # A large initial value is limited to the number of counts that can be taken.
    initial = np.minimum(counters.initial, awaited * launches)
    capacity = initial + raised * launches
    queue_first = row_pointer(capacity)
    barriers = int(program.barrier.max(initial=-1)) + 1
    is_lagging = program.write_proxy >= 0
    requests = launches * np.bincount(program.write_proxy[is_lagging], minlength=proxies)
    request_first = row_pointer(requests)
    return LaunchState(
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
        # Initial counts have no signal, so the last count of a launch cannot be identified: 0.
        raised=np.where(counters.initial > 0, 0, raised),
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


def uses_of_counters(
    program: PlanColumns,
    counters: Counters,
) -> tuple[Int64Array, Int64Array]:
    """Return how often one launch increments and how often it awaits each counter; both int64.

    A counter is a semaphore or the signals of a channel; an item is one channel or semaphore of an
    operation. Items of a wait or of an acquire of a semaphore await; all other items increment.
    Items without a counter are not counted, and operations in pipelines count once.
    """
    operation = group_of_entry(program.item_first)
    role = program.role[operation]
    is_taken = (role == Role.WAIT) | (role == Role.ACQUIRE)
    is_paired = counters.of_item >= 0
    number = len(counters.names)
    raised = np.bincount(counters.of_item[is_paired & ~is_taken], minlength=number)
    awaited = np.bincount(counters.of_item[is_paired & is_taken], minlength=number)
    return raised, awaited
