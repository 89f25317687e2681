"""The outcome of a re-check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from hub_core.model import Diagnostic, Severity


@dataclass(frozen=True, slots=True)
class CertificateReport:
    """What is left of a certificate's claims.

    `rate`: bytes of the collective per second that the trees carry, None where they do not, or are
    left out. `bound`: the rate that the cut or partition allows, None where it is none. `unproved`:
    claims that no check proves, in words by the path of their field.
    """

    rate: Fraction | None
    bound: Fraction | None
    diagnostics: tuple[Diagnostic, ...]
    unproved: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing that the certificate claims is wrong."""
        severities = [found.severity for found in self.diagnostics]
        return Severity.ERROR not in severities

    @property
    def is_optimal(self) -> bool:
        """Whether no algorithm has a higher rate: both numbers are sound, and equal."""
        # A bound that nothing reaches is no optimum, and two unknown numbers are not equal.
        if self.rate is None:
            return False
        return self.ok and self.rate == self.bound
