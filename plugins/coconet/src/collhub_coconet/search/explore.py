"""Walk from program to program by legal moves, and keep the best: fastest, and smallest."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from collhub_coconet.lowering.timing import peak_bytes
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from collhub_coconet.search.canonical import canonical_hash
from collhub_coconet.search.cost_models import CostModel, Timing
from collhub_coconet.search.workers import Progress, done_by, silent
from collhub_coconet.transformations.legality import LegalityRecord, Rewrite
from collhub_coconet.transformations.moves import TRANSFORMATIONS, legal_rewrites
from hub_core.plugin_api import SearchBudget

Kinds = tuple[str, ...]
"""Kinds of moves that are still allowed: in the order of use, the last one and those behind."""

Price = tuple[tuple[Timing, ...], tuple[int, ...], tuple[int, ...]]
"""Times, peaks and uneven values of a program, one entry a size."""

# States that are gone on from together: a constant, so that the result is that of any machine.
_ROUND = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that was reached, by which moves, and what it costs at every size.

    `uneven`: values in slices of unequal lengths, by size.
    """

    program: Program
    steps: tuple[Rewrite, ...]
    timings: tuple[Timing, ...]
    peaks: tuple[int, ...]
    uneven: tuple[int, ...]

    def merit(self, size: int) -> tuple[float, int, int, int]:
        """What is compared: time, then memory, then dimensions that ranks divide, then moves."""
        return self.timings[size].seconds, self.peaks[size], self.uneven[size], len(self.steps)


@dataclass(slots=True)
class Exploration:
    """What a search met: candidates in the order of their discovery, and how it ended.

    `visited`: states that were gone on from; `pruned`: those that were not, for their bound;
    `is_complete`: whether every reachable state is one of both.
    """

    candidates: list[Candidate] = field(default_factory=list)
    visited: int = 0
    pruned: int = 0
    is_complete: bool = True

    def winner(self, size: int) -> Candidate:
        """The fastest candidate at a size by its index; of equal ones that of best `merit`."""
        # Of equal ones the first that was found.
        return min(self.candidates, key=lambda one: one.merit(size))

    def front(self, size: int) -> list[Candidate]:
        """Candidates of which no other is both faster and smaller, the fastest first."""
        ordered = sorted(self.candidates, key=lambda one: one.merit(size))
        found: list[Candidate] = []
        for one in ordered:
            if not found or one.peaks[size] < found[-1].peaks[size]:
                found.append(one)
        return found


def explore(
    program: Program,
    bindings: Sequence[Binding],
    costs: CostModel,
    most_states: int,
    *,
    workers: Executor | None = None,
    progress: Progress = silent,
    budget: SearchBudget | None = None,
) -> Exploration:
    """All programs that legal moves reach, at most so many, those of least time first.

    A state is a canonical program, so that each is visited once. A state is not gone on from when
    at every size another one is as fast as its lower bound, and as small. Deterministic: states are
    taken in rounds of one length, whatever number of `workers` there is, and ties go to the state
    that was found first. `progress(fraction, what)`: of the states that are known. `budget`: counts
    a step of work for each program, and ends the search between two rounds.
    """
    budget = budget or SearchBudget()
    walk = _Walk(program, bindings, costs, most_states)
    while walk.queue:
        if budget.reason:
            walk.found.is_complete = False
            budget.cut("search of programs", f"{len(walk.queue)} known programs and what follows")
            break
        before = len(walk.found.candidates)
        walk.go_on(workers)
        budget.count(len(walk.found.candidates) - before)
        known = len(walk.found.candidates)
        done = walk.found.visited + walk.found.pruned
        progress(done / known, f"{known} programs")
    return walk.found


@dataclass(slots=True)
class _Walk:
    """A search under way.

    `queue`: a heap of (mean share of time, order of discovery, state, kinds of moves behind it).
    `seen`: hashes of all states.
    """

    program: Program
    bindings: Sequence[Binding]
    costs: CostModel
    most_states: int
    found: Exploration = field(init=False)
    queue: list[tuple[float, int, Candidate, Kinds]] = field(init=False)
    seen: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.found = Exploration()
        self.seen = {canonical_hash(self.program)}
        self.queue = []
        self._add(Candidate(self.program, (), *self._priced(self.program)), TRANSFORMATIONS)

    def go_on(self, workers: Executor | None) -> None:
        """Take the most promising states, and find what moves lead to from them."""
        taken: list[tuple[Candidate, Kinds]] = []
        while self.queue and len(taken) < _ROUND:
            _, _, state, kinds = heapq.heappop(self.queue)
            # Time passes between discovery and now: better states may be known.
            if self._is_hopeless(state, kinds):
                self.found.pruned += 1
            else:
                taken.append((state, kinds))
        self.found.visited += len(taken)
        moves = [(state.program, kinds) for state, kinds in taken]
        reached = []
        for (state, _), found in zip(taken, done_by(workers, moves_from, moves), strict=True):
            reached += [(state, *one) for one in found if self._is_new(one[1])]
        wanted = [(rewrite.program, self.bindings, self.costs) for _, rewrite, _ in reached]
        prices = done_by(workers, priced, wanted)
        for (state, rewrite, _), price in zip(reached, prices, strict=True):
            place = TRANSFORMATIONS.index(rewrite.record.transformation)
            steps = (*state.steps, rewrite)
            self._add(Candidate(rewrite.program, steps, *price), TRANSFORMATIONS[place:])

    def _is_new(self, key: str) -> bool:
        """Note a state; False for one that is known, or too many."""
        if key in self.seen:
            return False
        # What was found first promises most.
        if len(self.seen) >= self.most_states:
            self.found.is_complete = False
            return False
        self.seen.add(key)
        return True

    def _add(self, candidate: Candidate, kinds: Kinds) -> None:
        """Keep a state, and put it in the queue."""
        self.found.candidates.append(candidate)
        first = self.found.candidates[0]
        rank = _rank(candidate, first)
        # The order of discovery decides between equal ranks: candidates themselves have none.
        entry = (rank, len(self.found.candidates), candidate, kinds)
        heapq.heappush(self.queue, entry)

    def _priced(self, program: Program) -> Price:
        """What one program costs, found here."""
        task = (program, self.bindings, self.costs)
        return priced(task)

    def _is_hopeless(self, state: Candidate, kinds: Kinds) -> bool:
        """Whether at every size something known is as good as all that a state leads to."""
        # One size at which it may win is enough to go on.
        for place, binding in enumerate(self.bindings):
            least = self.costs.bound(state.program, binding, kinds)
            is_beaten = any(
                one.timings[place].seconds <= least.seconds and one.peaks[place] <= least.peak_bytes
                for one in self.found.candidates
            )
            if not is_beaten:
                return False
        return True


def moves_from(task: tuple[Program, Kinds]) -> list[tuple[Rewrite, str]]:
    """Legal moves of some kinds that can gain something, each with the hash of its program."""
    # Alone in a process: nothing but the task is known here.
    program, kinds = task
    found = []
    for rewrite in legal_rewrites(program, kinds):
        # Two moves may lead to one program: the hash tells.
        if _may_gain(program, rewrite.record):
            found.append((rewrite, canonical_hash(rewrite.program)))
    return found


def priced(task: tuple[Program, Sequence[Binding], CostModel]) -> Price:
    """Times, peaks and uneven values of a program at all sizes."""
    program, bindings, costs = task
    timings = tuple(costs.timing(program, binding) for binding in bindings)
    peaks = tuple(peak_bytes(program, binding) for binding in bindings)
    return timings, peaks, tuple(_uneven(program, binding) for binding in bindings)


def _uneven(program: Program, binding: Binding) -> int:
    """Values that are sliced along a dimension which the ranks do not divide."""
    found = 0
    for kind in program.types.values():
        if kind.layout.is_sliced:
            length = binding.shape(kind.shape)[kind.layout.dimension]
            found += length % binding.num_ranks > 0
    return found


def _rank(candidate: Candidate, first: Candidate) -> float:
    """The time as a share of that of the first program, the mean of all sizes."""
    pairs = zip(candidate.timings, first.timings, strict=True)
    shares = [one.seconds / max(other.seconds, 1e-12) for one, other in pairs]
    return sum(shares) / len(shares)


def _may_gain(program: Program, record: LegalityRecord) -> bool:
    """Whether a move can make a program better.

    A prefix that ends within a statement splits it for nothing; members of a chain that keep one
    resource busy wait for one another anyway.
    """
    # The move would tear a statement apart.
    if record.transformation == "reorder":
        members = record.parameters["members"]
        assert isinstance(members, tuple)
        last = members[-1]
        return last in program.outputs or not program.by_name[last].is_inner
    # The note of an overlap names what each member keeps busy.
    if record.transformation == "overlap":
        resources = record.notes[0].partition(": ")[2].split(", ")
        return len(set(resources)) > 1
    return True
