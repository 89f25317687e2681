"""Losses of a conversion, and the policy for them: ignore, warn or refuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hub_core.model.diagnostics import Diagnostic, LossyError

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Loss:
    """A feature that the target format cannot express, where it is used, and the consequence.

    `feature`: the part that differs when the output is read back: a column of the step table in
    words (`lane`, `control dependencies`), `steps`, `extensions`, ... The conformance kit compares
    losses with such differences.
    """

    feature: str
    where: str
    consequence: str

    def __str__(self) -> str:
        """Return one line of text."""
        return f"{self.feature} ({self.where}): {self.consequence}"


class LossPolicy(StrEnum):
    """Policy for losses; `--strict` on the command line is REFUSE."""

    IGNORE = "ignore"
    WARN = "warn"
    REFUSE = "refuse"


def apply_policy(losses: Sequence[Loss], policy: LossPolicy) -> None:
    """Raise `LossyError` with all losses if `policy` is REFUSE and there are any."""
    if losses and policy is LossPolicy.REFUSE:
        refusals = [f"refused, the conversion loses: {loss}" for loss in losses]
        raise LossyError([Diagnostic("lossy", refusal) for refusal in refusals])
