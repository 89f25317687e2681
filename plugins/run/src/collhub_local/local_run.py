"""One run of an algorithm, and what is to be said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub_core.model import Diagnostic, Severity

if TYPE_CHECKING:
    from collhub_execution import RunOutcome, RunSetup

    from hub_core.plugin_api import ExecutionResult

# The executor whose order of reduction is the schedule's own.
REFERENCE = "numpy"


@dataclass(frozen=True, slots=True)
class LocalRun:
    """One execution, and what is to be said of it.

    `order_kept`: whether the bits are those of the schedule's own order of reduction, None where
    that was not asked.
    """

    executor: str
    outcome: RunOutcome
    result: ExecutionResult
    order_kept: bool | None

    @property
    def setup(self) -> RunSetup:
        """What was run."""
        return self.outcome.setup

    def findings(self) -> list[Diagnostic]:
        """What the user should know, errors last."""
        return [
            *self.setup.notes(),
            *self._remarks(),
            *self.result.diagnostics,
            *self.outcome.judgement.diagnostics,
        ]

    def _remarks(self) -> list[Diagnostic]:
        """What is no error, but worth knowing."""
        found = []
        if not self.setup.claims_mode:
            mode = "in" if self.setup.in_place else "out of"
            message = f"the algorithm does not claim to work {mode} place"
            found.append(Diagnostic("mode-not-claimed", message, Severity.WARNING))
        if self.outcome.judgement.comparison == "none":
            message = "the custom collective states no result, so that nothing was compared"
            found.append(Diagnostic("contents-not-judged", message, Severity.NOTE))
        if self.order_kept is False:
            message = (
                "the bits are not those of the schedule's own order of reduction, "
                f"as the executor {REFERENCE} gives them"
            )
            found.append(Diagnostic("order-changed", message, Severity.WARNING))
        return found
