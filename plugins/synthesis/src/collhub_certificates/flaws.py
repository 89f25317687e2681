"""How a claim that does not hold is told."""

from __future__ import annotations

from fractions import Fraction

from hub_core.model import Diagnostic


class FlawError(Exception):
    """A claim of a certificate that does not hold; caught where the report is made."""

    # A stable code for scripts, the claim and what holds instead for people.
    def __init__(self, code: str, message: str, cure: str = "") -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(f"certificate-{code}", message, cure=cure)


def gb_text(rate: Fraction) -> str:
    """A rate for messages, in GB/s with six digits."""
    return f"{float(rate) / 1e9:.6g} GB/s"
