"""The check of certificates as the hub runs it: the outcome as verdict, facts and details."""

from __future__ import annotations

from fractions import Fraction

from collhub_certificates.flaws import gb_text
from collhub_certificates.recheck import check_certificate
from collhub_certificates.report import CertificateReport
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions
from hub_core.schedules import find_certificate


def check_packing(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Recompute the certificate that the algorithm carries, for the topology where one is named."""
    assert request.algorithm is not None
    certificate = find_certificate(request.algorithm)
    if certificate is None:
        return CheckReport(ok=False, is_applicable=False)
    report = check_certificate(certificate, request.algorithm, request.topology)
    return CheckReport(
        report.ok,
        _verdict(report),
        report.diagnostics,
        # Fractions as text: JSON has no other exact form for them.
        facts={
            "is_optimal": report.is_optimal,
            "rate": _fraction_text(report.rate),
            "bound": _fraction_text(report.bound),
            "not_proved": [*sorted(report.unproved)],
        },
        details={
            "rate": _people_text(report.rate),
            "bound": _people_text(report.bound),
            **({"not proved": "; ".join(report.unproved.values())} if report.unproved else {}),
        },
    )


def _verdict(report: CertificateReport) -> str:
    """The judgement in a few words."""
    if not report.ok:
        return "wrong"
    if report.is_optimal:
        return "holds: no algorithm has a higher rate"
    if report.rate is None or report.bound is None:
        return "holds as far as it was checked"
    factor = float(report.bound / report.rate)
    return f"holds: at most {factor:.4g} times the rate is possible"


def _fraction_text(rate: Fraction | None) -> str | None:
    """Bytes per second, exactly."""
    return None if rate is None else str(rate)


def _people_text(rate: Fraction | None) -> str:
    """What the rate is in GB/s, and the exact number."""
    return "not known" if rate is None else f"{gb_text(rate)} ({rate} bytes/s)"
