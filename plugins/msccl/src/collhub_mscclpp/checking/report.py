"""The report on a plan, its findings, and events of simulated launches described as findings."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from collhub_mscclpp.checking.execution import LaunchResult, PlanState, Race
from collhub_mscclpp.plan_records import BUFFER_TYPES, Plan
from hub_core.columns import Int64Array
from hub_core.model import Buffer, Diagnostic, Findings, Location, Severity

OK = "ok"
RACE = "race"
DEADLOCK = "deadlock"
WRONG = "wrong"
UNKNOWN = "n/a"
"""Verdicts on contents and order of a plan. UNKNOWN: the plan could not be simulated."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanReport:
    """Result of the check of a plan.

    `is_loadable`: whether it complies with all rules and limits of the executor's loader.
    `verdict`: OK, RACE, DEADLOCK or WRONG in the first launch, n/a if it could not be simulated;
    `verdict_relaunch`: the most severe verdict of all launches, n/a also for fragments.
    `is_fragment`: whether the plan has no expected result (`test`, or an unknown collective).
    `diagnostics`: errors and warnings, those about loading first. `order`: rows of operations in
    execution order of the first launch; empty if it could not be simulated.
    """

    is_loadable: bool
    verdict: str
    verdict_relaunch: str
    is_fragment: bool
    diagnostics: tuple[Diagnostic, ...]
    order: Int64Array

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """Findings with severity ERROR: the plan does not do what it claims."""
        return tuple(
            diagnostic for diagnostic in self.diagnostics if diagnostic.severity is Severity.ERROR
        )

    @property
    def ok(self) -> bool:
        """Whether the executor runs the plan correctly, also in repeated launches."""
        return not self.errors


@dataclass(slots=True)
class PlanFindings:
    """Collects findings about a plan with their location."""

    plan: Plan
    found: Findings = field(init=False)
    breaks_loading: bool = False

    def __post_init__(self) -> None:
        self.found = Findings(self.plan.file)

    def at(
        self,
        code: str,
        row: int,
        message: str,
        cure: str = "",
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Add a finding about an operation, by default an error.

        `row`: row of the operation in the plan. `cure`: how to fix it, "" if unknown. The
        message begins with the name of the operation (`describe_within_rank`); the location has
        the rank and the JSON path of the operation.
        """
        rank = self.plan.blocks[int(self.plan.operations.block[row])].rank
        # Plans are often one long line, so a rank is more useful than a line number.
        location = Location(self.plan.file, rank=rank, path=self.plan.path(row))
        self.found.add(
            code, f"{self.plan.describe_within_rank(row)}: {message}", location, cure, severity
        )

    def warn_at(
        self,
        code: str,
        row: int,
        message: str,
        cure: str = "",
    ) -> None:
        """Add a warning about an operation."""
        self.at(code, row, message, cure, Severity.WARNING)

    def on_rank(
        self,
        code: str,
        rank: int,
        message: str,
        cure: str = "",
    ) -> None:
        """Add an error about rank `rank` of the plan, at the JSON path `$.gpus[rank]`.

        `cure`: advice, "" for none.
        """
        location = Location(self.plan.file, rank=rank, path=f"$.gpus[{rank}]")
        self.found.add(code, message, location, cure)

    def on_plan(
        self,
        code: str,
        message: str,
        cure: str = "",
    ) -> None:
        """Add an error about the entire plan."""
        self.found.add(code, message, Location(self.plan.file), cure)

    def refuse_at(
        self,
        code: str,
        row: int,
        message: str,
        cure: str = "",
    ) -> None:
        """Add an error about an operation that the executor refuses or that overruns its tables.

        The plan is marked as not loadable. `row`: row of the operation in the plan. `cure`: how to
        fix it, "" if unknown.
        """
        # Errors that the loader reports and errors that it misses are equally severe for users.
        self.breaks_loading = True
        self.at(code, row, message, cure)

    def refuse_rank(
        self,
        code: str,
        rank: int,
        message: str,
        cure: str = "",
    ) -> None:
        """Add an error about a rank that the executor refuses or that overruns its tables.

        The plan is marked as not loadable. `cure`: how to fix it, "" if unknown.
        """
        self.breaks_loading = True
        self.on_rank(code, rank, message, cure)


_FLUSH_CURE = (
    "wait for the proxy before: write pwsf, or a flush with one dst_buff entry for each channel"
)
_ORDER_CURE = "order them by a signal and a wait, a semaphore or a barrier"


class Story:
    """Adds findings launch by launch; findings of earlier launches are not repeated."""

    def __init__(
        self,
        plan: Plan,
        execution: PlanState,
        findings: PlanFindings,
    ) -> None:
        self._plan = plan
        self._execution = execution
        self._findings = findings
        self._told: set[tuple[int, ...]] = set()

    def tell(
        self,
        result: LaunchResult,
        number: int,
    ) -> None:
        """Add the findings of one simulated launch: deadlocks, races, wrong contents.

        `number`: of the launch, from 0; messages count launches from 1. The findings are added in
        this order, within a kind in the order of `result`:

        - `deadlock`, an error per blocked operation, in every launch
        - `race`, an error (`_tell_race`): only once per first operation, second operation,
          distance of the two launches, and host rank. Further cells of such a race are not
          reported.
        - `unflushed-put`, a warning, once per put whose source the proxy may read only after the
          end of the kernel
        - `wrong-output`, an error at the rank, once per rank and output chunk, with the first
          wrong cell of the chunk. A launch with a deadlock has none.

        Except deadlocks, a finding of an earlier launch is not repeated.
        """
        for row in result.blocked.tolist():
            message = f"waits for ever in launch {number + 1}"
            self._findings.at("deadlock", row, message, "see what its partner waits for")
        for race in result.races:
            between = race.launch - race.other_launch
            if self._is_new(race.operation, race.other, between, race.host_rank):
                self._tell_race(race)
        for race in result.exposed:
            if self._is_new(race.other):
                message = (
                    f"the kernel may end before the proxy has read {self._place(race.cell)}:"
                    " a caller that then overwrites it sends wrong data"
                )
                self._findings.warn_at("unflushed-put", race.other, message, _FLUSH_CURE)
        # Outputs are incomplete if the launch does not end.
        if not len(result.blocked):
            contents = self._execution.contents
            cells = self._execution.memory.cells_per_chunk
            for row in np.flatnonzero(result.wrong).tolist():
                rank, chunk = int(contents.rank[row]), int(contents.offset[row]) // cells
                if not self._is_new(rank, chunk):
                    continue
                defect = contents.describe(row, result.value, result.is_defined)
                message = f"output chunk {chunk} {defect} after launch {number + 1}"
                cure = f"see what {self._plan.header.collective} promises"
                self._findings.on_rank("wrong-output", rank, message, cure)

    def _is_new(self, *key: int) -> bool:
        """Return whether an event with this key has not been reported yet, and record the key.

        Keys of different kinds of events must have different lengths.
        """
        is_new = key not in self._told
        self._told.add(key)
        return is_new

    def _tell_race(
        self,
        race: Race,
    ) -> None:
        """Add a race as an error, with both accesses, the memory location and their launches.

        The text names `race.other`, then `race.operation`; row -1 is the caller of rank
        `host_rank`. Launches are counted from 1, and a common one is named once. For a put that a
        proxy may execute too late (`is_late`), the text says that `operation` overwrites the
        location before the proxy has read it for `other`. The cure is then a flush, otherwise an
        order by signal and wait, semaphore or barrier. The error is at the rank of the operation
        with the higher row number, or at `host_rank` if both accesses are by the host. It is added
        each time; the caller omits repetitions.
        """
        host = f"the caller of rank {race.host_rank}, who fills inputs and reads outputs,"
        first, second = (
            self._plan.describe(row) if row >= 0 else host for row in (race.other, race.operation)
        )
        between = f"in launch {race.launch + 1}"
        if race.launch != race.other_launch:
            between = f"in launches {race.other_launch + 1} and {race.launch + 1}"
        location = self._place(race.cell)
        row = max(race.operation, race.other)
        rank = self._execution.rank_of(row) if row >= 0 else race.host_rank
        message = f"{first} and {second} touch {location} without an order, {between}"
        cure = _ORDER_CURE
        if race.is_late:
            message = (
                f"{second} overwrites {location} while the proxy may not have read it for {first},"
                f" {between}"
            )
            cure = _FLUSH_CURE
        self._findings.on_rank("race", rank, message, cure)

    def _place(
        self,
        cell: int,
    ) -> str:
        """Return a text such as `chunk 3 of buffer 's' of rank 0`, or the name of a counter.

        `cell`: number of the cell; -1 - n means counter n. If buffers share memory, the lowest
        rank and buffer that contain the cell are named. Cells of packets and of the second half
        of scratch are mapped to the chunk of the plan.
        """
        if cell < 0:
            return self._execution.counters.names[-1 - cell]
        memory = self._execution.memory
        base, size = memory.layout.base, memory.layout.size
        rank, buffer = np.argwhere((base <= cell) & (cell < base + size))[0].tolist()
        offset = cell - int(base[rank, buffer])
        if buffer == Buffer.SCRATCH:
            # All forms and halves contain the same chunks.
            offset %= int(memory.half[rank])
        chunk = offset // memory.cells_per_chunk
        return f"chunk {chunk} of buffer {BUFFER_TYPES[buffer]!r} of rank {rank}"
