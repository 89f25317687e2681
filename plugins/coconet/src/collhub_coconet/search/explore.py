"""Walk from program to program by legal moves, and keep the best: fastest, and smallest."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from collhub_coconet.lowering.timing import peak_bytes
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from collhub_coconet.search.canonical import canonical_hash
from collhub_coconet.search.cost_models import CostModel, Timing
from collhub_coconet.transformations.legality import LegalityRecord, Rewrite
from collhub_coconet.transformations.moves import legal_moves

# Moves of a later kind gain nothing from one of an earlier kind behind them (order of use of the
# transformations), so that paths go through the kinds in this order.
_ORDER = ("split", "reorder", "as-slice", "fuse", "overlap")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that was reached, by which moves, and what it costs at every size."""

    program: Program
    steps: tuple[Rewrite, ...]
    timings: tuple[Timing, ...]
    peaks: tuple[int, ...]


@dataclass(slots=True)
class Exploration:
    """What a search met: candidates in the order of their discovery, and how it ended.

    `visited`: states; `pruned`: states that were not expanded, for their bound; `is_complete`:
    whether every reachable state was expanded or pruned.
    """

    candidates: list[Candidate] = field(default_factory=list)
    visited: int = 0
    pruned: int = 0
    is_complete: bool = True

    def winner(self, size: int) -> Candidate:
        """The fastest candidate at a size by its index; of equal ones that with fewest moves."""
        return min(
            self.candidates,
            key=lambda one: (one.timings[size].seconds, one.peaks[size], len(one.steps)),
        )

    def front(self, size: int) -> list[Candidate]:
        """Candidates of which no other is both faster and smaller, the fastest first."""
        ordered = sorted(
            self.candidates,
            key=lambda one: (one.timings[size].seconds, one.peaks[size], len(one.steps)),
        )
        found: list[Candidate] = []
        for one in ordered:
            if not found or one.peaks[size] < found[-1].peaks[size]:
                found.append(one)
        return found


def explore(
    program: Program, bindings: Sequence[Binding], costs: CostModel, most_states: int
) -> Exploration:
    """All programs that legal moves reach, at most so many, those of least time first.

    A state is a canonical program, so that each is visited once. A state whose lower bound is above
    the best time at every size, and that cannot need less memory than the smallest, is not
    expanded. Deterministic: ties go to the state that was found first.
    """
    # The heap holds (mean share of time, order of discovery, kind of the last move, state).
    found = Exploration()
    seen = {canonical_hash(program)}
    first = _candidate(program, (), bindings, costs)
    found.candidates.append(first)
    queue = [(_rank(first, first), 0, 0, first)]
    while queue:
        _, _, phase, state = heapq.heappop(queue)
        found.visited += 1
        if _is_hopeless(state, found, bindings, costs):
            found.visited -= 1
            found.pruned += 1
            continue
        for rewrite in _moves(state.program, bindings[-1], phase):
            key = canonical_hash(rewrite.program)
            if key in seen:
                continue
            # What was found first promises most of this state.
            if len(seen) >= most_states:
                found.is_complete = False
                break
            seen.add(key)
            steps = (*state.steps, rewrite)
            reached = _candidate(rewrite.program, steps, bindings, costs)
            found.candidates.append(reached)
            place = _ORDER.index(rewrite.record.transformation)
            entry = (_rank(reached, first), len(found.candidates), place, reached)
            heapq.heappush(queue, entry)
    return found


def _candidate(
    program: Program,
    steps: tuple[Rewrite, ...],
    bindings: Sequence[Binding],
    costs: CostModel,
) -> Candidate:
    timings = tuple(costs.timing(program, binding) for binding in bindings)
    peaks = tuple(peak_bytes(program, binding) for binding in bindings)
    return Candidate(program, steps, timings, peaks)


def _rank(candidate: Candidate, first: Candidate) -> float:
    """The time as a share of that of the first program, the mean of all sizes."""
    pairs = zip(candidate.timings, first.timings, strict=True)
    shares = [one.seconds / max(other.seconds, 1e-12) for one, other in pairs]
    return sum(shares) / len(shares)


def _is_hopeless(
    state: Candidate, found: Exploration, bindings: Sequence[Binding], costs: CostModel
) -> bool:
    """Whether nothing behind a state can be faster or smaller than what is known, at any size."""
    # One size at which it may win is enough to go on.
    for place, binding in enumerate(bindings):
        fastest = min(one.timings[place].seconds for one in found.candidates)
        smallest = min(one.peaks[place] for one in found.candidates)
        # Slices are a p-th of what they are of.
        least = state.peaks[place] // binding.num_ranks
        if costs.bound(state.program, binding) < fastest or least < smallest:
            return False
    return True


def _moves(program: Program, binding: Binding, phase: int) -> Iterator[Rewrite]:
    """Legal moves of this kind and later ones that can gain something."""
    for move in legal_moves(program, binding):
        record = move.rewrite.record
        # The order of use of the specification, so that each program is met once.
        is_late = _ORDER.index(record.transformation) >= phase
        if is_late and _may_gain(program, record):
            yield move.rewrite


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
