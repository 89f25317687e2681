"""The judgement of a plan, and the findings it is made of."""

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
"""Verdicts on the contents and the order of what a plan does, gravest last but one."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanReport:
    """What was found out about a plan.

    `is_loadable`: no rule of the executor's loader, nor one of its limits, is broken. `verdict`:
    OK, RACE, DEADLOCK or WRONG in the first launch, or n/a where the plan could not be followed;
    `verdict_relaunch`: the same over the launches after it, n/a for fragments too. `is_fragment`:
    the plan promises nothing (`test`, or a collective without a contract here). `diagnostics`:
    errors and warnings, those that keep it from loading first. `order`: rows of operations as the
    first launch did them; empty where the plan could not be followed.
    """

    is_loadable: bool
    verdict: str
    verdict_relaunch: str
    is_fragment: bool
    diagnostics: tuple[Diagnostic, ...]
    order: Int64Array

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """Findings that make the plan unusable as claimed."""
        return tuple(one for one in self.diagnostics if one.severity is Severity.ERROR)

    @property
    def ok(self) -> bool:
        """Whether the executor runs the plan rightly, launch after launch."""
        return not self.errors


@dataclass(slots=True)
class PlanFindings:
    """Findings on a plan under construction, with their place in it."""

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
        """Add a finding on an operation."""
        rank = self.plan.blocks[int(self.plan.operations.block[row])].rank
        # Plans are one long line: a rank tells more than a line number.
        place = Location(self.plan.file, rank=rank)
        self.found.add(
            code, f"{self.plan.describe_within_rank(row)}: {message}", place, cure, severity
        )

    def warn_at(
        self,
        code: str,
        row: int,
        message: str,
        cure: str = "",
    ) -> None:
        """Add a warning on an operation."""
        self.at(code, row, message, cure, Severity.WARNING)

    def on_rank(
        self,
        code: str,
        rank: int,
        message: str,
        cure: str = "",
    ) -> None:
        """Add an error on a rank."""
        self.found.add(code, message, Location(self.plan.file, rank=rank), cure)

    def on_plan(
        self,
        code: str,
        message: str,
        cure: str = "",
    ) -> None:
        """Add an error on the plan as a whole."""
        self.found.add(code, message, Location(self.plan.file), cure)

    def refuse_at(
        self,
        code: str,
        row: int,
        message: str,
        cure: str = "",
    ) -> None:
        """Add an error that the executor does not load, or that overruns its tables."""
        # What the loader refuses, and what it fails to refuse, are alike to users.
        self.breaks_loading = True
        self.at(code, row, message, cure)

    def refuse_rank(
        self,
        code: str,
        rank: int,
        message: str,
        cure: str = "",
    ) -> None:
        """The same on a rank."""
        self.breaks_loading = True
        self.on_rank(code, rank, message, cure)
