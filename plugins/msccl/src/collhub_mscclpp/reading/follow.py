"""Follow the operations of a plan in the order of a run, and write down the steps they are."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np

from collhub_mscclpp.checking.lowering import Counters, Ranges, barriers_of, block_ranks
from collhub_mscclpp.checking.memory import PlanMemory
from collhub_mscclpp.plans.operations import Role
from collhub_mscclpp.plans.records import Plan
from collhub_mscclpp.reading.steps import Place, PlaceTable, StepList


class PlanFollower:
    """Turns operations into steps; keeps what each thread block has to wait for next."""

    def __init__(
        self,
        plan: Plan,
        memory: PlanMemory,
        counters: Counters,
        ranges: Ranges,
        places: PlaceTable,
    ) -> None:
        self.steps = StepList(plan.num_ranks, memory.layout.total)
        self._plan = plan
        self._counters = counters
        self._places = places.places
        self._moves = _moves(plan, ranges)
        self._items = _items(plan, counters)
        self._rank_of_block = block_ranks(plan).tolist()
        self._blocks_of_rank = np.bincount(self._rank_of_block, minlength=plan.num_ranks).tolist()
        # For every thread block: its last step, and steps of its rank that its next one waits for.
        self._last: dict[int, int] = {}
        self._pending: dict[int, list[int]] = defaultdict(list)
        # Messages of a thread block that no signal has announced yet, by receiving rank.
        self._unannounced: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._announced: dict[int, deque[list[int]]] = defaultdict(deque)
        # For every barrier: its thread blocks, what they did before they met, who has yet to leave.
        self._barrier_of = barriers_of(plan).tolist()
        self._users: dict[int, set[int]] = defaultdict(set)
        self._met: dict[int, list[int]] = {}
        self._leaving: dict[int, int] = defaultdict(int)
        columns = zip(self._barrier_of, plan.operations.block.tolist(), strict=True)
        for barrier, block in columns:
            self._users[barrier].add(block)
        for counter, initial in enumerate(counters.initial.tolist()):
            # What a semaphore holds at first announces nothing.
            self._announced[counter].extend([[]] * min(initial, len(plan.operations)))

    def follow(
        self,
        operation: int,
    ) -> None:
        """Take over the next operation of the run."""
        kind = self._plan.operation(operation)
        block = int(self._plan.operations.block[operation])
        if kind is None:
            return
        if kind.role in (Role.WAIT, Role.ACQUIRE):
            self._wait(operation, block)
        elif kind.role in (Role.SIGNAL, Role.RELEASE):
            self._signal(operation, block)
        elif kind.role is Role.BARRIER:
            self._barrier(operation, block)
        elif kind.role is Role.DATA:
            self._move(operation, block)
            self._signal(operation, block)

    def _wait(
        self,
        operation: int,
        block: int,
    ) -> None:
        """What comes next waits for what the signals announced."""
        for counter in self._items.get(operation, ()):
            announced = self._announced[counter]
            for step in announced.popleft() if announced else ():
                self._pending[block].append(step)
                self.steps.take_lane(step, self._plan.blocks[block].position)

    def _signal(
        self,
        operation: int,
        block: int,
    ) -> None:
        """Announce what the thread block did at the rank of whoever waits."""
        rank = self._rank_of_block[block]
        for counter in self._items.get(operation, ()):
            if counter < 0:
                continue
            target = self._counters.targets[counter]
            steps: list[int] = []
            if target == rank:
                steps = self._behind(block)
            else:
                steps, self._unannounced[block, target] = self._unannounced[block, target], []
            self._announced[counter].append(steps)

    def _barrier(
        self,
        operation: int,
        block: int,
    ) -> None:
        """Thread blocks that leave a barrier wait for what all of them did before it."""
        barrier = self._barrier_of[operation]
        if not self._leaving[barrier]:
            # The first one leaves when all stand there: what they did last is known now.
            users = self._users[barrier]
            self._met[barrier] = [step for user in users for step in self._behind(user)]
            self._leaving[barrier] = len(users)
        self._leaving[barrier] -= 1
        self._pending[block].extend(self._met[barrier])

    def _behind(
        self,
        block: int,
    ) -> list[int]:
        """What is done once the thread block is here."""
        last = self._last.get(block)
        return [*self._pending[block], *([] if last is None else [last])]

    def _move(
        self,
        operation: int,
        block: int,
    ) -> None:
        """Steps of a data operation."""
        for cells, sources, targets in self._moves.get(operation, ()):
            from_places = [self._places[row] for row in sources]
            to_places = [self._places[row] for row in targets]
            if len(from_places) == 1:
                self._spread(from_places[0], to_places, cells, block)
                continue
            rank = self._rank_of_block[block]
            # Further sums go out from the first one that lies here.
            here = next(place for place in to_places if place.rank == rank)
            self._sum(from_places, here, cells, block)
            rest = [place for place in to_places if place is not here]
            self._spread(here, rest, cells, block)

    def _sum(
        self,
        sources: list[Place],
        target: Place,
        cells: int,
        block: int,
    ) -> None:
        """Add places up in one of the rank of the thread block."""
        lane = self._plan.blocks[block].position
        local = [place for place in sources if place.rank == target.rank]
        remote = [place for place in sources if place.rank != target.rank]
        start: Place | None = next((one for one in local if one.cell == target.cell), None)
        rest = [place for place in local if place is not start]
        # What is added to itself is, before anything else is.
        rest.sort(key=lambda place: place.cell != target.cell)
        if start is None and local:
            start = rest.pop(0)
            # A sum with a message takes its first operand from where it lies.
            if rest or not remote:
                self._done(block, self.steps.copy(start, target, cells, lane))
                start = target
        for place in rest:
            self._done(block, self.steps.reduce(place, target, cells, lane))
            start = target
        for place in remote:
            self._message(place, target, cells, block, start)
            start = target

    def _spread(
        self,
        source: Place,
        targets: list[Place],
        cells: int,
        block: int,
    ) -> None:
        """Copy a place to others, of any rank."""
        lane = self._plan.blocks[block].position
        for target in targets:
            if target.rank == source.rank:
                self._done(block, self.steps.copy(source, target, cells, lane))
            else:
                self._message(source, target, cells, block, None)

    def _message(
        self,
        source: Place,
        target: Place,
        cells: int,
        block: int,
        operand: Place | None,
    ) -> None:
        """A message that the thread block moves, to its rank or from it."""
        rank, lane = self._rank_of_block[block], self._plan.blocks[block].position
        is_push = source.rank == rank
        # Thread blocks of both ends may move data one way: each has channels of its own.
        channel = lane if is_push else self._blocks_of_rank[source.rank] + lane
        lanes = (lane if is_push else -1, lane if target.rank == rank else -1)
        sent, received = self.steps.message(source, target, cells, channel, lanes, operand)
        for step in (sent, received):
            if self.steps.rank_of(step) == rank:
                self._done(block, [step])
        if target.rank != rank:
            self._unannounced[block, target.rank].append(received)

    def _done(
        self,
        block: int,
        steps: list[int],
    ) -> None:
        """Order steps behind what the thread block did and waited for."""
        for step in steps:
            parents = [one for one in self._behind(block) if one != step]
            self.steps.order(parents, step)
            self._pending[block] = []
            self._last[block] = step


_Moves = dict[int, list[tuple[int, list[int], list[int]]]]


def _moves(
    plan: Plan,
    ranges: Ranges,
) -> _Moves:
    """For every data operation its moves: cells, rows of sources, rows of destinations."""
    found: dict[tuple[int, int], tuple[int, list[int], list[int]]] = {}
    operation = plan.operands.operation[ranges.operand].tolist()
    columns = (operation, ranges.move.tolist(), ranges.cells.tolist(), ranges.is_dst.tolist())
    for row, (owner, move, cells, is_dst) in enumerate(zip(*columns, strict=True)):
        entry = found.setdefault((owner, move), (cells, [], []))
        side = entry[2] if is_dst else entry[1]
        side.append(row)
    moves: _Moves = {}
    for (owner, _), entry in found.items():
        moves.setdefault(owner, []).append(entry)
    return moves


def _items(
    plan: Plan,
    counters: Counters,
) -> dict[int, list[int]]:
    """Counters of every operation that has some."""
    found: dict[int, list[int]] = {}
    for row, counter in zip(plan.items.operation.tolist(), counters.of_item.tolist(), strict=True):
        found.setdefault(row, []).append(counter)
    return found
