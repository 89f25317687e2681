"""What a conversion cannot carry over, and whether that is ignored, warned of or refused."""

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
    """One thing that the target cannot express: which feature, where, and what follows.

    `feature` names what reading back would find different: a column of the step table in words
    (`lane`, `control dependencies`), `steps`, `extensions`, ... The conformance kit holds losses to
    that.
    """

    feature: str
    where: str
    consequence: str

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.feature} ({self.where}): {self.consequence}"


class LossPolicy(StrEnum):
    """What to do about losses; `--strict` on the command line is REFUSE."""

    IGNORE = "ignore"
    WARN = "warn"
    REFUSE = "refuse"


def apply_policy(losses: Sequence[Loss], policy: LossPolicy) -> None:
    """Raise `LossyError` with every loss where `policy` is REFUSE and there is one."""
    if losses and policy is LossPolicy.REFUSE:
        refusals = [f"refused, the conversion loses: {loss}" for loss in losses]
        raise LossyError([Diagnostic("lossy", refusal) for refusal in refusals])
