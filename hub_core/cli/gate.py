"""Verify every input before it is processed: refuse incorrect ones, or warn, as `--verify` says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from hub_core.cli.reports.report_objects import with_path
from hub_core.model import Algorithm, Diagnostic, InputError, Location, Severity, Workload
from hub_core.verification import VerificationInput, VerifyReport, verify_input

if TYPE_CHECKING:
    from hub_core.plugin_api import CheckReport
    from hub_core.registry.plugins import Registry

# Causes listed in an error; `collhub verify` lists all of them.
_MAX_CAUSES = 8
Report = Callable[[Diagnostic], None]


class VerifyPolicy(StrEnum):
    """Treatment of incorrect inputs: REFUSE raises an error, WARN prints warnings.

    OFF: inputs are not verified.
    """

    REFUSE = "refuse"
    WARN = "warn"
    OFF = "off"


def admit(
    model: Algorithm | Workload,
    name: str,
    policy: VerifyPolicy,
    report: Report,
    registry: Registry,
) -> VerifyReport | None:
    """Verify a model that messages call `name`; refuse it or warn, as the policy says.

    An algorithm is verified in the modes that it claims; the report on it is returned. A workload
    is examined by all installed checks of workloads. Under REFUSE, raises `InputError` with the
    errors if there are any. Inputs that cannot be verified, such as timing-only traces, are
    accepted with a note. Returns None for workloads, and under OFF.
    """
    if policy is VerifyPolicy.OFF:
        return None
    if isinstance(model, Algorithm):
        return _admit_algorithm(model, name, policy, report)
    findings = find_workload_defects(model, name, registry)
    if policy is VerifyPolicy.WARN:
        _warn(findings, report)
    elif any(finding.severity is Severity.ERROR for finding in findings):
        raise InputError(findings)
    return None


def _admit_algorithm(
    algorithm: Algorithm, name: str, policy: VerifyPolicy, report: Report
) -> VerifyReport:
    outcome = verify_input(VerificationInput(algorithm), claimed_only=True)
    if outcome.ok:
        if outcome.method == "none":
            report(_create_note(name, outcome.diagnostics))
        return outcome
    errors = [finding for finding in outcome.diagnostics if finding.severity is Severity.ERROR]
    causes = with_path(errors[:_MAX_CAUSES], algorithm, name)
    if policy is VerifyPolicy.WARN:
        _warn(causes, report)
        return outcome
    # An algorithm that is too large to check may be correct.
    is_wrong = any(cause.code != "too-large" for cause in errors)
    verdict = "not correct as claimed" if is_wrong else "not verified: too large to check"
    cure = "run 'collhub verify' for details; --verify warn or --verify off continues all the same"
    raise InputError(
        [*causes, Diagnostic("not-verified", verdict, location=Location(name), cure=cure)]
    )


def _warn(findings: Iterable[Diagnostic], report: Report) -> None:
    for finding in findings:
        report(replace(finding, severity=Severity.WARNING))


def check_workload(
    workload: Workload, name: str, registry: Registry, *, is_thorough: bool = False
) -> dict[str, CheckReport]:
    """Run all installed checks of workloads and return their reports by name of the check.

    `is_thorough`: checks may simulate the workload.
    """
    from hub_core.pipeline.checks import checks_of, run_check
    from hub_core.plugin_api import CheckRequest, Subject

    request = CheckRequest(name=name, workload=workload, is_thorough=is_thorough)
    checks = checks_of(Subject.WORKLOAD, registry)
    return {check.name: run_check(check, request) for check in checks}


def find_workload_defects(workload: Workload, name: str, registry: Registry) -> list[Diagnostic]:
    """Return the findings of all installed checks of workloads, check by check."""
    reports = check_workload(workload, name, registry).values()
    return [finding for report in reports for finding in report.diagnostics]


def _create_note(name: str, diagnostics: tuple[Diagnostic, ...]) -> Diagnostic:
    """Create the note on an input whose contents cannot be verified, with the reason if known."""
    notes = [finding.message for finding in diagnostics if finding.severity is Severity.NOTE]
    reason = f": {notes[0]}" if notes else ""
    message = f"nothing wrong found, contents not judged{reason}"
    return Diagnostic("contents-not-judged", message, Severity.NOTE, Location(name))
