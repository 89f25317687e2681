"""Describe the events of the simulated launches as findings, every cause once."""

from __future__ import annotations

import numpy as np

from collhub_mscclpp.checking.execution import Execution, LaunchResult, Race
from collhub_mscclpp.checking.report import PlanFindings
from collhub_mscclpp.plans.operations import BUFFER_TYPES
from collhub_mscclpp.plans.records import Plan
from hub_core.model import Buffer

_FLUSH_CURE = (
    "wait for the proxy before: write pwsf, or a flush with one dst_buff entry for each channel"
)
_ORDER_CURE = "order them by a signal and a wait, a semaphore or a barrier"


class Story:
    """Adds findings launch by launch; findings of earlier launches are not repeated."""

    def __init__(
        self,
        plan: Plan,
        execution: Execution,
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
        """Add the findings of launch `number`, from 0: deadlocks, races, wrong contents."""
        for row in result.blocked.tolist():
            message = f"waits for ever in launch {number + 1}"
            self._findings.at("deadlock", row, message, "see what its partner waits for")
        for race in result.races:
            between = race.launch - race.other_launch
            if self._is_new(race.operation, race.other, between, race.host_rank):
                self._tell_race(race)
        for race in result.exposed:
            if self._is_new(race.other):
                self._tell_exposed(race)
        # Outputs are incomplete if the launch does not end.
        if not len(result.blocked):
            self._tell_contents(result, number)

    def _is_new(self, *key: int) -> bool:
        is_new = key not in self._told
        self._told.add(key)
        return is_new

    def _tell_race(
        self,
        race: Race,
    ) -> None:
        first, second = (self._party(race, row) for row in (race.other, race.operation))
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

    def _tell_exposed(self, race: Race) -> None:
        """Warn of a put whose source the caller may overwrite before the proxy has read it."""
        message = (
            f"the kernel may end before the proxy has read {self._place(race.cell)}: a caller that"
            " then overwrites it sends wrong data"
        )
        self._findings.warn_at("unflushed-put", race.other, message, _FLUSH_CURE)

    def _party(self, race: Race, row: int) -> str:
        """Describe an operation or the host that takes part in a race."""
        if row >= 0:
            return self._plan.describe(row)
        return f"the caller of rank {race.host_rank}, who fills inputs and reads outputs,"

    def _place(
        self,
        cell: int,
    ) -> str:
        """Describe a cell by chunk, buffer and rank, or a counter (negative number) by its name."""
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

    def _tell_contents(
        self,
        result: LaunchResult,
        number: int,
    ) -> None:
        """Report outputs that differ from the expected result."""
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
