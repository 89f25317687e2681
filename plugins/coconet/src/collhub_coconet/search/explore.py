"""Best-first search over the programs that legal transformations reach.

Every program is a state, identified by its canonical hash. The state with the lowest time so far is
expanded first. A state is pruned if at every size some known program is as fast and as small as
the lower bounds of all programs below that state.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, field
from typing import TypeVar

from collhub_coconet.documents.json_document import canonical_hash
from collhub_coconet.lowering.timing import compute_peak_bytes
from collhub_coconet.program.operations import Binding
from collhub_coconet.program.program import Program
from collhub_coconet.search.cost_models import CostModel, ProgramTiming
from collhub_coconet.search.parts import PartClass
from collhub_coconet.transformations.legality import LegalityRecord, Rewrite
from collhub_coconet.transformations.moves import (
    TRANSFORMATIONS,
    fuse_scalars,
    legal_rewrites,
)
from hub_core.model import InputError
from hub_core.plugin_api import SearchBudget

Task = TypeVar("Task")
TaskResult = TypeVar("TaskResult")
Progress = Callable[[float, str], None]
"""Callback that receives the completed fraction (0 to 1) and a text about the current work."""


def ignore_progress(fraction: float, text: str) -> None:
    """Discard a progress report."""


def run_tasks(
    workers: Executor | None,
    function: Callable[[Task], TaskResult],
    tasks: Sequence[Task],
    is_enough: Callable[[int], bool] | None = None,
) -> list[TaskResult]:
    """Apply `function` to every task; return the results in the order of the tasks.

    - Without workers, or with fewer than two tasks: one after the other in this process.
    - With workers: all tasks are submitted at once.

    `is_enough` is called after each result, with the number of results so far. Once it
    returns True, only these first results are returned. The other tasks are cancelled if they
    have not started; results of running ones are dropped.

    Exceptions of tasks pass, and submitted tasks continue. Raises `InputError` if a worker
    died during these tasks. If it died before, `BrokenExecutor` passes.
    """
    futures: list[Future[TaskResult]] = []
    if workers is None or len(tasks) < 2:
        pending = (function(task) for task in tasks)
    else:
        futures = [workers.submit(function, task) for task in tasks]
        pending = (future.result() for future in futures)
    results: list[TaskResult] = []
    try:
        for result in pending:
            results.append(result)
            if is_enough is not None and is_enough(len(results)):
                break
    except BrokenExecutor as error:
        message = f"a worker of the search died: {error}" if str(error) else "a worker died"
        raise InputError(message, cure="run with --jobs 1, or on fewer programs") from error
    for future in futures:
        future.cancel()
    return results


SEARCHED = tuple(kind for kind in TRANSFORMATIONS if kind != "coalesce")
"""Transformations of the search of programs; bucket sizes are chosen for its results."""

AllowedKinds = tuple[str, ...]
"""Kinds of transformations that may still be applied, in the order of `SEARCHED`.

After a transformation of one kind only that kind and later ones follow.
"""

Evaluation = tuple[tuple[ProgramTiming, ...], tuple[int, ...], tuple[int, ...]]
"""Timings, peak memory in bytes and unevenly sliced values of a program, each by size."""

# States expanded per round. Independent of the number of workers, so that every machine finds the
# same result.
_STATES_PER_ROUND = 8


@dataclass(frozen=True, slots=True)
class PartStep:
    """Transformation of the first of `count` equal parts; `before`: its program before the step."""

    rewrite: Rewrite
    before: Program
    count: int


def list_part_steps(
    classes: Sequence[PartClass], rewrites: Sequence[Sequence[Rewrite]]
) -> list[PartStep]:
    """List the rewrites of all classes of equal parts, so that the entire program accepts them.

    `rewrites`: per class, in the order of application. They are sorted by transformation in the
    order of `TRANSFORMATIONS`; those of one kind are in the order of the classes, and within a
    class in their order. Each step has the program of the part before it, and the number of copies
    of the part. Raise `ValueError` unless there is one sequence per class.
    """
    steps = []
    for part, rewrites_of_part in zip(classes, rewrites, strict=True):
        before = part.program
        for rewrite in rewrites_of_part:
            steps.append(PartStep(rewrite, before, len(part.copies)))
            before = rewrite.program
    return sorted(steps, key=lambda step: TRANSFORMATIONS.index(step.rewrite.record.transformation))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program with the transformations that lead to it and its costs.

    The costs have one entry per size. `peaks`: peak memory of a rank in bytes. `uneven_values`:
    number of values whose sliced dimension the number of ranks does not divide. `part_steps`: the
    steps of a program that was searched in parts.
    """

    program: Program
    steps: tuple[Rewrite, ...]
    timings: tuple[ProgramTiming, ...]
    peaks: tuple[int, ...]
    uneven_values: tuple[int, ...]
    part_steps: tuple[PartStep, ...] = ()

    def sort_key(self, size_index: int) -> tuple[float, int, int, int]:
        """Return the key that orders candidates at one size; the lowest is the best.

        It is time in s, then peak memory in bytes, unevenly sliced values, and number of steps.
        """
        return (
            self.timings[size_index].seconds,
            self.peaks[size_index],
            self.uneven_values[size_index],
            len(self.steps),
        )


@dataclass(slots=True)
class Exploration:
    """Result of a search: all candidates in order of discovery, the original program first.

    `expanded` and `pruned` count states. `is_complete`: every reachable state was expanded or
    pruned; False if the search met its maximum number of states or the limit of its budget.
    `restrictions`: descriptions of choices that were not compared.
    """

    candidates: list[Candidate] = field(default_factory=list)
    expanded: int = 0
    pruned: int = 0
    is_complete: bool = True
    restrictions: tuple[str, ...] = ()

    def fastest(self, size_index: int) -> Candidate:
        """First candidate by `sort_key`; the one discovered first if keys are equal."""
        return min(self.candidates, key=lambda candidate: candidate.sort_key(size_index))

    def pareto_front(self, size_index: int) -> list[Candidate]:
        """Return the Pareto front of time and memory at one size, the fastest candidate first.

        Each further candidate is slower and needs less peak memory than all before it. Of
        candidates with equal time and memory, only the first one by `sort_key` is included.
        """
        front: list[Candidate] = []
        for candidate in sorted(self.candidates, key=lambda program: program.sort_key(size_index)):
            if not front or candidate.peaks[size_index] < front[-1].peaks[size_index]:
                front.append(candidate)
        return front


def explore(
    program: Program,
    bindings: Sequence[Binding],
    cost_model: CostModel,
    max_states: int,
    *,
    workers: Executor | None = None,
    progress: Progress = ignore_progress,
    budget: SearchBudget | None = None,
) -> Exploration:
    """Explore up to `max_states` programs that transformations reach from `program`.

    The first candidate is `program`. If it has only pointwise operations on scalars that can be
    fused, the result has two candidates, `program` and the fused one, and is complete. This counts
    2 units of `budget` and ignores its limits. `progress` is not called.

    Otherwise programs are expanded in rounds until none is left. After each round, `budget` counts
    one unit per new program, and `progress` gets the fraction of the known programs that were
    expanded or pruned. If a limit of `budget` is reached before a round, the search stops and
    records the cut. The result is then incomplete. It is also incomplete if a new program was
    dropped because of `max_states`.

    `workers` do not change the result. Raises `InputError` if a worker process died.
    """
    budget = budget or SearchBudget()
    if rewrite := fuse_scalars(program):
        # A thousand scalars have too many moves to try, and the best one is known.
        known = [(program, ()), (rewrite.program, (rewrite,))]
        evaluations = run_tasks(
            workers, evaluate, [(each, bindings, cost_model) for each, _ in known]
        )
        budget.count(len(known))
        return Exploration(
            [
                Candidate(each, steps, *evaluation)
                for (each, steps), evaluation in zip(known, evaluations, strict=True)
            ],
            expanded=len(known),
        )
    search = _Search(program, bindings, cost_model, max_states)
    result = search.result
    while search.queue:
        if budget.reason:
            result.is_complete = False
            budget.cut("search of programs", f"{len(search.queue)} known programs and what follows")
            break
        num_known = len(result.candidates)
        search.expand_round(workers)
        discovered = len(result.candidates)
        budget.count(discovered - num_known)
        processed = result.expanded + result.pruned
        progress(processed / discovered, f"{discovered} programs")
    return result


class _Search:
    """State of a running search.

    `queue`: heap of (mean relative time, order of discovery, candidate, allowed kinds).
    """

    def __init__(
        self,
        program: Program,
        bindings: Sequence[Binding],
        cost_model: CostModel,
        max_states: int,
    ) -> None:
        self.result = Exploration()
        self.queue: list[tuple[float, int, Candidate, AllowedKinds]] = []
        self._bindings = bindings
        self._cost_model = cost_model
        self._max_states = max_states
        self._seen_hashes = {canonical_hash(program)}
        evaluation = evaluate((program, bindings, cost_model))
        self._enqueue(Candidate(program, (), *evaluation), SEARCHED)

    def expand_round(self, workers: Executor | None) -> None:
        """Expand up to 8 of the most promising states of the queue, and enqueue the new programs.

        The states with the lowest time relative to the original program, as a mean over the sizes,
        are expanded; of equal ones, the first discovered. A dominated state (no descendant can be
        better than known programs) is removed and counted as pruned, and does not count toward the
        8. If only dominated states are left, the queue is empty afterwards.

        Each state gives the programs of one further transformation. A program with a known hash is
        dropped. If `max_states` programs are known, a new one is dropped too, and the result is
        marked as incomplete. The others are evaluated at every size, and added to the candidates of
        the result and to the queue, state by state. Such a program may later be rewritten only by
        the kind of transformation that created it, and by the kinds after it in `SEARCHED`.
        `workers` (None for none) compute in parallel with equal results. Raises `InputError` if a
        worker died.
        """
        parents: list[tuple[Candidate, AllowedKinds]] = []
        while self.queue and len(parents) < _STATES_PER_ROUND:
            _, _, candidate, kinds = heapq.heappop(self.queue)
            # Tested here and not on discovery: better programs may have been found since.
            if self._is_dominated(candidate, kinds):
                self.result.pruned += 1
            else:
                parents.append((candidate, kinds))
        self.result.expanded += len(parents)
        tasks = [(candidate.program, kinds) for candidate, kinds in parents]
        children: list[tuple[Candidate, Rewrite]] = []
        rewrites_by_parent = run_tasks(workers, find_rewrites, tasks)
        for (parent, _), rewrites in zip(parents, rewrites_by_parent, strict=True):
            for rewrite, program_hash in rewrites:
                if program_hash in self._seen_hashes:
                    continue
                if len(self._seen_hashes) >= self._max_states:
                    self.result.is_complete = False
                    continue
                self._seen_hashes.add(program_hash)
                children.append((parent, rewrite))
        evaluations = run_tasks(
            workers,
            evaluate,
            [(rewrite.program, self._bindings, self._cost_model) for _, rewrite in children],
        )
        for (parent, rewrite), evaluation in zip(children, evaluations, strict=True):
            first_allowed = SEARCHED.index(rewrite.record.transformation)
            steps = (*parent.steps, rewrite)
            candidate = Candidate(rewrite.program, steps, *evaluation)
            self._enqueue(candidate, SEARCHED[first_allowed:])

    def _is_dominated(self, state: Candidate, kinds: AllowedKinds) -> bool:
        """Check whether known programs are at least as good as any descendant of a state.

        True if at every size one of the candidates of the result takes at most the lower bound
        of the time (s), and needs at most the lower bound of the peak memory (bytes). It can be
        another candidate at each size, also the state itself. The bounds are those of the cost
        model for the program of the state and all programs that the transformations `kinds` can
        reach from it.
        """
        for size_index, binding in enumerate(self._bindings):
            bound = self._cost_model.bound(state.program, binding, kinds)
            is_dominated_at_size = any(
                known.timings[size_index].seconds <= bound.seconds
                and known.peaks[size_index] <= bound.peak_bytes
                for known in self.result.candidates
            )
            if not is_dominated_at_size:
                return False
        return True

    def _enqueue(self, candidate: Candidate, kinds: AllowedKinds) -> None:
        """Append a candidate to the candidates of the result, and add it to the queue.

        Its priority, lowest first, is its time divided by that of the original program (the
        first candidate), as a mean over the sizes; of equal ones the first added is first.
        `kinds`: the transformations that may still be applied to it.
        """
        self.result.candidates.append(candidate)
        original = self.result.candidates[0]
        relative_times = [
            timing.seconds / max(original_timing.seconds, 1e-12)
            for timing, original_timing in zip(candidate.timings, original.timings, strict=True)
        ]
        priority = sum(relative_times) / len(relative_times)
        # Breaks ties of the priority: candidates define no order.
        discovery_order = len(self.result.candidates)
        heapq.heappush(self.queue, (priority, discovery_order, candidate, kinds))


# The functions below run in worker processes, so that all of their input is one argument.


def find_rewrites(task: tuple[Program, AllowedKinds]) -> list[tuple[Rewrite, str]]:
    """Return the legal rewrites that may improve a program, each with the hash of its result.

    `task`: the program, and the kinds of transformations that may be applied. The order is
    that of `legal_rewrites`; rewrites that cannot make a program faster or smaller
    (`_can_help`) are left out. Different rewrites may have the same hash.
    """
    program, kinds = task
    return [
        (rewrite, canonical_hash(rewrite.program))
        for rewrite in legal_rewrites(program, kinds)
        if _can_help(program, rewrite.record)
    ]


def _can_help(program: Program, record: LegalityRecord) -> bool:
    """Check whether a legal transformation can make a program faster or smaller.

    `record` describes the transformation. False for a reorder if the name of its last member
    begins with `_` (an unnamed value) and the member is no output: it would only split a
    statement. False for an overlap whose members all use the same resource. The first note of
    its record lists the resource of each member: `resources: a, b`. True for all other
    transformations.
    """
    # Moving a prefix whose last member is inside a statement would only split the statement.
    if record.transformation == "reorder":
        members = record.parameters["members"]
        assert isinstance(members, tuple)
        last = members[-1]
        return last in program.outputs or not program.by_name[last].is_inner
    # Members that occupy the same resource cannot overlap. The first note of an overlap lists the
    # resource of each member.
    if record.transformation == "overlap":
        resources = record.notes[0].partition(": ")[2].split(", ")
        return len(set(resources)) > 1
    return True


def evaluate(task: tuple[Program, Sequence[Binding], CostModel]) -> Evaluation:
    """Return times, peak memory of a rank in bytes, and number of unevenly sliced values.

    `task`: program, sizes, and cost model. Each of the three results has one entry per
    size, in the order of the sizes. A value is sliced unevenly if its blocks have unequal sizes.
    """
    program, bindings, cost_model = task
    timings = tuple(cost_model.timing(program, binding) for binding in bindings)
    peaks = tuple(compute_peak_bytes(program, binding) for binding in bindings)
    uneven_values = tuple(count_uneven_values(program, binding) for binding in bindings)
    return timings, peaks, uneven_values


def count_uneven_values(program: Program, binding: Binding) -> int:
    """Count the values with blocks of unequal sizes.

    Arguments and operations count; values that are not sliced do not. If several axes of a mesh
    slice a dimension, each axis must divide the block of the axes before it.
    """
    count = 0
    for tensor in program.types.values():
        layout, lengths = tensor.layout, list(binding.shape(tensor.shape))
        axes = zip(layout.axes, binding.axis_sizes, strict=True) if layout.axes else ()
        is_uneven = False
        for sliced, ranks in axes or [(layout, binding.num_ranks)]:
            if sliced.is_sliced:
                lengths[sliced.dimension], remainder = divmod(lengths[sliced.dimension], ranks)
                is_uneven = is_uneven or remainder > 0
        count += is_uneven
    return count
