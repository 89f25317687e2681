"""Input and report of a verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hub_core.columns import BoolArray
from hub_core.model import Algorithm, Findings, Messages, match_messages
from hub_core.model.diagnostics import Diagnostic
from hub_core.verification.regions import check_regions
from hub_core.verification.step_order import HappensBefore, OrderGraph, happens_before


class VerificationInput:
    """An algorithm, its messages, and the order of its steps.

    Shared by both modes of calling and by verifications against several expectations; later work on
    the algorithm can use them too. Errors in messages and regions become findings.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        """Match the messages and check the regions. `algorithm` is stored and never changed."""
        self.algorithm = algorithm
        self._findings = Findings(algorithm.provenance.source_name or None)
        self.messages: Messages = match_messages(algorithm.steps, self._findings)
        self.has_contents = algorithm.has_contents
        # bool[rows]: the regions are within their buffers; all True for timing-only algorithms.
        self.is_valid: BoolArray = np.ones(len(algorithm.steps), np.bool_)
        if self.has_contents:
            self.is_valid = check_regions(algorithm, self._findings)

    @property
    def findings(self) -> Findings:
        """A new copy of the findings on messages and regions, to which the caller adds its own."""
        return self._findings.copy()

    @cached_property
    def relation(self) -> HappensBefore:
        """The happens-before relation: the order of steps in every run."""
        return happens_before(self.algorithm.steps, self.messages)

    @cached_property
    def graph(self) -> OrderGraph:
        """The happens-before relation as a graph for path searches."""
        return OrderGraph(self.algorithm.steps, self.relation)


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
