"""Translate the operations of a plan to steps, in the order in which one launch executes them."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np

from collhub_mscclpp.checking.lowering import Counters, Ranges, barriers_of, block_ranks
from collhub_mscclpp.checking.memory import PlanMemory
from collhub_mscclpp.plan_records import Plan, Role
from collhub_mscclpp.reading.steps import Place, PlaceTable, StepList
from hub_core.columns import Int64Array


class PlanFollower:
    """Translates operations to steps and tracks the steps for which each thread block waits."""

    def __init__(
        self,
        plan: Plan,
        memory: PlanMemory,
        counters: Counters,
        ranges: Ranges,
        places: PlaceTable,
        lines: Int64Array,
    ) -> None:
        """Prepare to translate one execution of a plan to steps: no operation is translated yet.

        - `memory`: layout of the buffers. `counters`: of channels and semaphores.
        - `ranges`: ranges of cells, i.e. of smallest parts of chunks. `places`: their locations in
          the buffers, by row of `ranges`.
        - `lines`: source line of each operation, -1 if unknown; its steps get this line.

        A semaphore with the initial count n begins with n signals that announce no step, at most
        one per operation of the plan. A wait for such a signal is not a wait for a step.
        """
        self._lines = lines
        self.steps = StepList(plan.num_ranks, memory.layout.total)
        self._plan = plan
        self._counters = counters
        self._places = places.places
        self._moves = _collect_moves(plan, ranges)
        # By operation: its counters.
        self._items: dict[int, list[int]] = {}
        items = zip(plan.items.operation.tolist(), counters.of_item.tolist(), strict=True)
        for row, counter in items:
            self._items.setdefault(row, []).append(counter)
        self._rank_of_block = block_ranks(plan).tolist()
        self._blocks_of_rank = np.bincount(self._rank_of_block, minlength=plan.num_ranks).tolist()
        # By thread block: its last step, and steps of its rank that its next step waits for.
        self._last: dict[int, int] = {}
        self._pending: dict[int, list[int]] = defaultdict(list)
        # By (thread block, receiving rank): received messages that no signal has announced yet.
        self._unannounced: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._announced: dict[int, deque[list[int]]] = defaultdict(deque)
        # By barrier: its thread blocks, their last steps before it, and how many have yet to leave.
        self._barrier_of = barriers_of(plan).tolist()
        self._users: dict[int, set[int]] = defaultdict(set)
        self._met: dict[int, list[int]] = {}
        self._leaving: dict[int, int] = defaultdict(int)
        columns = zip(self._barrier_of, plan.operations.block.tolist(), strict=True)
        for barrier, block in columns:
            self._users[barrier].add(block)
        for counter, initial in enumerate(counters.initial.tolist()):
            # The initial count of a semaphore announces no steps.
            self._announced[counter].extend([[]] * min(initial, len(plan.operations)))

    def follow(self, operation: int) -> None:
        """Add the steps and dependencies of one operation of the plan (its row) to `self.steps`.

        Operations must be given in an order in which they can be executed; this is not checked.
        A signal is an entry in the queue of a counter. It announces (lists) completed steps.

        - Signal, release: appends a signal to each counter, except of channels without a partner.
          If the waiting rank is that of the block, it announces the last steps of the block.
          Otherwise it announces the receives on the waiting rank of those messages of the block
          that no earlier signal has announced.
        - Wait, acquire: takes the oldest signal of each counter, if there is one. The next step of
          the block depends on the announced steps. Those without a lane get the block's lane.
        - Barrier: the next step depends on the last steps of all blocks at the barrier.
        - Data, per move: one source is copied to all destinations. Several sources are summed in
          the first destination on the block's rank, and the sum is copied to all others. Raises
          `StopIteration` without such a destination. Then signals are added as above.

        An unknown kind has no effect. All other operations only set `self.steps.line`.
        """
        kind = self._plan.operation(operation)
        block = int(self._plan.operations.block[operation])
        if kind is None:
            return
        self.steps.line = int(self._lines[operation])
        if kind.role in (Role.WAIT, Role.ACQUIRE):
            # The next step of the block waits for the steps that the awaited signals announced.
            for counter in self._items.get(operation, ()):
                announced = self._announced[counter]
                for step in announced.popleft() if announced else ():
                    self._pending[block].append(step)
                    self.steps.take_lane(step, self._plan.blocks[block].position)
        elif kind.role in (Role.SIGNAL, Role.RELEASE):
            self._follow_signal(operation, block)
        elif kind.role is Role.BARRIER:
            # A thread block that leaves a barrier waits for the earlier steps of all its users.
            barrier = self._barrier_of[operation]
            if not self._leaving[barrier]:
                # The first block leaves when all have arrived, so their last steps are known now.
                users = self._users[barrier]
                self._met[barrier] = [
                    step for user in users for step in self._list_predecessors(user)
                ]
                self._leaving[barrier] = len(users)
            self._leaving[barrier] -= 1
            self._pending[block].extend(self._met[barrier])
        elif kind.role is Role.DATA:
            for cells, sources, targets in self._moves.get(operation, ()):
                from_ranges = [self._places[row] for row in sources]
                to_ranges = [self._places[row] for row in targets]
                if len(from_ranges) == 1:
                    self._copy_to_all(from_ranges[0], to_ranges, cells, block)
                    continue
                rank = self._rank_of_block[block]
                # Further destinations get copies of the first result on the local rank.
                local = next(target for target in to_ranges if target.rank == rank)
                self._add_sum(from_ranges, local, cells, block)
                remaining = [target for target in to_ranges if target is not local]
                self._copy_to_all(local, remaining, cells, block)
            self._follow_signal(operation, block)

    def _follow_signal(self, operation: int, block: int) -> None:
        """Append the steps that a signal announces to each counter that an operation increments.

        A counter is a semaphore or the signals of a channel. Negative counters are channels without
        a partner and are skipped. A later wait for the counter makes its block depend on the
        announced steps. W is the rank that waits for the counter:

        - W is the rank of `block`: the latest steps of `block`, which stand for all earlier ones.
        - Otherwise: the receives on W of the messages that `block` sent to W since its last signal
          to W. The list of unannounced steps of (`block`, W) is then emptied.

        One list of steps per increment is appended, even if it is empty. The order is that of the
        counters of the operation.
        """
        rank = self._rank_of_block[block]
        for counter in self._items.get(operation, ()):
            if counter < 0:
                continue
            target = self._counters.targets[counter]
            steps: list[int] = []
            if target == rank:
                steps = self._list_predecessors(block)
            else:
                steps, self._unannounced[block, target] = self._unannounced[block, target], []
            self._announced[counter].append(steps)

    def _list_predecessors(self, block: int) -> list[int]:
        """Return the steps on which the next step of a thread block depends.

        These are the steps for which the block has waited since its last step, then its last step,
        if any.
        """
        last = self._last.get(block)
        return [*self._pending[block], *([] if last is None else [last])]

    def _add_sum(
        self,
        sources: list[Place],
        target: Place,
        cells: int,
        block: int,
    ) -> None:
        """Add the steps that sum `sources` into `target`, a range on the rank of the thread block.

        `cells`: length of each range. `block`: thread block that executes the steps. Sources on the
        rank of `target` are local, all other sources remote. The steps, in this order:

        1. The first operand. If a local source is the target range itself, no step is added for it.
           Otherwise the first local source is copied to the target. Exception: if it is the only
           local source and there are remote ones, the first message reads it in place.
        2. One reduction for each further local source: first for repetitions of the target range,
           then for all others in the given order.
        3. One message for each remote source, in the given order. Its receive adds the data and
           stores the sum in the target. Without a local source, the first receive only stores.

        No step is added without sources, or if the target is the only one. On the rank of the
        target, each step follows the earlier steps of the block.
        """
        lane = self._plan.blocks[block].position
        local = [source for source in sources if source.rank == target.rank]
        remote = [source for source in sources if source.rank != target.rank]
        start: Place | None = next((source for source in local if source.cell == target.cell), None)
        rest = [source for source in local if source is not start]
        # A range that is added to itself comes first, while it has its original value.
        rest.sort(key=lambda source: source.cell != target.cell)
        if start is None and local:
            start = rest.pop(0)
            # A sum with one message reads its first operand in place, without a copy.
            if rest or not remote:
                self._order_after_block(block, self.steps.copy(start, target, cells, lane))
                start = target
        for source in rest:
            self._order_after_block(block, self.steps.reduce(source, target, cells, lane))
            start = target
        for source in remote:
            self._add_message(source, target, cells, block, start)
            start = target

    def _copy_to_all(
        self,
        source: Place,
        targets: list[Place],
        cells: int,
        block: int,
    ) -> None:
        """Copy a range to other ranges, in the order of `targets`.

        A target on the rank of `source` is copied by a local step; there is no step if it is
        the same memory. Any other target gets a message, which the thread block `block`
        transfers. `cells`: cells of each range. Each new step on the block's rank follows the
        earlier steps of the block.
        """
        lane = self._plan.blocks[block].position
        for target in targets:
            if target.rank == source.rank:
                self._order_after_block(block, self.steps.copy(source, target, cells, lane))
            else:
                self._add_message(source, target, cells, block, None)

    def _add_message(
        self,
        source: Place,
        target: Place,
        cells: int,
        block: int,
        operand: Place | None,
    ) -> None:
        """Add a message that a thread block transfers: a put from its rank or a get to its rank.

        If `operand` is given, the received data is added to it. The channel is the position of the
        block for a put, and a number above all blocks of the sender for a get. Steps on the block's
        rank have the position of the block as lane and follow its earlier steps; a step on another
        rank has the lane -1. A receive on another rank is announced by the block's next signal to
        that rank.
        """
        rank, lane = self._rank_of_block[block], self._plan.blocks[block].position
        is_push = source.rank == rank
        # Thread blocks of both ranks may transfer in one direction: each uses a separate channel.
        channel = lane if is_push else self._blocks_of_rank[source.rank] + lane
        lanes = (lane if is_push else -1, lane if target.rank == rank else -1)
        sent, received = self.steps.message(source, target, cells, channel, lanes, operand)
        for step in (sent, received):
            if self.steps.rank_of(step) == rank:
                self._order_after_block(block, [step])
        if target.rank != rank:
            self._unannounced[block, target.rank].append(received)

    def _order_after_block(self, block: int, steps: list[int]) -> None:
        """Order steps after the earlier steps of the block and the steps that it waited for."""
        for step in steps:
            predecessors = self._list_predecessors(block)
            self.steps.order([parent for parent in predecessors if parent != step], step)
            self._pending[block] = []
            self._last[block] = step


_Moves = dict[int, list[tuple[int, list[int], list[int]]]]


def _collect_moves(plan: Plan, ranges: Ranges) -> _Moves:
    """Return the moves of data operations: a dict of lists by row of the operation.

    A move is (cells, source rows, destination rows). Its ranges have equal size, and the sum
    of its sources is written to each destination. Rows are rows of `ranges`. An operation
    that pairs sources with destinations has one move per pair, in the order of the ranges.
    Other operations have one move. Rows within a move keep the order of `ranges`. Operations
    without ranges have no entry.
    """
    entries: dict[tuple[int, int], tuple[int, list[int], list[int]]] = {}
    operation = plan.operands.operation[ranges.operand].tolist()
    columns = (operation, ranges.move.tolist(), ranges.cells.tolist(), ranges.is_dst.tolist())
    for row, (owner, move, cells, is_dst) in enumerate(zip(*columns, strict=True)):
        entry = entries.setdefault((owner, move), (cells, [], []))
        side = entry[2] if is_dst else entry[1]
        side.append(row)
    moves: _Moves = {}
    for (owner, _), entry in entries.items():
        moves.setdefault(owner, []).append(entry)
    return moves
