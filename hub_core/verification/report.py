"""The result of a verification: one verdict per mode, and diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hub_core.model.diagnostics import Diagnostic


@dataclass(frozen=True, slots=True)
class ModeReport:
    """The result for one mode of calling: in place or out of place.

    `is_claimed`: the algorithm declares that it supports the mode. `verdict`: "ok", "wrong", "race"
    (correct in one sequential order, but conflicting accesses are not ordered) or "wrong+race".
    Errors common to all modes (matching, bounds, deadlock) make every mode "wrong" but are listed
    in `VerifyReport.diagnostics` only. `diagnostics`: races and wrong contents of this mode.
    """

    is_claimed: bool
    verdict: str
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`.

    `modes`: reports by mode, "in_place" and "out_of_place"; unclaimed modes may be missing.
    `diagnostics`: findings common to all modes, then those of the claimed modes, causes before
    consequences. `method`: how contents were compared: "exact" (multisets of contributions),
    "fingerprint" (64-bit sums of random numbers) or "none". `error_probability`: upper bound on the
    probability that a wrong output was accepted; 0.0 unless fingerprints were used.
    """

    modes: Mapping[str, ModeReport]
    diagnostics: tuple[Diagnostic, ...]
    method: str
    error_probability: float = 0.0

    def __repr__(self) -> str:
        claimed = {name: mode.verdict for name, mode in self.modes.items() if mode.is_claimed}
        modes = ", ".join(f"{name} {verdict}" for name, verdict in claimed.items())
        return f"<VerifyReport: {modes}, {len(self.diagnostics)} findings>"

    @property
    def ok(self) -> bool:
        """Whether the verdict of every claimed mode is "ok"; True if no mode is claimed."""
        # Unclaimed modes may be wrong; `modes` reports them for information.
        claimed = [mode for mode in self.modes.values() if mode.is_claimed]
        return all(mode.verdict == "ok" for mode in claimed)
