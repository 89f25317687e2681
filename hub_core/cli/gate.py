"""The gate that every input passes before work is done on it.

What is wrong is refused with its causes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import Diagnostic, InputError, Location, Severity
from hub_core.verification import VerificationInput, VerifyReport, verify_input

# Enough for the first causes; `collhub verify` lists all.
_LISTED_CAUSES = 8


class VerifyPolicy(StrEnum):
    """What becomes of an input that is wrong: refused, let through with warnings, or not judged."""

    REFUSE = "refuse"
    WARN = "warn"
    OFF = "off"


def admit(
    algorithm: Algorithm,
    name: str,
    policy: VerifyPolicy,
    report: Callable[[Diagnostic], None],
) -> VerifyReport | None:
    """Verify an algorithm as it claims to work and act as the policy says.

    Returns the verdict, None under OFF. Under REFUSE, raises `InputError` with the first causes.
    What cannot be judged, such as the contents of a timing-only trace, is reported as a note and
    passes.
    """
    if policy is VerifyPolicy.OFF:
        return None
    outcome = verify_input(VerificationInput(algorithm), claimed_only=True)
    if outcome.ok:
        if outcome.method == "none":
            report(_not_judged(name, outcome.diagnostics))
        return outcome
    causes = [found for found in outcome.diagnostics if found.severity is Severity.ERROR]
    if policy is VerifyPolicy.REFUSE:
        cure = "see 'collhub verify'; --verify warn or off goes on all the same"
        # What cannot be checked may be correct.
        is_wrong = any(cause.code != "too-large" for cause in causes)
        verdict = "not correct as claimed" if is_wrong else "not verified: too large to check"
        head = Diagnostic("not-verified", verdict, location=Location(name))
        raise InputError([*causes[:_LISTED_CAUSES], replace(head, cure=cure)])
    for cause in causes[:_LISTED_CAUSES]:
        report(replace(cause, severity=Severity.WARNING))
    return outcome


def _not_judged(name: str, diagnostics: tuple[Diagnostic, ...]) -> Diagnostic:
    """The note on an input whose contents nobody can judge, with the reason where one is known."""
    notes = [found.message for found in diagnostics if found.severity is Severity.NOTE]
    reason = f": {notes[0]}" if notes else ""
    message = f"nothing wrong found, contents not judged{reason}"
    return Diagnostic("contents-not-judged", message, Severity.NOTE, Location(name))
