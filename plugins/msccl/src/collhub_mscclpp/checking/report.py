"""The report on a plan and the collection of its findings."""

from __future__ import annotations

from dataclasses import dataclass, field

from collhub_mscclpp.plans.records import Plan
from hub_core.columns import Int64Array
from hub_core.model import Diagnostic, Findings, Location, Severity

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
        """Add a finding about an operation, by default an error."""
        rank = self.plan.blocks[int(self.plan.operations.block[row])].rank
        # Plans are often one long line, so a rank is more useful than a line number.
        location = Location(self.plan.file, rank=rank)
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
        """Add an error about a rank."""
        self.found.add(code, message, Location(self.plan.file, rank=rank), cure)

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
        """Add an error about an operation that the executor refuses or that overruns its tables."""
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
        """Add an error about a rank that the executor refuses or that overruns its tables."""
        self.breaks_loading = True
        self.on_rank(code, rank, message, cure)
