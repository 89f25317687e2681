"""The outcome of verification: one verdict a mode, and diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hub_core.model.diagnostics import Diagnostic


@dataclass(frozen=True, slots=True)
class ModeReport:
    """The outcome for one mode of calling, in place or out of place.

    `verdict`: "ok", "wrong", "race" (right in one sequential order, but conflicting accesses are
    not ordered) or "wrong+race". What concerns every mode (matching, bounds, deadlock) makes each
    mode wrong but stands in `VerifyReport.diagnostics` only; `diagnostics` holds the races and
    contents of this mode.
    """

    is_claimed: bool
    verdict: str
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of `verify`.

    `modes`: "in_place" and "out_of_place", claimed or not. `diagnostics`: what concerns every mode,
    then the findings of the claimed modes; within these first causes first. `method`: how contents
    were compared: "exact" (multisets), "fingerprint" (64-bit sums) or "none"; `error_probability`:
    upper bound on the probability that a wrong output passed, over the random fingerprints.
    """

    modes: Mapping[str, ModeReport]
    diagnostics: tuple[Diagnostic, ...]
    method: str
    error_probability: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every claimed mode is ok, so that races and wrong contents both count."""
        # What nobody claims may be wrong: it is in `modes` for those who ask.
        claimed = [mode for mode in self.modes.values() if mode.is_claimed]
        return all(mode.verdict == "ok" for mode in claimed)


def verdict(is_wrong: bool, is_racy: bool) -> str:
    """Name the verdict of a mode.

    Races and wrong results are told apart, as they have different cures.
    """
    found = ["wrong"] * is_wrong + ["race"] * is_racy
    return "+".join(found) or "ok"
