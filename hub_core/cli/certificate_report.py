"""How a re-checked certificate is printed, as text and as JSON."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from hub_core.cli.output import print_diagnostic, print_fields
from hub_core.plugin_api.report_objects import diagnostic_object

if TYPE_CHECKING:
    from hub_core.certificates import CertificateReport
    from hub_core.model.algorithm import JsonValue


def print_certificate(report: CertificateReport) -> None:
    """Print the recomputed rate and bound, and what is wrong."""
    print_fields(
        {"certificate": _verdict(report), "rate": _text(report.rate), "bound": _text(report.bound)}
    )
    for found in report.diagnostics:
        print_diagnostic(found)


def certificate_object(report: CertificateReport) -> dict[str, JsonValue]:
    """The member `certificate` of the report; rates are fractions in bytes per second."""
    return {
        "ok": report.ok,
        "is_optimal": report.is_optimal,
        "rate": None if report.rate is None else str(report.rate),
        "bound": None if report.bound is None else str(report.bound),
        "diagnostics": [diagnostic_object(found) for found in report.diagnostics],
    }


def _verdict(report: CertificateReport) -> str:
    if not report.ok:
        return "wrong"
    if report.is_optimal:
        return "holds: no algorithm has a higher rate"
    if report.rate is None or report.bound is None:
        return "holds as far as it was checked"
    return f"holds: at most {float(report.bound / report.rate):.4g} times the rate is possible"


def _text(rate: Fraction | None) -> str:
    """The exact rate and what it is in GB/s."""
    return "not known" if rate is None else f"{float(rate) / 1e9:.6g} GB/s ({rate} bytes/s)"
