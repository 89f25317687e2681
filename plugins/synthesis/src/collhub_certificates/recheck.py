"""Check a certificate of optimality without the program that wrote it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import cast

from collhub_certificates.claim import Claim, FlawError, format_gb, read_capacities
from collhub_certificates.comparison import (
    compare_numbers,
    compute_allowed_rate,
    list_unproved_claims,
)
from collhub_certificates.rates import compute_carried_rate
from hub_core import schema_violations
from hub_core.model import Algorithm, Diagnostic, Location, Severity
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions
from hub_core.schedules import Certificate, find_certificate


@dataclass(frozen=True, slots=True)
class CertificateReport:
    """The result of a re-check.

    `rate`: bytes of the collective per second that the trees carry, None for invalid or omitted
    trees. `bound`: the rate that the cut or partition allows, None if it is invalid. `unproved`:
    claims that no check proves, by the path of their field.
    """

    rate: Fraction | None
    bound: Fraction | None
    diagnostics: tuple[Diagnostic, ...]
    unproved: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if no checked claim is wrong."""
        return all(finding.severity is not Severity.ERROR for finding in self.diagnostics)

    @property
    def is_optimal(self) -> bool:
        """True if no algorithm has a higher rate: both numbers are valid and equal."""
        # Two unknown numbers are not equal.
        if self.rate is None:
            return False
        return self.ok and self.rate == self.bound


_SCHEMA_FILE = "certificate-1.json"


def check_certificate(
    certificate: Mapping[str, object],
    algorithm: Algorithm | None = None,
    topology: Topology | None = None,
) -> CertificateReport:
    """Recompute all claims of a certificate.

    With `topology`, the certificate must be for this network; without, for the links that it lists.
    With `algorithm`, its traffic between ranks must be that of the trees. Only the topology is
    trusted. docs/certificates.md describes the document.
    """
    violations = schema_violations(certificate, _SCHEMA_FILE)
    if violations:
        location = Location("certificate")
        findings = tuple(error.finding(location, "certificate-form") for error in violations)
        return CertificateReport(None, None, findings)
    # The schema has the same members as the type.
    return _recompute(cast(Certificate, certificate), algorithm, topology)


def _recompute(
    certificate: Certificate, algorithm: Algorithm | None, topology: Topology | None
) -> CertificateReport:
    # Three independent computations: the rate that the cut allows, the loads and the rate of the
    # trees, and the comparison of both with the claimed numbers. All use fractions of the links'
    # bandwidths, so that equality is exact.
    findings: list[Diagnostic] = []
    rate = bound = None
    try:
        claim = Claim(certificate, read_capacities(certificate, topology))
        claim.check_ranks(algorithm)
        bound = _try_compute(lambda: compute_allowed_rate(claim), findings)
        if "trees" in certificate:
            rate = _try_compute(lambda: compute_carried_rate(claim, algorithm), findings)
        else:
            findings.append(_create_partial_warning())
        compare_numbers(certificate, rate, bound, algorithm)
    except FlawError as flaw:
        # A flaw of the network, the ranks or the comparison; results so far are still reported.
        findings.append(flaw.diagnostic)
    unproved = list_unproved_claims(certificate, rate)
    return CertificateReport(rate, bound, tuple(findings), unproved)


def _try_compute(compute: Callable[[], Fraction], findings: list[Diagnostic]) -> Fraction | None:
    """Return the result, or add a finding and return None, so that the other number is checked."""
    try:
        return compute()
    except FlawError as flaw:
        findings.append(flaw.diagnostic)
        return None


def _create_partial_warning() -> Diagnostic:
    message = "the certificate leaves the trees out, so that only the bound was checked"
    return Diagnostic("certificate-partial", message, Severity.WARNING)


def check_packing(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Recompute the certificate of an algorithm, for the given topology if there is one."""
    assert request.algorithm is not None
    certificate = find_certificate(request.algorithm)
    if certificate is None:
        return CheckReport(ok=False, is_applicable=False)
    report = check_certificate(certificate, request.algorithm, request.topology)
    return CheckReport(
        report.ok,
        _format_verdict(report),
        report.diagnostics,
        # Fractions as text: JSON has no other exact form for them.
        facts={
            "is_optimal": report.is_optimal,
            "rate": _format_fraction(report.rate),
            "bound": _format_fraction(report.bound),
            "not_proved": [*sorted(report.unproved)],
        },
        details={
            "rate": _format_rate(report.rate),
            "bound": _format_rate(report.bound),
            **({"not proved": "; ".join(report.unproved.values())} if report.unproved else {}),
        },
    )


def _format_verdict(report: CertificateReport) -> str:
    """Return the verdict as text."""
    if not report.ok:
        return "wrong"
    if report.is_optimal:
        return "holds: no algorithm has a higher rate"
    if report.rate is None or report.bound is None:
        return "holds as far as it was checked"
    factor = float(report.bound / report.rate)
    return f"holds: at most {factor:.4g} times the rate is possible"


def _format_fraction(rate: Fraction | None) -> str | None:
    """Return bytes per second as an exact fraction."""
    return None if rate is None else str(rate)


def _format_rate(rate: Fraction | None) -> str:
    """Return the rate in GB/s and as an exact fraction."""
    return "not known" if rate is None else f"{format_gb(rate)} ({rate} bytes/s)"
