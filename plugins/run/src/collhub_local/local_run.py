"""The record of one execution, and its findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub_core.model import Diagnostic, Severity

if TYPE_CHECKING:
    from collhub_execution import RunOutcome, RunSetup

    from hub_core.plugin_api import ExecutionResult

# The executor that reduces in the order of the schedule.
REFERENCE = "numpy"


@dataclass(frozen=True, slots=True)
class LocalRun:
    """One execution.

    `order_kept`: whether the bits are those of the schedule's order of reduction, None if not
    checked.
    """

    executor: str
    outcome: RunOutcome
    result: ExecutionResult
    order_kept: bool | None

    @property
    def setup(self) -> RunSetup:
        """The parameters of the run."""
        return self.outcome.setup

    def findings(self) -> list[Diagnostic]:
        """Return all findings for the user, errors last."""
        return [
            *self.setup.notes(),
            *self._remarks(),
            *self.result.diagnostics,
            *self.outcome.judgement.diagnostics,
        ]

    def _remarks(self) -> list[Diagnostic]:
        """Return notes and warnings about the run."""
        remarks = []
        if not self.setup.claims_mode:
            mode = "in" if self.setup.in_place else "out of"
            message = f"the algorithm does not claim to work {mode} place"
            remarks.append(Diagnostic("mode-not-claimed", message, Severity.WARNING))
        if self.outcome.judgement.comparison == "none":
            message = "the custom collective defines no result, so the outputs were not compared"
            remarks.append(Diagnostic("contents-not-judged", message, Severity.NOTE))
        if self.order_kept is False:
            message = (
                "the bits differ from those of the schedule's order of reduction, "
                f"which the executor {REFERENCE} uses"
            )
            remarks.append(Diagnostic("order-changed", message, Severity.WARNING))
        return remarks
