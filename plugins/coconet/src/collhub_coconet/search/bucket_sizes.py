"""Choice of bucket sizes for the programs of a search.

Equal tensors are one decision: a bucket size, not a set of tensors. Bases are the original program
and the fastest and the smallest result, each with its computations fused but its collectives in
kernels of their own. For every base a short list of sizes is compared: all bytes in one bucket,
then powers of two. Simulated times include the overlap of a bucket with kernels that compute. If
tensors share only scalars, such as a global norm, their computations are also tried as one kernel,
with buckets, without, and with the last collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from collhub_coconet.lowering.timing import compute_peak_bytes
from collhub_coconet.program.operations import Binding, Kind
from collhub_coconet.program.program import Program
from collhub_coconet.search.cost_models import FormulaModel, ProgramTiming
from collhub_coconet.search.explore import (
    Candidate,
    Exploration,
    PartStep,
    count_uneven_values,
    list_part_steps,
)
from collhub_coconet.search.parts import PartClass, assemble, is_stand_in
from collhub_coconet.search.simulation import Simulation
from collhub_coconet.transformations.buckets import coalesce_by_size, list_bucket_sizes
from collhub_coconet.transformations.grouping import fuse
from collhub_coconet.transformations.legality import RefusedMoveError, Rewrite
from collhub_coconet.transformations.moves import FUSIBLE, fuse_scalars, grow_stage
from hub_core.plugin_api import SearchBudget

MAX_BUCKET_SIZES = 6
"""Bucket sizes that are compared for a program; fewer for more than `_LARGE` operations."""

MAX_CHUNKED = 64
"""Kernels that communicate above which a program with one kernel of computations, or with buckets,
is simulated in one chunk only."""

_LARGE = 300


@dataclass(frozen=True, slots=True)
class BucketTrials:
    """Number of compared programs with buckets, and the bucket sizes in bytes, ascending."""

    programs: int
    sizes: tuple[int, ...]


def add_buckets(
    program: Program,
    classes: Sequence[PartClass],
    explorations: Sequence[Exploration],
    exploration: Exploration,
    bindings: Sequence[Binding],
    model: FormulaModel,
    simulation: Simulation | None,
    budget: SearchBudget,
) -> tuple[Exploration, BucketTrials]:
    """Add, for every problem size, the fastest program with buckets to the candidates of a search.

    A bucket is several equal collectives in one call. Returns a copy of `exploration` (the result
    for the entire program) with the added candidates at the end, at most one per size of
    `bindings`; also the number of compared programs and their bucket sizes, ascending. Of equally
    fast programs the first counts (`_BucketChoice.find_fastest`).

    `explorations`: results of the search for each class of equal parts (`classes`). `simulation`:
    None if times are by formula. In this case, if a program was added, the earlier candidates get
    new times by formula for the entire program, because sums of parts are not comparable. Programs
    that cannot be simulated are skipped. `budget` counts one unit per compared program and size. At
    its limit the remaining programs are omitted, and `budget` records the cut.
    """
    choice = _BucketChoice(program, classes, explorations, bindings, model, simulation, budget)
    added: list[Candidate] = []
    for size_index in range(len(bindings)):
        added += choice.find_fastest(size_index)
    candidates = list(exploration.candidates)
    if added and simulation is None:
        # Sums of the times of parts are not comparable with times of entire programs.
        for index, known in enumerate(candidates):
            timings = tuple(model.timing(known.program, binding) for binding in bindings)
            candidates[index] = replace(known, timings=timings)
    candidates += added
    trials = BucketTrials(choice.trials, tuple(sorted(choice.sizes)))
    return replace(exploration, candidates=candidates), trials


class _BucketChoice:
    """Comparison of bucket sizes for one program; `trials`: number of programs so far."""

    def __init__(
        self,
        program: Program,
        classes: Sequence[PartClass],
        explorations: Sequence[Exploration],
        bindings: Sequence[Binding],
        model: FormulaModel,
        simulation: Simulation | None,
        budget: SearchBudget,
    ) -> None:
        self._program, self._classes, self._explorations = program, classes, explorations
        self._bindings, self._model, self._simulation = bindings, model, simulation
        self._budget = budget
        self.trials = 0
        self.sizes: set[int] = set()

    def find_fastest(self, size_index: int) -> list[Candidate]:
        """Return the fastest program with buckets at one problem size; a list of at most one.

        A bucket is several collectives in one call. For each base program, at most
        `MAX_BUCKET_SIZES` bucket sizes are tried; above `_LARGE` (300) operations fewer in
        proportion, but at least 2. A size without buckets, or with the buckets of an earlier size,
        is skipped; others are added to `self.sizes`. These programs are timed per bucket size:

        1. the program with buckets; above `_LARGE` operations only if 2 does not exist
        2. this program with equal computations of parts fused, if there are any
        3. the program with buckets and all computations in one kernel, if that is permitted

        Then the base program without buckets is timed, with all computations fused, and with the
        last collective fused too. The first of equally fast programs is the result, with its
        fastest chunk counts. The list is empty if no program exists.

        If the budget is used up before a bucket size, the best program so far is returned at once,
        without a choice of chunk counts, and the budget records the cut. If it is used up later,
        the remaining fusions without buckets are left out.
        """
        best: Candidate | None = None
        for steps, base in self._list_bases(size_index):
            seen = set()
            # The work of a comparison is proportional to the number of operations.
            count = MAX_BUCKET_SIZES * _LARGE // max(_LARGE, len(base.operations))
            binding = self._bindings[size_index]
            for size in list_bucket_sizes(base, binding, max(2, count)):
                try:
                    rewrite = coalesce_by_size(base, binding, size)
                except RefusedMoveError:
                    continue
                # Different sizes may give the same buckets.
                if rewrite.program.stages in seen:
                    continue
                seen.add(rewrite.program.stages)
                if self._budget.reason:
                    self._budget.cut("choice of bucket sizes", "the remaining bucket sizes")
                    return [] if best is None else [best]
                self.sizes.add(size)
                steps_with_buckets = [*steps, PartStep(rewrite, base, 1)]
                together = self._fuse_equal_computations(steps_with_buckets)
                is_fused = len(together) > len(steps_with_buckets)
                if not is_fused or len(base.operations) <= _LARGE:
                    best = self._select(best, steps_with_buckets, size_index)
                if is_fused:
                    best = self._select(best, together, size_index)
                if all_in_one := self._fuse_all(steps_with_buckets):
                    best = self._select(best, all_in_one, size_index)
            for count in (0, 1):
                if not self._budget.reason and (all_in_one := self._fuse_all(steps, base, count)):
                    best = self._select(best, all_in_one, size_index)
        return [] if best is None else [self._choose_chunks(best)]

    def _choose_chunks(self, candidate: Candidate) -> Candidate:
        """Simulate a candidate with all chunk counts at every size, and keep the faster times.

        Return a copy of the candidate with a new timing (time and chosen means) at each size
        for which the simulation is faster; the program is unchanged. A size keeps its timing if
        the time is equal or if it cannot be simulated. Return the candidate itself if times are
        by formula, or if more than `MAX_CHUNKED` (64) of its kernels communicate. Raise
        `HubError` for a defect that is not of the chunk count or the network
        (`Simulation.estimate`), such as a collective without an algorithm.
        """
        kernels = candidate.program.kernels()
        count = sum(any(entry.is_communication for entry in kernel) for kernel in kernels)
        if self._simulation is None or count > MAX_CHUNKED:
            return candidate
        timings = list(candidate.timings)
        for index, binding in enumerate(self._bindings):
            timing = self._simulation.estimate(candidate.program, binding)
            if not isinstance(timing, str) and timing.seconds < timings[index].seconds:
                timings[index] = timing
        return replace(candidate, timings=tuple(timings))

    def _fuse_equal_computations(self, steps: Sequence[PartStep]) -> list[PartStep]:
        """Return `steps`, followed by one step for each fusion of computations of equal parts.

        Parts are equal if they differ only in names, such as the updates of several tensors; a
        fused kernel computes one operation of all of them, as multi-tensor optimizers do. The
        fusions are those of `_list_equal_computations` for the program after the last of
        `steps`, each applied to the program of the step before. Refused fusions are skipped.
        `steps` must not be empty and is not changed.
        """
        extended = list(steps)
        for members in _list_equal_computations(self._classes, steps[-1].rewrite.program):
            before = extended[-1].rewrite.program
            try:
                extended.append(PartStep(fuse(before, members), before, 1))
            except RefusedMoveError:
                continue
        return extended

    def _fuse_all(
        self, steps: Sequence[PartStep], base: Program | None = None, num_collectives: int = 0
    ) -> list[PartStep] | None:
        """Return `steps` and one more step, which fuses all computations of a program.

        `base`: the program that is fused. None: the program of the last step (`IndexError` if there
        is no step). Computations are the operations of the kinds `FUSIBLE`. The last
        `num_collectives` communication operations are fused too: 0 is none, a number above their
        count is all. If an operation belongs to a stage, the whole stage is fused.

        Returns None in two cases:
        - No part in `self._classes` contains a stand-in, i.e. an operation in place of a scalar
          that another part computes from its results.
        - `fuse` raises `RefusedMoveError`.
        """
        if not any(is_stand_in(each) for part in self._classes for each in part.program.operations):
            return None
        program = base or steps[-1].rewrite.program
        stage_of = {member: stage.name for stage in program.stages for member in stage.members}
        members = [entry.name for entry in program.operations if entry.kind in FUSIBLE]
        if num_collectives:
            collectives = [entry.name for entry in program.operations if entry.is_communication]
            members += collectives[-num_collectives:]
        labels = list(dict.fromkeys(stage_of.get(name, name) for name in members))
        try:
            return [*steps, PartStep(fuse(program, labels), program, 1)]
        except RefusedMoveError:
            return None

    def _select(
        self, best: Candidate | None, steps: list[PartStep], size_index: int
    ) -> Candidate | None:
        """Time the program after `steps` at all sizes; return it as a candidate, or `best`.

        The program is that of the last of `steps`, which must not be empty. `best` is returned if
        the program cannot be timed at some size, or if its time at `size_index` is not below that
        of `best`. Without `best` (None) any program with times is returned.

        Counts one trial. Counts one unit of work per size before it is timed; sizes after one that
        cannot be timed are not tried.
        """
        program = steps[-1].rewrite.program
        timings = []
        self.trials += 1
        for binding in self._bindings:
            self._budget.count(1)
            timing: ProgramTiming | str
            if self._simulation is None:
                timing = self._model.timing(program, binding)
            else:
                timing = self._simulation.estimate(program, binding, (1,))
            if isinstance(timing, str):
                return best
            timings.append(timing)
        if best is not None and timings[size_index].seconds >= best.timings[size_index].seconds:
            return best
        return Candidate(
            program,
            tuple(step.rewrite for step in steps),
            tuple(timings),
            tuple(compute_peak_bytes(program, binding) for binding in self._bindings),
            tuple(count_uneven_values(program, binding) for binding in self._bindings),
            tuple(steps),
        )

    def _list_bases(self, size_index: int) -> Iterator[tuple[list[PartStep], Program]]:
        """Yield the base programs to which buckets are added, each as (steps to it, program).

        There are up to three, in this order. Each combines one candidate per class of equal parts:

        1. the original ones
        2. the fastest ones at the size number `size_index`
        3. those with the smallest memory at this size

        Their collectives are first separated (`_separate_collectives`) from the computations, so
        that every collective can be put into a bucket. A program that equals an earlier one is
        omitted. The steps are those of `list_part_steps`.
        """
        seen = set()
        for selection in (
            [each.candidates[0] for each in self._explorations],
            [each.fastest(size_index) for each in self._explorations],
            [each.pareto_front(size_index)[-1] for each in self._explorations],
        ):
            rewrites, parts = [], []
            for part, candidate in zip(self._classes, selection, strict=True):
                rewrites.append(_separate_collectives(part.program, candidate))
                parts.append(rewrites[-1][-1].program if rewrites[-1] else part.program)
            key = tuple((each.operations, each.arguments, each.stages) for each in parts)
            if key in seen:
                continue
            seen.add(key)
            whole = parts[0]
            if len(self._classes) > 1 or len(self._classes[0].copies) > 1:
                whole, _ = assemble(self._program, self._classes, parts)
            yield list_part_steps(self._classes, rewrites), whole


def _separate_collectives(program: Program, candidate: Candidate) -> list[Rewrite]:
    """Return the rewrites that give a variant of `candidate` with no collectives in new stages.

    A stage is a kernel of fused operations. Only collectives outside of stages can be put into
    buckets. The list has, in this order:

    1. the steps of the candidate, except those named fuse, overlap and coalesce
    2. one fuse step per stage of computations. In program order, each fusible operation outside of
       stages is fused with its neighbours as far as possible, without communication. An operation
       that has no such neighbour adds no step.

    If group 1 is empty and `fuse_scalars` accepts `program`, the list has only that rewrite. The
    list may be empty. Neither argument is changed.
    """
    steps = [
        step
        for step in candidate.steps
        if step.record.transformation not in ("fuse", "overlap", "coalesce")
    ]
    before = steps[-1].program if steps else program
    if not steps and (rewrite := fuse_scalars(program)):
        return [rewrite]
    covered = {name for stage in before.stages for name in stage.members}
    for operation in before.operations:
        if operation.kind not in FUSIBLE or operation.name in covered:
            continue
        members = grow_stage(before, operation, allows_communication=False)
        covered.update(members)
        if len(members) > 1:
            steps.append(fuse(before, members))
            before = steps[-1].program
    return steps


def _list_equal_computations(classes: Sequence[PartClass], program: Program) -> list[list[str]]:
    """List the operations of equal parts that one kernel can compute, one list of names per kernel.

    Each class has equal parts of `program`, its copies, which differ only in names. A computation
    is one operation at the same place of all copies of a class. Its list has, for each copy in
    order, the stage that contains the operation, or the operation if no stage contains it. The
    lists are ordered by class, then as the operations of the class. A computation has no list if:

    - the class has one copy
    - the first copy has no operation there, or its kind may not be in a stage (`FUSIBLE`)
    - it is a Slice or Update that no stage contains in the first copy
    - all entries of the list are equal, as one stage contains the operations of all copies
    - an earlier list is equal
    """
    stage_of = {member: stage for stage in program.stages for member in stage.members}
    lists = []
    for part in classes:
        for name in part.program.by_name:
            operation = program.by_name.get(part.copies[0].names[name])
            if len(part.copies) < 2 or operation is None or operation.kind not in FUSIBLE:
                continue
            members = []
            for copy in part.copies:
                own = copy.names[name]
                stage = stage_of.get(own)
                members += [own] if stage is None else [stage.name]
            is_view = operation.kind in (Kind.SLICE, Kind.UPDATE) and operation.name not in stage_of
            if not is_view and len(set(members)) > 1 and members not in lists:
                lists.append(members)
    return lists
